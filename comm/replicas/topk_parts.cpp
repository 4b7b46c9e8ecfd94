// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/topk_parts.hpp"

#include <algorithm>
#include <cmath>

#include "comm/replicas/code_levels.hpp"
#include "comm/replicas/sum_chunks.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/quantizer/packing.hpp"

namespace deltapipe {

namespace {

constexpr int kTopkGroup = 8 * static_cast<int>(kSumGroup);
constexpr int kMostSent = kTopkGroup / 4;
/// Ones and zeros of a row of bits: at most k + (n >> l) < 3 k + 16.
constexpr int kMostMarks = 3 * kMostSent + 16;

/// Payload of a group of n elements: scale, codes, lower bits of positions, row of bits.
struct GroupPayload {
  int n, k, bits, low_bits;

  KOKKOS_INLINE_FUNCTION int marks() const { return k + ((n - 1) >> low_bits); }
  KOKKOS_INLINE_FUNCTION std::size_t codes() const { return sizeof(std::uint16_t); }
  KOKKOS_INLINE_FUNCTION std::size_t lows() const { return codes() + codec::packed_bytes(bits, k); }
  KOKKOS_INLINE_FUNCTION std::size_t highs() const {
    return lows() + codec::packed_bytes(low_bits, k);
  }
  KOKKOS_INLINE_FUNCTION std::size_t bytes() const {
    return highs() + codec::packed_bytes(1, marks());
  }
};

GroupPayload payload_of(int n, double topk, int bits) {
  const int most = std::max(1, n / 4);
  const int k = std::clamp(static_cast<int>(std::lround(topk * n)), 1, most);
  int low_bits = 0;
  while (low_bits < 8 && (n >> (low_bits + 1)) >= k) ++low_bits;
  return {n, k, bits, low_bits};
}

/// Payload of a part: all whole groups, then the rest.
struct PartPayload {
  GroupPayload whole, rest;
  int wholes;

  PartPayload(std::size_t elements, double topk, int bits)
      : whole(payload_of(kTopkGroup, topk, bits)),
        rest(payload_of(static_cast<int>(elements % kTopkGroup), topk, bits)),
        wholes(static_cast<int>(elements / kTopkGroup)) {}

  int groups() const { return wholes + (rest.n > 0 ? 1 : 0); }
  std::size_t bytes() const { return offset(wholes) + (rest.n > 0 ? rest.bytes() : 0); }
  KOKKOS_INLINE_FUNCTION std::size_t offset(int group) const {
    return static_cast<std::size_t>(group) * whole.bytes();
  }
  KOKKOS_INLINE_FUNCTION const GroupPayload& group(int i) const {
    return i < wholes ? whole : rest;
  }
};

/// Buffers of the values that a group sends.
struct Sent {
  std::uint8_t* codes;
  std::uint8_t* lows;   ///< lower bits of positions
  std::uint8_t* marks;  ///< the row of bits, a byte each
  std::uint16_t* positions;

  static constexpr std::size_t kBytes = (2 + sizeof(std::uint16_t)) * kMostSent + kMostMarks + 256;

  KOKKOS_INLINE_FUNCTION static Sent of(const RowMember& team) {
    Sent sent;
    sent.codes = scratch_of<std::uint8_t>(team, kMostSent);
    sent.lows = scratch_of<std::uint8_t>(team, kMostSent);
    sent.marks = scratch_of<std::uint8_t>(team, kMostMarks + 7);
    sent.positions = scratch_of<std::uint16_t>(team, kMostSent);
    return sent;
  }
};

/// Orders magnitudes. Unlike those of codec::magnitude_key(), NaN is the largest: it must be sent.
KOKKOS_INLINE_FUNCTION std::uint32_t magnitude_of(float x) {
  return bits_of(x) & 0x7fffffffu;
}

/// Returns the k-th largest magnitude of n values.
KOKKOS_INLINE_FUNCTION std::uint32_t kth_largest(const RowMember& team, int n, int k,
                                                 const float* x) {
  std::uint32_t least = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const std::uint32_t candidate = least | (1u << bit);
    const int count =
        row_sum<int>(team, n, [=](int i) { return magnitude_of(x[i]) >= candidate ? 1 : 0; });
    if (count >= k) least = candidate;
    if (count == k) break;  // no value is between the candidate and the k-th largest
  }
  return least;
}

/// Calls use(j, i) for the k values of the largest magnitudes, the j-th of them at i. Of equal ones
/// the first are chosen.
template <class Use>
KOKKOS_INLINE_FUNCTION void for_largest(const RowMember& team, int n, int k, const float* x,
                                        const Use& use) {
  const std::uint32_t least = kth_largest(team, n, k, x);
  const int larger =
      row_sum<int>(team, n, [=](int i) { return magnitude_of(x[i]) > least ? 1 : 0; });
  const int equals = k - larger;  // that are chosen
  constexpr std::uint32_t kEqual = 1u << 16;
  row_scan<std::uint32_t>(
      team, n,
      [=](int i) {
        const std::uint32_t magnitude = magnitude_of(x[i]);
        return magnitude > least ? 1u : magnitude == least ? kEqual : 0u;
      },
      [=](int i, std::uint32_t before) {
        const std::uint32_t magnitude = magnitude_of(x[i]);
        const int equal = static_cast<int>(before / kEqual);
        if (magnitude > least || (magnitude == least && equal < equals))
          use(static_cast<int>(before % kEqual) + (equal < equals ? equal : equals), i);
      });
}

/// Sets the positions of the values that are sent. A damaged payload has positions of at least n.
KOKKOS_INLINE_FUNCTION void read_positions(const RowMember& team, const GroupPayload& layout,
                                           const std::uint8_t* payload, const Sent& sent) {
  row_for_synced(team, layout.k, [=](int j) {
    sent.lows[j] = 0;
    sent.positions[j] = kTopkGroup;
  });
  if (layout.low_bits > 0)
    codec::unpack_row(team, layout.low_bits, layout.k, payload + layout.lows(), sent.lows);
  codec::unpack_row(team, 1, layout.marks(), payload + layout.highs(), sent.marks);
  row_scan<int>(
      team, layout.marks(), [=](int m) { return static_cast<int>(sent.marks[m]); },
      [=](int m, int before) {
        if (sent.marks[m] != 0 && before < layout.k)
          sent.positions[before] =
              static_cast<std::uint16_t>(((m - before) << layout.low_bits) | sent.lows[before]);
      });
}

}  // namespace

