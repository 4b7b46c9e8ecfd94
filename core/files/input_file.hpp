// SPDX-License-Identifier: BSD-3-Clause
// Untrusted files. Only regular files are opened, and opening never waits. Reading covers the
// content that the file had when it was opened, even if it grows. Every failure is a UserError that
// names the file and the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/files/descriptor.hpp"

namespace deltapipe {

/// A regular file that is open for reading at offsets. UserError for directories, named pipes,
/// sockets and devices.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// Returns the bytes that the file had when it was opened.
  std::uint64_t size() const { return size_; }
  /// Fills all of `bytes`; UserError if the file is too short.
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  /// Calls take(block) for all size() bytes in order, a few MiB at a time.
  void for_each_block(const std::function<void(std::string_view)>& take) const;

 private:
  std::string path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

/// Largest sizes of files that are read as a whole, by kind.
namespace file_limit {
inline constexpr std::uint64_t deck = std::uint64_t{1} << 20;
inline constexpr std::uint64_t model_config = std::uint64_t{16} << 20;
inline constexpr std::uint64_t weights_index = 100'000'000;
inline constexpr std::uint64_t tokenizer = std::uint64_t{256} << 20;
inline constexpr std::uint64_t jsonl_line = std::uint64_t{256} << 20;
}  // namespace file_limit

/// Returns the whole file; UserError if it cannot be opened as a ReadOnlyFile or exceeds max_bytes.
std::string read_text_file(const std::string& path, std::uint64_t max_bytes);

}  // namespace deltapipe
