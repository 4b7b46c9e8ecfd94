// SPDX-License-Identifier: BSD-3-Clause
// The JSON header of a safetensors file, read as untrusted input.
#pragma once

#include <map>
#include <string>

#include "core/files/safetensors.hpp"

namespace deltapipe {

/// Size of the field that starts a file: the header's length, little-endian.
inline constexpr std::uint64_t safetensors_length_bytes = 8;
/// Limit of the format for a header.
inline constexpr std::uint64_t safetensors_max_header_bytes = 100'000'000;

/// Reads and checks the header of an open file; byte ranges are from the file's start.
std::map<std::string, TensorInfo> read_safetensors_header(const ReadOnlyFile& file);

/// Returns a tensor's member of the header's object as text; byte ranges are from the data's start.
std::string safetensors_header_entry(const std::string& name, const TensorInfo& info);

/// Returns the file name of each tensor's shard from the text of model.safetensors.index.json.
std::map<std::string, std::string> parse_safetensors_index(const std::string& text,
                                                           const std::string& path);

}  // namespace deltapipe
