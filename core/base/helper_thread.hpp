// SPDX-License-Identifier: BSD-3-Clause
// Threads beside those that compute: communication, files.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace deltapipe {

/// Remembers the cores that the process may use. To be called before OpenMP starts: with
/// OMP_PROC_BIND it binds the first thread to one core, which every later thread inherits.
void remember_process_cores();

/// Lets the calling thread use the remembered cores again; nothing without them, or where the
/// system has no such call.
void use_process_cores() noexcept;

/// How many they are, at least 1.
int process_core_count();

/// Their numbers, in ascending order; empty where the system does not tell.
std::vector<int> process_cores();

/// How many cores' time the process's control group (a container) may take; 0: no limit is known.
double cpu_quota();

/// Starts `run` on a thread that may use all of the process's cores. `purpose` names it in the
/// message. Throws UserError when the system has no thread left.
std::thread start_helper_thread(const std::string& purpose, std::function<void()> run);

}  // namespace deltapipe
