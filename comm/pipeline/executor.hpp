// SPDX-License-Identifier: BSD-3-Clause
// Goes through programs. What instructions do is a handler's to say: Pipeline's over MPI, or one of
// several in one process.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "comm/pipeline/schedule.hpp"

namespace deltapipe {

enum class Wire { activation, gradient, embedding, embedding_gradient };

/// A message that an instruction sends or receives.
struct Transfer {
  Wire wire;
  bool sends = false;
  /// Activations and gradients: i, between stages i and i + 1; embeddings: 0, there is one such
  /// wire, between the last stage and the first.
  int boundary = 0;
  int micro_batch = 0;
  int slot = -1;  ///< activations and gradients
  bool of_next_step = false;
};

/// None: the instruction is no message.
std::optional<Transfer> transfer_of(const Instruction& instruction);

/// A forward or backward pass of a micro-batch.
struct StagePass {
  int micro_batch = 0;
  int slot = 0;
  bool accumulate = false;           ///< an earlier pass of this kind in the step left gradients
  bool gradients_are_final = false;  ///< of parameters: sums over replicas start as they come
};

/// What the instructions of one stage do. Waits inside are the handler's own.
class InstructionHandler {
 public:
  virtual ~InstructionHandler() = default;
  /// Comes before each.
  virtual void about_to(const Instruction&) {}
  virtual void send(const Transfer& message) = 0;
  virtual void receive(const Transfer& message) = 0;
  virtual void forward(const StagePass& pass) = 0;
  virtual void backward(const StagePass& pass) = 0;
  virtual void backward_inputs(const StagePass& pass) = 0;
  virtual void backward_parameters(const StagePass& pass) = 0;
  virtual void reduce_zeros() = 0;
  virtual void add_embedding_gradient() = 0;
  virtual void finish_reductions() = 0;
  virtual void update() = 0;
};

/// Carries out a program's instructions one by one. Both must outlive it.
class Executor {
 public:
  Executor(const Program& program, InstructionHandler& handler)
      : program_(program), handler_(handler) {}
  void execute_next();
  bool done() const { return position_ == program_.size(); }

 private:
  void execute(const Instruction& instruction);

  const Program& program_;
  InstructionHandler& handler_;
  std::size_t position_ = 0;
  int forwards_ = 0, backwards_ = 0, parameter_passes_ = 0;
  bool gradients_are_final_ = false;  ///< of the next pass that makes those of parameters
};

/// One stage, from beginning to end.
void run(const Program& program, InstructionHandler& handler);

/// Several stages in one process, by turns: each goes on for as long as it can. `execute` carries
/// out a stage's next instruction, or returns false while it has to wait for another stage. Returns
/// what every stage that did not come to its end is stuck at; nothing: all did.
std::string advance_together(
    std::span<const Program> programs,
    const std::function<bool(std::size_t stage, const Instruction&)>& execute);

/// All stages of a pipeline, programs[i] with handlers[i]. A receive waits for its message, a send
/// while `buffers` messages wait on its wire (shared embeddings have as many as they need); the
/// handlers hand the contents over. Throws InternalError that names the instructions when the
/// programs deadlock, a receive meets another message, or a message is never received.
void run_together(std::span<const Program> programs, std::span<InstructionHandler* const> handlers,
                  int buffers = std::numeric_limits<int>::max());

}  // namespace deltapipe
