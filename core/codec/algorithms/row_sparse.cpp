// SPDX-License-Identifier: BSD-3-Clause
// fp32 without the rows of zeros: a bitmap of the crossing's valid rows, in whole 32-bit words, and
// then the rows whose bit is set. A row is left out when all its bits are zero, so that what comes
// out is what went in, to the bit.
#include "core/base/numeric/number_formats.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_sums.hpp"

namespace deltapipe {
namespace codec {
namespace {

constexpr int kWordRows = 32;

std::size_t bitmap_bytes(int rows) {
  return sizeof(std::uint32_t) * ((static_cast<std::size_t>(rows) + kWordRows - 1) / kWordRows);
}

int valid_rows(const Crossing& crossing) {
  int rows = 0;
  for (const int tokens : crossing.tokens) rows += tokens;
  return rows;
}

/// Row n of the valid ones, in the order of samples and tokens; -1 for padding. Samples' blocks in
/// the payload, as if nothing were left out, tell where a sample begins.
KOKKOS_INLINE_FUNCTION int valid_row(const RowArguments& a, std::size_t front_bytes, int row) {
  const int b = row / a.tokens, t = row % a.tokens;
  if (b >= a.sample_count || t >= a.samples[b].tokens) return -1;
  return static_cast<int>((a.samples[b].payload - front_bytes) / sizeof(float) / a.channels) + t;
}

/// kept_N(n) := whether row n travels; also the sums.
struct MarkRows {
  RowArguments a;
  std::size_t front_bytes;
  std::uint32_t* kept_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const int n = valid_row(a, front_bytes, row);
    if (n < 0) return;
    const int channels = a.channels;
    const float* x = a.x + static_cast<std::size_t>(row) * channels;
    const std::uint32_t largest = row_max(team, channels, 0u, [=](int c) { return bits_of(x[c]); });
    const std::uint32_t nonfinite =
        row_sum<std::uint32_t>(team, channels, [=](int c) { return is_nonfinite(x[c]); });
    double signal2 = 0;
    if (a.measure)
      signal2 = row_squares(team, channels, [=](int c) { return finite_or_zero(x[c]); });
    const RowArguments arguments = a;
    std::uint32_t* kept = kept_N + n;
    const bool measure = a.measure;
    row_once(team, [=]() {
      *kept = largest > 0 ? 1 : 0;
      count_nonfinite(arguments, row, nonfinite);
      if (!measure) return;
      RowSums* row_sums = arguments.sums + row;
      row_sums->signal2 += signal2;
      row_sums->elements += channels;
    });
  }
};

/// Flags in place to the number of rows that travel before each; [N + 1] with the last flag unused.
struct PlacesOfFlags {
  using value_type = std::uint32_t;
  std::uint32_t* place_N;
  int rows;

  KOKKOS_INLINE_FUNCTION void operator()(const int n, std::uint32_t& before, bool final) const {
    const std::uint32_t kept = n < rows ? place_N[n] : 0;
    if (final) place_N[n] = before;
    before += kept;
  }
};

/// The same from the bitmap, for all bits of its words. A bit without a row counts more than all
/// rows together.
struct PlacesOfBits {
  using value_type = std::uint32_t;
  const std::uint32_t* bitmap;
  std::uint32_t* place_N;
  int rows;

  KOKKOS_INLINE_FUNCTION void operator()(const int n, std::uint32_t& before, bool final) const {
    if (final && n <= rows) place_N[n] = before;
    const std::uint32_t bit = (bitmap[n / kWordRows] >> (n % kWordRows)) & 1u;
    before += n < rows ? bit : bit * (static_cast<std::uint32_t>(rows) + 1);
  }
};

struct WriteBitmap {
  const std::uint32_t* place_N;
  int rows;
  std::uint32_t* bitmap;

  KOKKOS_INLINE_FUNCTION void operator()(const int word) const {
    std::uint32_t bits = 0;
    for (int i = 0; i < kWordRows && word * kWordRows + i < rows; ++i) {
      const int n = word * kWordRows + i;
      bits |= (place_N[n + 1] - place_N[n]) << i;
    }
    bitmap[word] = bits;
  }
};

struct WriteRows {
  RowArguments a;
  std::size_t front_bytes;
  const std::uint32_t* place_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const int n = valid_row(a, front_bytes, row);
    if (n < 0 || place_N[n + 1] == place_N[n]) return;
    const int channels = a.channels;
    const float* x = a.x + static_cast<std::size_t>(row) * channels;
    float* sent = reinterpret_cast<float*>(a.payload + front_bytes) +
                  static_cast<std::size_t>(place_N[n]) * channels;
    row_for(team, channels, [=](int c) { sent[c] = x[c]; });
  }
};

struct ReadRows {
  RowArguments a;
  std::size_t front_bytes;
  const std::uint32_t* place_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const int n = valid_row(a, front_bytes, row);
    const int channels = a.channels;
    float* x = a.x + static_cast<std::size_t>(row) * channels;
    const std::uint32_t* bitmap = reinterpret_cast<const std::uint32_t*>(a.payload);
    if (n < 0 || ((bitmap[n / kWordRows] >> (n % kWordRows)) & 1u) == 0) {
      row_for(team, channels, [=](int c) { x[c] = 0.0f; });
      return;
    }
    const float* sent = reinterpret_cast<const float*>(a.payload + front_bytes) +
                        static_cast<std::size_t>(place_N[n]) * channels;
    row_for(team, channels, [=](int c) { x[c] = sent[c]; });
  }
};

