// SPDX-License-Identifier: BSD-3-Clause
#include "app/session.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <sstream>

#include "app/input_files.hpp"
#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/files/safetensors.hpp"
#include "core/kernels/blas.hpp"
#include "core/text/corpus.hpp"
#include "core/text/token_file.hpp"
#include "core/text/tokenizer_files.hpp"
#include "models/gpt2/gpt2_weights.hpp"
#include "models/partition.hpp"

namespace deltapipe {

std::optional<Tokenizer> load_tokenizer(const Settings& settings) {
  if (settings.tokenizer.train_vocabulary > 0) {
    const std::vector<std::string> texts = training_texts(settings.data);
    return Tokenizer::train(std::vector<std::string_view>(texts.begin(), texts.end()),
                            settings.tokenizer.train_vocabulary);
  }
  if (!settings.tokenizer.path.empty()) return Tokenizer::load(settings.tokenizer.path);
  if (!settings.model.path.empty() && has_tokenizer_files(settings.model.path))
    return Tokenizer::load(settings.model.path);
  return std::nullopt;
}

Vocabulary plan_vocabulary(const Settings& settings, const std::optional<Tokenizer>& tokenizer,
                           int model_size) {
  if (tokenizer) return *tokenizer;
  if (!settings.data.train.empty() && !holds_tokens_only(settings.data))
    throw UserError(no_tokenizer("text"));
  if (model_size == 0 && settings.data.train.empty()) throw UserError(no_tokenizer("a new model"));
  std::vector<std::string> files = settings.data.train;
  files.insert(files.end(), settings.data.validation.begin(), settings.data.validation.end());
  return shared_vocabulary(files, model_size);
}

Gpt2Config new_config(const ModelSettings& model, int vocabulary_size, int end_of_text) {
  Gpt2Config config;
  config.n_layer = model.n_layer;
  config.n_head = model.n_head;
  config.n_embd = model.n_embd;
  config.n_inner = model.n_inner > 0 ? model.n_inner : 4 * model.n_embd;
  config.n_positions = model.n_positions;
  config.vocabulary_size = vocabulary_size;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  config.bos_token_id = std::max(0, end_of_text);
  config.eos_token_ids = {std::max(0, end_of_text)};
  config.check("[model.new]");
  return config;
}

void check_weights(const std::string& directory, const SafetensorsReader& weights,
                   const ModelLayout& layout) {
  const Gpt2Config& config = layout.config;
  const std::string name = "h." + std::to_string(config.n_layer) + ".ln_1.weight";
  if (weights.contains(name) || weights.contains("transformer." + name))
    throw UserError({.what = "the weights have more blocks than config.json says",
                     .file = directory,
                     .value = "n_layer " + std::to_string(config.n_layer) + ", tensor " + name,
                     .remedy = "set n_layer in config.json to the number of blocks"});
  for (int stage = 0; stage < static_cast<int>(layout.partition.size()); ++stage)
    check_weights(weights, gpt2_parameters(config, stage_part(layout.partition, stage)));
}

Gpt2Config load_config(const std::string& directory, const SafetensorsReader* weights,
                       std::vector<std::string>& warnings) {
  Gpt2Config config = Gpt2Config::load(directory);
  if (config.tie_word_embeddings && weights != nullptr && has_own_head(*weights)) {
    config.tie_word_embeddings = false;
    warnings.push_back(printable(directory, 200) +
                       ": config.json says tie_word_embeddings, but lm_head.weight is another "
                       "matrix than transformer.wte.weight: both are kept, untied, as transformers "
                       "5 does; to tie them, remove lm_head.weight");
  }
  return config;
}

void check_vocabulary(const Settings& settings, int vocabulary_size, const Gpt2Config& config) {
  if (vocabulary_size > config.vocabulary_size)
    throw UserError({.what = "the tokenizer has more tokens than the model in " +
                             settings.model.path + " has embeddings",
                     .value = std::to_string(vocabulary_size) + " tokens, " +
                              std::to_string(config.vocabulary_size) + " embeddings",
                     .remedy = "set tokenizer.path to the tokenizer that the model was made with",
                     .keys = {"tokenizer.path", "model.path"}});
}

ModelLayout plan_layout(const Settings& settings, Gpt2Config config) {
  if (settings.model.dropout_embedding >= 0) config.embd_pdrop = settings.model.dropout_embedding;
  if (settings.model.dropout_attention >= 0) config.attn_pdrop = settings.model.dropout_attention;
  if (settings.model.dropout_residual >= 0) config.resid_pdrop = settings.model.dropout_residual;
  const int tokens =
      settings.data.sequence_length > 0 ? settings.data.sequence_length : config.n_positions;
  if (tokens > config.n_positions)
    throw UserError({.what = "data.sequence_length is longer than the model has positions",
                     .value = std::to_string(tokens),
                     .remedy = "use at most " + std::to_string(config.n_positions),
                     .keys = {"data.sequence_length"}});
  // Rows of a step are counted in 32 bits.
  const TrainingSettings& t = settings.training;
  const double rows = static_cast<double>(t.micro_batch_size) * t.micro_batches * tokens;
  if (rows > std::numeric_limits<int>::max())
    throw UserError(
        {.what = "training.micro_batch_size x training.micro_batches x "
                 "data.sequence_length is too large",
         .value = std::to_string(t.micro_batch_size) + " x " + std::to_string(t.micro_batches) +
                  " x " + std::to_string(tokens),
         .remedy = "let a step and replica have fewer than 2^31 tokens",
         .keys = {"training.micro_batches", "training.micro_batch_size", "data.sequence_length"}});
  std::vector<int> partition = settings.pipeline.partition;
  if (partition.empty())
    partition =
        balanced_partition(config.n_layer, settings.pipeline.stages, gpt2_cost(config, tokens));
  else
    check_partition(partition, config.n_layer, settings.pipeline.stages);
  return {config, partition, tokens};
}

Vocabulary ModelPlan::vocabulary() const {
  return tokenizer ? Vocabulary(*tokenizer) : Vocabulary(config.vocabulary_size, end_of_text);
}

ModelPlan plan_model(const Settings& settings) {
  std::optional<Tokenizer> tokenizer = load_tokenizer(settings);
  const bool is_new = settings.model.path.empty();
  std::vector<std::string> warnings;
  std::optional<SafetensorsReader> weights;
  Gpt2Config config;
  if (!is_new) {
    weights.emplace(SafetensorsReader::open_directory(settings.model.path));
    config = load_config(settings.model.path, &*weights, warnings);
  }
  const Vocabulary vocabulary =
      plan_vocabulary(settings, tokenizer, is_new ? 0 : config.vocabulary_size);
  if (is_new) config = new_config(settings.model, vocabulary.size, vocabulary.end_of_text);
  check_vocabulary(settings, vocabulary.size, config);
  const std::int32_t end_of_text = vocabulary.end_of_text;
  ModelLayout layout = plan_layout(settings, config);
  if (weights) check_weights(settings.model.path, *weights, layout);
  return {std::move(layout), std::move(tokenizer), end_of_text, std::move(warnings),
          std::move(weights)};
}

std::unique_ptr<Gpt2Stage<float>> make_stage(const Settings& settings, ModelPlan& plan,
                                             const ProcessGrid& grid, bool training) {
  auto stage = std::make_unique<Gpt2Stage<float>>(
      plan.config, stage_part(plan.partition, grid.stage()), training);
  if (plan.weights) {
    load_weights<float>(*plan.weights, stage->parameters());
    plan.weights.reset();
  } else {
    initialise_weights<float>(plan.config, settings.training.seed, stage->parameters());
  }
  return stage;
}

std::string kokkos_configuration() {
  std::ostringstream text;
  text << "Kokkos " << KOKKOS_VERSION / 10000 << '.' << KOKKOS_VERSION / 100 % 100 << '.'
       << KOKKOS_VERSION % 100 << ", " << ExecSpace::name() << ", concurrency "
       << ExecSpace().concurrency() << ", " << blas_configuration();
  return text.str();
}

}  // namespace deltapipe
