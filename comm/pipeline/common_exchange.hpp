// SPDX-License-Identifier: BSD-3-Clause
// Exchange of trained parameters that all stages use, between neighbours. The sum of their
// gradients passes from the last stage to the first, which adds its own and updates the parameters.
// Their new values then pass from the first stage to the last. Everything is sent in fp32.
#pragma once

#include <memory>
#include <optional>

#include "comm/boundary/boundary.hpp"
#include "comm/boundary/rank_links.hpp"
#include "comm/pipeline/settings.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Plan of a stage's four ends, before they are built.
struct CommonExchangePlan {
  std::optional<BoundaryEndPlan> receive_gradient, send_values;  ///< except on the last stage
  std::optional<BoundaryEndPlan> send_gradient, receive_values;  ///< except on the first stage
};

/// `tokens` are those of a sample.
CommonExchangePlan plan_common_exchange(const PipelineOptions& options,
                                        const CommonParameters<float>& parameters, int tokens,
                                        int stage, int stages);

MemoryLedger common_exchange_memory(const CommonExchangePlan& plan);

class CommonExchange {
 public:
  /// Builds the ends of the rank's `local`th stage; its neighbours build theirs at the same time.
  CommonExchange(const CommonExchangePlan& plan, const ProcessGrid& grid, int local,
                 ProgressThread& progress, RankLinks& links, const ExecutionInstances& instances);

  // `step` is the part that all crossings of a step have in common, without samples.
  void send_gradient(const ExecSpace& exec, const Crossing& step, const MatrixRef<float>& sum);
  void receive_gradient(const ExecSpace& exec, const Crossing& step, const MatrixRef<float>& sum);
  void send_values(const ExecSpace& exec, const Crossing& step, const MatrixRef<float>& values);
  void receive_values(const ExecSpace& exec, const Crossing& step, const MatrixRef<float>& values);

  /// Returns the bytes of gradients that this stage sent since the last call.
  std::uint64_t take_gradient_bytes();
  /// Returns the bytes of values that this stage sends in every step.
  std::uint64_t value_bytes() const { return value_bytes_; }

 private:
  /// Fills in the crossing of a matrix; valid until the next call.
  Crossing& crossing(const Crossing& step, CrossingKind kind, int boundary,
                     const MatrixRef<float>& x);

  int stage_;
  std::uint64_t value_bytes_ = 0;
  std::optional<BoundarySender> send_gradient_, send_values_;
  std::optional<BoundaryReceiver> receive_gradient_, receive_values_;
  Crossing crossing_;
};

}  // namespace deltapipe
