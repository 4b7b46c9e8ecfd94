// SPDX-License-Identifier: BSD-3-Clause
// The command line: what to do, with which deck.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/deck/places.hpp"
#include "app/deck/settings.hpp"
#include "core/base/observe/interruption.hpp"

namespace deltapipe {

/// Exit status of the program.
enum ExitCode : int {
  exit_success = 0,
  exit_failure = 1,       ///< something failed while running
  exit_usage = 2,         ///< the command line or the deck is wrong
  exit_no_progress = 74,  ///< a training was asked to stop and has no newer checkpoint
  exit_stopped = 75,      ///< a training that was asked to stop has a checkpoint and can be resumed
  exit_signal =
      kSignalStatus,  ///< and the signal that interrupted the run: 130 SIGINT, 143 SIGTERM
};

enum class Command { train, evaluate, predict, generate, check, tokenize, export_model };

/// As the command line has it.
const char* name_of(Command command);

struct CommandLine {
  Command command = Command::train;
  std::string deck;                    ///< path of the TOML file
  std::vector<std::string> overrides;  ///< "section.key=value"
  std::vector<std::string> prompts;    ///< generate: in place of generate.prompts, if any
  bool schedule = false;               ///< check: show the order of passes
  std::uint64_t step = 0;              ///< export: of the checkpoint; 0: the newest
  std::string directory;               ///< export: where to; empty: a name in output.directory
  bool shows_deck = false;             ///< check: show the deck with all defaults
  bool plan = false;                   ///< check: predict the time of a step
  bool json = false;                   ///< check --plan: as JSON
  std::string bandwidths;              ///< check --plan: "10Gbit/s,1Gbit/s", for plan.bandwidths
};

struct ParsedCommandLine {
  std::optional<CommandLine> command_line;  ///< empty: nothing to run, leave with exit_code
  int exit_code = exit_success;
};

/// Parses the arguments, argv[0] excepted. --help, --version, `check --reference` and mistakes are
/// answered here, on standard output or error, when `speak` is true: let one rank speak and give
/// all the same arguments.
ParsedCommandLine parse_command_line(int argc, const char* const* argv, bool speak);

/// The deck with overrides and prompts. Throws UserError. `where`: gets their places.
Settings settings_of(const CommandLine& command_line, DeckPlaces* where = nullptr);

}  // namespace deltapipe
