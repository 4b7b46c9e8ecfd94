// SPDX-License-Identifier: BSD-3-Clause
// Files and directories that are replaced whole or not at all. What is new is written beside the
// target under a name that nobody else uses, brought to the disk, and takes the target's place in
// one step. Every failure is a UserError that names the target and the system's reason.
//
// A killed process leaves what it was writing under a temporary name; remove_leftovers() finds it
// by the pattern of such names. Symbolic links are never followed: a target that is a link is
// replaced itself, and what it points to stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace deltapipe {

/// Makes the directory and its parents; UserError when that fails or `path` is another thing.
void make_directory(const std::string& path);

/// UserError as of make_directory() where the nearest directory above that there is, or `path`
/// itself, says that it would fail. Makes nothing.
void expect_possible_directory(const std::string& path);

/// Names that were given in a directory survive a crash of the machine once it has been synced.
/// Some network file systems refuse that, which is no error.
void sync_directory(const std::string& directory);

/// A name in `directory` that belongs to no file: DIRECTORY/.deltapipe-partial-<16 hexadecimals>.
/// Create it exclusively, and try another name should it exist after all.
std::string temporary_name_in(const std::string& directory);

/// Removes what killed processes left in `directory` under temporary names. The caller holds its
/// DirectoryLock; what another process makes there meanwhile has a lock of its own, and stays.
void remove_leftovers(const std::string& directory);

/// Replaces `path` with `content`. A killed job or a full disk leaves the old file as it was.
void write_file_atomically(const std::string& path, std::string_view content);
void write_file_atomically(const std::string& path, std::span<const std::byte> content);

/// A file under construction that commit() puts in the place of `path`. The destructor removes what
/// was not committed.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  const std::string& path() const { return path_; }
  /// Path of the file until commit(), for libraries that open files by name.
  const std::string& temporary_path() const { return temporary_; }
  /// Takes the disk space now, so that a full disk shows before the work and not after it.
  void reserve(std::uint64_t bytes);
  void append(std::span<const std::byte> bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action, int error);
  void discard() noexcept;
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  std::uint64_t end_ = 0;
};

/// How AtomicDirectory::commit() puts a new directory in the place of an old one.
enum class DirectorySwap {
  exchange,  ///< one step (Linux: renameat2); two_renames where the file system cannot do that
  /// The old directory steps aside, the new one takes its place. A kill between the two leaves no
  /// target; both directories are whole, and remove_leftovers() puts the old one back.
  two_renames
};

/// A directory under construction: who has one writes its files under path(). commit() puts it in
/// the place of `target`, the destructor removes what was not committed.
class AtomicDirectory {
 public:
  /// Tells by the name whether an entry of the former directory may go with it. A former directory
  /// with any other entry, and a former target that is no directory, are kept beside the new one
  /// under the first free name of TARGET.former, TARGET.former-2, ...
  using Expendable = std::function<bool(const std::string& name)>;

  AtomicDirectory(const std::string& target, Expendable expendable,
                  DirectorySwap swap = DirectorySwap::exchange);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  /// Directory of the files until commit().
  const std::string& path() const { return temporary_; }
  /// Returns the name under which the former target was kept, empty when it is gone. When the
  /// target cannot be replaced (a mount point), the new directory is kept as TARGET.new: UserError.
  std::string commit();
  /// True after a commit() that failed when the new directory had taken its place.
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
