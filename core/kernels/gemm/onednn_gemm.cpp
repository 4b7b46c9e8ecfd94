// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/onednn_gemm.hpp"

#include <string>

#include "core/base/error.hpp"
#include "core/base/parallel/host_team.hpp"

#ifdef DELTAPIPE_ONEDNN_MODULE

#include <dlfcn.h>
#include <sched.h>

#include <filesystem>
#include <system_error>

#include "core/kernels/gemm/host_blas.hpp"
#include "core/kernels/gemm/onednn_module.hpp"

namespace deltapipe::onednn {

namespace {

/// The loaded library.
struct Module {
  decltype(&deltapipe_onednn_version) version = nullptr;
  decltype(&deltapipe_onednn_has_bf16) has_bf16 = nullptr;
  decltype(&deltapipe_onednn_multiply) multiply = nullptr;
  // Null: oneDNN was built without OpenMP.
  int (*most_threads)() = nullptr;
  void (*set_threads)(int) = nullptr;
  std::string problem;  ///< reason why it could not be loaded

  bool is_there() const { return version != nullptr && has_bf16 != nullptr && multiply != nullptr; }
};

/// Restores the cores of the calling thread: a library may bind the thread that loads it.
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

/// Returns the path of the module, relative to the program, in the build and when installed.
std::string module_path() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "" : (program.parent_path() / DELTAPIPE_ONEDNN_MODULE).string();
}

Module load() {
  const KeptAffinity affinity;
  Module made;
  void* const library = dlopen(module_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    made.problem = error != nullptr ? error : module_path() + ": no reason given";
    return made;
  }
  find(library, "deltapipe_onednn_version", made.version);
  find(library, "deltapipe_onednn_has_bf16", made.has_bf16);
  find(library, "deltapipe_onednn_multiply", made.multiply);
  find(library, "omp_get_max_threads", made.most_threads);
  find(library, "omp_set_num_threads", made.set_threads);
  if (!made.is_there()) made.problem = module_path() + " is another program's";
  return made;
}

const Module& module() {
  static const Module loaded = load();
  return loaded;
}

/// Sets oneDNN's threads, which are those of the calling thread's OpenMP, to one during its
/// lifetime, because a HostTeam divides products.
class OneThread {
 public:
  OneThread() : before_(is_settable() ? module().most_threads() : 1) {
    if (before_ > 1) module().set_threads(1);
  }
  ~OneThread() {
    if (before_ > 1) module().set_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  static bool is_settable() {
    return kTeamExecution && module().most_threads != nullptr && module().set_threads != nullptr;
  }

  int before_;
};

void multiply(const DeltapipeOnednnProduct& product, const Bf16* a, const Bf16* b, float* c) {
  const char* const problem = module().multiply(&product, a, b, c);
  if (problem == nullptr) return;
  throw UserError({.what = "oneDNN cannot multiply matrices of " + std::to_string(product.M) +
                           " x " + std::to_string(product.K) + " and " + std::to_string(product.K) +
                           " x " + std::to_string(product.N) + " in bf16",
                   .value = problem,
                   .remedy = "set training.precision = \"fp32\"",
                   .keys = {"training.precision"}});
}

}  // namespace

bool has_bf16_instructions() {
  return module().is_there() && module().has_bf16() != 0;
}

std::string obstacle() {
  if (!module().is_there()) return "oneDNN cannot be loaded: " + module().problem;
  if (module().has_bf16() == 0)
    return "the processor has no instructions for bf16 (AVX-512 BF16 or AMX)";
  return "";
}

std::string version() {
  return module().is_there() ? std::string("oneDNN ") + module().version() : "";
}

void gemm_bf16(Transpose op_a, Transpose op_b, const MatrixRef<const Bf16>& a,
               const MatrixRef<const Bf16>& b, float beta, const MatrixRef<float>& c) {
  DELTAPIPE_ASSERT(beta == 0 || beta == 1, std::to_string(beta));
  const bool turns_a = op_a == Transpose::yes, turns_b = op_b == Transpose::yes;
  const int K = a.extent_int(turns_a ? 0 : 1);
  const auto row_of = [](const auto& matrix) { return static_cast<int>(matrix.stride(0)); };
  const int row_a = row_of(a), row_b = row_of(b), row_c = row_of(c);
  const host_blas::Slabs slabs(c.extent_int(0), c.extent_int(1), K);
  HostTeam::instance().run(slabs.count(), [&](int i) {
    const host_blas::Slab slab = slabs[i];
    if (slab.rows == 0 || slab.columns == 0) return;
    const std::size_t row = slab.row, column = slab.column;
    const OneThread one;
    multiply({slab.rows, slab.columns, K, row_a, row_b, row_c, turns_a, turns_b, beta == 1},
             a.data() + (turns_a ? row : row * row_a),
             b.data() + (turns_b ? column * row_b : column), c.data() + row * row_c + column);
  });
}

}  // namespace deltapipe::onednn

#else

namespace deltapipe::onednn {

bool has_bf16_instructions() {
  return false;
}

std::string obstacle() {
  return "deltapipe was built without oneDNN";
}

std::string version() {
  return "";
}

void gemm_bf16(Transpose, Transpose, const MatrixRef<const Bf16>&, const MatrixRef<const Bf16>&,
               float, const MatrixRef<float>&) {
  DELTAPIPE_ASSERT(false, "built without oneDNN");
}

}  // namespace deltapipe::onednn

#endif
