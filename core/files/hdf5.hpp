// SPDX-License-Identifier: BSD-3-Clause
// HDF5 files under RAII handles, every return code checked. A failure is a UserError that names the
// file and repeats HDF5's innermost reason (no such file, no space left on device, ...).
//
// Threads: the HDF5 library need not be thread-safe, so every function here holds one process-wide
// lock while it is inside the library. Any thread may call, but one object (File, Group, Dataset)
// belongs to one thread at a time. Code that calls the C API directly must hold a Lock.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace deltapipe::hdf5 {

/// Holds the process-wide HDF5 lock (recursive) and switches HDF5's own error printing off for the
/// calling thread.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

/// Owns one HDF5 identifier. Move-only; the destructor closes and ignores failures.
class Handle {
 public:
  using CloseFunction = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, CloseFunction close_function) : id_(id), close_(close_function) {}
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();
  hid_t get() const { return id_; }
  bool is_open() const { return id_ >= 0; }
  /// Closes now; returns false if HDF5 reports a failure. The identifier is released in both cases.
  bool close();
  /// Releases the identifier without closing it.
  void abandon() { id_ = -1; }

 private:
  hid_t id_ = -1;
  CloseFunction close_ = nullptr;
};

/// Throws the UserError for the HDF5 call that has just failed. Must be called under the same Lock.
[[noreturn]] void throw_failure(const std::string& what, const std::string& file);

/// Types of elements in files; all are little-endian on disk. f16 is IEEE half, stored in memory as
/// its 16 bits.
enum class ElementType { f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64 };

template <typename T>
constexpr ElementType element_type_of() {
  if constexpr (std::is_same_v<T, float>) return ElementType::f32;
  if constexpr (std::is_same_v<T, double>) return ElementType::f64;
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    if constexpr (sizeof(T) == 1) return ElementType::i8;
    if constexpr (sizeof(T) == 2) return ElementType::i16;
    if constexpr (sizeof(T) == 4) return ElementType::i32;
    if constexpr (sizeof(T) == 8) return ElementType::i64;
  }
  if constexpr (std::is_integral_v<T> && !std::is_signed_v<T>) {
    if constexpr (sizeof(T) == 1) return ElementType::u8;
    if constexpr (sizeof(T) == 2) return ElementType::u16;
    if constexpr (sizeof(T) == 4) return ElementType::u32;
    if constexpr (sizeof(T) == 8) return ElementType::u64;
  }
}

/// State that all objects of one open file share.
struct FileState {
  std::string path;
  bool writable = false;
  /// True if a write has failed (full disk). HDF5 1.10 crashes if the objects of such a file are
  /// closed one by one, so their identifiers are abandoned unless a later flush succeeds.
  bool broken = false;
};

/// A File, Group or Dataset: something with attributes. Writing replaces an attribute of that name.
class Object {
 public:
  Object(Object&&) noexcept = default;
  Object& operator=(Object&& other) noexcept;
  ~Object() { finish(); }

  const std::string& file_name() const { return state_->path; }
  hid_t id() const { return handle_.get(); }

  bool has_attribute(const std::string& name) const;
  void write_attribute(const std::string& name, std::string_view text);
  void write_attribute(const std::string& name, const std::vector<std::string>& texts);
  /// Writes text of fixed length, at most 64 KiB. In files with checksums these protect it. Unlike
  /// text of variable length, it cannot crash the library when it is read from a damaged file.
  void write_fixed_attribute(const std::string& name, std::string_view text);
  template <typename T>
  requires std::is_arithmetic_v<T>
  void write_attribute(const std::string& name, T value) {
    write_attribute_elements(name, element_type_of<T>(), &value, 1, true);
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void write_attribute(const std::string& name, const std::vector<T>& values) {
    write_attribute_elements(name, element_type_of<T>(), values.data(), values.size(), false);
  }

  /// Returns one integer in decimal, or text of fixed length; nothing if the attribute is missing
  /// or of another kind. Safe for files that may be damaged.
  std::optional<std::string> find_plain_attribute(const std::string& name) const;
  /// Returns text. UserError if it is missing, of another kind, or of a fixed length above 16 MiB.
  std::string read_string_attribute(const std::string& name) const;
  template <typename T>
  T read_attribute(const std::string& name) const {
    T value{};
    read_attribute_elements(name, element_type_of<T>(), &value, 1);
    return value;
  }
  template <typename T>
  std::vector<T> read_vector_attribute(const std::string& name) const {
    std::vector<T> values(attribute_size(name));
    read_attribute_elements(name, element_type_of<T>(), values.data(), values.size());
    return values;
  }

 protected:
  Object(Handle handle, std::shared_ptr<FileState> state)
      : handle_(std::move(handle)), state_(std::move(state)) {}
  [[noreturn]] void fail_writing(const std::string& what);
  /// Writes the remaining data and closes; returns false if HDF5 reports a failure.
  bool finish() noexcept;
  Handle handle_;
  std::shared_ptr<FileState> state_;

 private:
  std::size_t attribute_size(const std::string& name) const;
  void write_attribute_elements(const std::string& name, ElementType type, const void* values,
                                std::size_t count, bool scalar);
  void read_attribute_elements(const std::string& name, ElementType type, void* values,
                               std::size_t count) const;
};

/// An N-dimensional dataset (N >= 1). One index of the first dimension selects a row.
class Dataset : public Object {
 public:
  const std::vector<std::uint64_t>& shape() const { return shape_; }
  std::uint64_t rows() const { return shape_[0]; }
  /// Returns the elements in a row: the product of all dimensions except the first.
  std::uint64_t row_elements() const;
  ElementType element_type() const;
  /// Throws UserError unless the file contains every element, so that the shape of an untrusted
  /// file is real. Elements that were never written are not contained, and chunks are at most 1
  /// GiB.
  void expect_stored() const;
  /// Returns true for integers of any size and byte order; reading converts them.
  bool holds_integers() const;

