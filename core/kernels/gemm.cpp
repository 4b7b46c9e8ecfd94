#include "core/kernels/gemm.hpp"

#include <KokkosBlas3_gemm.hpp>

#ifdef DELTAPIPE_HAVE_OPENBLAS
extern "C" void openblas_set_num_threads(int threads);
#endif

namespace deltapipe {

namespace {

const char* letter(Transpose op) {
  return op == Transpose::yes ? "T" : "N";
}

template <class Real>
void gemm_of(const ExecSpace& exec, Transpose op_a, Transpose op_b, Real alpha,
             const MatrixRef<const Real>& a, const MatrixRef<const Real>& b, Real beta,
             const MatrixRef<Real>& c) {
#if KOKKOS_VERSION >= 40000
  KokkosBlas::gemm(exec, letter(op_a), letter(op_b), alpha, a, b, beta, c);
#else
  (void)exec;  // Kokkos Kernels 3.4 takes no instance; its only backend here runs in order
  KokkosBlas::gemm(letter(op_a), letter(op_b), alpha, a, b, beta, c);
#endif
}

}  // namespace

void gemm(const ExecSpace& exec, Transpose op_a, Transpose op_b, float alpha,
          const MatrixRef<const float>& a, const MatrixRef<const float>& b, float beta,
          const MatrixRef<float>& c) {
  gemm_of<float>(exec, op_a, op_b, alpha, a, b, beta, c);
}

void gemm(const ExecSpace& exec, Transpose op_a, Transpose op_b, double alpha,
          const MatrixRef<const double>& a, const MatrixRef<const double>& b, double beta,
          const MatrixRef<double>& c) {
  gemm_of<double>(exec, op_a, op_b, alpha, a, b, beta, c);
}

void use_single_threaded_blas() {
#ifdef DELTAPIPE_HAVE_OPENBLAS
  openblas_set_num_threads(1);
#endif
}

}  // namespace deltapipe
