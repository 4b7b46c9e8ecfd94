// SPDX-License-Identifier: BSD-3-Clause
#include "models/outer_optimizer.hpp"

#include <tuple>
#include <utility>

#include "core/kernels/optimizers/nesterov.hpp"
#include "models/trained_parameters.hpp"

namespace deltapipe {

namespace {

template <class Real>
std::pair<Vector<Real>, Vector<Real>> allocate(std::size_t size, const ViewAllocator& memory) {
  return {
      memory.zeroed<Vector<Real>>(MemoryUse::optimizer, "deltapipe::OuterOptimizer::anchors", size),
      memory.zeroed<Vector<Real>>(MemoryUse::optimizer, "deltapipe::OuterOptimizer::velocities",
                                  size)};
}

}  // namespace

template <class Real>
OuterOptimizer<Real>::OuterOptimizer(const ExecSpace& exec, double learning_rate, double momentum,
                                     ParameterArena<Real>& parameters)
    : learning_rate_(learning_rate), momentum_(momentum), parameters_(parameters) {
  std::tie(anchors_, velocities_) = allocate<Real>(parameters.gradient_size(), {});
  for_each_trained(parameters_, [&](int index, const auto& parameter) {
    anchor_pass<Real>(exec, parameter, parameters_.trained_part(anchors_, index));
  });
}

template <class Real>
MemoryLedger OuterOptimizer<Real>::memory(std::size_t gradient_size) {
  MemoryLedger ledger;
  allocate<Real>(gradient_size, ViewAllocator(ledger));
  return ledger;
}

template <class Real>
void OuterOptimizer<Real>::write_changes(const ExecSpace& exec) {
  for_each_trained(parameters_, [&](int index, const auto& parameter) {
    change_pass<Real>(exec, parameter, parameters_.trained_part(anchors_, index),
                      parameters_.gradient(index));
  });
}

template <class Real>
void OuterOptimizer<Real>::update(const ExecSpace& exec, int replicas) {
  const NesterovStep step{learning_rate_, momentum_, 1.0 / replicas};
  for_each_trained(parameters_, [&](int index, const auto& parameter) {
    nesterov_pass<Real>(exec, step, parameters_.gradient(index),
                        parameters_.trained_part(anchors_, index),
                        parameters_.trained_part(velocities_, index), parameter);
  });
}

template <class Real>
StatePart OuterOptimizer<Real>::state(const ExecSpace& exec) const {
  return trained_state<Real>("outer_optimizer", exec, parameters_,
                             {{".anchor", anchors_}, {".velocity", velocities_}});
}

template class OuterOptimizer<float>;
template class OuterOptimizer<double>;

}  // namespace deltapipe
