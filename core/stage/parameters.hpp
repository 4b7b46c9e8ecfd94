// SPDX-License-Identifier: BSD-3-Clause
// A stage's parameters in one flat allocation each for values, gradients and AdamW's moments, so
// that a block's gradients are one range to all-reduce and a tensor is a pointer into it. Frozen
// parameters have values only. Where products are of bf16, matrices have rounded values beside
// them.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/memory_ledger.hpp"
#include "core/base/precision.hpp"
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
  bool frozen = false;               ///< not trained: no gradient, no moments
  std::size_t gradient_offset = 0;   ///< into gradients and moments, elements; unless frozen
  bool copied = false;               ///< frozen, to be read here: another stage's parameter
};

/// Elements [begin, end) of the gradients; empty where all of a bucket's parameters are frozen.
struct BucketRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

template <class Real>
class ParameterArena {
 public:
  ParameterArena() = default;
  /// `frozen`: names of the model's parameters that are not trained, those of other stages as well.
  explicit ParameterArena(std::set<std::string> frozen) : frozen_(std::move(frozen)) {}

  /// Declares a tensor; buckets must come in ascending order. Returns its index.
  int add(const std::string& name, const std::vector<std::uint64_t>& shape, bool decay, int bucket);
  /// The same of a frozen tensor that another stage has: it is loaded, initialised and checkpointed
  /// here as well, but saved and counted as one of the model's there.
  int add_copy(const std::string& name, const std::vector<std::uint64_t>& shape, int bucket);
  /// Takes memory, zero-filled: values, with `training` also gradients and moments of what is
  /// trained.
  void allocate(bool training, const ViewAllocator& memory = {});

  const std::vector<ParameterInfo>& info() const { return info_; }
  const std::vector<BucketRange>& buckets() const { return buckets_; }
  std::size_t size() const { return size_; }  ///< elements of the values, padding included
  /// Elements of the gradients, padding included; 0: all parameters here are frozen.
  std::size_t gradient_size() const { return gradient_size_; }
  const std::set<std::string>& frozen() const { return frozen_; }  ///< of the whole model

  VectorRef<Real> value(int index) const {
    return VectorRef<Real>(values_.data() + info_[index].offset, info_[index].size);
  }
  MatrixRef<Real> matrix(int index) const {
    return as_matrix(values_.data() + info_[index].offset, info_[index]);
  }
  // Without elements for a frozen parameter.
  VectorRef<Real> gradient(int index) const { return trained_part(gradients_, index); }
  VectorRef<Real> moment1(int index) const { return trained_part(moments1_, index); }
  VectorRef<Real> moment2(int index) const { return trained_part(moments2_, index); }
  MatrixRef<Real> gradient_matrix(int index) const {
    const ParameterInfo& p = info_[index];
    if (p.frozen) return {};
    return as_matrix(gradients_.data() + p.gradient_offset, p);
  }
  /// Shares the ownership of the gradients' memory.
  Vector<Real> bucket_gradient(int bucket) const {
    const BucketRange& range = buckets_[bucket];
    return Kokkos::subview(gradients_, Kokkos::make_pair(range.begin, range.end));
  }
  const Vector<Real>& all_gradients() const { return gradients_; }

  /// Takes memory for these matrices rounded to bf16.
  void keep_rounded(const std::vector<int>& matrices, const ViewAllocator& memory = {});
  /// Whoever writes values says so here, but for an optimizer that writes rounded() as well.
  void values_changed() const { rounded_is_current_ = false; }
  /// Rounds again what keep_rounded() asked for, if values have changed.
  void round_values(const ExecSpace& exec);
  /// Without elements for what keep_rounded() did not ask for.
  VectorRef<Bf16> rounded(int index) const {
    if (first_rounded_.empty() || first_rounded_[index] == kNotRounded) return {};
    return VectorRef<Bf16>(rounded_.data() + first_rounded_[index], info_[index].size);
  }
  MatrixRef<Bf16> rounded_matrix(int index) const {
    const VectorRef<Bf16> values = rounded(index);
    if (values.extent(0) == 0) return {};
    const std::size_t rows = info_[index].shape[0];
    return MatrixRef<Bf16>(values.data(), rows, values.extent(0) / rows);
  }

 private:
  VectorRef<Real> trained_part(const Vector<Real>& all, int index) const {
    const ParameterInfo& p = info_[index];
    if (p.frozen) return {};
    return VectorRef<Real>(all.data() + p.gradient_offset, p.size);
  }
  static MatrixRef<Real> as_matrix(Real* values, const ParameterInfo& p) {
    return MatrixRef<Real>(values, p.shape[0], p.size / p.shape[0]);
  }

  std::set<std::string> frozen_;
  std::vector<ParameterInfo> info_;
  std::vector<BucketRange> buckets_;
  std::size_t size_ = 0, gradient_size_ = 0;
  Vector<Real> values_, gradients_, moments1_, moments2_;

  static constexpr std::size_t kNotRounded = ~std::size_t{0};
  std::vector<std::size_t> first_rounded_;  ///< of each parameter, into rounded_
  Vector<Bf16> rounded_;
  mutable bool rounded_is_current_ = false;  // shallow, as value() is
};

/// The values, tensor by tensor under their names.
template <class Real>
StatePart parameter_state(const ExecSpace& exec, const ParameterArena<Real>& parameters);
/// AdamW's moments: NAME.moment1 and NAME.moment2 of every tensor that is trained, so that a state
/// of a run that froze others does not fit.
template <class Real>
StatePart moment_state(const ExecSpace& exec, const ParameterArena<Real>& parameters);

}  // namespace deltapipe
