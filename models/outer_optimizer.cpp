// SPDX-License-Identifier: BSD-3-Clause
#include "models/outer_optimizer.hpp"

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/base/parallel/floating_point.hpp"
#include "core/base/state/state_views.hpp"
#include "core/kernels/halves.hpp"
#include "core/kernels/optimizers/nesterov.hpp"

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
  for_each_trained([&](int index, const auto& parameter) {
    anchor_pass<Real>(exec, parameter, part(anchors_, index));
  });
}

template <class Real>
MemoryLedger OuterOptimizer<Real>::memory(std::size_t gradient_size) {
  MemoryLedger ledger;
  allocate<Real>(gradient_size, ViewAllocator(ledger));
  return ledger;
}

template <class Real>
VectorRef<Real> OuterOptimizer<Real>::part(const Vector<Real>& all, int index) const {
  const ParameterInfo& p = parameters_.info()[static_cast<std::size_t>(index)];
  return VectorRef<Real>(all.data() + p.gradient_offset, p.size);
}

template <class Real>
template <class Pass>
void OuterOptimizer<Real>::for_each_trained(const Pass& pass) {
  const FlushedDenormals flushed;  // velocities decay to denormal numbers
  for (std::size_t i = 0; i < parameters_.info().size(); ++i) {
    if (parameters_.info()[i].frozen) continue;
    const int index = static_cast<int>(i);
    if constexpr (std::is_same_v<Real, float>)
      if (parameters_.in_halves(index)) {
        pass(index, mutable_halves(parameters_.halves(index)));
        continue;
      }
    pass(index, MutableValues<Real>{parameters_.value(index).data()});
  }
}

template <class Real>
void OuterOptimizer<Real>::write_changes(const ExecSpace& exec) {
  for_each_trained([&](int index, const auto& parameter) {
    change_pass<Real>(exec, parameter, part(anchors_, index), parameters_.gradient(index));
  });
}

template <class Real>
void OuterOptimizer<Real>::update(const ExecSpace& exec, int replicas) {
  const NesterovStep step{learning_rate_, momentum_, 1.0 / replicas};
  for_each_trained([&](int index, const auto& parameter) {
    nesterov_pass<Real>(exec, step, parameters_.gradient(index), part(anchors_, index),
                        part(velocities_, index), parameter);
  });
}

template <class Real>
StatePart OuterOptimizer<Real>::state(const ExecSpace& exec) const {
  const auto each = [this](const auto& use) {
    for (std::size_t i = 0; i < parameters_.info().size(); ++i) {
      const ParameterInfo& p = parameters_.info()[i];
      if (p.frozen) continue;
      use(p.name + ".anchor", part(anchors_, static_cast<int>(i)), p.shape);
      use(p.name + ".velocity", part(velocities_, static_cast<int>(i)), p.shape);
    }
  };
  return {"outer_optimizer",
          [=](StateWriter& writer) {
            each([&](const std::string& item, const auto& values, const auto& shape) {
              write_view(writer, exec, item, values, shape);
            });
          },
          [=](StateReader& reader) {
            each([&](const std::string& item, const auto& values, const auto& shape) {
              read_view(reader, exec, item, values, shape);
            });
          }};
}

template class OuterOptimizer<float>;
template class OuterOptimizer<double>;

}  // namespace deltapipe
