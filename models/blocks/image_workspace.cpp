// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/image_workspace.hpp"

namespace deltapipe {

void ImageWorkspaceSize::raise(const ConvolutionShape& shape, int images) {
  const int rows = images * shape.output_rows();
  elements = std::max(elements, static_cast<std::size_t>(rows) * shape.outputs);
  column_sums = std::max(column_sums, column_tree_workspace(rows, shape.outputs));
  channels = std::max(channels, shape.outputs);
  convolution.raise(shape, images);
}

template <class Real>
void ImageWorkspace<Real>::reserve(const ImageWorkspaceSize& size, const RealGemm* gemm,
                                   bool training, bool as_on_device, const ViewAllocator& memory) {
  const auto vector = [&](const char* label, std::size_t elements) {
    return memory.uninitialized<Vector<Real>>(MemoryUse::workspace, label, elements);
  };
  convolution = gemm != nullptr
                    ? ConvolutionWorkspace<Real>(*gemm, size.convolution, training, memory)
                    : ConvolutionWorkspace<Real>(size.convolution, training, memory);
  a = vector("deltapipe::ImageWorkspace::a", size.elements);
  if (training) b = vector("deltapipe::ImageWorkspace::b", size.elements);
  column_pairs = vector("deltapipe::ImageWorkspace::columnPairs", 2 * std::size_t(size.channels));
  if (as_on_device)
    column_sums = memory.uninitialized<Vector<double>>(
        MemoryUse::workspace, "deltapipe::ImageWorkspace::columnSums", size.column_sums);
}

template struct ImageWorkspace<float>;
template struct ImageWorkspace<double>;

}  // namespace deltapipe
