// SPDX-License-Identifier: BSD-3-Clause
#include "core/stage/parameters.hpp"

#include "core/base/error.hpp"
#include "core/base/state_views.hpp"
#include "core/kernels/bf16_gemm.hpp"

namespace deltapipe {

namespace {

constexpr std::size_t kAlignment = 16;  // elements: every tensor starts on a cache line

std::size_t aligned(std::size_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

template <class Real>
int ParameterArena<Real>::add(const std::string& name, const std::vector<std::uint64_t>& shape,
                              bool decay, int bucket) {
  std::size_t size = 1;
  for (const std::uint64_t extent : shape) size *= extent;
  if (bucket == static_cast<int>(buckets_.size()))
    buckets_.push_back({gradient_size_, gradient_size_});
  DELTAPIPE_ASSERT(bucket + 1 == static_cast<int>(buckets_.size()),
                   "buckets out of order: " + name);
  const bool frozen = frozen_.contains(name);
  info_.push_back({name, shape, size_, size, decay, bucket, frozen, gradient_size_});
  size_ += aligned(size);
  if (!frozen) gradient_size_ += aligned(size);
  buckets_.back().end = gradient_size_;
  return static_cast<int>(info_.size()) - 1;
}

template <class Real>
int ParameterArena<Real>::add_copy(const std::string& name, const std::vector<std::uint64_t>& shape,
                                   int bucket) {
  DELTAPIPE_ASSERT(frozen_.contains(name), "a copy of what changes: " + name);
  const int index = add(name, shape, false, bucket);
  info_[index].copied = true;
  return index;
}

template <class Real>
void ParameterArena<Real>::allocate(bool training, const ViewAllocator& memory) {
  const auto take = [&](MemoryUse use, const char* label, std::size_t size) {
    return memory.zeroed<Vector<Real>>(use, label, size);
  };
  values_ = take(MemoryUse::weights, "deltapipe::Parameters::values", size_);
  if (!training) return;
  gradients_ = take(MemoryUse::optimizer, "deltapipe::Parameters::gradients", gradient_size_);
  moments1_ = take(MemoryUse::optimizer, "deltapipe::Parameters::moments1", gradient_size_);
  moments2_ = take(MemoryUse::optimizer, "deltapipe::Parameters::moments2", gradient_size_);
}

template <class Real>
void ParameterArena<Real>::keep_rounded(const std::vector<int>& matrices,
                                        const ViewAllocator& memory) {
  first_rounded_.assign(info_.size(), kNotRounded);
  std::size_t size = 0;
  for (const int index : matrices) {
    first_rounded_[index] = size;
    size += aligned(info_[index].size);
  }
  rounded_ = memory.uninitialized<Vector<Bf16>>(MemoryUse::weights,
                                                "deltapipe::Parameters::rounded", size);
  rounded_is_current_ = false;
}

template <class Real>
void ParameterArena<Real>::round_values(const ExecSpace& exec) {
  if (rounded_is_current_ || first_rounded_.empty()) return;
  if constexpr (std::is_same_v<Real, float>)
    for (std::size_t i = 0; i < info_.size(); ++i)
      if (first_rounded_[i] != kNotRounded)
        round_to_bf16(exec, matrix(static_cast<int>(i)), rounded_matrix(static_cast<int>(i)));
  rounded_is_current_ = true;
}

namespace {

/// each(item name, values, shape) for all that the part has.
template <class Each>
StatePart part_of(const std::string& name, const ExecSpace& exec, const Each& each) {
  return {name,
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

}  // namespace

template <class Real>
StatePart parameter_state(const ExecSpace& exec, const ParameterArena<Real>& parameters) {
  StatePart part = part_of("parameters", exec, [&parameters](const auto& use) {
    for (std::size_t i = 0; i < parameters.info().size(); ++i) {
      const ParameterInfo& p = parameters.info()[i];
      use(p.name, parameters.value(static_cast<int>(i)), p.shape);
    }
  });
  part.read = [read = part.read, &parameters](StateReader& reader) {
    read(reader);
    parameters.values_changed();
  };
  return part;
}

template <class Real>
StatePart moment_state(const ExecSpace& exec, const ParameterArena<Real>& parameters) {
  return part_of("moments", exec, [&parameters](const auto& use) {
    for (std::size_t i = 0; i < parameters.info().size(); ++i) {
      const ParameterInfo& p = parameters.info()[i];
      if (p.frozen) continue;
      use(p.name + ".moment1", parameters.moment1(static_cast<int>(i)), p.shape);
      use(p.name + ".moment2", parameters.moment2(static_cast<int>(i)), p.shape);
    }
  });
}

template class ParameterArena<float>;
template class ParameterArena<double>;
template StatePart parameter_state(const ExecSpace&, const ParameterArena<float>&);
template StatePart parameter_state(const ExecSpace&, const ParameterArena<double>&);
template StatePart moment_state(const ExecSpace&, const ParameterArena<float>&);
template StatePart moment_state(const ExecSpace&, const ParameterArena<double>&);

}  // namespace deltapipe
