// SPDX-License-Identifier: BSD-3-Clause
// Entropy coding of rows of codes: lossless, without memory of other crossings. The rows of a
// format, or of a class, share a table of frequencies, which is sent with them. A few rows at a
// time form a stream (rans.hpp), so that a device has many streams to work on and a processor
// several to keep its pipelines busy. Rows that would be longer than packed codes are sent packed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/parallel/views.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/entropy/code_groups.hpp"
#include "core/codec/entropy/folding.hpp"
#include "core/codec/entropy/rans.hpp"

namespace deltapipe::codec {

/// The part of a payload that holds the codes of all rows (docs/payload.md). Calls wait for the
/// device.
class CodeStreams {
 public:
  struct Sample {
    int format;  ///< the same at both ends; kByClass: classes() gives each row's table
    int tokens;
  };
  struct Decoded {
    std::size_t bytes;  ///< length of such a payload
    bool is_sound;      ///< if the payload has that length: true if it holds codes
  };

  /// Indexed by format; kByClass is the last.
  using PerFormat = std::array<int, kCodeFormats + 1>;

  /// `bits` are those of each format's codes; 0: its rows are not codes.
  CodeStreams(const CodecShape& shape, const PerFormat& bits);

  /// Returns the codes, one byte each: those of row b*T + t begin at (b*T + t) * row_bytes().
  std::uint8_t* codes() const { return codes_.data(); }
  std::size_t row_bytes() const { return row_bytes_; }
  /// Returns the class, below kRowClasses, of each row of a sample of format kByClass. Set them
  /// before encode() and decode().
  std::uint8_t* classes() const { return class_N_.data(); }
  std::size_t memory_bytes() const;

  /// Returns the largest number of bytes of the codes of `rows` rows of each format; 0 without
  /// rows.
  std::size_t max_bytes(const PerFormat& rows) const;

  /// Writes the codes of the samples' rows, which it overwrites, at payload + begin, a multiple of
  /// 4. Returns the payload's length.
  std::size_t encode(const ExecSpace& exec, const std::vector<Sample>& samples,
                     std::uint8_t* payload, std::size_t begin);
  /// Reads the codes from a payload of `bytes` bytes. They are valid only if the payload is sound,
  /// and are then below 2^bits.
  Decoded decode(const ExecSpace& exec, const std::vector<Sample>& samples,
                 const std::uint8_t* payload, std::size_t begin, std::size_t bytes);

 private:
  /// Offsets in summary_: bytes of each table, words of its streams, damage.
  enum { kTableSizes = 0, kStreamWords = kCodeTables, kSoundness = 2 * kCodeTables, kSummary };

  std::size_t room() const;  ///< number of words per stream
  /// Lists the samples' rows in host_row_N_, class after class, and sets first_row(class + 1) to
  /// the end of each class.
  void list_by_class(const ExecSpace& exec, const std::vector<Sample>& samples,
                     std::array<int, kRowClasses + 1>& first_row);
  CodeGroups lay_out(const ExecSpace& exec, const std::vector<Sample>& samples, std::size_t begin);
  void find_tables(const ExecSpace& exec, const CodeGroups& groups);
  /// Chooses between streams and packed codes; returns the end of the last part.
  std::size_t place_parts(const ExecSpace& exec, CodeGroups& groups);
  /// Reads the parts' offsets and sizes from the directory, and sets *end to the length that the
  /// payload should have. Returns false if it has another one.
  bool read_directory(const ExecSpace& exec, CodeGroups& groups, const std::uint8_t* payload,
                      std::size_t begin, std::size_t bytes, std::size_t* end);

  const CodecShape shape_;
  const PerFormat bits_;
  const int table_count_;  ///< number of tables that can have rows
  const std::size_t row_bytes_;
  const int rows_per_stream_;
  Vector<std::uint8_t> codes_;  ///< symbols while encoding
  Vector<std::uint8_t> class_N_;
  HostVector<std::uint8_t> host_class_N_;
  Vector<std::int32_t> row_N_;  ///< rows of all groups, group after group
  HostVector<std::int32_t> host_row_N_;
  Vector<std::uint64_t> counts_;
  Vector<EncoderSymbol> symbols_;
  Vector<std::uint8_t> tables_;
  Vector<std::uint16_t> words_;  ///< words of the streams, each at the end of room for the longest
  Vector<std::uint64_t> place_S_;  ///< words of each stream, then those before it
  Vector<Folding> foldings_;
  Vector<std::uint32_t> extremes_;
  Vector<std::uint32_t> starts_;
  Vector<std::uint32_t> slots_;
  Vector<std::uint64_t> summary_;
  HostVector<std::uint64_t> host_summary_;
  HostVector<std::uint32_t> host_directory_;
};

}  // namespace deltapipe::codec
