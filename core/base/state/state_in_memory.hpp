// SPDX-License-Identifier: BSD-3-Clause
// State in memory, for comparisons and for reading it back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/state/state.hpp"

namespace deltapipe {

struct StateContent {
  struct Item {
    StateItem item;
    std::vector<std::byte> bytes;
    bool operator==(const Item&) const = default;
  };
  struct Part {
    std::string name;
    std::vector<Item> items;
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;
  bool operator==(const StateContent&) const = default;

  std::uint64_t bytes() const;  ///< bytes of all items
};

class MemoryStateWriter final : public StateWriter {
 public:
  const StateContent& content() const { return content_; }
  /// Returns the content and leaves the writer empty.
  StateContent take_content() { return std::exchange(content_, {}); }

 protected:
  void open_part(const std::string& name) override { content_.parts.push_back({name, {}}); }
  void close_part() override {}
  void open_item(const StateItem& item) override;
  void write(const void* elements, std::uint64_t bytes) override;
  void close_item() override {}

 private:
  StateContent content_;
};

class MemoryStateReader final : public StateReader {
 public:
  /// Reads from `content`, which must outlive it.
  explicit MemoryStateReader(const StateContent& content) : content_(content) {}

  std::vector<std::string> part_names() override;

 protected:
  void open_part(const std::string& name) override;
  void close_part() override {}
  std::vector<std::string> item_names() override;
  StateItem item(const std::string& name) override;
  void open_item(const StateItem& item) override;
  void read(void* elements, std::uint64_t bytes) override;
  void close_item() override {}

 private:
  const StateContent::Item& find_item(const std::string& name) const;

  const StateContent& content_;
  const StateContent::Part* part_ = nullptr;
  const StateContent::Item* item_ = nullptr;
  std::size_t read_ = 0;  ///< bytes of the current item that were read
};

StateContent state_in_memory(std::span<const StatePart> parts);

}  // namespace deltapipe
