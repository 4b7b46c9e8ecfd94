// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/relative_workspace.hpp"

#include <algorithm>

namespace deltapipe {

template <class Real>
void RelativeWorkspace<Real>::reserve(const RelativeWorkspaceSize& size, const RealGemm& products,
                                      bool training, bool as_on_device,
                                      const ViewAllocator& memory) {
  const auto vector = [&](const char* label, std::size_t elements) {
    return memory.uninitialized<Vector<Real>>(MemoryUse::workspace, label, elements);
  };
  const auto matrix = [&](const char* label, int rows, int columns) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::workspace, label, rows, columns);
  };
  const AttentionShape& shape = size.shape;
  const int rows = RelativeRows::of(size.buckets, shape.tokens).count;
  gemm = products;
  distances = RelativeDistances(size.buckets, shape.tokens, memory);
  // A device computes all heads of a sample together if they fit, a host one head per thread.
  const std::size_t a_head = static_cast<std::size_t>(shape.tokens) * shape.tokens;
  heads_ = as_on_device ? static_cast<int>(std::clamp<std::size_t>(
                              AttentionGrouping::kMostElements / a_head, 1, shape.heads))
                        : 1;
  concurrent_ =
      kTeamExecution && !as_on_device ? std::min(shape.heads, HostTeam::instance().size()) : 1;
  const std::size_t heads = static_cast<std::size_t>(heads_) * concurrent_;
  const std::size_t of_positions = heads * shape.tokens * rows;
  scores_ = vector("deltapipe::RelativeWorkspace::scores", heads * a_head);
  if (training) dscores_ = vector("deltapipe::RelativeWorkspace::dscores", heads * a_head);
  by_query_ = vector("deltapipe::RelativeWorkspace::byQuery", of_positions);
  by_key_ = vector("deltapipe::RelativeWorkspace::byKey", of_positions);
  embedding_PC = matrix("deltapipe::RelativeWorkspace::embedding", rows, shape.channels());
  positions_PF = matrix("deltapipe::RelativeWorkspace::positions", rows, size.columns);
  if (training)
    dpositions_PF = matrix("deltapipe::RelativeWorkspace::dpositions", rows, size.columns);
  mean_P = vector("deltapipe::RelativeWorkspace::mean", rows);
  rstd_P = vector("deltapipe::RelativeWorkspace::rstd", rows);
}

template struct RelativeWorkspace<float>;
template struct RelativeWorkspace<double>;

}  // namespace deltapipe
