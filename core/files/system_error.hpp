// Failures of system calls on files as messages.
#pragma once

#include <string>

namespace deltapipe {

/// Throws the UserError of a failed system call: `action` and the system's reason for `error` (an
/// errno), the file and, where there is one, the remedy.
[[noreturn]] void throw_system_error(const std::string& action, const std::string& path, int error);

}  // namespace deltapipe
