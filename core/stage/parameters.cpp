// SPDX-License-Identifier: BSD-3-Clause
#include "core/stage/parameters.hpp"

#include "core/base/error.hpp"

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
  if (bucket == static_cast<int>(buckets_.size())) buckets_.push_back({size_, size_});
  DELTAPIPE_ASSERT(bucket + 1 == static_cast<int>(buckets_.size()),
                   "buckets out of order: " + name);
  info_.push_back({name, shape, size_, size, decay, bucket});
  size_ += aligned(size);
  buckets_.back().end = size_;
  return static_cast<int>(info_.size()) - 1;
}

template <class Real>
void ParameterArena<Real>::allocate(bool training, const ViewAllocator& memory) {
  const auto take = [&](MemoryUse use, const char* label) {
    return memory.zeroed<Vector<Real>>(use, label, size_);
  };
  values_ = take(MemoryUse::weights, "deltapipe::Parameters::values");
  if (!training) return;
  gradients_ = take(MemoryUse::optimizer, "deltapipe::Parameters::gradients");
  moments1_ = take(MemoryUse::optimizer, "deltapipe::Parameters::moments1");
  moments2_ = take(MemoryUse::optimizer, "deltapipe::Parameters::moments2");
}

template class ParameterArena<float>;
template class ParameterArena<double>;

}  // namespace deltapipe
