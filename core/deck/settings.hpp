// The effective deck as plain values: what a run is told to do. One struct a section; defaults are
// those of an empty section. Units are in the names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deltapipe {

/// [model]: where the weights come from.
struct ModelSettings {
  std::string path;  ///< Hugging Face directory; empty: a new model of the shape below
  // [model.new]: shape of a new GPT-2, initialised as Hugging Face does (normal, 0.02).
  int n_layer = 4;
  int n_head = 4;
  int n_embd = 256;
  int n_positions = 1024;
  int n_inner = 0;  ///< hidden width of the MLP; 0: 4 n_embd
  // Dropout probabilities; negative: those of the model's config.json (new models: 0).
  double dropout_embedding = -1;
  double dropout_attention = -1;
  double dropout_residual = -1;

  bool operator==(const ModelSettings&) const = default;
};

/// [tokenizer]
struct TokenizerSettings {
  std::string path;          ///< directory or tokenizer.json; empty: the model's directory
  int train_vocabulary = 0;  ///< > 0: train a byte-level BPE of this size on the training text

  bool operator==(const TokenizerSettings&) const = default;
};

enum class DataFormat { automatic, text, jsonl, hdf5 };
/// stream: documents are joined by the end-of-text token and cut into windows that overlap by one
/// token. document: every document starts a window of its own, the last one is padded.
enum class Packing { stream, document };

/// [data]
struct DataSettings {
  std::vector<std::string> train;       ///< files, read in this order
  std::vector<std::string> validation;  ///< files; empty: the last validation_fraction of train
  double validation_fraction = 0.05;
  DataFormat format = DataFormat::automatic;  ///< automatic: by suffix .txt .jsonl .h5
  std::vector<std::string> jsonl_fields = {"text"};
  Packing packing = Packing::stream;
  int sequence_length = 0;  ///< T; 0: the model's n_positions
  bool shuffle = true;
  std::uint64_t max_train_samples = 0;       ///< 0: all
  std::uint64_t max_validation_samples = 0;  ///< 0: all

  bool operator==(const DataSettings&) const = default;
};

enum class Precision { fp32, fp16, bf16 };
enum class LearningRateSchedule { constant, linear, cosine };

/// [training]
struct TrainingSettings {
  double epochs = 1;         ///< used when steps is 0
  std::uint64_t steps = 0;   ///< optimizer steps; 0: from epochs
  int micro_batch_size = 1;  ///< B: samples that cross a boundary together
  int micro_batches = 1;     ///< micro-batches a step and replica
  std::uint64_t seed = 42;
  // [training.optimizer]: AdamW (arXiv 1711.05101)
  double learning_rate = 5e-5;
  LearningRateSchedule schedule = LearningRateSchedule::linear;
  std::uint64_t warmup_steps = 0;
  double final_learning_rate_fraction = 0;  ///< of learning_rate, at the last step
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;         ///< linear layers' matrices and wte; biases, norms, wpe: none
  double clip_norm = 1.0;             ///< global gradient norm; 0: no clipping
  bool recompute = false;             ///< activation recomputation in every stage ...
  std::vector<int> recompute_stages;  ///< ... or only in these
  std::uint64_t evaluate_every = 0;   ///< steps; 0: at every epoch's end

  bool operator==(const TrainingSettings&) const = default;
};

enum class PipelineSchedule { gpipe, one_forward_one_backward };

/// Each micro-batch under way takes a message buffer and MPI tags of its own at both ends, of which
/// a channel has 127.
inline constexpr int kMostInFlight = 126;

/// [pipeline]
struct PipelineSettings {
  int stages = 1;    ///< K
  int replicas = 1;  ///< R; ranks needed: K * R
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int in_flight = 1;             ///< 1F1B: micro-batches a boundary that may be under way at once
  double timeout_seconds = 600;  ///< silence after which a rank counts as lost; 0: never
  std::vector<int> partition;    ///< blocks a stage; empty: balanced by counted cost
  std::uint64_t verify_replicas = 500;  ///< steps between comparisons of replicas' weights; 0: none

  bool operator==(const PipelineSettings&) const = default;
};

enum class CodecKind { none, fp16, bf16, quantize, delta, row_sparse };
enum class ScaleKind { channel, token, tile };
enum class Rounding { nearest, stochastic };
/// symmetric: 2^b - 1 codes around zero; 1 bit: the sign. asymmetric, from 2 bits on: 2^b codes, to
/// nearest the AC-SGD code's (2 bits: -1, -1/2, 0, 1/2), which cut the top; stochastic: none cut.
enum class Levels { symmetric, asymmetric };
/// How a sample that was never seen is sent. fp32, fp16: whole. quantize8: 8-bit codes. refine:
/// codes of the codec's bits, at least 4, and so the second visit's change, unless the first was
/// part of a warm-up. Codes of first visits have a scale per tile.
enum class FirstVisit { fp32, fp16, quantize8, refine };

