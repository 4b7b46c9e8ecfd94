// SPDX-License-Identifier: BSD-3-Clause
#include "app/session/session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <sstream>

#include "app/output/image_preprocessor.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/frozen_parameters.hpp"
#include "app/session/input_files.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/base/printable.hpp"
#include "core/data/corpus.hpp"
#include "core/data/images.hpp"
#include "core/data/labelled_text.hpp"
#include "core/data/token_file.hpp"
#include "core/files/safetensors.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "core/kernels/gemm/real_gemm.hpp"
#include "core/text/tokenizer_files.hpp"
#include "models/partition.hpp"

namespace deltapipe {

std::unique_ptr<const Tokenizer> load_tokenizer(const Settings& settings) {
  if (!is_text(settings.data.kind)) return nullptr;
  if (settings.tokenizer.train_vocabulary > 0) {
    const std::vector<std::string> texts = settings.data.kind == DataKind::labelled_text
                                               ? labelled_training_texts(settings.data)
                                               : training_texts(settings.data);
    return Tokenizer::train(std::vector<std::string_view>(texts.begin(), texts.end()),
                            settings.tokenizer.train_vocabulary);
  }
  if (!settings.tokenizer.path.empty()) return Tokenizer::load(settings.tokenizer.path);
  if (!settings.model.path.empty() && has_tokenizer_files(settings.model.path))
    return Tokenizer::load(settings.model.path);
  return nullptr;
}

Vocabulary plan_vocabulary(const Settings& settings, const Tokenizer* tokenizer, int model_size) {
  // For images, a vocabulary of one token lets new_model() make any model; check_fields() refuses
  // those of texts.
  if (!is_text(settings.data.kind)) return {1, -1};
  if (tokenizer) return *tokenizer;
  if (!settings.data.train.empty() && !holds_tokens_only(settings.data))
    throw UserError(no_tokenizer("text"));
  if (model_size == 0 && settings.data.train.empty()) throw UserError(no_tokenizer("a new model"));
  std::vector<std::string> files = settings.data.train;
  files.insert(files.end(), settings.data.validation.begin(), settings.data.validation.end());
  return shared_vocabulary(files, model_size);
}

std::vector<std::string> class_names(const DataSettings& data) {
  if (data.kind != DataKind::text && data.train.empty())
    throw UserError({.what = "the model has no classifier, and there are no training files that "
                             "name the classes of a new one",
                     .remedy = "train it, and name the saved model in model.path",
                     .keys = {"model.path", "data.train"}});
  switch (data.kind) {
    case DataKind::text:
      return {};
    case DataKind::labelled_text:
      return labels_of_files(data);
    case DataKind::images:
      return image_classes(data);
  }
  return {};
}

ImageShape image_of(const DataSettings& data) {
  return data.kind == DataKind::images ? image_shape(data) : ImageShape{};
}

namespace {

/// Returns the kind of data that a model is for.
DataKind kind_for(const Model& model) {
  const std::vector<Field> fields = model.fields();
  if (std::ranges::find(fields, Field::values) != fields.end()) return DataKind::images;
  return model.task().targets() == Field::label ? DataKind::labelled_text : DataKind::text;
}

}  // namespace

void check_fields(const Settings& settings, const Model& model) {
  FieldSizes given;
  switch (settings.data.kind) {
    case DataKind::text:
      given = fields_of_text(1);
      break;
    case DataKind::labelled_text:
      given[Field::tokens] = given[Field::segments] = given[Field::label] = 1;
      break;
    case DataKind::images:
      given[Field::values] = given[Field::label] = 1;
      break;
  }
  const std::size_t texts = settings.data.labelled.texts.size();
  const int segments = model.shape().segments;
  if (given[Field::segments] > 0 && segments > 0 && texts > static_cast<std::size_t>(segments))
    throw UserError({.what = "the model does not tell a second text from the first",
                     .value = fmt::format("type_vocab_size = {}", segments),
                     .remedy = "name one field in data.labelled.texts, or use another model",
                     .keys = {"data.labelled.texts", "model.path"}});
  for (const Field field : model.fields()) {
    if (given[field] > 0) continue;
    throw UserError({.what = fmt::format(
                         "samples of data.kind = \"{}\" do not have what the model requires: {}",
                         name_of(settings.data.kind), kind_of(field).name),
                     .value = model.description(),
                     .remedy = fmt::format("set data.kind to \"{}\"", name_of(kind_for(model))),
                     .keys = {"data.kind"}});
  }
}

void set_missing_classes(const std::string& directory, const std::vector<std::string>& names,
                         Model& model, std::vector<std::string>& warnings) {
  const bool is_known = !model.fresh().empty();
  model.set_class_names(names);
  if (!is_known)
    warnings.push_back(printable(directory, 200) +
                       ": the weights have no classifier: a new one is trained");
}

std::unique_ptr<Model> new_model(const ModelSettings& model, int vocabulary_size, int end_of_text,
                                 const std::vector<std::string>& classes, const ImageShape& image) {
  NewModel shape;
  shape.class_names = classes;
  shape.image = image;
  shape.patch = model.patch_size;
  shape.depths = model.depths;
  shape.cifar_stem = model.stem == StemKind::cifar;
  shape.blocks = model.n_layer;
  shape.heads = model.n_head;
  shape.channels = model.n_embd;
  shape.positions = model.n_positions;
  shape.hidden = model.n_inner;
  shape.vocabulary = vocabulary_size;
  shape.end_of_text = end_of_text;
  return model_type(model.type).create(shape);
}

void check_vocabulary(const Settings& settings, int vocabulary_size, const ModelShape& model) {
  if (is_text(settings.data.kind) && vocabulary_size > model.vocabulary)
    throw UserError(
        {.what = "the tokenizer has more tokens than the model in " + settings.model.path +
                 " has embeddings",
         .value = fmt::format("{} tokens, {} embeddings", vocabulary_size, model.vocabulary),
         .remedy = "set tokenizer.path to the tokenizer that the model was made with",
         .keys = {"tokenizer.path", "model.path"}});
}

namespace {

/// Shares of bits make links equally busy where all boundaries carry as many values.
void check_shares_of_time(const Settings& settings, const Model& model,
                          const std::vector<int>& partition, int tokens) {
  for (const bool backward : {false, true}) {
    const RateSettings& rate = backward ? settings.backward_rate : settings.forward_rate;
    if (!rate.has_bits() || rate.budget != BudgetSharing::time) continue;
    const std::vector<BoundaryShape> shapes = boundary_shapes(model, partition, tokens);
    const std::string key =
        fmt::format("boundary.{}.quantizer.budget", backward ? "backward" : "forward");
    const auto differ = [](const BoundaryShape& a, const BoundaryShape& b) {
      return a.tokens != b.tokens || a.channels != b.channels;
    };
    if (std::ranges::adjacent_find(shapes, differ) != shapes.end())
      throw UserError({.what = key + " = \"time\" requires boundaries of one size",
                       .value = model.description(),
                       .remedy = "use budget = \"equal\", with a rate for each boundary if need be",
                       .keys = {key}});
  }
}

}  // namespace

ModelLayout plan_layout(const Settings& settings, std::unique_ptr<Model> model) {
  model->set_dropout({settings.model.dropout_embedding, settings.model.dropout_attention,
                      settings.model.dropout_residual});
  if (settings.training.optimizer.relative_embeddings) model->train_relative_embeddings();
  freeze_parameters(settings.training.optimizer.frozen, *model);
  const ModelShape shape = model->shape();
  const int tokens =
      settings.data.sequence_length > 0 ? settings.data.sequence_length : shape.positions;
  if (tokens > shape.positions)
    throw UserError({.what = "data.sequence_length is longer than the model has positions",
                     .value = std::to_string(tokens),
                     .remedy = fmt::format("use at most {}", shape.positions),
                     .keys = {"data.sequence_length"}});
  // Rows of a step are counted in 32 bits, and so are pixels of a micro-batch.
  const TrainingSettings& t = settings.training;
  const double pixels =
      static_cast<double>(t.micro_batch_size) * shape.image.height * shape.image.width;
  if (pixels > std::numeric_limits<int>::max())
    throw UserError(
        {.what = "a micro-batch has too many pixels",
         .value = fmt::format("{} images of {}", t.micro_batch_size, text_of(shape.image)),
         .remedy = "let a micro-batch have fewer than 2^31 pixels",
         .keys = {"training.micro_batch_size"}});
  const double rows = static_cast<double>(t.micro_batch_size) * t.micro_batches * tokens;
  if (rows > std::numeric_limits<int>::max())
    throw UserError(
        {.what = "training.micro_batch_size x training.micro_batches x "
                 "data.sequence_length is too large",
         .value = fmt::format("{} x {} x {}", t.micro_batch_size, t.micro_batches, tokens),
         .remedy = "let a step of a replica have fewer than 2^31 tokens",
         .keys = {"training.micro_batches", "training.micro_batch_size", "data.sequence_length"}});
  std::vector<int> partition = settings.pipeline.partition;
  if (partition.empty())
    partition = balanced_partition(shape.blocks, settings.pipeline.stages, model->cost(tokens));
  else
    check_partition(partition, shape.blocks, settings.pipeline.stages);
  check_shares_of_time(settings, *model, partition, tokens);
  const int first_trained = first_trained_stage(*model, partition);
  return {std::move(model), std::move(partition), tokens, first_trained};
}

Vocabulary ModelPlan::vocabulary() const {
  Vocabulary all(model->shape().vocabulary, end_of_text);
  all.tokenizer = tokenizer.get();
  return all;
}

ModelPlan plan_model(const Settings& settings) {
  std::unique_ptr<const Tokenizer> tokenizer = load_tokenizer(settings);
  const bool is_new = settings.model.path.empty();
  std::vector<std::string> warnings = warnings_of_links(settings);
  for (std::string& warning : warnings_of_preprocessor(settings))
    warnings.push_back(std::move(warning));
  if (tokenizer)
    warnings.insert(warnings.end(), tokenizer->warnings().begin(), tokenizer->warnings().end());
  std::optional<SafetensorsReader> weights;
  std::unique_ptr<Model> model;
  if (!is_new) {
    weights.emplace(SafetensorsReader::open_directory(settings.model.path));
    model = load_model(settings.model.path, &*weights, warnings);
  }
  const Vocabulary vocabulary =
      plan_vocabulary(settings, tokenizer.get(), is_new ? 0 : model->shape().vocabulary);
  if (is_new)
    model = new_model(settings.model, vocabulary.size, vocabulary.end_of_text,
                      class_names(settings.data), image_of(settings.data));
  else if (settings.data.kind != DataKind::text && model->class_names().empty())
    set_missing_classes(settings.model.path, class_names(settings.data), *model, warnings);
  if (settings.data.kind == DataKind::images && model->shape().image.height == 0)
    model->set_image(image_of(settings.data));
  check_fields(settings, *model);
  check_vocabulary(settings, vocabulary.size, model->shape());
  const std::int32_t end_of_text = vocabulary.end_of_text;
  ModelLayout layout = plan_layout(settings, std::move(model));
  if (weights) layout.model->check_weights(settings.model.path, *weights, layout.partition);
  return {std::move(layout),   std::move(tokenizer), end_of_text,
          std::move(warnings), std::move(weights),   {}};
}

Stages make_stages(const Settings& settings, ModelPlan& plan, const ProcessGrid& grid,
                   bool training, ProductPrecision products) {
  Stages stages = make_stages(*plan.model, plan.partition, grid, training, products,
                              settings.training.optimizer.moments());
  for (const auto& stage : stages) {
    if (!plan.weights || !plan.model->fresh().empty())
      plan.model->initialise(settings.training.seed, stage->parameters());
    if (plan.weights) plan.model->load(*plan.weights, stage->parameters());
  }
  plan.weights.reset();
  return stages;
}

StepPlanner step_planner(const Settings& settings, const Dataset& data) {
  return {data, settings.training.seed, settings.data.shuffle,
          step_layout(pipeline_options(settings))};
}

EmulatingRanks emulating_ranks(const Settings& settings, const ProcessGrid& grid,
                               ProgressThread& progress) {
  const auto own = static_cast<std::uint64_t>(emulating_ranks(settings).count);
  const std::uint64_t count = all_reduce(progress, grid.world(), own, Reduction::sum);
  return {.count = static_cast<int>(count), .all = grid.pipeline_ranks() * grid.replicas()};
}

std::string kokkos_configuration(ProductPrecision products) {
  std::ostringstream text;
  text << "Kokkos " << KOKKOS_VERSION / 10000 << '.' << KOKKOS_VERSION / 100 % 100 << '.'
       << KOKKOS_VERSION % 100 << ", " << ExecSpace::name() << ", concurrency "
       << ExecSpace().concurrency();
  if (kTeamExecution) text << ", " << HostTeam::instance().size() << " thread(s)";
  text << ", " << blas_configuration();
  if (products == ProductPrecision::tf32) text << ", TF32 by cuBLAS";
  if (products == ProductPrecision::bf16) text << ", " << bf16_configuration();
  return text.str();
}

void check_precision(const Settings& settings) {
  if (settings.training.precision != ProductPrecision::tf32) return;
  const std::string obstacle = tf32_obstacle();
  if (obstacle.empty()) return;
  throw UserError({.what = "training.precision asks for products in TF32: " + obstacle,
                   .value = "tf32",
                   .remedy = "use \"fp32\" or \"bf16\"",
                   .keys = {"training.precision"}});
}

}  // namespace deltapipe
