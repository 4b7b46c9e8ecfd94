// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/sgemm_library.hpp"

#include <cstdlib>

#include "core/base/error.hpp"
#include "core/kernels/gemm/onednn_gemm.hpp"

namespace deltapipe {

namespace {

constexpr const char* kVariable = "DELTAPIPE_SGEMM";
constexpr SgemmLibrary kLibraries[] = {SgemmLibrary::tiles, SgemmLibrary::blas,
                                       SgemmLibrary::onednn};

// With AVX2 tiles take as long as a BLAS does.
#if defined(__OPTIMIZE__) && defined(__AVX512F__) && defined(__FMA__)
constexpr SgemmLibrary kDefault = SgemmLibrary::tiles;
#else
constexpr SgemmLibrary kDefault = SgemmLibrary::blas;
#endif

SgemmLibrary choose() {
  const SgemmLibrary chosen = sgemm_asked_for().value_or(kDefault);
  if (chosen == SgemmLibrary::onednn)
    if (const std::string obstacle = onednn::load_obstacle(); !obstacle.empty())
      throw UserError({.what = obstacle, .remedy = std::string("unset the variable ") + kVariable});
  return chosen;
}

}  // namespace

std::string name_of(SgemmLibrary library) {
  switch (library) {
    case SgemmLibrary::tiles:
      return "tiles";
    case SgemmLibrary::blas:
      return "blas";
    case SgemmLibrary::onednn:
      return "onednn";
  }
  return "";
}

std::optional<SgemmLibrary> sgemm_asked_for() {
  const char* const text = std::getenv(kVariable);
  const std::string asked = text != nullptr ? text : "";
  if (asked.empty()) return std::nullopt;
  for (const SgemmLibrary library : kLibraries)
    if (asked == name_of(library)) return library;
  throw UserError({.what = std::string("unknown library in the variable ") + kVariable,
                   .value = asked,
                   .remedy = "set it to tiles, blas or onednn"});
}

SgemmLibrary sgemm_library() {
  static const SgemmLibrary chosen = choose();
  return chosen;
}

}  // namespace deltapipe
