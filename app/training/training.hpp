// SPDX-License-Identifier: BSD-3-Clause
// Training runs: all headers for users of deltapipe::training.
// Headers that are not listed here are details: they are not installed, and may change.
#pragma once

// IWYU pragma: begin_exports
#include "app/training/best_evaluation.hpp"
#include "app/training/evaluation.hpp"
#include "app/training/evaluation_record.hpp"
#include "app/training/run_totals.hpp"
#include "app/training/stages.hpp"
#include "app/training/training_run.hpp"
// IWYU pragma: end_exports
