// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/hdf5.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/error.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe::hdf5 {

namespace {

constexpr std::size_t max_attribute_bytes = std::size_t{16} << 20;
constexpr std::uint64_t max_chunk_bytes = std::uint64_t{1} << 30;

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

/// Prevents HDF5 from closing files at exit: the handles do that, and a file that failed to close
/// (full disk) would produce the same error repeatedly.
void start_library() {
  static const bool started = [] {
    H5dont_atexit();
    return H5open() >= 0;
  }();
  DELTAPIPE_ASSERT(started, "the HDF5 library does not start");
}

void silence_this_thread() {
  // In thread-safe builds of HDF5 every thread has a separate error stack.
  static thread_local const bool silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  DELTAPIPE_ASSERT(silent, "HDF5's error printing cannot be switched off");
}

herr_t take_innermost(unsigned index, const H5E_error2_t* error, void* text) {
  if (index == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

/// HDF5 wraps the system's message: "..., errno = 28, error message = 'No space left', buf = ...".
std::string shorten(const std::string& description) {
  const std::string key = "error message = '";
  const std::size_t begin = description.find(key);
  if (begin == std::string::npos) return description;
  const std::size_t end = description.find('\'', begin + key.size());
  return description.substr(
      begin + key.size(), end == std::string::npos ? std::string::npos : end - begin - key.size());
}

std::string remedy_of(const std::string& reason) {
  const auto has = [&](const char* part) { return reason.find(part) != std::string::npos; };
  if (has("No space") || has("quota") || has("too large")) {
    return "free disk space or choose another place";
  }
  if (has("signature") || has("truncated")) return "this is not a (complete) HDF5 file";
  if (has("lock") || has("temporarily unavailable")) {
    return "another program has the file open, or the file system has no locks "
           "(then set HDF5_USE_FILE_LOCKING=FALSE)";
  }
  if (has("No such file")) return "check the path";
  if (has("Permission") || has("Read-only")) {
    return "check the permissions, or choose another place";
  }
  return "";
}

void check(herr_t status, const std::string& what, const std::string& file) {
  if (status < 0) throw_failure(what, file);
}

Handle take(hid_t id, Handle::CloseFunction close, const std::string& what,
            const std::string& file) {
  if (id < 0) throw_failure(what, file);
  return Handle(id, close);
}

hid_t file_type(ElementType type) {
  switch (type) {
    case ElementType::f16: {
      // HDF5 1.10 has no predefined half: IEEE binary16 described by its fields.
      static const hid_t half = [] {
        const hid_t id = H5Tcopy(H5T_IEEE_F32LE);
        const bool made = id >= 0 && H5Tset_fields(id, 15, 10, 5, 0, 10) >= 0 &&
                          H5Tset_precision(id, 16) >= 0 && H5Tset_ebias(id, 15) >= 0 &&
                          H5Tset_size(id, 2) >= 0;
        DELTAPIPE_ASSERT(made, "HDF5 cannot describe half precision");
        return id;
      }();
      return half;
    }
    case ElementType::f32:
      return H5T_IEEE_F32LE;
    case ElementType::f64:
      return H5T_IEEE_F64LE;
    case ElementType::i8:
      return H5T_STD_I8LE;
    case ElementType::i16:
      return H5T_STD_I16LE;
    case ElementType::i32:
      return H5T_STD_I32LE;
    case ElementType::i64:
      return H5T_STD_I64LE;
    case ElementType::u8:
      return H5T_STD_U8LE;
    case ElementType::u16:
      return H5T_STD_U16LE;
    case ElementType::u32:
      return H5T_STD_U32LE;
    case ElementType::u64:
      return H5T_STD_U64LE;
  }
  throw InternalError("unknown HDF5 element type");
}

hid_t memory_type(ElementType type) {
  switch (type) {
    case ElementType::f16:
      return file_type(ElementType::f16);
    case ElementType::f32:
      return H5T_NATIVE_FLOAT;
    case ElementType::f64:
      return H5T_NATIVE_DOUBLE;
    case ElementType::i8:
      return H5T_NATIVE_INT8;
    case ElementType::i16:
      return H5T_NATIVE_INT16;
    case ElementType::i32:
      return H5T_NATIVE_INT32;
    case ElementType::i64:
      return H5T_NATIVE_INT64;
    case ElementType::u8:
      return H5T_NATIVE_UINT8;
    case ElementType::u16:
      return H5T_NATIVE_UINT16;
    case ElementType::u32:
      return H5T_NATIVE_UINT32;
    case ElementType::u64:
      return H5T_NATIVE_UINT64;
  }
  throw InternalError("unknown HDF5 element type");
}

std::string quoted(const std::string& kind, const std::string& name) {
  return fmt::format("{} '{}'", kind, name);
}

Handle string_type(std::size_t size, const std::string& file) {
  Handle type = take(H5Tcopy(H5T_C_S1), H5Tclose, "cannot create a string type", file);
  check(H5Tset_size(type.get(), size), "cannot create a string type", file);
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "cannot create a string type", file);
  return type;
}

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

/// Refuses links out of the file: every part of the path must be a hard link.
void check_links(hid_t location, const std::string& name, const std::string& what,
                 const std::string& file) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = name.find('/', end + 1);
    const std::string part = name.substr(0, end);
    if (part.empty() || part.back() == '/') continue;
    H5L_info_t info{};
    check(H5Lget_info(location, part.c_str(), &info, H5P_DEFAULT), what, file);
    if (info.type == H5L_TYPE_HARD) continue;
    throw UserError({.what = "'" + part + "' is a link to another place, which is not followed",
                     .file = file,
                     .remedy = "write the data itself into this file"});
  }
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

Handle file_access(const std::string& path) {
  Handle access =
      take(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "cannot create an access property list", path);
  // Closing the file also closes everything that was opened from it.
  check(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "cannot set the close degree", path);
  return access;
}

}  // namespace

