// SPDX-License-Identifier: BSD-3-Clause
// Settings of a boundary's codec in one direction, and of the storage of activation memories.
#pragma once

#include <array>

namespace deltapipe {

enum class CodecKind { none, fp16, bf16, directq, aqsgd, topk, aqsgd_topk };

/// Names in decks and messages, indexed by the value of the enum.
inline constexpr std::array<const char*, 7> kCodecKindNames = {
    "none", "fp16", "bf16", "directq", "aqsgd", "topk", "aqsgd_topk"};

/// Values that share a scale. channel: one channel over all tokens of a micro-batch. tile: `tile`
/// channels of a token. message: all rows of a message share one step; requires rms_step > 0. Steps
/// of changes since a sample's last visit are then relative to the root mean square of the row in
/// the memory.
enum class ScaleKind { channel, tile, message };
enum class Rounding { nearest, stochastic };
/// symmetric: 2^b - 1 codes around zero. asymmetric: 2^b codes. Rounding to nearest uses those of
/// the AC-SGD code (2 bits: -1, -1/2, 0, 1/2), which cut the largest positive values. Stochastic
/// rounding cuts none.
enum class Levels { symmetric, asymmetric };
/// Format of a sample's first visit. fp32: values unchanged. quantize8: 8-bit codes with a scale
/// per tile. steps: entropy-coded steps of a fraction of the root mean square, with a scale per
/// tile. zero: a change from a memory of zeros; make_codec sets it for FeedbackKind::ef21.
enum class FirstVisit { fp32, quantize8, steps, zero };
/// Format of the values that topk and aqsgd_topk choose. codes: in `bits` bits, with a scale for
/// every `tile` of them.
enum class ChosenValues { fp32, fp16, codes };
/// Use of the part of a sample x that a codec C leaves out (arXiv 2401.07788). e and g begin as 0.
/// ef: the sender sends C(x + e) and keeps e := x + e - C(x + e).
/// ef21: both ends keep g := g + C(x - g), which is what the receiver sees.
/// mixed: like ef, but half of topk's positions are those of the largest |x| and the others those
/// of the largest |e|. If one half has too few nonzero values, the other gets its positions.
enum class FeedbackKind { ef, ef21, mixed };

/// Values to which error feedback adds what was left out: those of the same sample at its next
/// visit, or the next ones at the same place of a step, which belong to another sample (arXiv
/// 2401.07788).
enum class FeedbackOf { sample, position };

/// Positions at which topk sends gradients: those of largest magnitude, or those at which the
/// micro-batch's activations were sent, whatever the magnitude (arXiv 2401.07788). No positions are
/// sent in that case.
enum class ChosenPositions { largest, forward };

/// Range of CodecSettings::rms_step. With step s, the squared error of a group of values that share
/// a step is at most s^2 / 4 of the sum of their squares (on average, if rounding is stochastic).
/// From 2 on, less the 2^-8 by which steps are rounded up, a group of values of one size would be
/// sent as zeros, whatever its width, and its remainder would never be sent at later visits.
/// Stochastic rounding therefore ends below 2. With rounding to nearest, a step is at most
/// kMostOfLargest times the group's largest magnitude, so that this one is sent.
inline constexpr double kLeastRmsStep = 0.01;
inline constexpr double kLargestRmsStep = 2.5;
inline constexpr double kLargestStochasticStep = 1.9;
inline constexpr double kMostOfLargest = 1.8;

/// Value of CodecSettings::tile for one scale for all channels of a token.
inline constexpr int kWholeRow = 65536;

/// Codec of a stage boundary in one direction.
struct CodecSettings {
  CodecKind kind = CodecKind::none;  ///< none: fp32, unchanged
  int bits = 4;                      ///< 2 ... 8, for codes
  ScaleKind scale = ScaleKind::tile;
  /// Channels that a scale covers, for scale = tile and codes of first visits. kWholeRow: all.
  int tile = 64;
  Rounding rounding = Rounding::nearest;
  Levels levels = Levels::symmetric;
  FirstVisit first_visit = FirstVisit::quantize8;  ///< aqsgd and aqsgd_topk only
  double warmup_epochs = 0;  ///< epochs that are sent as fp32 before the codec starts
  /// For directq and topk: the part of a sample that the codec leaves out at a crossing is sent at
  /// the next ones, as feedback_kind says, from records of the cache.
  bool error_feedback = false;
  FeedbackKind feedback_kind = FeedbackKind::ef;
  FeedbackOf feedback_of = FeedbackOf::sample;
  /// For topk and aqsgd_topk: the part of a sample's values that is sent, above 0 and up to 1; at
  /// least one value.
  double topk = 0.1;
  ChosenValues values = ChosenValues::fp16;
  /// For topk of gradients. forward: samples whose activations were not sent by positions have
  /// their own positions.
  ChosenPositions positions = ChosenPositions::largest;
  /// For directq and aqsgd. Above 0: the step between levels is this fraction of the values' root
  /// mean square, there are as many levels as the values need, and codes are entropy coded; `bits`
  /// has no effect. 0: 2^bits levels up to the largest value.
  double rms_step = 0;
  /// For directq and aqsgd with rms_step = 0: codes are entropy coded.
  bool entropy_coding = false;
  double first_visit_step = 0.4;  ///< for FirstVisit::steps: step / root mean square

