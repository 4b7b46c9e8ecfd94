// SPDX-License-Identifier: BSD-3-Clause
// A stage's parameters, with one flat allocation each for values, gradients and moments. A
// block's gradients are thus one range to all-reduce, and a tensor is a pointer into it. Frozen
// parameters have only values. With products in bf16, the values of their matrices are stored as
// halves.
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
  /// Offset in gradients and moments, in elements; not for frozen parameters.
  std::size_t gradient_offset = 0;
  bool copied = false;   ///< a copy for reading, `frozen`: the parameter belongs to another stage
  bool operand = false;  ///< a matrix that products take unchanged
  /// A statistic that forward passes in training update, such as batch norm's. It is `frozen` for
  /// gradients and moments, and is not counted among the parameters of the model.
  bool statistic = false;
};

/// Rows of a parameter that are a tensor of their own in files.
struct SavedRows {
  std::string name;  ///< as in the file, with or without a model prefix
  std::uint64_t first = 0, rows = 0;
};

/// Elements [begin, end) of the gradients; empty if all of a bucket's parameters are frozen.
struct BucketRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

template <class Real>
class ParameterArena {
 public:
  ParameterArena() = default;
  /// `frozen` contains names of all parameters of the model that are not trained, also those of
  /// other stages.
  explicit ParameterArena(std::set<std::string> frozen) : frozen_(std::move(frozen)) {}

  /// Declares a tensor; buckets must come in ascending order. Returns its index.
  int add(const std::string& name, const std::vector<std::uint64_t>& shape, bool decay, int bucket);
  /// Declares a copy of a frozen tensor that belongs to another stage. The copy is loaded,
  /// initialized and checkpointed here as well, but only the other stage saves it and counts it as
  /// part of the model.
  int add_copy(const std::string& name, const std::vector<std::uint64_t>& shape, int bucket);
  /// The same of a tensor that may be trained. Its owner, one of the CommonParameters, renews it.
  int add_renewed_copy(const std::string& name, const std::vector<std::uint64_t>& shape,
                       int bucket);
  /// Declares a vector that forward passes in training update. It is saved, loaded and checkpointed
  /// like parameters.
  int add_statistic(const std::string& name, std::uint64_t size, int bucket);
  /// Declares that all uses of these matrices, except table(), are products of matrices.
  void set_operands(const std::vector<int>& matrices);
  /// Sets how many moments the optimizer keeps of each trained parameter, 1 or 2 (the default).
  /// Must be called before allocate().
  void set_moments(int moments);
  int moments() const { return moments_; }
  /// Allocates memory, filled with zeros: values and, with `training`, gradients and moments of
  /// trained parameters. With products in bf16, their operands among float parameters are stored as
  /// halves.
  void allocate(bool training, ProductPrecision products = ProductPrecision::fp32,
                const ViewAllocator& memory = {});
  ProductPrecision products() const { return products_; }

  const std::vector<ParameterInfo>& info() const { return info_; }
  const std::vector<BucketRange>& buckets() const { return buckets_; }
  /// Returns the elements of the gradients, including padding; 0: all parameters here are frozen.
  std::size_t gradient_size() const { return gradient_size_; }
  const std::set<std::string>& frozen() const { return frozen_; }  ///< names of the whole model

  /// Must not be called for parameters that are stored as halves.
  VectorRef<Real> value(int index) const {
    DELTAPIPE_ASSERT(!place_.empty() && !in_halves(index), "values of " + info_[index].name);
    return VectorRef<Real>(values_.data() + place_[index], info_[index].size);
  }
  MatrixRef<Real> matrix(int index) const { return as_matrix(value(index).data(), info_[index]); }
  bool in_halves(int index) const {
    return std::is_same_v<Real, float> && products_ == ProductPrecision::bf16 &&
           info_[index].operand;
  }
  /// Must only be called for parameters that are stored as halves.
  VectorHalves halves(int index) const {
    DELTAPIPE_ASSERT(!place_.empty() && in_halves(index), "halves of " + info_[index].name);
    return {VectorRef<Bf16>(rounded_.data() + place_[index], info_[index].size),
            VectorRef<std::uint16_t>(lower_.data() + place_[index], info_[index].size)};
  }
  MatrixRef<const Bf16> rounded_matrix(int index) const {
    return as_matrix<const Bf16>(halves(index).rounded.data(), info_[index]);
  }
  /// Returns a matrix in either storage.
  RowTable<Real> table(int index) const;
  /// Returns all bytes of a parameter's values in memory, including padding, as one range or two.
  std::vector<VectorRef<const std::uint8_t>> value_bytes(int index) const;

