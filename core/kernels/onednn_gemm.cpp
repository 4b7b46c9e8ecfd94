// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/onednn_gemm.hpp"

#include "core/base/error.hpp"

#ifdef DELTAPIPE_ONEDNN_MODULE

#include <dlfcn.h>
#include <sched.h>

#include <filesystem>
#include <system_error>

#include "core/kernels/onednn_module.hpp"

namespace deltapipe::onednn {

namespace {

/// The loaded library.
struct Module {
  decltype(&deltapipe_onednn_has_bf16) has_bf16 = nullptr;
  decltype(&deltapipe_onednn_multiply) multiply = nullptr;
  void (*set_threads)(int) = nullptr;  ///< null: its oneDNN has no OpenMP

  bool is_there() const { return has_bf16 != nullptr && multiply != nullptr; }
};

int wanted_threads = 0;  // 0: as many as it likes

/// What is loaded may bind the thread that loads it.
class KeptAffinity {
 public:
  KeptAffinity() : is_known_(sched_getaffinity(0, sizeof set_, &set_) == 0) {}
  ~KeptAffinity() {
    if (is_known_) sched_setaffinity(0, sizeof set_, &set_);
  }
  KeptAffinity(const KeptAffinity&) = delete;
  KeptAffinity& operator=(const KeptAffinity&) = delete;

 private:
  cpu_set_t set_{};
  bool is_known_;
};

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

/// Beside the program, in the build and where it is installed.
std::string module_path() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "" : (program.parent_path() / DELTAPIPE_ONEDNN_MODULE).string();
}

Module load() {
  const KeptAffinity affinity;
  Module made;
  void* const library = dlopen(module_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return made;
  find(library, "deltapipe_onednn_has_bf16", made.has_bf16);
  find(library, "deltapipe_onednn_multiply", made.multiply);
  find(library, "omp_set_num_threads", made.set_threads);
  if (wanted_threads > 0 && made.set_threads != nullptr) made.set_threads(wanted_threads);
  return made;
}

const Module& module() {
  static const Module loaded = load();
  return loaded;
}

}  // namespace

bool has_bf16_instructions() {
  return module().is_there() && module().has_bf16() != 0;
}

void use_threads(int threads) {
  wanted_threads = threads;
}

void gemm_bf16(Transpose op_a, Transpose op_b, const ProductShape& shape, const Bf16* a,
               const Bf16* b, float beta, float* c) {
  DELTAPIPE_ASSERT(beta == 0 || beta == 1, std::to_string(beta));
  const DeltapipeOnednnProduct product{
      shape.M, shape.N, shape.K, op_a == Transpose::yes, op_b == Transpose::yes, beta == 1};
  const char* const problem = module().multiply(&product, a, b, c);
  if (problem != nullptr)
    throw UserError({.what = "oneDNN cannot multiply matrices of " + std::to_string(shape.M) +
                             " x " + std::to_string(shape.K) + " and " + std::to_string(shape.K) +
                             " x " + std::to_string(shape.N) + " in bf16",
                     .value = problem,
                     .remedy = "set training.precision = \"fp32\"",
                     .keys = {"training.precision"}});
}

}  // namespace deltapipe::onednn

#else

namespace deltapipe::onednn {

bool has_bf16_instructions() {
  return false;
}

void use_threads(int) {}

void gemm_bf16(Transpose, Transpose, const ProductShape&, const Bf16*, const Bf16*, float, float*) {
  DELTAPIPE_ASSERT(false, "built without oneDNN");
}

}  // namespace deltapipe::onednn

#endif
