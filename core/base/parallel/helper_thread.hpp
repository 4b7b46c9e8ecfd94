// SPDX-License-Identifier: BSD-3-Clause
// Threads that do not compute: communication, files.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace deltapipe {

/// Remembers the cores that the process may use; only the first call does. The call must precede
/// the loading of OpenMP's library: with OMP_PROC_BIND it binds the first thread to one core, and
/// every later thread inherits this. Allocates no memory.
void remember_process_cores();

/// Remembers the cores before the constructors of all libraries run. Place it in the main file of a
/// program, outside of functions.
#if defined(__linux__)
#define DELTAPIPE_REMEMBER_CORES_FIRST()                                             \
  [[gnu::section(".preinit_array"), gnu::used]] static void (*const cores_first)() = \
      deltapipe::remember_process_cores
#else
#define DELTAPIPE_REMEMBER_CORES_FIRST() static_assert(true)
#endif

/// Lets the calling thread use the remembered cores again. Does nothing if none are remembered or
/// the system has no call for it.
void use_process_cores() noexcept;

/// During its lifetime the calling thread may use the remembered cores even if OpenMP has bound it
/// to fewer. For code that starts threads, which inherit the cores.
class UnboundThread {
 public:
  UnboundThread();
  ~UnboundThread();
  UnboundThread(const UnboundThread&) = delete;
  UnboundThread& operator=(const UnboundThread&) = delete;

 private:
  std::vector<int> bound_to_;  ///< empty: it was not bound
};

/// Returns the number of the process's cores, at least 1.
int process_core_count();

/// Returns the numbers of the process's cores, in ascending order; empty if they are unknown.
std::vector<int> process_cores();

/// Starts `run` on a thread that may use all of the process's cores. `purpose` names it in the
/// message. Throws UserError if the system cannot start another thread.
std::thread start_helper_thread(const std::string& purpose, std::function<void()> run);

}  // namespace deltapipe
