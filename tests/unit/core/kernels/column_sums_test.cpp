// SPDX-License-Identifier: BSD-3-Clause
// Sums of columns, in parts as devices make them and whole, against sums in double.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/base/parallel/host_team.hpp"
#include "core/kernels/layers/layer_norm.hpp"
#include "core/kernels/layers/linear.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::relative_difference;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

/// Workspaces begin as NaN. Without one processors sum whole columns.
template <class Real>
Vector<Real> workspace_of(int rows, int columns, bool in_parts) {
  if (!in_parts) return {};
  return to_device(std::vector<Real>(column_tree_workspace(rows, columns), NAN));
}

}  // namespace

TEMPLATE_TEST_CASE("Columns' sums are those of their values", "[kernels][column_sums]", float,
                   double) {
  const bool in_parts = GENERATE(true, false);
  const double tolerance = std::is_same_v<TestType, float> ? 1e-5 : 1e-12;
  const ExecSpace exec;
  for (const int rows : {0, 1, 15, 16, 17, 255, 256, 257, 1100})
    for (const int columns : {1, 63, 64, 65, 130, 256, 529}) {
      INFO(rows << " x " << columns << ", in parts " << in_parts);
      const auto dy = random_values<TestType>(rows * columns, 1, 3);
      const auto x = random_values<TestType>(rows * columns, 2, 3);
      const auto mean = random_values<TestType>(rows, 3), rstd = random_values<TestType>(rows, 4);
      std::vector<double> bias(columns), gain(columns);
      for (int n = 0; n < rows; ++n)
        for (int c = 0; c < columns; ++c) {
          const std::size_t i = static_cast<std::size_t>(n) * columns + c;
          bias[c] += dy[i];
          gain[c] += double(dy[i]) * (double(x[i]) - mean[n]) * rstd[n];
        }
      // A part of the wide matrix, with fewer rows and columns than the workspace is for.
      const Vector<TestType> workspace = workspace_of<TestType>(rows + 300, columns + 5, in_parts);
      const Matrix<TestType> dy_in("test::dy", rows, columns), x_in("test::x", rows, columns);
      test::copy_to_device<TestType>(dy, VectorRef<TestType>(dy_in.data(), dy_in.size()));
      test::copy_to_device<TestType>(x, VectorRef<TestType>(x_in.data(), x_in.size()));
      const Vector<TestType> db = to_device(std::vector<TestType>(columns, NAN)),
                             dgain = to_device(std::vector<TestType>(columns, NAN)),
                             dbias = to_device(std::vector<TestType>(columns, NAN));
      for (const bool accumulate : {false, true}) {
        bias_gradient<TestType>(exec, dy_in, accumulate, db, workspace);
        layer_norm_parameter_gradient<TestType>(exec, dy_in, x_in, to_device(mean), to_device(rstd),
                                                accumulate, dgain, dbias, workspace);
        auto twice = [&](std::vector<double> values) {
          if (accumulate)
            for (double& value : values) value *= 2;
          return values;
        };
        CHECK(relative_difference(to_host(db), twice(bias), 1.0) < tolerance);
        CHECK(relative_difference(to_host(dgain), twice(gain), 1.0) < tolerance);
        CHECK(relative_difference(to_host(dbias), twice(bias), 1.0) < tolerance);
      }
      // Only one of them is trained.
      const Vector<TestType> alone = to_device(std::vector<TestType>(columns, NAN));
      layer_norm_parameter_gradient<TestType>(exec, dy_in, x_in, to_device(mean), to_device(rstd),
                                              false, alone, {}, workspace);
      CHECK(relative_difference(to_host(alone), gain, 1.0) < tolerance);
      layer_norm_parameter_gradient<TestType>(exec, dy_in, x_in, to_device(mean), to_device(rstd),
                                              false, {}, alone, workspace);
      CHECK(relative_difference(to_host(alone), bias, 1.0) < tolerance);
    }
}

TEST_CASE("NaN and infinities show in their column's sum alone", "[kernels][column_sums]") {
  const bool in_parts = GENERATE(true, false);
  const int rows = 700, columns = 70;
  auto dy = random_values<float>(rows * columns, 1);
  dy[300 * columns + 65] = NAN;
  dy[699 * columns + 3] = INFINITY;
  const Vector<float> db = to_device(std::vector<float>(columns, 0));
  bias_gradient<float>(ExecSpace(), to_device(dy, columns), false, db,
                       workspace_of<float>(rows, columns, in_parts));
  const auto sums = to_host(db);
  for (int c = 0; c < columns; ++c) {
    CHECK(std::isnan(sums[c]) == (c == 65));
    CHECK(std::isinf(sums[c]) == (c == 3));
  }
}

TEST_CASE("Several threads sum columns to the same bits", "[kernels][column_sums][threads]") {
  if (!kTeamExecution) return;
  HostTeam& team = HostTeam::instance();
  const int before = team.size();
  const int rows = 77, columns = GENERATE(1, 16, 70, 700);
  const auto dy = to_device(random_values<float>(rows * columns, 1), columns);
  const auto x = to_device(random_values<float>(rows * columns, 2), columns);
  const auto mean = to_device(random_values<float>(rows, 3));
  const auto rstd = to_device(random_values<float>(rows, 4));
  const auto sums = [&](int threads) {
    team.resize(threads);
    const Vector<float> db = to_device(std::vector<float>(columns, NAN));
    const Vector<float> dgain = to_device(std::vector<float>(columns, NAN));
    const Vector<float> dbias = to_device(std::vector<float>(columns, NAN));
    bias_gradient<float>(ExecSpace(), dy, false, db);
    layer_norm_parameter_gradient<float>(ExecSpace(), dy, x, mean, rstd, false, dgain, dbias);
    return std::vector{to_host(db), to_host(dgain), to_host(dbias)};
  };
  const auto of_one = sums(1);
  for (const int threads : {2, 3, 16}) CHECK(sums(threads) == of_one);
  team.resize(before);
}
