// SPDX-License-Identifier: BSD-3-Clause
// Datasets: creation, opening, storage, reading and writing.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/base/error.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/hdf5_calls.hpp"

namespace deltapipe::hdf5 {

using namespace detail;

namespace {

constexpr std::uint64_t max_chunk_bytes = std::uint64_t{1} << 30;

std::vector<std::uint64_t> shape_of(hid_t space, const std::string& what, const std::string& file) {
  const int rank = H5Sget_simple_extent_ndims(space);
  if (rank < 0) throw_failure(what, file);
  std::array<hsize_t, H5S_MAX_RANK> extent{};
  if (H5Sget_simple_extent_dims(space, extent.data(), nullptr) < 0) throw_failure(what, file);
  return {extent.begin(), extent.begin() + rank};
}

/// Returns nothing if the product exceeds 64 bits, even if a zero follows factors that are too
/// large.
std::optional<std::uint64_t> product_of(const std::vector<std::uint64_t>& factors) {
  std::uint64_t product = 1;
  for (const std::uint64_t factor : factors) {
    if (factor != 0 && product > std::numeric_limits<std::uint64_t>::max() / factor) return {};
    product *= factor;
  }
  return product;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text;
  for (const std::uint64_t extent : shape) {
    text += (text.empty() ? "" : " x ") + std::to_string(extent);
  }
  return text;
}

/// Refuses datasets whose elements are in other files.
void check_storage_in_file(hid_t dataset, const std::string& name, const std::string& what,
                           const std::string& file) {
  const Handle creation = take(H5Dget_create_plist(dataset), H5Pclose, what, file);
  const int external = H5Pget_external_count(creation.get());
  if (external < 0) throw_failure(what, file);
  if (external == 0 && H5Pget_layout(creation.get()) != H5D_VIRTUAL) return;
  throw UserError({.what = quoted("dataset", name) + " has its elements in other files, which are "
                                                     "not read",
                   .file = file,
                   .remedy = "write the data itself into this file"});
}

struct Selection {
  Handle memory;
  Handle file;
};

/// Selects rows [first_row, first_row + rows) of a dataset of that shape.
Selection select_rows(hid_t dataset, const std::vector<std::uint64_t>& shape,
                      std::uint64_t first_row, std::uint64_t rows, const std::string& what,
                      const std::string& file) {
  std::vector<hsize_t> start(shape.size(), 0);
  std::vector<hsize_t> count(shape.begin(), shape.end());
  start[0] = first_row;
  count[0] = rows;
  Selection selection;
  selection.memory = take(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
                          H5Sclose, what, file);
  selection.file = take(H5Dget_space(dataset), H5Sclose, what, file);
  check(H5Sselect_hyperslab(selection.file.get(), H5S_SELECT_SET, start.data(), nullptr,
                            count.data(), nullptr),
        what, file);
  return selection;
}

}  // namespace

Dataset Location::create_dataset(const std::string& name, ElementType type,
                                 const std::vector<std::uint64_t>& shape,
                                 const DatasetOptions& options) {
  const std::string what = "cannot create " + quoted("dataset", name);
  const bool chunked = !options.chunk.empty();
  DELTAPIPE_ASSERT(!shape.empty() && shape.size() < H5S_MAX_RANK, what);
  DELTAPIPE_ASSERT(!chunked || options.chunk.size() == shape.size(), what);
  const Lock lock;
  std::vector<hsize_t> extent(shape.begin(), shape.end());
  std::vector<hsize_t> maximum = extent;
  if (chunked && options.extendable) maximum[0] = H5S_UNLIMITED;
  // A chunk must not exceed a fixed dimension, and no chunk fits into an empty one.
  for (hsize_t& dimension : maximum) {
    if (chunked && dimension == 0) dimension = H5S_UNLIMITED;
  }
  const Handle space =
      take(H5Screate_simple(static_cast<int>(extent.size()), extent.data(), maximum.data()),
           H5Sclose, what, file_name());
  const Handle creation = take(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, what, file_name());
  const Handle access = take(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose, what, file_name());
  if (chunked) {
    const std::vector<hsize_t> chunk(options.chunk.begin(), options.chunk.end());
    check(H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data()), what,
          file_name());
    if (options.deflate_level > 0) {
      check(H5Pset_shuffle(creation.get()), what, file_name());
      check(H5Pset_deflate(creation.get(), static_cast<unsigned>(options.deflate_level)), what,
            file_name());
    }
    // 521 slots: HDF5's own default, a prime well above the chunks that fit.
    check(H5Pset_chunk_cache(access.get(), 521, options.chunk_cache_bytes,
                             H5D_CHUNK_CACHE_W0_DEFAULT),
          what, file_name());
  }
  if (options.allocate_early) {
    check(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), what, file_name());
  }
  if (!options.fill)
    check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), what, file_name());
  Handle dataset(H5Dcreate2(id(), name.c_str(), type_of(type), space.get(), H5P_DEFAULT,
                            creation.get(), access.get()),
                 H5Dclose);
  if (!dataset.is_open()) fail_writing(what);
  return Dataset(std::move(dataset), state_, name, shape);
}

