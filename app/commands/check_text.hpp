// SPDX-License-Identifier: BSD-3-Clause
// Lines of the command `check`.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "app/output/progress_display.hpp"

namespace deltapipe {

inline std::string bytes_text(std::uint64_t bytes) {
  return with_prefix(static_cast<double>(bytes)) + "B";
}

inline void print_warning_lines(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) std::printf("# warning: %s\n", warning.c_str());
}

}  // namespace deltapipe
