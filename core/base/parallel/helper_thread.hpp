// SPDX-License-Identifier: BSD-3-Clause
// Threads beside those that compute: communication, files.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace deltapipe {

/// Remembers the cores that the process may use; the first call does. It must come before OpenMP's
/// library is loaded, which with OMP_PROC_BIND binds the first thread to one core, which every
/// later thread inherits. Takes no memory.
void remember_process_cores();

/// In a program's main file, outside of functions: remembers them before the constructors of all
/// libraries.
#if defined(__linux__)
#define DELTAPIPE_REMEMBER_CORES_FIRST()                                             \
  [[gnu::section(".preinit_array"), gnu::used]] static void (*const cores_first)() = \
      deltapipe::remember_process_cores
#else
#define DELTAPIPE_REMEMBER_CORES_FIRST() static_assert(true)
#endif

/// Lets the calling thread use the remembered cores again; nothing without them, or where the
/// system has no such call.
void use_process_cores() noexcept;

/// As long as it lives the calling thread may use the remembered cores, where OpenMP has bound it
/// to fewer: for what starts threads that inherit its cores.
class UnboundThread {
 public:
  UnboundThread();
  ~UnboundThread();
  UnboundThread(const UnboundThread&) = delete;
  UnboundThread& operator=(const UnboundThread&) = delete;

 private:
  std::vector<int> bound_to_;  ///< empty: it was not bound
};

/// How many they are, at least 1.
int process_core_count();

/// Their numbers, in ascending order; empty where the system does not tell.
std::vector<int> process_cores();

/// Starts `run` on a thread that may use all of the process's cores. `purpose` names it in the
/// message. Throws UserError when the system has no thread left.
std::thread start_helper_thread(const std::string& purpose, std::function<void()> run);

}  // namespace deltapipe
