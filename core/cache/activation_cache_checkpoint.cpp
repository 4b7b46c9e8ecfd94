// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of a cache: its records as items of a state or as places in the spill file, their
// hashes, and damaged records.
#include <algorithm>

#include "core/base/error.hpp"
#include "core/cache/activation_cache.hpp"
#include "core/cache/spill_file.hpp"

namespace deltapipe {

void ActivationCache::note_damaged(std::uint64_t sample) {
  if (damaged_.insert(sample).second) ++statistics_.damaged;
}

std::vector<std::uint64_t> ActivationCache::take_damaged() {
  std::vector<std::uint64_t> damaged(damaged_.begin(), damaged_.end());
  damaged_.clear();
  return damaged;
}

void ActivationCache::find_damaged_records() {
  if (!file_) return;
  come_to_rest("find_damaged_records()");
  std::vector<std::uint8_t> bytes(shape_.record_bytes);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample) {
    const bool in_file_only = visits_[sample] > 0 && places_[sample].pool == kNowhere;
    if (in_file_only && !file_->try_read_record(sample, bytes.data())) note_damaged(sample);
  }
}

std::vector<std::uint64_t> ActivationCache::hashes_in_file(std::size_t bytes) {
  DELTAPIPE_ASSERT(bytes <= shape_.record_bytes, "more than a record");
  std::vector<std::uint64_t> hashes(shape_.samples, 0);
  if (!file_) return hashes;
  collect_finished();
  rethrow_failure();
  wait_for_all_tasks();
  std::vector<std::uint8_t> record(shape_.record_bytes);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (visits_[sample] > 0 && file_->try_read_record(sample, record.data()))
      hashes[sample] = std::max<std::uint64_t>(1, record_checksum(record.data(), bytes));
  return hashes;
}

void ActivationCache::fetch(std::uint64_t sample, std::uint8_t* bytes) {
  const Place& place = places_[sample];
  if (place.pool == kNowhere) return file_->read_record(sample, bytes);
  copy_from_pool(bytes, place.pool);
  wait_for_copies();
}

void ActivationCache::put(std::uint64_t sample, const std::uint8_t* bytes) {
  if (free_pool_.empty()) return file_->write_record(sample, bytes, visits_[sample]);
  Place& place = places_[sample];
  place.pool = take_pool_slot();
  place.dirty = true;
  copy_to_pool(place.pool, bytes);
  wait_for_copies();
  evictable_.insert(sample, uses_.next_use(sample));
}

bool ActivationCache::is_in_file_only(std::uint64_t sample, const RecordPlaces* places) const {
  return places != nullptr && places->slots[sample] != RecordPlaces::kNone;
}

StateItem ActivationCache::records_item(const RecordPlaces* places) const {
  std::uint64_t count = 0;
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (visits_[sample] > 0 && !is_in_file_only(sample, places)) ++count;
  return {"records", StateType::u8, {count, shape_.record_bytes}};
}

RecordPlaces ActivationCache::write_places(StateWriter& writer) {
  RecordPlaces places = file_->hold(*generation_);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (visits_[sample] == 0 || places_[sample].dirty) places.slots[sample] = RecordPlaces::kNone;
  write_scalar(writer, "generation", *generation_);
  write_text(writer, "spill_file", file_->path());
  write_scalar(writer, "spill_file_id", file_->id());
  write_array<std::uint32_t>(writer, "slots", places.slots);
  write_array<std::uint64_t>(writer, "checksums", places.checksums);
  return places;
}

void ActivationCache::write_state(StateWriter& writer) {
  come_to_rest("write_state()");
  write_array<std::uint32_t>(writer, "visits", visits_);
  std::optional<RecordPlaces> places;
  if (file_ && generation_) places = write_places(writer);
  generation_.reset();
  const RecordPlaces* const known = places ? &*places : nullptr;
  writer.begin_item(records_item(known));
  const HostBytes record(uninitialized("deltapipe::ActivationCache::written_record"),
                         shape_.record_bytes);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample) {
    if (visits_[sample] == 0 || is_in_file_only(sample, known)) continue;
    const std::int32_t slot = places_[sample].pool;
    if (kSharedMemory && slot != kNowhere) {
      writer.append(pool_bytes(slot), shape_.record_bytes);
      continue;
    }
    fetch(sample, record.data());
    writer.append(record.data(), shape_.record_bytes);
  }
}

RecordPlaces ActivationCache::read_places(StateReader& reader) {
  if (!file_)
    reader.refuse("slots", "belongs to records in a spill file, but this cache does not have one",
                  "", "set cache.budget to its former value");
  RecordPlaces places{std::vector<std::uint32_t>(shape_.samples),
                      std::vector<std::uint64_t>(shape_.samples)};
  const auto generation = read_scalar<std::uint64_t>(reader, "generation");
  (void)read_text(reader, "spill_file");
  if (const auto id = read_scalar<std::uint64_t>(reader, "spill_file_id"); id != file_->id())
    reader.refuse("spill_file_id", "is of another spill file than " + file_->path(),
                  std::to_string(id), "restore the run's cache files");
  read_array<std::uint32_t>(reader, "slots", places.slots);
  read_array<std::uint64_t>(reader, "checksums", places.checksums);
  std::vector<std::uint32_t> in_file = visits_;
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (!is_in_file_only(sample, &places)) in_file[sample] = 0;
  file_->go_back(places, in_file, generation);
  return places;
}

void ActivationCache::read_state(StateReader& reader) {
  come_to_rest("read_state()");
  clear_prefetch();
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (places_[sample].pool != kNowhere) drop_from_pool(sample);
  const std::vector<std::uint32_t> former = visits_;
  read_array<std::uint32_t>(reader, "visits", visits_);
  const std::vector<std::string> items = reader.items_left();
  std::optional<RecordPlaces> places;
  if (std::find(items.begin(), items.end(), "slots") != items.end()) places = read_places(reader);
  const RecordPlaces* const known = places ? &*places : nullptr;
  reader.begin_item(records_item(known));
  const HostBytes record(uninitialized("deltapipe::ActivationCache::read_record"),
                         shape_.record_bytes);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample) {
    if (is_in_file_only(sample, known)) continue;
    if (visits_[sample] > 0) {
      reader.take(record.data(), shape_.record_bytes);
      put(sample, record.data());
    } else if (former[sample] > 0 && file_) {
      file_->forget_record(sample);
    }
  }
}

}  // namespace deltapipe
