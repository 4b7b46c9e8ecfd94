// SPDX-License-Identifier: BSD-3-Clause
// TopK: of each sample the k values of largest magnitude travel with their positions, and the
// receiver sees zeros elsewhere. C(x) being that:
//
//   topk                x^ = C(x)
//   topk, ef, mixed     x^ = C(x + e), e := x + e - x^ at the sender (arXiv 2401.07788), bounded
//   topk with ef21      x^ = g + C(x - g), g := x^ at both ends, from zeros
//   topk_delta          the same from a first visit that is sent whole or in codes: AQ-SGD's
//                       memories (arXiv 2206.01299) with TopK as its codec
//
// Gradients may be sent at the positions of their activations instead (ForwardMasks), whatever
// their magnitude. Memories and errors of gradients leave the factor Crossing::scale out. NaN and
// zeros are never chosen, and NaN at a given position is sent as 0; an infinity is chosen before
// all numbers, is sent as the largest number or code, counts into no scale and leaves no error.
//
// Payload: a header for each sample, if any of them is sent so; the blocks of the samples that are
// not, at a first visit; then those of the others, each its positions and its values.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/base/error.hpp"
#include "core/codec/algorithms/error_bound.hpp"
#include "core/codec/algorithms/first_visit.hpp"
#include "core/codec/topk/chosen_values.hpp"
#include "core/codec/topk/forward_masks.hpp"
#include "core/codec/topk/position_coding.hpp"
#include "core/codec/topk/topk_selection.hpp"

namespace deltapipe {
namespace codec {
namespace {

enum class Keeps { nothing, errors, memory };
enum Format { first_visit, later_visit };

/// Header of a sample; zeros if its rows travel in another way.
struct SampleHeader {
  std::uint32_t count;  ///< of positions
  std::uint32_t words;  ///< that the positions take
  PositionFormat format;
  std::uint8_t bits;      ///< as PositionCoding has them
  std::int16_t exponent;  ///< fp16 values: of their power of two; else 0

  KOKKOS_INLINE_FUNCTION PositionCoding coding() const { return {format, bits, words}; }
};
static_assert(sizeof(SampleHeader) == 12);

/// Arguments that the kernels share.
struct SparseArguments {
  RowArguments a;
  RowFormats formats;
  ValueCoding values;
  double part;
  Positions chosen;
  bool is_held;            ///< the chosen ones are kept for gradients
  Positions forward;       ///< of the micro-batch's activations; position null: none
  std::uint64_t* block_B;  ///< offset of each sample's block in the payload

  /// True if sample b's values are those at its activations' positions.
  KOKKOS_INLINE_FUNCTION bool follows(int b) const {
    return forward.position != nullptr && forward.count_G[b] != ForwardMasks::kNoMask;
  }
  KOKKOS_INLINE_FUNCTION const std::uint32_t* positions_of(int b) const {
    return follows(b) ? forward.of(b) : chosen.of(b);
  }
  KOKKOS_INLINE_FUNCTION std::uint32_t count_of(int b) const {
    return follows(b) ? forward.count_G[b] : chosen.count_G[b];
  }
  /// Place of a sample's values among those of all positions.
  KOKKOS_INLINE_FUNCTION std::size_t sent_of(int b) const { return b * chosen.stride; }
  /// Entry of chosen.count_G for a sample with this number of positions.
  KOKKOS_INLINE_FUNCTION std::uint32_t held_count(int b, std::uint32_t count) const {
    return is_held && !is_sparse(b) ? ForwardMasks::kNoMask : count;
  }
  KOKKOS_INLINE_FUNCTION bool is_sparse(int b) const {
    return formats.format[a.samples[b].format].kind == RowKind::sparse;
  }
  KOKKOS_INLINE_FUNCTION bool uses_memory(int b) const {
    return formats.format[a.samples[b].format].uses_memory;
  }
  /// Values of sample b among which to choose.
  KOKKOS_INLINE_FUNCTION std::uint32_t size_of(int b) const {
    if (!is_sparse(b)) return 0;
    return static_cast<std::uint32_t>(a.samples[b].tokens) * static_cast<std::uint32_t>(a.channels);
  }
  KOKKOS_INLINE_FUNCTION std::uint64_t first_of(int b) const {
    return static_cast<std::uint64_t>(b) * a.tokens * a.channels;
  }
  KOKKOS_INLINE_FUNCTION SampleHeader* headers() const {
    return reinterpret_cast<SampleHeader*>(a.payload);
  }
  KOKKOS_INLINE_FUNCTION std::uint64_t block_bytes(const SampleHeader& header) const {
    return std::uint64_t{4} * header.words + values.bytes_of(header.count);
  }
  KOKKOS_INLINE_FUNCTION MemoryRow row_of(int index) const {
    const SampleEntry& sample = a.samples[index / a.tokens];
    return {a.pool + sample.record, a.tokens, index % a.tokens, a.channels, a.scale};
  }
};

/// The part of the k positions that a selection may find: all; of EF-mixed's the values' share, or
/// those that are still to be found.
enum class Share { all, values, rest };

struct MakeGroups {
  SparseArguments s;
  Share share;
  const std::uint32_t* found_B;  ///< rest: positions that are found already
  TopKGroup* group_B;

