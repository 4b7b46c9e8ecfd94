// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/data/dataset.hpp"

namespace deltapipe::testing {

struct ImageSample {
  std::vector<float> values;
  std::int32_t label = -2;  ///< no data set has it
};

inline ImageSample read_image_sample(const Dataset& data, std::uint64_t id,
                                     const SampleVisit& visit = {}) {
  ImageSample sample;
  sample.values.resize(static_cast<std::size_t>(data.fields()[Field::values]));
  SampleSpans spans;
  spans.set(Field::values, std::span(sample.values));
  spans.set(Field::label, std::span(&sample.label, 1));
  data.read(id, visit, spans);
  return sample;
}

}  // namespace deltapipe::testing
