// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/blas.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/kernels/gemm/gemm.hpp"

#ifdef DELTAPIPE_HAVE_OPENBLAS
extern "C" void openblas_set_num_threads(int threads);
extern "C" int openblas_get_num_threads();
extern "C" char* openblas_get_corename();
// The addresses are null if the version of OpenBLAS lacks them.
extern "C" [[gnu::weak]] void* blas_memory_alloc(int);
extern "C" [[gnu::weak]] void blas_memory_free(void* buffer);
#endif

namespace deltapipe {

#ifdef DELTAPIPE_HAVE_OPENBLAS
namespace {

/// Bytes that OpenBLAS maps for each of its threads: its largest setting (BUFFER_SIZE in
/// common_x86_64.h and others) and a reserve.
constexpr std::size_t kBlasBufferBytes = (std::size_t{128} + 4) << 20;

/// Returns the number of threads that OpenBLAS has started in addition to the caller's. Each
/// allocates its own buffer when it starts to work.
int own_threads() {
  static const int threads = openblas_get_num_threads() - 1;
  return threads;
}

/// Computes one product with OpenBLAS. Products of fp32 may use another library.
template <class Real>
void multiply_once() {
  // Smaller products do not need OpenBLAS's buffer on some processors.
  constexpr int n = 128;
  const Matrix<Real> a("deltapipe::Blas::firstProduct", n, n);
  const Matrix<Real> c("deltapipe::Blas::firstProduct", n, n);
  const ExecSpace exec;
  gemm(exec, Transpose::no, Transpose::no, Real(1), a, a, Real(0), c);
  exec.fence();
}

bool address_space_has(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, bytes);
  return true;
}

}  // namespace

void reserve_blas_memory(int threads) {
  const int buffers_needed = threads + own_threads();
  const std::size_t bytes = kBlasBufferBytes * static_cast<std::size_t>(buffers_needed);
  if (!address_space_has(bytes))
    throw UserError({.what = "not enough address space for OpenBLAS's work memory",
                     .value = fmt::format("less than {} MiB left", bytes >> 20),
                     .remedy = "raise the limit (ulimit -v), or set OMP_NUM_THREADS=1"});
  multiply_once<double>();
  multiply_once<float>();
  // A caller holds a buffer while it multiplies: one per concurrent caller.
  if (blas_memory_alloc == nullptr || blas_memory_free == nullptr) return;
  std::vector<void*> buffers;
  constexpr int kMostReserved = 128;  // its table has no more than twice as many
  for (int i = 0; i < std::min(buffers_needed, kMostReserved); ++i)
    if (void* const buffer = blas_memory_alloc(0)) buffers.push_back(buffer);
  for (void* const buffer : buffers) blas_memory_free(buffer);
}
#else
void reserve_blas_memory(int) {}
#endif

void use_single_threaded_blas() {
#ifdef DELTAPIPE_HAVE_OPENBLAS
  own_threads();  // before it is set to use one
  openblas_set_num_threads(1);
#endif
}

void start_host_team(int threads) {
  if (!kTeamExecution) return;
  use_single_threaded_blas();
  HostTeam::instance().resize(kOpenMpExecution ? ExecSpace().concurrency() : threads);
}

std::string better_blas_kernels() {
#if defined(DELTAPIPE_HAVE_OPENBLAS) && defined(__x86_64__)
  constexpr std::array kWithoutAvx = {"Prescott", "Core2",   "Penryn",    "Dunnington",
                                      "Nehalem",  "Atom",    "Nano",      "Katmai",
                                      "Athlon",   "Opteron", "Barcelona", "Bobcat",
                                      "Generic",  "generic", "Northwood", "Opteron_SSE3"};
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr) return "";
  const std::string chosen = openblas_get_corename();
  if (std::find(kWithoutAvx.begin(), kWithoutAvx.end(), chosen) == kWithoutAvx.end()) return "";
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512cd"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return "";
}

namespace {

/// Returns true if the environment has changed.
bool choose_blas_kernels() {
  const std::string kernels = better_blas_kernels();
  return !kernels.empty() && setenv("OPENBLAS_CORETYPE", kernels.c_str(), 0) == 0;
}

/// If address space is limited, sets the environment so that OpenBLAS starts no threads when it is
/// loaded, and returns true if it has changed. With too little address space these threads request
/// their buffers forever; MPI's start, which forks, and the end of the program wait for them.
bool spare_blas_threads() {
#ifdef DELTAPIPE_HAVE_OPENBLAS
  constexpr const char* kVariable = "GOTO_NUM_THREADS";  // for OpenBLAS alone
  rlimit space{}, data{};
  const bool is_limited = getrlimit(RLIMIT_AS, &space) == 0 && getrlimit(RLIMIT_DATA, &data) == 0 &&
                          std::min(space.rlim_cur, data.rlim_cur) != RLIM_INFINITY;
  const char* const before = std::getenv(kVariable);
  const bool is_told = before != nullptr && std::string(before) == "1" &&
                       std::getenv("OPENBLAS_NUM_THREADS") == nullptr;
  if (!is_limited || own_threads() < 1 || is_told) return false;
  // It has precedence over kVariable and sets the number of threads of kernels.
  if (const char* const text = std::getenv("OPENBLAS_NUM_THREADS")) {
    const int threads = std::atoi(text);
    const char* const first = std::getenv("OMP_NUM_THREADS");
    if (threads > 0 && (first == nullptr || *first == '\0'))
      setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);
    unsetenv("OPENBLAS_NUM_THREADS");
  }
  return setenv(kVariable, "1", 1) == 0;
#else
  return false;
#endif
}

bool shorten_openmp_waits() {
  if (!kOpenMpExecution || std::getenv("OMP_WAIT_POLICY") != nullptr ||
      std::getenv("GOMP_SPINCOUNT") != nullptr)
    return false;
  return setenv("OMP_WAIT_POLICY", "passive", 0) == 0 && setenv("GOMP_SPINCOUNT", "1000", 0) == 0;
}

}  // namespace

void restart_with_better_settings(char** argv) {
  const bool has_kernels = choose_blas_kernels();
  const bool has_waits = shorten_openmp_waits();
  const bool has_space = spare_blas_threads();
  if (!has_kernels && !has_waits && !has_space) return;
  use_process_cores();  // OpenMP may have bound this thread, and the binding would be inherited
  execv("/proc/self/exe", argv);  // returns without /proc; the program then runs as it was started
}

std::string blas_configuration() {
#ifdef DELTAPIPE_HAVE_OPENBLAS
  const int threads = openblas_get_num_threads();
  std::string text = fmt::format("OpenBLAS {}{}", openblas_get_corename(),
                                 threads > 1 ? fmt::format(", {} threads", threads) : "");
#else
  std::string text = "BLAS";
#endif
  return text;
}

}  // namespace deltapipe