  KOKKOS_INLINE_FUNCTION void operator()(const int b) const {
    const std::uint32_t size = s.follows(b) ? 0 : s.size_of(b);
    std::uint32_t most = size > 0 ? count_of_part(s.part, size) : 0;
    // Without errors yet, values have all.
    if (share == Share::values && s.uses_memory(b)) most -= most / 2;
    if (share == Share::rest) most = s.uses_memory(b) ? most - found_B[b] : 0;
    group_B[b] = {s.first_of(b), size, most};
  }
};

/// y := x + factor * (what the records hold), for the rows of samples that are sent sparse.
template <class M>
struct AddRecords {
  SparseArguments s;
  float factor;  ///< 1 or -1
  float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int n = s.a.channels;
    const int b = index / s.a.tokens;
    if (!s.is_sparse(b) || index % s.a.tokens >= s.a.samples[b].tokens) return;
    const RowBuffers buffers = RowBuffers::of(team, n);
    float* work = buffers.work;
    if (s.uses_memory(b))
      load_scaled<M>(team, s.row_of(index), work, buffers.codes);
    else
      row_for_synced(team, n, [=](int c) { work[c] = 0.0f; });
    const float* row = s.a.x + static_cast<std::size_t>(index) * n;
    float* sum = y + static_cast<std::size_t>(index) * n;
    const float share = s.a.error_share == nullptr ? factor : factor * s.a.error_share[b];
    row_for(team, n, [=](int c) { sum[c] = row[c] + share * work[c]; });
  }
};

/// offered := x or e, for the samples whose groups may find any; 0 where x + e, which would travel,
/// is not a value that topk sends.
template <class M>
struct OfferShare {
  SparseArguments s;
  const TopKGroup* group_B;
  bool errors;
  const float* sum;  ///< x + e
  float* offered;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int n = s.a.channels;
    const int b = index / s.a.tokens;
    if (group_B[b].most == 0 || index % s.a.tokens >= s.a.samples[b].tokens) return;
    const RowBuffers buffers = RowBuffers::of(team, n);
    const std::size_t first = static_cast<std::size_t>(index) * n;
    if (errors) load_scaled<M>(team, s.row_of(index), buffers.work, buffers.codes);
    const float* from = errors ? buffers.work : s.a.x + first;
    const float* both = sum + first;
    float* to = offered + first;
    row_for(team, n, [=](int c) { to[c] = magnitude_key(both[c]) == 0 ? 0.0f : from[c]; });
  }
};

/// y := 0 at the chosen positions, for the samples whose groups may find others.
struct DropChosen {
  SparseArguments s;
  const TopKGroup* group_B;
  Positions chosen;
  float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int b = team.league_rank();
    if (group_B[b].most == 0) return;
    const std::uint32_t* position = chosen.of(b);
    float* values = y + s.first_of(b);
    row_for(team, static_cast<int>(chosen.count_G[b]), [=](int i) { values[position[i]] = 0.0f; });
  }
};

/// How many of some ascending positions are below another one.
KOKKOS_INLINE_FUNCTION std::uint32_t places_below(const std::uint32_t* positions,
                                                  std::uint32_t count, std::uint32_t position) {
  std::uint32_t first = 0;
  while (count > 0) {
    const std::uint32_t half = count / 2;
    const bool below = positions[first + half] < position;
    first = below ? first + half + 1 : first;
    count = below ? count - half - 1 : half;
  }
  return first;
}

/// merged := the positions of two disjoint lists.
struct MergePositions {
  Positions a, b, merged;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    const std::uint32_t of_a = a.count_G[g], of_b = b.count_G[g];
    const std::uint32_t *from_a = a.of(g), *from_b = b.of(g);
    std::uint32_t* to = merged.of(g);
    std::uint32_t* count = merged.count_G + g;
    row_for(team, static_cast<int>(of_a),
            [=](int i) { to[i + places_below(from_b, of_b, from_a[i])] = from_a[i]; });
    row_for(team, static_cast<int>(of_b),
            [=](int i) { to[i + places_below(from_a, of_a, from_b[i])] = from_b[i]; });
    row_once(team, [=]() { *count = of_a + of_b; });
  }
};

