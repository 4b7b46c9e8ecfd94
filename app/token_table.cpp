#include "app/token_table.hpp"

#include <algorithm>

namespace deltapipe {

TokenIndex::TokenIndex(int vocabulary, int rows)
    : slot_of_token_(vocabulary, -1),
      token_U_("deltapipe::TokenIndex::tokens", std::min(vocabulary, rows)),
      first_of_U_("deltapipe::TokenIndex::first", std::min(vocabulary, rows) + 1),
      row_of_("deltapipe::TokenIndex::rows", rows),
      token_host_(Kokkos::create_mirror_view(token_U_)),
      first_host_(Kokkos::create_mirror_view(first_of_U_)),
      row_host_(Kokkos::create_mirror_view(row_of_)) {
  slots_.reserve(rows);
  rows_.reserve(rows);
  tokens_.reserve(std::min(vocabulary, rows));
}

void TokenIndex::clear() {
  for (const std::int32_t token : tokens_) slot_of_token_[token] = -1;
  tokens_.clear();
  slots_.clear();
  rows_.clear();
}

void TokenIndex::add(std::span<const std::int32_t> tokens_N, std::int32_t first_row) {
  for (std::size_t n = 0; n < tokens_N.size(); ++n) {
    std::int32_t& slot = slot_of_token_[tokens_N[n]];
    if (slot < 0) {
      slot = static_cast<std::int32_t>(tokens_.size());
      tokens_.push_back(tokens_N[n]);
    }
    slots_.push_back(slot);
    rows_.push_back(first_row + static_cast<std::int32_t>(n));
  }
}

void TokenIndex::finish(const ExecSpace& exec) {
  const std::size_t count = tokens_.size();
  std::fill_n(first_host_.data(), count + 1, 0);
  for (const std::int32_t slot : slots_) ++first_host_(slot + 1);
  for (std::size_t u = 0; u < count; ++u) {
    token_host_(u) = tokens_[u];
    first_host_(u + 1) += first_host_(u);
  }
  // A counting sort that uses first(u) as the cursor of token u and shifts it back afterwards.
  for (std::size_t i = 0; i < slots_.size(); ++i) row_host_(first_host_(slots_[i])++) = rows_[i];
  for (std::size_t u = count; u > 0; --u) first_host_(u) = first_host_(u - 1);
  first_host_(0) = 0;
  Kokkos::deep_copy(exec, token_U_, token_host_);
  Kokkos::deep_copy(exec, first_of_U_, first_host_);
  Kokkos::deep_copy(exec, row_of_, row_host_);
}

}  // namespace deltapipe
