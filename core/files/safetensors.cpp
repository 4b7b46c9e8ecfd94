// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "core/base/error.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "core/files/safetensors_header.hpp"

namespace deltapipe {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::size_t piece_bytes = std::size_t{1} << 20;

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (const std::uint64_t dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

template <typename Stored, typename Convert>
void convert_from(const std::vector<std::byte>& bytes, std::span<float> out, Convert convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = convert(stored);
  }
}

template <typename Stored, typename Convert>
void convert_to(std::span<const float> values, std::vector<std::byte>& bytes, Convert convert) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Stored stored = convert(values[i]);
    std::memcpy(bytes.data() + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

bool converts_to_fp32(TensorType type) {
  return type == TensorType::F64 || type == TensorType::F32 || type == TensorType::F16 ||
         type == TensorType::BF16;
}

void to_fp32(TensorType type, const std::vector<std::byte>& bytes, std::span<float> out) {
  switch (type) {
    case TensorType::F64:
      return convert_from<double>(bytes, out, [](double x) { return static_cast<float>(x); });
    case TensorType::F16:
      return convert_from<std::uint16_t>(bytes, out, float_of_half);
    case TensorType::BF16:
      return convert_from<std::uint16_t>(bytes, out, float_of_bfloat);
    default:
      return convert_from<float>(bytes, out, [](float x) { return x; });
  }
}

void from_fp32(TensorType type, std::span<const float> values, std::vector<std::byte>& bytes) {
  switch (type) {
    case TensorType::F16:
      return convert_to<std::uint16_t>(values, bytes, half_of);
    case TensorType::BF16:
      return convert_to<std::uint16_t>(values, bytes, bfloat_of);
    default:
      return convert_to<float>(values, bytes, [](float x) { return x; });
  }
}

std::uint64_t row_elements(const TensorInfo& info) {
  std::uint64_t product = 1;
  for (std::size_t i = 1; i < info.shape.size(); ++i) product *= info.shape[i];
  return product;
}

}  // namespace

std::uint64_t TensorInfo::elements() const {
  return (end - begin) / bytes_of(type);
}

SafetensorsReader SafetensorsReader::open_file(const std::string& path) {
  SafetensorsReader reader;
  reader.source_ = path;
  reader.add_file(path);
  return reader;
}

void SafetensorsReader::add_file(const std::string& path) {
  ReadOnlyFile file(path);
  for (auto& [name, info] : read_safetensors_header(file)) {
    info.file = files_.size();
    if (!tensors_.emplace(name, info).second) {
      throw UserError({.what = fmt::format("tensor '{}' is in {} as well", name,
                                           files_[tensors_.at(name).file].path()),
                       .file = path,
                       .remedy = "remove shards that belong to another model"});
    }
  }
  files_.push_back(std::move(file));
}

SafetensorsReader SafetensorsReader::open_directory(const std::string& directory) {
  namespace fs = std::filesystem;
  const std::string whole = (fs::path(directory) / "model.safetensors").string();
  const std::string index = (fs::path(directory) / "model.safetensors.index.json").string();
  std::error_code ignored;
  if (fs::exists(whole, ignored)) return open_file(whole);
  if (!fs::exists(index, ignored)) {
    throw UserError({.what = "has no model.safetensors and no model.safetensors.index.json",
                     .file = directory,
                     .remedy = "name a Hugging Face directory with safetensors weights (older "
                               "pytorch_model.bin: load and save_pretrained() in transformers)"});
  }
  const std::map<std::string, std::string> shard_of =
      parse_safetensors_index(read_text_file(index, file_limit::weights_index), index);
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) shards.insert(shard);
  SafetensorsReader reader;
  reader.source_ = index;
  std::map<std::string, std::size_t> file_of;
  for (const std::string& shard : shards) {
    const std::string path = (fs::path(directory) / shard).string();
    if (!fs::exists(path, ignored)) {
      throw UserError(
          {.what = "the shard '" + shard + "' is missing",
           .file = index,
           .remedy = fmt::format("download all {} shards of the model", shards.size())});
    }
    file_of[shard] = reader.files_.size();
    reader.add_file(path);
  }
  for (const auto& [name, shard] : shard_of) {
    const auto found = reader.tensors_.find(name);
    if (found == reader.tensors_.end() || found->second.file != file_of.at(shard)) {
      throw UserError(
          {.what = fmt::format("tensor '{}' is not in the shard '{}' that the index names", name,
                               shard),
           .file = index,
           .remedy = "index and shards belong to different models; download them again"});
    }
  }
  return reader;
}

