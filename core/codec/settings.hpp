// SPDX-License-Identifier: BSD-3-Clause
// What a boundary's codec does in one direction, and how activation memories are stored.
#pragma once

#include <array>

namespace deltapipe {

enum class CodecKind { none, fp16, bf16, directq, aqsgd, topk, aqsgd_topk };

/// By the value of the enum, as decks and messages name them.
inline constexpr std::array<const char*, 7> kCodecKindNames = {
    "none", "fp16", "bf16", "directq", "aqsgd", "topk", "aqsgd_topk"};

/// Values that share a scale. channel: a channel over all tokens of a micro-batch. tile: `tile`
/// channels of a token. message: one step for all rows of a message, with rms_step > 0 only. Of
/// changes since a sample's last visit it is relative to the root mean square of the row in the
/// memory.
enum class ScaleKind { channel, tile, message };
enum class Rounding { nearest, stochastic };
/// symmetric: 2^b - 1 codes around zero. asymmetric: 2^b codes, to nearest the AC-SGD code's (2
/// bits: -1, -1/2, 0, 1/2), which cut the top; stochastic: none cut.
enum class Levels { symmetric, asymmetric };
/// Format of a sample's first visit. fp32: values unchanged. quantize8: 8-bit codes with a scale
/// per tile. steps: entropy-coded steps of a fraction of the root mean square, with a scale per
/// tile. zero: a change from a memory of zeros; make_codec sets it for FeedbackKind::ef21.
enum class FirstVisit { fp32, quantize8, steps, zero };
/// How topk and aqsgd_topk send the values that they choose. codes: in `bits` bits, with a scale
/// for every `tile` of them.
enum class ChosenValues { fp32, fp16, codes };
/// Use of the part of a sample x that a codec C leaves out (arXiv 2401.07788); 0 at first.
/// ef: the sender sends C(x + e) and keeps e := x + e - C(x + e).
/// ef21: both ends keep g := g + C(x - g), which is what the receiver sees.
/// mixed: as ef, with half of topk's positions those of the largest |x| and the others those of the
/// largest |e|; where one of them has too few that are not zero the other has more.
enum class FeedbackKind { ef, ef21, mixed };

/// Whose values error feedback adds what was left out to: those of the same sample at its next
/// visit, or those that come next at the same place of a step, which are another sample's (arXiv
/// 2401.07788).
enum class FeedbackOf { sample, position };

/// Positions at which topk sends gradients: those of largest magnitude, or those where the
/// micro-batch's activations were sent, whatever their magnitude (arXiv 2401.07788); no positions
/// travel then.
enum class ChosenPositions { largest, forward };

/// Range of CodecSettings::rms_step. With step s no group of values, which share a step, errs by
/// more than s^2 / 4 of its square, on average where rounding is stochastic. From 2 on, less the
/// 2^-8 by which steps are rounded up, a group of values of one size would be sent as zeros,
/// whatever its width, and what is left for later visits would never come: stochastic rounding ends
/// before, and to nearest no step is more than kMostOfLargest times the group's largest magnitude,
/// which is sent, therefore.
inline constexpr double kLeastRmsStep = 0.01;
inline constexpr double kLargestRmsStep = 2.5;
inline constexpr double kLargestStochasticStep = 1.9;
inline constexpr double kMostOfLargest = 1.8;

/// As CodecSettings::tile: one scale for all channels of a token.
inline constexpr int kWholeRow = 65536;

/// Codec of a stage boundary in one direction.
///
/// Relative RMS errors of synthetic activations (512 x 768, log-normal channel scales, four
/// channels 30 times the others): directq at 4 bits 0.42 with tile 768, 0.17 with tile 64 for 0.23
/// more bits a value, 0.15 with channel; of gradients with heavy tails 0.33, 0.17 and 0.31.
/// 3-bit aqsgd with tile 64 settles at 0.038 with nearest and at 0.081 with stochastic rounding;
/// after a first visit by fp32 or quantize8 its second visit errs by 0.038 and 0.040.
struct CodecSettings {
  CodecKind kind = CodecKind::none;  ///< none: fp32 unchanged
  int bits = 4;                      ///< 2 ... 8, for codes
  ScaleKind scale = ScaleKind::tile;
  /// Channels that a scale covers, for scale = tile and codes of first visits; kWholeRow: all.
  int tile = 64;
  Rounding rounding = Rounding::nearest;
  Levels levels = Levels::symmetric;
  FirstVisit first_visit = FirstVisit::quantize8;  ///< aqsgd and aqsgd_topk only
  double warmup_epochs = 0;                        ///< epochs sent as fp32 before the codec starts
  /// directq and topk only: what the codec leaves out of a sample at a crossing comes with its
  /// next ones, as feedback_kind says, from records of the cache.
  bool error_feedback = false;
  FeedbackKind feedback_kind = FeedbackKind::ef;
  FeedbackOf feedback_of = FeedbackOf::sample;
  /// topk, aqsgd_topk: the part of a sample's values that is sent, above 0 and up to 1; at least
  /// one.
  double topk = 0.1;
  ChosenValues values = ChosenValues::fp16;
  /// topk of gradients only; forward: samples whose activations were not sent by positions keep
  /// their own.
  ChosenPositions positions = ChosenPositions::largest;
  /// For directq and aqsgd. Above 0: the step between levels is this fraction of the values' root
  /// mean square, with as many levels as they need, and codes are entropy coded; `bits` has no
  /// effect. 0: 2^bits levels up to the largest value.
  double rms_step = 0;
  /// For directq and aqsgd with rms_step = 0: codes travel in the bits that they carry.
  bool entropy_coding = false;
  double first_visit_step = 0.4;  ///< for FirstVisit::steps: step / root mean square

