// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/available_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "app/output/image_preprocessor.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/data_of_stage.hpp"
#include "app/training/stages.hpp"
#include "core/data/corpus.hpp"
#include "models/model.hpp"

namespace deltapipe {

namespace {

/// Returns the classes of the data; if the files are missing, two.
std::vector<std::string> known_classes(const Settings& settings, AvailableInputs& inputs) {
  if (settings.data.kind == DataKind::text) return {};
  if (inputs.files.texts && !settings.data.train.empty()) return class_names(settings.data);
  inputs.assume("the classes are not known yet: two are assumed");
  return {"0", "1"};
}

/// Returns the size of the images; if the files are missing, about that of CIFAR.
ImageShape known_image(const Settings& settings, AvailableInputs& inputs) {
  if (settings.data.kind != DataKind::images) return {};
  if (inputs.files.texts && !settings.data.train.empty()) return image_of(settings.data);
  const int side = settings.model.patch_size * std::max(1, 32 / settings.model.patch_size);
  const ImageShape assumed = {side, side, 3};
  inputs.assume("the images are not known yet: " + text_of(assumed) + " is assumed");
  return assumed;
}

/// Lays out a new model.
void make_model(const Settings& settings, AvailableInputs& inputs) {
  int vocabulary = 1, end_of_text = -1;
  if (inputs.tokenizer || inputs.has_tokens_only(settings.data)) {
    const Vocabulary known = plan_vocabulary(settings, inputs.tokenizer.get(), 0);
    vocabulary = known.size;
    end_of_text = known.end_of_text;
  } else if (settings.tokenizer.train_vocabulary > 0) {
    vocabulary = settings.tokenizer.train_vocabulary;
    inputs.assumption = fmt::format(
        "the tokenizer is not trained yet: assumed are all {} tokens of tokenizer.train_vocabulary",
        vocabulary);
  } else if (is_text(settings.data.kind)) {
    inputs.assumption = "the vocabulary is not known yet: all is without token embeddings";
  }
  const std::vector<std::string> classes = known_classes(settings, inputs);
  const ImageShape image = known_image(settings, inputs);
  inputs.model = new_model(settings.model, vocabulary, end_of_text, classes, image);
}

/// Returns the fields of a sample before the data are there.
FieldSizes fields_of_model(const Model& model, int tokens) {
  const ImageShape& image = model.shape().image;
  FieldSizes sizes;
  for (const Field field : model.fields())
    sizes[field] = field == Field::label    ? 1
                   : field == Field::values ? image.height * image.width * image.channels
                                            : tokens;
  return sizes;
}

}  // namespace

AvailableInputs read_available_inputs(const Settings& settings) {
  AvailableInputs inputs;
  inputs.files = find_input_files(settings, InputUse::train);
  const std::string& model = settings.model.path;
  if (inputs.files.tokenizer) inputs.tokenizer = load_tokenizer(settings);
  inputs.warnings = warnings_of_links(settings);
  for (std::string& warning : warnings_of_preprocessor(settings))
    inputs.warnings.push_back(std::move(warning));
  if (inputs.tokenizer)
    for (const std::string& warning : inputs.tokenizer->warnings())
      inputs.warnings.push_back(warning);
  if (inputs.files.weights) inputs.weights.emplace(SafetensorsReader::open_directory(model));
  if (model.empty())
    make_model(settings, inputs);
  else if (inputs.files.config)
    inputs.model = load_model(model, inputs.weights ? &*inputs.weights : nullptr, inputs.warnings);
  if (inputs.model && settings.data.kind != DataKind::text && inputs.model->class_names().empty())
    set_missing_classes(model, known_classes(settings, inputs), *inputs.model, inputs.warnings);
  if (inputs.model && settings.data.kind == DataKind::images &&
      inputs.model->shape().image.height == 0)
    inputs.model->set_image(known_image(settings, inputs));
  if (inputs.model)
    for (const std::string& warning : warnings_of_model(settings, inputs.model->shape()))
      inputs.warnings.push_back(warning);
  if (inputs.model) check_fields(settings, *inputs.model);
  return inputs;
}

void read_available_data(const Settings& settings, const ModelLayout& model,
                         AvailableInputs& inputs) {
  if (!inputs.files.texts || settings.data.train.empty()) return;
  if (is_text(settings.data.kind) && !inputs.tokenizer && !holds_tokens_only(settings.data)) return;
  Vocabulary vocabulary =
      plan_vocabulary(settings, inputs.tokenizer.get(), model.model->shape().vocabulary);
  check_vocabulary(settings, vocabulary.size, model.model->shape());
  vocabulary.size = model.model->shape().vocabulary;
  inputs.data = read_samples(settings.data, *model.model, vocabulary, model.tokens);
}

PipelineShape planned_shape(const Settings& settings, const AvailableInputs& inputs,
                            const ModelLayout& model) {
  PipelineShape shape = pipeline_shape(pipeline_options(settings), model.model->shape().vocabulary,
                                       model.tokens, true);
  shape.train_samples = inputs.data ? inputs.data->train->size() : settings.data.max_train_samples;
  shape.fields =
      inputs.data ? inputs.data->train->fields() : fields_of_model(*model.model, model.tokens);
  shape.pads_to_longest = pads_to_longest(*model.model, model.partition, model.tokens);
  shape.first_trained_stage = model.first_trained_stage;
  shape.partition = model.partition;
  return shape;
}

}  // namespace deltapipe
