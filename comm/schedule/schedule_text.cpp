// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "comm/schedule/schedule.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

/// Names, indexed by the value of the enum.
constexpr std::array<std::string_view, 23> kActionNames = {"send_embedding",
                                                           "receive_embedding",
                                                           "send_next_embedding",
                                                           "receive_activation",
                                                           "forward",
                                                           "send_activation",
                                                           "receive_gradient",
                                                           "backward",
                                                           "backward_inputs",
                                                           "backward_parameters",
                                                           "send_gradient",
                                                           "send_embedding_gradient",
                                                           "receive_embedding_gradient",
                                                           "reduce_gradients",
                                                           "reduce_zeros",
                                                           "add_embedding_gradient",
                                                           "receive_common_gradient",
                                                           "add_common_gradient",
                                                           "send_common_gradient",
                                                           "finish_reductions",
                                                           "update",
                                                           "receive_common_values",
                                                           "send_common_values"};
static_assert(static_cast<std::size_t>(Action::send_common_values) + 1 == kActionNames.size());

std::string_view take_word(std::string_view& text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  const std::size_t end = std::min(text.find(' ', begin), text.size());
  const std::string_view word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

std::optional<Action> action_of(std::string_view name) {
  for (std::size_t i = 0; i < kActionNames.size(); ++i)
    if (kActionNames[i] == name) return static_cast<Action>(i);
  return std::nullopt;
}

/// Parses "name=VALUE"; VALUE must not be negative.
bool take_field(std::string_view word, Instruction& instruction) {
  const std::size_t equals = word.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = word.substr(0, equals), digits = word.substr(equals + 1);
  int* const field = name == "stage"         ? &instruction.stage
                     : name == "micro_batch" ? &instruction.micro_batch
                     : name == "slot"        ? &instruction.slot
                                             : nullptr;
  if (field == nullptr) return false;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *field);
  return error == std::errc() && end == digits.data() + digits.size() && *field >= 0;
}

/// Returns true if the instruction names the micro-batch and slot that its action needs.
bool is_complete(const Instruction& instruction) {
  switch (instruction.action) {
    case Action::receive_activation:
    case Action::forward:
    case Action::send_activation:
    case Action::receive_gradient:
    case Action::backward:
    case Action::backward_inputs:
    case Action::backward_parameters:
    case Action::send_gradient:
      return instruction.micro_batch >= 0 && instruction.slot >= 0;
    case Action::send_embedding:
    case Action::receive_embedding:
    case Action::send_embedding_gradient:
    case Action::receive_embedding_gradient:
      return instruction.micro_batch >= 0;
    default:
      return true;
  }
}

}  // namespace

std::string to_text(const Instruction& instruction) {
  std::string text(kActionNames[static_cast<std::size_t>(instruction.action)]);
  text += fmt::format(" stage={}", instruction.stage);
  if (instruction.micro_batch >= 0) text += fmt::format(" micro_batch={}", instruction.micro_batch);
  if (instruction.slot >= 0) text += fmt::format(" slot={}", instruction.slot);
  return text;
}

std::string to_text(const Program& program) {
  std::string text;
  for (const Instruction& instruction : program) text += to_text(instruction) + "\n";
  return text;
}

Program parse_program(std::string_view text) {
  Program program;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view whole = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    std::string_view rest = whole;
    const std::string_view name = take_word(rest);
    if (name.empty()) continue;
    const std::optional<Action> action = action_of(name);
    Instruction instruction{action.value_or(Action::update)};
    bool good = action.has_value();
    for (std::string_view word = take_word(rest); !word.empty(); word = take_word(rest))
      good = take_field(word, instruction) && good;
    if (!good || !is_complete(instruction))
      throw UserError({.what = "this is not an instruction of a schedule",
                       .line = line,
                       .value = std::string(whole),
                       .remedy = "write as in \"forward stage=0 micro_batch=3 slot=1\""});
    program.push_back(instruction);
  }
  return program;
}

}  // namespace deltapipe
