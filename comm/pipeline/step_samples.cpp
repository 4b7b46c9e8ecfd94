// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/step_samples.hpp"

#include <algorithm>

namespace deltapipe {

namespace {

/// Allocates `count` elements where kernels run, and on the host if that is elsewhere.
template <class T>
void allocate(const ViewAllocator& memory, const char* label, std::size_t count, Vector<T>& values,
              MirrorVector<T>& host) {
  values = memory.zeroed<Vector<T>>(MemoryUse::workspace, label, count);
  if constexpr (kHostExecution)
    host = values;
  else
    host = memory.zeroed<MirrorVector<T>>(MemoryUse::workspace, label, count);
}

}  // namespace

StepSamples::StepSamples(const FieldSizes& sizes, int samples, int micro_batches, bool first,
                         bool last, const ViewAllocator& memory)
    : samples_(samples), first_(first), last_(last) {
  const std::size_t most = first_of(micro_batches);
  allocate(memory, "deltapipe::StepSamples::ids", most, id_, id_host_);
  allocate(memory, "deltapipe::StepSamples::lengths", most, length_, length_host_);
  if (!first && !last) return;
  sizes_ = sizes;
  for_each_field(sizes_, [&](Field field) {
    const std::size_t count = most * static_cast<std::size_t>(sizes_[field]);
    with_elements(*this, field, [&]<class T>(Elements<T>& of) {
      if (has(field))
        allocate(memory, "deltapipe::StepSamples::values", count, of.values, of.host);
      else if (on_host(field))
        of.host = memory.zeroed<MirrorVector<T>>(MemoryUse::workspace,
                                                 "deltapipe::StepSamples::host", count);
    });
  });
}

void StepSamples::set(int micro_batch, std::span<const std::uint64_t> ids,
                      std::span<const int> lengths) {
  const std::size_t first = first_of(micro_batch);
  std::copy(ids.begin(), ids.end(), id_host_.data() + first);
  std::copy(lengths.begin(), lengths.end(), length_host_.data() + first);
}

void StepSamples::read(const Dataset& data, int micro_batch, std::span<const std::uint64_t> ids,
                       const SampleVisit& visit, std::optional<Field> only) {
  if (!first_ && !last_) return;
  for (std::size_t b = 0; b < ids.size(); ++b) {
    SampleSpans spans;
    for_each_field(sizes_, [&](Field field) {
      if ((only && field != *only) || !on_host(field)) return;
      const auto elements = static_cast<std::size_t>(sizes_[field]);
      const std::size_t begin = (first_of(micro_batch) + b) * elements;
      with_elements(*this, field, [&](const auto& of) {
        spans.set(field, std::span(of.host.data() + begin, elements));
      });
    });
    data.read(ids[b], visit, spans);
  }
}

void StepSamples::shorten(int micro_batch, std::size_t count, int all_tokens, int tokens) {
  for_each_field(sizes_, [&](Field field) {
    if (!kind_of(field).is_integer || !on_host(field) || sizes_[field] != all_tokens) return;
    const std::span<std::int32_t> all = integers(field, micro_batch, count);
    for (std::size_t b = 1; b < count; ++b)
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(b * all_tokens), tokens,
                  all.begin() + static_cast<std::ptrdiff_t>(b * tokens));
  });
}

void StepSamples::copy(const ExecSpace& exec) {
  Kokkos::deep_copy(exec, id_, id_host_);
  Kokkos::deep_copy(exec, length_, length_host_);
  for_each_field(sizes_, [&](Field field) {
    if (!has(field)) return;
    with_elements(*this, field,
                  [&](const auto& of) { Kokkos::deep_copy(exec, of.values, of.host); });
  });
}

std::span<std::int32_t> StepSamples::integers(Field field, int micro_batch, std::size_t samples) {
  const auto elements = static_cast<std::size_t>(sizes_[field]);
  return {integers_[static_cast<std::size_t>(field)].host.data() + first_of(micro_batch) * elements,
          samples * elements};
}

void StepSamples::fill(MicroBatch& batch) const {
  const std::size_t first = first_of(batch.index);
  const auto samples = static_cast<std::size_t>(batch.samples);
  batch.sample_id_B = VectorRef<const std::uint64_t>(id_.data() + first, samples);
  batch.length_B = VectorRef<const std::int32_t>(length_.data() + first, samples);
  for_each_field(sizes_, [&](Field field) {
    if (!has(field)) return;
    const auto elements = static_cast<std::size_t>(sizes_[field]);
    with_elements(*this, field, [&]<class T>(const Elements<T>& of) {
      batch.fields.set(field,
                       VectorRef<const T>(of.values.data() + first * elements, samples * elements));
    });
  });
}

}  // namespace deltapipe
