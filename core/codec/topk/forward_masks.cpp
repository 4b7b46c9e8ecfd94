// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/topk/forward_masks.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace deltapipe {

ForwardMasks::ForwardMasks(int slots, const CodecShape& shape, double part) : part_(part) {
  const auto values =
      static_cast<std::uint32_t>(shape.tokens) * static_cast<std::uint32_t>(shape.channels);
  for (int slot = 0; slot < slots; ++slot)
    slots_.push_back(
        {.positions = codec::PositionLists(shape.max_samples, codec::count_of_part(part, values))});
}

std::size_t ForwardMasks::memory_bytes() const {
  std::size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.positions.memory_bytes();
  return bytes;
}

codec::Positions ForwardMasks::hold(const Crossing& activations, bool of_all) {
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) {
    return !s.is_taken || s.step != activations.step || s.is_of(activations);
  });
  DELTAPIPE_ASSERT(slot != slots_.end(), "more micro-batches are under way than have masks");
  slot->is_taken = true;
  slot->step = activations.step;
  slot->micro_batch = activations.micro_batch;
  slot->of_all = of_all;
  return slot->positions.view();
}

std::optional<ForwardMasks::Mask> ForwardMasks::find(const Crossing& gradients) const {
  for (const Slot& slot : slots_)
    if (slot.is_of(gradients)) return Mask{slot.positions.view(), slot.of_all};
  return std::nullopt;
}

void ForwardMasks::release(const Crossing& gradients) {
  for (Slot& slot : slots_)
    if (slot.is_of(gradients)) slot.is_taken = false;
}

std::shared_ptr<ForwardMasks> make_forward_masks(const CodecSettings& forward,
                                                 const CodecSettings& backward,
                                                 const CodecShape& shape, int slots) {
  if (!follows_forward(backward)) return nullptr;
  DELTAPIPE_ASSERT(sends_positions(forward), "activations are not sent by positions");
  return std::make_shared<ForwardMasks>(slots, shape, forward.topk);
}

}  // namespace deltapipe
