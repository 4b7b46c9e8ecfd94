// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/keys.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "comm/schedule/schedule.hpp"
#include "core/codec/algorithms/recommended.hpp"

namespace deltapipe::deck {

namespace {

constexpr std::int64_t any_count = std::numeric_limits<std::int64_t>::max();
constexpr double infinite = std::numeric_limits<double>::infinity();

const std::array<Section, 25> section_table = {{
    {"model", "Where the weights come from."},
    {"model.new", "Shape of a new GPT-2; used when model.path is empty."},
    {"tokenizer", "How text becomes tokens."},
    {"data", "Training and validation texts."},
    {"training", "Length of the training and size of its steps."},
    {"training.optimizer", "AdamW and its learning rate."},
    {"pipeline", "How the model is spread over MPI ranks."},
    {"boundary", "How much is left out of what crosses a boundary."},
    {"boundary.forward", "Activations, sent from a stage to the next one."},
    {"boundary.forward.quantizer", "For experts: codes of directq, aqsgd and topk."},
    {"boundary.forward.sparse", "For experts: values of topk and aqsgd_topk."},
    {"boundary.forward.memory", "For experts: memories of aqsgd and aqsgd_topk."},
    {"boundary.forward.feedback", "For experts: error feedback of directq and topk."},
    {"boundary.backward", "Gradients, sent from a stage to the previous one."},
    {"boundary.backward.quantizer", "For experts: codes of directq and topk."},
    {"boundary.backward.sparse", "For experts: values of topk."},
    {"boundary.backward.feedback",
     "For experts: error feedback of directq and topk. Rows of a tied embedding travel without "
     "it."},
    {"evaluation", "How activations cross boundaries in evaluations and in `deltapipe generate`."},
    {"cache",
     "What the ends of a boundary keep of each sample, for aqsgd, aqsgd_topk and ef21 (both ends) "
     "and for ef and mixed (the sender)."},
    {"network",
     "Emulated links between the stages, for both directions. No bandwidth and latency: none."},
    {"network.forward", "Emulated links in the forward direction only; goes before [network]."},
    {"network.backward", "Emulated links in the backward direction only; goes before [network]."},
    {"output", "Where results go."},
    {"checkpoint",
     "When a run writes all that a restart needs, and whether it starts from that. Without "
     "every_steps, every, milestone_every and time_limit it writes none."},
    {"generate", "Settings of `deltapipe generate`."},
}};

template <class Enum>
Choice choice(Enum& value, std::vector<std::pair<std::string, Enum>> options) {
  Choice result;
  std::vector<Enum> values;
  for (auto& [name, option] : options) {
    result.names.push_back(name);
    values.push_back(option);
  }
  result.get = [&value, values] {
    std::size_t i = 0;
    while (i + 1 < values.size() && values[i] != value) ++i;
    return i;
  };
  result.set = [&value, values](std::size_t i) { value = values[i]; };
  return result;
}

Choice schedule_choice(std::string& value) {
  Choice result;
  for (const Schedule& schedule : schedules()) result.names.emplace_back(schedule.name);
  result.get = [&value, names = result.names] {
    return static_cast<std::size_t>(std::find(names.begin(), names.end(), value) - names.begin());
  };
  result.set = [&value, names = result.names](std::size_t i) { value = names[i]; };
  return result;
}

/// none, or the kind of error feedback.
Choice feedback_choice(CodecSettings& codec) {
  Choice result;
  result.names = {"none", "ef", "ef21", "mixed"};
  result.get = [&codec]() -> std::size_t {
    return codec.error_feedback ? 1 + static_cast<std::size_t>(codec.feedback_kind) : 0;
  };
  result.set = [&codec](std::size_t i) {
    codec.error_feedback = i > 0;
    codec.feedback_kind = i > 0 ? static_cast<FeedbackKind>(i - 1) : FeedbackKind::ef;
  };
  return result;
}

/// One way of evaluations, or both.
Choice evaluation_choice(EvaluationSettings& evaluation) {
  using Modes = std::vector<EvaluationMode>;
  const Modes plain = {EvaluationMode::plain};
  const std::vector<std::pair<Modes, PlainPrecision>> choices = {
      {plain, PlainPrecision::fp32},
      {plain, PlainPrecision::fp16},
      {plain, PlainPrecision::quantize8},
      {{EvaluationMode::codec}, PlainPrecision::fp32},
      {{EvaluationMode::plain, EvaluationMode::codec}, PlainPrecision::fp32}};
  Choice result;
  result.names = {"fp32", "fp16", "quantize8", "codec", "both"};
  result.get = [&evaluation, choices] {
    const std::pair<Modes, PlainPrecision> set = {evaluation.modes, evaluation.precision};
    return static_cast<std::size_t>(std::find(choices.begin(), choices.end(), set) -
                                    choices.begin());
  };
  result.set = [&evaluation, choices](std::size_t i) {
    std::tie(evaluation.modes, evaluation.precision) = choices[i];
  };
  return result;
}

/// Appends keys of one section.
class SectionKeys {
 public:
  SectionKeys(std::vector<Key>& keys, std::string section)
      : keys_(keys), section_(std::move(section)) {}

