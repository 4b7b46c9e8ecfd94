// SPDX-License-Identifier: BSD-3-Clause
// The state of a run between steps, as a list of named parts that write and read themselves. It is
// all that a restart needs; everything else is a function of (deck, seed, step).
//
// A part is a sequence of items: arrays with a name, a type and a shape. Writers and readers
// process an item's elements in pieces, so that no part needs memory for all of its elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace deltapipe {

enum class StateType { u8, i32, u32, i64, u64, f32, f64 };

const char* name_of(StateType type);
std::size_t bytes_of(StateType type);

template <class T>
constexpr StateType state_type_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return StateType::u8;
  if constexpr (std::is_same_v<T, std::int32_t>) return StateType::i32;
  if constexpr (std::is_same_v<T, std::uint32_t>) return StateType::u32;
  if constexpr (std::is_same_v<T, std::int64_t>) return StateType::i64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return StateType::u64;
  if constexpr (std::is_same_v<T, float>) return StateType::f32;
  if constexpr (std::is_same_v<T, double>) return StateType::f64;
  static_assert(std::is_same_v<T, std::uint8_t> || std::is_same_v<T, std::int32_t> ||
                    std::is_same_v<T, std::uint32_t> || std::is_same_v<T, std::int64_t> ||
                    std::is_same_v<T, std::uint64_t> || std::is_same_v<T, float> ||
                    std::is_same_v<T, double>,
                "no type of a state's item");
}

/// A scalar is an array of one element; text is an array of u8.
struct StateItem {
  std::string name;  ///< unique in its part, without '/'
  StateType type = StateType::u8;
  std::vector<std::uint64_t> shape;  ///< row-major; an extent may be 0

  std::uint64_t elements() const;
  std::uint64_t bytes() const { return elements() * bytes_of(type); }
  bool operator==(const StateItem&) const = default;
};

/// Destination of state. Parts are written one after another, and so are the items of a part.
class StateWriter {
 public:
  virtual ~StateWriter() = default;

  void begin_part(const std::string& name);
  void end_part();
  /// Begins an item. Calls of append() must follow until all of its bytes are written, in row-major
  /// order; an empty item is complete at once.
  void begin_item(const StateItem& item);
  void append(const void* elements, std::uint64_t bytes);
  /// Returns true if the current part has an item of that name.
  bool has_item(const std::string& name) const { return items_.contains(name); }

 protected:
  virtual void open_part(const std::string& name) = 0;
  virtual void close_part() = 0;
  virtual void open_item(const StateItem& item) = 0;
  virtual void write(const void* elements, std::uint64_t bytes) = 0;
  virtual void close_item() = 0;

 private:
  std::set<std::string> parts_, items_;
  bool in_part_ = false;
  std::uint64_t bytes_left_ = 0;  ///< bytes of the current item that are still missing
};

/// Source of state. Any difference from the request (a missing part or item, another type or shape,
/// missing or damaged bytes) is a UserError that names file, part and item. The values read so far
/// must then be discarded.
class StateReader {
 public:
  virtual ~StateReader() = default;

  void begin_part(const std::string& name);
  /// Ends a part. All of its items must have been read.
  void end_part();
  /// Returns the item of that name, for content whose size depends on the data: text.
  StateItem find(const std::string& name);
  /// Begins an item, which must match exactly. Calls of take() must follow until all of its bytes
  /// are read.
  void begin_item(const StateItem& item);
  void take(void* elements, std::uint64_t bytes);
  /// Makes an item of the current part available again, if it was read.
  void allow_again(const std::string& name) {
    if (items_.contains(name)) not_read_.insert(name);
  }

  virtual std::vector<std::string> part_names() = 0;
  /// Returns the items of the current part that were not read.
  std::vector<std::string> items_left() const { return {not_read_.begin(), not_read_.end()}; }

  /// Throws a UserError about an item of the current part.
  [[noreturn]] void refuse(const std::string& item, const std::string& wrong,
                           const std::string& value, const std::string& remedy = {}) const;
  /// Throws a UserError about a part.
  [[noreturn]] void refuse_part(const std::string& part, const std::string& wrong) const;

 protected:
  /// Returns the name for messages; empty: state in memory.
  virtual std::string file_name() const { return {}; }
  virtual void open_part(const std::string& name) = 0;
  virtual void close_part() = 0;
  virtual std::vector<std::string> item_names() = 0;  ///< items of the open part
  virtual StateItem item(const std::string& name) = 0;
  virtual void open_item(const StateItem& item) = 0;
  virtual void read(void* elements, std::uint64_t bytes) = 0;
  virtual void close_item() = 0;

 private:
  std::string part_;             ///< current part; empty: none
  std::set<std::string> items_;  ///< items of the current part
  std::set<std::string> not_read_;
  std::uint64_t bytes_left_ = 0;
};

/// Refers to the object whose state it is; the object must outlive it and must not move.
struct StatePart {
  std::string name;  ///< unique in a rank's list
  std::function<void(StateWriter&)> write;
  std::function<void(StateReader&)> read;
};

/// Merges parts of the same name into one, with the items of all of them in this order.
std::vector<StatePart> merged_parts(std::vector<std::vector<StatePart>> lists);

void write_state(std::span<const StatePart> parts, StateWriter& writer);
/// Reads the parts. The reader must have these parts, in any order, and no others.
void read_state(std::span<const StatePart> parts, StateReader& reader);

template <class T>
void write_array(StateWriter& writer, const std::string& name, std::span<const T> values) {
  writer.begin_item({name, state_type_of<T>(), {values.size()}});
  writer.append(values.data(), values.size_bytes());
}
/// Reads as many elements as `values` has.
template <class T>
void read_array(StateReader& reader, const std::string& name, std::span<T> values) {
  reader.begin_item({name, state_type_of<T>(), {values.size()}});
  reader.take(values.data(), values.size_bytes());
}

template <class T>
void write_scalar(StateWriter& writer, const std::string& name, T value) {
  write_array(writer, name, std::span<const T>(&value, 1));
}
template <class T>
T read_scalar(StateReader& reader, const std::string& name) {
  T value{};
  read_array(reader, name, std::span<T>(&value, 1));
  return value;
}
/// Reads a value that must be the same as when it was written; UserError if it differs.
template <class T>
void expect_scalar(StateReader& reader, const std::string& name, T value) {
  const T found = read_scalar<T>(reader, name);
  if (found != value)
    reader.refuse(name, "differs from this run's",
                  std::to_string(found) + ", not " + std::to_string(value));
}

void write_text(StateWriter& writer, const std::string& name, std::string_view text);
std::string read_text(StateReader& reader, const std::string& name);

}  // namespace deltapipe
