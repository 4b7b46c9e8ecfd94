// SPDX-License-Identifier: BSD-3-Clause
// A basis of the channels in which a row's changes travel, as it travels itself. With q the codes
// of the row's components in steps of D, the changes are
//
//   r_j = (sum over i of q_i w_ji) (D t_j)
//
// q and w are integers so small that both ends see the same bits (integer_matrix.hpp).
#pragma once

#include "core/codec/prediction/integer_matrix.hpp"

namespace deltapipe::codec {

/// Largest magnitude of q that a byte says.
inline constexpr int kLargestLevel = 128;

/// Largest magnitude of w.
inline int largest_basis_value(int channels) {
  return largest_factor(kLargestLevel, channels);
}

/// C floats t and then w, row j for channel j, the components with the largest squares first.
template <class Bytes>
struct KltBasis : IntegerMatrix<Bytes, 1> {
  KOKKOS_INLINE_FUNCTION auto* scale() const { return this->floats(0); }
};

}  // namespace deltapipe::codec
