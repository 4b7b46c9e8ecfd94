// SPDX-License-Identifier: BSD-3-Clause
#include "comm/schedule/executor.hpp"

#include <utility>

#include "core/base/error.hpp"

namespace deltapipe {

std::optional<Transfer> transfer_of(const Instruction& i) {
  const auto message = [&](Wire wire, bool sends, int boundary) {
    return Transfer{wire, sends, boundary, i.micro_batch, i.slot};
  };
  switch (i.action) {
    case Action::send_activation:
      return message(Wire::activation, true, i.stage);
    case Action::receive_activation:
      return message(Wire::activation, false, i.stage - 1);
    case Action::send_gradient:
      return message(Wire::gradient, true, i.stage - 1);
    case Action::receive_gradient:
      return message(Wire::gradient, false, i.stage);
    case Action::send_embedding:
      return message(Wire::embedding, true, 0);
    case Action::receive_embedding:
      return message(Wire::embedding, false, 0);
    case Action::send_next_embedding:
      return Transfer{Wire::embedding, true, 0, i.micro_batch, i.slot, true};
    case Action::send_embedding_gradient:
      return message(Wire::embedding_gradient, true, 0);
    case Action::receive_embedding_gradient:
      return message(Wire::embedding_gradient, false, 0);
    case Action::send_common_gradient:
      return message(Wire::common_gradient, true, i.stage - 1);
    case Action::receive_common_gradient:
      return message(Wire::common_gradient, false, i.stage);
    case Action::send_common_values:
      return message(Wire::common_values, true, i.stage);
    case Action::receive_common_values:
      return message(Wire::common_values, false, i.stage - 1);
    default:
      return std::nullopt;
  }
}

void Executor::execute_next() {
  execute(program_[position_]);
  ++position_;
}

void Executor::execute(const Instruction& instruction) {
  const int m = instruction.micro_batch, slot = instruction.slot;
  const auto stage = static_cast<std::size_t>(instruction.stage);
  DELTAPIPE_ASSERT(stage < handlers_.size() && handlers_[stage] != nullptr,
                   to_text(instruction) + " has no handler");
  InstructionHandler& handler = *handlers_[stage];
  Passed& passed = passed_[stage];
  handler.about_to(instruction);
  if (const std::optional<Transfer> message = transfer_of(instruction))
    return message->sends ? handler.send(*message) : handler.receive(*message);
  switch (instruction.action) {
    case Action::forward:
      return handler.forward({m, slot, passed.forwards++ > 0, false});
    case Action::backward:
      return handler.backward(
          {m, slot, passed.backwards++ > 0, std::exchange(passed.gradients_are_final, false)});
    case Action::backward_inputs:
      return handler.backward_inputs({m, slot, passed.backwards++ > 0, false});
    case Action::backward_parameters:
      return handler.backward_parameters({m, slot, passed.parameter_passes++ > 0,
                                          std::exchange(passed.gradients_are_final, false)});
    case Action::reduce_gradients:
      passed.gradients_are_final = true;
      return;
    case Action::reduce_zeros:
      return handler.reduce_zeros();
    case Action::add_embedding_gradient:
      return handler.add_embedding_gradient();
    case Action::add_common_gradient:
      return handler.add_common_gradient();
    case Action::finish_reductions:
      return handler.finish_reductions();
    case Action::update:
      return handler.update();
    default:
      DELTAPIPE_ASSERT(false, to_text(instruction));
  }
}

void run(const Program& program, std::span<InstructionHandler* const> handlers) {
  for (Executor executor(program, handlers); !executor.done();) executor.execute_next();
}

}  // namespace deltapipe
