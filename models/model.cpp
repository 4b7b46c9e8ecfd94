// SPDX-License-Identifier: BSD-3-Clause
#include "models/model.hpp"

#include <algorithm>

namespace deltapipe {

std::vector<TensorDeclaration> tensor_declarations(const Model& model,
                                                   const std::vector<ParameterInfo>& parameters,
                                                   Precision precision) {
  const TensorType type = precision == Precision::fp16   ? TensorType::F16
                          : precision == Precision::bf16 ? TensorType::BF16
                                                         : TensorType::F32;
  std::vector<TensorDeclaration> declarations;
  for (const ParameterInfo& p : parameters)
    declarations.push_back({model.saved_name(p.name), type, p.shape});
  return declarations;
}

std::uint64_t loading_memory_bytes(const std::vector<ParameterInfo>& parameters, bool from_file) {
  constexpr bool kMirrors = !Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemSpace>::accessible;
  std::size_t largest = 0;
  for (const ParameterInfo& p : parameters) largest = std::max(largest, p.size);
  return largest * sizeof(float) * ((from_file ? 1 : 0) + (kMirrors ? 1 : 0));
}

}  // namespace deltapipe
