// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/attention/relative_buckets.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace deltapipe {

namespace {

/// Returns the bucket of a distance that is not negative.
int bucket_of(const RelativeBuckets& settings, int distance) {
  const int middle = settings.buckets / 2;
  if (settings.buckets <= 0 || distance <= middle) return distance;
  const auto whole = static_cast<float>(settings.longest - 1) / static_cast<float>(middle);
  const float part = std::log(static_cast<float>(distance) / static_cast<float>(middle)) /
                     std::log(whole) * static_cast<float>(middle - 1);
  // Distances that are much longer than `longest` could exceed an integer.
  return static_cast<int>(std::min(std::ceil(part), static_cast<float>(settings.buckets))) + middle;
}

}  // namespace

int RelativeBuckets::row(int distance) const {
  const int bucket = bucket_of(*this, std::abs(distance));
  return std::clamp((distance < 0 ? -bucket : bucket) + span(), 0, rows() - 1);
}

}  // namespace deltapipe
