// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/quantized_parts.hpp"

#include "comm/replicas/sum_chunks.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/base/state/state_views.hpp"
#include "core/codec/quantizer/packing.hpp"
#include "core/codec/quantizer/scales.hpp"

namespace deltapipe {

namespace {

constexpr int kGroup = static_cast<int>(kSumGroup);
constexpr std::uint16_t kScaleNaN = 0xffff;
constexpr std::size_t kScratchBytes = kGroup * (sizeof(float) + 1) + 128;

/// Codes and values of one group.
struct Levels {
  int bits;

  /// Largest code; values of codes 0 ... 2 * middle() are symmetric.
  KOKKOS_INLINE_FUNCTION int largest() const {
    return bits > 2 ? (1 << bits) - 2 : (1 << bits) - 1;
  }
  /// Code of 0, with three bits or more.
  KOKKOS_INLINE_FUNCTION int middle() const { return largest() / 2; }
  KOKKOS_INLINE_FUNCTION float value(int code, float scale) const {
    const int level = bits > 2 ? code - middle() : 2 * code - largest();
    return static_cast<float>(level) * scale;
  }
  KOKKOS_INLINE_FUNCTION int code(float x, float inverse) const {
    const float q = limited(x * inverse, 16384.0f);
    const float at = bits > 2 ? codec::nearest_integer(q) + static_cast<float>(middle())
                              : std::floor(0.5f * (q + static_cast<float>(largest() + 1)));
    const int code = static_cast<int>(at);
    return code < 0 ? 0 : code > largest() ? largest() : code;
  }
  /// Returns a group's scale as it travels.
  KOKKOS_INLINE_FUNCTION std::uint16_t scale(float most, float mean) const {
    if (bits == 1) return codec::step_at_least(mean, 1.0f);
    return codec::step_of(most, bits == 2 ? 4.0f : static_cast<float>(middle()));
  }
};

struct Payload {
  int bits;
  std::size_t groups;

  KOKKOS_INLINE_FUNCTION std::size_t codes(std::size_t group) const {
    return 2 * groups + group * codec::packed_bytes(bits, kGroup);
  }
};

KOKKOS_INLINE_FUNCTION int elements_of(std::int64_t elements, int group) {
  const std::int64_t rest = elements - std::int64_t{group} * kGroup;
  return rest < kGroup ? static_cast<int>(rest) : kGroup;
}

template <class T>
KOKKOS_INLINE_FUNCTION T* scratch_of(const RowMember& team, int count) {
  return static_cast<T*>(team.team_scratch(0).get_shmem(sizeof(T) * count));
}

}  // namespace

std::size_t QuantizedParts::payload_bytes(int bits, std::size_t elements) {
  const int rest = static_cast<int>(elements % kSumGroup);
  return sizeof(std::uint16_t) * groups_of(elements) +
         elements / kSumGroup * codec::packed_bytes(bits, kGroup) + codec::packed_bytes(bits, rest);
}

QuantizedParts::QuantizedParts(int bits, std::size_t elements, const ViewAllocator& memory)
    : bits_(bits),
      error_(memory.zeroed<Vector<std::uint16_t>>(MemoryUse::replicas,
                                                  "deltapipe::QuantizedParts::errors", elements)),
      error_scale_(memory.zeroed<Vector<std::uint16_t>>(
          MemoryUse::replicas, "deltapipe::QuantizedParts::errorScales", groups_of(elements))),
      squares_(memory.zeroed<Matrix<float>>(
          MemoryUse::replicas, "deltapipe::QuantizedParts::squares", groups_of(elements), 2)) {}

void QuantizedParts::encode(const ExecSpace& exec, const VectorRef<const float>& values,
                            std::size_t place, std::uint8_t* payload) {
  const auto elements = static_cast<std::int64_t>(values.extent(0));
  const float* const value = values.data();
  std::uint16_t* const error = error_.data() + place;
  std::uint16_t* const error_scale = error_scale_.data() + place / kSumGroup;
  float* const squares = squares_.data() + 2 * (place / kSumGroup);
  const Levels levels{bits_};
  const Payload layout{bits_, groups_of(values.extent(0))};
  for_rows(
      "deltapipe::QuantizedParts::encode",
      row_policy(exec, static_cast<int>(layout.groups), kScratchBytes),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int group = team.league_rank();
        const int n = elements_of(elements, group);
        const std::size_t first = static_cast<std::size_t>(group) * kGroup;
        float* const x = scratch_of<float>(team, kGroup);
        auto* const code = scratch_of<std::uint8_t>(team, kGroup);
        const float former = codec::float_of_step(error_scale[group]);
        row_for_synced(team, n, [=](int i) {
          x[i] = value[first + i] + float_of_half(error[first + i]) * former;
        });
        const bool is_finite =
            row_max(team, n, 0u, [=](int i) { return is_nonfinite(x[i]); }) == 0u;
        const float most =
            float_of(row_max(team, n, 0u, [=](int i) { return finite_magnitude(x[i]); }));
        // Not the sum divided by n: it can overflow.
        const float part = 1.0f / static_cast<float>(n);
        const float mean =
            row_sum<float>(team, n, [=](int i) { return float_of(finite_magnitude(x[i])) * part; });
        const std::uint16_t wire = is_finite ? levels.scale(most, mean) : kScaleNaN;
        const float scale = is_finite ? codec::float_of_step(wire) : 0.0f;
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
          const float rest = (x[i] - levels.value(code[i], scale)) * inverse;
          error[first + i] = half_of(saturate(rest, kMaxHalf));
        });
        codec::pack_row(team, levels.bits, n, code, payload + layout.codes(group));
        row_once(team, [=]() {
          // Byte by byte: what precedes the scales in a payload need not be aligned.
          payload[2 * group] = static_cast<std::uint8_t>(wire & 0xffu);
          payload[2 * group + 1] = static_cast<std::uint8_t>(wire >> 8);
          squares[2 * group] = error2;
          squares[2 * group + 1] = signal2;
          error_scale[group] = is_finite ? wire : std::uint16_t{0};
        });
      });
}

