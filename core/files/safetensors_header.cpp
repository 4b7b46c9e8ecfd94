// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "core/base/error.hpp"
#include "core/files/json.hpp"

namespace deltapipe {

namespace {

struct TypeRow {
  TensorType type;
  const char* name;
  std::size_t bytes;
};

constexpr std::array<TypeRow, 15> type_table = {{{TensorType::BOOL, "BOOL", 1},
                                                 {TensorType::U8, "U8", 1},
                                                 {TensorType::I8, "I8", 1},
                                                 {TensorType::F8_E5M2, "F8_E5M2", 1},
                                                 {TensorType::F8_E4M3, "F8_E4M3", 1},
                                                 {TensorType::I16, "I16", 2},
                                                 {TensorType::U16, "U16", 2},
                                                 {TensorType::F16, "F16", 2},
                                                 {TensorType::BF16, "BF16", 2},
                                                 {TensorType::I32, "I32", 4},
                                                 {TensorType::U32, "U32", 4},
                                                 {TensorType::F32, "F32", 4},
                                                 {TensorType::F64, "F64", 8},
                                                 {TensorType::I64, "I64", 8},
                                                 {TensorType::U64, "U64", 8}}};

const TypeRow& row_of(TensorType type) {
  const auto row = std::find_if(type_table.begin(), type_table.end(),
                                [&](const TypeRow& candidate) { return candidate.type == type; });
  DELTAPIPE_ASSERT(row != type_table.end(), "unknown tensor type");
  return *row;
}

constexpr const char* download_again = "copy or download the file again";

/// Place of a mistake: a file and, if known, one of its tensors.
struct Place {
  std::string file;
  std::string tensor = {};