Dataset Location::open_dataset(const std::string& name) const {
  const std::string what = "cannot open " + quoted("dataset", name);
  const Lock lock;
  check_links(id(), name, what, file_name());
  Handle dataset = take(H5Dopen2(id(), name.c_str(), H5P_DEFAULT), H5Dclose, what, file_name());
  check_storage_in_file(dataset.get(), name, what, file_name());
  const Handle space = take(H5Dget_space(dataset.get()), H5Sclose, what, file_name());
  std::vector<std::uint64_t> shape = shape_of(space.get(), what, file_name());
  if (shape.empty()) {
    throw UserError({.what = quoted("dataset", name) + " has no dimensions", .file = file_name()});
  }
  return Dataset(std::move(dataset), state_, name, std::move(shape));
}

Dataset::Dataset(Handle handle, std::shared_ptr<FileState> state, std::string name,
                 std::vector<std::uint64_t> shape)
    : Object(std::move(handle), std::move(state)),
      name_(std::move(name)),
      shape_(std::move(shape)) {}

std::uint64_t Dataset::row_elements() const {
  std::uint64_t product = 1;
  for (std::size_t i = 1; i < shape_.size(); ++i) product *= shape_[i];
  return product;
}

std::uint64_t Dataset::rows_of(std::size_t elements) const {
  const std::uint64_t row = row_elements();
  if (row == 0) return 0;
  DELTAPIPE_ASSERT(elements % row == 0, quoted("dataset", name_) + ": not a number of whole rows");
  return elements / row;
}

ElementType Dataset::element_type() const {
  const Lock lock;
  const std::string what = "cannot determine the type of " + quoted("dataset", name_);
  const Handle type = take(H5Dget_type(id()), H5Tclose, what, file_name());
  for (const ElementType candidate :
       {ElementType::f16, ElementType::f32, ElementType::f64, ElementType::i8, ElementType::i16,
        ElementType::i32, ElementType::i64, ElementType::u8, ElementType::u16, ElementType::u32,
        ElementType::u64}) {
    if (H5Tequal(type.get(), type_of(candidate)) > 0) return candidate;
  }
  throw UserError({.what = quoted("dataset", name_) + " has elements that are not supported",
                   .file = file_name(),
                   .remedy = "use little-endian integers or floating-point numbers"});
}

bool Dataset::holds_integers() const {
  const Lock lock;
  const std::string what = "cannot determine the type of " + quoted("dataset", name_);
  return H5Tget_class(take(H5Dget_type(id()), H5Tclose, what, file_name()).get()) == H5T_INTEGER;
}