Lock::Lock() {
  library_mutex().lock();
  try {
    start_library();
    silence_this_thread();
  } catch (...) {
    library_mutex().unlock();
    throw;
  }
}

Lock::~Lock() {
  library_mutex().unlock();
}

Handle::Handle(Handle&& other) noexcept
    : id_(std::exchange(other.id_, -1)), close_(std::exchange(other.close_, nullptr)) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    close();
    id_ = std::exchange(other.id_, -1);
    close_ = std::exchange(other.close_, nullptr);
  }
  return *this;
}

Handle::~Handle() {
  close();
}

bool Handle::close() {
  if (id_ < 0) return true;
  const Lock lock;
  const hid_t id = std::exchange(id_, -1);
  // Closing a file also closes its objects (file_access); their identifiers are then stale.
  if (H5Iis_valid(id) <= 0) return true;
  return close_(id) >= 0;
}

void throw_failure(const std::string& what, const std::string& file) {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_innermost, &reason);
  H5Eclear2(H5E_DEFAULT);
  reason = shorten(reason);
  throw UserError({.what = reason.empty() ? what : what + ": " + reason,
                   .file = file,
                   .remedy = remedy_of(reason)});
}

Object& Object::operator=(Object&& other) noexcept {
  if (this != &other) {
    finish();
    handle_ = std::move(other.handle_);
    state_ = std::move(other.state_);
  }
  return *this;
}

void Object::fail_writing(const std::string& what) {
  state_->broken = true;
  throw_failure(what, state_->path);
}

bool Object::finish() noexcept {
  if (!handle_.is_open()) return true;
  const Lock lock;
  const H5I_type_t kind = H5Iget_type(id());
  if (state_->writable && kind == H5I_FILE) state_->broken = H5Fflush(id(), H5F_SCOPE_GLOBAL) < 0;
  if (state_->writable && kind == H5I_DATASET && !state_->broken) {
    state_->broken = H5Dflush(id()) < 0;
  }
  if (state_->broken) {
    handle_.abandon();
    return false;
  }
  return handle_.close();
}

bool Object::has_attribute(const std::string& name) const {
  const Lock lock;
  const htri_t found = H5Aexists(id(), name.c_str());
  if (found < 0) throw_failure("cannot look for " + quoted("attribute", name), file_name());
  return found > 0;
}

