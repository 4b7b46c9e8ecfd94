// SPDX-License-Identifier: BSD-3-Clause
// A classifier in one stage against what transformers computes (tests/golden/make_bert_fixtures.py
// and make_vit_fixtures.py).
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "models/blocks/block_stage.hpp"
#include "models/config_file.hpp"
#include "models/optimizer.hpp"
#include "models/weights.hpp"
#include "support/device_values.hpp"
#include "support/golden_values.hpp"

namespace deltapipe::test {

/// Batch `step` of a dataset of batches with `size` elements each.
template <class T>
std::vector<T> batch_of(const hdf5::Location& golden, const char* name, std::size_t step,
                        std::size_t size) {
  const auto all = read_all<T>(golden, name);
  return {all.begin() + static_cast<std::ptrdiff_t>(step * size),
          all.begin() + static_cast<std::ptrdiff_t>((step + 1) * size)};
}

template <class Real>
class GoldenClassifier {
 public:
  /// `directory` holds the model that `stage` is.
  GoldenClassifier(std::unique_ptr<BlockStage<Real>> stage, const WeightNames& names,
                   const std::string& directory, const StageCapacity& capacity, int classes,
                   const OptimizerSettings& settings)
      : stage_(std::move(stage)), names_(names), capacity_(capacity), classes_(classes) {
    stage_->parameters().set_moments(settings.moments());
    stage_->parameters().allocate(true);
    stage_->reserve(capacity);
    load_weights(SafetensorsReader::open_directory(directory), names, stage_->parameters());
    optimizer_ = std::make_unique<Optimizer<Real>>(settings, stage_->parameters());
  }
  virtual ~GoldenClassifier() = default;

  /// Computes the mean loss of batch `step` and its gradients.
  double gradients(const hdf5::Location& golden, std::size_t step) {
    const auto samples = static_cast<std::size_t>(capacity_.samples);
    const Vector<std::int32_t> labels =
        to_device(batch_of<std::int32_t>(golden, "labels", step, samples));
    std::vector<std::uint64_t> ids(samples);
    std::iota(ids.begin(), ids.end(), 5);
    const Vector<std::uint64_t> sample_ids = to_device(ids);
    MicroBatch batch;
    batch.samples = capacity_.samples;
    batch.tokens = capacity_.tokens;
    batch.sample_id_B = sample_ids;
    batch.fields.set(Field::label, labels);
    set_inputs(golden, step, batch);
    batch.loss_scale = 1.0 / capacity_.samples;
    batch.score = RowScore::probabilities;
    stage_->forward(exec_, batch, 0, false, false);
    probabilities = to_host(stage_->scores(0, capacity_.samples * classes_));
    batch.score = RowScore::loss;
    stage_->forward(exec_, batch, 0, true, false);
    if (capacity_.splits_backward) {
      stage_->backward_inputs(exec_, batch, 0, false);
      stage_->backward_parameters(exec_, batch, 0, false, {});
    } else {
      stage_->backward(exec_, batch, 0, false, {});
    }
    finish_gradients();
    exec_.fence();
    const auto losses = to_host(stage_->scores(0, capacity_.samples));
    return std::accumulate(losses.begin(), losses.end(), 0.0) / capacity_.samples;
  }

  /// A step of the optimizer; returns the gradients' norm.
  double train(const hdf5::Location& golden, std::size_t step, const OptimizerSettings& settings,
               double* loss) {
    *loss = gradients(golden, step);
    double square = 0;
    for (const double value : optimizer_->squared_norms(exec_)) square += value;
    const double norm = std::sqrt(square);
    optimizer_->update(exec_, step, settings.learning_rate,
                       std::min(1.0, settings.clip_norm / (norm + 1e-6)));
    exec_.fence();
    return norm;
  }

  /// Values by the names of transformers.
  std::map<std::string, std::vector<Real>> by_saved_name(bool of_gradients) {
    std::map<std::string, std::vector<Real>> all;
    for (std::size_t i = 0; i < stage_->parameters().info().size(); ++i) {
      const ParameterInfo& p = stage_->parameters().info()[i];
      const int index = static_cast<int>(i);
      if (of_gradients && p.frozen) continue;
      const auto values = to_host(of_gradients ? stage_->parameters().gradient(index)
                                               : stage_->parameters().value(index));
      const std::size_t row = p.size / p.shape[0];
      for (const SavedRows& part : names_.tensors(p)) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(part.first * row);
        all[names_.saved(part.name)] = {begin,
                                        begin + static_cast<std::ptrdiff_t>(part.rows * row)};
      }
    }
    return all;
  }

