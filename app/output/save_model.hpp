// SPDX-License-Identifier: BSD-3-Clause
// The fine-tuned model as a Hugging Face directory.
#pragma once

#include <cstdint>
#include <string>

#include "app/deck/settings.hpp"
#include "app/session/session.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Host memory that a rank takes meanwhile, at least.
std::uint64_t saving_memory_bytes();

/// UserError when a model cannot take the place of what is at `directory`: a link, a file, or what
/// the deck reads (model.path, tokenizer.path). For rank 0, before training.
void check_model_directory(const std::string& directory, const Settings& settings);

/// All ranks call it; rank 0 writes config.json, plan.kept_files, a trained tokenizer and
/// model.safetensors, taking the other stages' weights from the first replica one piece at a time.
/// The directory is replaced as a whole: a killed job or a full disk leaves the former model. Files
/// in the former directory that belong to no model are kept beside it. Returns under which name, on
/// rank 0; empty: none. What is queued on `exec` is waited for.
std::string save_model(const ExecSpace& exec, const std::string& directory, Precision precision,
                       const ModelPlan& plan, const ProcessGrid& grid, ProgressThread& progress,
                       const Stages& stages);

}  // namespace deltapipe
