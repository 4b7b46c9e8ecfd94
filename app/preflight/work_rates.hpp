// SPDX-License-Identifier: BSD-3-Clause
// Rates at which ranks compute and encode, given by the deck or measured in a run.
#pragma once

#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "models/model.hpp"

namespace deltapipe {

struct WorkRates {
  std::vector<double> flops;  ///< per second, by rank of a pipeline, or one for all ranks
  double codec_rate = 0;      ///< bytes of fp32 encoded or decoded per second; 0: in no time
  double plain_rate = 0;      ///< the same for messages that are fp32 on the wire
  double step_seconds = 0;    ///< of each step and rank, beside passes and codecs
  double forward_bits = 0;    ///< per value on the wire; 0: the codec's payload
  double backward_bits = 0;
  std::string source;  ///< "plan.flops", or the name of the run file
};

/// Floating-point operations of a stage's passes over a micro-batch.
struct StageWork {
  double forward = 0;
  double backward = 0;  ///< recomputation included; 0: no backward pass reaches the stage
};

/// Returns the work of each stage. `cost`: of a sample.
std::vector<StageWork> stage_work(const Settings& settings, const ModelCost& cost,
                                  const std::vector<int>& partition, int first_trained_stage);

/// Mean tokens of a sample: those that cross boundaries, and those that passes compute.
struct MeanTokens {
  double valid = 0;
  double computed = 0;
};

/// Returns the rates of the deck's [plan] for a model of `parameters` parameters in all. Throws
/// UserError if the deck lacks them, or if its run file is unreadable, is of another model or has
/// too few steps.
WorkRates work_rates(const Settings& settings, const Model& model,
                     const std::vector<int>& partition, int most_tokens, const MeanTokens& mean);

}  // namespace deltapipe
