// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/state/state_in_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/error.hpp"

namespace deltapipe {

std::uint64_t StateContent::bytes() const {
  std::uint64_t sum = 0;
  for (const Part& part : parts)
    for (const Item& item : part.items) sum += item.bytes.size();
  return sum;
}

void MemoryStateWriter::open_item(const StateItem& item) {
  StateContent::Item& added = content_.parts.back().items.emplace_back();
  added.item = item;
  added.bytes.reserve(item.bytes());
}

void MemoryStateWriter::write(const void* elements, std::uint64_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(elements);
  std::vector<std::byte>& all = content_.parts.back().items.back().bytes;
  all.insert(all.end(), begin, begin + bytes);
}

std::vector<std::string> MemoryStateReader::part_names() {
  std::vector<std::string> names;
  for (const StateContent::Part& part : content_.parts) names.push_back(part.name);
  return names;
}

void MemoryStateReader::open_part(const std::string& name) {
  part_ = &*std::find_if(content_.parts.begin(), content_.parts.end(),
                         [&](const StateContent::Part& part) { return part.name == name; });
}

std::vector<std::string> MemoryStateReader::item_names() {
  std::vector<std::string> names;
  for (const StateContent::Item& item : part_->items) names.push_back(item.item.name);
  return names;
}

const StateContent::Item& MemoryStateReader::find_item(const std::string& name) const {
  return *std::find_if(part_->items.begin(), part_->items.end(),
                       [&](const StateContent::Item& item) { return item.item.name == name; });
}

StateItem MemoryStateReader::item(const std::string& name) {
  return find_item(name).item;
}

void MemoryStateReader::open_item(const StateItem& item) {
  item_ = &find_item(item.name);
  read_ = 0;
  if (item_->bytes.size() != item.bytes())
    refuse(item.name, "is truncated", fmt::format("{} bytes", item_->bytes.size()));
}

void MemoryStateReader::read(void* elements, std::uint64_t bytes) {
  std::memcpy(elements, item_->bytes.data() + read_, bytes);
  read_ += bytes;
}

StateContent state_in_memory(std::span<const StatePart> parts) {
  MemoryStateWriter writer;
  write_state(parts, writer);
  return writer.take_content();
}

}  // namespace deltapipe