  std::vector<Real> probabilities;

 protected:
  /// Sets the fields that the first end reads. Their memory stays until the next call.
  virtual void set_inputs(const hdf5::Location& golden, std::size_t step, MicroBatch& batch) = 0;
  /// Computes gradients that the stage leaves to the pipeline.
  virtual void finish_gradients() {}

  BlockStage<Real>& stage() { return *stage_; }
  const ExecSpace& exec() const { return exec_; }

 private:
  ExecSpace exec_;
  std::unique_ptr<BlockStage<Real>> stage_;
  const WeightNames& names_;
  StageCapacity capacity_;
  int classes_;
  std::unique_ptr<Optimizer<Real>> optimizer_;
};

/// Returns the message with which Config refuses the config.json of `directory` with these changes;
/// empty: it accepts it.
template <class Config>
std::string refusal_of(const std::string& directory, const char* patch) {
  Json json = read_config_file(directory).json;
  json.merge_patch(Json::parse(patch));
  try {
    Config::read({"d", "d/config.json", json});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

inline std::vector<double> softmax(const std::vector<double>& logits, std::size_t classes) {
  std::vector<double> p;
  for (std::size_t row = 0; row < logits.size(); row += classes) {
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(logits[row + c]);
    for (std::size_t c = 0; c < classes; ++c) p.push_back(std::exp(logits[row + c]) / sum);
  }
  return p;
}

/// Probabilities, loss and gradients of the first batch.
template <class Real>
void check_gradients(GoldenClassifier<Real>& model, const hdf5::Group& golden, int classes) {
  constexpr double tolerance = std::is_same_v<Real, float> ? 1e-5 : 2e-6;
  const double loss = model.gradients(golden, 0);
  CHECK(loss == Approx(read_scalar(golden, "loss")).epsilon(tolerance));
  CHECK(relative_difference(model.probabilities, softmax(read_all<double>(golden, "logits"),
                                                         static_cast<std::size_t>(classes))) <
        tolerance);
  const hdf5::Group gradients = golden.open_group("gradients");
  const auto made = model.by_saved_name(true);
  CHECK(made.size() == gradients.names().size());
  for (const std::string& parameter : gradients.names()) {
    INFO(parameter);
    const auto truth = read_all<double>(gradients, parameter);
    // Softmax does not feel the keys' bias, for example: its gradient is rounding noise.
    if (std::all_of(truth.begin(), truth.end(), [](double g) { return std::abs(g) < 1e-12; })) {
      for (const Real value : made.at(parameter)) CHECK(std::abs(value) < 1e-6);
      continue;
    }
    CHECK(relative_difference(made.at(parameter), truth) < 10 * tolerance);
  }
}

/// Losses and norms of all steps of an optimizer, and the parameters after them. `group` is
/// "training" or "sgd".
template <class Real>
void check_training(GoldenClassifier<Real>& model, const hdf5::Group& golden, const char* group) {
  const hdf5::Group training = golden.open_group(group);
  const OptimizerSettings settings = golden_settings(training);
  const auto losses = read_all<double>(training, "losses");
  const auto norms = read_all<double>(training, "gradient_norms");
  constexpr double tolerance = std::is_same_v<Real, float> ? 1e-4 : 1e-8;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    INFO("step " << step);
    double loss = 0;
    const double norm = model.train(golden, step, settings, &loss);
    CHECK(loss == Approx(losses[step]).epsilon(tolerance));
    CHECK(norm == Approx(norms[step]).epsilon(10 * tolerance));
  }
  const auto names = nlohmann::json::parse(read_text(training, "names"));
  const auto squares = read_all<double>(training, "sums_of_squares");
  const auto parameters = model.by_saved_name(false);
  for (std::size_t i = 0; i < names.size(); ++i) {
    INFO(names[i]);
    double square = 0;
    for (const Real value : parameters.at(names[i].template get<std::string>()))
      square += static_cast<double>(value) * value;
    CHECK(square == Approx(squares[i]).epsilon(10 * tolerance));
  }
}

}  // namespace deltapipe::test