namespace {

/// Replaces an attribute; without values it is empty. Returns false if HDF5 reports a failure.
bool replace_attribute(const Object& object, const std::string& name, hid_t file_type_id,
                       hid_t memory_type_id, hid_t space, const void* values) {
  if (object.has_attribute(name) && H5Adelete(object.id(), name.c_str()) < 0) return false;
  Handle attribute(
      H5Acreate2(object.id(), name.c_str(), file_type_id, space, H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  if (!attribute.is_open()) return false;
  if (values != nullptr && H5Awrite(attribute.get(), memory_type_id, values) < 0) return false;
  return attribute.close();
}

}  // namespace

void Object::write_attribute(const std::string& name, std::string_view text) {
  const Lock lock;
  const std::string what = "cannot write " + quoted("attribute", name);
  // Attributes above 64 KiB do not fit into an object header; text of variable length is stored
  // elsewhere.
  const Handle type = string_type(H5T_VARIABLE, file_name());
  const Handle space = take(H5Screate(H5S_SCALAR), H5Sclose, what, file_name());
  const std::string copy(text);
  const char* pointer = copy.c_str();
  if (!replace_attribute(*this, name, type.get(), type.get(), space.get(), &pointer)) {
    fail_writing(what);
  }
}

void Object::write_fixed_attribute(const std::string& name, std::string_view text) {
  const Lock lock;
  const std::string what = "cannot write " + quoted("attribute", name);
  const std::string copy(text);
  const Handle type = string_type(copy.size() + 1, file_name());
  const Handle space = take(H5Screate(H5S_SCALAR), H5Sclose, what, file_name());
  if (!replace_attribute(*this, name, type.get(), type.get(), space.get(), copy.c_str())) {
    fail_writing(what);
  }
}

void Object::write_attribute(const std::string& name, const std::vector<std::string>& texts) {
  const Lock lock;
  const std::string what = "cannot write " + quoted("attribute", name);
  const Handle type = string_type(H5T_VARIABLE, file_name());
  const hsize_t count = texts.size();
  const Handle space = take(H5Screate_simple(1, &count, nullptr), H5Sclose, what, file_name());
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  if (!replace_attribute(*this, name, type.get(), type.get(), space.get(),
                         texts.empty() ? nullptr : pointers.data())) {
    fail_writing(what);
  }
}

void Object::write_attribute_elements(const std::string& name, ElementType type, const void* values,
                                      std::size_t count, bool scalar) {
  const Lock lock;
  const std::string what = "cannot write " + quoted("attribute", name);
  const hsize_t extent = count;
  const Handle space = take(scalar ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &extent, nullptr),
                            H5Sclose, what, file_name());
  if (!replace_attribute(*this, name, file_type(type), memory_type(type), space.get(),
                         count == 0 ? nullptr : values)) {
    fail_writing(what);
  }
}

namespace {

struct OpenAttribute {
  Handle handle;
  Handle type;
  std::size_t elements = 0;
};

OpenAttribute open_attribute(const Object& object, const std::string& name) {
  const std::string& file = object.file_name();
  if (!object.has_attribute(name)) {
    throw UserError({.what = "has no " + quoted("attribute", name),
                     .file = file,
                     .remedy = "check that this file was written by deltapipe"});
  }
  const std::string what = "cannot read " + quoted("attribute", name);
  OpenAttribute attribute;
  attribute.handle = take(H5Aopen(object.id(), name.c_str(), H5P_DEFAULT), H5Aclose, what, file);
  attribute.type = take(H5Aget_type(attribute.handle.get()), H5Tclose, what, file);
  const Handle space = take(H5Aget_space(attribute.handle.get()), H5Sclose, what, file);
  const hssize_t elements = H5Sget_simple_extent_npoints(space.get());
  if (elements < 0) throw_failure(what, file);
  attribute.elements = static_cast<std::size_t>(elements);
  if (attribute.elements >
      max_attribute_bytes / std::max<std::size_t>(H5Tget_size(attribute.type.get()), 1)) {
    throw UserError({.what = quoted("attribute", name) + " is too large",
                     .file = file,
                     .value = fmt::format("{} elements", elements)});
  }
  return attribute;
}

[[noreturn]] void throw_wrong_kind(const std::string& name, const std::string& expected,
                                   const std::string& file) {
  throw UserError({.what = quoted("attribute", name) + " is not " + expected,
                   .file = file,
                   .remedy = "check that this file was written by deltapipe"});
}

}  // namespace

std::optional<std::string> Object::find_plain_attribute(const std::string& name) const {
  constexpr std::size_t largest_text = std::size_t{64} << 10;
  const Lock lock;
  if (!has_attribute(name)) return {};
  const Handle attribute(H5Aopen(id(), name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.is_open()) return {};
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!type.is_open() || !space.is_open() || H5Sget_simple_extent_npoints(space.get()) != 1)
    return {};
  if (H5Tget_class(type.get()) == H5T_INTEGER) {
    if (H5Tget_sign(type.get()) == H5T_SGN_NONE) {
      std::uint64_t value = 0;
      if (H5Aread(attribute.get(), H5T_NATIVE_UINT64, &value) < 0) return {};
      return std::to_string(value);
    }
    std::int64_t value = 0;
    if (H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0) return {};
    return std::to_string(value);
  }
  const std::size_t size = H5Tget_size(type.get());
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
      size > largest_text)
    return {};
  std::string text(size, '\0');
  if (H5Aread(attribute.get(), type.get(), text.data()) < 0) return {};
  return text.substr(0, text.find('\0'));
}

