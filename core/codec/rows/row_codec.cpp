// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/rows/row_codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

#include "core/base/error.hpp"
#include "core/base/numeric/random.hpp"
#include "core/base/parallel/floating_point.hpp"

namespace deltapipe {

CodecStatistics& CodecStatistics::operator+=(const CodecStatistics& other) {
  error2 += other.error2;
  signal2 += other.signal2;
  elements += other.elements;
  nonfinite += other.nonfinite;
  return *this;
}

namespace codec {

namespace {

std::uint64_t random_key(const Crossing& crossing) {
  std::uint64_t key = chained(0, crossing.seed);
  key = chained(key, crossing.step >> 32);
  key = chained(key, crossing.boundary);
  key = chained(key, crossing.direction() == Direction::backward ? 1 : 0);
  return crossing.training ? key : chained(key, 2);
}

/// Settings in settings_hash(). Each value is hashed after its field's number, so that a value of
/// one field cannot pass for a value of another.
enum class Field : std::uint64_t {
  format_version,
  kind,
  bits,
  scale,
  tile,
  rounding,
  levels,
  rms_steps,
  entropy_coding,
  topk,
  values,
  positions,
  feedback_kind,
  feedback_of,
  first_visit,
  storage,
  tokens,
  channels
};

}  // namespace

std::uint64_t chained(std::uint64_t hash, std::uint64_t value) {
  return mix_bits(hash + 0x9e3779b97f4a7c15ull + mix_bits(value));
}

std::uint32_t settings_hash(const CodecSettings& settings, const CodecShape& shape,
                            MemoryStorage storage, std::uint32_t format_version) {
  std::uint64_t hash = 0x64656c7461706970ull;
  const auto add = [&hash](Field field, auto value) {
    hash = chained(chained(hash, static_cast<std::uint64_t>(field)),
                   static_cast<std::uint64_t>(value));
  };
  add(Field::format_version, format_version);
  add(Field::kind, settings.kind);
  const bool delta = sends_changes(settings);
  if (sends_codes(settings) || delta) {
    add(Field::bits, settings.bits);
    add(Field::scale, settings.scale);
    add(Field::tile, settings.tile);
    add(Field::rounding, settings.rounding);
    add(Field::levels, settings.levels);
    add(Field::rms_steps, settings.rms_step > 0);
    add(Field::entropy_coding, settings.entropy_coding);
  }
  if (sends_positions(settings)) {
    add(Field::topk, std::bit_cast<std::uint64_t>(settings.topk));
    add(Field::values, settings.values);
    add(Field::positions, settings.positions);
  }
  if (has_feedback(settings)) {
    add(Field::feedback_kind, settings.feedback_kind);
    add(Field::feedback_of, settings.feedback_of);
  }
  if (delta) add(Field::first_visit, settings.first_visit);
  if (has_shared_memory(settings)) add(Field::storage, storage);
  add(Field::tokens, shape.tokens);
  add(Field::channels, shape.channels);
  return folded(hash);
}

RowCodec::RowCodec(const CodecShape& shape, std::uint32_t id)
    : shape_(shape),
      id_(id),
      table_(shape.max_samples),
      sums_N_("deltapipe::Codec::row_sums",
              static_cast<std::size_t>(shape.max_samples) * shape.tokens),
      host_sums_N_(uninitialized("deltapipe::Codec::host_row_sums"), sums_N_.extent(0)),
      lost_("deltapipe::Codec::lost", 1),
      host_lost_(Kokkos::create_mirror_view(StagingSpace(), lost_)) {
  entries_.reserve(shape.max_samples);
}

std::size_t RowCodec::lay_out(const Crossing& crossing, const MemoryRecords* records,
                              std::vector<SampleEntry>* entries) const {
  const std::size_t samples = crossing.sample_ids.size();
  if (entries != nullptr) entries->resize(samples);
  std::size_t at = front_bytes(crossing);
  for (const bool fixed : {true, false})
    for (std::size_t b = 0; b < samples; ++b) {
      const int format = format_of(crossing, b);
      if (has_fixed_length(format) != fixed) continue;
      if (entries != nullptr) {
        const std::uint64_t record = records != nullptr ? records->offset_B[b] : 0;
        (*entries)[b] = {crossing.sample_ids[b], record, at, crossing.tokens[b], format};
      }
      at += round_up(block_bytes(format, crossing.tokens[b]), 4);
    }
  return at;
}

std::size_t RowCodec::payload_bytes(const Crossing& crossing) const {
  return lay_out(crossing, nullptr, nullptr) + tail_bytes(crossing);
}

std::size_t RowCodec::memory_bytes() const {
  return table_.memory_bytes() + bytes_of_view(sums_N_) + bytes_of_view(host_sums_N_) +
         bytes_of_view(lost_);
}

void RowCodec::check(const Crossing& crossing, const Activations& x_BTC,
                     const MemoryRecords& records, BoundarySide side, const DeviceBytes& payload,
                     std::size_t bytes) const {
  const std::size_t samples = crossing.sample_ids.size();
  const std::size_t rows = static_cast<std::size_t>(shape_.max_samples) * shape_.tokens;
  DELTAPIPE_ASSERT(samples <= static_cast<std::size_t>(shape_.max_samples), "too many samples");
  DELTAPIPE_ASSERT(crossing.tokens.size() == samples, "one token count a sample");
  for (const int tokens : crossing.tokens)
    DELTAPIPE_ASSERT(tokens >= 0 && tokens <= shape_.tokens, "token count is out of range");
  DELTAPIPE_ASSERT(x_BTC.extent(0) >= samples * shape_.tokens && x_BTC.extent(0) <= rows &&
                       x_BTC.extent(1) == static_cast<std::size_t>(shape_.channels),
                   "shape of the activations");
  DELTAPIPE_ASSERT(payload.extent(0) >= bytes, "payload buffer is too small");
  DELTAPIPE_ASSERT(reinterpret_cast<std::uintptr_t>(payload.data()) % 4 == 0, "payload alignment");
  const RecordLayout record = this->record();
  if (record == RecordLayout{}) return;
  DELTAPIPE_ASSERT(crossing.visits.size() == samples, "one visit count a sample");
  if (record.bytes(side) == 0) return;
  DELTAPIPE_ASSERT(records.offset_B.size() == samples, "one memory record a sample");
  for (const std::uint64_t offset : records.offset_B)
    DELTAPIPE_ASSERT(offset % kRecordAlignment == 0 && offset <= records.pool.extent(0) &&
                         record.bytes(side) <= records.pool.extent(0) - offset,
                     "memory record is outside of its pool");
}

RowArguments RowCodec::arguments(const ExecSpace& exec, const Crossing& crossing,
                                 const Activations& x_BTC, const MemoryRecords& records,
                                 BoundarySide side, const DeviceBytes& payload) {
  entries_.clear();
  crossing_ = &crossing;
  lay_out(crossing, record().bytes(side) > 0 ? &records : nullptr, &entries_);
  RowArguments result{};
  result.samples = table_.upload(exec, entries_);
  result.sample_count = static_cast<int>(entries_.size());
  result.tokens = shape_.tokens;
  result.channels = shape_.channels;
  result.x = x_BTC.data();
  result.pool = records.pool.data();
  result.payload = payload.data();
  result.sums = sums_N_.data();
  result.lost = lost_.data();
  result.measure = measure_;
  result.key = random_key(crossing);
  result.step = static_cast<std::uint32_t>(crossing.step);
  result.scale = static_cast<float>(crossing.scale);
  return result;
}

std::size_t RowCodec::encode(const ExecSpace& exec, const Crossing& crossing, Activations x_BTC,
                             const MemoryRecords& records, DeviceBytes payload) {
  DELTAPIPE_ASSERT(shape_.encodes(), "the codec is a receiver's");
  const std::size_t most = payload_bytes(crossing);
  check(crossing, x_BTC, records, BoundarySide::sender, payload, most);
  if (crossing.sample_ids.empty()) return most;
  const ExactArithmetic exact;
  const std::size_t bytes = run_encode(
      exec, arguments(exec, crossing, x_BTC, records, BoundarySide::sender, payload), most);
  if constexpr (!std::is_same_v<MemSpace, StagingSpace>) Kokkos::deep_copy(exec, host_lost_, lost_);
  DELTAPIPE_ASSERT(bytes <= most, "a payload is longer than announced");
  return bytes;
}

bool RowCodec::lost_values() const {
  return host_lost_(0) != 0;
}

std::uint32_t RowCodec::state_hash(const Crossing& crossing) const {
  if (record().shared_bytes == 0) return 0;
  std::uint64_t hash = 0;
  for (std::size_t b = 0; b < crossing.samples(); ++b) {
    hash = chained(hash, crossing.visits[b]);
    hash = chained(hash, static_cast<std::uint64_t>(format_of(crossing, b)));
  }
  return folded(hash);
}

void RowCodec::refuse(const Crossing& crossing, const std::string& flaw, const std::string& value) {
  throw UserError({.what = fmt::format("payload at boundary {} {}, step {}, micro-batch {} {}",
                                       crossing.boundary, name_of(crossing.direction()),
                                       crossing.step, crossing.micro_batch, flaw),
                   .value = value,
                   .remedy = "run the same program and deck on all ranks"});
}

namespace {

[[noreturn]] void refuse_length(const Crossing& crossing, std::size_t bytes,
                                const std::string& expected) {
  RowCodec::refuse(crossing, "has the wrong length",
                   fmt::format("{} bytes, not {}", bytes, expected));
}

}  // namespace

void RowCodec::decode(const ExecSpace& exec, const Crossing& crossing, DeviceBytes payload,
                      std::size_t bytes, const MemoryRecords& records, Activations x_BTC) {
  DELTAPIPE_ASSERT(shape_.decodes(), "the codec is a sender's");
  const std::size_t most = payload_bytes(crossing);
  if (bytes > most) refuse_length(crossing, bytes, fmt::format("at most {}", most));
  check(crossing, x_BTC, records, BoundarySide::receiver, payload, bytes);
  const ExactArithmetic exact;
  const RowArguments arguments =
      this->arguments(exec, crossing, x_BTC, records, BoundarySide::receiver, payload);
  const std::size_t expected = expected_bytes(exec, crossing, arguments, bytes);
  if (bytes != expected) refuse_length(crossing, bytes, std::to_string(expected));
  run_decode(exec, static_cast<int>(x_BTC.extent(0)), arguments);
}

CodecStatistics RowCodec::take_statistics(const ExecSpace& exec) {
  Kokkos::deep_copy(exec, host_sums_N_, sums_N_);
  exec.fence();
  CodecStatistics total;
  for (std::size_t row = 0; row < host_sums_N_.extent(0); ++row) total += host_sums_N_(row);
  const Kokkos::View<std::uint8_t*, Layout, MemSpace> bytes(
      reinterpret_cast<std::uint8_t*>(sums_N_.data()), sums_N_.extent(0) * sizeof(CodecStatistics));
  Kokkos::deep_copy(exec, bytes, std::uint8_t{0});
  Kokkos::deep_copy(exec, lost_, 0u);
  host_lost_(0) = 0;
  return total;
}

}  // namespace codec
}  // namespace deltapipe
