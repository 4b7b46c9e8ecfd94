// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/hdf5_calls.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace deltapipe::hdf5::detail {

void check(herr_t status, const std::string& what, const std::string& file) {
  if (status < 0) throw_failure(what, file);
}

Handle take(hid_t id, Handle::CloseFunction close, const std::string& what,
            const std::string& file) {
  if (id < 0) throw_failure(what, file);
  return Handle(id, close);
}

std::string quoted(const std::string& kind, const std::string& name) {
  return fmt::format("{} '{}'", kind, name);
}

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

hid_t type_of(ElementType type) {
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

}  // namespace deltapipe::hdf5::detail