std::string Object::read_string_attribute(const std::string& name) const {
  const Lock lock;
  const OpenAttribute attribute = open_attribute(*this, name);
  if (H5Tget_class(attribute.type.get()) != H5T_STRING || attribute.elements != 1) {
    throw_wrong_kind(name, "one string", file_name());
  }
  const std::string what = "cannot read " + quoted("attribute", name);
  const htri_t variable = H5Tis_variable_str(attribute.type.get());
  if (variable < 0) throw_failure(what, file_name());
  if (variable == 0) {
    std::string text(H5Tget_size(attribute.type.get()), '\0');
    check(H5Aread(attribute.handle.get(), attribute.type.get(), text.data()), what, file_name());
    return text.substr(0, text.find('\0'));
  }
  char* text = nullptr;
  check(H5Aread(attribute.handle.get(), attribute.type.get(), &text), what, file_name());
  const std::string copy = text == nullptr ? "" : text;
  check(H5free_memory(text), what, file_name());
  return copy;
}

std::size_t Object::attribute_size(const std::string& name) const {
  const Lock lock;
  return open_attribute(*this, name).elements;
}

void Object::read_attribute_elements(const std::string& name, ElementType type, void* values,
                                     std::size_t count) const {
  const Lock lock;
  const OpenAttribute attribute = open_attribute(*this, name);
  const H5T_class_t kind = H5Tget_class(attribute.type.get());
  if ((kind != H5T_INTEGER && kind != H5T_FLOAT) || attribute.elements != count) {
    throw_wrong_kind(name, fmt::format("{} {}", count, count == 1 ? "number" : "numbers"),
                     file_name());
  }
  if (count == 0) return;
  check(H5Aread(attribute.handle.get(), memory_type(type), values),
        "cannot read " + quoted("attribute", name), file_name());
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
    if (H5Tequal(type.get(), file_type(candidate)) > 0) return candidate;
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
  check(H5Dwrite(id(), memory_type(type), selection.memory.get(), selection.file.get(), H5P_DEFAULT,
                 values),
        what, file_name());
}

void Dataset::read_elements(std::uint64_t first_row, std::uint64_t rows, ElementType type,
                            void* values) const {
  DELTAPIPE_ASSERT(first_row <= shape_[0] && rows <= shape_[0] - first_row,
                   quoted("dataset", name_) + ": rows out of range");
  if (rows == 0 || row_elements() == 0) return;
  const Lock lock;
  const std::string what = "cannot read " + quoted("dataset", name_);
  const Selection selection = select_rows(id(), shape_, first_row, rows, what, file_name());
  check(H5Dread(id(), memory_type(type), selection.memory.get(), selection.file.get(), H5P_DEFAULT,
                values),
        what, file_name());
}

void Dataset::append_elements(std::uint64_t rows, ElementType type, const void* values) {
  const std::uint64_t first_row = shape_[0];
  resize(first_row + rows);
  write_elements(first_row, rows, type, values);
}

bool Location::exists(const std::string& name) const {
  const Lock lock;
  const htri_t found = H5Lexists(id(), name.c_str(), H5P_DEFAULT);
  if (found < 0) throw_failure("cannot look for '" + name + "'", file_name());
  return found > 0;
}

