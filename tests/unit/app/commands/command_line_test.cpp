// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/command_line.hpp"

#include <catch2/catch.hpp>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/version.hpp"

using namespace deltapipe;

namespace {

/// Replaces a stream's buffer while it lives.
class Captured {
 public:
  explicit Captured(std::ostream& stream) : stream_(stream), old_(stream.rdbuf(text_.rdbuf())) {}
  ~Captured() { stream_.rdbuf(old_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::ostream& stream_;
  std::streambuf* old_;
};

struct Outcome {
  ParsedCommandLine parsed;
  std::string output, errors;
};

Outcome parse(std::vector<const char*> arguments, bool speak = true) {
  arguments.insert(arguments.begin(), "deltapipe");
  const Captured output(std::cout), errors(std::cerr);
  Outcome outcome;
  outcome.parsed = parse_command_line(static_cast<int>(arguments.size()), arguments.data(), speak);
  outcome.output = output.text();
  outcome.errors = errors.text();
  return outcome;
}

}  // namespace

TEST_CASE("each command takes a deck and overrides") {
  const std::vector<std::pair<const char*, Command>> commands = {
      {"train", Command::train},       {"evaluate", Command::evaluate},
      {"generate", Command::generate}, {"check", Command::check},
      {"tokenize", Command::tokenize}, {"export", Command::export_model}};
  for (const auto& [name, command] : commands) {
    const Outcome plain = parse({name, "a.toml"});
    REQUIRE(plain.parsed.command_line);
    CHECK(plain.parsed.command_line->command == command);
    CHECK(plain.parsed.command_line->deck == "a.toml");
    CHECK(plain.parsed.command_line->overrides.empty());
    CHECK(plain.output + plain.errors == "");
    const Outcome full = parse({name, "a.toml", "x.y=1", "data.train=[\"a\", \"b,c\"]", "p.q=-1"});
    REQUIRE(full.parsed.command_line);
    CHECK(full.parsed.command_line->overrides ==
          std::vector<std::string>{"x.y=1", "data.train=[\"a\", \"b,c\"]", "p.q=-1"});
  }
}

TEST_CASE("prompts are kept unchanged") {
  const Outcome outcome =
      parse({"generate", "-p", "one, two", "a.toml", "x.y=1", "--prompt", "[three]"});
  REQUIRE(outcome.parsed.command_line);
  CHECK(outcome.parsed.command_line->deck == "a.toml");
  CHECK(outcome.parsed.command_line->overrides == std::vector<std::string>{"x.y=1"});
  CHECK(outcome.parsed.command_line->prompts == std::vector<std::string>{"one, two", "[three]"});
}

TEST_CASE("check shows the schedule when it is asked for it") {
  for (const bool asked : {false, true}) {
    const Outcome outcome =
        asked ? parse({"check", "a.toml", "--schedule", "x.y=1"}) : parse({"check", "a.toml"});
    REQUIRE(outcome.parsed.command_line);
    CHECK(outcome.parsed.command_line->schedule == asked);
    CHECK(outcome.parsed.command_line->overrides.size() == (asked ? 1 : 0));
  }
}

TEST_CASE("help, version and reference end the program well") {
  for (const std::vector<const char*>& arguments : {std::vector{"--help"},
                                                    {"train", "--help"},
                                                    {"evaluate", "-h"},
                                                    {"generate", "--help"},
                                                    {"check", "--help"},
                                                    {"--version"},
                                                    {"check", "--reference"}}) {
    INFO(arguments[0]);
    const Outcome outcome = parse(arguments);
    CHECK_FALSE(outcome.parsed.command_line);
    CHECK(outcome.parsed.exit_code == 0);
    CHECK_FALSE(outcome.output.empty());
    CHECK(outcome.errors.empty());
    const Outcome silent = parse(arguments, false);
    CHECK_FALSE(silent.parsed.command_line);
    CHECK(silent.output + silent.errors == "");
  }
  CHECK_THAT(parse({"--version"}).output, Catch::Contains(std::string(version())));
  CHECK_THAT(parse({"train", "--help"}).output, Catch::Contains("section.key=value"));
  CHECK_THAT(parse({"check", "--reference"}).output, Catch::Contains("| `warmup_epochs` |"));
}

TEST_CASE("a wrong command line is a usage error") {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases = {
      {{}, "subcommand"},
      {{"trian", "a.toml"}, "unknown command 'trian'; did you mean 'train'?"},
      {{"dance"}, "use train, evaluate, predict, generate, check, tokenize or export"},
      {{"train"}, "DECK is required"},
      {{"check"}, "DECK is required"},
      {{"train", "a.toml", "--fast"}, "--fast"},
      {{"train", "a.toml", "--prompt", "x"}, "--prompt"},
      {{"train", "a.toml", "--schedule"}, "--schedule"},
      {{"generate", "a.toml", "--prompt"}, "--prompt"},
      {{"train", "a.toml", "evaluate", "b.toml"}, ""},
  };
  for (const auto& [arguments, part] : cases) {
    INFO(part);
    const Outcome outcome = parse(arguments);
    if (outcome.parsed.command_line) {
      // CLI words among the overrides are refused with the deck's other mistakes.
      CHECK_THROWS_AS(settings_of(*outcome.parsed.command_line), UserError);
      continue;
    }
    CHECK(outcome.parsed.exit_code == 2);
    CHECK(outcome.output.empty());
    CHECK_THAT(outcome.errors, Catch::StartsWith("deltapipe: error: ") && Catch::Contains(part));
    CHECK(outcome.errors.find('\n') == outcome.errors.size() - 1);
    CHECK(parse(arguments, false).errors.empty());
  }
}

TEST_CASE("settings come from deck, overrides and prompts") {
  CommandLine line;
  line.command = Command::generate;
  line.deck = DELTAPIPE_FIXTURES "/../../inputs/quickstart.toml";
  CHECK(settings_of(line).generate.prompts ==
        std::vector<std::string>{"And Jesus said unto them, ", "In the beginning "});
  line.overrides = {"generate.top_k=7"};
  line.prompts = {"A", "B"};
  CHECK(settings_of(line).generate.prompts == line.prompts);
  CHECK(settings_of(line).generate.top_k == 7);
  line.prompts = {"\xff"};
  CHECK_THROWS_WITH(settings_of(line), Catch::Contains("--prompt"));
  line.overrides = {"generate.topk=7"};
  CHECK_THROWS_AS(settings_of(line), UserError);
}
