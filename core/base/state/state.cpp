// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/state/state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

constexpr const char* kOtherState = "read the state that this deck's run wrote, on the same layout";

std::string text_of(const StateItem& item) {
  std::string text = std::string(name_of(item.type)) + " [";
  for (std::size_t i = 0; i < item.shape.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(item.shape[i]);
  return text + "]";
}

bool is_proper_name(const std::string& name) {
  return !name.empty() && name != "." && name.find('/') == std::string::npos;
}

}  // namespace

const char* name_of(StateType type) {
  constexpr const char* kNames[] = {"u8", "i32", "u32", "i64", "u64", "f32", "f64"};
  return kNames[static_cast<std::size_t>(type)];
}

std::size_t bytes_of(StateType type) {
  constexpr std::size_t kBytes[] = {1, 4, 4, 8, 8, 4, 8};
  return kBytes[static_cast<std::size_t>(type)];
}

std::uint64_t StateItem::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : shape) product *= extent;
  return product;
}

void StateWriter::begin_part(const std::string& name) {
  DELTAPIPE_ASSERT(!in_part_, "part " + name + " begins inside of another");
  DELTAPIPE_ASSERT(is_proper_name(name) && parts_.insert(name).second, "part " + name);
  in_part_ = true;
  items_.clear();
  open_part(name);
}

void StateWriter::end_part() {
  DELTAPIPE_ASSERT(in_part_ && bytes_left_ == 0, "a part ends within an item");
  close_part();
  in_part_ = false;
}

void StateWriter::begin_item(const StateItem& item) {
  DELTAPIPE_ASSERT(in_part_ && bytes_left_ == 0, "item " + item.name + " begins within another");
  DELTAPIPE_ASSERT(!item.shape.empty() && is_proper_name(item.name), "item " + item.name);
  DELTAPIPE_ASSERT(items_.insert(item.name).second, "item " + item.name + " twice");
  open_item(item);
  bytes_left_ = item.bytes();
  if (bytes_left_ == 0) close_item();
}

void StateWriter::append(const void* elements, std::uint64_t bytes) {
  DELTAPIPE_ASSERT(bytes <= bytes_left_, "more bytes than the item has");
  if (bytes == 0) return;
  write(elements, bytes);
  bytes_left_ -= bytes;
  if (bytes_left_ == 0) close_item();
}

void StateReader::refuse(const std::string& item, const std::string& wrong,
                         const std::string& value, const std::string& remedy) const {
  throw UserError({.what = fmt::format("the state's item '{}' of part '{}' {}", item, part_, wrong),
                   .file = file_name(),
                   .value = value,
                   .remedy = remedy.empty() ? kOtherState : remedy});
}

void StateReader::refuse_part(const std::string& part, const std::string& wrong) const {
  throw UserError({.what = fmt::format("the state's part '{}' {}", part, wrong),
                   .file = file_name(),
                   .remedy = kOtherState});
}

void StateReader::begin_part(const std::string& name) {
  DELTAPIPE_ASSERT(part_.empty() && !name.empty(), "part " + name + " begins inside of another");
  const std::vector<std::string> names = part_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) refuse_part(name, "is missing");
  part_ = name;
  open_part(name);
  const std::vector<std::string> items = item_names();
  items_ = not_read_ = {items.begin(), items.end()};
}

void StateReader::end_part() {
  DELTAPIPE_ASSERT(!part_.empty() && bytes_left_ == 0, "a part ends within an item");
  if (!not_read_.empty()) refuse(*not_read_.begin(), "is unknown", "");
  close_part();
  part_.clear();
}

StateItem StateReader::find(const std::string& name) {
  DELTAPIPE_ASSERT(!part_.empty() && bytes_left_ == 0, "item " + name + " within another");
  if (!not_read_.contains(name)) refuse(name, "is missing", "");
  return item(name);
}

void StateReader::begin_item(const StateItem& expected) {
  const StateItem found = find(expected.name);
  if (found != expected)
    refuse(expected.name, "has another type or shape",
           text_of(found) + ", not " + text_of(expected));
  not_read_.erase(expected.name);
  open_item(expected);
  bytes_left_ = expected.bytes();
  if (bytes_left_ == 0) close_item();
}

void StateReader::take(void* elements, std::uint64_t bytes) {
  DELTAPIPE_ASSERT(bytes <= bytes_left_, "more bytes than the item has");
  if (bytes == 0) return;
  read(elements, bytes);
  bytes_left_ -= bytes;
  if (bytes_left_ == 0) close_item();
}

std::vector<StatePart> merged_parts(std::vector<std::vector<StatePart>> lists) {
  std::vector<StatePart> merged;
  for (std::vector<StatePart>& list : lists)
    for (StatePart& part : list) {
      const auto same = std::find_if(merged.begin(), merged.end(), [&](const StatePart& other) {
        return other.name == part.name;
      });
      if (same == merged.end()) {
        merged.push_back(std::move(part));
        continue;
      }
      same->write = [first = same->write, second = part.write](StateWriter& writer) {
        first(writer);
        second(writer);
      };
      same->read = [first = same->read, second = part.read](StateReader& reader) {
        first(reader);
        second(reader);
      };
    }
  return merged;
}

void write_state(std::span<const StatePart> parts, StateWriter& writer) {
  for (const StatePart& part : parts) {
    writer.begin_part(part.name);
    part.write(writer);
    writer.end_part();
  }
}

void read_state(std::span<const StatePart> parts, StateReader& reader) {
  for (const std::string& name : reader.part_names())
    if (std::none_of(parts.begin(), parts.end(),
                     [&](const StatePart& part) { return part.name == name; }))
      reader.refuse_part(name, "is unknown");
  for (const StatePart& part : parts) {
    reader.begin_part(part.name);
    part.read(reader);
    reader.end_part();
  }
}

void write_text(StateWriter& writer, const std::string& name, std::string_view text) {
  writer.begin_item({name, StateType::u8, {text.size()}});
  writer.append(text.data(), text.size());
}

std::string read_text(StateReader& reader, const std::string& name) {
  constexpr std::uint64_t kLongest = 1 << 24;
  const StateItem item = reader.find(name);
  if (item.type != StateType::u8 || item.shape.size() != 1 || item.shape[0] > kLongest)
    reader.refuse(name, "is not text", "");
  std::string text(item.shape[0], '\0');
  reader.begin_item(item);
  reader.take(text.data(), text.size());
  return text;
}

}  // namespace deltapipe
