// SPDX-License-Identifier: BSD-3-Clause
// The effective deck as plain values: what a run is told to do. One struct a section, each defined
// where it is used; defaults are those of an empty section. Units are in the names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/pipeline/settings.hpp"
#include "comm/transport/link_settings.hpp"
#include "core/base/precision.hpp"
#include "core/cache/settings.hpp"
#include "core/codec/settings.hpp"
#include "core/text/settings.hpp"
#include "models/optimizer_settings.hpp"

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

/// [training]
struct TrainingSettings {
  double epochs = 1;         ///< used when steps is 0
  std::uint64_t steps = 0;   ///< optimizer steps; 0: from epochs
  int micro_batch_size = 1;  ///< B: samples that cross a boundary together
  int micro_batches = 1;     ///< micro-batches per step and replica
  std::uint64_t seed = 42;
  OptimizerSettings optimizer;        ///< [training.optimizer]
  bool recompute = false;             ///< activation recomputation in every stage ...
  std::vector<int> recompute_stages;  ///< ... or only in these
  std::uint64_t evaluate_every = 0;   ///< steps; 0: at every epoch's end

  bool operator==(const TrainingSettings&) const = default;
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
  TokenizerSettings tokenizer;  ///< [tokenizer]
  DataSettings data;
  TrainingSettings training;
  PipelineSettings pipeline;
  CodecSettings forward;   ///< [boundary.forward]
  CodecSettings backward;  ///< [boundary.backward]
  RateSettings forward_rate, backward_rate;
  EvaluationSettings evaluation;
  CacheSettings cache;
  NetworkSettings network;
  OutputSettings output;
  GenerateSettings generate;

  bool operator==(const Settings&) const = default;
};

/// Where a run puts spill files.
inline const std::string& cache_directory(const Settings& settings) {
  return settings.cache.directory.empty() ? settings.output.directory : settings.cache.directory;
}

/// What the deck says of the pipeline; cache.directory is where spill files go.
PipelineOptions pipeline_options(const Settings& settings);

}  // namespace deltapipe