  bool operator==(const CodecSettings&) const = default;
};

/// True if it sends changes since a sample's last visit, as AQ-SGD does.
inline bool sends_changes(const CodecSettings& codec) {
  return codec.kind == CodecKind::aqsgd || codec.kind == CodecKind::aqsgd_topk;
}

/// True if the part that it leaves out of a sample comes at the next visits.
inline bool has_feedback(const CodecSettings& codec) {
  return codec.error_feedback &&
         (codec.kind == CodecKind::directq || codec.kind == CodecKind::topk);
}

/// True if an end of a boundary keeps a record for each place of a step.
inline bool has_feedback_of_positions(const CodecSettings& codec) {
  return has_feedback(codec) && codec.feedback_of == FeedbackOf::position;
}

/// True if an end of a boundary keeps a record for each sample or place of a step.
inline bool has_memory(const CodecSettings& codec) {
  return sends_changes(codec) || has_feedback(codec);
}

/// True if an end of a boundary keeps a record for each sample.
inline bool has_memory_of_samples(const CodecSettings& codec) {
  return has_memory(codec) && !has_feedback_of_positions(codec);
}

/// True if both ends keep the same memory of each sample.
inline bool has_shared_memory(const CodecSettings& codec) {
  return has_memory(codec) && (!codec.error_feedback || codec.feedback_kind == FeedbackKind::ef21);
}

/// True if it sends a part of each sample's values with their positions.
inline bool sends_positions(const CodecSettings& codec) {
  return codec.kind == CodecKind::topk || codec.kind == CodecKind::aqsgd_topk;
}

/// True if its gradients travel at the positions of their activations.
inline bool follows_forward(const CodecSettings& codec) {
  return codec.kind == CodecKind::topk && codec.positions == ChosenPositions::forward;
}

/// True if its codes travel in the bits that they carry.
inline bool is_entropy_coded(const CodecSettings& codec) {
  return codec.entropy_coding || codec.rms_step > 0;
}

/// True if it sends codes of all values, or of all changes.
inline bool quantizes_all(const CodecSettings& codec) {
  return codec.kind == CodecKind::directq || codec.kind == CodecKind::aqsgd;
}

/// True if it sends codes, of `bits` bits or in steps of the RMS.
inline bool sends_codes(const CodecSettings& codec) {
  return quantizes_all(codec) || (sends_positions(codec) && codec.values == ChosenValues::codes);
}

enum class MemoryStorage { fp32, fp16, bf16, bits8, bits4 };

/// By the value of the enum, as users and cache files name them.
inline constexpr std::array<const char*, 5> kMemoryStorageNames = {"fp32", "fp16", "bf16", "8bit",
                                                                   "4bit"};

}  // namespace deltapipe