std::size_t TopkParts::payload_bytes(double topk, int bits, std::size_t elements) {
  return PartPayload(elements, topk, bits).bytes();
}

TopkParts::TopkParts(double topk, int bits, std::size_t elements, const ViewAllocator& memory)
    : topk_(topk), bits_(bits), errors_(elements, memory) {}

void TopkParts::encode(const ExecSpace& exec, const VectorRef<const float>& values,
                       std::size_t place, std::uint8_t* payload) {
  const float* const value = values.data();
  const PartErrors::Place errors = errors_.place(place);
  const CodeLevels levels{bits_};
  const PartPayload part(values.extent(0), topk_, bits_);
  for_rows(
      "deltapipe::TopkParts::encode",
      row_policy(exec, part.groups(),
                 sizeof(float) * (kTopkGroup + kMostSent) + 128 + Sent::kBytes),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int group = team.league_rank();
        const GroupPayload layout = part.group(group);
        const int n = layout.n, k = layout.k, low_bits = layout.low_bits;
        const std::size_t first = static_cast<std::size_t>(group) * kTopkGroup;
        std::uint8_t* const to = payload + part.offset(group);
        const PartErrors::Place errors_here = errors.after(first);
        float* const x = scratch_of<float>(team, kTopkGroup);
        float* const chosen = scratch_of<float>(team, kMostSent);
        const Sent sent = Sent::of(team);

        const float former = codec::float_of_step(*errors_here.scale);
        row_for_synced(team, n,
                       [=](int i) { x[i] = value[first + i] + error_of(errors_here, i, former); });
        row_for_synced(team, 8 * codec::lanes_of(layout.marks()),
                       [=](int m) { sent.marks[m] = 0; });
        row_for_synced(team, 8 * codec::lanes_of(k), [=](int j) { sent.lows[j] = 0; });
        for_largest(team, n, k, x, [=](int j, int i) {
          chosen[j] = x[i];
          sent.positions[j] = static_cast<std::uint16_t>(i);
          sent.lows[j] = static_cast<std::uint8_t>(i & ((1 << low_bits) - 1));
          sent.marks[(i >> low_bits) + j] = 1;
        });

        const std::uint16_t wire = levels.scale(team, k, chosen);
        const float scale = CodeLevels::scale_of(wire);
        const float inverse = codec::inverse_of(scale);
        row_for_synced(team, 8 * codec::lanes_of(k), [=](int j) {
          sent.codes[j] = static_cast<std::uint8_t>(j < k ? levels.code(chosen[j], inverse) : 0);
        });
        const float signal2 = row_sum<float>(team, n, [=](int i) { return x[i] * x[i]; });
        row_for_synced(team, k, [=](int j) {
          x[sent.positions[j]] = chosen[j] - levels.value(sent.codes[j], scale);
        });
        const float error2 = row_sum<float>(team, n, [=](int i) { return x[i] * x[i]; });
        row_for(team, n, [=](int i) { store_error(errors_here, i, x[i] * inverse); });

        codec::pack_row(team, levels.bits, k, sent.codes, to + layout.codes());
        if (low_bits > 0) codec::pack_row(team, low_bits, k, sent.lows, to + layout.lows());
        codec::pack_row(team, 1, layout.marks(), sent.marks, to + layout.highs());
        store_group(team, errors_here, to, wire, error2, signal2);
      });
}

void TopkParts::decode(const ExecSpace& exec, const std::uint8_t* payload,
                       const VectorRef<float>& values, bool adds) const {
  float* const value = values.data();
  const CodeLevels levels{bits_};
  const PartPayload part(values.extent(0), topk_, bits_);
  for_rows(
      "deltapipe::TopkParts::decode", row_policy(exec, part.groups(), Sent::kBytes),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int group = team.league_rank();
        const GroupPayload layout = part.group(group);
        const int n = layout.n;
        const std::uint8_t* const from = payload + part.offset(group);
        float* const to = value + static_cast<std::size_t>(group) * kTopkGroup;
        const Sent sent = Sent::of(team);
        const float scale = codec::float_of_step(stored_scale(from));
        read_positions(team, layout, from, sent);
        codec::unpack_row(team, levels.bits, layout.k, from + layout.codes(), sent.codes);
        if (!adds) row_for_synced(team, n, [=](int i) { to[i] = 0.0f; });
        row_for(team, layout.k, [=](int j) {
          const int i = sent.positions[j];
          if (i < n) to[i] += levels.value(sent.codes[j], scale);
        });
      });
}

}  // namespace deltapipe
