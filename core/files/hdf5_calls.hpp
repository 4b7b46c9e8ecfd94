// SPDX-License-Identifier: BSD-3-Clause
// Helpers of the HDF5 wrapper's sources: checked calls of the library, and its types of elements.
// Their callers hold a Lock.
#pragma once

#include <hdf5.h>

#include <string>

#include "core/files/hdf5.hpp"

namespace deltapipe::hdf5::detail {

/// Throws the UserError of a call that returned `status` if that is a failure.
void check(herr_t status, const std::string& what, const std::string& file);

/// Returns the owner of an identifier that a call returned; throws if the call failed.
Handle take(hid_t id, Handle::CloseFunction close, const std::string& what,
            const std::string& file);

/// Returns the kind and the name of an object for messages: "dataset 'a/b'".
std::string quoted(const std::string& kind, const std::string& name);

/// Refuses links out of the file: every part of the path must be a hard link.
void check_links(hid_t location, const std::string& name, const std::string& what,
                 const std::string& file);

/// Returns HDF5's type of elements, which are little-endian in files and in memory. The library
/// owns it.
hid_t type_of(ElementType type);

}  // namespace deltapipe::hdf5::detail
