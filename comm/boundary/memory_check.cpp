// SPDX-License-Identifier: BSD-3-Clause
#include "comm/boundary/memory_check.hpp"

#include <fmt/format.h>

#include <cstring>

#include "core/base/error.hpp"
#include "core/kernels/content_hash.hpp"

namespace deltapipe {

namespace {

constexpr std::uint64_t kNoHash = 0;

}  // namespace

MemoryCheck::MemoryCheck(std::uint64_t every, int max_samples, std::size_t shared_bytes)
    : every_(shared_bytes > 0 ? every : 0), shared_bytes_(shared_bytes) {
  if (every_ == 0) return;
  offset_B_ = Vector<std::uint64_t>(uninitialized("deltapipe::MemoryCheck::offsets"), max_samples);
  hash_B_ = Vector<std::uint64_t>(uninitialized("deltapipe::MemoryCheck::hashes"), max_samples);
  offset_host_ = Kokkos::create_mirror_view(offset_B_);
  hash_host_ = Kokkos::create_mirror_view(hash_B_);
}

void MemoryCheck::choose(const Crossing& crossing, const MemoryRecords& records) {
  chosen_.clear();
  if (every_ == 0) return;
  for (std::size_t b = 0; b < crossing.sample_ids.size(); ++b) {
    if ((crossing.sample_ids[b] + crossing.visits[b]) % every_ != 0) continue;
    offset_host_(chosen_.size()) = records.offset_B[b];
    chosen_.push_back(b);
  }
}

void MemoryCheck::hash(const ExecSpace& exec, const MemoryRecords& records, bool counts) {
  const std::size_t count = chosen_.size();
  if (count == 0) return;
  const auto range = Kokkos::make_pair(std::size_t{0}, count);
  const VectorRef<std::uint64_t> hashes(hash_B_.data(), count);
  if (counts) {
    Kokkos::deep_copy(exec, Kokkos::subview(offset_B_, range),
                      Kokkos::subview(offset_host_, range));
    hash_ranges(exec, records.pool.data(), VectorRef<const std::uint64_t>(offset_B_.data(), count),
                shared_bytes_, hashes);
  } else {
    Kokkos::deep_copy(exec, hashes, kNoHash);
  }
  Kokkos::deep_copy(exec, Kokkos::subview(hash_host_, range), hashes);
}

void MemoryCheck::append(std::uint8_t* behind_payload) const {
  if (bytes() > 0) std::memcpy(behind_payload, hash_host_.data(), bytes());
}

void MemoryCheck::append_on_device(const ExecSpace& exec, std::uint8_t* behind_payload) const {
  if (bytes() == 0) return;
  const auto* const hashes = reinterpret_cast<const std::uint8_t*>(hash_B_.data());
  Kokkos::deep_copy(exec, VectorRef<std::uint8_t>(behind_payload, bytes()),
                    VectorRef<const std::uint8_t>(hashes, bytes()));
}

void MemoryCheck::compare(const std::uint8_t* behind_payload, const Crossing& crossing,
                          const MessageHeader& header) const {
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    std::uint64_t sent = 0;
    std::memcpy(&sent, behind_payload + i * sizeof sent, sizeof sent);
    if (sent == hash_host_(i) || sent == kNoHash || hash_host_(i) == kNoHash) continue;
    const std::size_t b = chosen_[i];
    const bool is_row =
        crossing.kind == CrossingKind::tied_rows || crossing.kind == CrossingKind::tied_gradients;
    throw UserError(
        {.what = fmt::format(
             "rank {} and rank {} remember {} {} at boundary {} {} differently after its visit "
             "{}, step {}",
             header.source_rank, header.target_rank, is_row ? "token" : "sample",
             crossing.sample_ids[b], crossing.boundary, name_of(crossing.direction()),
             crossing.visits[b] + 1, crossing.step),
         .value = fmt::format("hashes {} and {}", hexadecimal(sent), hexadecimal(hash_host_(i))),
         .remedy = "check memory and disks of both machines and run the same build on them; "
                   "cache.verify_every = 1 finds the visit"});
  }
}

}  // namespace deltapipe
