// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <ostream>
#include <string_view>

#include "app/deck/deck.hpp"
#include "app/deck/nearest.hpp"
#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/base/version.hpp"

namespace deltapipe {

namespace {

struct Description {
  Command command;
  const char* name;
  const char* summary;
  const char* footer;
};

constexpr const char* override_footer =
    "section.key=value replaces what the deck says; values are TOML, quotes around strings may be "
    "left out:\n  boundary.forward.bits=3 data.train='[\"a.txt\", \"b.txt\"]' "
    "network.bandwidth=100Mbit/s\n";

constexpr std::array descriptions = {
    Description{Command::train, "train", "Train or fine-tune a model",
                "Start one MPI rank for each stage and replica:\n"
                "  mpirun -n 2 deltapipe train inputs/quickstart.toml\n"
                "The history goes to run.h5 in output.directory, the model to model/ in it.\n"},
    Description{
        Command::evaluate, "evaluate", "Loss and metrics on the validation data",
        "Boundaries are crossed as evaluation.boundary says. A trained model, on any number of "
        "stages:\n"
        "  mpirun -n 2 deltapipe evaluate inputs/quickstart.toml "
        "model.path=runs/quickstart/model\n"},
    Description{Command::predict, "predict", "Write the classes that a model predicts",
                "For models that classify: predictions of data.predict, or of the validation data, "
                "with\nprobabilities, go to predictions.h5 and predictions.csv in "
                "output.directory.\n"
                "  mpirun -n 2 deltapipe predict DECK model.path=runs/run/model "
                "data.predict=new.tsv\n"},
    Description{Command::generate, "generate", "Continue texts",
                "  mpirun -n 2 deltapipe generate inputs/quickstart.toml --prompt \"Once upon\"\n"},
    Description{Command::check, "check",
                "Plan a run: validate its deck, show bytes, links, memory and disk",
                "Needs one process only and runs nothing. Prints a summary, then the blocks of "
                "each stage, bytes on\nthe wire, time on the links, memory and disk. Other links "
                "than the deck's:\n"
                "  deltapipe check DECK network.bandwidth=100Mbit/s network.latency=20ms\n"},
    Description{Command::tokenize, "tokenize", "Write the texts of a deck as token files",
                "Needs one process only. Writes train.h5, validation.h5 and tokenizer/ to "
                "output.directory,\nso that runs need not tokenise again:\n"
                "  deltapipe tokenize DECK output.directory=data/tokens\n"
                "  deltapipe check DECK data.train=data/tokens/train.h5 "
                "tokenizer.path=data/tokens/tokenizer\n"},
    Description{Command::export_model, "export", "Write the model of a checkpoint",
                "Needs one process only, whatever the layout of the run, which may still train. "
                "Writes the\nmodel of the newest checkpoint to output.directory/model-step-STEP; "
                "replaces nothing:\n"
                "  deltapipe export inputs/quickstart.toml --step 500 --to models/half-way\n"},
};

/// Targets of the options and positionals of all commands.
struct Arguments {
  CommandLine line;
  bool reference = false;
  bool schema = false;
};

void add_command(CLI::App& app, const Description& description, Arguments& arguments) {
  CLI::App* command = app.add_subcommand(description.name, description.summary);
  command->footer(std::string(override_footer) + "\n" + description.footer);
  command->add_option("DECK", arguments.line.deck, "TOML file that says what to do")
      ->option_text("FILE");
  command->add_option("OVERRIDES", arguments.line.overrides, "changes to the deck")
      ->option_text("section.key=value ...");
  if (description.command == Command::generate) {
    command
        ->add_option("-p,--prompt", arguments.line.prompts,
                     "a text to continue, in place of generate.prompts; may be repeated")
        ->option_text("TEXT")
        ->allow_extra_args(false);
  }
  if (description.command == Command::check) {
    command->add_flag("--schedule", arguments.line.schedule,
                      "show when each stage works on which micro-batch, and when it waits");
    command->add_flag("--deck", arguments.line.shows_deck,
                      "print the deck with all defaults before the plan");
    CLI::Option* const plan = command->add_flag(
        "--plan", arguments.line.plan, "predict the time of a step, from the rates in [plan]");
    command
        ->add_option("--bandwidth", arguments.line.bandwidths,
                     "with --plan: bandwidths to compare, in place of plan.bandwidths")
        ->option_text("RATE,...")
        ->needs(plan);
    command->add_flag("--json", arguments.line.json, "with --plan: print one JSON object")
        ->needs(plan);
    command->add_flag("--schema", arguments.schema, "print a JSON schema of decks, for editors");
    command->add_flag("--reference", arguments.reference,
                      "print all keys of a deck with ranges, defaults and meaning (Markdown)");
  }
  if (description.command == Command::export_model) {
    command
        ->add_option("--step", arguments.line.step, "step of the checkpoint; default: the newest")
        ->option_text("STEP");
    command->add_option("--to", arguments.line.directory, "where to write the model")
        ->option_text("DIRECTORY");
  }
  command->callback([&arguments, &description] {
    arguments.line.command = description.command;
    if (arguments.line.deck.empty() && !arguments.reference && !arguments.schema)
      throw CLI::RequiredError("DECK");
  });
}

struct ExitStatus {
  int status;
  const char* meaning;
};

/// Every status that the program ends with.
constexpr std::array exit_statuses = {
    ExitStatus{exit_success, "done"},
    ExitStatus{exit_failure, "failed while running"},
    ExitStatus{exit_usage, "the command line or the deck is wrong"},
    ExitStatus{exit_no_progress, "stopped in order without a new checkpoint"},
    ExitStatus{exit_stopped, "stopped in order with a checkpoint: run the same command again"},
    ExitStatus{exit_signal + 1, "interrupted by SIGHUP"},
    ExitStatus{exit_signal + 2, "interrupted by SIGINT"},
    ExitStatus{exit_signal + 10, "interrupted by SIGUSR1, without checkpoints"},
    ExitStatus{exit_signal + 12, "interrupted by SIGUSR2, without checkpoints"},
    ExitStatus{exit_signal + 15, "interrupted by SIGTERM"},
    ExitStatus{exit_signal + 24, "interrupted by SIGXCPU, without checkpoints"},
};

std::string exit_status_table() {
  std::string table;
  for (const ExitStatus& row : exit_statuses)
    table += fmt::format("{:6}  {}\n", row.status, row.meaning);
  return table;
}

/// CLI11 takes an unknown command for a surplus argument and says only that one is missing.
std::string unknown_command(int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-') return "";
  std::vector<std::string> names;
  for (const Description& description : descriptions) names.push_back(description.name);
  if (std::ranges::find(names, argv[1]) != names.end()) return "";
  const std::string best = deck::nearest(argv[1], names);
  return fmt::format("unknown command '{}'; {}", printable(argv[1], 200),
                     best.empty()
                         ? "use train, evaluate, predict, generate, check, tokenize or export"
                         : "did you mean '" + best + "'?");
}

}  // namespace

const char* name_of(Command command) {
  return std::ranges::find(descriptions, command, &Description::command)->name;
}

ParsedCommandLine parse_command_line(int argc, const char* const* argv, bool speak) {
  CLI::App app(
      "deltapipe fine-tunes transformers over pipelines of machines joined by slow networks",
      "deltapipe");
  Arguments arguments;
  if (const std::string mistake = unknown_command(argc, argv); !mistake.empty()) {
    if (speak) std::cerr << "deltapipe: error: " << mistake << "\n";
    return {std::nullopt, exit_usage};
  }
  app.set_version_flag("-V,--version", fmt::format("deltapipe {} ({})", version(), revision()));
  app.require_subcommand(1);
  app.footer("\n\"deltapipe COMMAND --help\" says more of each. Exit status:\n" +
             exit_status_table());
  for (const Description& description : descriptions) add_command(app, description, arguments);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // help, version
    std::ostream nowhere(nullptr);
    app.exit(asked, speak ? std::cout : nowhere, nowhere);
    return {std::nullopt, exit_success};
  } catch (const CLI::ParseError& error) {
    if (speak)
      std::cerr << "deltapipe: error: " << printable(error.what(), 400)
                << "; see deltapipe --help\n";
    return {std::nullopt, exit_usage};
  }
  if (arguments.schema) {
    if (speak) std::cout << deck_schema();
    return {std::nullopt, exit_success};
  }
  if (arguments.reference) {
    if (speak) std::cout << deck_reference();
    return {std::nullopt, exit_success};
  }
  return {arguments.line, exit_success};
}

namespace {

/// Returns "10 Gbit/s,1 Gbit/s" as an override.
std::string override_of_bandwidths(const std::string& list) {
  std::string values;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');)
    values += (values.empty() ? "\"" : ", \"") + part + "\"";
  return "plan.bandwidths=[" + values + "]";
}

}  // namespace

Settings settings_of(const CommandLine& command_line, DeckPlaces* where) {
  std::vector<std::string> overrides = command_line.overrides;
  if (!command_line.bandwidths.empty())
    overrides.push_back(override_of_bandwidths(command_line.bandwidths));
  Settings settings = read_deck(command_line.deck, overrides, where);
  if (command_line.prompts.empty()) return settings;
  if (where != nullptr) where->keys["generate.prompts"] = {"argument '--prompt'"};
  settings.generate.prompts = command_line.prompts;
  if (parse_deck(effective_deck(settings), "--prompt") != settings) {
    throw UserError(
        {.what = "--prompt is not UTF-8 text", .remedy = "check the terminal's locale"});
  }
  return settings;
}

}  // namespace deltapipe
