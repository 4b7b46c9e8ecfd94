// SPDX-License-Identifier: BSD-3-Clause
// The effective deck as plain values. One struct a section, each defined
// where it is used; defaults are those of an empty section. Units are in the names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/pipeline/settings.hpp"
#include "comm/transport/link_settings.hpp"
#include "core/base/numeric/precision.hpp"
#include "core/cache/settings.hpp"
#include "core/codec/algorithms/recommended.hpp"
#include "core/codec/settings.hpp"
#include "core/data/settings.hpp"
#include "models/optimizer_settings.hpp"

namespace deltapipe {

/// First layers of a new residual network (models/resnet/resnet_config.hpp).
enum class StemKind { cifar, imagenet };

/// [model]: where the weights come from.
struct ModelSettings {
  std::string path;  ///< Hugging Face directory; empty: a new model of the shape below
  // [model.new]: shape of a new model, initialised as Hugging Face does (normal, 0.02).
  std::string type = "gpt2";  ///< as in the table of model_types()
  int n_layer = 4;
  int n_head = 4;
  int n_embd = 256;
  int n_positions = 1024;
  int n_inner = 0;                         ///< hidden width of the MLP; 0: 4 n_embd
  int patch_size = 4;                      ///< of a vision transformer
  std::vector<int> depths = {2, 2, 2, 2};  ///< of a residual network
  StemKind stem = StemKind::cifar;         ///< of a residual network
  // Dropout probabilities; negative: those of the model's config.json (new models: 0).
  double dropout_embedding = -1;
  double dropout_attention = -1;
  double dropout_residual = -1;

  bool operator==(const ModelSettings&) const = default;
};

/// [training]
struct TrainingSettings {
  double epochs = 1;         ///< used when steps is 0
  std::uint64_t steps = 0;   ///< optimizer steps; 0: from epochs
  int micro_batch_size = 1;  ///< B: samples that cross a boundary together
  int micro_batches = 1;     ///< micro-batches per step and replica
  std::uint64_t seed = 42;
  OptimizerSettings optimizer;  ///< [training.optimizer]
  ProductPrecision precision = ProductPrecision::fp32;
  bool recompute = false;             ///< activation recomputation in every stage ...
  std::vector<int> recompute_stages;  ///< ... or only in these
  std::uint64_t evaluate_every = 0;   ///< steps; 0: at every epoch's end
  bool evaluate_at_start = false;     ///< before the first step
  bool keep_best = false;             ///< the model of the lowest validation loss in OUTPUT/best
  std::uint64_t patience = 0;         ///< evaluations without a lower loss that end it; 0: none

  bool needs_validation() const { return keep_best || patience > 0; }

  bool operator==(const TrainingSettings&) const = default;
};

enum class CheckpointMode {
  exact,  ///< with the boundaries' memories: a restart continues with the same bits
  resync  ///< without: every sample's next visit is a first one
};

/// [output]
struct OutputSettings {
  std::string directory = "runs/run";  ///< made if missing; holds run.h5, model/, cache files
  bool save_model = true;              ///< fine-tuned model as a Hugging Face directory
  Precision model_precision = Precision::fp32;
  bool overwrite = false;        ///< starts from scratch where there is a run or a model
  std::uint64_t log_every = 10;  ///< steps between log lines in a batch job
  std::uint64_t trace_step = 0;  ///< this step's Chrome trace goes to trace.json; 0: none

  bool operator==(const OutputSettings&) const = default;
};

/// [checkpoint]: when a run writes what a restart needs, and whether it starts from that.
struct CheckpointSettings {
  std::uint64_t every_steps = 0;      ///< 0: not by steps
  double every_seconds = 0;           ///< 0: not by time
  int keep = 2;                       ///< of the newest
  std::uint64_t milestone_every = 0;  ///< steps between those that stay; 0: none
  std::string directory;              ///< empty: OUTPUT/checkpoints
  CheckpointMode mode = CheckpointMode::exact;
  bool change_optimizer = false;  ///< a restart may have other [training.optimizer] settings
  double time_limit_seconds = 0;  ///< of this start of the run; 0: none

  bool operator==(const CheckpointSettings&) const = default;
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

/// [plan]
struct PlanSettings {
  std::string run;          ///< run file whose measured times are the rates; empty: none
  double flops = 0;         ///< floating-point operations per second of a rank
  double codec_rate = 0;    ///< bytes of fp32 per second; 0: codecs take no time
  double forward_bits = 0;  ///< per value on the wire; 0: the codec's payload
  double backward_bits = 0;
  bool receiver_wires = false;     ///< LinkSharing::receiver_wires
  std::vector<double> bandwidths;  ///< bit/s, in place of the network's

  bool operator==(const PlanSettings&) const = default;
};

struct Settings {
  ModelSettings model;
  TokenizerSettings tokenizer;  ///< [tokenizer]
  DataSettings data;
  TrainingSettings training;
  PipelineSettings pipeline;
  CodecSettings forward;   ///< [boundary.forward]
  CodecSettings backward;  ///< [boundary.backward]
  RateSettings forward_rate, backward_rate;
  double auto_error = kRecommendedError;  ///< [boundary]: what codec = "auto" holds
  bool move_memories = false;             ///< [boundary]
  EvaluationSettings evaluation;
  CacheSettings cache;
  NetworkSettings network;
  ReplicaSettings replicas;
  OutputSettings output;
  CheckpointSettings checkpoint;
  GenerateSettings generate;
  PlanSettings plan;

  bool operator==(const Settings&) const = default;
};

/// The model of a run's last step, and that of its lowest validation loss.
inline std::string model_directory(const Settings& settings) {
  return settings.output.directory + "/model";
}
inline std::string best_directory(const Settings& settings) {
  return settings.output.directory + "/best";
}
/// The directories of models that the deck asks for.
inline std::vector<std::string> saved_models(const Settings& settings) {
  std::vector<std::string> directories;
  if (settings.output.save_model) directories.push_back(model_directory(settings));
  if (settings.training.keep_best) directories.push_back(best_directory(settings));
  return directories;
}

/// Directory of spill files.
inline const std::string& cache_directory(const Settings& settings) {
  return settings.cache.directory.empty() ? settings.output.directory : settings.cache.directory;
}

/// Directory of checkpoints.
inline std::string checkpoint_directory(const Settings& settings) {
  return settings.checkpoint.directory.empty() ? settings.output.directory + "/checkpoints"
                                               : settings.checkpoint.directory;
}
/// The run writes checkpoints, and signals ask it for one.
inline bool writes_checkpoints(const Settings& settings) {
  const CheckpointSettings& c = settings.checkpoint;
  return c.every_steps > 0 || c.every_seconds > 0 || c.milestone_every > 0 ||
         c.time_limit_seconds > 0;
}

/// The deck's settings of the pipeline; cache.directory is the directory of spill files.
PipelineOptions pipeline_options(const Settings& settings);

}  // namespace deltapipe
