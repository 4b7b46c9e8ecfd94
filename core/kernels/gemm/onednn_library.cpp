// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/onednn_library.hpp"

#ifdef DELTAPIPE_ONEDNN_MODULE
#include <dlfcn.h>
#include <sched.h>

#include <filesystem>
#include <system_error>
#endif

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe::onednn {

namespace {

#ifdef DELTAPIPE_ONEDNN_MODULE
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
  find(library, "deltapipe_onednn_convolve", made.convolve);
  find(library, "omp_get_max_threads", made.most_threads);
  find(library, "omp_set_num_threads", made.set_threads);
  if (!made.is_there()) made.problem = module_path() + " is another program's";
  return made;
}
#else
Module load() {
  Module none;
  none.problem = "deltapipe was built without it";
  return none;
}
#endif

}  // namespace

const Module& module() {
  static const Module loaded = load();
  return loaded;
}

OneThread::OneThread()
    : before_(kTeamExecution && module().most_threads != nullptr && module().set_threads != nullptr
                  ? module().most_threads()
                  : 1) {
  if (before_ > 1) module().set_threads(1);
}

OneThread::~OneThread() {
  if (before_ > 1) module().set_threads(before_);
}

}  // namespace deltapipe::onednn
