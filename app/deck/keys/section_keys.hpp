// SPDX-License-Identifier: BSD-3-Clause
// Helpers that add the keys of a section, and the functions of this folder's files.
#pragma once

#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "app/deck/keys.hpp"

namespace deltapipe::deck {

inline constexpr std::int64_t kAnyCount = std::numeric_limits<std::int64_t>::max();
inline constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Appends keys of one section.
class SectionKeys {
 public:
  SectionKeys(std::vector<Key>& keys, std::string section)
      : keys_(keys), section_(std::move(section)) {}

  template <class Target>
  void operator()(const char* name, Target target, std::string meaning) {
    keys_.push_back({section_, name, std::move(target), std::move(meaning)});
  }

 private:
  std::vector<Key>& keys_;
  std::string section_;
};

/// A choice among enumerators by their names.
template <class Enum>
Choice choice(Enum& value, std::vector<std::pair<std::string, Enum>> options) {
  Choice result;
  std::vector<Enum> values;
  for (auto& [name, option] : options) {
    result.names.push_back(name);
    values.push_back(option);
  }
  result.get = [&value, values] {
    std::size_t i = 0;
    while (i + 1 < values.size() && values[i] != value) ++i;
    return i;
  };
  result.set = [&value, values](std::size_t i) { value = values[i]; };
  return result;
}

/// A choice among all enumerators, which count from 0, by the names in their order.
template <class Enum, std::size_t N>
Choice choice(Enum& value, const std::array<const char*, N>& names) {
  Choice result;
  result.names.assign(names.begin(), names.end());
  result.get = [&value] { return static_cast<std::size_t>(value); };
  result.set = [&value](std::size_t i) { value = static_cast<Enum>(i); };
  return result;
}

/// A choice among the names of `known`.
template <class Known>
Choice name_choice(std::string& value, const Known& known) {
  std::vector<std::pair<std::string, std::string>> options;
  for (const auto& one : known) options.emplace_back(one.name, one.name);
  return choice(value, std::move(options));
}

// Each function appends the keys of a section, and of its subsections, in the order of a written
// deck. A key's meaning has at most two short sentences.

void add_model(std::vector<Key>& keys, ModelSettings& settings);
void add_tokenizer(std::vector<Key>& keys, TokenizerSettings& settings);
void add_data(std::vector<Key>& keys, DataSettings& settings);
void add_training(std::vector<Key>& keys, TrainingSettings& settings);
void add_pipeline(std::vector<Key>& keys, PipelineSettings& settings);
void add_boundaries(std::vector<Key>& keys, Draft& draft);
void add_evaluation(std::vector<Key>& keys, EvaluationSettings& settings, AnswerSettings& answers);
void add_cache(std::vector<Key>& keys, CacheSettings& settings);
void add_network(std::vector<Key>& keys, Draft& draft);
void add_output(std::vector<Key>& keys, OutputSettings& settings);
void add_checkpoint(std::vector<Key>& keys, CheckpointSettings& settings);
void add_generate(std::vector<Key>& keys, GenerateSettings& settings);
void add_plan(std::vector<Key>& keys, PlanSettings& plan);

}  // namespace deltapipe::deck
