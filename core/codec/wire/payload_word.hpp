// SPDX-License-Identifier: BSD-3-Clause
// The word at a payload's end that says how what stands before it is meant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/kernel.hpp"
#include "core/base/parallel/views.hpp"
#include "core/codec/rows/row_codec.hpp"

namespace deltapipe::codec {

struct WriteWord {
  std::uint32_t* to;
  std::uint32_t word;
  KOKKOS_INLINE_FUNCTION void operator()(int) const { *to = word; }
};

class PayloadWord {
 public:
  static constexpr std::size_t kBytes = sizeof(std::uint32_t);

  PayloadWord() : host_(uninitialized("deltapipe::PayloadWord::host"), 1) {}

  /// At a multiple of 4 bytes; returns the payload's length.
  static std::size_t write(const ExecSpace& exec, std::uint8_t* payload, std::size_t end,
                           std::uint32_t word) {
    for_range("deltapipe::PayloadWord::write", exec, 1,
              WriteWord{reinterpret_cast<std::uint32_t*>(payload + end), word});
    return end + kBytes;
  }

  /// Reads the word of a payload that ends after `bytes` bytes. Refuses a missing word and one
  /// outside 0 ... most; `what` it is about: "prediction". Waits.
  std::uint32_t read(const ExecSpace& exec, const Crossing& crossing, const std::uint8_t* payload,
                     std::size_t bytes, std::uint32_t most, const char* what) {
    if (bytes < kBytes || bytes % kBytes != 0)
      RowCodec::refuse(crossing, std::string("does not end with a word on its ") + what,
                       std::to_string(bytes) + " bytes");
    const auto* word = reinterpret_cast<const std::uint32_t*>(payload + bytes - kBytes);
    Kokkos::deep_copy(exec, host_, VectorRef<const std::uint32_t>(word, 1));
    exec.fence();
    if (host_(0) > most)
      RowCodec::refuse(crossing, std::string("ends with an unknown word on its ") + what,
                       std::to_string(host_(0)));
    return host_(0);
  }

 private:
  HostVector<std::uint32_t> host_;
};

}  // namespace deltapipe::codec