  /// Returns the offset of the elements in the file, in bytes; empty if they are not contiguous.
  /// For a contiguous dataset:
  std::optional<std::uint64_t> file_offset() const;
  /// For the chunk that begins with this row, unfiltered and `bytes` long, in a dataset whose
  /// chunks span all other dimensions:
  std::optional<std::uint64_t> chunk_file_offset(std::uint64_t row, std::uint64_t bytes) const;

  void resize(std::uint64_t rows);
  /// Write or read rows [first_row, first_row + rows) from or to row-major memory. The rows must
  /// exist.
  void write_elements(std::uint64_t first_row, std::uint64_t rows, ElementType type,
                      const void* values);
  void read_elements(std::uint64_t first_row, std::uint64_t rows, ElementType type,
                     void* values) const;

  template <typename T>
  void write(std::uint64_t first_row, std::span<const T> values) {
    write_elements(first_row, rows_of(values.size()), element_type_of<T>(), values.data());
  }
  template <typename T>
  void read(std::uint64_t first_row, std::span<T> values) const {
    read_elements(first_row, rows_of(values.size()), element_type_of<T>(), values.data());
  }
  /// Appends whole rows. Requires a chunked dataset.
  template <typename T>
  void append(std::span<const T> values) {
    append_elements(rows_of(values.size()), element_type_of<T>(), values.data());
  }
  void append_elements(std::uint64_t rows, ElementType type, const void* values);

 private:
  friend class Location;
  Dataset(Handle handle, std::shared_ptr<FileState> state, std::string name,
          std::vector<std::uint64_t> shape);
  std::uint64_t rows_of(std::size_t elements) const;
  std::string name_;
  std::vector<std::uint64_t> shape_;
};

struct DatasetOptions {
  /// Chunk shape, as many dimensions as the dataset; empty: contiguous, not extendable.
  std::vector<std::uint64_t> chunk;
  /// True if the first dimension of a chunked dataset can grow. If false, with allocate_early and
  /// without fill and deflate, HDF5 needs no index, and chunk i follows chunk i-1 in the file.
  bool extendable = true;
  int deflate_level = 0;        ///< 0: not compressed; 1 ... 9
  bool allocate_early = false;  ///< allocates all disk space at creation, not at the first write
  bool fill = true;             ///< false: elements never written are undefined
  std::size_t chunk_cache_bytes = 1 << 20;
};

class Group;

/// A container of groups and datasets: a File or a Group.
class Location : public Object {
 public:
  bool exists(const std::string& name) const;
  std::vector<std::string> names() const;
  Group create_group(const std::string& name);
  /// Opens objects of this file only: soft and external links are a UserError, as are
  /// datasets whose elements are in other files (external storage, virtual datasets).
  Group open_group(const std::string& name) const;
  Dataset create_dataset(const std::string& name, ElementType type,
                         const std::vector<std::uint64_t>& shape,
                         const DatasetOptions& options = {});
  Dataset open_dataset(const std::string& name) const;

 protected:
  using Object::Object;
};

class Group : public Location {
 private:
  friend class Location;
  using Location::Location;
};

struct FileOptions {
  bool replace = true;            ///< false: an existing file is an error
  std::string shown_path = {};    ///< path in messages; empty: the path itself
  bool checksummed = false;       ///< metadata has checksums, which HDF5 1.10 and newer read
  std::uint64_t alignment = 1;    ///< objects of at least this size begin at multiples of it
  bool attributes_first = false;  ///< the root's attributes are in the file's first 64 KiB
};

class File : public Location {
 public:
  static File create(const std::string& path, const FileOptions& options = {});
  static File open_read_only(const std::string& path);
  static File open_read_write(const std::string& path);
  /// Opens a file under a temporary name that nobody else knows. Needs no file lock, which some
  /// file systems lack. Messages name `shown_path`.
  static File open_unshared(const std::string& path, const std::string& shown_path);
  /// Creates a file in memory, without access to a disk; messages contain `name`.
  static File create_in_memory(const std::string& name);

  void flush();
  /// Writes the remaining data and closes the file and everything opened from it; UserError on
  /// failure. The destructor closes as well but ignores failures.
  void close();
  /// Flushes and returns the bytes that the file would have on disk.
  std::vector<std::byte> image();

 private:
  using Location::Location;
};

}  // namespace deltapipe::hdf5
