// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/gemv.hpp"

#include <KokkosBlas2_gemv.hpp>

#include "core/base/error.hpp"
#include "core/base/parallel/kernel.hpp"
#include "core/kernels/gemm/host_blas.hpp"

namespace deltapipe {

namespace {

/// Kokkos Kernels calls the vendor's product only for column-major matrices: a row here is a column
/// there.
template <class T>
using Columns =
    Kokkos::View<T**, Kokkos::LayoutLeft, MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T>
using Column =
    Kokkos::View<T*, Kokkos::LayoutLeft, MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

template <class Real>
void gemv_of(const ExecSpace& exec, Transpose op, const MatrixRef<const Real>& a,
             const VectorRef<const Real>& x, Real beta, const VectorRef<Real>& y) {
  DELTAPIPE_ASSERT(a.stride(0) == a.extent(1), "gaps between the rows");
  if constexpr (kTeamExecution) {
    as_kernel("deltapipe::Gemv::product", exec, [&] { host_blas::gemv(op, a, x, beta, y); });
    return;
  }
  const char* const letter = op == Transpose::yes ? "N" : "T";
  const Columns<const Real> columns(a.data(), a.extent(1), a.extent(0));
  const Column<const Real> in(x.data(), x.extent(0));
  const Column<Real> out(y.data(), y.extent(0));
  // Kokkos Kernels 3 accepts no instance; its only backend here runs in order.
  if constexpr (requires { KokkosBlas::gemv(exec, letter, Real(1), columns, in, beta, out); })
    KokkosBlas::gemv(exec, letter, Real(1), columns, in, beta, out);
  else
    KokkosBlas::gemv(letter, Real(1), columns, in, beta, out);
}

}  // namespace

void gemv(const ExecSpace& exec, Transpose op, const MatrixRef<const float>& a,
          const VectorRef<const float>& x, float beta, const VectorRef<float>& y) {
  gemv_of<float>(exec, op, a, x, beta, y);
}

void gemv(const ExecSpace& exec, Transpose op, const MatrixRef<const double>& a,
          const VectorRef<const double>& x, double beta, const VectorRef<double>& y) {
  gemv_of<double>(exec, op, a, x, beta, y);
}

}  // namespace deltapipe
