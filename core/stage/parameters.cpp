// SPDX-License-Identifier: BSD-3-Clause
#include "core/stage/parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "core/base/pieces.hpp"
#include "core/base/state/state_views.hpp"
#include "core/kernels/halves.hpp"

namespace deltapipe {

namespace {

using namespace halves_transfer;

/// Rounds up the number of elements so that each tensor starts on a cache line.
template <class T>
std::size_t aligned(std::size_t elements) {
  constexpr std::size_t kLine = 64 / sizeof(T);
  return (elements + kLine - 1) / kLine * kLine;
}

}  // namespace

template <class Real>
int ParameterArena<Real>::add(const std::string& name, const std::vector<std::uint64_t>& shape,
                              bool decay, int bucket) {
  return add(name, shape, decay, bucket, frozen_.contains(name));
}

template <class Real>
int ParameterArena<Real>::add(const std::string& name, const std::vector<std::uint64_t>& shape,
                              bool decay, int bucket, bool frozen) {
  std::size_t size = 1;
  for (const std::uint64_t extent : shape) size *= extent;
  if (bucket == static_cast<int>(buckets_.size()))
    buckets_.push_back({gradient_size_, gradient_size_});
  DELTAPIPE_ASSERT(bucket + 1 == static_cast<int>(buckets_.size()),
                   "buckets out of order: " + name);
  info_.push_back({name, shape, size, decay, bucket, frozen, gradient_size_});
  if (!frozen) gradient_size_ += aligned<Real>(size);
  buckets_.back().end = gradient_size_;
  return static_cast<int>(info_.size()) - 1;
}

template <class Real>
int ParameterArena<Real>::add_copy(const std::string& name, const std::vector<std::uint64_t>& shape,
                                   int bucket) {
  DELTAPIPE_ASSERT(frozen_.contains(name), "a copy of what changes: " + name);
  return add_renewed_copy(name, shape, bucket);
}

template <class Real>
int ParameterArena<Real>::add_renewed_copy(const std::string& name,
                                           const std::vector<std::uint64_t>& shape, int bucket) {
  const int index = add(name, shape, false, bucket, true);
  info_[index].copied = true;
  return index;
}

template <class Real>
int ParameterArena<Real>::add_statistic(const std::string& name, std::uint64_t size, int bucket) {
  const int index = add(name, {size}, false, bucket, true);
  info_[index].statistic = true;
  return index;
}

template <class Real>
void ParameterArena<Real>::set_operands(const std::vector<int>& matrices) {
  for (const int index : matrices) info_[index].operand = true;
}

template <class Real>
void ParameterArena<Real>::set_moments(int moments) {
  DELTAPIPE_ASSERT(place_.empty() && (moments == 1 || moments == 2),
                   fmt::format("{} moments", moments));
  moments_ = moments;
}

template <class Real>
void ParameterArena<Real>::allocate(bool training, ProductPrecision products,
                                    const ViewAllocator& memory) {
  DELTAPIPE_ASSERT(place_.empty(), "memory for parameters twice");
  products_ = products;
  std::size_t size = 0, halves_size = 0;
  place_.resize(info_.size());
  const auto lay_out = [&](bool statistics) {
    for (std::size_t i = 0; i < info_.size(); ++i) {
      if (info_[i].statistic != statistics) continue;
      const bool halved = in_halves(static_cast<int>(i));
      std::size_t& end = halved ? halves_size : size;
      place_[i] = end;
      end += halved ? aligned<Bf16>(info_[i].size) : aligned<Real>(info_[i].size);
    }
  };
  lay_out(false);
  const std::size_t statistics_begin = size;
  lay_out(true);
  values_ = memory.zeroed<Vector<Real>>(MemoryUse::weights, "deltapipe::Parameters::values", size);
  rounded_ = memory.zeroed<Vector<Bf16>>(MemoryUse::weights, "deltapipe::Parameters::rounded",
                                         halves_size);
  lower_ = memory.zeroed<Vector<std::uint16_t>>(MemoryUse::weights, "deltapipe::Parameters::lower",
                                                halves_size);
  if (!training) return;
  const auto take = [&](const char* label) {
    return memory.zeroed<Vector<Real>>(MemoryUse::optimizer, label, gradient_size_);
  };
  gradients_ = take("deltapipe::Parameters::gradients");
  moments1_ = take("deltapipe::Parameters::moments1");
  if (!memory.only_counts())
    statistics_ = Kokkos::subview(values_, Kokkos::make_pair(statistics_begin, size));
  kept_statistics_ = memory.uninitialized<Vector<Real>>(
      MemoryUse::weights, "deltapipe::Parameters::keptStatistics", size - statistics_begin);
  if (moments_ == 2) moments2_ = take("deltapipe::Parameters::moments2");
}

template <class Real>
std::size_t ParameterArena<Real>::statistic_size() const {
  std::size_t size = 0;
  for (const ParameterInfo& p : info_)
    if (p.statistic) size += aligned<Real>(p.size);
  return size;
}

template <class Real>
void ParameterArena<Real>::keep_statistics(const ExecSpace& exec) const {
  if (statistics_.extent(0) > 0) Kokkos::deep_copy(exec, kept_statistics_, statistics_);
}

template <class Real>
void ParameterArena<Real>::restore_statistics(const ExecSpace& exec) const {
  if (statistics_.extent(0) > 0) Kokkos::deep_copy(exec, statistics_, kept_statistics_);
}

template <class Real>
RowTable<Real> ParameterArena<Real>::table(int index) const {
  if (!in_halves(index)) return matrix(index);
  return {rounded_matrix(index),
          as_matrix<const std::uint16_t>(halves(index).lower.data(), info_[index])};
}

template <class Real>
std::vector<VectorRef<const std::uint8_t>> ParameterArena<Real>::value_bytes(int index) const {
  const auto bytes = [&]<class T>(const VectorRef<T>& values) {
    return VectorRef<const std::uint8_t>(reinterpret_cast<const std::uint8_t*>(values.data()),
                                         aligned<T>(values.extent(0)) * sizeof(T));
  };
  if (!in_halves(index)) return {bytes(value(index))};
  return {bytes(halves(index).rounded), bytes(halves(index).lower)};
}

template <class Real>
void ParameterArena<Real>::copy_out(const ExecSpace& exec, int index, std::size_t first,
                                    std::span<Real> values) const {
  DELTAPIPE_ASSERT(first + values.size() <= info_[index].size, "behind " + info_[index].name);
  if constexpr (std::is_same_v<Real, float>) {
    if (in_halves(index))
      return copy_out_of_halves(exec, part_of(halves(index), first, values.size()), values,
                                staging_for(values.size()));
  }
  Kokkos::deep_copy(exec, HostRef<Real>(values.data(), values.size()),
                    VectorRef<const Real>(value(index).data() + first, values.size()));
  exec.fence();
}

template <class Real>
void ParameterArena<Real>::copy_in(const ExecSpace& exec, int index, std::size_t first,
                                   std::span<const Real> values) const {
  DELTAPIPE_ASSERT(first + values.size() <= info_[index].size, "behind " + info_[index].name);
  if constexpr (std::is_same_v<Real, float>) {
    if (in_halves(index))
      return copy_into_halves(exec, values, part_of(halves(index), first, values.size()),
                              staging_for(values.size()));
  }
  Kokkos::deep_copy(exec, VectorRef<Real>(value(index).data() + first, values.size()),
                    HostRef<const Real>(values.data(), values.size()));
  exec.fence();
}

namespace {

/// Calls transfer(first, values in host memory) for each piece of a parameter in order.
template <class Real, class Transfer>
void for_value_pieces(const ParameterInfo& p, const Transfer& transfer) {
  const HostVector<Real> piece(uninitialized("deltapipe::Parameters::piece"),
                               std::min(kPiece, p.size));
  for_pieces(0, p.size, kPiece, [&](std::size_t first, std::size_t count) {
    transfer(first, std::span<Real>(piece.data(), count));
  });
}

}  // namespace

template <class Real>
StatePart parameter_state(const ExecSpace& exec, const ParameterArena<Real>& parameters) {
  const auto write = [=, &parameters](StateWriter& writer) {
    for (std::size_t i = 0; i < parameters.info().size(); ++i) {
      const int index = static_cast<int>(i);
      const ParameterInfo& p = parameters.info()[i];
      // Stages of a rank that have the same parameter, all but one as a copy, write it once.
      if (writer.has_item(p.name)) continue;
      if (!parameters.in_halves(index)) {
        write_view(writer, exec, p.name, parameters.value(index), p.shape);
        continue;
      }
      writer.begin_item({p.name, state_type_of<Real>(), p.shape});
      for_value_pieces<Real>(p, [&](std::size_t first, std::span<Real> values) {
        parameters.copy_out(exec, index, first, values);
        writer.append(values.data(), values.size_bytes());
      });
    }
  };
  const auto read = [=, &parameters](StateReader& reader) {
    for (std::size_t i = 0; i < parameters.info().size(); ++i) {
      const int index = static_cast<int>(i);
      const ParameterInfo& p = parameters.info()[i];
      reader.allow_again(p.name);
      if (!parameters.in_halves(index)) {
        read_view(reader, exec, p.name, parameters.value(index), p.shape);
        continue;
      }
      reader.begin_item({p.name, state_type_of<Real>(), p.shape});
      for_value_pieces<Real>(p, [&](std::size_t first, std::span<Real> values) {
        reader.take(values.data(), values.size_bytes());
        parameters.copy_in(exec, index, first, values);
      });
    }
  };
  return {"parameters", write, read};
}

template <class Real>
StatePart trained_state(const std::string& part, const ExecSpace& exec,
                        const ParameterArena<Real>& parameters,
                        const std::vector<TrainedVector<Real>>& vectors) {
  const auto each = [&parameters, vectors](const auto& use) {
    for (std::size_t i = 0; i < parameters.info().size(); ++i) {
      const ParameterInfo& p = parameters.info()[i];
      if (p.frozen) continue;
      for (const auto& [suffix, values] : vectors)
        use(p.name + suffix, parameters.trained_part(values, static_cast<int>(i)), p.shape);
    }
  };
  return {part,
          [=](StateWriter& writer) {
            each([&](const std::string& item, const auto& values, const auto& shape) {
              write_view(writer, exec, item, values, shape);
            });
          },
          [=](StateReader& reader) {
            each([&](const std::string& item, const auto& values, const auto& shape) {
              read_view(reader, exec, item, values, shape);
            });
          }};
}

template <class Real>
StatePart moment_state(const ExecSpace& exec, const ParameterArena<Real>& parameters) {
  std::vector<TrainedVector<Real>> moments = {{".moment1", parameters.all_moments1()}};
  if (parameters.moments() == 2) moments.push_back({".moment2", parameters.all_moments2()});
  return trained_state("moments", exec, parameters, moments);
}

template class ParameterArena<float>;
template class ParameterArena<double>;
template StatePart parameter_state(const ExecSpace&, const ParameterArena<float>&);
template StatePart parameter_state(const ExecSpace&, const ParameterArena<double>&);
template StatePart trained_state(const std::string&, const ExecSpace&, const ParameterArena<float>&,
                                 const std::vector<TrainedVector<float>>&);
template StatePart trained_state(const std::string&, const ExecSpace&,
                                 const ParameterArena<double>&,
                                 const std::vector<TrainedVector<double>>&);
template StatePart moment_state(const ExecSpace&, const ParameterArena<float>&);
template StatePart moment_state(const ExecSpace&, const ParameterArena<double>&);

}  // namespace deltapipe
