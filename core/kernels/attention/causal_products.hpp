// SPDX-License-Identifier: BSD-3-Clause
// The products of one head's causal attention on a processor, in tiles of registers. Query i of a
// block that starts at `first` sees the first + i + 1 keys up to its own. Keys after these are not
// computed or read, except within the same tile.
#pragma once

#include <cstddef>

namespace deltapipe::causal {

/// True if these products are faster than a BLAS: they are compiled, with optimisation, for vectors
/// with fused multiply-adds. Otherwise a BLAS is faster, because it chooses its instructions when
/// it runs.
#if defined(__OPTIMIZE__) && ((defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__))
inline constexpr bool kIsFast = true;
#else
inline constexpr bool kIsFast = false;
#endif

/// A matrix, given by its first element and the distance between rows in elements.
template <class Real>
struct Rows {
  Real* data;
  std::size_t stride;

  Real* at(int row) const { return data + row * stride; }
};

/// A block of queries.
struct Queries {
  int first, count;
};

/// Returns the number of elements that pack() writes.
std::size_t packed_elements(int keys, int width);

/// Transposes keys or values of a head for scores().
template <class Real>
void pack(int keys, int width, const Rows<const Real>& k_KD, Real* packed);

/// scores_QK = x_QD k_KD^T with packed k.
template <class Real>
void scores(const Queries& queries, int width, const Rows<const Real>& x_QD, const Real* packed,
            const Rows<Real>& scores_QK);

/// y_QD = p_QK x_KD. Here and below, p must be zero where a query does not see a key, and x must be
/// finite, because some unseen elements are multiplied as well.
template <class Real>
void weigh(const Queries& queries, int width, const Rows<const Real>& p_QK,
           const Rows<const Real>& x_KD, const Rows<Real>& y_QD);

/// y_KD = p_QK^T x_QD, added to y_KD with `accumulate`.
template <class Real>
void weigh_transposed(const Queries& queries, int width, const Rows<const Real>& p_QK,
                      const Rows<const Real>& x_QD, bool accumulate, const Rows<Real>& y_KD);

}  // namespace deltapipe::causal
