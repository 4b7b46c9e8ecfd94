// SPDX-License-Identifier: BSD-3-Clause
#include "support/kernel_labels.hpp"

#include <catch2/catch.hpp>

using deltapipe::test::is_proper_label;

TEST_CASE("labels name deltapipe, the component and what it does") {
  CHECK(is_proper_label("deltapipe::LayerNorm::forward"));
  CHECK(is_proper_label("deltapipe::Gpt2::h.0.attn.c_attn.weight"));
  CHECK(is_proper_label("Kokkos::View::initialization [deltapipe::Cache::record]"));
  CHECK(is_proper_label("KokkosBlas::gemm[TPL_BLAS,float]"));
  CHECK_FALSE(is_proper_label(""));
  CHECK_FALSE(is_proper_label("deltapipe::forward"));
  CHECK_FALSE(is_proper_label("weights"));
  CHECK_FALSE(is_proper_label("N9deltapipe12_GLOBAL__N_17forwardEv"));
  CHECK_FALSE(is_proper_label("deltapipe::forward(int)::{lambda(int)#1}::operator() const"));
}
