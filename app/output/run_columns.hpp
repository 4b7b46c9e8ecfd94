// SPDX-License-Identifier: BSD-3-Clause
// Columns of run.h5: datasets of a table, with the rows that are not in the file yet.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/pieces.hpp"
#include "core/files/hdf5.hpp"

namespace deltapipe {

inline constexpr std::uint64_t kChunkRows = 512;
inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

struct ColumnText {
  std::string name;
  std::string unit;
  std::string description;
};

/// Entries of a row, and the columns of its dataset: more after a restart on a smaller layout.
struct Width {
  std::size_t entries = 1;
  std::size_t columns = 1;
};

/// One dataset of a table, [rows] or [rows, width], and the rows that are not in the file yet.
template <typename T>
class Column {
 public:
  explicit Column(ColumnText text) : text_(std::move(text)), is_list_(true) {}
  /// `padding`: of entries that a row lacks.
  Column(ColumnText text, const Width& width, T padding = T{})
      : text_(std::move(text)), width_(width), padding_(padding) {}

  void add(T value) {
    DELTAPIPE_ASSERT(width_.columns == 1, text_.name);
    rows_.push_back(value);
  }
  void add(const std::vector<T>& values) {
    DELTAPIPE_ASSERT(
        values.size() == width_.entries,
        fmt::format("{} has {} entries, not {}", text_.name, values.size(), width_.entries));
    add_padded(values, rows_);
  }
  void create(hdf5::Group& group) const {
    std::vector<std::uint64_t> shape = {0}, chunk = {kChunkRows};
    if (!is_list_) {
      shape.push_back(width_.columns);
      chunk.push_back(std::max<std::size_t>(width_.columns, 1));
    }
    hdf5::Dataset dataset =
        group.create_dataset(text_.name, hdf5::element_type_of<T>(), shape, {.chunk = chunk});
    dataset.write_attribute("unit", text_.unit);
    dataset.write_attribute("description", text_.description);
  }
  void store(hdf5::Group& group, std::uint64_t rows) const {
    hdf5::Dataset dataset = group.open_dataset(text_.name);
    if (width_.columns == 0) return dataset.resize(dataset.rows() + rows);
    DELTAPIPE_ASSERT(rows_.size() == rows * width_.columns, text_.name);
    dataset.append(std::span<const T>(rows_));
  }
  void clear() { rows_.clear(); }
  std::uint64_t bytes() const { return rows_.size() * sizeof(T); }
  /// The most that the file grows by with these rows and `others`.
  std::uint64_t room(std::uint64_t others) const {
    constexpr std::uint64_t kIndex = std::uint64_t{16} << 10;
    return bytes() + (others + 2 * kChunkRows) * width_.columns * sizeof(T) + kIndex;
  }
  /// Copies the first rows of another file's column, some at a time. An older version may not have
  /// written it: then nothing is known of these rows.
  void load(hdf5::Group& group, const hdf5::Group& former, std::uint64_t rows) const {
    hdf5::Dataset dataset = group.open_dataset(text_.name);
    if (!former.exists(text_.name)) return load_unknown(dataset, rows);
    const hdf5::Dataset source = former.open_dataset(text_.name);
    const std::size_t width = source.row_elements();
    DELTAPIPE_ASSERT(width <= width_.columns && rows <= source.rows(), text_.name);
    if (width_.columns == 0) return dataset.resize(rows);
    for_pieces(0, rows, kChunkRows, [&](std::size_t first, std::size_t count) {
      std::vector<T> values(count * width), padded;
      source.read(first, std::span<T>(values));
      for (std::size_t row = 0; row < count; ++row) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * width);
        add_padded({begin, begin + static_cast<std::ptrdiff_t>(width)}, padded);
      }
      dataset.append(std::span<const T>(padded));
    });
  }

 private:
  void add_padded(const std::vector<T>& values, std::vector<T>& rows) const {
    rows.insert(rows.end(), values.begin(), values.end());
    rows.insert(rows.end(), width_.columns - values.size(), padding_);
  }
  void load_unknown(hdf5::Dataset& dataset, std::uint64_t rows) const {
    if (width_.columns == 0) return dataset.resize(rows);
    T unknown{};
    if constexpr (std::is_floating_point_v<T>) unknown = kNotMeasured;
    for_pieces(0, rows, kChunkRows, [&](std::size_t, std::size_t count) {
      const std::vector<T> values(count * width_.columns, unknown);
      dataset.append(std::span<const T>(values));
    });
  }

  ColumnText text_;
  Width width_;
  bool is_list_ = false;
  T padding_{};
  std::vector<T> rows_;
};

using Integers = Column<std::uint64_t>;
using Reals = Column<double>;

/// Widths of the columns per boundary and per rank of a pipeline.
struct TableWidths {
  Width boundaries;
  Width ranks;
};

}  // namespace deltapipe
