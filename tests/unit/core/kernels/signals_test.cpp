// SPDX-License-Identifier: BSD-3-Clause
// Libraries' kernels may use the stack in ways that a signal's handler does not expect.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <thread>

#include "core/kernels/gemm/bf16_gemm.hpp"
#include "core/kernels/gemm/gemm.hpp"
#include "support/device_values.hpp"

using namespace deltapipe;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

std::atomic<int> signals{0};

void count_signal(int) {
  ++signals;
}

/// As long as it lives the thread that made it gets a signal every 50 us.
class Signals {
 public:
  Signals() {
    struct sigaction action {};
    action.sa_handler = count_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR2, &action, &before_);
    sender_ = std::thread([this, receiver = pthread_self()] {
      while (!ends_) {
        pthread_kill(receiver, SIGUSR2);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  ~Signals() {
    ends_ = true;
    sender_.join();
    sigaction(SIGUSR2, &before_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  struct sigaction before_ {};
  std::atomic<bool> ends_{false};
  std::thread sender_;
};

/// Product of matrices of ones, so that each sum is K.
constexpr int M = 64, N = 256, K = 256;

template <class Factor, class Product>
bool is_right(Factor one, const Product& product) {
  const auto a = to_device(std::vector<Factor>(M * K, one));
  const auto b = to_device(std::vector<Factor>(K * N, one));
  const auto c = to_device(std::vector<float>(M * N));
  const MatrixRef<const Factor> a_MK(a.data(), M, K), b_KN(b.data(), K, N), b_NK(b.data(), N, K);
  const MatrixRef<float> c_MN(c.data(), M, N);
  bool right = true;
  for (int i = 0; i < 200; ++i) {
    const bool turns = i % 2 == 1;
    product(turns ? Transpose::yes : Transpose::no, a_MK, turns ? b_NK : b_KN, c_MN);
    const std::vector<float> made = to_host(c);
    right = right && std::count(made.begin(), made.end(), float{K}) == M * N;
  }
  return right;
}

}  // namespace

TEST_CASE("Signals during products leave results and memory alone", "[kernels][gemm]") {
  const ExecSpace exec;
  signals = 0;
  {
    const Signals coming;
    CHECK(is_right(1.0f, [&](Transpose op, const auto& a, const auto& b, const auto& c) {
      gemm(exec, Transpose::no, op, 1.0f, a, b, 0.0f, c);
    }));
    if (has_fast_bf16_gemm()) {
      const Bf16Gemm gemm_bf16{ViewAllocator()};
      CHECK(
          is_right(bfloat_of(1.0f), [&](Transpose op, const auto& a, const auto& b, const auto& c) {
            gemm_bf16(exec, Transpose::no, op, a, b, 0.0f, c);
          }));
    }
  }
  CHECK(signals > 0);
}
