// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/state/state_in_memory.hpp"

#include <utility>

namespace deltapipe {

namespace {

class MemoryStateWriter final : public StateWriter {
 public:
  StateContent content;

 protected:
  void open_part(const std::string& name) override { content.parts.push_back({name, {}}); }
  void close_part() override {}
  void open_item(const StateItem& item) override {
    StateContent::Item& added = content.parts.back().items.emplace_back();
    added.item = item;
    added.bytes.reserve(item.bytes());
  }
  void write(const void* elements, std::uint64_t bytes) override {
    const auto* const begin = static_cast<const std::byte*>(elements);
    std::vector<std::byte>& all = content.parts.back().items.back().bytes;
    all.insert(all.end(), begin, begin + bytes);
  }
  void close_item() override {}
};

}  // namespace

std::uint64_t StateContent::bytes() const {
  std::uint64_t sum = 0;
  for (const Part& part : parts)
    for (const Item& item : part.items) sum += item.bytes.size();
  return sum;
}

StateContent state_in_memory(std::span<const StatePart> parts) {
  MemoryStateWriter writer;
  write_state(parts, writer);
  return std::move(writer.content);
}

}  // namespace deltapipe
