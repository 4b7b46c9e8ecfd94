// SPDX-License-Identifier: BSD-3-Clause
// What a machine can do at most of what training a GPT-2 needs, as JSON: the linear layers' matrix
// products at the model's shapes, alone and through the BLAS that deltapipe uses, and the memory's
// bandwidth. Part of scripts/benchmark.py.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "benchmark_support.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"
#include "core/kernels/gemm/blas.hpp"

using namespace deltapipe;
using namespace deltapipe::benchmark;

namespace {

constexpr std::size_t kTriadFloats = std::size_t{1} << 25;  // 128 MiB an array: no cache holds it

struct Product {
  const char* name;
  Transpose op_a, op_b;
  int m, n, k;
  int calls;  ///< a step
};

/// Products of a linear layer y_NO = x_NI W_IO: forward, gradient of x, gradient of W.
void add_layer(std::vector<Product>& products, const char* name, int rows, int in, int out,
               int calls) {
  products.push_back({name, Transpose::no, Transpose::no, rows, out, in, calls});
  products.push_back({name, Transpose::no, Transpose::yes, rows, in, out, calls});
  products.push_back({name, Transpose::yes, Transpose::no, in, out, rows, calls});
}

std::vector<Product> products_of(const Shape& shape) {
  const int rows = shape.rows(), C = shape.config.n_embd, F = shape.config.n_inner;
  const int V = shape.config.vocabulary_size, layers = shape.config.n_layer;
  std::vector<Product> products;
  add_layer(products, "attn.c_attn", rows, C, 3 * C, layers);
  add_layer(products, "attn.c_proj", rows, C, C, layers);
  add_layer(products, "mlp.c_fc", rows, C, F, layers);
  add_layer(products, "mlp.c_proj", rows, F, C, layers);
  // W is stored transposed: logits_NV = x_NC W_VC^T.
  products.push_back({"lm_head", Transpose::no, Transpose::yes, rows, V, C, 1});
  products.push_back({"lm_head", Transpose::no, Transpose::no, rows, C, V, 1});
  products.push_back({"lm_head", Transpose::yes, Transpose::no, V, C, rows, 1});
  return products;
}

template <class Work>
double median_seconds(int times, const ExecSpace& exec, const Work& work) {
  work();
  exec.fence();
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    const double start = wall_seconds();
    work();
    exec.fence();
    seconds.push_back(wall_seconds() - start);
  }
  return median(seconds);
}

template <class T>
Matrix<T> filled(const ExecSpace& exec, int rows, int columns, T value) {
  const Matrix<T> matrix(uninitialized("deltapipe::Benchmark::operand"), rows, columns);
  Kokkos::deep_copy(exec, matrix, value);
  return matrix;
}

/// With operands of that value.
template <class T, class Multiply>
double product_seconds(const ExecSpace& exec, const Product& p, int times, T value,
                       const Multiply& multiply) {
  const bool ta = p.op_a == Transpose::yes, tb = p.op_b == Transpose::yes;
  const Matrix<T> a = filled(exec, ta ? p.k : p.m, ta ? p.m : p.k, value);
  const Matrix<T> b = filled(exec, tb ? p.n : p.k, tb ? p.k : p.n, value);
  const Matrix<float> c = filled(exec, p.m, p.n, 0.5f);
  return median_seconds(times, exec, [&] { multiply(p, a, b, c); });
}

double triad_bytes_per_second(const ExecSpace& exec, std::size_t floats, int times) {
  const Triad triad(floats);
  return triad.bytes() / median_seconds(times, exec, [&] { triad(exec); });
}

void measure(const Shape& shape, bool in_bf16) {
  const ExecSpace exec;
  const Bf16Gemm gemm_bf16{ViewAllocator()};
  const auto product_time = [&](const Product& p) {
    if (in_bf16)
      return product_seconds(exec, p, shape.count, bfloat_of(0.5f),
                             [&](const auto& q, const auto& a, const auto& b, const auto& c) {
                               gemm_bf16(exec, q.op_a, q.op_b, a, b, 0.0f, c);
                             });
    return product_seconds(exec, p, shape.count, 0.5f,
                           [&](const auto& q, const auto& a, const auto& b, const auto& c) {
                             gemm(exec, q.op_a, q.op_b, 1.0f, a, b, 0.0f, c);
                           });
  };
  nlohmann::json result;
  double all_seconds = 0, all_flop = 0;
  for (const Product& p : products_of(shape)) {
    const double seconds = product_time(p);
    const double flop = 2.0 * p.m * p.n * p.k;
    result["products"].push_back({{"layer", p.name},
                                  {"m", p.m},
                                  {"n", p.n},
                                  {"k", p.k},
                                  {"calls", p.calls},
                                  {"seconds", seconds},
                                  {"flop_per_second", flop / seconds}});
    all_seconds += p.calls * seconds;
    all_flop += p.calls * flop;
  }
  result["product_seconds_a_step"] = all_seconds;
  result["product_flop_a_step"] = all_flop;
  result["product_flop_per_second"] = all_flop / all_seconds;
  const bool tiny = shape.config.n_embd < 128;
  result["triad_bytes_per_second"] =
      triad_bytes_per_second(exec, tiny ? kTriadFloats / 64 : kTriadFloats, shape.count);
  result["blas"] = blas_configuration();
  result["execution_space"] = ExecSpace::name();
  std::printf("%s\n", result.dump().c_str());
}

}  // namespace

DELTAPIPE_REMEMBER_CORES_FIRST();

int main(int argc, char** argv) {
  return status_of(argv[0], [&] {
    restart_with_better_settings(argv);
    const bool in_bf16 = argc > 1 && std::strcmp(argv[1], "--bf16") == 0;
    const Shape shape = parse_shape(argc, argv, in_bf16 ? 2 : 1, "TIMES");
    const Kokkos::ScopeGuard kokkos;
    use_threads_of_environment();
    measure(shape, in_bf16);
    return 0;
  });
}
