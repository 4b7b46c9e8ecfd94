// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/token_index.hpp"

#include <algorithm>

namespace deltapipe {

TokenIndex::TokenIndex(int vocabulary, int rows, int micro_batches)
    : slot_of_token_(vocabulary, -1),
      token_U_("deltapipe::TokenIndex::tokens", std::min(vocabulary, rows)),
      token_by_last_use_U_("deltapipe::TokenIndex::tokensByLastUse", std::min(vocabulary, rows)),
      first_of_U_("deltapipe::TokenIndex::first", std::min(vocabulary, rows) + 1),
      row_of_("deltapipe::TokenIndex::rows", rows),
      token_host_(Kokkos::create_mirror_view(token_U_)),
      token_by_last_use_host_(Kokkos::create_mirror_view(token_by_last_use_U_)),
      first_host_(Kokkos::create_mirror_view(first_of_U_)),
      row_host_(Kokkos::create_mirror_view(row_of_)) {
  for (auto* per_row : {&slots_, &rows_}) per_row->reserve(rows);
  for (auto* per_token : {&tokens_, &last_use_, &tokens_by_last_use_, &place_of_slot_})
    per_token->reserve(std::min(vocabulary, rows));
  for (auto* per_micro_batch : {&needed_before_, &final_before_})
    per_micro_batch->reserve(micro_batches + 1);
  clear();
}

MemoryLedger TokenIndex::memory(int vocabulary, int rows) {
  const std::uint64_t tokens = std::min(vocabulary, rows);
  constexpr std::uint64_t kBytes = sizeof(std::int32_t);
  MemoryLedger ledger;
  // Lists on the host: a slot for every token, two lists of rows, four of the step's tokens.
  ledger.add_host(MemoryUse::workspace,
                  kBytes * (vocabulary + 2 * std::uint64_t(rows) + 4 * tokens));
  ledger.add<Vector<std::int32_t>>(MemoryUse::workspace, kBytes * (rows + 3 * tokens + 1));
  return ledger;
}

void TokenIndex::clear() {
  for (const std::int32_t token : tokens_) slot_of_token_[token] = -1;
  for (auto* list : {&tokens_, &last_use_, &slots_, &rows_}) list->clear();
  needed_before_.assign(1, 0);
}

void TokenIndex::add(std::span<const std::int32_t> tokens_N, std::int32_t first_row) {
  const std::int32_t micro_batch = micro_batches();
  for (std::size_t n = 0; n < tokens_N.size(); ++n) {
    std::int32_t& slot = slot_of_token_[tokens_N[n]];
    if (slot < 0) {
      slot = static_cast<std::int32_t>(tokens_.size());
      tokens_.push_back(tokens_N[n]);
      last_use_.push_back(micro_batch);
    }
    last_use_[slot] = micro_batch;
    slots_.push_back(slot);
    rows_.push_back(first_row + static_cast<std::int32_t>(n));
  }
  needed_before_.push_back(size());
}

/// Sorts by counting, with final_before_(m) as the cursor of micro-batch m. The cursor ends where m
/// + 1 begins.
void TokenIndex::sort_by_last_use() {
  final_before_.assign(needed_before_.size(), 0);
  for (const std::int32_t m : last_use_) ++final_before_[m + 1];
  for (int m = 0; m < micro_batches(); ++m) final_before_[m + 1] += final_before_[m];
  place_of_slot_.resize(tokens_.size());
  tokens_by_last_use_.resize(tokens_.size());
  for (std::size_t u = 0; u < tokens_.size(); ++u) {
    const int place = final_before_[last_use_[u]]++;
    place_of_slot_[u] = place;
    tokens_by_last_use_[place] = tokens_[u];
  }
  for (int m = micro_batches(); m > 0; --m) final_before_[m] = final_before_[m - 1];
  final_before_[0] = 0;
}

/// Sorts the rows of every token in the same way, in the order of last use.
void TokenIndex::sort_rows_by_token() {
  const std::size_t count = tokens_.size();
  std::fill_n(first_host_.data(), count + 1, 0);
  for (const std::int32_t slot : slots_) ++first_host_(place_of_slot_[slot] + 1);
  for (std::size_t u = 0; u < count; ++u) first_host_(u + 1) += first_host_(u);
  for (std::size_t i = 0; i < slots_.size(); ++i)
    row_host_(first_host_(place_of_slot_[slots_[i]])++) = rows_[i];
  for (std::size_t u = count; u > 0; --u) first_host_(u) = first_host_(u - 1);
  first_host_(0) = 0;
}

void TokenIndex::finish(const ExecSpace& exec) {
  sort_by_last_use();
  sort_rows_by_token();
  std::copy(tokens_.begin(), tokens_.end(), token_host_.data());
  std::copy(tokens_by_last_use_.begin(), tokens_by_last_use_.end(), token_by_last_use_host_.data());
  Kokkos::deep_copy(exec, token_U_, token_host_);
  Kokkos::deep_copy(exec, token_by_last_use_U_, token_by_last_use_host_);
  Kokkos::deep_copy(exec, first_of_U_, first_host_);
  Kokkos::deep_copy(exec, row_of_, row_host_);
}

}  // namespace deltapipe
