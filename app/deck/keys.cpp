// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "app/deck/keys/replica_keys.hpp"
#include "app/deck/keys/section_keys.hpp"

namespace deltapipe::deck {

namespace {

const auto section_table = std::to_array<Section>({
    {"model", "Where the weights come from."},
    {"model.new", "A new model, if model.path is empty."},
    {"tokenizer", "How text becomes tokens."},
    {"data", "Training and validation samples."},
    {"data.labelled", "Records of data.kind = \"labelled_text\", in JSON lines, CSV or TSV."},
    {"data.images", "Size, normalisation and augmentation of data.kind = \"images\"."},
    {"training", "Length of the training and size of its steps."},
    {"training.optimizer", "AdamW or SGD, and the learning rate."},
    {"pipeline", "How the model is spread over MPI ranks."},
    {"boundary", "Compression of what crosses the boundaries between stages."},
    {"boundary.forward", "Activations, sent from a stage to the next one."},
    {"boundary.forward.quantizer", "For experts: codes of directq, aqsgd and topk."},
    {"boundary.forward.sparse", "For experts: values of topk and aqsgd_topk."},
    {"boundary.forward.memory", "For experts: memories of aqsgd and aqsgd_topk."},
    {"boundary.forward.feedback", "For experts: error feedback of directq and topk."},
    {"boundary.backward", "Gradients, sent from a stage to the previous one."},
    {"boundary.backward.quantizer", "For experts: codes of directq and topk."},
    {"boundary.backward.sparse", "For experts: values of topk."},
    {"boundary.backward.feedback",
     "For experts: error feedback of directq and topk. It does not apply to rows of a tied "
     "embedding."},
    {"replicas", "How replicas of a stage sum their gradients."},
    {"evaluation", "How activations cross boundaries in evaluations and in `deltapipe generate`."},
    {"cache",
     "Memories of samples: at both ends of a boundary for aqsgd, aqsgd_topk and ef21, at the "
     "sender "
     "for ef and mixed."},
    {"network",
     "Emulated links between the stages, in both directions. By default no link is emulated."},
    {"network.forward", "Emulated links in the forward direction. They override [network]."},
    {"network.backward", "Emulated links in the backward direction. They override [network]."},
    {"network.replicas",
     "Emulated link of each rank to the replicas of its stages, in both directions."},
    {"output", "Where results go."},
    {"checkpoint",
     "When a run writes checkpoints. Without every_steps, every, milestone_every and time_limit it "
     "writes none."},
    {"generate", "Settings of `deltapipe generate`."},
    {"plan", "Rates and links of `deltapipe check --plan`, which predicts the time of a step."},
});

/// A list that the deck does not need stays empty.
void split(const std::vector<LinkSettings>& links, Draft::Links& lists) {
  const auto is_limited = [](const LinkSettings& link) { return link.bits_per_second > 0; };
  const auto is_delayed = [](const LinkSettings& link) { return link.latency_seconds > 0; };
  const bool delays = std::ranges::any_of(links, is_delayed);
  const bool limits = !delays || std::ranges::any_of(links, is_limited);
  for (const LinkSettings& link : links) {
    if (limits) lists.bits_per_second.push_back(link.bits_per_second);
    if (delays) lists.latency_seconds.push_back(link.latency_seconds);
  }
}

std::string range(std::int64_t low, std::int64_t high) {
  if (high == kAnyCount) return fmt::format("at least {}", low);
  return fmt::format("{} to {}", low, high);
}

std::string range(const Real& real) {
  const std::string zero = real.or_zero ? "0 or " : "";
  const std::string low = zero + format_number(real.low), high = format_number(real.high);
  if (real.high == kInfinite) return (real.low_open ? "above " : "at least ") + low;
  return (real.low_open ? "above " : "") + low + (real.high_open ? " to below " : " to ") + high;
}

struct Allowed {
  std::string operator()(const Flag&) const { return "true or false"; }
  std::string operator()(const Integer& i) const { return "integer, " + range(i.low, i.high); }
  std::string operator()(const IntegerList& i) const {
    return "list of integers, each " + range(i.low, i.high);
  }
  std::string operator()(const Real& real) const { return "number, " + range(real); }
  std::string operator()(const RealList& list) const {
    return fmt::format("number, 0 or {} to {}; or a list of these", format_number(list.low),
                       format_number(list.high));
  }
  std::string operator()(const Text& text) const {
    return text.may_be_empty ? "string" : "string, not empty";
  }
  std::string operator()(const TextList&) const { return "string or list of strings"; }
  std::string operator()(const Choice& options) const {
    std::string text = "one of ";
    for (std::size_t i = 0; i < options.names.size(); ++i) {
      text += (i > 0 ? ", \"" : "\"") + options.names[i] + "\"";
    }
    return text;
  }
  std::string operator()(const Size&) const {
    return "bytes, or a string with a unit: " + unit_names(kSizeUnits);
  }
  template <class T>
  static std::string quantity(const T& target) {
    return fmt::format("{}, or a string with a unit: {}, at most {}", base_of(target.units),
                       unit_names(target.units), format_quantity(target.high, target.units));
  }
  static std::string base_of(std::span<const Unit> units) {
    for (const Unit& unit : units)
      if (unit.multiplier == unit.divisor)
        return unit.name == std::string("s") ? "seconds" : unit.name;
    return "number";
  }
  std::string operator()(const Quantity& one) const { return quantity(one); }
  std::string operator()(const QuantityList& list) const {
    return quantity(list) + "; or a list of these";
  }
};
}  // namespace

Draft draft_of(const Settings& settings) {
  Draft draft;
  draft.settings = settings;
  if (settings.network.wire == WireSharing::rank) {
    split(settings.network.ranks, draft.both);
  } else if (settings.network.forward == settings.network.backward) {
    split(settings.network.forward, draft.both);
  } else {
    split(settings.network.forward, draft.forward);
    split(settings.network.backward, draft.backward);
  }
  draft.replicas = replica_links_of(settings.network);
  return draft;
}

std::span<const Section> sections() {
  return section_table;
}

std::vector<Key> keys_of(Draft& draft) {
  std::vector<Key> keys;
  Settings& s = draft.settings;
  add_model(keys, s.model);
  add_tokenizer(keys, s.tokenizer);
  add_data(keys, s.data);
  add_training(keys, s.training);
  add_pipeline(keys, s.pipeline);
  add_boundaries(keys, draft);
  add_replicas(keys, s.replicas);
  add_evaluation(keys, s.evaluation, s.data.answers);
  add_cache(keys, s.cache);
  add_network(keys, draft);
  add_replica_links(keys, draft.replicas);
  add_output(keys, s.output);
  add_checkpoint(keys, s.checkpoint);
  add_generate(keys, s.generate);
  add_plan(keys, s.plan);
  return keys;
}

std::string allowed(const Key& key) {
  return std::visit(Allowed{}, key.target);
}

}  // namespace deltapipe::deck
