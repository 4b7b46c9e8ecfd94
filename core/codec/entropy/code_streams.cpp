// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/entropy/code_streams.hpp"

#include <algorithm>
#include <limits>

#include "core/base/observe/memory_ledger.hpp"
#include "core/codec/entropy/code_stream_decoding.hpp"
#include "core/codec/entropy/code_stream_encoding.hpp"
#include "core/codec/rows/row_codec.hpp"

namespace deltapipe::codec {

using namespace stream_kernels;

namespace {

/// Codes of a stream. A stream costs six bytes for its state and length and is one thread's work.
constexpr int kStreamCodes = 4096;

std::uint64_t padded(std::uint64_t bytes) {
  return round_up(bytes, 4);
}

int rows_per_stream(int channels) {
  return std::max(1, (kStreamCodes + channels / 2) / channels);
}

}  // namespace

CodeStreams::CodeStreams(const CodecShape& shape, const PerFormat& bits)
    : shape_(shape),
      bits_(bits),
      table_count_(bits[kByClass] > 0 ? kCodeTables : kCodeFormats),
      row_bytes_(std::size_t{8} * lanes_of(shape.channels)),
      rows_per_stream_(rows_per_stream(shape.channels)) {
  const std::size_t rows = static_cast<std::size_t>(shape.max_samples) * shape.tokens;
  const std::size_t streams = rows / rows_per_stream_ + table_count_;
  const auto place = [](const char* label) { return uninitialized(label); };
  codes_ = Vector<std::uint8_t>("deltapipe::CodeStreams::codes", rows * row_bytes_);
  class_N_ = Vector<std::uint8_t>("deltapipe::CodeStreams::classes", bits[kByClass] > 0 ? rows : 0);
  host_class_N_ = Kokkos::create_mirror_view(StagingSpace(), class_N_);
  row_N_ = Vector<std::int32_t>(place("deltapipe::CodeStreams::rows"), rows);
  host_row_N_ = Kokkos::create_mirror_view(StagingSpace(), row_N_);
  counts_ = Vector<std::uint64_t>(place("deltapipe::CodeStreams::counts"), table_count_ * kSymbols);
  symbols_ =
      Vector<EncoderSymbol>(place("deltapipe::CodeStreams::symbols"), table_count_ * kSymbols);
  tables_ =
      Vector<std::uint8_t>(place("deltapipe::CodeStreams::tables"), table_count_ * kHeadBytes);
  words_ = Vector<std::uint16_t>(place("deltapipe::CodeStreams::words"),
                                 shape.encodes() ? streams * room() : 0);
  place_S_ = Vector<std::uint64_t>(place("deltapipe::CodeStreams::places"), streams + 1);
  starts_ =
      Vector<std::uint32_t>(place("deltapipe::CodeStreams::starts"), table_count_ * (kSymbols + 1));
  foldings_ = Vector<Folding>(place("deltapipe::CodeStreams::foldings"), table_count_);
  extremes_ = Vector<std::uint32_t>(place("deltapipe::CodeStreams::extremes"), 2 * table_count_);
  slots_ = Vector<std::uint32_t>("deltapipe::CodeStreams::slots",
                                 static_cast<std::size_t>(table_count_) * kFrequencySum);
  summary_ = Vector<std::uint64_t>(place("deltapipe::CodeStreams::summary"), kSummary);
  host_summary_ = Kokkos::create_mirror_view(StagingSpace(), summary_);
  host_directory_ =
      HostVector<std::uint32_t>(place("deltapipe::CodeStreams::host_directory"), table_count_);
}

/// A code gives away at most one word; one more is written and taken back.
std::size_t CodeStreams::room() const {
  return static_cast<std::size_t>(rows_per_stream_) * shape_.channels + kStateWords + 1;
}

std::size_t CodeStreams::memory_bytes() const {
  const bool mirrored = !std::is_same_v<MemSpace, StagingSpace>;
  return bytes_of_view(codes_) +
         (bytes_of_view(row_N_) + bytes_of_view(class_N_)) * (mirrored ? 2 : 1) +
         bytes_of_view(counts_) + bytes_of_view(symbols_) + bytes_of_view(tables_) +
         bytes_of_view(foldings_) + bytes_of_view(extremes_) + bytes_of_view(words_) +
         bytes_of_view(place_S_) + bytes_of_view(starts_) + bytes_of_view(slots_) +
         bytes_of_view(summary_) * (mirrored ? 2 : 1) + bytes_of_view(host_directory_);
}

std::size_t CodeStreams::max_bytes(const PerFormat& rows) const {
  std::size_t bytes = 0;
  for (int f = 0; f <= kByClass; ++f) {
    if (bits_[f] == 0 || rows[f] == 0) continue;
    // Each part has a directory word and, if there are several, zeros at its end. Samples need at
    // least as many bytes one at a time as together.
    const std::size_t words =
        f == kByClass ? std::size_t{2} * std::min(rows[f], kRowClasses) : std::size_t{1};
    bytes +=
        padded(packed_bytes(bits_[f], shape_.channels) * rows[f]) + words * sizeof(std::uint32_t);
  }
  return bytes;
}

void CodeStreams::list_by_class(const ExecSpace& exec, const std::vector<Sample>& samples,
                                std::array<int, kRowClasses + 1>& first_row) {
  const auto for_each_row = [&](const auto& body) {
    for (std::size_t b = 0; b < samples.size(); ++b)
      for (int t = 0; samples[b].format == kByClass && t < samples[b].tokens; ++t)
        body(static_cast<std::int32_t>(b) * shape_.tokens + t);
  };
  const bool any = std::any_of(samples.begin(), samples.end(), [](const Sample& sample) {
    return sample.format == kByClass && sample.tokens > 0;
  });
  std::array<int, kRowClasses> rows{};
  if (any) {
    Kokkos::deep_copy(exec, host_class_N_, class_N_);
    exec.fence();
    for_each_row([&](std::int32_t row) { ++rows[host_class_N_(row)]; });
  }
  for (int c = 0; c < kRowClasses; ++c) first_row[c + 1] = first_row[c] + rows[c];
  if (!any) return;
  std::array<int, kRowClasses> next{};
  std::copy_n(first_row.begin(), kRowClasses, next.begin());
  for_each_row([&](std::int32_t row) { host_row_N_(next[host_class_N_(row)]++) = row; });
}

CodeGroups CodeStreams::lay_out(const ExecSpace& exec, const std::vector<Sample>& samples,
                                std::size_t begin) {
  CodeGroups groups{};
  groups.rows_per_stream = rows_per_stream_;
  groups.channels = shape_.channels;
  int rows = 0;
  std::uint64_t head = begin;
  std::array<int, kRowClasses + 1> first_of_class{};
  for (int g = 0; g < kCodeTables; ++g) {
    CodeGroup& group = groups.of[g];
    if (g == kCodeFormats) {
      first_of_class[0] = rows;
      list_by_class(exec, samples, first_of_class);
    }
    group.first_row = rows;
    group.first_stream = groups.streams;
    group.bits = bits_[std::min(g, kByClass)];
    if (g < kCodeFormats)
      for (std::size_t b = 0; b < samples.size() && bits_[g] > 0; ++b)
        for (int t = 0; samples[b].format == g && t < samples[b].tokens; ++t)
          host_row_N_(rows++) = static_cast<std::int32_t>(b) * shape_.tokens + t;
    else
      rows = first_of_class[g - kCodeFormats + 1];
    group.rows = rows - group.first_row;
    group.streams = (group.rows + rows_per_stream_ - 1) / rows_per_stream_;
    group.head = head;
    if (group.rows > 0) head += sizeof(std::uint32_t);
    groups.streams += group.streams;
  }
  for (CodeGroup& group : groups.of) group.part = head;
  if constexpr (!std::is_same_v<MemSpace, StagingSpace>) {
    const auto range = Kokkos::make_pair(0, rows);
    Kokkos::deep_copy(exec, Kokkos::subview(row_N_, range), Kokkos::subview(host_row_N_, range));
  }
  return groups;
}

void CodeStreams::find_tables(const ExecSpace& exec, const CodeGroups& groups) {
  const CodeRows code_rows{row_N_.data(), codes_.data(), row_bytes_};
  auto* extremes = reinterpret_cast<Extremes*>(extremes_.data());
  Kokkos::deep_copy(exec, counts_, std::uint64_t{0});
  Kokkos::deep_copy(exec, extremes_, std::uint32_t{0});
  for_rows("deltapipe::CodeStreams::find_extremes", row_policy(exec, groups.streams),
           FindExtremes{groups, code_rows, extremes});
  for_range("deltapipe::CodeStreams::choose_foldings", exec, table_count_,
            ChooseFoldings{groups, extremes, foldings_.data()}, table_count_);
  for_rows("deltapipe::CodeStreams::fold", row_policy(exec, groups.rows()),
           FoldRows{groups, code_rows, foldings_.data()});
  for_rows(
      "deltapipe::CodeStreams::count",
      row_policy(exec, groups.streams, kHostExecution ? 0 : kSymbols * sizeof(std::uint32_t) + 64),
      CountSymbols{groups, code_rows, foldings_.data(), counts_.data()});
  for_range("deltapipe::CodeStreams::make_tables", exec, table_count_,
            MakeTables{groups, foldings_.data(), counts_.data(), symbols_.data(), tables_.data(),
                       summary_.data() + kTableSizes});
}

std::size_t CodeStreams::place_parts(const ExecSpace& exec, CodeGroups& groups) {
  Kokkos::deep_copy(exec, host_summary_, summary_);
  exec.fence();
  std::uint64_t end = groups.of[0].part;
  for (int g = 0; g < table_count_; ++g) {
    CodeGroup& group = groups.of[g];
    group.part = end;
    if (group.rows == 0) continue;
    const std::uint64_t coded =
        host_summary_(kTableSizes + g) +
        kWordBytes * (host_summary_(kStreamWords + g) + static_cast<std::uint64_t>(group.streams));
    const std::uint64_t packed = packed_size(group, shape_.channels);
    const bool has_lengths = room() <= std::numeric_limits<std::uint16_t>::max();
    const bool has_size = coded <= std::numeric_limits<std::uint32_t>::max();
    group.size = padded(coded) <= padded(packed) && has_lengths && has_size ? coded : 0;
    end += padded(group.size > 0 ? group.size : packed);
  }
  return end;
}

std::size_t CodeStreams::encode(const ExecSpace& exec, const std::vector<Sample>& samples,
                                std::uint8_t* payload, std::size_t begin) {
  CodeGroups groups = lay_out(exec, samples, begin);
  if (groups.streams == 0) return begin;
  const CodeRows code_rows{row_N_.data(), codes_.data(), row_bytes_};
  const std::uint64_t* table_sizes = summary_.data() + kTableSizes;
  find_tables(exec, groups);
  for_range("deltapipe::CodeStreams::encode", exec, runs_of_streams(groups),
            EncodeStreams{groups, code_rows, foldings_.data(), symbols_.data(), words_.data(),
                          room(), place_S_.data()});
  Kokkos::parallel_scan("deltapipe::CodeStreams::places_of_lengths",
                        Kokkos::RangePolicy<ExecSpace>(exec, 0, groups.streams + 1),
                        PlacesOfLengths{place_S_.data(), groups.streams});
  for_range("deltapipe::CodeStreams::sum_up", exec, table_count_,
            SumUp{groups, place_S_.data(), summary_.data() + kStreamWords}, table_count_);
  const std::size_t end = place_parts(exec, groups);
  for_range("deltapipe::CodeStreams::write_heads", exec, table_count_,
            WriteHeads{groups, tables_.data(), table_sizes, payload}, table_count_);
  for_rows("deltapipe::CodeStreams::write_streams", row_policy(exec, groups.streams),
           WriteStreams{groups, table_sizes, words_.data(), room(), place_S_.data(), payload});
  for_rows("deltapipe::CodeStreams::pack", row_policy(exec, groups.rows()),
           PackRows{groups, code_rows, foldings_.data(), payload});
  exec.fence();
  return end;
}

bool CodeStreams::read_directory(const ExecSpace& exec, CodeGroups& groups,
                                 const std::uint8_t* payload, std::size_t begin, std::size_t bytes,
                                 std::size_t* end) {
  const std::size_t words = (groups.of[0].part - begin) / sizeof(std::uint32_t);
  *end = groups.of[0].part;
  if (bytes < *end) return false;
  using Words =
      Kokkos::View<const std::uint32_t*, Layout, MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Kokkos::deep_copy(exec,
                    Kokkos::subview(host_directory_, Kokkos::make_pair(std::size_t{0}, words)),
                    Words(reinterpret_cast<const std::uint32_t*>(payload + begin), words));
  exec.fence();
  std::size_t word = 0;
  for (CodeGroup& group : groups.of) {
    group.part = *end;
    if (group.rows == 0) continue;
    group.size = host_directory_(word++);
    *end += padded(group.size > 0 ? group.size : packed_size(group, shape_.channels));
  }
  return *end == bytes;
}

CodeStreams::Decoded CodeStreams::decode(const ExecSpace& exec, const std::vector<Sample>& samples,
                                         const std::uint8_t* payload, std::size_t begin,
                                         std::size_t bytes) {
  CodeGroups groups = lay_out(exec, samples, begin);
  if (groups.streams == 0) return {begin, true};
  std::size_t end = 0;
  if (!read_directory(exec, groups, payload, begin, bytes, &end)) return {end, false};
  const CodeRows code_rows{row_N_.data(), codes_.data(), row_bytes_};
  std::uint64_t* table_sizes = summary_.data() + kTableSizes;
  std::uint64_t* soundness = summary_.data() + kSoundness;
  Kokkos::deep_copy(exec, summary_, std::uint64_t{0});
  for_rows("deltapipe::CodeStreams::read_tables", row_policy(exec, table_count_),
           ReadTables{groups, payload, foldings_.data(), starts_.data(), slots_.data(), table_sizes,
                      soundness});
  Kokkos::parallel_scan("deltapipe::CodeStreams::places_in_payload",
                        Kokkos::RangePolicy<ExecSpace>(exec, 0, groups.streams + 1),
                        PlacesInPayload{groups, table_sizes, payload, place_S_.data()});
  for_range("deltapipe::CodeStreams::decode", exec, runs_of_streams(groups),
            DecodeStreams{groups, code_rows, foldings_.data(), table_sizes, slots_.data(),
                          place_S_.data(), payload, soundness});
  for_rows("deltapipe::CodeStreams::unpack", row_policy(exec, groups.rows()),
           UnpackRows{groups, code_rows, foldings_.data(), table_sizes, payload});
  Kokkos::deep_copy(exec, host_summary_, summary_);
  exec.fence();
  return {end, host_summary_(kSoundness) == sound};
}

}  // namespace deltapipe::codec
