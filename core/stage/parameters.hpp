// SPDX-License-Identifier: BSD-3-Clause
// A stage's parameters in one flat allocation each for values, gradients and AdamW's moments, so
// that a block's gradients are one range to all-reduce and a tensor is a pointer into it. Frozen
// parameters have values only. Where products are of bf16, the values of matrices that take part in
// them are held in halves.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/numeric/halves.hpp"
#include "core/base/numeric/precision.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"

namespace deltapipe {

struct ParameterInfo {
  std::string name;                  ///< as in the Hugging Face file, without a model prefix
  std::vector<std::uint64_t> shape;  ///< row-major
  std::size_t size = 0;              ///< elements
  bool decay = false;                ///< weight decay applies
  int bucket = 0;                    ///< gradients of a bucket become final together
  bool frozen = false;               ///< not trained: no gradient, no moments
  std::size_t gradient_offset = 0;   ///< into gradients and moments, elements; unless frozen
  bool copied = false;               ///< frozen, to be read here: another stage's parameter
  bool operand = false;              ///< a matrix that products take as it is
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
  /// Declares that all uses of these matrices but table() are products of matrices.
  void set_operands(const std::vector<int>& matrices);
  /// Takes memory, zero-filled: values, with `training` also gradients and moments of what is
  /// trained. With products in bf16 their operands among the
  /// parameters of float are held in halves.
  void allocate(bool training, ProductPrecision products = ProductPrecision::fp32,
                const ViewAllocator& memory = {});
  ProductPrecision products() const { return products_; }

  const std::vector<ParameterInfo>& info() const { return info_; }
  const std::vector<BucketRange>& buckets() const { return buckets_; }
  /// Elements of the gradients, padding included; 0: all parameters here are frozen.
  std::size_t gradient_size() const { return gradient_size_; }
  const std::set<std::string>& frozen() const { return frozen_; }  ///< of the whole model

  /// Not of what is held in halves.
  VectorRef<Real> value(int index) const {
    DELTAPIPE_ASSERT(!place_.empty() && !in_halves(index), "values of " + info_[index].name);
    return VectorRef<Real>(values_.data() + place_[index], info_[index].size);
  }
  MatrixRef<Real> matrix(int index) const { return as_matrix(value(index).data(), info_[index]); }
  bool in_halves(int index) const {
    return std::is_same_v<Real, float> && products_ == ProductPrecision::bf16 &&
           info_[index].operand;
  }
  /// Halves of a parameter that is held so.
  VectorHalves halves(int index) const {
    DELTAPIPE_ASSERT(!place_.empty() && in_halves(index), "halves of " + info_[index].name);
    return {VectorRef<Bf16>(rounded_.data() + place_[index], info_[index].size),
            VectorRef<std::uint16_t>(lower_.data() + place_[index], info_[index].size)};
  }
  MatrixRef<const Bf16> rounded_matrix(int index) const {
    return as_matrix<const Bf16>(halves(index).rounded.data(), info_[index]);
  }
  /// A matrix, however it is held.
  RowTable<Real> table(int index) const;
  /// All bytes of a parameter's values with their padding, as they lie in memory: one range or two.
  std::vector<VectorRef<const std::uint8_t>> value_bytes(int index) const;

  /// Values [first, first + values.size()) of a parameter, however it is held, to and from host
  /// memory. Complete when they return.
  void copy_out(const ExecSpace& exec, int index, std::size_t first, std::span<Real> values) const;
  void copy_in(const ExecSpace& exec, int index, std::size_t first,
               std::span<const Real> values) const;

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

 private:
  VectorRef<Real> trained_part(const Vector<Real>& all, int index) const {
    const ParameterInfo& p = info_[index];
    if (p.frozen) return {};
    return VectorRef<Real>(all.data() + p.gradient_offset, p.size);
  }
  template <class T>
  static MatrixRef<T> as_matrix(T* values, const ParameterInfo& p) {
    return MatrixRef<T>(values, p.shape[0], p.size / p.shape[0]);
  }

  std::set<std::string> frozen_;
  std::vector<ParameterInfo> info_;
  std::vector<BucketRange> buckets_;
  std::size_t gradient_size_ = 0;
  ProductPrecision products_ = ProductPrecision::fp32;
  std::vector<std::size_t> place_;  ///< of each parameter, elements into values_ or into halves
  Vector<Real> values_, gradients_, moments1_, moments2_;
  Vector<Bf16> rounded_;
  Vector<std::uint16_t> lower_;
};

/// The values, tensor by tensor under their names.
template <class Real>
StatePart parameter_state(const ExecSpace& exec, const ParameterArena<Real>& parameters);
/// AdamW's moments: NAME.moment1 and NAME.moment2 of every tensor that is trained, so that a state
/// of a run that froze others does not fit.
template <class Real>
StatePart moment_state(const ExecSpace& exec, const ParameterArena<Real>& parameters);

}  // namespace deltapipe
