// SPDX-License-Identifier: BSD-3-Clause
// Memory of error feedback: what the encoding of a part left out is added to the values of the next
// one in the same place (1-bit SGD; both legs of an exchange, as in arXiv 2102.02888).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/replicas/replica_sum.hpp"
#include "comm/replicas/sum_chunks.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"

namespace deltapipe {

class PartErrors {
 public:
  /// Errors from some place on, for kernels. Those of values that share a scale are fp16 in units
  /// of that scale.
  struct Place {
    std::uint16_t* error;
    // One entry for each kSumGroup of errors. If more share a scale, their first one counts.
    std::uint16_t* scale;  ///< as it travels
    float* squares;        ///< sums of error^2 and value^2 at the last encoding

    /// `elements` is a multiple of kSumGroup.
    KOKKOS_INLINE_FUNCTION Place after(std::size_t elements) const {
      const std::size_t groups = elements / kSumGroup;
      return {error + elements, scale + groups, squares + 2 * groups};
    }
  };

  PartErrors(std::size_t elements, const ViewAllocator& memory);

  /// Returns the errors from this one on, a multiple of kSumGroup.
  Place place(std::size_t first) const {
    return Place{error_.data(), scale_.data(), squares_.data()}.after(first);
  }

  std::vector<StatePart> state(const ExecSpace& exec, const std::string& name);
  /// Returns the errors of the last encodings of all places. Waits for exec.
  SumStatistics statistics(const ExecSpace& exec) const;
  void reset(const ExecSpace& exec);

 private:
  Vector<std::uint16_t> error_;
  Vector<std::uint16_t> scale_;
  Matrix<float> squares_;  ///< [groups, 2]
};

}  // namespace deltapipe
