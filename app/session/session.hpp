// SPDX-License-Identifier: BSD-3-Clause
// The setup that all commands share: the model's shape, tokenizer, partition and this rank's stage.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "app/output/kept_files.hpp"
#include "app/preflight/warnings.hpp"
#include "app/training/stages.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/error.hpp"
#include "core/data/dataset.hpp"
#include "core/files/safetensors.hpp"
#include "core/text/tokenizer.hpp"
#include "core/text/vocabulary.hpp"
#include "models/model.hpp"

namespace deltapipe {

/// Layout that config.json and the deck determine together.
struct ModelLayout {
  std::shared_ptr<const Model> model;
  std::vector<int> partition;  ///< blocks per stage
  int tokens = 0;              ///< T
  int first_trained_stage = 0;
};

/// The model before its weights are read.
struct ModelPlan : ModelLayout {
  std::unique_ptr<const Tokenizer> tokenizer;  ///< none: the data are token files
  std::int32_t end_of_text = -1;               ///< -1: none
  std::vector<std::string> warnings;           ///< what the user should know of the model's files
  std::optional<SafetensorsReader> weights;    ///< of model.path, until a stage has them

  /// Files of the trained model that training does not change. Filled before training, on rank 0.
  std::vector<KeptFile> kept_files;

  /// Vocabulary of the data; refers to the tokenizer. All ids that the model has embeddings for,
  /// which may be more than the tokenizer has tokens.
  Vocabulary vocabulary() const;
};

/// The deck's tokenizer, or one trained on its text; none if it names none. Throws UserError.
std::unique_ptr<const Tokenizer> load_tokenizer(const Settings& settings);

/// The tokenizer's ids, or else those of the deck's token files. `model_size`: that of the model's
/// configuration, 0 for a new model. Refers to the tokenizer. Throws UserError.
Vocabulary plan_vocabulary(const Settings& settings, const Tokenizer* tokenizer, int model_size);

/// Returns the names of the classes in the deck's data; empty for a language model. Reads the
/// training files. Throws UserError.
std::vector<std::string> class_names(const DataSettings& data);
/// Returns the size of the training images; of other data, 0 x 0 x 0. Throws UserError.
ImageShape image_of(const DataSettings& data);

/// Makes the model of [model.new], with the vocabulary of its tokenizer and the classes of its
/// data.
std::unique_ptr<Model> new_model(const ModelSettings& model, int vocabulary_size, int end_of_text,
                                 const std::vector<std::string>& classes, const ImageShape& image);

/// Throws UserError if samples of the deck's kind of data lack a field that the model requires.
void check_fields(const Settings& settings, const Model& model);

/// Gives a model of files that has no classes those of the data. Warns of a new classifier where
/// load_model() did not.
void set_missing_classes(const std::string& directory, const std::vector<std::string>& names,
                         Model& model, std::vector<std::string>& warnings);

/// Throws UserError if there are more tokens than the model has embeddings.
void check_vocabulary(const Settings& settings, int vocabulary_size, const ModelShape& model);

/// Checks the configuration against the deck, whose dropout and frozen parameters it takes. Throws
/// UserError.
ModelLayout plan_layout(const Settings& settings, std::unique_ptr<Model> model);

/// Reads configuration and tokenizer (or trains one), opens the weights and checks all of them
/// against the deck. Throws UserError.
ModelPlan plan_model(const Settings& settings);

/// Makes this rank's stages with their weights: those of the plan, which are closed then, or new
/// ones. `products` is that of their plans' capacities.
Stages make_stages(const Settings& settings, ModelPlan& plan, const ProcessGrid& grid,
                   bool training, ProductPrecision products);

/// Returns how training distributes `data`.
StepPlanner step_planner(const Settings& settings, const Dataset& data);

/// Collective.
EmulatingRanks emulating_ranks(const Settings& settings, const ProcessGrid& grid,
                               ProgressThread& progress);

/// Backends and devices of Kokkos and the libraries for matrix products, for outputs.
std::string kokkos_configuration(ProductPrecision products);

/// UserError where this rank's machine cannot multiply as training.precision says.
void check_precision(const Settings& settings);

}  // namespace deltapipe
