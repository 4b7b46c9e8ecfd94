// SPDX-License-Identifier: BSD-3-Clause
// Values of the scripts in tests/golden.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "core/files/hdf5.hpp"
#include "models/optimizer_settings.hpp"

namespace deltapipe::test {

template <class T>
std::vector<T> read_all(const hdf5::Location& place, const std::string& name) {
  const hdf5::Dataset dataset = place.open_dataset(name);
  std::vector<T> values(dataset.rows() * dataset.row_elements());
  dataset.read(0, std::span<T>(values));
  return values;
}

inline double read_scalar(const hdf5::Location& place, const std::string& name) {
  const hdf5::Lock lock;
  const hdf5::Handle dataset(H5Dopen2(place.id(), name.c_str(), H5P_DEFAULT), H5Dclose);
  double value = 0;
  REQUIRE(H5Dread(dataset.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, &value) >= 0);
  return value;
}

inline std::string read_text(const hdf5::Location& place, const std::string& name) {
  const hdf5::Lock lock;
  const hdf5::Handle dataset(H5Dopen2(place.id(), name.c_str(), H5P_DEFAULT), H5Dclose);
  const hdf5::Handle type(H5Dget_type(dataset.get()), H5Tclose);
  char* text = nullptr;
  REQUIRE(H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, &text) >= 0);
  const std::string copy = text;
  H5free_memory(text);
  return copy;
}

/// Returns the constants of AdamW or, with a momentum, of SGD, which are attributes of a training.
inline OptimizerSettings golden_settings(const hdf5::Location& training) {
  OptimizerSettings settings;
  if (training.has_attribute("momentum")) {
    settings.name = OptimizerName::sgd;
    settings.momentum = training.read_attribute<double>("momentum");
    settings.decay_all = true;
  } else {
    settings.beta1 = training.read_attribute<double>("beta1");
    settings.beta2 = training.read_attribute<double>("beta2");
    settings.epsilon = training.read_attribute<double>("epsilon");
  }
  settings.weight_decay = training.read_attribute<double>("weight_decay");
  settings.clip_norm = training.read_attribute<double>("clip_norm");
  settings.learning_rate = training.read_attribute<double>("learning_rate");
  if (training.has_attribute("warmup_steps"))
    settings.warmup_steps =
        static_cast<std::uint64_t>(training.read_attribute<double>("warmup_steps"));
  return settings;
}

/// max |value - truth| / max |truth|; infinite where a value is not finite or one is missing.
template <class Real, class Truth>
double relative_difference(const std::vector<Real>& values, const std::vector<Truth>& truth) {
  if (values.size() != truth.size()) return INFINITY;
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double difference = std::abs(static_cast<double>(values[i]) - truth[i]);
    if (!(difference <= worst)) worst = std::isnan(difference) ? INFINITY : difference;
    largest = std::max(largest, std::abs(static_cast<double>(truth[i])));
  }
  return worst / largest;
}

}  // namespace deltapipe::test
