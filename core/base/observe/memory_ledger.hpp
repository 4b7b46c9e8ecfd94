// SPDX-License-Identifier: BSD-3-Clause
// Memory that a component needs, counted by the code that allocates it. A ViewAllocator with a
// ledger counts Views instead of allocating them, so that no formula duplicates the code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/base/observe/machine_memory.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// Purpose of memory.
enum class MemoryUse {
  weights,      ///< parameters
  optimizer,    ///< gradients, moments, partial sums of the norm
  activations,  ///< retained for backward passes
  workspace,    ///< memory of the passes: one micro-batch, logits, a step's tokens
  messages,     ///< buffers of channels, codecs' tables
  cache,        ///< memories and errors of samples: records, staging, tables
  embeddings,   ///< exchange of shared embeddings: rows, gradients, memories
  replicas      ///< gradients that are being summed
};
inline constexpr std::array<const char*, 8> kMemoryUseNames = {
    "weights",  "optimizer", "activations", "workspace",
    "messages", "cache",     "embeddings",  "replicas"};
inline constexpr std::size_t kMemoryUses = kMemoryUseNames.size();

/// Bytes by use, in the host's memory and, if kernels run on a device, in the device's.
class MemoryLedger {
 public:
  void add_host(MemoryUse use, std::uint64_t bytes) { host_[index(use)] += bytes; }
  void add_device(MemoryUse use, std::uint64_t bytes) { device_[index(use)] += bytes; }
  /// Adds bytes in the memory space of the View type.
  template <class ViewType>
  void add(MemoryUse use, std::uint64_t bytes) {
    using Space = typename ViewType::memory_space;
    if constexpr (std::is_same_v<Space, Kokkos::HostSpace> || std::is_same_v<Space, StagingSpace>)
      add_host(use, bytes);
    else
      add_device(use, bytes);
  }
  void add(const MemoryLedger& other) {
    for (std::size_t i = 0; i < kMemoryUses; ++i) {
      host_[i] += other.host_[i];
      device_[i] += other.device_[i];
    }
  }

  std::uint64_t host(MemoryUse use) const { return host_[index(use)]; }
  std::uint64_t device(MemoryUse use) const { return device_[index(use)]; }
  std::uint64_t bytes(MemoryUse use) const { return host(use) + device(use); }
  std::uint64_t host_bytes() const { return sum(host_); }
  std::uint64_t device_bytes() const { return sum(device_); }

 private:
  using Bytes = std::array<std::uint64_t, kMemoryUses>;
  static std::size_t index(MemoryUse use) { return static_cast<std::size_t>(use); }
  static std::uint64_t sum(const Bytes& bytes) {
    std::uint64_t total = 0;
    for (const std::uint64_t b : bytes) total += b;
    return total;
  }

  Bytes host_{};
  Bytes device_{};
};

/// Allocates Views, or only counts them.
class ViewAllocator {
 public:
  ViewAllocator() = default;
  /// Counts in `plan`, which must outlive it, and returns empty Views.
  explicit ViewAllocator(MemoryLedger& plan) : plan_(&plan) {}

  bool only_counts() const { return plan_ != nullptr; }

  /// Returns a View filled with zeros.
  template <class ViewType, class... Extents>
  ViewType zeroed(MemoryUse use, const char* label, Extents... extents) const {
    if (plan_ != nullptr) return counted<ViewType>(use, extents...);
    if constexpr (on_host<ViewType>()) {
      const ViewType view = uninitialized<ViewType>(use, label, extents...);
      const Kokkos::DefaultHostExecutionSpace exec;
      Kokkos::deep_copy(exec, view, typename ViewType::value_type());
      exec.fence();
      return view;
    } else {
      return ViewType(std::string(label), static_cast<std::size_t>(extents)...);
    }
  }
  /// Returns a View without running a fill kernel.
  template <class ViewType, class... Extents>
  ViewType uninitialized(MemoryUse use, const char* label, Extents... extents) const {
    if (plan_ != nullptr) return counted<ViewType>(use, extents...);
    const ViewType view(deltapipe::uninitialized(label), static_cast<std::size_t>(extents)...);
    if constexpr (on_host<ViewType>())
      prefer_huge_pages(view.data(), view.span() * sizeof(typename ViewType::value_type));
    return view;
  }

 private:
  template <class ViewType>
  static constexpr bool on_host() {
    return std::is_same_v<typename ViewType::memory_space, Kokkos::HostSpace>;
  }

  template <class ViewType, class... Extents>
  ViewType counted(MemoryUse use, Extents... extents) const {
    plan_->add<ViewType>(use, (std::uint64_t{sizeof(typename ViewType::value_type)} * ... *
                               static_cast<std::uint64_t>(extents)));
    return {};
  }

  MemoryLedger* plan_ = nullptr;
};

/// Returns the bytes of a View's elements.
template <class ViewType>
std::uint64_t bytes_of_view(const ViewType& view) {
  return std::uint64_t{view.span()} * sizeof(typename ViewType::value_type);
}

}  // namespace deltapipe
