// SPDX-License-Identifier: BSD-3-Clause
// Untrusted text files: UTF-8, as a whole or line by line. A mistake is a UserError with file, line
// and column.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/error.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe {

/// Throws the UserError of a mistake in a file, or in a line of it, which counts from 1.
[[noreturn]] inline void refuse_line(const std::string& file, const std::string& what,
                                     const std::string& value, const std::string& remedy,
                                     std::size_t line = 0) {
  throw UserError({.what = what, .file = file, .line = line, .value = value, .remedy = remedy});
}

/// Refuses a file that contains neither text nor tokens, with a remedy.
void expect_no_other_kind(const ReadOnlyFile& file);

/// Calls take(block) for a whole file of UTF-8 text, block by block; an empty file is an error.
void read_text_blocks(const std::string& name, const std::function<void(std::string_view)>& take);

/// Calls take(line, number) for every line of a file, without its end; numbers count from 1. For
/// lines that are not text it calls `refuse` with a UserError. If `refuse` returns, the line is
/// skipped.
void read_text_lines(const std::string& name,
                     const std::function<void(const std::string& line, std::size_t number)>& take,
                     const std::function<void(const UserError&)>& refuse);

}  // namespace deltapipe
