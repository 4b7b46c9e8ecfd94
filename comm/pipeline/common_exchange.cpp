// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/common_exchange.hpp"

#include <fmt/format.h>

#include <string>

#include "comm/transport/message.hpp"

namespace deltapipe {

namespace {

BoundaryEndPlan end_plan(const PipelineOptions& options, const BoundaryShape& shape, int boundary,
                         bool backward, BoundarySide side) {
  BoundaryEndPlan plan;
  plan.codec.shape = {1, shape.tokens, shape.channels};
  plan.boundary = static_cast<std::uint32_t>(boundary);
  plan.backward = backward;
  plan.side = side;
  plan.buffers = 1;
  plan.payload_memory = options.pipeline.payload_memory();
  plan.evaluation.modes.clear();
  return plan;
}

std::string name_of_link(const char* what, int boundary) {
  return fmt::format("{}, boundary {}", what, boundary);
}

}  // namespace

CommonExchangePlan plan_common_exchange(const PipelineOptions& options,
                                        const CommonParameters<float>& parameters, int tokens,
                                        int stage, int stages) {
  const BoundaryShape gradient = parameters.gradient_shape(tokens);
  const BoundaryShape values = parameters.value_shape();
  CommonExchangePlan plan;
  if (stage + 1 < stages) {
    plan.receive_gradient = end_plan(options, gradient, stage, true, BoundarySide::receiver);
    plan.send_values = end_plan(options, values, stage, false, BoundarySide::sender);
  }
  if (stage > 0) {
    plan.send_gradient = end_plan(options, gradient, stage - 1, true, BoundarySide::sender);
    plan.receive_values = end_plan(options, values, stage - 1, false, BoundarySide::receiver);
  }
  return plan;
}

MemoryLedger common_exchange_memory(const CommonExchangePlan& plan) {
  MemoryLedger ends;
  for (const std::optional<BoundaryEndPlan>* end :
       {&plan.receive_gradient, &plan.send_values, &plan.send_gradient, &plan.receive_values})
    if (*end) ends.add(boundary_end_memory(**end));
  MemoryLedger ledger;
  ledger.add_host(MemoryUse::embeddings, ends.host_bytes());
  ledger.add_device(MemoryUse::embeddings, ends.device_bytes());
  return ledger;
}

CommonExchange::CommonExchange(const CommonExchangePlan& plan, const ProcessGrid& grid, int local,
                               ProgressThread& progress, RankLinks& links,
                               const ExecutionInstances& instances)
    : stage_(grid.stage(local)) {
  const MPI_Comm comm = grid.pipeline_comm();
  const auto tag = [&](ChannelTag what, int boundary) {
    return boundary_tag(what, boundary, grid.pipeline_ranks());
  };
  constexpr const char* kGradients = "common gradients";
  constexpr const char* kValues = "common values";
  if (plan.send_values) {
    const int next = grid.owner_of(stage_ + 1);
    const CodecShape& shape = plan.send_values->codec.shape;
    value_bytes_ = sizeof(MessageHeader) +
                   sizeof(float) * static_cast<std::uint64_t>(shape.tokens) * shape.channels;
    send_values_.emplace(progress, comm, next, tag(kCommonValuesTag, stage_), *plan.send_values,
                         links.to(next), name_of_link(kValues, stage_), instances);
    receive_gradient_.emplace(progress, comm, next, tag(kCommonGradientTag, stage_),
                              *plan.receive_gradient, name_of_link(kGradients, stage_), instances);
  }
  if (plan.send_gradient) {
    const int before = grid.owner_of(stage_ - 1);
    send_gradient_.emplace(progress, comm, before, tag(kCommonGradientTag, stage_ - 1),
                           *plan.send_gradient, links.to(before),
                           name_of_link(kGradients, stage_ - 1), instances);
    receive_values_.emplace(progress, comm, before, tag(kCommonValuesTag, stage_ - 1),
                            *plan.receive_values, name_of_link(kValues, stage_ - 1), instances);
  }
}

Crossing& CommonExchange::crossing(const Crossing& step, CrossingKind kind, int boundary,
                                   const MatrixRef<float>& x) {
  crossing_ = step;
  crossing_.kind = kind;
  crossing_.micro_batch = 0;
  crossing_.boundary = static_cast<std::uint32_t>(boundary);
  crossing_.sample_ids = {0};
  crossing_.tokens = {x.extent_int(0)};
  return crossing_;
}

void CommonExchange::send_gradient(const ExecSpace& exec, const Crossing& step,
                                   const MatrixRef<float>& sum) {
  send_gradient_->send(exec, crossing(step, CrossingKind::common_gradients, stage_ - 1, sum), sum);
}

void CommonExchange::receive_gradient(const ExecSpace& exec, const Crossing& step,
                                      const MatrixRef<float>& sum) {
  receive_gradient_->receive(exec, crossing(step, CrossingKind::common_gradients, stage_, sum),
                             sum);
}

void CommonExchange::send_values(const ExecSpace& exec, const Crossing& step,
                                 const MatrixRef<float>& values) {
  send_values_->send(exec, crossing(step, CrossingKind::common_values, stage_, values), values);
}

void CommonExchange::receive_values(const ExecSpace& exec, const Crossing& step,
                                    const MatrixRef<float>& values) {
  receive_values_->receive(exec, crossing(step, CrossingKind::common_values, stage_ - 1, values),
                           values);
}

std::uint64_t CommonExchange::take_gradient_bytes() {
  // Statistics that nobody reads are reset, since they grow.
  if (receive_gradient_) receive_gradient_->take_statistics();
  if (send_values_) send_values_->take_statistics();
  if (receive_values_) receive_values_->take_statistics();
  return send_gradient_ ? send_gradient_->take_statistics().bytes : 0;
}

}  // namespace deltapipe