std::vector<std::string> Location::names() const {
  const Lock lock;
  std::vector<std::string> found;
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* list) -> herr_t {
    static_cast<std::vector<std::string>*>(list)->emplace_back(name);
    return 0;
  };
  check(H5Literate(id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &found),
        "cannot list the contents", file_name());
  return found;
}

Group Location::create_group(const std::string& name) {
  const Lock lock;
  Handle group(H5Gcreate2(id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  if (!group.is_open()) fail_writing("cannot create " + quoted("group", name));
  return Group(std::move(group), state_);
}

Group Location::open_group(const std::string& name) const {
  const Lock lock;
  const std::string what = "cannot open " + quoted("group", name);
  check_links(id(), name, what, file_name());
  return Group(take(H5Gopen2(id(), name.c_str(), H5P_DEFAULT), H5Gclose, what, file_name()),
               state_);
}

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
  Handle dataset(H5Dcreate2(id(), name.c_str(), file_type(type), space.get(), H5P_DEFAULT,
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

namespace {

std::shared_ptr<FileState> new_state(const std::string& path, bool writable) {
  return std::make_shared<FileState>(FileState{path, writable, false});
}

}  // namespace

File File::create(const std::string& path, const FileOptions& options) {
  const Lock lock;
  const std::string& shown = options.shown_path.empty() ? path : options.shown_path;
  const Handle access = file_access(shown);
  const std::string what = "cannot be created";
  if (options.checksummed)
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), what, shown);
  if (options.alignment > 1)
    check(H5Pset_alignment(access.get(), options.alignment, options.alignment), what, shown);
  const Handle creation = take(H5Pcreate(H5P_FILE_CREATE), H5Pclose, what, shown);
  constexpr unsigned kMost = 64;  // most attributes in the object's header
  if (options.attributes_first)
    check(H5Pset_attr_phase_change(creation.get(), kMost, kMost), what, shown);
  const unsigned mode = options.replace ? H5F_ACC_TRUNC : H5F_ACC_EXCL;
  return File(
      take(H5Fcreate(path.c_str(), mode, creation.get(), access.get()), H5Fclose, what, shown),
      new_state(shown, true));
}

namespace {

Handle open_existing(const std::string& path, unsigned mode) {
  const ReadOnlyFile regular(path);  // HDF5 would wait for the other end of a named pipe
  const Handle access = file_access(path);
  return take(H5Fopen(path.c_str(), mode, access.get()), H5Fclose, "cannot be opened", path);
}

}  // namespace

File File::open_read_only(const std::string& path) {
  const Lock lock;
  return File(open_existing(path, H5F_ACC_RDONLY), new_state(path, false));
}

File File::open_read_write(const std::string& path) {
  const Lock lock;
  return File(open_existing(path, H5F_ACC_RDWR), new_state(path, true));
}

File File::open_unshared(const std::string& path, const std::string& shown_path) {
  const Lock lock;
  const Handle access = file_access(shown_path);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  check(H5Pset_file_locking(access.get(), false, true), "cannot be written", shown_path);
#endif
  return File(take(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()), H5Fclose, "cannot be written",
                   shown_path),
              new_state(shown_path, true));
}

File File::create_in_memory(const std::string& name) {
  const Lock lock;
  const Handle access = file_access(name);
  constexpr std::size_t growth_bytes = std::size_t{1} << 20;
  check(H5Pset_fapl_core(access.get(), growth_bytes, false), "cannot be created in memory", name);
  return File(take(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose,
                   "cannot be created in memory", name),
              new_state(name, true));
}

void File::flush() {
  const Lock lock;
  if (H5Fflush(id(), H5F_SCOPE_GLOBAL) < 0) fail_writing("cannot be written");
  state_->broken = false;
}

void File::close() {
  const Lock lock;
  if (!finish()) throw_failure("cannot be written", file_name());
}

std::vector<std::byte> File::image() {
  const Lock lock;
  flush();
  const std::string what = "has no image";
  const ssize_t size = H5Fget_file_image(id(), nullptr, 0);
  if (size < 0) throw_failure(what, file_name());
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  if (H5Fget_file_image(id(), bytes.data(), bytes.size()) < 0) throw_failure(what, file_name());
  return bytes;
}

}  // namespace deltapipe::hdf5
