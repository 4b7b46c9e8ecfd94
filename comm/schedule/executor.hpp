// SPDX-License-Identifier: BSD-3-Clause
// Executes programs. A handler defines what each instruction does: Pipeline's works over MPI; other
// handlers run several stages in one process.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "comm/schedule/schedule.hpp"

namespace deltapipe {

enum class Wire {
  activation,
  gradient,
  embedding,
  embedding_gradient,
  common_gradient,
  common_values
};

/// A message that an instruction sends or receives.
struct Transfer {
  Wire wire;
  bool sends = false;
  /// Boundary i between stages i and i + 1. Always 0 for token embeddings, whose only wire joins
  /// the last stage and the first.
  int boundary = 0;
  int micro_batch = 0;  ///< -1: the message belongs to the whole step
  int slot = -1;        ///< slot of activations and gradients
  bool of_next_step = false;
};

/// Returns the message of an instruction, or nothing if it neither sends nor receives.
std::optional<Transfer> transfer_of(const Instruction& instruction);

/// A forward or backward pass of a micro-batch.
struct StagePass {
  int micro_batch = 0;
  int slot = 0;
  bool accumulate = false;           ///< an earlier pass of this kind in the step left gradients
  bool gradients_are_final = false;  ///< sums of parameters' gradients over replicas can start
};

/// Interface to the instructions of one stage. The handler itself performs any waits.
class InstructionHandler {
 public:
  virtual ~InstructionHandler() = default;
  /// Is called before each instruction.
  virtual void about_to(const Instruction&) {}
  virtual void send(const Transfer& message) = 0;
  virtual void receive(const Transfer& message) = 0;
  virtual void forward(const StagePass& pass) = 0;
  virtual void backward(const StagePass& pass) = 0;
  virtual void backward_inputs(const StagePass& pass) = 0;
  virtual void backward_parameters(const StagePass& pass) = 0;
  virtual void reduce_zeros() = 0;
  virtual void add_embedding_gradient() = 0;
  virtual void add_common_gradient() = 0;
  virtual void finish_reductions() = 0;
  virtual void update() = 0;
};

/// Executes a program's instructions one at a time. The handler of an instruction's stage,
/// handlers[stage], carries it out. The program and all handlers must outlive the Executor.
class Executor {
 public:
  Executor(const Program& program, std::span<InstructionHandler* const> handlers)
      : program_(program), handlers_(handlers), passed_(handlers.size()) {}
  void execute_next();
  bool done() const { return position_ == program_.size(); }

 private:
  /// Passes that a stage has completed.
  struct Passed {
    int forwards = 0, backwards = 0, parameter_passes = 0;
    bool gradients_are_final = false;  ///< the next pass with parameters' gradients is the last
  };
  void execute(const Instruction& instruction);

  const Program& program_;
  std::span<InstructionHandler* const> handlers_;
  std::size_t position_ = 0;
  std::vector<Passed> passed_;  ///< indexed by stage
};

/// Runs a rank's program from beginning to end. Handlers of stages on other ranks may be null.
void run(const Program& program, std::span<InstructionHandler* const> handlers);

}  // namespace deltapipe