const TensorInfo& SafetensorsReader::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw UserError({.what = "has no tensor '" + name + "'",
                     .file = source_,
                     .remedy = "check that these are the weights of the model in config.json"});
  }
  return found->second;
}

const std::string& SafetensorsReader::path_of(const std::string& name) const {
  return files_[info(name).file].path();
}

void SafetensorsReader::expect_shape(const std::string& name,
                                     const std::vector<std::uint64_t>& shape) const {
  const TensorInfo& tensor = info(name);
  if (tensor.shape == shape) return;
  throw UserError(
      {.what = fmt::format("tensor '{}' must have the shape {}", name, shape_text(shape)),
       .file = files_[tensor.file].path(),
       .value = shape_text(tensor.shape),
       .remedy = "check that config.json belongs to these weights"});
}

void SafetensorsReader::read_fp32(const std::string& name, std::span<float> out) const {
  DELTAPIPE_ASSERT(out.size() == info(name).elements(), name);
  read_range(name, 0, out);
}

void SafetensorsReader::read_fp32_rows(const std::string& name, std::uint64_t first_row,
                                       std::uint64_t rows, std::span<float> out) const {
  const TensorInfo& tensor = info(name);
  DELTAPIPE_ASSERT(!tensor.shape.empty(), name);
  DELTAPIPE_ASSERT(first_row <= tensor.shape[0] && rows <= tensor.shape[0] - first_row, name);
  const std::uint64_t row = tensor.elements() == 0 ? 0 : row_elements(tensor);
  DELTAPIPE_ASSERT(out.size() == rows * row, name);
  read_range(name, first_row * row, out);
}

void SafetensorsReader::read_range(const std::string& name, std::uint64_t first_element,
                                   std::span<float> out) const {
  const TensorInfo& tensor = info(name);
  const ReadOnlyFile& file = files_[tensor.file];
  if (!converts_to_fp32(tensor.type)) {
    throw UserError({.what = "tensor '" + name + "' does not hold weights",
                     .file = file.path(),
                     .value = name_of(tensor.type),
                     .remedy = "convert the weights to F32, F16 or BF16"});
  }
  const std::size_t element_bytes = bytes_of(tensor.type);
  std::uint64_t offset = tensor.begin + first_element * element_bytes;
  if (tensor.type == TensorType::F32) {
    file.read_at(offset, std::as_writable_bytes(out));
    return;
  }
  std::vector<std::byte> piece;
  while (!out.empty()) {
    const std::size_t count = std::min(out.size(), piece_bytes / element_bytes);
    piece.resize(count * element_bytes);
    file.read_at(offset, piece);
    to_fp32(tensor.type, piece, out.first(count));
    offset += piece.size();
    out = out.subspan(count);
  }
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<TensorDeclaration>& tensors)
    : file_(path) {
  // The header lists tensors in the order of their data.
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t end = 0;
  for (const TensorDeclaration& tensor : tensors) {
    DELTAPIPE_ASSERT(tensor.name != "__metadata__", tensor.name);
    Slot new_slot;
    new_slot.info.type = tensor.type;
    new_slot.info.shape = tensor.shape;
    new_slot.info.begin = end;
    std::uint64_t bytes = bytes_of(tensor.type);
    for (const std::uint64_t dimension : tensor.shape) bytes *= dimension;
    end += bytes;
    new_slot.info.end = end;
    const bool is_new = slots_.emplace(tensor.name, new_slot).second;
    DELTAPIPE_ASSERT(is_new, "tensor '" + tensor.name + "' is declared twice");
    text += "," + safetensors_header_entry(tensor.name, new_slot.info);
  }
  text += "}";
  // Padded with spaces, so that the data is aligned for readers that map the file.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  const std::uint64_t data_start = safetensors_length_bytes + length;
  for (auto& [name, tensor] : slots_) {
    tensor.info.begin += data_start;
    tensor.info.end += data_start;
  }
  file_.reserve(data_start + end);
  file_.append(std::as_bytes(std::span(&length, 1)));
  file_.append(std::as_bytes(std::span(text)));
}