  bool operator==(const CodecSettings&) const = default;
};

/// Returns true if the codec sends changes since a sample's last visit, as AQ-SGD does.
inline bool sends_changes(const CodecSettings& codec) {
  return codec.kind == CodecKind::aqsgd || codec.kind == CodecKind::aqsgd_topk;
}

/// Returns true if the part of a sample that the codec leaves out is sent at later visits.
inline bool has_feedback(const CodecSettings& codec) {
  return codec.error_feedback &&
         (codec.kind == CodecKind::directq || codec.kind == CodecKind::topk);
}

/// Returns true if an end of a boundary keeps a record for each place of a step.
inline bool has_feedback_of_positions(const CodecSettings& codec) {
  return has_feedback(codec) && codec.feedback_of == FeedbackOf::position;
}

/// Returns true if an end of a boundary keeps a record for each sample or place of a step.
inline bool has_memory(const CodecSettings& codec) {
  return sends_changes(codec) || has_feedback(codec);
}

/// Returns true if an end of a boundary keeps a record for each sample.
inline bool has_memory_of_samples(const CodecSettings& codec) {
  return has_memory(codec) && !has_feedback_of_positions(codec);
}

/// Returns true if both ends keep the same memory of each sample.
inline bool has_shared_memory(const CodecSettings& codec) {
  return has_memory(codec) && (!codec.error_feedback || codec.feedback_kind == FeedbackKind::ef21);
}

/// Returns true if the codec sends a part of each sample's values with their positions.
inline bool sends_positions(const CodecSettings& codec) {
  return codec.kind == CodecKind::topk || codec.kind == CodecKind::aqsgd_topk;
}

/// Returns true if gradients are sent at the positions of their activations.
inline bool follows_forward(const CodecSettings& codec) {
  return codec.kind == CodecKind::topk && codec.positions == ChosenPositions::forward;
}

/// Returns true if codes are entropy coded.
inline bool is_entropy_coded(const CodecSettings& codec) {
  return codec.entropy_coding || codec.rms_step > 0;
}

/// Returns true if the codec sends codes of all values, or of all changes.
inline bool quantizes_all(const CodecSettings& codec) {
  return codec.kind == CodecKind::directq || codec.kind == CodecKind::aqsgd;
}

/// Returns true if the codec sends codes, of `bits` bits or in steps of the RMS.
inline bool sends_codes(const CodecSettings& codec) {
  return quantizes_all(codec) || (sends_positions(codec) && codec.values == ChosenValues::codes);
}

/// Returns true if the codec is too coarse for rows of a token embedding that two stages share, and
/// for their gradients: they travel in 8 bits.
inline bool is_coarse(const CodecSettings& codec) {
  return sends_codes(codec) || sends_positions(codec);
}

enum class MemoryStorage { fp32, fp16, bf16, bits8, bits4 };

/// Names for users and cache files, indexed by the value of the enum.
inline constexpr std::array<const char*, 5> kMemoryStorageNames = {"fp32", "fp16", "bf16", "8bit",
                                                                   "4bit"};

}  // namespace deltapipe
