// SPDX-License-Identifier: BSD-3-Clause
// Attributes of files, groups and datasets.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/hdf5_calls.hpp"

namespace deltapipe::hdf5 {

using namespace detail;

namespace {

constexpr std::size_t max_attribute_bytes = std::size_t{16} << 20;

Handle string_type(std::size_t size, const std::string& file) {
  Handle type = take(H5Tcopy(H5T_C_S1), H5Tclose, "cannot create a string type", file);
  check(H5Tset_size(type.get(), size), "cannot create a string type", file);
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "cannot create a string type", file);
  return type;
}

/// Replaces an attribute; without values it is empty. Returns false if HDF5 reports a failure.
bool replace_attribute(const Object& object, const std::string& name, hid_t type, hid_t space,
                       const void* values) {
  if (object.has_attribute(name) && H5Adelete(object.id(), name.c_str()) < 0) return false;
  Handle attribute(H5Acreate2(object.id(), name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
                   H5Aclose);
  if (!attribute.is_open()) return false;
  if (values != nullptr && H5Awrite(attribute.get(), type, values) < 0) return false;
  return attribute.close();
}

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

bool Object::has_attribute(const std::string& name) const {
  const Lock lock;
  const htri_t found = H5Aexists(id(), name.c_str());
  if (found < 0) throw_failure("cannot look for " + quoted("attribute", name), file_name());
  return found > 0;
}

void Object::write_attribute(const std::string& name, std::string_view text) {
  const Lock lock;
  const std::string what = "cannot write " + quoted("attribute", name);
  // Attributes above 64 KiB do not fit into an object header; text of variable length is stored
  // elsewhere.
  const Handle type = string_type(H5T_VARIABLE, file_name());
  const Handle space = take(H5Screate(H5S_SCALAR), H5Sclose, what, file_name());
  const std::string copy(text);
  const char* pointer = copy.c_str();
  if (!replace_attribute(*this, name, type.get(), space.get(), &pointer)) {
    fail_writing(what);
  }
}

void Object::write_fixed_attribute(const std::string& name, std::string_view text) {
  const Lock lock;
  const std::string what = "cannot write " + quoted("attribute", name);
  const std::string copy(text);
  const Handle type = string_type(copy.size() + 1, file_name());
  const Handle space = take(H5Screate(H5S_SCALAR), H5Sclose, what, file_name());
  if (!replace_attribute(*this, name, type.get(), space.get(), copy.c_str())) {
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
  if (!replace_attribute(*this, name, type.get(), space.get(),
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
  if (!replace_attribute(*this, name, type_of(type), space.get(), count == 0 ? nullptr : values)) {
    fail_writing(what);
  }
}

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
  check(H5Aread(attribute.handle.get(), type_of(type), values),
        "cannot read " + quoted("attribute", name), file_name());
}

}  // namespace deltapipe::hdf5
