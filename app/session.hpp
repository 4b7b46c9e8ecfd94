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

/// The model without its weights.
struct ModelPlan {
  Gpt2Config config;
  Tokenizer tokenizer;
  std::vector<int> partition;
  int tokens = 0;  ///< T
};

/// Reads configuration and tokenizer (or trains one) and checks them against the deck. Throws
/// UserError.
ModelPlan plan_model(const Settings& settings);

/// This rank's stage with its weights, read from the deck's model or made new.
std::unique_ptr<Gpt2Stage<float>> make_stage(const Settings& settings, const ModelPlan& plan,
                                             const ProcessGrid& grid, bool training);

/// What Kokkos was built with and runs on, for outputs.
std::string kokkos_configuration();

/// Highest resident memory of this process so far, bytes.
std::uint64_t peak_memory_bytes();

}  // namespace deltapipe