void QuantizedParts::decode(const ExecSpace& exec, const std::uint8_t* payload,
                            const VectorRef<float>& values, bool adds) const {
  const auto elements = static_cast<std::int64_t>(values.extent(0));
  float* const value = values.data();
  const Levels levels{bits_};
  const Payload layout{bits_, groups_of(values.extent(0))};
  for_rows(
      "deltapipe::QuantizedParts::decode",
      row_policy(exec, static_cast<int>(layout.groups), kScratchBytes),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int group = team.league_rank();
        const int n = elements_of(elements, group);
        const std::size_t first = static_cast<std::size_t>(group) * kGroup;
        auto* const code = scratch_of<std::uint8_t>(team, kGroup);
        const auto wire =
            static_cast<std::uint16_t>(payload[2 * group] | payload[2 * group + 1] << 8);
        const float scale = codec::float_of_step(wire);
        codec::unpack_row(team, levels.bits, n, payload + layout.codes(group), code);
        row_for(team, n, [=](int i) {
          const float x = levels.value(code[i], scale);
          value[first + i] = adds ? value[first + i] + x : x;
        });
      });
}

std::vector<StatePart> QuantizedParts::state(const ExecSpace& exec, const std::string& name) {
  StatePart part;
  part.name = name;
  // The state's types have no 16-bit numbers.
  const auto bytes_of = [](const Vector<std::uint16_t>& view) {
    return VectorRef<std::uint8_t>(reinterpret_cast<std::uint8_t*>(view.data()),
                                   sizeof(std::uint16_t) * view.extent(0));
  };
  part.write = [this, exec, bytes_of](StateWriter& writer) {
    write_view(writer, exec, "errors", bytes_of(error_), {2 * error_.extent(0)});
    write_view(writer, exec, "error_scales", bytes_of(error_scale_), {2 * error_scale_.extent(0)});
  };
  part.read = [this, exec, bytes_of](StateReader& reader) {
    read_view(reader, exec, "errors", bytes_of(error_), {2 * error_.extent(0)});
    read_view(reader, exec, "error_scales", bytes_of(error_scale_), {2 * error_scale_.extent(0)});
  };
  return {part};
}

SumStatistics QuantizedParts::errors(const ExecSpace& exec) const {
  const auto host = Kokkos::create_mirror_view(squares_);
  Kokkos::deep_copy(exec, host, squares_);
  exec.fence();
  SumStatistics sums;
  for (std::size_t group = 0; group < host.extent(0); ++group) {
    sums.error2 += host(group, 0);
    sums.signal2 += host(group, 1);
  }
  return sums;
}

void QuantizedParts::reset(const ExecSpace& exec) {
  Kokkos::deep_copy(exec, error_, std::uint16_t{0});
  Kokkos::deep_copy(exec, error_scale_, std::uint16_t{0});
}

}  // namespace deltapipe
