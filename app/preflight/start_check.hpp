// SPDX-License-Identifier: BSD-3-Clause
// Checks that all ranks agree before they train together: each compares with rank 0.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "app/commands/command_line.hpp"
#include "app/session/session.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/data/dataset.hpp"

namespace deltapipe {

/// Collective: program, command and deck. UserError on rank 0 that names the first rank that
/// differs and what: of a deck, the key and both values. Paths of inputs, of checkpoints and of the
/// cache and its budget may differ from machine to machine; output.directory is rank 0's on all
/// ranks afterwards.
void compare_program_and_deck(MPI_Comm world, Command command, Settings& settings);

/// Something that every rank says of itself and that must be the same on all.
struct Fact {
  std::string name;
  std::string value;  ///< empty: this rank does not know
  std::string remedy;
};

/// The model's configuration, the tokenizer and, if given, the samples; without a
/// training sample: this rank does not read them.
std::vector<Fact> input_facts(const Model& model, const Tokenizer* tokenizer,
                              const DataSplit* data);

/// Collective: input_facts() of all ranks. UserError on rank 0, as above.
void compare_inputs(ProgressThread& progress, const std::vector<Fact>& facts);
void compare_inputs(ProgressThread& progress, const ModelPlan& plan, const DataSplit* data);

}  // namespace deltapipe