/// Headers: how positions travel, and the exponent of fp16 values.
struct WriteHeaders {
  SparseArguments s;
  const float* y;
  const std::uint32_t* nonfinite_B;  ///< null: counted elsewhere
  const std::uint32_t* largest_B;    ///< magnitudes of the values; null: not known

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int b = team.league_rank();
    const std::uint32_t size = s.size_of(b);
    const bool follows = s.follows(b);
    SampleHeader header{};
    if (size > 0) {
      const std::uint32_t* position = s.positions_of(b);
      header.count = s.count_of(b);
      const int count = static_cast<int>(header.count);
      const PositionCoding coding = follows ? PositionCoding{PositionFormat::forward, 0, 0}
                                            : choose_positions(team, position, count, size);
      header.words = coding.words;
      header.format = coding.format;
      header.bits = coding.bits;
      if (s.values.kind == ChosenValues::fp16)
        header.exponent = static_cast<std::int16_t>(
            half_exponent(largest_B != nullptr && !follows ? largest_B[b]
                                                           : largest_of(team, b, position, count)));
    }
    SampleHeader* written = s.headers() + b;
    const RowArguments a = s.a;
    const int first_row = b * s.a.tokens;
    const std::uint32_t* nonfinite = follows ? nullptr : nonfinite_B;
    const std::uint32_t count = s.held_count(b, header.count);
    std::uint32_t* held = s.is_held ? s.chosen.count_G + b : nullptr;
    row_once(team, [=]() {
      *written = header;
      if (held != nullptr) *held = count;
      if (nonfinite != nullptr && size > 0) count_nonfinite(a, first_row, nonfinite[b]);
    });
  }

  KOKKOS_INLINE_FUNCTION std::uint32_t largest_of(const RowMember& team, int b,
                                                  const std::uint32_t* position, int count) const {
    const float* values = y + s.first_of(b);
    return row_max(team, count, 0u, [=](int i) { return finite_magnitude(values[position[i]]); });
  }
};

/// Blocks of sparse samples one after another from `first` on; *end := the last one's.
struct PlaceBlocks {
  SparseArguments s;
  std::uint64_t first;
  std::uint64_t* end;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const SampleHeader* headers = s.headers();
    std::uint64_t* block_B = s.block_B;
    const SparseArguments sparse = s;
    const std::uint64_t start = first;
    std::uint64_t* last = end;
    const int samples = s.a.sample_count;
    row_scan<std::uint64_t>(
        team, samples, [=](int b) { return sparse.block_bytes(headers[b]); },
        [=](int b, std::uint64_t before) {
          block_B[b] = start + before;
          if (b + 1 == samples) *last = start + before + sparse.block_bytes(headers[b]);
        });
  }
};

struct WritePositions {
  SparseArguments s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int b = team.league_rank();
    const SampleHeader header = s.headers()[b];
    write_positions(team, header.coding(), s.positions_of(b), static_cast<int>(header.count),
                    reinterpret_cast<std::uint32_t*>(s.a.payload + s.block_B[b]));
  }
};

/// One team's row of a sample's chosen values.
struct ChosenRow {
  int b;
  std::uint32_t r;
  SampleHeader header;
  int width;  ///< 0: no such row
  const std::uint32_t* position;
  std::size_t place;  ///< of its values among those of all positions
  std::uint8_t* block;

  KOKKOS_INLINE_FUNCTION static ChosenRow of(const SparseArguments& s, int index, int rows) {
    ChosenRow row;
    row.b = index / rows;
    row.r = static_cast<std::uint32_t>(index % rows);
    row.header = s.headers()[row.b];
    row.width = row.r < ValueCoding::rows_of(row.header.count)
                    ? ValueCoding::width_of(row.header.count, row.r)
                    : 0;
    const std::size_t first = static_cast<std::size_t>(row.r) * ValueCoding::kRow;
    row.position = s.positions_of(row.b) + first;
    row.place = s.sent_of(row.b) + first;
    row.block = s.a.payload + s.block_B[row.b] + std::size_t{4} * row.header.words;
    return row;
  }
};

struct WriteValues {
  SparseArguments s;
  int rows;                    ///< of values a sample, at most
  const float* chosen_values;  ///< as the positions lie; null: to be taken from y
  const float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const ChosenRow row = ChosenRow::of(s, team.league_rank(), rows);
    if (row.width == 0) return;
    const ValueBuffers buffers = ValueBuffers::of(team);
    const float* values = y + s.first_of(row.b);
    const std::uint32_t* position = row.position;
    float* taken = buffers.x;
    const float* x = taken;
    if (chosen_values == nullptr || s.follows(row.b))
      row_for_synced(team, row.width, [=](int i) { taken[i] = values[position[i]]; });
    else
      x = chosen_values + row.place;
    write_values(team, s.values, s.a, s.a.samples[row.b].id, row.header.count, row.r,
                 row.header.exponent, x, buffers, row.block);
  }
};

/// sent := what was sent of the chosen positions, as they lie.
struct ReadValues {
  SparseArguments s;
  int rows;
  float* sent;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const ChosenRow row = ChosenRow::of(s, team.league_rank(), rows);
    if (row.width == 0) return;
    const ValueBuffers buffers = ValueBuffers::of(team);
    read_values(team, s.values, row.header.count, row.r, row.header.exponent, buffers, row.block,
                sent + row.place);
  }
};

