// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <array>

#include "comm/schedule/schedule.hpp"

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

}  // namespace

std::string to_text(const Instruction& instruction) {
  std::string text(kActionNames[static_cast<std::size_t>(instruction.action)]);
  text += fmt::format(" stage={}", instruction.stage);
  if (instruction.micro_batch >= 0) text += fmt::format(" micro_batch={}", instruction.micro_batch);
  if (instruction.slot >= 0) text += fmt::format(" slot={}", instruction.slot);
  return text;
}

}  // namespace deltapipe