  [[noreturn]] void refuse(const std::string& what, const std::string& value = "",
                           const std::string& remedy = download_again) const {
    throw UserError({.what = tensor.empty() ? what : fmt::format("tensor '{}': {}", tensor, what),
                     .file = file,
                     .value = value,
                     .remedy = remedy});
  }
};

std::uint64_t unsigned_number(const Json& json, const std::string& what, const Place& place) {
  if (!json.is_number_unsigned()) {
    place.refuse(what + " must be a whole number >= 0", shown(json));
  }
  return json.get<std::uint64_t>();
}

const Json& member(const Json& object, const char* key, const Place& place) {
  const auto found = object.find(key);
  if (found == object.end()) place.refuse(fmt::format("has no '{}'", key));
  return *found;
}

TensorType parse_type(const Json& json, const Place& place) {
  if (!json.is_string()) place.refuse("'dtype' must be a string", shown(json));
  const std::string name = json.get<std::string>();
  for (const TypeRow& row : type_table) {
    if (name == row.name) return row.type;
  }
  place.refuse("unknown dtype", name,
               "convert the weights to F32, F16 or BF16 with the tool that made the file");
}

std::vector<std::uint64_t> parse_shape(const Json& json, const Place& place) {
  constexpr std::size_t max_dimensions = 32;
  if (!json.is_array()) place.refuse("'shape' must be a list", shown(json));
  if (json.size() > max_dimensions) {
    place.refuse("'shape' has too many dimensions", std::to_string(json.size()));
  }
  std::vector<std::uint64_t> shape;
  for (const Json& dimension : json) {
    shape.push_back(unsigned_number(dimension, "every dimension in 'shape'", place));
  }
  return shape;
}

/// Returns the bytes of a tensor; UserError if they exceed 64 bits.
std::uint64_t checked_bytes(const std::vector<std::uint64_t>& shape, TensorType type,
                            const Place& place) {
  // A product must not overflow even if a later factor is zero.
  std::uint64_t product = bytes_of(type);
  for (const std::uint64_t dimension : shape) {
    if (dimension != 0 && product > std::numeric_limits<std::uint64_t>::max() / dimension) {
      place.refuse("'shape' has more elements than any file can hold");
    }
    product *= dimension;
  }
  return product;
}

TensorInfo parse_tensor(const Json& json, std::uint64_t data_bytes, const Place& place) {
  if (!json.is_object()) place.refuse("its entry is not an object", shown(json));
  TensorInfo info;
  info.type = parse_type(member(json, "dtype", place), place);
  info.shape = parse_shape(member(json, "shape", place), place);
  const Json& offsets = member(json, "data_offsets", place);
  if (!offsets.is_array() || offsets.size() != 2) {
    place.refuse("'data_offsets' must be two numbers", shown(offsets));
  }
  info.begin = unsigned_number(offsets[0], "'data_offsets'", place);
  info.end = unsigned_number(offsets[1], "'data_offsets'", place);
  if (info.begin > info.end) {
    place.refuse("'data_offsets' end before they begin", shown(offsets));
  }
  if (info.end > data_bytes) {
    place.refuse(
        fmt::format("its bytes reach beyond the end of the file, which has {} bytes of data",
                    data_bytes),
        shown(offsets));
  }
  const std::uint64_t expected = checked_bytes(info.shape, info.type, place);
  if (info.end - info.begin != expected) {
    place.refuse(fmt::format("'shape' and 'dtype' need {} bytes, 'data_offsets' give {}", expected,
                             info.end - info.begin),
                 shown(offsets));
  }
  return info;
}

/// Refuses tensors that do not cover the data without overlap or gap. The format requires this, so
/// that a file cannot hide data.
void check_coverage(const std::map<std::string, TensorInfo>& tensors, std::uint64_t data_bytes,
                    const std::string& file) {
  std::vector<std::pair<const std::string*, const TensorInfo*>> order;
  for (const auto& [name, info] : tensors) order.emplace_back(&name, &info);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::uint64_t covered = 0;
  const std::string* before = nullptr;
  for (const auto& [name, info] : order) {
    const Place place{file, *name};
    if (info->begin < covered) {
      place.refuse("its bytes overlap those of tensor '" + *before + "'",
                   fmt::format("begin {}", info->begin));
    }
    if (info->begin > covered) {
      place.refuse(fmt::format("{} bytes before it belong to no tensor, which the format forbids",
                               info->begin - covered),
                   fmt::format("begin {}", info->begin));
    }
    covered = info->end;
    before = name;
  }
  if (covered != data_bytes) {
    Place{file}.refuse(fmt::format(
        "the last {} bytes belong to no tensor, which the format forbids", data_bytes - covered));
  }
}

std::uint64_t read_header_length(const ReadOnlyFile& file, const Place& place) {
  if (file.size() < safetensors_length_bytes) {
    place.refuse("is too short for a safetensors file", fmt::format("{} bytes", file.size()));
  }
  std::array<std::byte, safetensors_length_bytes> bytes;
  file.read_at(0, bytes);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  if (length > safetensors_max_header_bytes) {
    place.refuse(
        "its header claims more than the 100 MB that the format allows",
        fmt::format("{} bytes", length),
        "check that this is a safetensors file, not pytorch_model.bin or a Git LFS pointer");
  }
  if (length > file.size() - safetensors_length_bytes) {
    place.refuse("its header claims more bytes than the file has",
                 fmt::format("{} of {}", length, file.size()));
  }
  return length;
}

}  // namespace

std::size_t bytes_of(TensorType type) {
  return row_of(type).bytes;
}

const char* name_of(TensorType type) {
  return row_of(type).name;
}

std::map<std::string, TensorInfo> read_safetensors_header(const ReadOnlyFile& file) {
  const Place place{file.path()};
  const std::uint64_t length = read_header_length(file, place);
  std::string text(length, '\0');
  file.read_at(safetensors_length_bytes, std::as_writable_bytes(std::span(text)));
  if (text.empty() || text.front() != '{') {
    place.refuse("its header does not start with '{'", "", "check that this is a safetensors file");
  }
  const std::uint64_t data_start = safetensors_length_bytes + length;
  const std::uint64_t data_bytes = file.size() - data_start;
  std::map<std::string, TensorInfo> tensors;
  for_each_json_member(
      text, {.file = file.path(), .line = 0, .subject = "its JSON header "},
      [](const std::string& name) { return name != "__metadata__"; },
      [&](const std::string& name, const Json& entry) {
        tensors.emplace(name, parse_tensor(entry, data_bytes, {file.path(), name}));
      });
  check_coverage(tensors, data_bytes, file.path());
  for (auto& [name, info] : tensors) {
    info.begin += data_start;
    info.end += data_start;
  }
  return tensors;
}

std::string safetensors_header_entry(const std::string& name, const TensorInfo& info) {
  return fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":{}}})", Json(name).dump(),
                     name_of(info.type), Json(info.shape).dump(),
                     Json({info.begin, info.end}).dump());
}

std::map<std::string, std::string> parse_safetensors_index(const std::string& text,
                                                           const std::string& path) {
  const Place place{path};
  Json weight_map;
  for_each_json_member(
      text, {.file = path}, [](const std::string& key) { return key == "weight_map"; },
      [&](const std::string&, Json&& value) { weight_map = std::move(value); });
  if (!weight_map.is_object()) place.refuse("has no object 'weight_map'");
  std::map<std::string, std::string> shards;
  for (const auto& [name, shard] : weight_map.items()) {
    const Place here{path, name};
    if (!shard.is_string()) here.refuse("its shard must be a file name", shown(shard));
    const std::string file_name = shard.get<std::string>();
    // Shards are in the directory of the index: a separator or a leading dot would lead elsewhere.
    if (file_name.empty() || file_name.front() == '.' ||
        file_name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      here.refuse("its shard must be the name of a file in the same directory", file_name,
                  "do not use this model: its index is not trustworthy");
    }
    shards.emplace_hint(shards.end(), name, file_name);
  }
  if (shards.empty()) place.refuse("'weight_map' names no tensor");
  return shards;
}

}  // namespace deltapipe
