// SPDX-License-Identifier: BSD-3-Clause
// Failed system calls as errors that a user can correct.
#pragma once

#include <string>

namespace deltapipe {

/// Returns the reason of `error` (errno). That of ELOOP is also true of O_NOFOLLOW, which refuses
/// every link.
std::string system_message(int error);

/// Throws a UserError: "PATH: ACTION: REASON; REMEDY". The reason is that of `error` (errno).
[[noreturn]] void throw_system_error(const std::string& action, const std::string& path, int error);

/// Returns true if the reason is a full disk, a quota or a limit on the size of files.
bool is_no_space(int error);

}  // namespace deltapipe
