// SPDX-License-Identifier: BSD-3-Clause
// What multiplies matrices of fp32 on a processor.
#pragma once

#include <optional>
#include <string>

namespace deltapipe {

enum class SgemmLibrary {
  tiles,  ///< deltapipe's own (core/kernels/gemm/host_sgemm.hpp)
  blas,
  onednn,
};

/// "tiles", "blas", "onednn".
std::string name_of(SgemmLibrary library);

/// What the variable DELTAPIPE_SGEMM asks for, which this process may be unable to do; nothing: the
/// default. Throws UserError where it is no library's name.
std::optional<SgemmLibrary> sgemm_asked_for();

/// What is asked for or, by default, tiles where the compiler could use AVX-512, the BLAS
/// elsewhere. Answered once for the process. UserError where the variable asks for what is not
/// there.
SgemmLibrary sgemm_library();

}  // namespace deltapipe
