// SPDX-License-Identifier: BSD-3-Clause
// Samples of a step on one stage, of any kind: read on the host, used by kernels.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"
#include "core/base/sample_fields.hpp"
#include "core/data/dataset.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Ids, lengths and fields of at most M micro-batches of B samples. The first stage gives kernels
/// the inputs, the last one the targets. Both have all integer fields on the host; real ones, which
/// may be large, are only where kernels read them. Stages between have no fields.
class StepSamples {
 public:
  StepSamples() = default;
  StepSamples(const FieldSizes& sizes, int samples, int micro_batches, bool first, bool last,
              const ViewAllocator& memory = {});
  /// Returns the memory that the constructor allocates.
  static MemoryLedger memory(const FieldSizes& sizes, int samples, int micro_batches, bool first,
                             bool last) {
    MemoryLedger ledger;
    const StepSamples counted(sizes, samples, micro_batches, first, last, ViewAllocator(ledger));
    return ledger;
  }

  /// Sets ids and lengths of a micro-batch.
  void set(int micro_batch, std::span<const std::uint64_t> ids, std::span<const int> lengths);
  /// Reads the fields of a micro-batch, or `only` one of them.
  void read(const Dataset& data, int micro_batch, std::span<const std::uint64_t> ids,
            const SampleVisit& visit, std::optional<Field> only = {});
  /// Shortens the first `count` samples of a micro-batch, which was read, from `all_tokens` to
  /// `tokens` tokens: fields with an element for each token keep the first ones of each sample.
  void shorten(int micro_batch, std::size_t count, int all_tokens, int tokens);
  /// Copies everything to where kernels run.
  void copy(const ExecSpace& exec);

  /// Returns the elements of a micro-batch's first `samples` samples on the host. After shorten(),
  /// those at the end are unused.
  std::span<std::int32_t> integers(Field field, int micro_batch, std::size_t samples);
  std::span<const int> lengths(int micro_batch, std::size_t samples) const {
    return std::span(length_host_.data(), length_host_.extent(0))
        .subspan(first_of(micro_batch), samples);
  }
  /// Fills in what kernels see of a micro-batch with batch.samples samples.
  void fill(MicroBatch& batch) const;

 private:
  template <class T>
  struct Elements {
    Vector<T> values;  ///< where kernels run; only for fields that they read on this stage
    MirrorVector<T> host;
  };
  std::size_t first_of(int micro_batch) const {
    return static_cast<std::size_t>(micro_batch) * samples_;
  }
  bool has(Field field) const { return kind_of(field).is_input ? first_ : last_; }
  bool on_host(Field field) const { return has(field) || kind_of(field).is_integer; }
  /// Calls f(elements) with the Elements of a field.
  template <class Self, class F>
  static void with_elements(Self& self, Field field, const F& f) {
    const auto i = static_cast<std::size_t>(field);
    if (kind_of(field).is_integer)
      f(self.integers_[i]);
    else
      f(self.reals_[i]);
  }

  FieldSizes sizes_;
  int samples_ = 1;  ///< B
  bool first_ = false, last_ = false;
  Vector<std::uint64_t> id_;     ///< [M*B]
  Vector<std::int32_t> length_;  ///< [M*B]
  MirrorVector<std::uint64_t> id_host_;
  MirrorVector<std::int32_t> length_host_;
  std::array<Elements<std::int32_t>, kFields> integers_;  ///< [M*B*elements]
  std::array<Elements<float>, kFields> reals_;
};

}  // namespace deltapipe
