// SPDX-License-Identifier: BSD-3-Clause
// What benchmarks that print JSON share: their arguments, clocks, medians.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/parallel/host_team.hpp"
#include "core/base/parallel/kernel.hpp"
#include "core/base/parallel/row.hpp"
#include "core/base/parallel/views.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "models/gpt2/gpt2_config.hpp"

namespace deltapipe::benchmark {

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of all threads of the process.
inline double processor_seconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Highest resident memory of the process; 0: unknown.
inline std::uint64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmHWM:") {
      std::uint64_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes * 1024;
    }
  return 0;
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// As the program, but that a serial Kokkos has one thread where the environment names no number.
inline void use_threads_of_environment() {
  start_host_team(std::max(1, threads_of_environment()));
}

/// The status of body(); what it throws is a line on standard error and status 1.
template <class Body>
int status_of(const char* program, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

/// a := b + 3 c on all threads: what the memory's bandwidth is measured by.
struct Triad {
  Vector<float> a, b, c;

  explicit Triad(std::size_t floats) : a(ones(floats)), b(ones(floats)), c(ones(floats)) {}
  void operator()(const ExecSpace& exec) const {
    const auto to = a, x = b, y = c;
    for_tiles(
        "deltapipe::Benchmark::triad", exec, static_cast<std::int64_t>(a.extent(0)),
        DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
          float* const sum = to.data();
          const float *const p = x.data(), *const q = y.data();
          DELTAPIPE_INDEPENDENT_ITERATIONS
          for (std::int64_t i = first; i < end; ++i) sum[i] = p[i] + 3.0f * q[i];
        });
  }
  /// Read and written, without what a write reads first.
  double bytes() const { return 12.0 * static_cast<double>(a.extent(0)); }

 private:
  static Vector<float> ones(std::size_t floats) {
    const Vector<float> x(uninitialized("deltapipe::Benchmark::triad"), floats);
    Kokkos::deep_copy(x, 1.0f);
    return x;
  }
};

/// A GPT-2 without dropout and the micro-batch that it trains on.
struct Shape {
  Gpt2Config config;
  int samples = 0;  ///< B
  int tokens = 0;   ///< T
  int count = 0;    ///< the last argument: how often

  int rows() const { return samples * tokens; }
};

/// Reads `LAYERS HEADS CHANNELS VOCABULARY POSITIONS SAMPLES TOKENS <count>` from arguments[first]
/// on. Ends the process with a message if they are not that.
inline Shape parse_shape(int argc, char** argv, int first, const char* count) {
  constexpr int kNumbers = 8;
  std::array<int, kNumbers> n{};
  bool good = argc == first + kNumbers;
  for (int i = 0; good && i < kNumbers; ++i) {
    n[static_cast<std::size_t>(i)] = std::atoi(argv[first + i]);
    good = n[static_cast<std::size_t>(i)] > 0;
  }
  if (!good) {
    std::fprintf(stderr,
                 "usage: %s %sLAYERS HEADS CHANNELS VOCABULARY POSITIONS SAMPLES TOKENS %s\n"
                 "with whole numbers from 1\n",
                 argv[0], first > 1 ? "[--profile] " : "", count);
    std::exit(2);
  }
  Shape shape;
  shape.config.n_layer = n[0];
  shape.config.n_head = n[1];
  shape.config.n_embd = n[2];
  shape.config.n_inner = 4 * n[2];
  shape.config.vocabulary_size = n[3];
  shape.config.n_positions = n[4];
  shape.config.embd_pdrop = shape.config.attn_pdrop = shape.config.resid_pdrop = 0;
  shape.samples = n[5];
  shape.tokens = n[6];
  shape.count = n[7];
  return shape;
}

}  // namespace deltapipe::benchmark
