// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/unknown_names.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "app/deck/deck_mistakes.hpp"
#include "app/deck/nearest.hpp"

namespace deltapipe::deck {

const Key* find_key(const std::vector<Key>& keys, const std::string& section,
                    const std::string& name) {
  for (const Key& key : keys) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

bool is_section(const std::string& name) {
  for (const Section& section : sections()) {
    if (section.name == name || section.name.starts_with(name + ".")) return true;
  }
  return false;
}

void refuse_section(const std::string& name, const DeckPlace& place) {
  std::vector<std::string> names;
  std::string all;
  for (const Section& section : sections()) {
    names.push_back(section.name);
    all += (all.empty() ? "[" : ", [") + section.name + "]";
  }
  const std::string best = nearest(name, names);
  refuse(place, "unknown section [" + name + "]", {},
         best.empty() ? "the sections are " + all : "did you mean [" + best + "]?");
}

std::string question(const std::string& best) {
  return "did you mean '" + best + "'?";
}

std::string full_names(const std::vector<Key>& keys, const std::string& name) {
  std::string names;
  for (const Key& key : keys)
    if (key.name == name) names += (names.empty() ? "" : "' or '") + key.full_name();
  return names;
}

namespace {

/// Returns true if the names differ in underscores alone.
bool is_spelling_of(std::string a, std::string b) {
  std::erase(a, '_');
  std::erase(b, '_');
  return a == b;
}

/// Remedy for an unknown key: the same letters in its section, the same name elsewhere, the nearest
/// in its section, or the list.
std::string remedy_for(const std::vector<Key>& keys, const std::string& section,
                       const std::string& name) {
  std::vector<std::string> siblings;
  std::string all;
  for (const Key& key : keys) {
    if (key.section != section) continue;
    siblings.push_back(key.name);
    all += (all.empty() ? "" : ", ") + key.name;
  }
  for (const Section& other : sections()) {
    if (other.name.starts_with(section + ".")) {
      siblings.push_back(other.name.substr(section.size() + 1));
    }
  }
  for (const std::string& sibling : siblings)
    if (is_spelling_of(name, sibling)) return question(sibling);
  if (const std::string named = full_names(keys, name); !named.empty()) return question(named);
  if (const std::string best = nearest(name, siblings); !best.empty()) return question(best);
  // Keys of other sections are farther from what was meant than those here that contain the name.
  const bool is_part = std::any_of(siblings.begin(), siblings.end(), [&](const std::string& other) {
    return other.find(name) != std::string::npos;
  });
  std::vector<std::string> names;
  constexpr std::size_t kShortestElsewhere = 6;  // shorter names are near to too many
  if (!is_part && name.size() >= kShortestElsewhere)
    for (const Key& key : keys) names.push_back(key.name);
  if (const std::string best = nearest(name, names); !best.empty()) {
    for (const Key& key : keys) {
      if (key.name == best) return question(key.full_name());
    }
  }
  return all.empty() ? "it has only sections"
                     : fmt::format("the keys of [{}] are {}", section, all);
}

}  // namespace

void refuse_key(const std::vector<Key>& keys, const std::string& section, const std::string& name,
                const DeckPlace& place) {
  refuse(place, fmt::format("unknown key '{}' in [{}]", name, section), {},
         remedy_for(keys, section, name));
}

}  // namespace deltapipe::deck
