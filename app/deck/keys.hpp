// SPDX-License-Identifier: BSD-3-Clause
// The deck's keys, each described once: where it stands, what it may hold, what it means, and the
// setting that it sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "app/deck/settings.hpp"
#include "app/deck/units.hpp"

namespace deltapipe::deck {

/// Settings while they are read or written, with the lists of [network] as the deck has them.
struct Draft {
  Settings settings;
  struct Links {
    std::vector<double> bits_per_second;
    std::vector<double> latency_seconds;
  };
  Links both, forward, backward, replicas;
  /// codec = "auto", which leaves the rest of its section to recommended_settings().
  bool forward_is_auto = false, backward_is_auto = false;
};

/// The draft of finished settings.
Draft draft_of(const Settings& settings);

struct Flag {
  bool* value;
};
struct Integer {
  std::variant<int*, std::uint64_t*> value;
  std::int64_t low, high;
};
struct IntegerList {
  std::vector<int>* value;
  std::int64_t low, high;
};
/// low <= value <= high, without an end that is open.
struct Real {
  double* value;
  double low, high;
  bool low_open = false, high_open = false;
  bool or_zero = false;  ///< 0 is allowed below the range
};
/// Each 0 or low <= value <= high; one for all boundaries or one per boundary.
struct RealList {
  std::vector<double>* value;
  double low, high;
};
struct Text {
  std::string* value;
  bool may_be_empty = true;
};
struct TextList {
  std::vector<std::string>* value;
};
struct Choice {
  std::vector<std::string> names;
  std::function<std::size_t()> get;
  std::function<void(std::size_t)> set;
};
/// Whole bytes.
struct Size {
  std::uint64_t* value;
};
/// 0 <= value <= high.
struct Quantity {
  double* value;
  std::span<const Unit> units;
  double high;
};
/// Each 0 or low <= value <= high.
struct QuantityList {
  std::vector<double>* value;
  std::span<const Unit> units;
  double low, high;
};

struct Key {
  std::string section;  ///< "training.optimizer"
  std::string name;     ///< "learning_rate"
  std::variant<Flag, Integer, IntegerList, Real, RealList, Text, TextList, Choice, Size, Quantity,
               QuantityList>
      target;
  std::string meaning;  ///< one line, unit included

  std::string full_name() const { return section + "." + name; }
};

struct Section {
  std::string name;
  std::string meaning;
};

/// The sections in the order of a written deck.
std::span<const Section> sections();

/// All keys in the order of a written deck; their targets point into `draft`, which must outlive
/// them.
std::vector<Key> keys_of(Draft& draft);

/// The present value of a key, in TOML; it is JSON as well.
std::string written(const Key& key);

/// Values that a key may hold: "integer, 1 to 8".
std::string allowed(const Key& key);

}  // namespace deltapipe::deck