/// [boundary.forward], [boundary.backward]: what crosses a stage boundary in that direction.
///
/// Relative RMS errors of synthetic activations (512 x 768, log-normal channel scales, four
/// channels 30 times the others): quantize at 4 bits 0.42 with scale token, 0.17 with tile 64 for
/// 0.23 more bits a value, 0.15 with channel; of gradients with heavy tails 0.33, 0.17 and 0.31.
/// 3-bit delta with tile 64 settles at 0.038 with nearest and at 0.081 with stochastic rounding;
/// after a first visit by fp16, quantize8 or refine its second visit errs by 0.038, 0.040 and
/// 0.042.
struct CodecSettings {
  CodecKind kind = CodecKind::none;  ///< none: fp32 as it is; row_sparse: without rows of zeros
  int bits = 4;                      ///< 1 ... 8, for quantize and delta
  ScaleKind scale = ScaleKind::tile;
  int tile = 64;  ///< channels a scale covers, for scale = tile and codes of first visits
  Rounding rounding = Rounding::nearest;
  Levels levels = Levels::symmetric;
  FirstVisit first_visit = FirstVisit::quantize8;  ///< delta only
  double warmup_epochs = 0;                        ///< epochs sent as fp32 before the codec starts
  /// quantize only: the sender adds to a sample's values what rounding left out at its last
  /// crossing (EF: arXiv 2401.07788), from a record of the cache that only it keeps.
  bool error_feedback = false;

  bool operator==(const CodecSettings&) const = default;
};

enum class MemoryStorage { fp32, fp16, bf16, bits8, bits4, bits2 };

/// By the value of the enum, as decks and cache files name them.
inline constexpr std::array<const char*, 6> kMemoryStorageNames = {"fp32", "fp16", "bf16",
                                                                   "8bit", "4bit", "2bit"};

/// [cache]: the memories m(s) of delta codecs and the errors of quantize with error feedback.
struct CacheSettings {
  MemoryStorage storage = MemoryStorage::fp16;
  std::uint64_t budget_bytes = 0;  ///< per rank and boundary end; 0: all in memory, nothing spills
  std::string directory;           ///< for spill files; empty: the output directory
  int prefetch = 8;                ///< micro-batches read ahead
  bool keep = false;               ///< spill files stay after the run
  /// A sample's memory at both ends is compared at every so many of its visits; 0: never.
  std::uint64_t verify_every = 64;

  bool operator==(const CacheSettings&) const = default;
};

/// One direction of one emulated link.
struct LinkSettings {
  double bits_per_second = 0;  ///< 0: as fast as MPI carries it
  double latency_seconds = 0;

  bool operator==(const LinkSettings&) const = default;
};

/// boundary: each direction of each boundary is a link of its own. rank: one wire joins each rank
/// to the network, one message at a time in each direction, and all that it sends and receives
/// passes it.
enum class WireSharing { boundary, rank };

/// [network], [network.forward], [network.backward]: emulated links. Entry i of a list is the
/// boundary between stages i and i+1; one entry serves all boundaries; none: no emulation.
struct NetworkSettings {
  WireSharing wire = WireSharing::boundary;
  std::vector<LinkSettings> forward;
  std::vector<LinkSettings> backward;
  std::vector<LinkSettings> ranks;  ///< with WireSharing::rank: entry i is stage i's wire

  bool operator==(const NetworkSettings&) const = default;
};

/// [output]
struct OutputSettings {
  std::string directory = "runs/run";  ///< made if missing; holds run.h5, model/, cache files
  bool save_model = true;              ///< fine-tuned model as a Hugging Face directory
  Precision model_precision = Precision::fp32;
  bool overwrite = true;         ///< false: an existing run.h5 is an error
  std::uint64_t log_every = 10;  ///< steps between log lines in a batch job
  std::uint64_t trace_step = 0;  ///< this step's Chrome trace goes to trace.json; 0: none

  bool operator==(const OutputSettings&) const = default;
};

/// [generate]
struct GenerateSettings {
  std::vector<std::string> prompts;
  int max_new_tokens = 64;
  double temperature = 1.0;  ///< 0: greedy
  int top_k = 0;             ///< 0: all
  std::uint64_t seed = 0;

  bool operator==(const GenerateSettings&) const = default;
};

struct Settings {
  ModelSettings model;
  TokenizerSettings tokenizer;
  DataSettings data;
  TrainingSettings training;
  PipelineSettings pipeline;
  CodecSettings forward;   ///< [boundary.forward]
  CodecSettings backward;  ///< [boundary.backward]
  CacheSettings cache;
  NetworkSettings network;
  OutputSettings output;
  GenerateSettings generate;

  bool operator==(const Settings&) const = default;
};

/// Whether an end of a boundary keeps something of each sample.
inline bool has_memory(const CodecSettings& codec) {
  return codec.kind == CodecKind::delta ||
         (codec.kind == CodecKind::quantize && codec.error_feedback);
}

/// Where a run puts spill files.
inline const std::string& cache_directory(const Settings& settings) {
  return settings.cache.directory.empty() ? settings.output.directory : settings.cache.directory;
}

}  // namespace deltapipe
