// SPDX-License-Identifier: BSD-3-Clause
// Files and directories that are replaced as a whole or not at all. New content is written next to
// the target under a unique name, flushed to the disk, and replaces the target in one step. Every
// failure is a UserError that names the target and the system's reason.
//
// A killed process leaves unfinished content under a temporary name; remove_leftovers() finds it by
// the pattern of such names. Symbolic links are never followed: if the target is a link, the link
// itself is replaced, and the file that it points to is unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/files/descriptor.hpp"

namespace deltapipe {

/// Returns the directory that a path names a file of; "." for a name alone.
std::string directory_of(const std::string& path);

/// Creates the directory and its parents. UserError if that fails or `path` is not a directory.
void make_directory(const std::string& path);

/// Throws the UserError of make_directory() if `path` or the nearest existing directory above it
/// shows that it would fail. Creates nothing.
void expect_possible_directory(const std::string& path);

/// Flushes a directory, so that names given in it survive a crash of the machine. Some network file
/// systems refuse this; that is not an error.
void sync_directory(const std::string& directory);

/// Returns a name in `directory` that no file has: DIRECTORY/.deltapipe-partial-<16 hexadecimals>.
/// The caller must create the file exclusively, and try another name if it exists.
std::string temporary_name_in(const std::string& directory);

/// Removes files and directories that killed processes left in `directory` under temporary names.
/// The caller must hold its DirectoryLock. Those that another process creates meanwhile have a
/// separate lock and are not removed.
void remove_leftovers(const std::string& directory);

/// Replaces `path` with `content`. A killed job or a full disk leaves the old file unchanged.
void write_file_atomically(const std::string& path, std::string_view content);
void write_file_atomically(const std::string& path, std::span<const std::byte> content);

/// A new file that replaces `path` on commit(). The destructor removes a file that was not
/// committed.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&&) = default;
  AtomicFile& operator=(AtomicFile&&) = delete;

  const std::string& path() const { return path_; }
  /// Returns the path of the file until commit(), for libraries that open files by name.
  const std::string& temporary_path() const { return temporary_; }
  /// Allocates disk space now, so that a full disk is reported before the work and not after it.
  void reserve(std::uint64_t bytes);
  void append(std::span<const std::byte> bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action, int error);
  void discard() noexcept;
  std::string path_;
  std::string temporary_;
  FileDescriptor file_;
  std::uint64_t end_ = 0;
};

/// Method by which AtomicDirectory::commit() replaces an old directory.
enum class DirectorySwap {
  exchange,  ///< one step (Linux: renameat2); two_renames if the file system cannot do that
  /// The old directory is moved aside, then the new one gets its name. A kill between the two
  /// leaves no target; both directories are complete, and remove_leftovers() restores the old one.
  two_renames
};

/// A new directory, whose owner writes its files under path(). commit() replaces `target` with it.
/// The destructor removes a directory that was not committed.
class AtomicDirectory {
 public:
  /// Returns true if an entry of that name may be removed with the former directory. A former
  /// directory with any other entry, and a former target that is not a directory, are retained
  /// under the first free name of TARGET.former, TARGET.former-2, ...
  using Expendable = std::function<bool(const std::string& name)>;

  AtomicDirectory(const std::string& target, Expendable expendable,
                  DirectorySwap swap = DirectorySwap::exchange);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  /// Returns the directory of the files until commit().
  const std::string& path() const { return temporary_; }
  /// Returns the name under which the former target was retained; empty if it was removed. If the
  /// target cannot be replaced (a mount point), the new directory is retained as TARGET.new and a
  /// UserError is thrown.
  std::string commit();
  /// Returns true after a commit() that failed after the target was replaced.
  bool is_in_place() const { return is_in_place_; }

 private:
  std::string move_to_target();
  std::string swap_with_target();
  void sync_place();
  std::string target_;
  std::string temporary_;
  Expendable expendable_;
  DirectorySwap swap_;
  bool is_in_place_ = false;
};

}  // namespace deltapipe
