// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/step_samples.hpp"

#include <algorithm>

namespace deltapipe {

namespace {

std::size_t index_of(Field field) {
  return static_cast<std::size_t>(field);
}

}  // namespace

StepSamples::StepSamples(const FieldSizes& sizes, int samples, int micro_batches, bool first,
                         bool last)
    : samples_(samples), first_(first), last_(last) {
  const std::size_t most = first_of(micro_batches);
  id_ = Vector<std::uint64_t>("deltapipe::StepSamples::ids", most);
  length_ = Vector<std::int32_t>("deltapipe::StepSamples::lengths", most);
  id_host_ = Kokkos::create_mirror_view(id_);
  length_host_ = Kokkos::create_mirror_view(length_);
  if (!first && !last) return;
  sizes_ = sizes;
  for_each_field(sizes_, [&](Field field) {
    const std::size_t elements = most * static_cast<std::size_t>(sizes_[field]);
    if (kind_of(field).is_integer) {
      Integers& of = integers_[index_of(field)];
      of.values = Vector<std::int32_t>("deltapipe::StepSamples::integers", elements);
      of.host = Kokkos::create_mirror_view(of.values);
    } else {
      Reals& of = reals_[index_of(field)];
      of.values = Vector<float>("deltapipe::StepSamples::reals", elements);
      of.host = Kokkos::create_mirror_view(of.values);
    }
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
      if (only && field != *only) return;
      const auto elements = static_cast<std::size_t>(sizes_[field]);
      const std::size_t begin = (first_of(micro_batch) + b) * elements;
      if (kind_of(field).is_integer)
        spans.set(field, std::span(integers_[index_of(field)].host.data() + begin, elements));
      else
        spans.set(field, std::span(reals_[index_of(field)].host.data() + begin, elements));
    });
    data.read(ids[b], visit, spans);
  }
}

void StepSamples::copy(const ExecSpace& exec) {
  Kokkos::deep_copy(exec, id_, id_host_);
  Kokkos::deep_copy(exec, length_, length_host_);
  for_each_field(sizes_, [&](Field field) {
    if (!has(field)) return;
    const Integers& integers = integers_[index_of(field)];
    const Reals& reals = reals_[index_of(field)];
    if (kind_of(field).is_integer)
      Kokkos::deep_copy(exec, integers.values, integers.host);
    else
      Kokkos::deep_copy(exec, reals.values, reals.host);
  });
}

std::span<std::int32_t> StepSamples::integers(Field field, int micro_batch, std::size_t samples) {
  const auto elements = static_cast<std::size_t>(sizes_[field]);
  return {integers_[index_of(field)].host.data() + first_of(micro_batch) * elements,
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
    if (kind_of(field).is_integer)
      batch.fields.set(field, VectorRef<const std::int32_t>(
                                  integers_[index_of(field)].values.data() + first * elements,
                                  samples * elements));
    else
      batch.fields.set(
          field, VectorRef<const float>(reals_[index_of(field)].values.data() + first * elements,
                                        samples * elements));
  });
}

}  // namespace deltapipe
