// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/activation_cache.hpp"

#include <utility>

#include "core/cache/activation_cache_state.hpp"

namespace deltapipe {

ActivationCache::ActivationCache(const ExecSpace& copies, CacheIoThread* io,
                                 const CacheShape& shape, const CacheIdentity& identity,
                                 std::uint64_t budget_bytes, const std::string& spill_path,
                                 SpillStart start)
    : state_(std::make_unique<ActivationCacheState>(copies, io, shape, identity, budget_bytes,
                                                    spill_path, start)) {}

ActivationCache::~ActivationCache() = default;

void ActivationCache::prefetch(std::span<const std::uint64_t> sample_ids) {
  state_->prefetch(sample_ids);
}

void ActivationCache::clear_prefetch() {
  state_->clear_prefetch();
}

void ActivationCache::acquire(std::span<const std::uint64_t> sample_ids, MemoryRecords& records,
                              std::vector<std::uint32_t>& visits) {
  state_->acquire(sample_ids, records, visits);
}

void ActivationCache::release(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids) {
  state_->release(exec, sample_ids);
}

void ActivationCache::flush() {
  state_->flush();
}

void ActivationCache::remove_file_at_end() {
  state_->remove_file_at_end();
}

void ActivationCache::let_replace_file() {
  if (state_->file() != nullptr) state_->file()->let_replace();
}

void ActivationCache::forget(std::span<const std::uint64_t> sample_ids) {
  state_->forget(sample_ids);
}

bool ActivationCache::has_damaged() const {
  return state_->has_damaged();
}

std::vector<std::uint64_t> ActivationCache::take_damaged() {
  return state_->take_damaged();
}

void ActivationCache::find_damaged_records() {
  state_->find_damaged_records();
}

std::vector<std::uint64_t> ActivationCache::hashes_in_file(std::size_t bytes) {
  return state_->hashes_in_file(bytes);
}

void ActivationCache::write_state(StateWriter& writer) {
  state_->write_state(writer);
}

void ActivationCache::read_state(StateReader& reader) {
  state_->read_state(reader);
}

void ActivationCache::refer_to_file(std::uint64_t generation) {
  state_->refer_to_file(generation);
}

void ActivationCache::let_go(std::uint64_t generation) {
  if (state_->file() != nullptr) state_->file()->let_go(generation);
}

void ActivationCache::sync() {
  if (state_->file() != nullptr) state_->file()->sync();
}

bool ActivationCache::has_file() const {
  return state_->file() != nullptr;
}

std::uint64_t ActivationCache::file_id() const {
  return has_file() ? state_->file()->id() : 0;
}

CacheStatistics ActivationCache::take_statistics() {
  return std::exchange(state_->statistics, {});
}

std::span<const std::uint32_t> ActivationCache::visits() const {
  return state_->visits;
}

}  // namespace deltapipe
