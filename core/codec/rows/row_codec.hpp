// SPDX-License-Identifier: BSD-3-Clause
// What codecs share that work row by row: checks, the per-sample table in device memory and the
// error sums.
#pragma once

#include <string>
#include <vector>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/rows/sample_table.hpp"

namespace deltapipe::codec {

/// Sums over all encodes of the rows at one place of the micro-batch.
struct RowSums {
  double error2;
  double signal2;
  std::uint64_t elements;
  std::uint64_t nonfinite;
};

/// Places of one sample's parts. Samples' payload blocks start at multiples of 4 bytes.
struct SampleEntry {
  std::uint64_t id;
  std::uint64_t record;   ///< offset into the pool
  std::uint64_t payload;  ///< offset into the payload
  std::int32_t tokens;
  std::int32_t format;  ///< index into the codec's row formats
};

/// Basis of a step for all rows of a message: of a row's changes, the root mean square
/// and the largest magnitude, and what its step is to be relative to.
struct RowSpread {
  float rms;
  float weight;
  float largest;
  bool counts;  ///< false: the row has no such step
};

/// Arguments of an encode or decode kernel; copied to the device.
struct RowArguments {
  const SampleEntry* samples;
  int sample_count;
  int tokens;    ///< T
  int channels;  ///< C
  float* x;      ///< B*T rows of C
  std::uint8_t* pool;
  std::uint8_t* payload;
  std::uint8_t* codes;       ///< of rows whose codes are not packed, one byte each (CodeStreams)
  std::uint8_t* classes;     ///< of rows with steps of the message: their tables (CodeStreams)
  const RowSpread* spreads;  ///< of these rows, to encode
  const float* base_weight;  ///< of rows that have the message's step as it is, to encode
  RowSums* sums;             ///< one a row
  std::uint32_t* lost;       ///< set to 1 where values cannot cross (Codec::lost_values)
  const float* error_share;  ///< of each sample (ErrorBound); null: all
  bool measure;
  std::uint64_t key;   ///< of random numbers: seed, boundary, direction
  std::uint32_t step;  ///< low half; the high half is in key
  float scale;         ///< Crossing::scale

  /// Steps at the payload's front: one a channel, or one for the message.
  KOKKOS_INLINE_FUNCTION std::uint16_t* front_steps() const {
    return reinterpret_cast<std::uint16_t*>(payload);
  }
};

/// Adds a row's values that are not finite; to be called by one of the team's threads.
KOKKOS_INLINE_FUNCTION void count_nonfinite(const RowArguments& a, int row, std::uint32_t count) {
  a.sums[row].nonfinite += count;
  if (count > 0) atomic_set(a.lost, 1u);
}

/// Zeros behind the `bytes` bytes of a block, up to the next multiple of 4: equal values are equal
/// payloads.
KOKKOS_INLINE_FUNCTION void clear_block_end(const RowMember& team, std::uint8_t* block,
                                            std::size_t bytes) {
  const int rest = static_cast<int>((4 - bytes % 4) % 4);
  row_for(team, rest, [=](int i) { block[bytes + i] = 0; });
}

class RowCodec : public Codec {
 public:
  std::uint32_t id() const final { return id_; }
  std::uint32_t state_hash(const Crossing& crossing) const final;
  std::size_t payload_bytes(const Crossing& crossing) const final;
  std::size_t memory_bytes() const override;
  std::size_t encode(const ExecSpace& exec, const Crossing& crossing, Activations x_BTC,
                     const MemoryRecords& records, DeviceBytes payload) final;
  void decode(const ExecSpace& exec, const Crossing& crossing, DeviceBytes payload,
              std::size_t payload_bytes, const MemoryRecords& records, Activations x_BTC) final;
  bool lost_values() const final;
  void measure_errors(bool on) final { measure_ = on; }
  CodecStatistics take_statistics(const ExecSpace& exec) final;

  /// Throws a UserError that names the crossing of a payload with this flaw.
  [[noreturn]] static void refuse(const Crossing& crossing, const std::string& flaw,
                                  const std::string& value);

 protected:
  RowCodec(const CodecShape& shape, std::uint32_t id);

  /// Index of the row format of the crossing's b-th sample.
  virtual int format_of(const Crossing& crossing, std::size_t b) const = 0;
  /// Payload bytes of a sample's rows, at most.
  virtual std::size_t block_bytes(int format, int tokens) const = 0;
  /// True if blocks of a format always have their most bytes. Those blocks come first; others are
  /// behind them as run_encode puts them, and their entries say where the longest ones would be.
  virtual bool has_fixed_length(int) const { return true; }
  /// Payload bytes before the first sample's block; a multiple of 4.
  virtual std::size_t front_bytes(const Crossing&) const { return 0; }
  /// Payload bytes after the last sample's block, at most.
  virtual std::size_t tail_bytes(const Crossing&) const { return 0; }
  /// Kernels over the rows of arguments.sample_count samples to encode, over all rows to decode.
  /// Encoding returns the bytes written, at most max_bytes.
  virtual std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                                 std::size_t max_bytes) = 0;
  virtual void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) = 0;
  /// The length that a payload of `bytes` bytes has to have; may refuse it.
  virtual std::size_t expected_bytes(const ExecSpace&, const Crossing& crossing,
                                     const RowArguments&, std::size_t) {
    return payload_bytes(crossing);
  }

  /// In run_encode, run_decode and expected_bytes: the crossing at hand.
  const Crossing& crossing() const { return *crossing_; }
  /// Entries of the crossing at hand.
  const std::vector<SampleEntry>& samples() const { return entries_; }

  const CodecShape shape_;

 private:
  void check(const Crossing& crossing, const Activations& x_BTC, const MemoryRecords& records,
             BoundarySide side, const DeviceBytes& payload, std::size_t bytes) const;
  /// Returns payload_bytes(crossing). No records: offsets are left out.
  std::size_t lay_out(const Crossing& crossing, const MemoryRecords* records,
                      std::vector<SampleEntry>* entries) const;
  RowArguments arguments(const ExecSpace& exec, const Crossing& crossing, const Activations& x_BTC,
                         const MemoryRecords& records, BoundarySide side,
                         const DeviceBytes& payload);

  const std::uint32_t id_;
  bool measure_ = false;
  const Crossing* crossing_ = nullptr;
  SampleTable<SampleEntry> table_;
  std::vector<SampleEntry> entries_;
  Vector<RowSums> sums_N_;
  HostVector<RowSums> host_sums_N_;
  Vector<std::uint32_t> lost_;
  HostVector<std::uint32_t> host_lost_;  ///< lost_ itself where the device is the host
};

/// A hash of a hash and one more value, and 32 bits of it.
std::uint64_t chained(std::uint64_t hash, std::uint64_t value);
inline std::uint32_t folded(std::uint64_t hash) {
  return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

/// Hash of what both ends must share; format_version changes with the payload format.
std::uint32_t settings_hash(const CodecSettings& settings, const CodecShape& shape,
                            MemoryStorage storage, std::uint32_t format_version);

/// Codec kinds' file names, for error messages.
const char* name_of(CodecKind kind);

inline constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace deltapipe::codec