  template <class Target>
  void operator()(const char* name, Target target, std::string meaning) {
    keys_.push_back({section_, name, std::move(target), std::move(meaning)});
  }

 private:
  std::vector<Key>& keys_;
  std::string section_;
};

void add_model(std::vector<Key>& keys, ModelSettings& m) {
  SectionKeys add(keys, "model");
  add("path", Text{&m.path},
      "Hugging Face directory with config.json and model.safetensors; empty: a new model");
  add("dropout_embedding", Real{&m.dropout_embedding, -1, 1, false, true},
      "dropout probability after the embeddings; negative: the model's own (new models: 0)");
  add("dropout_attention", Real{&m.dropout_attention, -1, 1, false, true},
      "dropout probability of attention weights; negative: the model's own");
  add("dropout_residual", Real{&m.dropout_residual, -1, 1, false, true},
      "dropout probability before each residual addition; negative: the model's own");
}

void add_new_model(std::vector<Key>& keys, ModelSettings& m) {
  SectionKeys add(keys, "model.new");
  add("n_layer", Integer{&m.n_layer, 1, 10000}, "transformer blocks");
  add("n_head", Integer{&m.n_head, 1, 1024}, "attention heads; divides n_embd");
  add("n_inner", Integer{&m.n_inner, 0, 262144}, "hidden width of the MLP; 0: 4 n_embd");
  add("n_embd", Integer{&m.n_embd, 1, 65536}, "channels");
  add("n_positions", Integer{&m.n_positions, 1, 1 << 20}, "longest sequence, in tokens");
}

void add_tokenizer(std::vector<Key>& keys, TokenizerSettings& t) {
  SectionKeys add(keys, "tokenizer");
  add("path", Text{&t.path},
      "directory with tokenizer.json or vocab.json and merges.txt, or a tokenizer.json; empty: "
      "the model's directory");
  add("train_vocabulary", Integer{&t.train_vocabulary, 0, 1 << 20},
      "above 0: train a byte-level BPE with this many tokens (at least 257) on the training text; "
      "for new models");
}

void add_data(std::vector<Key>& keys, DataSettings& d) {
  SectionKeys add(keys, "data");
  add("train", TextList{&d.train}, "training files, read in this order");
  add("validation", TextList{&d.validation},
      "validation files; empty: the last validation_fraction of the training samples");
  add("validation_fraction", Real{&d.validation_fraction, 0, 1, false, true},
      "part of the training samples kept for validation when there are no validation files");
  add("format",
      choice(d.format, {{"automatic", DataFormat::automatic},
                        {"text", DataFormat::text},
                        {"jsonl", DataFormat::jsonl},
                        {"hdf5", DataFormat::hdf5}}),
      "what the files are; automatic: by their suffix, .txt, .jsonl or .h5");
  add("jsonl_fields", TextList{&d.jsonl_fields},
      "fields of a JSON line that make up its text, joined in this order");
  add("bad_lines", choice(d.bad_lines, {{"error", BadLines::error}, {"skip", BadLines::skip}}),
      "JSON lines that are not valid or lack a field: error: the run does not start; skip: they "
      "are left out, counted and reported");
  add("packing", choice(d.packing, {{"stream", Packing::stream}, {"document", Packing::document}}),
      "stream: documents are joined and cut into windows; document: each document starts a "
      "window, its last one is padded");
  add("sequence_length", Integer{&d.sequence_length, 0, 1 << 20},
      "tokens of a sample; 0: the model's n_positions");
  add("shuffle", Flag{&d.shuffle}, "a new order of the samples in every epoch");
  add("max_train_samples", Integer{&d.max_train_samples, 0, any_count},
      "use only so many training samples; 0: all");
  add("max_validation_samples", Integer{&d.max_validation_samples, 0, any_count},
      "use only so many validation samples; 0: all");
}

void add_training(std::vector<Key>& keys, TrainingSettings& t) {
  SectionKeys add(keys, "training");
  add("epochs", Real{&t.epochs, 0, 1e9}, "passes over the training samples, when steps is 0");
  add("steps", Integer{&t.steps, 0, any_count}, "optimizer steps; 0: as epochs says");
  add("micro_batch_size", Integer{&t.micro_batch_size, 1, 65536},
      "samples that cross a boundary together");
  add("micro_batches", Integer{&t.micro_batches, 1, 65536},
      "micro-batches per step and replica; the batch is micro_batch_size x micro_batches x "
      "pipeline.replicas samples");
  add("seed", Integer{&t.seed, 0, any_count},
      "of everything random: new weights, order, dropout, "
      "stochastic rounding");
  add("precision",
      choice(t.precision, {{"fp32", ProductPrecision::fp32},
                           {"tf32", ProductPrecision::tf32},
                           {"bf16", ProductPrecision::bf16}}),
      "of matrix products, in evaluations as well; tf32: NVIDIA GPUs from compute capability 8.0 "
      "on "
      "multiply with 10 bits of mantissa; bf16: operands are rounded to bf16; sums, parameters and "
      "all else stay fp32, as do attention's products in bf16 where neither processor nor GPU has "
      "instructions for it");
  add("recompute", Flag{&t.recompute},
      "keep only block inputs and compute activations again in the backward pass");
  add("recompute_stages", IntegerList{&t.recompute_stages, 0, 65535},
      "stages, counted from 0, that recompute; empty: all or none, as recompute says");
  add("evaluate_every", Integer{&t.evaluate_every, 0, any_count},
      "steps between validations; 0: at the end of every epoch");
  add("evaluate_at_start", Flag{&t.evaluate_at_start},
      "true: evaluates before the first step, too, so that run.h5 shows what training changed");
  add("keep_best", Flag{&t.keep_best},
      "true: whenever a validation loss is lower than all before, the model is written to best/ in "
      "the output directory, like model/; with evaluation.boundary = \"codec\" the loss through "
      "the "
      "codec counts, otherwise the uncompressed one");
  add("patience", Integer{&t.patience, 0, any_count},
      "evaluations in succession without a lower validation loss (see keep_best) after which "
      "training ends early; learning rates are those of the full length; 0: never");
}

void add_optimizer(std::vector<Key>& keys, OptimizerSettings& t) {
  SectionKeys add(keys, "training.optimizer");
  add("learning_rate", Real{&t.learning_rate, 0, 1e3}, "the largest learning rate");
  add("schedule",
      choice(t.schedule, {{"constant", LearningRateSchedule::constant},
                          {"linear", LearningRateSchedule::linear},
                          {"cosine", LearningRateSchedule::cosine}}),
      "course of the learning rate after warm-up");
  add("warmup_steps", Integer{&t.warmup_steps, 0, any_count},
      "steps in which the learning rate grows linearly from 0");
  add("final_learning_rate_fraction", Real{&t.final_learning_rate_fraction, 0, 1},
      "learning rate at the end of linear and cosine schedules, as a fraction of "
      "learning_rate");
  add("beta1", Real{&t.beta1, 0, 1, false, true}, "decay of the gradients' running mean");
  add("beta2", Real{&t.beta2, 0, 1, false, true}, "decay of the squared gradients' running mean");
  add("epsilon", Real{&t.epsilon, 0, 1, true}, "added to the root of the squared mean");
  add("weight_decay", Real{&t.weight_decay, 0, 1e3},
      "decoupled decay of the blocks' matrices and the token embedding; biases, norms and "
      "positions do not decay");
  add("clip_norm", Real{&t.clip_norm, 0, infinite, false, true},
      "gradients with a larger global norm are scaled down to "
      "it; 0: never");
  add("frozen", TextList{&t.frozen},
      "parameters that are not trained, by their names in model.safetensors, with or without "
      "\"transformer.\": a tensor (\"wte.weight\"), a module (\"h.0\") or a pattern with *, ? and "
      "[...] (\"h.[0-5]\", \"*.bias\")");
}

void add_pipeline(std::vector<Key>& keys, PipelineSettings& p) {
  SectionKeys add(keys, "pipeline");
  add("stages", Integer{&p.stages, 1, 65536}, "parts that the model is cut into");
  add("replicas", Integer{&p.replicas, 1, 65536},
      "data-parallel copies of the pipeline; MPI ranks needed: stages / stages_per_rank x "
      "replicas");
  add("stages_per_rank", Integer{&p.stages_per_rank, 1, kMostStagesPerRank},
      "with schedule = \"interleaved\": each of the K = stages / stages_per_rank ranks of a "
      "pipeline holds every Kth stage; more of them wait less at a step's ends and send more; K x "
      "in_flight is at most 63; a single stage is on one rank whatever this says");
  add("schedule", schedule_choice(p.schedule),
      "gpipe: all forwards, then all backwards; 1f1b: alternating, holds fewer activations; zb-h1: "
      "1f1b whose gradients leave before those of parameters are made, waits less and takes more "
      "memory; interleaved: 1f1b over stages_per_rank stages on each rank, waits so many times "
      "less, holds more activations and sends each over so many times more boundaries");
  add("in_flight", Integer{&p.in_flight, 1, kMostInFlight},
      "1f1b, zb-h1 and interleaved: micro-batches that may be under way at a boundary; more hide "
      "slower links and take memory for as many activations");
  add("timeout", Real{&p.timeout_seconds, 0, 1e6},
      "seconds after which a rank whose process or machine gives no sign of life ends the run; 0: "
      "never");
  add("step_timeout", Real{&p.step_timeout_seconds, 0, 1e6},
      "seconds that a training step may take: a rank that hangs in one (a device, a disk, a wait "
      "without end) ends the run with a message that names it and what it was at; 0: no limit");
  add("partition", IntegerList{&p.partition, 1, 10000},
      "transformer blocks of each stage, one number per stage; empty: balanced by cost");
  add("gpu_aware_mpi", Flag{&p.gpu_aware_mpi},
      "MPI reads and writes what crosses boundaries and what replicas sum where it is on the GPU, "
      "without copies in the host's memory; for MPI libraries that can (CUDA-aware, GPU-aware); on "
      "processors, where it gains nothing, messages are cut in another way; with more than two "
      "replicas gradients are added in another order than with false");
  add("verify_replicas", Integer{&p.verify_replicas, 0, any_count},
      "steps between comparisons of the replicas' weights, which are also compared before the "
      "first and after the last step; a difference ends the run; 0: never");
}

/// The kinds, and auto. What "auto" stands for is written instead.
Choice codec_choice(CodecKind& kind, bool& is_auto, Direction direction) {
  Choice result;
  result.names.assign(kCodecKindNames.begin(), kCodecKindNames.end());
  result.names.emplace_back("auto");
  result.get = [&kind] { return static_cast<std::size_t>(kind); };
  result.set = [&kind, &is_auto, direction](std::size_t i) {
    is_auto = i == kCodecKindNames.size();
    kind = is_auto ? recommended_settings(direction).kind : static_cast<CodecKind>(i);
  };
  return result;
}

/// The codec and its knob: what a beginner sets.
void add_codec(SectionKeys add, CodecSettings& c, RateSettings& r, bool& is_auto,
               Direction direction) {
  const bool forward = direction == Direction::forward;
  add("codec", codec_choice(c.kind, is_auto, direction),
      forward
          ? "none: fp32; directq: the values in bits; aqsgd: the change since the sample's last "
            "visit in bits; topk: a sample's largest values; aqsgd_topk: the largest changes; "
            "auto: aqsgd that holds boundary.error"
          : "none: fp32; directq: the values in bits; topk: a sample's largest values; auto: "
            "directq that holds " +
                format_number(recommended_error(direction, 1)) +
                " boundary.error. aqsgd and aqsgd_topk are for activations only");
  add("bits", Integer{&c.bits, 2, 8}, "bits per value, for directq, aqsgd and codes of topk");
  add("rate", RealList{&r.target_bits, 0.1, 16},
      "mean bits per value on the wire over the run, entropy coded, instead of bits; headers, "
      "scales "
      "and first visits count. One value, or a list with one per boundary; 0 or none: off");
  add("topk", Real{&c.topk, 0, 1, true}, "part of a sample's values that topk and aqsgd_topk send");
  add("warmup_epochs", Real{&c.warmup_epochs, 0, 1e9}, "epochs sent as fp32 before codec starts");
}

void add_quantizer(SectionKeys add, CodecSettings& c, RateSettings& r) {
  add("step", Real{&c.rms_step, 0, kLargestRmsStep},
      "above 0, for directq and aqsgd: the step between levels is this fraction of the values' "
      "root "
      "mean square, with as many levels as they need, entropy coded. 0: 2^bits levels up to the "
      "largest value");
  add("error", Real{&r.target_error, 0, 1, false, true},
      "relative RMS error of what is sent, which the step follows; 0: off");
  add("budget", choice(r.budget, {{"equal", BudgetSharing::equal}, {"time", BudgetSharing::time}}),
      "how boundaries share rate. equal: each has it; time: it is their mean, and slower links "
      "have "
      "fewer bits, 1.5 to 6, so that all need the same time");
  add("scale",
      choice(c.scale, {{"channel", ScaleKind::channel},
                       {"tile", ScaleKind::tile},
                       {"message", ScaleKind::message}}),
      "values that share a scale. channel: a channel over all tokens of a micro-batch; tile: tile "
      "channels of a token; message: all of a micro-batch (requires step)");
  add("tile", Integer{&c.tile, 1, kWholeRow},
      "channels that share a scale, for scale = \"tile\" and first visits; the model's channels or "
      "more: one scale for each token");
  add("rounding",
      choice(c.rounding, {{"nearest", Rounding::nearest}, {"stochastic", Rounding::stochastic}}),
      "of codes; stochastic is unbiased");
  add("levels",
      choice(c.levels, {{"symmetric", Levels::symmetric}, {"asymmetric", Levels::asymmetric}}),
      "for step = 0. symmetric: 2^bits - 1 levels around zero; asymmetric: 2^bits levels from -1, "
      "which cut the largest positive values");
  add("entropy_coding", Flag{&c.entropy_coding},
      "for step = 0: codes travel in the bits that they carry, without loss");
}

void add_sparse(SectionKeys add, CodecSettings& c, Direction direction) {
  add("values",
      choice(c.values, {{"fp32", ChosenValues::fp32},
                        {"fp16", ChosenValues::fp16},
                        {"codes", ChosenValues::codes}}),
      "format of the values; codes: in bits, with a scale for every quantizer.tile of them");
  if (direction == Direction::forward) return;
  add("positions",
      choice(c.positions,
             {{"largest", ChosenPositions::largest}, {"forward", ChosenPositions::forward}}),
      "largest: the values of largest magnitude, with their positions; forward: the values where "
      "the "
      "activations were sent, without positions");
}

void add_memory(SectionKeys add, CodecSettings& c) {
  add("first_visit",
      choice(c.first_visit, {{"fp32", FirstVisit::fp32},
                             {"quantize8", FirstVisit::quantize8},
                             {"steps", FirstVisit::steps}}),
      "format of a sample without memory. quantize8: 8-bit codes; steps, for aqsgd: as "
      "quantizer.step, with first_visit_step");
  add("first_visit_step", Real{&c.first_visit_step, kLeastRmsStep, kLargestRmsStep},
      "for first_visit = \"steps\"; 0.4 needs about 3.4 bits per value");
  add("prediction",
      choice(c.prediction, {{"none", Prediction::none}, {"linear", Prediction::linear}}),
      "for aqsgd. linear: changes are counted from a linear map of the memory, which the sender "
      "fits "
      "to the changes of the last steps");
  add("prediction_interval", Integer{&c.prediction_interval, 1, 1'000'000},
      "least steps between two maps; a map is sent only if it saves more than it needs");
}

void add_feedback(SectionKeys add, CodecSettings& c) {
  add("kind", feedback_choice(c),
      "ef: the sender adds what the codec left out to the sample's next values; ef21: both ends "
      "keep "
      "the values that the receiver saw, and changes against them travel; mixed: ef with half of "
      "topk's positions at the largest errors");
  add("of",
      choice(c.feedback_of, {{"sample", FeedbackOf::sample}, {"position", FeedbackOf::position}}),
      "sample: the codec's error is added at the sample's next visit, an epoch later; position: at "
      "the next step, to the sample at the same place of the micro-batches");
}

void add_boundary(std::vector<Key>& keys, CodecSettings& c, RateSettings& r, bool& is_auto,
                  Direction direction) {
  const std::string section = std::string("boundary.") + name_of(direction);
  add_codec({keys, section}, c, r, is_auto, direction);
  add_quantizer({keys, section + ".quantizer"}, c, r);
  add_sparse({keys, section + ".sparse"}, c, direction);
  if (direction == Direction::forward) add_memory({keys, section + ".memory"}, c);
  add_feedback({keys, section + ".feedback"}, c);
}

void add_evaluation(std::vector<Key>& keys, EvaluationSettings& e, AnswerSettings& a) {
  SectionKeys add(keys, "evaluation");
  add("prompts", TextList{&a.files},
      "JSON lines, each with a prompt and the expected answer: evaluations report the share of the "
      "prompts whose greedy answer is the expected one, token by token (exact match)");
  add("prompt_field", Text{&a.prompt_field}, "field of a line that is its prompt");
  add("answer_field", Text{&a.answer_field}, "field of a line that is its answer");
  add("answer_end", Text{&a.end},
      "text that ends an answer, for example \"\\n\", and that the model has to write as well; "
      "empty: the end-of-text token");
  add("boundary", evaluation_choice(e),
      "fp32: as they are; fp16, quantize8: rounded to 16 bits, or to 8 with a scale for every 64 "
      "channels, in a half or about a quarter of the bytes; codec: through boundary.forward's "
      "codec, without memory of samples and warm-up; both: fp32 and codec, one after the other, "
      "with both losses and bytes");
  add("changes",
      choice(e.changes, {{"first_visit", ChangesWithoutMemory::first_visit},
                         {"direct", ChangesWithoutMemory::direct}}),
      "what aqsgd and aqsgd_topk make of a sample there; first_visit: what they send of one "
      "without memory; direct: the values sent as they send changes, like directq and topk");
}

void add_cache(std::vector<Key>& keys, CacheSettings& c) {
  SectionKeys add(keys, "cache");
  std::vector<std::pair<std::string, MemoryStorage>> storages;
  for (const char* name : kMemoryStorageNames)
    storages.emplace_back(name, static_cast<MemoryStorage>(storages.size()));
  add("storage", choice(c.storage, std::move(storages)), "how memories are kept");
  add("budget", Size{&c.budget_bytes},
      "memory for the cache, per rank and boundary end; the rest goes to disk; 0: no limit");
  add("directory", Text{&c.directory},
      "fast local disk for what does not fit; empty: the output directory");
  add("prefetch", Integer{&c.prefetch, 1, 4096}, "micro-batches read ahead of their use");
  add("keep", Flag{&c.keep}, "keep the cache's files when the run ends");
  add("verify_every", Integer{&c.verify_every, 0, any_count},
      "visits of a sample between comparisons of its memory at both ends of a boundary; a "
      "difference ends the run; 0: never");
}

void add_links(std::vector<Key>& keys, Draft::Links& links, const char* section) {
  SectionKeys add(keys, section);
  add("bandwidth", QuantityList{&links.bits_per_second, bandwidth_units(), 1, 1e15},
      "one value for all boundaries or a list with one per boundary (where ranks have several "
      "stages, "
      "one per link between two ranks); 0: as fast as MPI carries it");
  add("latency", QuantityList{&links.latency_seconds, duration_units(), 0, 3600},
      "one value for all boundaries or a list with one per boundary (or link, as above)");
}

void add_network(std::vector<Key>& keys, NetworkSettings& n) {
  SectionKeys add(keys, "network");
  add("wire", choice(n.wire, {{"boundary", WireSharing::boundary}, {"rank", WireSharing::rank}}),
      "boundary: a link for each direction of each boundary; rank: one wire per rank, full duplex, "
      "for all that it sends and receives, lists have one value per stage, and the bandwidth "
      "counts "
      "Ethernet frames");
}

void add_output(std::vector<Key>& keys, OutputSettings& o) {
  SectionKeys add(keys, "output");
  add("directory", Text{&o.directory, false},
      "made if missing; holds run.h5, the model and cache files");
  add("save_model", Flag{&o.save_model},
      "write the trained model as a Hugging Face directory, model/");
  add("model_precision",
      choice(o.model_precision,
             {{"fp32", Precision::fp32}, {"fp16", Precision::fp16}, {"bf16", Precision::bf16}}),
      "precision of the written weights");
  add("overwrite", Flag{&o.overwrite},
      "true: start from scratch and replace a run or a model that is in the directory; a run that "
      "was itself started so and is not finished goes on");
  add("log_every", Integer{&o.log_every, 1, any_count}, "steps between lines of a batch log");
  add("trace_step", Integer{&o.trace_step, 0, any_count},
      "step whose time line is written to trace.json (Chrome trace format); 0: none");
}

void add_checkpoint(std::vector<Key>& keys, CheckpointSettings& c) {
  constexpr double kLongest = 365.0 * 86400;
  SectionKeys add(keys, "checkpoint");
  add("every_steps", Integer{&c.every_steps, 0, any_count},
      "steps between checkpoints; 0: none by steps");
  add("every", Duration{&c.every_seconds, kLongest}, "time between checkpoints; 0: none by time");
  add("keep", Integer{&c.keep, 1, 1000},
      "how many of the newest checkpoints stay; all but milestones go when the run is finished");
  add("milestone_every", Integer{&c.milestone_every, 0, any_count},
      "steps between checkpoints that stay, also after the run; 0: none");
  add("directory", Text{&c.directory},
      "for checkpoints; a disk of each machine will do if a restart has the same machines; empty: "
      "checkpoints/ in the output directory");
  add("mode",
      choice(c.mode, {{"exact", CheckpointMode::exact}, {"resync", CheckpointMode::resync}}),
      "exact: with what the boundaries remember of samples, a restart goes on with the same bits; "
      "resync: without, the next visit of every sample is a first one");
  add("change_optimizer", Flag{&c.change_optimizer},
      "true: a restart may change [training.optimizer], except frozen, and the length of the run; "
      "the new values hold from the checkpoint's step on");
  add("time_limit", Duration{&c.time_limit_seconds, kLongest},
      "time from its start after which a run stops with a checkpoint, which is written before the "
      "limit; 0: no limit");
}

void add_generate(std::vector<Key>& keys, GenerateSettings& g) {
  SectionKeys add(keys, "generate");
  add("prompts", TextList{&g.prompts}, "texts to continue");
  add("max_new_tokens", Integer{&g.max_new_tokens, 1, 1 << 20}, "tokens to add to each");
  add("temperature", Real{&g.temperature, 0, 1e3}, "divides the logits; 0: always the likeliest");
  add("top_k", Integer{&g.top_k, 0, 1 << 24}, "choose among so many likeliest tokens; 0: all");
  add("seed", Integer{&g.seed, 0, any_count}, "of the choices");
}

void split(const std::vector<LinkSettings>& links, Draft::Links& lists) {
  for (const LinkSettings& link : links) {
    lists.bits_per_second.push_back(link.bits_per_second);
    lists.latency_seconds.push_back(link.latency_seconds);
  }
}

std::string range(std::int64_t low, std::int64_t high) {
  if (high == any_count) return "at least " + std::to_string(low);
  return std::to_string(low) + " to " + std::to_string(high);
}

std::string range(const Real& real) {
  const std::string low = format_number(real.low), high = format_number(real.high);
  if (real.high == infinite) return (real.low_open ? "above " : "at least ") + low;
  return (real.low_open ? "above " : "") + low + (real.high_open ? " to below " : " to ") + high;
}

struct Allowed {
  std::string operator()(const Flag&) const { return "true or false"; }
  std::string operator()(const Integer& i) const { return "integer, " + range(i.low, i.high); }
  std::string operator()(const IntegerList& i) const {
    return "list of integers, each " + range(i.low, i.high);
  }
  std::string operator()(const Real& real) const { return "number, " + range(real); }
  std::string operator()(const RealList& list) const {
    return "number, 0 or " + format_number(list.low) + " to " + format_number(list.high) +
           "; or a list of these";
  }
  std::string operator()(const Text& text) const {
    return text.may_be_empty ? "string" : "string, not empty";
  }
  std::string operator()(const TextList&) const { return "string or list of strings"; }
  std::string operator()(const Choice& options) const {
    std::string text = "one of ";
    for (std::size_t i = 0; i < options.names.size(); ++i) {
      text += (i > 0 ? ", \"" : "\"") + options.names[i] + "\"";
    }
    return text;
  }
  std::string operator()(const Size&) const {
    return "bytes, or a string with a unit: " + unit_names(size_units());
  }
  std::string operator()(const Duration& duration) const {
    return "seconds, or a string with a unit: " + unit_names(long_duration_units()) + ", at most " +
           format_quantity(duration.high, long_duration_units());
  }
  std::string operator()(const QuantityList& list) const {
    const std::string base = list.units.data() == bandwidth_units().data() ? "bit/s" : "seconds";
    return base + ", or a string with a unit: " + unit_names(list.units) + ", at most " +
           format_quantity(list.high, list.units) + "; or a list of these";
  }
};
}  // namespace

Draft draft_of(const Settings& settings) {
  Draft draft;
  draft.settings = settings;
  if (settings.network.wire == WireSharing::rank) {
    split(settings.network.ranks, draft.both);
  } else if (settings.network.forward == settings.network.backward) {
    split(settings.network.forward, draft.both);
  } else {
    split(settings.network.forward, draft.forward);
    split(settings.network.backward, draft.backward);
  }
  return draft;
}

std::span<const Section> sections() {
  return section_table;
}

std::vector<Key> keys_of(Draft& draft) {
  std::vector<Key> keys;
  Settings& s = draft.settings;
  add_model(keys, s.model);
  add_new_model(keys, s.model);
  add_tokenizer(keys, s.tokenizer);
  add_data(keys, s.data);
  add_training(keys, s.training);
  add_optimizer(keys, s.training.optimizer);
  add_pipeline(keys, s.pipeline);
  keys.push_back(
      {"boundary", "error", Real{&s.auto_error, 0.001, 0.5},
       "what codec = \"auto\" holds: relative RMS error of activations, and of gradients " +
           format_number(recommended_error(Direction::backward, 1)) +
           " times as much, in as few bits as that takes"});
  add_boundary(keys, s.forward, s.forward_rate, draft.forward_is_auto, Direction::forward);
  add_boundary(keys, s.backward, s.backward_rate, draft.backward_is_auto, Direction::backward);
  add_evaluation(keys, s.evaluation, s.data.answers);
  add_cache(keys, s.cache);
  add_network(keys, s.network);
  add_links(keys, draft.both, "network");
  add_links(keys, draft.forward, "network.forward");
  add_links(keys, draft.backward, "network.backward");
  add_output(keys, s.output);
  add_checkpoint(keys, s.checkpoint);
  add_generate(keys, s.generate);
  return keys;
}

std::string allowed(const Key& key) {
  return std::visit(Allowed{}, key.target);
}

}  // namespace deltapipe::deck
