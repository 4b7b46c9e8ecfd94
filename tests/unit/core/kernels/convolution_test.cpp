// SPDX-License-Identifier: BSD-3-Clause
// Convolutions, their gradients and max pooling against loops over their definition.
#include "core/kernels/convolution/convolution.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <type_traits>
#include <vector>

#include "core/base/numeric/number_formats.hpp"
#include "core/kernels/layers/max_pool.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::relative_difference;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

/// Calls visit(output, input, weight) with the indices of all products of a convolution.
template <class Visit>
void for_products(const ConvolutionShape& shape, int images, const Visit& visit) {
  const ImageShape in = shape.input, out = shape.output();
  for (int b = 0; b < images; ++b)
    for (int i = 0; i < out.height; ++i)
      for (int j = 0; j < out.width; ++j)
        for (int o = 0; o < out.channels; ++o)
          for (int c = 0; c < in.channels; ++c)
            for (int u = 0; u < shape.kernel; ++u)
              for (int v = 0; v < shape.kernel; ++v) {
                const int y = i * shape.stride + u - shape.padding;
                const int x = j * shape.stride + v - shape.padding;
                if (y < 0 || y >= in.height || x < 0 || x >= in.width) continue;
                visit(((b * out.height + i) * out.width + j) * out.channels + o,
                      ((b * in.height + y) * in.width + x) * in.channels + c,
                      ((o * in.channels + c) * shape.kernel + u) * shape.kernel + v);
              }
}

template <class Real>
MatrixRef<Real> rows(const Vector<Real>& values, int columns) {
  return MatrixRef<Real>(values.data(), values.extent(0) / columns, columns);
}

struct Case {
  ConvolutionShape shape;
  int images;
};

const Case kCases[] = {{{{7, 5, 3}, 4, 3, 1, 1}, 2},
                       {{{7, 5, 3}, 4, 3, 2, 1}, 3},
                       {{{13, 9, 2}, 5, 7, 2, 3}, 2},
                       {{{6, 4, 5}, 3, 1, 1, 0}, 2},
                       {{{6, 5, 5}, 3, 1, 2, 0}, 2},
                       {{{1, 1, 3}, 2, 3, 1, 1}, 1},
                       {{{3, 2, 1}, 1, 3, 3, 1}, 1},
                       {{{5, 8, 2}, 3, 3, 1, 0}, 2},
                       {{{9, 7, 16}, 32, 3, 1, 1}, 4},
                       {{{8, 8, 64}, 16, 3, 2, 1}, 2},
                       {{{7, 7, 64}, 64, 3, 1, 1}, 1},
                       {{{7, 7, 64}, 128, 1, 2, 0}, 3},
                       {{{4, 4, 128}, 128, 3, 1, 1}, 1},
                       // More patches than the workspace of a processor holds at a time.
                       {{{40, 37, 17}, 2, 3, 1, 1}, 3}};

/// Compares a convolution of random values and its gradients with sums over the kernel in double.
/// `rounded` returns the value of an operand in products.
template <class Real, class Rounded>
void check_convolution(const Case& tested, const ConvolutionWorkspace<Real>& workspace,
                       double tolerance, const Rounded& rounded) {
  const auto& [shape, images] = tested;
  INFO(text_of(shape.input) << ", kernel " << shape.kernel << ", stride " << shape.stride);
  const std::size_t inputs = images * shape.input.values();
  const std::size_t outputs = images * shape.output().values();
  const std::size_t weights = static_cast<std::size_t>(shape.outputs) * shape.patch_values();
  const auto x = random_values<Real>(inputs, 1), w = random_values<Real>(weights, 2);
  const auto dy = random_values<Real>(outputs, 3);
  std::vector<double> y(outputs), dx(inputs), dw(weights);
  for_products(shape, images, [&](int o, int i, int k) {
    const double x_i = rounded(x[i]), w_k = rounded(w[k]), dy_o = rounded(dy[o]);
    y[o] += x_i * w_k;
    dx[i] += dy_o * w_k;
    dw[k] += dy_o * x_i;
  });

  const ExecSpace exec;
  const auto device_x = to_device(x), device_w = to_device(w), device_dy = to_device(dy);
  const auto made_y = to_device(std::vector<Real>(outputs, NAN));
  const auto made_dx = to_device(std::vector<Real>(inputs, NAN));
  const auto made_dw = to_device(std::vector<Real>(weights, NAN));
  convolution_forward<Real>(exec, shape, rows(device_x, shape.input.channels), device_w,
                            rows(made_y, shape.outputs), workspace);
  CHECK(relative_difference(to_host(made_y), y) < tolerance);
  for (const bool adds : {false, true}) {
    convolution_input_gradient<Real>(exec, shape, rows(device_dy, shape.outputs), device_w, adds,
                                     rows(made_dx, shape.input.channels), workspace);
    convolution_weight_gradient<Real>(exec, shape, rows(device_x, shape.input.channels),
                                      rows(device_dy, shape.outputs), adds, made_dw, workspace);
    const auto twice = [&](std::vector<double> values) {
      if (adds)
        for (double& value : values) value *= 2;
      return values;
    };
    INFO("adds " << adds);
    CHECK(relative_difference(to_host(made_dx), twice(dx)) < tolerance);
    CHECK(relative_difference(to_host(made_dw), twice(dw)) < tolerance);
  }
}