SafetensorsWriter::Slot& SafetensorsWriter::slot(const std::string& name) {
  const auto found = slots_.find(name);
  DELTAPIPE_ASSERT(found != slots_.end(), "tensor '" + name + "' was not declared");
  return found->second;
}

void SafetensorsWriter::write_fp32(const std::string& name, std::span<const float> values) {
  Slot& target = slot(name);
  DELTAPIPE_ASSERT(values.size() == target.info.elements(), name);
  write_range(name, target, 0, values);
}

void SafetensorsWriter::write_fp32_rows(const std::string& name, std::uint64_t first_row,
                                        std::span<const float> values) {
  Slot& target = slot(name);
  const std::uint64_t row = row_elements(target.info);
  DELTAPIPE_ASSERT(row == 0 ? values.empty() : values.size() % row == 0, name);
  write_range(name, target, first_row * row, values);
}

void SafetensorsWriter::write_zeros(const std::string& name) {
  Slot& target = slot(name);
  DELTAPIPE_ASSERT(target.written.empty(), "tensor '" + name + "' is written twice");
  file_.write_at(target.info.begin, std::vector<std::byte>(target.info.end - target.info.begin));
  target.written[0] = target.info.elements();
}

namespace {

std::uint64_t overflows_of(TensorType type, std::span<const float> values) {
  const float infinite = type == TensorType::F16 ? 65520.0f : 0x1.ffp127f;  // and above
  if (type == TensorType::F32) return 0;
  return static_cast<std::uint64_t>(std::count_if(values.begin(), values.end(), [&](float x) {
    return std::isfinite(x) && std::abs(x) >= infinite;
  }));
}

}  // namespace

void SafetensorsWriter::write_range(const std::string& name, Slot& target,
                                    std::uint64_t first_element, std::span<const float> values) {
  if (values.empty()) return;
  DELTAPIPE_ASSERT(target.info.type != TensorType::F64 && converts_to_fp32(target.info.type), name);
  const std::uint64_t last_element = first_element + values.size();
  DELTAPIPE_ASSERT(last_element <= target.info.elements(), name);
  const auto after = target.written.lower_bound(last_element);
  DELTAPIPE_ASSERT(after == target.written.begin() || std::prev(after)->second <= first_element,
                   "tensor '" + name + "' is written twice");
  const std::size_t element_bytes = bytes_of(target.info.type);
  std::uint64_t offset = target.info.begin + first_element * element_bytes;
  std::vector<std::byte> piece;
  for (std::span<const float> rest = values; !rest.empty();) {
    const std::size_t count = std::min(rest.size(), piece_bytes / element_bytes);
    piece.resize(count * element_bytes);
    from_fp32(target.info.type, rest.first(count), piece);
    overflows_ += overflows_of(target.info.type, rest.first(count));
    file_.write_at(offset, piece);
    offset += piece.size();
    rest = rest.subspan(count);
  }
  target.written[first_element] = last_element;
}

void SafetensorsWriter::finish() {
  for (const auto& [name, tensor] : slots_) {
    std::uint64_t covered = 0;
    for (const auto& [first, last] : tensor.written) covered += last - first;
    DELTAPIPE_ASSERT(covered == tensor.info.elements(),
                     "tensor '" + name + "' was not written in full");
  }
  file_.commit();
}

}  // namespace deltapipe
