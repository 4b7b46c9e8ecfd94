// SPDX-License-Identifier: BSD-3-Clause
#include "app/session/frozen_parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "app/deck/nearest.hpp"
#include "app/output/progress_display.hpp"
#include "core/base/error.hpp"
#include "models/parameter_patterns.hpp"

namespace deltapipe {

namespace {

constexpr const char* kKey = "training.optimizer.frozen";

std::string quoted(const std::string& text) {
  return '"' + text + '"';
}

/// The parameters' names and those of the modules that they belong to.
std::vector<std::string> known_names(const std::vector<ParameterInfo>& parameters) {
  std::set<std::string> names;
  for (const ParameterInfo& p : parameters)
    for (std::size_t end = p.name.size(); end != std::string::npos;
         end = p.name.rfind('.', end - 1))
      names.insert(p.name.substr(0, end));
  return {names.begin(), names.end()};
}

/// "h.*.ln_1.weight" for those of all blocks.
std::string without_numbers(const std::string& name) {
  std::string text;
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    const bool is_number = part.find_first_not_of("0123456789") == std::string::npos;
    text += (begin == 0 ? "" : ".") + (is_number ? "*" : part);
    begin = end + 1;
  }
  return text;
}

std::string list_of(const std::vector<ParameterInfo>& parameters) {
  std::vector<std::string> patterns;
  for (const ParameterInfo& p : parameters) {
    std::string pattern = without_numbers(p.name);
    if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end())
      patterns.push_back(std::move(pattern));
  }
  std::string text;
  for (const std::string& pattern : patterns) text += (text.empty() ? "" : ", ") + pattern;
  return text;
}

/// A name of the saved files of models whose embeddings are not tied.
void refuse_tied(const std::string& pattern, const Model& model) {
  for (const auto& [name, parameter] : model.tied_names())
    if (matches_parameter(pattern, name))
      throw UserError(
          {.what = fmt::format("{} names {}, which is {} in this model: its embeddings are tied",
                               kKey, name, parameter),
           .value = quoted(pattern),
           .remedy = "name " + quoted(parameter) + " to freeze both",
           .keys = {kKey}});
}

[[noreturn]] void refuse_unknown(const std::string& pattern, const Model& model) {
  const std::vector<ParameterInfo> parameters =
      model.parameters({0, model.shape().blocks, true, true});
  const std::string name =
      pattern.ends_with(".*") ? pattern.substr(0, pattern.size() - 2) : pattern;
  const std::string near = deck::nearest(name, known_names(parameters));
  throw UserError({.what = fmt::format("{} names no parameter of the model", kKey),
                   .value = quoted(pattern),
                   .remedy = fmt::format("{}a {} has {}",
                                         near.empty() ? "" : "did you mean " + quoted(near) + "? ",
                                         model.description(), list_of(parameters)),
                   .keys = {kKey}});
}

}  // namespace

void freeze_parameters(const std::vector<std::string>& patterns, Model& model) {
  std::set<std::string> frozen;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> names = matching_parameters(model, pattern);
    if (names.empty()) {
      refuse_tied(pattern, model);
      refuse_unknown(pattern, model);
    }
    frozen.insert(names.begin(), names.end());
  }
  const std::vector<ParameterInfo> all = model.parameters({0, model.shape().blocks, true, true});
  if (std::ranges::all_of(all, [&](const ParameterInfo& p) {
        return p.frozen || p.statistic || frozen.contains(p.name);
      }))
    throw UserError({.what = fmt::format(
                         "{} names all parameters of the model: there is nothing to train", kKey),
                     .remedy = "leave out a pattern",
                     .keys = {kKey}});
  model.freeze(std::move(frozen));
}

std::string parameters_text(const ParameterCount& count) {
  const std::string all = with_prefix(static_cast<double>(count.all));
  if (count.trained == count.all) return all;
  return fmt::format("{} of {} trained", with_prefix(static_cast<double>(count.trained)), all);
}

}  // namespace deltapipe