ConvolutionCapacity capacity_of(const Case& tested) {
  ConvolutionCapacity capacity;
  capacity.raise(tested.shape, tested.images);
  return capacity;
}

}  // namespace

TEMPLATE_TEST_CASE("Convolutions and their gradients are sums over the kernel",
                   "[kernels][convolution]", float, double) {
  const ViewAllocator memory;
  for (const Case& tested : kCases)
    check_convolution<TestType>(tested, {RealGemm(memory), capacity_of(tested), true, memory},
                                std::is_same_v<TestType, float> ? 2e-5 : 1e-12,
                                [](TestType value) { return static_cast<double>(value); });
}

TEST_CASE("Convolutions in bf16 multiply rounded values and add in fp32",
          "[kernels][convolution][bf16]") {
  const ViewAllocator memory;
  const auto rounded = [](float value) { return double{float_of_bfloat(bfloat_of(value))}; };
  for (const bool emulated : {false, true}) {
    if (!emulated && !has_fast_bf16_gemm()) continue;
    CAPTURE(emulated);
    for (const Case& tested : kCases)
      check_convolution<float>(tested, {capacity_of(tested), true, memory, emulated}, 2e-5,
                               rounded);
  }
}

TEST_CASE("Outputs alone require no memory for gradients", "[kernels][convolution][bf16]") {
  const Case tested = {{{7, 5, 3}, 4, 3, 1, 1}, 2};
  const std::size_t outputs = tested.images * tested.shape.output().values();
  const auto x = random_values<float>(tested.images * tested.shape.input.values(), 1);
  const auto w = random_values<float>(4 * tested.shape.patch_values(), 2);
  const auto outputs_of = [&](const ConvolutionWorkspace<float>& workspace) {
    const auto made = to_device(std::vector<float>(outputs, NAN));
    const auto device_x = to_device(x), device_w = to_device(w);
    convolution_forward<float>(ExecSpace(), tested.shape, rows(device_x, 3), device_w,
                               rows(made, 4), workspace);
    return to_host(made);
  };
  const ConvolutionCapacity capacity = capacity_of(tested);
  const ViewAllocator memory;
  CHECK(outputs_of({RealGemm(memory), capacity, false, memory}) ==
        outputs_of({RealGemm(memory), capacity, true, memory}));
  for (const bool emulated : {false, true})
    if (emulated || has_fast_bf16_gemm())
      CHECK(outputs_of({capacity, false, memory, emulated}) ==
            outputs_of({capacity, true, memory, emulated}));
}

TEST_CASE("Maxima over places and their gradients are those of the definition",
          "[kernels][convolution]") {
  const ConvolutionShape shape =
      GENERATE(ConvolutionShape{{7, 6, 3}, 3, 3, 2, 1}, ConvolutionShape{{1, 1, 2}, 2, 3, 2, 1},
               ConvolutionShape{{5, 4, 1}, 1, 2, 2, 0});
  INFO(text_of(shape.input));
  constexpr int kImages = 2;
  const ImageShape in = shape.input, out = shape.output();
  auto x = random_values<double>(kImages * in.values(), 1);
  for (double& value : x) value = std::round(2 * value);  // equal ones: the first counts
  const auto dy = random_values<double>(kImages * out.values(), 2);
  std::vector<double> y, dx(x.size());
  for (int b = 0; b < kImages; ++b)
    for (int i = 0; i < out.height; ++i)
      for (int j = 0; j < out.width; ++j)
        for (int c = 0; c < in.channels; ++c) {
          std::size_t largest = x.size();
          for (int u = 0; u < shape.kernel; ++u)
            for (int v = 0; v < shape.kernel; ++v) {
              const int row = i * shape.stride + u - shape.padding;
              const int column = j * shape.stride + v - shape.padding;
              if (row < 0 || row >= in.height || column < 0 || column >= in.width) continue;
              const std::size_t at =
                  ((static_cast<std::size_t>(b) * in.height + row) * in.width + column) *
                      in.channels +
                  c;
              if (largest == x.size() || x[at] > x[largest]) largest = at;
            }
          dx[largest] += dy[y.size()];
          y.push_back(x[largest]);
        }
  const auto device_x = to_device(x), device_dy = to_device(dy);
  const auto made_y = to_device(std::vector<double>(y.size(), NAN));
  const auto made_dx = to_device(std::vector<double>(x.size(), NAN));
  const ExecSpace exec;
  max_pool<double>(exec, shape, rows(device_x, in.channels), rows(made_y, in.channels));
  max_pool_backward<double>(exec, shape, rows(device_x, in.channels), rows(device_dy, in.channels),
                            rows(made_dx, in.channels));
  CHECK(to_host(made_y) == y);
  CHECK(relative_difference(to_host(made_dx), dx) < 1e-12);
}