/// At the chosen positions y := y - (what was sent).
struct SubtractValues {
  SparseArguments s;
  int rows;
  float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const ChosenRow row = ChosenRow::of(s, team.league_rank(), rows);
    if (row.width == 0) return;
    const ValueBuffers buffers = ValueBuffers::of(team);
    float* sent = buffers.row.work;
    read_values(team, s.values, row.header.count, row.r, row.header.exponent, buffers, row.block,
                sent);
    float* values = y + s.first_of(row.b);
    const std::uint32_t* position = row.position;
    row_for(team, row.width, [=](int i) { values[position[i]] -= sent[i]; });
  }
};

/// Rows of records: what rows of padding and first visits have there, or else store(team, ...).
template <class M, class Store>
KOKKOS_FORCEINLINE_FUNCTION void store_row(const RowMember& team, const SparseArguments& s,
                                           const Store& store) {
  const int index = team.league_rank();
  const int n = s.a.channels;
  const int b = index / s.a.tokens;
  const int t = index % s.a.tokens;
  if (!s.is_sparse(b)) return;
  const RowBuffers buffers = RowBuffers::of(team, n);
  const MemoryRow record = s.row_of(index);
  if (t == 0 && !s.uses_memory(b)) clear_record_end<M>(team, record);
  if (t < s.a.samples[b].tokens) return store(index, record, buffers);
  if (s.uses_memory(b)) return;
  float* work = buffers.work;
  row_for_synced(team, n, [=](int c) { work[c] = 0.0f; });
  M::store(team, record, work, buffers.codes);
}

/// y := what the receiver sees: memories or zeros and, up to the largest numbers, what was sent.
/// Padding becomes zeros, and so do the rows of samples that are not there. The sender also adds
/// the sums of x - y, and memories become y.
template <class M>
struct SeeRows {
  SparseArguments s;
  const float* sent;  ///< as the positions lie
  const float* x;     ///< null at the receiver
  float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int n = s.a.channels;
    const int b = index / s.a.tokens;
    const int t = index % s.a.tokens;
    const bool is_there = b < s.a.sample_count;
    if (is_there && !s.is_sparse(b)) return;
    const std::size_t first = static_cast<std::size_t>(index) * n;
    float* row = y + first;
    const bool is_valid = is_there && t < s.a.samples[b].tokens;
    if (std::is_same_v<M, NoMemory> || !is_valid || !s.uses_memory(b)) {
      row_for_synced(team, n, [=](int c) { row[c] = 0.0f; });
    } else {
      const RowBuffers buffers = RowBuffers::of(team, n);
      load_scaled<M>(team, s.row_of(index), row, buffers.codes);
    }
    if (!is_there) return;
    if (is_valid)
      add_sent(team, b, static_cast<std::uint32_t>(t) * static_cast<std::uint32_t>(n), row);
    const float* wanted = x == nullptr ? nullptr : x + first;
    if (wanted != nullptr && is_valid)
      add_row_sums(team, s.a, index, wanted, largest_of_row(team, n, wanted),
                   largest_kept<M>(s.a.scale), row);
    if constexpr (!std::is_same_v<M, NoMemory>)
      store_row<M>(team, s, [&](int, const MemoryRow& record, const RowBuffers& buffers) {
        store_scaled<M>(team, record, row, buffers.work, buffers.codes);
      });
  }

  /// Positions of a row are side by side.
  KOKKOS_INLINE_FUNCTION void add_sent(const RowMember& team, int b, std::uint32_t first,
                                       float* row) const {
    const std::uint32_t* position = s.positions_of(b);
    const std::uint32_t count = s.count_of(b);
    const std::uint32_t end = first + static_cast<std::uint32_t>(s.a.channels);
    const std::uint32_t begin = places_below(position, count, first);
    const float* values = sent + s.sent_of(b);
    const auto add = [=](std::uint32_t i) {
      float* value = row + (position[i] - first);
      *value = changed(*value, 1.0f, values[i]);
    };
    if constexpr (kHostExecution) {
      for (std::uint32_t i = begin; i < count && position[i] < end; ++i) add(i);
    } else {
      const std::uint32_t rest = places_below(position + begin, count - begin, end);
      row_for_synced(team, static_cast<int>(rest),
                     [=](int i) { add(begin + static_cast<std::uint32_t>(i)); });
    }
  }
};

/// Errors := y, the rest of x + e.
template <class M>
struct StoreErrors {
  SparseArguments s;
  const float* x;
  const float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    store_row<M>(team, s, [&](int index, const MemoryRow& record, const RowBuffers& buffers) {
      const int n = record.channels;
      const float* left = y + static_cast<std::size_t>(index) * n;
      const float* wanted = x + static_cast<std::size_t>(index) * n;
      float* work = buffers.work;
      if (s.uses_memory(index / s.a.tokens))
        load_scaled<M>(team, record, work, buffers.codes);
      else
        row_for_synced(team, n, [=](int c) { work[c] = 0.0f; });
      row_for_synced(team, n, [=](int c) { work[c] = wanted[c] - (left[c] - work[c]); });
      add_row_sums(team, s.a, index, wanted, largest_of_row(team, n, wanted), kMaxFloat, work);
      const float scale = s.a.scale;
      row_for_synced(team, n, [=](int c) {
        const float left_out = left[c] / scale;
        work[c] = is_nonfinite(left_out) ? 0.0f : left_out;
      });
      M::store(team, record, work, buffers.codes);
    });
  }
};

