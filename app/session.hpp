// What all commands set up: the model's shape, tokenizer, partition and this rank's stage.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/process_grid.hpp"
#include "core/data/dataset.hpp"
#include "core/data/tokenizer.hpp"
#include "core/deck/settings.hpp"
#include "models/gpt2_config.hpp"
#include "models/gpt2_stage.hpp"

namespace deltapipe {

/// What config.json and the deck say together.
struct ModelLayout {
  Gpt2Config config;
  std::vector<int> partition;  ///< blocks a stage
  int tokens = 0;              ///< T
};

/// The model without its weights.
struct ModelPlan : ModelLayout {
  Tokenizer tokenizer;
};

/// The deck's tokenizer, or one trained on its text. Throws UserError.
Tokenizer load_tokenizer(const Settings& settings);

/// The shape of [model.new], to be given a vocabulary of its tokenizer.
Gpt2Config new_config(const ModelSettings& model, int vocabulary_size, int end_of_text);

/// UserError when the tokenizer has more tokens than the model has embeddings.
void check_vocabulary(const Settings& settings, const Tokenizer& tokenizer,
                      const Gpt2Config& config);

/// Checks the configuration against the deck, whose dropout it takes. Throws UserError.
ModelLayout plan_layout(const Settings& settings, Gpt2Config config);

/// Reads configuration and tokenizer (or trains one) and checks them against the deck. Throws
/// UserError.
ModelPlan plan_model(const Settings& settings);

/// This rank's stage with its weights, read from the deck's model or made new.
std::unique_ptr<Gpt2Stage<float>> make_stage(const Settings& settings, const ModelPlan& plan,
                                             const ProcessGrid& grid, bool training);

/// What Kokkos was built with and runs on, for outputs.
std::string kokkos_configuration();

}  // namespace deltapipe
