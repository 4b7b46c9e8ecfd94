// SPDX-License-Identifier: BSD-3-Clause
// Batch normalisation: statistics, running statistics and NaN. Gradients are compared with
// PyTorch's in resnet_golden_test.cpp.
#include "core/kernels/layers/batch_norm.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::relative_difference;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

TEMPLATE_TEST_CASE("Statistics of a batch are those of its columns", "[kernels][batch_norm]", float,
                   double) {
  constexpr double kEpsilon = 1e-5, kMomentum = 0.1;
  const double tolerance = std::is_same_v<TestType, float> ? 1e-6 : 1e-10;
  const bool in_parts = GENERATE(true, false);
  const ExecSpace exec;
  for (const int rows : {1, 2, 255, 1100})
    for (const int columns : {1, 16, 65}) {
      INFO(rows << " x " << columns << ", in parts " << in_parts);
      auto x = random_values<TestType>(static_cast<std::size_t>(rows) * columns, 1, 3);
      for (TestType& value : x) value += 10;  // far from 0
      std::vector<double> mean(columns), variance(columns), rstd(columns);
      std::vector<double> running_mean(columns, 2), running_variance(columns, 3);
      for (int c = 0; c < columns; ++c) {
        for (int n = 0; n < rows; ++n) mean[c] += x[n * columns + c];
        mean[c] /= rows;
        for (int n = 0; n < rows; ++n) variance[c] += std::pow(x[n * columns + c] - mean[c], 2);
        if (rows > 1) {  // one row has no variance
          running_mean[c] += kMomentum * (mean[c] - running_mean[c]);
          running_variance[c] += kMomentum * (variance[c] / (rows - 1) - running_variance[c]);
        }
        variance[c] /= rows;
        rstd[c] = 1 / std::sqrt(variance[c] + kEpsilon);
      }
      const auto device_x = to_device(x);
      const auto made = [&](double value) {
        return to_device(std::vector<TestType>(columns, static_cast<TestType>(value)));
      };
      const auto made_mean = made(NAN), made_variance = made(NAN), made_rstd = made(NAN);
      const auto made_running_mean = made(2), made_running_variance = made(3);
      Vector<double> workspace;
      if (in_parts)
        workspace = to_device(std::vector<double>(column_tree_workspace(rows, columns), NAN));
      batch_statistics<TestType>(exec, MatrixRef<TestType>(device_x.data(), rows, columns),
                                 kEpsilon, made_mean, made_variance, made_rstd, workspace);
      update_running_statistics<TestType>(exec, rows, kMomentum, made_mean, made_variance,
                                          made_running_mean, made_running_variance);
      CHECK(relative_difference(to_host(made_mean), mean) < tolerance);
      if (rows > 1) {
        CHECK(relative_difference(to_host(made_variance), variance) < tolerance);
        CHECK(relative_difference(to_host(made_rstd), rstd) < tolerance);
      }
      CHECK(relative_difference(to_host(made_running_mean), running_mean) < tolerance);
      CHECK(relative_difference(to_host(made_running_variance), running_variance) < tolerance);
    }
}

TEST_CASE("NaN passes batch normalisation and relu in both directions", "[kernels][batch_norm]") {
  const ExecSpace exec;
  const auto x = to_device(std::vector<float>{NAN, -1, 1});
  const auto zero = to_device(std::vector<float>(3, 0)), one = to_device(std::vector<float>(3, 1));
  const auto y = to_device(std::vector<float>(3, 5)), g = to_device(std::vector<float>(3, 7));
  const auto row = [](const Vector<float>& values) {
    return MatrixRef<float>(values.data(), 1, 3);
  };
  const ColumnNorm<float> norm = {zero, one, one, zero};
  norm_relu<float>(exec, row(x), norm, row(y));
  norm_relu_backward<float>(exec, row(x), norm, row(g));
  CHECK(std::isnan(to_host(y)[0]));
  CHECK(to_host(y)[1] == 0);
  CHECK(to_host(y)[2] == 1);
  CHECK(to_host(g) == std::vector<float>{7, 0, 7});
}
