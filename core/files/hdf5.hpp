// SPDX-License-Identifier: BSD-3-Clause
// HDF5 files under RAII handles, every return code checked. A failure is a UserError that names the
// file and repeats HDF5's innermost reason (no such file, no space left on device, ...).
//
// Threads: the HDF5 library need not be thread-safe, so every function here holds one process-wide
// lock while it is inside the library. Any thread may call, but one object (File, Group, Dataset)
// belongs to one thread at a time. Who calls the C API directly holds a Lock.
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
  /// Closes now; false when HDF5 reports a failure (the identifier is given up either way).
  bool close();
  /// Gives the identifier up without closing it.
  void abandon() { id_ = -1; }

 private:
  hid_t id_ = -1;
  CloseFunction close_ = nullptr;
};

/// Throws the UserError for the HDF5 call that has just failed (call under the same Lock).
[[noreturn]] void throw_failure(const std::string& what, const std::string& file);

/// Elements in files; all are little-endian on disk. f16 is IEEE half, in memory its 16 bits.
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
  /// A write has failed (full disk). HDF5 1.10 crashes when objects of such a file are closed one
  /// by one, so their identifiers are abandoned unless a later flush succeeds.
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
  void write_attribute(const std::string& name, const char* text) {
    write_attribute(name, std::string_view(text));
  }
  void write_attribute(const std::string& name, const std::string& text) {
    write_attribute(name, std::string_view(text));
  }
  void write_attribute(const std::string& name, const std::vector<std::string>& texts);
  /// Text of fixed length, at most 64 KiB: in files with checksums these protect it, and reading it
  /// from a damaged file cannot crash the library, as text of variable length can.
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

  /// For files that may be damaged: one integer in decimal, or text of fixed length. Nothing when
  /// there is no such attribute, or it is of another kind.
  std::optional<std::string> find_plain_attribute(const std::string& name) const;
  /// UserError when missing, of another kind, or larger than 16 MiB.
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
  /// Writes what is left and closes; false when HDF5 reports a failure.
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

/// An N-dimensional dataset (N >= 1); a row is what one index of the first dimension selects.
class Dataset : public Object {
 public:
  const std::vector<std::uint64_t>& shape() const { return shape_; }
  std::uint64_t rows() const { return shape_[0]; }
  /// Elements in a row: the product of all dimensions but the first.
  std::uint64_t row_elements() const;
  ElementType element_type() const;
  /// For files from outside: UserError unless every element lies in the file, so that the shape is
  /// no mere claim. Elements that nobody wrote are not there, and chunks are at most 1 GiB.
  void expect_stored() const;
  /// True for integers of any size and byte order, which reading converts.
  bool holds_integers() const;

  /// Offset of the elements in the file, in bytes; empty if they have no contiguous place. For
  /// a contiguous dataset:
  std::optional<std::uint64_t> file_offset() const;
  /// For the chunk that begins with this row, unfiltered and `bytes` long, in a dataset whose
  /// chunks span all other dimensions:
  std::optional<std::uint64_t> chunk_file_offset(std::uint64_t row, std::uint64_t bytes) const;

  void resize(std::uint64_t rows);
  /// Rows [first_row, first_row + rows) from or to row-major memory; they must exist.
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
  /// Adds whole rows at the end. Needs a chunked dataset.
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
  /// Chunked: the first dimension can grow. False, with allocate_early, without fill and deflate:
  /// HDF5 needs no index, and chunk i follows chunk i-1 in the file.
  bool extendable = true;
  int deflate_level = 0;        ///< 0: not compressed; 1 ... 9
  bool allocate_early = false;  ///< all disk space at creation instead of at the first write
  bool fill = true;             ///< false: elements never written are undefined
  std::size_t chunk_cache_bytes = 1 << 20;
};

class Group;

/// A place that holds groups and datasets: a File or a Group.
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
  std::string shown_path = {};    ///< what messages name; empty: the path itself
  bool checksummed = false;       ///< metadata with checksums, as HDF5 1.10 and newer read them
  std::uint64_t alignment = 1;    ///< what has so many bytes or more begins at a multiple of them
  bool attributes_first = false;  ///< those of the root are in the file's first 64 KiB
};

class File : public Location {
 public:
  static File create(const std::string& path, const FileOptions& options = {});
  static File open_read_only(const std::string& path);
  static File open_read_write(const std::string& path);
  /// For a file under a temporary name that nobody else knows: needs no file lock, which some file
  /// systems lack. Messages name `shown_path`.
  static File open_unshared(const std::string& path, const std::string& shown_path);
  /// Lives in memory only and touches no disk; `name` stands in messages.
  static File create_in_memory(const std::string& name);

  void flush();
  /// Writes what is left and closes, with everything opened from this file; UserError on failure.
  /// The destructor closes as well but has to ignore failures.
  void close();
  /// The bytes that the file would have on disk, after a flush.
  std::vector<std::byte> image();

 private:
  using Location::Location;
};

}  // namespace deltapipe::hdf5
