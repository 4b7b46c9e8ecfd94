// SPDX-License-Identifier: BSD-3-Clause
// A stage's parameters in one flat allocation each for values, gradients and AdamW's moments, so
// that a block's gradients are one range to all-reduce and a tensor is a pointer into it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/memory_ledger.hpp"
#include "core/base/state.hpp"
#include "core/base/views.hpp"

namespace deltapipe {

struct ParameterInfo {
  std::string name;                  ///< as in the Hugging Face file, without a model prefix
  std::vector<std::uint64_t> shape;  ///< row-major
  std::size_t offset = 0;            ///< into the arena, elements
  std::size_t size = 0;              ///< elements
  bool decay = false;                ///< weight decay applies
  int bucket = 0;                    ///< gradients of a bucket become final together
};

/// Elements [begin, end) of the arena.
struct BucketRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

template <class Real>
class ParameterArena {
 public:
  /// Declares a tensor; buckets must come in ascending order. Returns its index.
  int add(const std::string& name, const std::vector<std::uint64_t>& shape, bool decay, int bucket);
  /// Takes memory, zero-filled: values, with `training` also gradients and moments.
  void allocate(bool training, const ViewAllocator& memory = {});

  const std::vector<ParameterInfo>& info() const { return info_; }
  const std::vector<BucketRange>& buckets() const { return buckets_; }
  std::size_t size() const { return size_; }  ///< elements of the arena, padding included

  VectorRef<Real> value(int index) const { return part(values_, index); }
  VectorRef<Real> gradient(int index) const { return part(gradients_, index); }
  VectorRef<Real> moment1(int index) const { return part(moments1_, index); }
  VectorRef<Real> moment2(int index) const { return part(moments2_, index); }
  MatrixRef<Real> matrix(int index) const { return as_matrix(values_, index); }
  MatrixRef<Real> gradient_matrix(int index) const { return as_matrix(gradients_, index); }
  /// Shares the ownership of the gradients' memory.
  Vector<Real> bucket_gradient(int bucket) const {
    const BucketRange& range = buckets_[bucket];
    return Kokkos::subview(gradients_, Kokkos::make_pair(range.begin, range.end));
  }
  const Vector<Real>& all_gradients() const { return gradients_; }

 private:
  VectorRef<Real> part(const Vector<Real>& all, int index) const {
    return VectorRef<Real>(all.data() + info_[index].offset, info_[index].size);
  }
  MatrixRef<Real> as_matrix(const Vector<Real>& all, int index) const {
    const ParameterInfo& p = info_[index];
    return MatrixRef<Real>(all.data() + p.offset, p.shape[0], p.size / p.shape[0]);
  }

  std::vector<ParameterInfo> info_;
  std::vector<BucketRange> buckets_;
  std::size_t size_ = 0;
  Vector<Real> values_, gradients_, moments1_, moments2_;
};

/// The values, tensor by tensor under their names.
template <class Real>
StatePart parameter_state(const ExecSpace& exec, const ParameterArena<Real>& parameters);
/// AdamW's moments: NAME.moment1 and NAME.moment2 of every tensor.
template <class Real>
StatePart moment_state(const ExecSpace& exec, const ParameterArena<Real>& parameters);

}  // namespace deltapipe
