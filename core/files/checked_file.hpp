// Files that are either whole or absent: written under a temporary name, synced, then renamed.
// Every failure is a UserError that names the file and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace deltapipe {

/// Replaces `path` with `content`. A killed job or a full disk leaves the old file as it was.
void write_file_atomically(const std::string& path, std::string_view content);
void write_file_atomically(const std::string& path, std::span<const std::byte> content);

/// Makes the directory and its parents; UserError when that fails or `path` is another thing.
void make_directory(const std::string& path);

/// A file under construction: PATH.partial until commit() renames it to PATH. The destructor
/// removes what was not committed. Not for two processes at once.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  const std::string& path() const { return path_; }
  /// Takes the disk space now, so that a full disk shows before the work and not after it.
  void reserve(std::uint64_t bytes);
  void append(std::span<const std::byte> bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action, int error);
  void discard() noexcept;
  std::string path_;
  std::string target_;
  std::string temporary_;
  int descriptor_ = -1;
  std::uint64_t end_ = 0;
};

}  // namespace deltapipe
