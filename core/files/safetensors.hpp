// SPDX-License-Identifier: BSD-3-Clause
// Weights in the safetensors format, in one file or a sharded set, as in Hugging Face directories.
// Files are untrusted: sizes, offsets, overlaps and shapes are checked before memory is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/files/input_file.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

/// Element types of the format, named as in its headers.
enum class TensorType {
  BOOL,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  F64,
  I64,
  U64
};

std::size_t bytes_of(TensorType type);
const char* name_of(TensorType type);

struct TensorInfo {
  TensorType type = TensorType::F32;
  std::vector<std::uint64_t> shape;  ///< empty: a scalar
  std::size_t file = 0;              ///< index of the file that contains it
  std::uint64_t begin = 0;           ///< byte range in that file, from the file's start
  std::uint64_t end = 0;

  std::uint64_t elements() const;
};

/// Opens files and checks headers only; values are read on request, in pieces of 1 MiB.
class SafetensorsReader {
 public:
  /// Opens model.safetensors, or model.safetensors.index.json and its shards.
  static SafetensorsReader open_directory(const std::string& directory);
  static SafetensorsReader open_file(const std::string& path);

  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  bool contains(const std::string& name) const { return tensors_.count(name) > 0; }
  /// Returns a tensor's description; UserError if there is no such tensor.
  const TensorInfo& info(const std::string& name) const;
  /// Returns the file that contains the tensor; UserError if there is no such tensor.
  const std::string& path_of(const std::string& name) const;
  /// Throws UserError unless the tensor has exactly this shape.
  void expect_shape(const std::string& name, const std::vector<std::uint64_t>& shape) const;

  /// Reads all elements in row-major order and converts them from F64, F32, F16 or BF16; UserError
  /// for other types.
  void read_fp32(const std::string& name, std::span<float> out) const;
  /// Reads rows [first_row, first_row + rows) of a tensor with one or more dimensions.
  void read_fp32_rows(const std::string& name, std::uint64_t first_row, std::uint64_t rows,
                      std::span<float> out) const;

 private:
  SafetensorsReader() = default;
  void add_file(const std::string& path);
  void read_range(const std::string& name, std::uint64_t first_element, std::span<float> out) const;
  std::string source_;  ///< the file that lists the tensors: model.safetensors or the index
  std::vector<ReadOnlyFile> files_;
  std::map<std::string, TensorInfo> tensors_;
};

/// Tensor for SafetensorsWriter; its type is F32, F16 or BF16.
struct TensorDeclaration {
  std::string name;
  TensorType type = TensorType::F32;
  std::vector<std::uint64_t> shape;
};

/// Writes one file with metadata {"format": "pt"}. The constructor allocates disk space. finish()
/// gives the file its name, so that a killed job leaves the old one.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<TensorDeclaration>& tensors);

  /// Writes all elements of a tensor, rounded to nearest even if its type is narrower.
  void write_fp32(const std::string& name, std::span<const float> values);
  /// Writes rows from first_row on; values.size() is a multiple of the row's elements.
  void write_fp32_rows(const std::string& name, std::uint64_t first_row,
                       std::span<const float> values);
  /// Writes zeros to all elements of a tensor of any type.
  void write_zeros(const std::string& name);
  /// Returns the number of finite values so far that are infinite in the type of their tensor.
  std::uint64_t overflows() const { return overflows_; }
  /// Syncs and renames the file. Every element of every tensor must have been written.
  void finish();

 private:
  struct Slot {
    TensorInfo info;
    /// Disjoint ranges of elements already written: first element to one past the last.
    std::map<std::uint64_t, std::uint64_t> written;
  };
  Slot& slot(const std::string& name);
  void write_range(const std::string& name, Slot& slot, std::uint64_t first_element,
                   std::span<const float> values);
  AtomicFile file_;
  std::map<std::string, Slot> slots_;
  std::uint64_t overflows_ = 0;
};

}  // namespace deltapipe
