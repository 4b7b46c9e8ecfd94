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
#include <vector>

#include "comm/schedule/schedule.hpp"

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

/// Carries out the instructions of one stage. The handler accounts for waits inside.
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

/// Carries out a program's instructions one by one, each by the handler of its stage,
/// handlers[stage]. All must outlive it.
class Executor {
 public:
  Executor(const Program& program, std::span<InstructionHandler* const> handlers)
      : program_(program), handlers_(handlers), passed_(handlers.size()) {}
  void execute_next();
  bool done() const { return position_ == program_.size(); }

 private:
  /// Instructions that a stage has passed.
  struct Passed {
    int forwards = 0, backwards = 0, parameter_passes = 0;
    bool gradients_are_final = false;  ///< of the next pass that makes those of parameters
  };
  void execute(const Instruction& instruction);

  const Program& program_;
  std::span<InstructionHandler* const> handlers_;
  std::size_t position_ = 0;
  std::vector<Passed> passed_;  ///< by stage
};

/// A rank's program, from beginning to end; handlers of stages that are elsewhere may be null.
void run(const Program& program, std::span<InstructionHandler* const> handlers);

/// Several ranks in one process, by turns: each goes on for as long as it can. `execute` carries
/// out a rank's next instruction, or returns false while it has to wait for another rank. Returns
/// what every rank that did not come to its end is stuck at; nothing: all did.
std::string advance_together(
    std::span<const Program> programs,
    const std::function<bool(std::size_t rank, const Instruction&)>& execute);

/// All ranks of a pipeline; handlers[i] is that of stage i. A receive waits for its message, a send
/// while `buffers` messages wait on its wire (shared embeddings have as many as they need); the
/// handlers hand the contents over. Throws InternalError that names the instructions when the
/// programs deadlock, a receive meets another message, or a message is never received.
void run_together(std::span<const Program> programs, std::span<InstructionHandler* const> handlers,
                  int buffers = std::numeric_limits<int>::max());

}  // namespace deltapipe
