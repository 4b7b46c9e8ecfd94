// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/quantized_parts.hpp"

#include "comm/replicas/code_levels.hpp"
#include "comm/replicas/sum_chunks.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/quantizer/packing.hpp"

namespace deltapipe {

namespace {

constexpr int kCodeGroup = static_cast<int>(kSumGroup);
constexpr std::size_t kScratchBytes = kCodeGroup * (sizeof(float) + 1) + 128;

/// Scales of all groups, then their codes.
struct Payload {
  int bits;
  std::size_t groups;

  KOKKOS_INLINE_FUNCTION std::size_t codes(std::size_t group) const {
    return 2 * groups + group * codec::packed_bytes(bits, kCodeGroup);
  }
};

KOKKOS_INLINE_FUNCTION int elements_of(std::int64_t elements, int group) {
  const std::int64_t rest = elements - std::int64_t{group} * kCodeGroup;
  return rest < kCodeGroup ? static_cast<int>(rest) : kCodeGroup;
}

}  // namespace

std::size_t QuantizedParts::payload_bytes(int bits, std::size_t elements) {
  const int rest = static_cast<int>(elements % kSumGroup);
  return sizeof(std::uint16_t) * groups_of(elements) +
         elements / kSumGroup * codec::packed_bytes(bits, kCodeGroup) +
         codec::packed_bytes(bits, rest);
}

QuantizedParts::QuantizedParts(int bits, std::size_t elements, const ViewAllocator& memory)
    : bits_(bits), errors_(elements, memory) {}

void QuantizedParts::encode(const ExecSpace& exec, const VectorRef<const float>& values,
                            std::size_t place, std::uint8_t* payload) {
  const auto elements = static_cast<std::int64_t>(values.extent(0));
  const float* const value = values.data();
  const PartErrors::Place errors = errors_.place(place);
  const CodeLevels levels{bits_};
  const Payload layout{bits_, groups_of(values.extent(0))};
  for_rows(
      "deltapipe::QuantizedParts::encode",
      row_policy(exec, static_cast<int>(layout.groups), kScratchBytes),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int group = team.league_rank();
        const int n = elements_of(elements, group);
        const std::size_t first = static_cast<std::size_t>(group) * kCodeGroup;
        const PartErrors::Place errors_here = errors.after(first);
        float* const x = scratch_of<float>(team, kCodeGroup);
        auto* const code = scratch_of<std::uint8_t>(team, kCodeGroup);
        const float former = codec::float_of_step(*errors_here.scale);
        row_for_synced(team, n,
                       [=](int i) { x[i] = value[first + i] + error_of(errors_here, i, former); });
        const std::uint16_t wire = levels.scale(team, n, x);
        const float scale = CodeLevels::scale_of(wire);
        const float inverse = codec::inverse_of(scale);
        row_for_synced(team, 8 * codec::lanes_of(n), [=](int i) {
          code[i] = static_cast<std::uint8_t>(i < n ? levels.code(x[i], inverse) : 0);
        });
        const auto squares_sum = [=](const auto& value_of) {
          return row_sum<float>(team, n, [=](int i) { return value_of(i) * value_of(i); });
        };
        const float error2 =
            squares_sum([=](int i) { return x[i] - levels.value(code[i], scale); });
        const float signal2 = squares_sum([=](int i) { return x[i]; });
        row_for(team, n, [=](int i) {
          store_error(errors_here, i, (x[i] - levels.value(code[i], scale)) * inverse);
        });
        codec::pack_row(team, levels.bits, n, code, payload + layout.codes(group));
        store_group(team, errors_here, payload + 2 * group, wire, error2, signal2);
      });
}

void QuantizedParts::decode(const ExecSpace& exec, const std::uint8_t* payload,
                            const VectorRef<float>& values, bool adds) const {
  const auto elements = static_cast<std::int64_t>(values.extent(0));
  float* const value = values.data();
  const CodeLevels levels{bits_};
  const Payload layout{bits_, groups_of(values.extent(0))};
  for_rows(
      "deltapipe::QuantizedParts::decode",
      row_policy(exec, static_cast<int>(layout.groups), kScratchBytes),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int group = team.league_rank();
        const int n = elements_of(elements, group);
        const std::size_t first = static_cast<std::size_t>(group) * kCodeGroup;
        auto* const code = scratch_of<std::uint8_t>(team, kCodeGroup);
        const float scale = codec::float_of_step(stored_scale(payload + 2 * group));
        codec::unpack_row(team, levels.bits, n, payload + layout.codes(group), code);
        row_for(team, n, [=](int i) {
          const float x = levels.value(code[i], scale);
          value[first + i] = adds ? value[first + i] + x : x;
        });
      });
}

}  // namespace deltapipe
