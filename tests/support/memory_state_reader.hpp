// SPDX-License-Identifier: BSD-3-Clause
// State in memory, read back.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/state/state_in_memory.hpp"

namespace deltapipe {

class MemoryStateReader final : public StateReader {
 public:
  /// Reads from `content`, which must outlive it.
  explicit MemoryStateReader(const StateContent& content) : content_(content) {}

  std::vector<std::string> part_names() override {
    std::vector<std::string> names;
    for (const StateContent::Part& part : content_.parts) names.push_back(part.name);
    return names;
  }

 protected:
  void open_part(const std::string& name) override {
    part_ = &*std::find_if(content_.parts.begin(), content_.parts.end(),
                           [&](const StateContent::Part& part) { return part.name == name; });
  }
  void close_part() override {}
  std::vector<std::string> item_names() override {
    std::vector<std::string> names;
    for (const StateContent::Item& item : part_->items) names.push_back(item.item.name);
    return names;
  }
  StateItem item(const std::string& name) override { return find_item(name).item; }
  void open_item(const StateItem& item) override {
    item_ = &find_item(item.name);
    read_ = 0;
    if (item_->bytes.size() != item.bytes())
      refuse(item.name, "is truncated", std::to_string(item_->bytes.size()) + " bytes");
  }
  void read(void* elements, std::uint64_t bytes) override {
    std::memcpy(elements, item_->bytes.data() + read_, bytes);
    read_ += bytes;
  }
  void close_item() override {}

 private:
  const StateContent::Item& find_item(const std::string& name) const {
    return *std::find_if(part_->items.begin(), part_->items.end(),
                         [&](const StateContent::Item& item) { return item.item.name == name; });
  }

  const StateContent& content_;
  const StateContent::Part* part_ = nullptr;
  const StateContent::Item* item_ = nullptr;
  std::size_t read_ = 0;  ///< bytes of the current item that were read
};

}  // namespace deltapipe