void Dataset::expect_stored() const {
  const Lock lock;
  const std::string what = "cannot determine the storage of " + quoted("dataset", name_);
  const std::uint64_t elements =
      product_of(shape_).value_or(std::numeric_limits<std::uint64_t>::max());
  const Handle type = take(H5Dget_type(id()), H5Tclose, what, file_name());
  const std::uint64_t element_bytes = std::max<std::size_t>(H5Tget_size(type.get()), 1);
  const Handle creation = take(H5Dget_create_plist(id()), H5Pclose, what, file_name());
  const std::uint64_t stored = H5Dget_storage_size(id());
  const auto refuse = [&](const std::string& reason) {
    throw UserError({.what = quoted("dataset", name_) + " " + reason,
                     .file = file_name(),
                     .value = fmt::format("{}, {} bytes stored", shape_text(shape_), stored),
                     .remedy = "write all of its elements"});
  };
  hsize_t file_bytes = 0;
  const Handle file = take(H5Iget_file_id(id()), H5Fclose, what, file_name());
  check(H5Fget_filesize(file.get(), &file_bytes), what, file_name());
  if (stored > file_bytes) refuse("claims more bytes than the file has");
  const int filters = H5Pget_nfilters(creation.get());
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, configuration = 0;
    std::size_t values = 0;
    std::array<char, 64> name{};
    const H5Z_filter_t filter =
        H5Pget_filter2(creation.get(), static_cast<unsigned>(i), &flags, &values, nullptr,
                       name.size() - 1, name.data(), &configuration);
    if (filter < 0) throw_failure(what, file_name());
    if (H5Zfilter_avail(filter) > 0) continue;
    throw UserError({.what = quoted("dataset", name_) +
                             " is compressed by a filter that this program's HDF5 lacks",
                     .file = file_name(),
                     .value = name[0] != '\0' ? name.data() : fmt::format("filter {}", filter),
                     .remedy = "write it again with compression=\"gzip\" or without compression"});
  }
  if (H5Pget_layout(creation.get()) != H5D_CHUNKED) {
    if (elements > stored / element_bytes) refuse("has elements that were never written");
    return;
  }
  std::vector<hsize_t> chunk(shape_.size());
  const int rank = H5Pget_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
  if (rank != static_cast<int>(chunk.size())) throw_failure(what, file_name());
  std::vector<std::uint64_t> grid(chunk.size());
  std::ranges::copy(chunk, grid.begin());
  const std::optional<std::uint64_t> chunk_elements = product_of(grid);
  if (!chunk_elements || *chunk_elements > max_chunk_bytes / element_bytes) {
    refuse("has chunks of more than 1 GiB");
  }
  for (std::size_t i = 0; i < chunk.size(); ++i)
    grid[i] = shape_[i] / chunk[i] + (shape_[i] % chunk[i] > 0 ? 1 : 0);
  hsize_t written = 0;
  const Handle space = take(H5Dget_space(id()), H5Sclose, what, file_name());
  check(H5Dget_num_chunks(id(), space.get(), &written), what, file_name());
  if (product_of(grid) != written) refuse("has elements that were never written");
}

std::optional<std::uint64_t> Dataset::file_offset() const {
  const Lock lock;
  const haddr_t offset = H5Dget_offset(id());
  if (offset == HADDR_UNDEF) return {};
  return offset;
}

std::optional<std::uint64_t> Dataset::chunk_file_offset(std::uint64_t row,
                                                        std::uint64_t bytes) const {
  const Lock lock;
  std::vector<hsize_t> place(shape_.size(), 0);
  place[0] = row;
  unsigned filter_mask = 0;
  haddr_t offset = HADDR_UNDEF;
  hsize_t size = 0;
  const herr_t status =
      H5Dget_chunk_info_by_coord(id(), place.data(), &filter_mask, &offset, &size);
  if (status < 0 || offset == HADDR_UNDEF || size != bytes) return {};
  return offset;
}

void Dataset::resize(std::uint64_t rows) {
  const Lock lock;
  std::vector<hsize_t> extent(shape_.begin(), shape_.end());
  extent[0] = rows;
  if (H5Dset_extent(id(), extent.data()) < 0) {
    fail_writing("cannot resize " + quoted("dataset", name_));
  }
  shape_[0] = rows;
}

void Dataset::write_elements(std::uint64_t first_row, std::uint64_t rows, ElementType type,
                             const void* values) {
  DELTAPIPE_ASSERT(first_row <= shape_[0] && rows <= shape_[0] - first_row,
                   quoted("dataset", name_) + ": rows out of range");
  if (rows == 0 || row_elements() == 0) return;
  const Lock lock;
  const std::string what = "cannot write " + quoted("dataset", name_);
  const Selection selection = select_rows(id(), shape_, first_row, rows, what, file_name());
  if (H5Dwrite(id(), type_of(type), selection.memory.get(), selection.file.get(), H5P_DEFAULT,
               values) < 0)
    fail_writing(what);
}

void Dataset::read_elements(std::uint64_t first_row, std::uint64_t rows, ElementType type,
                            void* values) const {
  DELTAPIPE_ASSERT(first_row <= shape_[0] && rows <= shape_[0] - first_row,
                   quoted("dataset", name_) + ": rows out of range");
  if (rows == 0 || row_elements() == 0) return;
  const Lock lock;
  const std::string what = "cannot read " + quoted("dataset", name_);
  const Selection selection = select_rows(id(), shape_, first_row, rows, what, file_name());
  check(H5Dread(id(), type_of(type), selection.memory.get(), selection.file.get(), H5P_DEFAULT,
                values),
        what, file_name());
}

void Dataset::append_elements(std::uint64_t rows, ElementType type, const void* values) {
  const std::uint64_t first_row = shape_[0];
  resize(first_row + rows);
  write_elements(first_row, rows, type, values);
}

}  // namespace deltapipe::hdf5
