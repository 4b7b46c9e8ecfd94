// SPDX-License-Identifier: BSD-3-Clause
#include "models/optimizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"
#include "core/kernels/optimizers/adamw.hpp"
#include "core/kernels/optimizers/sgd.hpp"
#include "core/kernels/reduce.hpp"
#include "models/trained_parameters.hpp"

namespace deltapipe {

double learning_rate_at(const OptimizerSettings& settings, std::uint64_t step,
                        std::uint64_t steps) {
  const double warmup = static_cast<double>(settings.warmup_steps);
  if (step < settings.warmup_steps)
    return settings.learning_rate * static_cast<double>(step) / std::max(1.0, warmup);
  const std::uint64_t end = settings.decay_steps > 0 ? settings.decay_steps : steps;
  const double rest = std::max(1.0, static_cast<double>(end) - warmup);
  const double progress = std::min(1.0, (static_cast<double>(step) - warmup) / rest);
  const double last = settings.final_learning_rate_fraction;
  switch (settings.schedule) {
    case LearningRateSchedule::constant:
      return settings.learning_rate;
    case LearningRateSchedule::linear:
      return settings.learning_rate * (last + (1 - last) * (1 - progress));
    case LearningRateSchedule::cosine:
      return settings.learning_rate * (last + (1 - last) * 0.5 * (1 + std::cos(M_PI * progress)));
  }
  return settings.learning_rate;
}

template <class Real>
std::size_t Optimizer<Real>::partials(const ParameterInfo& parameter) {
  return parameter.frozen ? 0 : sum_of_squares_workspace(parameter.size);
}

template <class Real>
Vector<double> Optimizer<Real>::partial_sums(std::size_t count, const ViewAllocator& memory) {
  return memory.zeroed<Vector<double>>(MemoryUse::optimizer, "deltapipe::Optimizer::partialSums",
                                       count);
}

template <class Real>
MemoryLedger Optimizer<Real>::memory(const std::vector<ParameterInfo>& parameters) {
  std::size_t count = 0;
  for (const ParameterInfo& p : parameters) count += partials(p);
  MemoryLedger ledger;
  partial_sums(count, ViewAllocator(ledger));
  return ledger;
}

template <class Real>
Optimizer<Real>::Optimizer(const OptimizerSettings& settings, ParameterArena<Real>& parameters)
    : settings_(settings), parameters_(parameters) {
  DELTAPIPE_ASSERT(parameters.moments() == settings.moments(),
                   fmt::format("{} moments", parameters.moments()));
  first_partial_.push_back(0);
  for (const ParameterInfo& p : parameters.info())
    first_partial_.push_back(first_partial_.back() + partials(p));
  partial_ = partial_sums(first_partial_.back(), {});
  partial_host_ = Kokkos::create_mirror_view(partial_);
  squared_norms_.resize(parameters.info().size());
}

template <class Real>
const std::vector<double>& Optimizer<Real>::squared_norms(const ExecSpace& exec) {
  for (std::size_t i = 0; i < squared_norms_.size(); ++i) {
    if (parameters_.info()[i].frozen) continue;
    partial_sums_of_squares<Real>(exec, parameters_.gradient(static_cast<int>(i)),
                                  VectorRef<double>(partial_.data() + first_partial_[i],
                                                    first_partial_[i + 1] - first_partial_[i]));
  }
  Kokkos::deep_copy(exec, partial_host_, partial_);
  exec.fence();
  for (std::size_t i = 0; i < squared_norms_.size(); ++i) {
    double sum = 0;
    for (std::size_t j = first_partial_[i]; j < first_partial_[i + 1]; ++j) sum += partial_host_(j);
    squared_norms_[i] = sum;
  }
  return squared_norms_;
}

template <class Real>
double Optimizer<Real>::decay_of(int index) const {
  const bool decays =
      settings_.decay_all || parameters_.info()[static_cast<std::size_t>(index)].decay;
  return decays ? settings_.weight_decay : 0;
}

template <class Real>
AdamWStep Optimizer<Real>::step_at(std::uint64_t step, double learning_rate, double decay,
                                   double gradient_factor) const {
  return AdamWStep::at(step + 1, learning_rate, settings_.beta1, settings_.beta2, settings_.epsilon,
                       decay, gradient_factor);
}

template <class Real>
void Optimizer<Real>::update(const ExecSpace& exec, std::uint64_t step, double learning_rate,
                             double gradient_factor) {
  if (settings_.name == OptimizerName::sgd) {
    for_each_trained(parameters_, [&](int index, const auto& parameter) {
      sgd_pass<Real>(exec, {learning_rate, settings_.momentum, decay_of(index), gradient_factor},
                     parameters_.gradient(index), parameter, parameters_.moment1(index));
    });
    return;
  }
  for_each_trained(parameters_, [&](int index, const auto& parameter) {
    adamw_pass<Real>(exec, step_at(step, learning_rate, decay_of(index), gradient_factor),
                     parameters_.gradient(index), parameter, parameters_.moment1(index),
                     parameters_.moment2(index));
  });
}

template <class Real>
void Optimizer<Real>::share_moments(const ExecSpace& exec, int replicas, double gradient_factor) {
  const AdamWStep adamw = step_at(0, 0, 0, gradient_factor);
  for_each_trained(parameters_, [&](int index, const auto&) {
    adamw_moment_share<Real>(exec, adamw, replicas, parameters_.gradient(index),
                             parameters_.moment1(index));
  });
}

template <class Real>
void Optimizer<Real>::update_from_moments(const ExecSpace& exec, std::uint64_t step,
                                          std::uint64_t frozen_after, double learning_rate) {
  for_each_trained(parameters_, [&](int index, const auto& parameter) {
    AdamWStep adamw = step_at(step, learning_rate, decay_of(index), 1);
    adamw.correction2 = 1 - std::pow(settings_.beta2, static_cast<double>(frozen_after));
    adamw_moment_pass<Real>(exec, adamw, parameter, parameters_.moment1(index),
                            parameters_.moment2(index));
  });
}

template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace deltapipe
