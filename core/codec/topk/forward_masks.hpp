// SPDX-License-Identifier: BSD-3-Clause
// Positions at which a boundary's activations were sent, until their gradients come back at the
// same ones: "the forward's mask" of arXiv 2401.07788. Both ends know them, so that gradients are
// sent without positions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/codec/codec.hpp"
#include "core/codec/crossing.hpp"
#include "core/codec/topk/topk_selection.hpp"

namespace deltapipe {

/// Positions that one end of a boundary keeps of micro-batches between their forward and their
/// backward crossing. The codec of activations stores positions and the codec of gradients removes
/// them, both on one execution space instance.
class ForwardMasks {
 public:
  /// Value of Positions::count_G for a sample that was not sent by positions.
  static constexpr std::uint32_t kNoMask = 0xffffffffu;

  struct Mask {
    codec::Positions positions;
    bool of_all;  ///< no sample was sent in another way
  };

  /// Makes masks for up to `slots` micro-batches under way. `part` is the part of a sample's
  /// values, as in CodecSettings::topk.
  ForwardMasks(int slots, const CodecShape& shape, double part);

  double part() const { return part_; }
  std::size_t memory_bytes() const;

  /// Returns room for the positions of a crossing of activations. Drops positions of earlier steps.
  /// Throws InternalError if all slots are taken.
  codec::Positions hold(const Crossing& activations, bool of_all);
  /// Returns the positions for a crossing of gradients, or nothing if its activations were not sent
  /// by positions.
  std::optional<Mask> find(const Crossing& gradients) const;
  /// Releases the room when the crossing's kernels are queued; the next hold() may use it.
  void release(const Crossing& gradients);

 private:
  struct Slot {
    bool is_taken = false;
    std::uint64_t step = 0;
    std::uint32_t micro_batch = 0;
    bool of_all = false;
    codec::PositionLists positions;

    bool is_of(const Crossing& crossing) const {
      return is_taken && step == crossing.step && micro_batch == crossing.micro_batch;
    }
  };

  double part_;
  std::vector<Slot> slots_;
};

}  // namespace deltapipe
