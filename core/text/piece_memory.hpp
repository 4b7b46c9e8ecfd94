// SPDX-License-Identifier: BSD-3-Clause
// Ids of short pieces of text that were encoded before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace deltapipe {

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const;
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

/// Longest word that is remembered, in bytes: longer ones are rare.
inline constexpr std::size_t kLongestRememberedWord = 48;

/// Ids of short pieces that an encoder has seen, so that it does not encode them again.
class PieceMemory {
 public:
  /// Appends the ids of `piece`, if they are known.
  bool recall(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void remember(std::string_view piece, std::span<const std::int32_t> ids);

 private:
  struct Place {
    std::uint32_t first;  ///< index in ids_
    std::uint32_t count;
  };
  StringMap<Place> places_;
  std::vector<std::int32_t> ids_;
};

/// Memories of the threads that encode at the same time.
class PieceMemories {
 public:
  /// A memory that no other thread uses; it is returned to the pool at the end of the scope.
  class Loan {
   public:
    explicit Loan(PieceMemories& pool) : pool_(pool), memory_(pool.take()) {}
    ~Loan() { pool_.put_back(std::move(memory_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    PieceMemory& operator*() const { return *memory_; }

   private:
    PieceMemories& pool_;
    std::unique_ptr<PieceMemory> memory_;
  };

 private:
  std::unique_ptr<PieceMemory> take();
  void put_back(std::unique_ptr<PieceMemory> memory);

  std::mutex mutex_;
  std::vector<std::unique_ptr<PieceMemory>> free_;
};

}  // namespace deltapipe
