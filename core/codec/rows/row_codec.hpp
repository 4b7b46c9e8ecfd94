// SPDX-License-Identifier: BSD-3-Clause
// Base of codecs that work row by row: checks, the per-sample table in device memory and the error
// sums.
#pragma once

#include <string>
#include <vector>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/rows/sample_table.hpp"

namespace deltapipe::codec {

/// Locations of one sample's parts. Samples' payload blocks start at multiples of 4 bytes.
struct SampleEntry {
  std::uint64_t id;
  std::uint64_t record;   ///< offset into the pool
  std::uint64_t payload;  ///< offset into the payload
  std::int32_t tokens;
  std::int32_t format;  ///< index into the codec's row formats
};

/// Basis of a step for all rows of a message: the root mean square and the largest magnitude of a
/// row's changes, and the weight to which its step is relative.
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
  std::uint8_t* codes;       ///< codes that are not packed, one byte each (CodeStreams)
  std::uint8_t* classes;     ///< tables of rows with steps of the message (CodeStreams)
  const RowSpread* spreads;  ///< spreads of these rows, to encode
  const float* base_weight;  ///< weight of rows that use the message's step unchanged, to encode
  CodecStatistics* sums;     ///< over all encodes of the rows at each place of the micro-batch
  std::uint32_t* lost;       ///< set to 1 if values cannot cross (Codec::lost_values)
  const float* error_share;  ///< share of each sample (ErrorBound); null: 1
  bool measure;
  std::uint64_t key;   ///< key of random numbers: seed, boundary, direction
  std::uint32_t step;  ///< low half; the high half is in key
  float scale;         ///< Crossing::scale

  /// Returns the steps at the payload's front: one per channel, or one for the message.
  KOKKOS_INLINE_FUNCTION std::uint16_t* front_steps() const {
    return reinterpret_cast<std::uint16_t*>(payload);
  }
};

/// Adds the number of a row's values that are not finite. Must be called by one of the team's
/// threads.
KOKKOS_INLINE_FUNCTION void count_nonfinite(const RowArguments& a, int row, std::uint32_t count) {
  a.sums[row].nonfinite += count;
  if (count > 0) atomic_set(a.lost, 1u);
}

/// Writes zeros after the `bytes` bytes of a block, up to the next multiple of 4, so that equal
/// values are equal payloads.
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

  /// Returns the index of the row format of the crossing's b-th sample.
  virtual int format_of(const Crossing& crossing, std::size_t b) const = 0;
  /// Returns the largest number of payload bytes of a sample's rows.
  virtual std::size_t block_bytes(int format, int tokens) const = 0;
  /// Returns true if all blocks of a format have the largest size. These blocks come first. The
  /// others follow as run_encode places them; their entries hold the offsets for the largest sizes.
  virtual bool has_fixed_length(int) const { return true; }
  /// Returns the number of payload bytes before the first sample's block; a multiple of 4.
  virtual std::size_t front_bytes(const Crossing&) const { return 0; }
  /// Returns the largest number of payload bytes after the last sample's block.
  virtual std::size_t tail_bytes(const Crossing&) const { return 0; }
  /// Launches kernels over the rows of arguments.sample_count samples. Returns the number of bytes
  /// written, at most max_bytes.
  virtual std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                                 std::size_t max_bytes) = 0;
  /// Launches kernels over all rows.
  virtual void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) = 0;
  /// Returns the length that a payload of `bytes` bytes should have; may refuse it.
  virtual std::size_t expected_bytes(const ExecSpace&, const Crossing& crossing,
                                     const RowArguments&, std::size_t) {
    return payload_bytes(crossing);
  }

  /// Returns the current crossing, in run_encode, run_decode and expected_bytes.
  const Crossing& crossing() const { return *crossing_; }
  /// Returns the entries of the current crossing.
  const std::vector<SampleEntry>& samples() const { return entries_; }

  const CodecShape shape_;

 private:
  void check(const Crossing& crossing, const Activations& x_BTC, const MemoryRecords& records,
             BoundarySide side, const DeviceBytes& payload, std::size_t bytes) const;
  /// Returns payload_bytes(crossing) without the tail. If `records` is null, the entries' record
  /// offsets are 0.
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
  Vector<CodecStatistics> sums_N_;
  HostVector<CodecStatistics> host_sums_N_;
  Vector<std::uint32_t> lost_;
  HostVector<std::uint32_t> host_lost_;  ///< lost_ itself if the device is the host
};

/// chained() returns a hash of a hash and one more value, folded() 32 bits of a hash.
std::uint64_t chained(std::uint64_t hash, std::uint64_t value);
inline std::uint32_t folded(std::uint64_t hash) {
  return static_cast<std::uint32_t>(hash ^ (hash >> 32));
}

/// Returns a hash of what both ends must share; format_version changes with the payload format.
std::uint32_t settings_hash(const CodecSettings& settings, const CodecShape& shape,
                            MemoryStorage storage, std::uint32_t format_version);

KOKKOS_INLINE_FUNCTION constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace deltapipe::codec