/// Counts for samples without a selection.
struct CountNonfinite {
  SparseArguments s;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int b = index / s.a.tokens;
    if (!s.follows(b) || index % s.a.tokens >= s.a.samples[b].tokens) return;
    const float* x = s.a.x + static_cast<std::size_t>(index) * s.a.channels;
    const auto count = row_sum<std::uint32_t>(team, s.a.channels,
                                              [=](int c) { return is_nonfinite(x[c]) ? 1u : 0u; });
    const RowArguments a = s.a;
    row_once(team, [=]() { count_nonfinite(a, index, count); });
  }
};

/// Positions from an untrusted payload with at least `first` bytes. *wrong
/// := 1 if this codec cannot have written it; else *end := its length.
struct ReadPositions {
  SparseArguments s;
  std::uint64_t first;
  std::uint64_t bytes;
  std::uint32_t* wrong;
  std::uint64_t* end;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int b = team.league_rank();
    std::uint64_t block = first;
    for (int before = 0; before < b; ++before) block += s.block_bytes(s.headers()[before]);
    const SampleHeader header = s.headers()[b];
    const std::uint64_t block_end = block + s.block_bytes(header);
    const bool fits = is_possible(b, header) && block_end <= bytes;
    const bool is_last = b + 1 == s.a.sample_count;
    const std::uint32_t held = s.held_count(b, header.count);
    std::uint32_t* count = s.chosen.count_G + b;
    std::uint64_t* place = s.block_B + b;
    std::uint32_t* flaw = wrong;
    std::uint64_t* length = end;
    row_once(team, [=]() {
      *count = held;
      *place = block;
      if (is_last) *length = block_end;
      if (!fits) atomic_set(flaw, 1u);
    });
    if (!fits || header.count == 0 || s.follows(b)) return;
    read_positions(team, header.coding(), reinterpret_cast<std::uint32_t*>(s.a.payload + block),
                   header.count, s.size_of(b), s.chosen.of(b), flaw);
  }

  KOKKOS_INLINE_FUNCTION bool is_possible(int b, const SampleHeader& header) const {
    const std::uint32_t size = s.size_of(b);
    if (size == 0)
      return header.count == 0 && header.words == 0 && header.format == PositionFormat::all &&
             header.bits == 0 && header.exponent == 0;
    const int exponent = header.exponent;
    const bool is_half = s.values.kind == ChosenValues::fp16;
    if (exponent < (is_half ? -126 : 0) || exponent > (is_half ? 126 : 0)) return false;
    if (s.follows(b))
      return header.count == s.forward.count_G[b] && header.words == 0 && header.bits == 0 &&
             header.format == PositionFormat::forward;
    return header.count <= count_of_part(s.part, size) &&
           is_position_coding(header.coding(), header.count, size);
  }
};

RowFormat sparse_format(bool uses_memory) {
  RowFormat format;
  format.kind = RowKind::sparse;
  format.uses_memory = uses_memory;
  return format;
}

RowFormats formats_of(const CodecSettings& settings, int channels, Keeps keeps) {
  RowFormats formats;
  formats.format[first_visit] = sparse_format(false);
  formats.format[later_visit] = sparse_format(keeps != Keeps::nothing);
  if (keeps == Keeps::memory && settings.first_visit != FirstVisit::zero)
    formats.format[first_visit] = first_visit_format(settings, channels);
  return formats;
}