  /// Copies values [first, first + values.size()) of a parameter, in either storage, to or from
  /// host memory. The copy is complete on return.
  void copy_out(const ExecSpace& exec, int index, std::size_t first, std::span<Real> values) const;
  void copy_in(const ExecSpace& exec, int index, std::size_t first,
               std::span<const Real> values) const;

  /// Returns the elements of all statistics, including padding; also before allocate().
  std::size_t statistic_size() const;
  /// Returns all statistics, as one vector that shares ownership of their memory. Only in training.
  const Vector<Real>& statistics() const { return statistics_; }
  /// Copies all statistics, for restore_statistics() if a step is repeated. Only in training.
  void keep_statistics(const ExecSpace& exec) const;
  void restore_statistics(const ExecSpace& exec) const;

  /// Returns a parameter's part of a vector that is placed as the gradients. The part of a frozen
  /// parameter has no elements; so have its gradient and its moments.
  VectorRef<Real> trained_part(const Vector<Real>& all, int index) const {
    const ParameterInfo& p = info_[index];
    if (p.frozen) return {};
    return VectorRef<Real>(all.data() + p.gradient_offset, p.size);
  }
  VectorRef<Real> gradient(int index) const { return trained_part(gradients_, index); }
  VectorRef<Real> moment1(int index) const { return trained_part(moments1_, index); }
  /// Only of two moments.
  VectorRef<Real> moment2(int index) const { return trained_part(moments2_, index); }
  MatrixRef<Real> gradient_matrix(int index) const {
    const ParameterInfo& p = info_[index];
    if (p.frozen) return {};
    return as_matrix(gradients_.data() + p.gradient_offset, p);
  }
  /// Returns a View that shares ownership of the gradients' memory.
  Vector<Real> bucket_gradient(int bucket) const {
    const BucketRange& range = buckets_[bucket];
    return Kokkos::subview(gradients_, Kokkos::make_pair(range.begin, range.end));
  }
  const Vector<Real>& all_gradients() const { return gradients_; }
  const Vector<Real>& all_moments1() const { return moments1_; }
  const Vector<Real>& all_moments2() const { return moments2_; }

 private:
  int add(const std::string& name, const std::vector<std::uint64_t>& shape, bool decay, int bucket,
          bool frozen);
  template <class T>
  static MatrixRef<T> as_matrix(T* values, const ParameterInfo& p) {
    return MatrixRef<T>(values, p.shape[0], p.size / p.shape[0]);
  }

  std::set<std::string> frozen_;
  std::vector<ParameterInfo> info_;
  std::vector<BucketRange> buckets_;
  std::size_t gradient_size_ = 0;
  ProductPrecision products_ = ProductPrecision::fp32;
  int moments_ = 2;
  /// Offset of each parameter, in elements, in values_ or in halves.
  std::vector<std::size_t> place_;
  Vector<Real> values_, gradients_, moments1_, moments2_;
  Vector<Real> statistics_;  ///< the last part of values_; in training
  Vector<Real> kept_statistics_;
  Vector<Bf16> rounded_;
  Vector<std::uint16_t> lower_;
};

/// Returns the state of the values, tensor by tensor under their names.
template <class Real>
StatePart parameter_state(const ExecSpace& exec, const ParameterArena<Real>& parameters);
/// A vector that is placed as the gradients.
template <class Real>
struct TrainedVector {
  std::string suffix;
  Vector<Real> values;
};
/// Returns the state of such vectors, a part with an item NAME + suffix of every trained tensor.
/// The parameters must outlive it.
template <class Real>
StatePart trained_state(const std::string& part, const ExecSpace& exec,
                        const ParameterArena<Real>& parameters,
                        const std::vector<TrainedVector<Real>>& vectors);
/// Returns the state of the moments: NAME.moment1 and NAME.moment2 of every trained tensor. The
/// state of a run that froze other tensors does not fit.
template <class Real>
StatePart moment_state(const ExecSpace& exec, const ParameterArena<Real>& parameters);

}  // namespace deltapipe