class RowSparseCodec final : public RowCodec {
 public:
  RowSparseCodec(const CodecShape& shape, std::uint32_t id)
      : RowCodec(shape, id),
        place_N_(uninitialized("deltapipe::RowSparseCodec::places"),
                 static_cast<std::size_t>(shape.max_samples) * shape.tokens + 1) {}

  bool waits() const override { return true; }
  std::size_t max_payload_bytes() const override {
    const int rows = shape_.max_samples * shape_.tokens;
    return bitmap_bytes(rows) + block_bytes(0, rows);
  }
  std::size_t memory_bytes() const override {
    return RowCodec::memory_bytes() + bytes_of_view(place_N_);
  }

 private:
  int format_of(const Crossing&, std::size_t) const override { return 0; }
  std::size_t block_bytes(int, int tokens) const override {
    return sizeof(float) * tokens * shape_.channels;
  }
  std::size_t front_bytes(const Crossing& crossing) const override {
    return bitmap_bytes(valid_rows(crossing));
  }

  std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                         std::size_t max_bytes) override {
    int rows = 0;
    for (const SampleEntry& sample : samples()) rows += sample.tokens;
    if (rows == 0) return max_bytes;
    const std::size_t front = bitmap_bytes(rows);
    const RowPolicy all = row_policy(exec, arguments.sample_count * arguments.tokens);
    for_rows("deltapipe::RowSparseCodec::mark", all, MarkRows{arguments, front, place_N_.data()});
    std::uint32_t kept = 0;
    Kokkos::parallel_scan("deltapipe::RowSparseCodec::places_of_flags",
                          Kokkos::RangePolicy<ExecSpace>(exec, 0, rows + 1),
                          PlacesOfFlags{place_N_.data(), rows}, kept);
    for_range(
        "deltapipe::RowSparseCodec::write_bitmap", exec, (rows - 1) / kWordRows + 1,
        WriteBitmap{place_N_.data(), rows, reinterpret_cast<std::uint32_t*>(arguments.payload)});
    for_rows("deltapipe::RowSparseCodec::write_rows", all,
             WriteRows{arguments, front, place_N_.data()});
    exec.fence();
    return front + block_bytes(0, static_cast<int>(kept));
  }

  std::size_t expected_bytes(const ExecSpace& exec, const Crossing& crossing,
                             const RowArguments& arguments, std::size_t bytes) override {
    const int rows = valid_rows(crossing);
    const std::size_t front = bitmap_bytes(rows);
    if (rows == 0 || bytes < front) return front;
    std::uint32_t kept = 0;
    const int bits = static_cast<int>(front / sizeof(std::uint32_t)) * kWordRows;
    Kokkos::parallel_scan("deltapipe::RowSparseCodec::places_of_bits",
                          Kokkos::RangePolicy<ExecSpace>(exec, 0, bits),
                          PlacesOfBits{reinterpret_cast<const std::uint32_t*>(arguments.payload),
                                       place_N_.data(), rows},
                          kept);
    exec.fence();
    return front + sizeof(float) * kept * shape_.channels;
  }

  void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) override {
    int valid = 0;
    for (const SampleEntry& sample : samples()) valid += sample.tokens;
    for_rows("deltapipe::RowSparseCodec::decode", row_policy(exec, rows),
             ReadRows{arguments, bitmap_bytes(valid), place_N_.data()});
  }

  Vector<std::uint32_t> place_N_;
};

}  // namespace
}  // namespace codec

void register_row_sparse_codec(CodecRegistry& registry) {
  registry.add(CodecKind::row_sparse,
               [](const CodecSettings& settings, const CodecShape& shape,
                  MemoryStorage storage) -> std::unique_ptr<Codec> {
                 return std::make_unique<codec::RowSparseCodec>(
                     shape, codec::settings_hash(settings, shape, storage, 1));
               });
}

}  // namespace deltapipe
