// SPDX-License-Identifier: BSD-3-Clause
// Keys of [boundary] and [cache].
#include "app/deck/keys/section_keys.hpp"
#include "core/codec/algorithms/recommended.hpp"

namespace deltapipe::deck {

namespace {

/// The kinds, and auto. What "auto" stands for is written instead.
Choice codec_choice(CodecKind& kind, bool& is_auto, Direction direction) {
  Choice result;
  result.names.assign(kCodecKindNames.begin(), kCodecKindNames.end());
  result.names.emplace_back("auto");
  result.get = [&kind] { return static_cast<std::size_t>(kind); };
  result.set = [&kind, &is_auto, direction](std::size_t i) {
    is_auto = i == kCodecKindNames.size();
    kind = is_auto ? recommended_settings(direction).kind : static_cast<CodecKind>(i);
  };
  return result;
}

/// none, or the kind of error feedback.
Choice feedback_choice(CodecSettings& codec) {
  Choice result;
  result.names = {"none", "ef", "ef21", "mixed"};
  result.get = [&codec]() -> std::size_t {
    return codec.error_feedback ? 1 + static_cast<std::size_t>(codec.feedback_kind) : 0;
  };
  result.set = [&codec](std::size_t i) {
    codec.error_feedback = i > 0;
    codec.feedback_kind = i > 0 ? static_cast<FeedbackKind>(i - 1) : FeedbackKind::ef;
  };
  return result;
}
/// The codec and its knob: what a beginner sets.
void add_codec(SectionKeys add, CodecSettings& c, RateSettings& r, bool& is_auto,
               Direction direction) {
  add("codec", codec_choice(c.kind, is_auto, direction),
      direction == Direction::forward
          ? "none sends fp32, directq the values in bits, aqsgd the change since the sample's last "
            "visit in bits, topk and aqsgd_topk the largest values or changes. auto is aqsgd with "
            "as many bits as boundary.error requires."
          : "none sends fp32, directq the values in bits, topk the largest values. auto is directq "
            "with as many bits as " +
                format_number(recommended_error(direction, 1)) + " boundary.error requires.");
  add("bits", Integer{&c.bits, 2, 8}, "Bits per value, for directq, aqsgd and codes of topk.");
  add("rate", RealList{&r.target_bits, 0.1, 16},
      "Instead of bits: mean bits per value on the wire, entropy coded, headers, scales and first "
      "visits included. One value, or a list with one per boundary; 0 sets none.");
  add("topk", Real{&c.topk, 0, 1, true},
      "Part of a sample's values that topk and aqsgd_topk send.");
  add("warmup_epochs", Real{&c.warmup_epochs, 0, 1e9},
      "Epochs that send fp32 before compression starts.");
}

void add_quantizer(SectionKeys add, CodecSettings& c, RateSettings& r) {
  add("step", Real{&c.rms_step, kLeastRmsStep, kLargestRmsStep, false, false, true},
      "For directq and aqsgd: distance between levels as a part of the values' root mean square, "
      "entropy coded. 0 has 2^bits levels up to the largest value.");
  add("error", Real{&r.target_error, 0, 1, false, true},
      "Relative RMS error that the step follows. 0 keeps the step.");
  add("budget", choice(r.budget, {{"equal", BudgetSharing::equal}, {"time", BudgetSharing::time}}),
      "Share of a boundary in rate: equal, or time, where rate is the mean and slower links get "
      "fewer bits (1.5 to 6) so that all links need the same time.");
  add("scale",
      choice(c.scale, {{"channel", ScaleKind::channel},
                       {"tile", ScaleKind::tile},
                       {"message", ScaleKind::message}}),
      "Values that share a scale: a channel over all tokens of a micro-batch, a tile of a token's "
      "channels, or all of a micro-batch (requires step).");
  add("tile", Integer{&c.tile, 1, kWholeRow},
      "Channels that share a scale, for scale = \"tile\" and first visits. The model's number of "
      "channels or more gives one scale per token.");
  add("rounding",
      choice(c.rounding, {{"nearest", Rounding::nearest}, {"stochastic", Rounding::stochastic}}),
      "Rounding of codes. stochastic is unbiased.");
  add("levels",
      choice(c.levels, {{"symmetric", Levels::symmetric}, {"asymmetric", Levels::asymmetric}}),
      "For step = 0: symmetric has 2^bits - 1 levels around zero. asymmetric has 2^bits levels "
      "from -1 and cuts the largest positive values.");
  add("entropy_coding", Flag{&c.entropy_coding},
      "For step = 0: entropy codes the quantised values, without loss.");
}

void add_sparse(SectionKeys add, CodecSettings& c, Direction direction) {
  add("values",
      choice(c.values, {{"fp32", ChosenValues::fp32},
                        {"fp16", ChosenValues::fp16},
                        {"codes", ChosenValues::codes}}),
      "Format of the values. codes have bits bits and a scale for every quantizer.tile values.");
  if (direction == Direction::forward) return;
  add("positions",
      choice(c.positions,
             {{"largest", ChosenPositions::largest}, {"forward", ChosenPositions::forward}}),
      "largest sends the values of largest magnitude with their positions. forward sends the "
      "values "
      "where activations were sent, without positions.");
}

void add_memory(SectionKeys add, CodecSettings& c) {
  add("first_visit",
      choice(c.first_visit, {{"fp32", FirstVisit::fp32},
                             {"quantize8", FirstVisit::quantize8},
                             {"steps", FirstVisit::steps}}),
      "Format of a sample without a memory. steps, for aqsgd, has levels as quantizer.step, at a "
      "distance of first_visit_step.");
  add("first_visit_step", Real{&c.first_visit_step, kLeastRmsStep, kLargestRmsStep},
      "For first_visit = \"steps\". 0.4 needs about 3.4 bits per value.");
}

void add_feedback(SectionKeys add, CodecSettings& c) {
  add("kind", feedback_choice(c),
      "ef adds what the codec left out to the sample's next values; mixed does so with half of "
      "topk's positions at the largest errors. ef21 sends changes against the values that the "
      "receiver saw.");
  add("of",
      choice(c.feedback_of, {{"sample", FeedbackOf::sample}, {"position", FeedbackOf::position}}),
      "sample adds the error at the sample's next visit. position adds it at the next step, to the "
      "sample at the same place of the micro-batches.");
}

void add_boundary(std::vector<Key>& keys, CodecSettings& c, RateSettings& r, bool& is_auto,
                  Direction direction) {
  const std::string section = std::string("boundary.") + name_of(direction);
  add_codec({keys, section}, c, r, is_auto, direction);
  add_quantizer({keys, section + ".quantizer"}, c, r);
  add_sparse({keys, section + ".sparse"}, c, direction);
  if (direction == Direction::forward) add_memory({keys, section + ".memory"}, c);
  add_feedback({keys, section + ".feedback"}, c);
}

}  // namespace

void add_boundaries(std::vector<Key>& keys, Draft& draft) {
  Settings& s = draft.settings;
  SectionKeys add(keys, "boundary");
  add("error", Real{&s.auto_error, 0.001, 0.5},
      "Relative RMS error of activations that codec = \"auto\" holds. Gradients have " +
          format_number(recommended_error(Direction::backward, 1)) + " times as much.");
  add("move_memories", Flag{&s.move_memories},
      "Moves the memories of a sample by the crop of its image at each visit "
      "(data.images.padding). false leaves them unchanged, as in the papers.");
  add_boundary(keys, s.forward, s.forward_rate, draft.forward_is_auto, Direction::forward);
  add_boundary(keys, s.backward, s.backward_rate, draft.backward_is_auto, Direction::backward);
}

void add_cache(std::vector<Key>& keys, CacheSettings& c) {
  SectionKeys add(keys, "cache");
  add("storage", choice(c.storage, kMemoryStorageNames), "Number format of stored memories.");
  add("budget", Size{&c.budget_bytes},
      "Memory for the cache, per rank and boundary end. The rest is spilled to disk; 0 sets no "
      "limit.");
  add("directory", Text{&c.directory},
      "Fast local disk for spilled memories. If it is empty, the output directory is used.");
  add("prefetch", Integer{&c.prefetch, 1, 4096}, "Micro-batches that are read ahead of their use.");
  add("keep", Flag{&c.keep}, "Retains the cache's files when the run ends.");
  add("verify_every", Integer{&c.verify_every, 0, kAnyCount},
      "Visits of a sample between comparisons of its memory at both ends of a boundary. A "
      "difference ends the run; 0 never compares them.");
}

}  // namespace deltapipe::deck
