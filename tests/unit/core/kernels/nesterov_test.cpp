// SPDX-License-Identifier: BSD-3-Clause
// Outer steps against torch.optim.SGD(nesterov=True), whose formula is computed here in double.
#include "core/kernels/optimizers/nesterov.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "core/base/numeric/halves.hpp"

namespace deltapipe {
namespace {

template <class Real>
Vector<Real> vector_of(const std::string& label, const std::vector<double>& values) {
  Vector<Real> all(label, values.size());
  const auto host = Kokkos::create_mirror_view(all);
  for (std::size_t i = 0; i < values.size(); ++i) host(i) = Real(values[i]);
  Kokkos::deep_copy(all, host);
  return all;
}

template <class Real>
std::vector<double> values_of(const Vector<Real>& all) {
  const auto host = Kokkos::create_mirror_view(all);
  Kokkos::deep_copy(host, all);
  std::vector<double> values;
  for (std::size_t i = 0; i < host.extent(0); ++i) values.push_back(double(host(i)));
  return values;
}

TEMPLATE_TEST_CASE("Outer steps are those of SGD with Nesterov momentum", "[kernels][nesterov]",
                   float, double) {
  using Real = TestType;
  const double margin = sizeof(Real) == 4 ? 1e-5 : 1e-13;
  const double rate = 0.7, momentum = 0.9;
  const int replicas = 3;
  for (const std::size_t size : {0u, 1u, 17u, 5000u}) {
    const ExecSpace exec;
    std::vector<double> p(size), velocity(size, 0);
    for (std::size_t i = 0; i < size; ++i) p[i] = std::sin(double(i));
    Vector<Real> parameter = vector_of<Real>("deltapipe::test::parameter", p);
    Vector<Real> anchor("deltapipe::test::anchor", size);
    Vector<Real> speed("deltapipe::test::velocity", size);
    const MutableValues<Real> access{parameter.data()};
    anchor_pass<Real>(exec, access, VectorRef<Real>(anchor.data(), size));
    for (int step = 0; step < 3; ++step) {
      // Replicas' parameters, whose changes are summed.
      std::vector<double> sum(size, 0);
      for (int r = 0; r < replicas; ++r) {
        std::vector<double> own(size);
        for (std::size_t i = 0; i < size; ++i)
          own[i] = p[i] - 0.01 * std::cos(double(i + 7 * static_cast<std::size_t>(r + step)));
        Vector<Real> local = vector_of<Real>("deltapipe::test::local", own);
        Vector<Real> change("deltapipe::test::change", size);
        change_pass<Real>(exec, MutableValues<Real>{local.data()},
                          VectorRef<const Real>(anchor.data(), size),
                          VectorRef<Real>(change.data(), size));
        const std::vector<double> found = values_of(change);
        for (std::size_t i = 0; i < size; ++i) {
          CHECK(found[i] == Approx(p[i] - own[i]).margin(margin));
          sum[i] += found[i];
        }
      }
      Vector<Real> changes = vector_of<Real>("deltapipe::test::changes", sum);
      nesterov_pass<Real>(
          exec, {rate, momentum, 1.0 / replicas}, VectorRef<const Real>(changes.data(), size),
          VectorRef<Real>(anchor.data(), size), VectorRef<Real>(speed.data(), size), access);
      for (std::size_t i = 0; i < size; ++i) {
        const double d = sum[i] / replicas;
        velocity[i] = momentum * velocity[i] + d;
        p[i] -= rate * (d + momentum * velocity[i]);
      }
      const std::vector<double> found = values_of(parameter), anchors = values_of(anchor);
      for (std::size_t i = 0; i < size; ++i) {
        REQUIRE(found[i] == Approx(p[i]).margin(margin));
        REQUIRE(anchors[i] == found[i]);
      }
    }
  }
}

}  // namespace
}  // namespace deltapipe