/// M: rows of errors or memories.
template <class M, Keeps keeps>
class TopKCodec final
    : public QuantizedCodec<std::conditional_t<keeps == Keeps::memory, M, NoMemory>> {
  using Base = QuantizedCodec<std::conditional_t<keeps == Keeps::memory, M, NoMemory>>;
  using RowCodec::samples;
  using RowCodec::shape_;

 public:
  TopKCodec(const CodecSettings& settings, const CodecShape& shape, MemoryStorage storage)
      : Base(shape, settings_hash(settings, shape, storage, 1),
             formats_of(settings, shape.channels, keeps)),
        part_(settings.topk),
        follows_(follows_forward(settings)),
        mixes_(keeps == Keeps::errors && settings.feedback_kind == FeedbackKind::mixed),
        values_(ValueCoding::of(settings)),
        record_bytes_(keeps == Keeps::nothing ? 0 : record_bytes_of<M>(shape)),
        most_(count_of_part(part_, values_of_sample())),
        selection_(shape.encodes() ? shape.max_samples : 0, values_of(1)),
        chosen_(shape.max_samples, most_),
        y_(uninitialized("deltapipe::TopKCodec::values"),
           shape.encodes() ? values_of(shape.max_samples) : 0),
        group_B_(uninitialized("deltapipe::TopKCodec::groups"), shape.max_samples),
        block_B_(uninitialized("deltapipe::TopKCodec::blocks"), shape.max_samples),
        sent_(uninitialized("deltapipe::TopKCodec::sent"),
              shape.decodes() || !mixes_ ? shape.max_samples * most_ : 0),
        result_("deltapipe::TopKCodec::result", 2),
        host_result_("deltapipe::TopKCodec::host_result", 2) {
    if constexpr (keeps == Keeps::errors) bound_.emplace(shape, 1 / settings.topk);
    if (!mixes_ || !shape.encodes()) return;
    offered_ = Vector<float>(uninitialized("deltapipe::TopKCodec::offered"), y_.size());
    others_ = PositionLists(shape.max_samples, most_);
    both_ = PositionLists(shape.max_samples, most_);
  }

  bool waits() const override { return true; }
  void share(std::shared_ptr<ForwardMasks> masks) override {
    masks_ = std::move(masks);
    if (!follows_ || !masks_) return;
    const std::size_t most =
        std::max<std::size_t>(most_, count_of_part(masks_->part(), values_of_sample()));
    chosen_ = PositionLists(shape_.max_samples, most);
    sent_ = Vector<float>(uninitialized("deltapipe::TopKCodec::sent"), shape_.max_samples * most);
  }
  RecordLayout record() const override {
    if (keeps == Keeps::errors) return {.sender_bytes = record_bytes_};
    if (keeps == Keeps::memory) return {.shared_bytes = record_bytes_};
    return {};
  }
  std::size_t max_payload_bytes() const override {
    std::size_t largest = 0;
    for (int f = 0; f < RowFormats::kCount; ++f)
      largest = std::max(largest, round_up(block_bytes(f, shape_.tokens), 4));
    return shape_.max_samples * (sizeof(SampleHeader) + largest);
  }
  std::size_t memory_bytes() const override {
    return Base::memory_bytes() + selection_.memory_bytes() + chosen_.memory_bytes() +
           others_.memory_bytes() + both_.memory_bytes() + bytes_of_view(y_) +
           bytes_of_view(offered_) + bytes_of_view(sent_) + bytes_of_view(group_B_) +
           (bound_ ? bound_->memory_bytes() : 0) + bytes_of_view(block_B_) +
           bytes_of_view(result_) + bytes_of_view(host_result_) +
           (follows_ && masks_ ? masks_->memory_bytes() : 0);
  }

 private:
  std::size_t values_of(int count) const {
    return static_cast<std::size_t>(count) * shape_.tokens * shape_.channels;
  }
  std::uint32_t values_of_sample() const { return static_cast<std::uint32_t>(values_of(1)); }
  bool is_sparse(int format) const {
    return Base::formats().format[format].kind == RowKind::sparse;
  }

  /// Errors: both formats look the same on the wire, so that the receiver need not know the visits.
  int format_of(const Crossing& crossing, std::size_t b) const override {
    return keeps == Keeps::nothing || crossing.visits[b] == 0 ? first_visit : later_visit;
  }
  bool has_fixed_length(int format) const override { return !is_sparse(format); }
  std::size_t block_bytes(int format, int tokens) const override {
    if (!is_sparse(format)) return Base::block_bytes(format, tokens);
    if (tokens == 0) return 0;
    const auto size =
        static_cast<std::uint32_t>(tokens) * static_cast<std::uint32_t>(shape_.channels);
    const std::uint32_t most = count_of_part(part_, size);
    const std::size_t own =
        std::size_t{4} * max_position_words(most, size) + values_.bytes_of(most);
    if (!follows_ || !masks_) return own;
    const std::uint64_t forward = values_.bytes_of(count_of_part(masks_->part(), size));
    return std::max<std::size_t>(own, forward);
  }
  std::size_t front_bytes(const Crossing& crossing) const override {
    for (std::size_t b = 0; b < crossing.samples(); ++b)
      if (is_sparse(format_of(crossing, b))) return sizeof(SampleHeader) * crossing.samples();
    return 0;
  }
  int sparse_samples() const {
    int count = 0;
    for (const SampleEntry& sample : samples()) count += is_sparse(sample.format) ? 1 : 0;
    return count;
  }
  bool has_dense_samples() const { return sparse_samples() < static_cast<int>(samples().size()); }
  /// Start of the first sparse sample's block.
  std::size_t sparse_begin() const {
    std::size_t begin = sizeof(SampleHeader) * samples().size();
    for (const SampleEntry& sample : samples())
      if (!is_sparse(sample.format))
        begin += round_up(Base::block_bytes(sample.format, sample.tokens), 4);
    return begin;
  }
  SparseArguments sparse(const RowArguments& arguments) const {
    return {arguments,  Base::formats(), values_,  part_,
            positions_, is_held_,        forward_, block_B_.data()};
  }
  int value_rows() const {
    const std::size_t most = chosen_.view().stride;
    return static_cast<int>(ValueCoding::rows_of(static_cast<std::uint32_t>(most)));
  }
  /// Finds where the crossing's positions are stored.
  void find_positions() {
    DELTAPIPE_ASSERT(!follows_ || masks_, "gradients have no positions to follow");
    const Crossing& crossing = RowCodec::crossing();
    positions_ = chosen_.view();
    forward_ = {};
    forward_has_all_ = false;
    is_held_ = masks_ && !follows_ && crossing.training;
    if (is_held_) positions_ = masks_->hold(crossing, !has_dense_samples());
    if (!follows_) return;
    const auto mask = masks_->find(crossing);
    if (!mask) return;
    forward_ = mask->positions;
    forward_has_all_ = mask->of_all;
  }
  void release_positions() {
    if (follows_) masks_->release(RowCodec::crossing());
  }

  std::size_t run_encode(const ExecSpace& exec, const RowArguments& a,
                         std::size_t max_bytes) override {
    if (has_dense_samples()) Base::run_encode(exec, a, max_bytes);
    if (sparse_samples() == 0) return max_bytes;
    find_positions();
    RowArguments bounded = a;
    if constexpr (keeps == Keeps::errors)
      bounded.error_share = bound_->template shares<M>(exec, a, Base::formats());
    const SparseArguments s = sparse(bounded);
    const float* values = choose(exec, s);
    const RowPolicy by_sample = row_policy(exec, a.sample_count);
    const bool counts = keeps == Keeps::nothing && !a.measure;
    for_rows("deltapipe::TopKCodec::write_headers", by_sample,
             WriteHeaders{s, values, counts ? selection_.nonfinite_G() : nullptr,
                          mixes_ ? nullptr : selection_.largest_G()});
    if (counts && forward_.position != nullptr)
      for_rows("deltapipe::TopKCodec::count_nonfinite", by_row(exec, a), CountNonfinite{s});
    for_rows("deltapipe::TopKCodec::place_blocks", row_policy(exec, 1),
             PlaceBlocks{s, sparse_begin(), result_.data()});
    for_rows("deltapipe::TopKCodec::write_positions", by_sample, WritePositions{s});
    for_rows("deltapipe::TopKCodec::write_values", by_value_row(exec, a),
             WriteValues{s, value_rows(), mixes_ ? nullptr : sent_.data(), values});
    keep(exec, s);
    release_positions();
    Kokkos::deep_copy(exec, host_result_, result_);
    exec.fence();
    return host_result_(0);
  }

  /// Finds the positions to send, and returns the values to send of them.
  const float* choose(const ExecSpace& exec, const SparseArguments& s) {
    const float* values = s.a.x;
    if constexpr (keeps != Keeps::nothing) {
      const float sign = keeps == Keeps::errors ? 1.0f : -1.0f;
      for_rows("deltapipe::TopKCodec::add_records", by_row(exec, s.a),
               AddRecords<M>{s, sign, y_.data()});
      values = y_.data();
    }
    if (mixes_) {
      choose_mixed(exec, s);
    } else if (!forward_has_all_) {
      make_groups(exec, s, Share::all, nullptr);
      selection_.select(exec, s.a.sample_count, group_B_.data(), values, s.chosen, sent_.data());
    }
    return values;
  }

  void make_groups(const ExecSpace& exec, const SparseArguments& s, Share share,
                   const Positions* found) {
    for_range("deltapipe::TopKCodec::groups", exec, s.a.sample_count,
              MakeGroups{s, share, found == nullptr ? nullptr : found->count_G, group_B_.data()});
  }

  /// The largest values, the largest errors elsewhere, and while these are fewer than k the next
  /// values; all in one ascending list.
  void choose_mixed(const ExecSpace& exec, const SparseArguments& s) {
    const Positions others = others_.view(), both = both_.view();
    make_groups(exec, s, Share::values, nullptr);
    choose_share(exec, s, false, nullptr, s.chosen);
    make_groups(exec, s, Share::rest, &s.chosen);
    choose_share(exec, s, true, &s.chosen, others);
    merge(exec, s, {s.chosen, others, both});
    make_groups(exec, s, Share::rest, &both);
    choose_share(exec, s, false, &both, others);
    merge(exec, s, {both, others, s.chosen});
  }

  /// The groups' largest values or errors at positions that are not found yet.
  void choose_share(const ExecSpace& exec, const SparseArguments& s, bool errors,
                    const Positions* found, const Positions& chosen) {
    for_rows("deltapipe::TopKCodec::offer_share", by_row(exec, s.a),
             OfferShare<M>{s, group_B_.data(), errors, y_.data(), offered_.data()});
    if (found != nullptr)
      for_rows("deltapipe::TopKCodec::drop_chosen", row_policy(exec, s.a.sample_count),
               DropChosen{s, group_B_.data(), *found, offered_.data()});
    selection_.select(exec, s.a.sample_count, group_B_.data(), offered_.data(), chosen);
  }

  void merge(const ExecSpace& exec, const SparseArguments& s, const MergePositions& lists) const {
    for_rows("deltapipe::TopKCodec::merge_positions", row_policy(exec, s.a.sample_count), lists);
  }

  /// Brings the sender's records and sums up to date.
  void keep(const ExecSpace& exec, const SparseArguments& s) {
    if (keeps == Keeps::nothing && !s.a.measure) return;
    if constexpr (keeps != Keeps::errors) {
      see(exec, s, s.a.sample_count * s.a.tokens, s.a.x, y_.data());
    } else {
      for_rows("deltapipe::TopKCodec::subtract_values", by_value_row(exec, s.a),
               SubtractValues{s, value_rows(), y_.data()});
      for_rows("deltapipe::TopKCodec::store_errors", by_row(exec, s.a),
               StoreErrors<M>{s, s.a.x, y_.data()});
    }
  }

  /// y := what the receiver sees, and so memories; x: null at the receiver.
  void see(const ExecSpace& exec, const SparseArguments& s, int rows, const float* x, float* y) {
    using Seen = std::conditional_t<keeps == Keeps::memory, M, NoMemory>;
    if (sparse_samples() > 0)
      for_rows("deltapipe::TopKCodec::read_values", by_value_row(exec, s.a),
               ReadValues{s, value_rows(), sent_.data()});
    for_rows("deltapipe::TopKCodec::see_rows",
             row_policy(exec, rows, 2 * RowBuffers::bytes(shape_.channels)),
             SeeRows<Seen>{s, sent_.data(), x, y});
  }

  std::size_t expected_bytes(const ExecSpace& exec, const Crossing& crossing, const RowArguments& a,
                             std::size_t bytes) override {
    if (sparse_samples() == 0) return this->payload_bytes(crossing);
    find_positions();
    const std::size_t begin = sparse_begin();
    if (bytes < begin) return begin;
    Kokkos::deep_copy(exec, result_, std::uint64_t{0});
    for_rows("deltapipe::TopKCodec::read_positions", row_policy(exec, a.sample_count),
             ReadPositions{sparse(a), begin, bytes,
                           reinterpret_cast<std::uint32_t*>(result_.data() + 1), result_.data()});
    Kokkos::deep_copy(exec, host_result_, result_);
    exec.fence();
    if (host_result_(1) != 0)
      RowCodec::refuse(crossing, "is not one of codec topk",
                       "its headers and positions contradict each other");
    return host_result_(0);
  }

  void run_decode(const ExecSpace& exec, int rows, const RowArguments& a) override {
    if (has_dense_samples()) Base::run_decode(exec, rows, a);
    see(exec, sparse(a), rows, nullptr, a.x);
    release_positions();
  }

  RowPolicy by_row(const ExecSpace& exec, const RowArguments& a) const {
    return row_policy(exec, a.sample_count * a.tokens, RowBuffers::bytes(shape_.channels));
  }
  RowPolicy by_value_row(const ExecSpace& exec, const RowArguments& a) const {
    return row_policy(exec, a.sample_count * value_rows(), ValueBuffers::bytes());
  }

  const double part_;
  const bool follows_;
  const bool mixes_;
  const ValueCoding values_;
  const std::size_t record_bytes_;
  const std::size_t most_;  ///< positions of a sample that are its own
  std::shared_ptr<ForwardMasks> masks_;
  TopKSelection selection_;
  PositionLists chosen_;
  // State of the current crossing.
  Positions positions_{}, forward_{};
  bool is_held_ = false;
  bool forward_has_all_ = false;
  Vector<float> y_;                          ///< what is chosen from; then what is seen or left
  std::optional<ErrorBound> bound_;          ///< of errors
  Vector<float> offered_;                    ///< EF-mixed: to one of its selections
  PositionLists others_{1, 0}, both_{1, 0};  ///< EF-mixed
  Vector<TopKGroup> group_B_;
  Vector<std::uint64_t> block_B_;
  Vector<float> sent_;  ///< values of the chosen positions: the sender's, then as they are seen
  Vector<std::uint64_t> result_;  ///< length of a payload; whether it is wrong
  HostVector<std::uint64_t> host_result_;
};

template <Keeps keeps>
struct MakeTopK {
  const CodecSettings& settings;
  const CodecShape& shape;

  template <MemoryStorage storage>
  std::unique_ptr<Codec> operator()() const {
    return std::make_unique<TopKCodec<Memory<storage>, keeps>>(settings, shape, storage);
  }
};

std::unique_ptr<Codec> make_topk(const CodecSettings& settings, const CodecShape& shape,
                                 MemoryStorage storage) {
  if (has_shared_memory(settings))
    return with_storage(storage, MakeTopK<Keeps::memory>{settings, shape});
  if (has_memory(settings)) return with_storage(storage, MakeTopK<Keeps::errors>{settings, shape});
  return std::make_unique<TopKCodec<NoMemory, Keeps::nothing>>(settings, shape, storage);
}

}  // namespace
}  // namespace codec

void register_topk_codec(CodecRegistry& registry) {
  registry.add(CodecKind::topk, codec::make_topk);
  registry.add(CodecKind::topk_delta, codec::make_topk);
}

}  // namespace deltapipe
