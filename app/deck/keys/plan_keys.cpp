// SPDX-License-Identifier: BSD-3-Clause
// Keys of [plan].
#include "app/deck/keys/section_keys.hpp"

namespace deltapipe::deck {

void add_plan(std::vector<Key>& keys, PlanSettings& plan) {
  SectionKeys add(keys, "plan");
  add("run", Text{&plan.run},
      "Run file (run.h5) of the same model whose measured times are the rates of this plan.");
  add("flops", Quantity{&plan.flops, kFlopRateUnits, 1e20},
      "Floating-point operations per second of a rank, without plan.run.");
  add("codec_rate", Quantity{&plan.codec_rate, kByteRateUnits, 1e18},
      "Bytes of fp32 that a rank encodes or decodes in a second. With 0, codecs use no time.");
  add("forward_bits", Real{&plan.forward_bits, 0, 64},
      "Bits on the wire for each activation. 0 uses the codec's payload, or what plan.run measured "
      "with the same codec.");
  add("backward_bits", Real{&plan.backward_bits, 0, 64}, "The same for gradients.");
  add("receiver_wires", Flag{&plan.receiver_wires},
      "Each rank receives over one wire from both sides, and a message's latency occupies it. "
      "Without it, network.wire says what messages share.");
  add("bandwidths", QuantityList{&plan.bandwidths, kBandwidthUnits, 1, 1e15},
      "Bandwidths to compare, of all links, those between replicas included, in place of "
      "[network].");
}

}  // namespace deltapipe::deck
