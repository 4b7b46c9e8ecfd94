// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/start_check.hpp"

#include <fmt/format.h>

#include <array>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "app/deck/deck.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/message.hpp"
#include "core/base/error.hpp"
#include "core/base/version.hpp"

namespace deltapipe {

namespace {

constexpr char kEnd = '\0';  // of a value

std::string joined(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) text += fact.value + kEnd;
  return text;
}

/// The values of one rank; a program with other facts shows in the first of them, its version.
std::vector<std::string> values_of(const std::string& text) {
  std::vector<std::string> values;
  for (std::size_t begin = 0, end; (end = text.find(kEnd, begin)) != std::string::npos;
       begin = end + 1)
    values.push_back(text.substr(begin, end - begin));
  return values;
}

std::string rank_name(std::size_t rank) {
  return fmt::format("rank {}", rank);
}

[[noreturn]] void refuse_difference(std::size_t rank, const std::string& name,
                                    const std::string& theirs, const std::string& ours,
                                    const std::string& remedy) {
  throw UserError(
      {.what = fmt::format("{} was started with another {} than rank 0", rank_name(rank), name),
       .value = fmt::format("{} on {}, {} on rank 0", theirs, rank_name(rank), ours),
       .remedy = remedy});
}

/// On the root, which has all ranks' texts: the first difference, fact by fact.
void compare(const std::vector<Fact>& facts, const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string>> all;
  for (const std::string& text : texts) all.push_back(values_of(text));
  for (std::size_t i = 0; i < facts.size(); ++i)
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const std::string theirs = i < all[rank].size() ? all[rank][i] : "nothing";
      if (!theirs.empty() && !facts[i].value.empty() && theirs != facts[i].value)
        refuse_difference(rank, facts[i].name, theirs, facts[i].value, facts[i].remedy);
    }
}

/// Paths may differ between machines; the content of the files is compared instead.
constexpr std::array<std::string_view, 9> kOwnKeys = {
    "model.path",         "tokenizer.path",   "data.train",
    "data.validation",    "cache.directory",  "cache.budget",
    "evaluation.prompts", "output.directory", "checkpoint.directory"};

const char* const kSameDeck = "start all ranks with the same deck and overrides";

void compare_decks(const Settings& settings, const std::vector<std::string>& decks) {
  for (std::size_t rank = 1; rank < decks.size(); ++rank) {
    const Settings theirs = parse_deck(decks[rank], "the deck of " + rank_name(rank));
    const auto difference = first_difference(theirs, settings, kOwnKeys);
    if (difference)
      refuse_difference(rank, "deck", difference->key + " = " + difference->left, difference->right,
                        kSameDeck);
  }
}

std::string fingerprint(const Tokenizer* tokenizer) {
  if (!tokenizer) return "none";
  return fmt::format("{} tokens, hash {}", tokenizer->vocabulary_size(), tokenizer->hash());
}

std::string fingerprint(const Dataset& set) {
  return fmt::format("{} samples, {} targets, hash {}", set.size(), set.all_targets(),
                     hexadecimal(set.fingerprint()));
}

std::vector<Fact> facts_of(const Model& model) {
  std::vector<Fact> facts;
  for (const std::string& line : model.configuration())
    facts.push_back({"model configuration", line, "give every rank the same config.json and deck"});
  return facts;
}

}  // namespace

void compare_program_and_deck(MPI_Comm world, Command command, Settings& settings) {
  const std::string deck = effective_deck(settings);
  const std::vector<Fact> facts = {
      {"version of deltapipe", fmt::format("{} ({})", version(), revision()),
       "start the same program on all ranks"},
      {"command", name_of(command), "start all ranks with the same command"},
      {"model", settings.model.path.empty() ? "a new one" : "that of model.path", kSameDeck}};
  const std::vector<std::string> texts = gather(world, joined(facts), 0);
  const std::vector<std::string> decks = gather(world, deck, 0);
  broadcast(world, settings.output.directory, 0);
  if (texts.empty()) return;
  compare(facts, texts);
  compare_decks(settings, decks);
}

std::vector<Fact> input_facts(const Model& model, const Tokenizer* tokenizer,
                              const DataSplit* data) {
  std::vector<Fact> facts = facts_of(model);
  facts.push_back(
      {"tokenizer", fingerprint(tokenizer), "give every rank the same tokenizer files"});
  if (data != nullptr) {
    const char* const remedy = "give every rank the same data files";
    const bool reads = data->train->size() > 0;
    facts.push_back({"training set", reads ? fingerprint(*data->train) : "", remedy});
    facts.push_back({"validation set", reads ? fingerprint(*data->validation) : "", remedy});
    facts.push_back({"prompts with answers", reads ? fingerprint(data->answers) : "", remedy});
  }
  return facts;
}

void compare_inputs(ProgressThread& progress, const std::vector<Fact>& facts) {
  const std::vector<std::string> texts = gather(progress, progress.world(), joined(facts), 0);
  if (!texts.empty()) compare(facts, texts);
}

void compare_inputs(ProgressThread& progress, const ModelPlan& plan, const DataSplit* data) {
  compare_inputs(progress, input_facts(*plan.model, plan.tokenizer.get(), data));
}

}  // namespace deltapipe
