// The fine-tuned model as a Hugging Face directory.
#pragma once

#include <cstdint>
#include <string>

#include "app/session.hpp"
#include "comm/process_grid.hpp"
#include "comm/progress_thread.hpp"

namespace deltapipe {

/// Host memory that a rank takes meanwhile, at least.
std::uint64_t saving_memory_bytes();

/// All ranks call it; rank 0 writes config.json, the tokenizer and model.safetensors, taking the
/// other stages' weights from the first replica one piece at a time. A killed job leaves the
/// directory's former model whole.
void save_model(const std::string& directory, Precision precision, const ModelPlan& plan,
                const ProcessGrid& grid, ProgressThread& progress, Stage<float>& stage);

}  // namespace deltapipe
