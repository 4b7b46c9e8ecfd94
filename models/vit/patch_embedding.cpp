// SPDX-License-Identifier: BSD-3-Clause
#include "models/vit/patch_embedding.hpp"

#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "core/kernels/layers/patches.hpp"

namespace deltapipe {

template <class Real>
PatchEmbedding<Real>::PatchEmbedding(ParameterArena<Real>& parameters, const std::string& prefix,
                                     const ImageShape& image, int patch, int channels,
                                     double dropout, std::uint32_t dropout_site, int bucket)
    : parameters_(parameters),
      image_(image),
      patch_(patch),
      channels_(channels),
      dropout_(dropout),
      site_(dropout_site),
      class_token_(
          parameters.add(prefix + "cls_token", {1, 1, std::uint64_t(channels)}, true, bucket)),
      positions_(parameters.add(prefix + "position_embeddings",
                                {1, std::uint64_t(patches() + 1), std::uint64_t(channels)}, true,
                                bucket)),
      projection_(parameters, prefix + "patch_embeddings.projection",
                  {std::uint64_t(channels), std::uint64_t(image.channels), std::uint64_t(patch),
                   std::uint64_t(patch)},
                  bucket) {}

template <class Real>
void PatchEmbedding<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  const int rows = capacity.samples * patches();
  pixels_MF_ = memory.uninitialized<Matrix<Real>>(
      MemoryUse::workspace, "deltapipe::PatchEmbedding::pixels", rows, patch_values());
  patches_MC_ = memory.uninitialized<Matrix<Real>>(
      MemoryUse::workspace, "deltapipe::PatchEmbedding::patches", rows, channels_);
}

template <class Real>
bool PatchEmbedding<Real>::trained() const {
  return is_trained(class_token_) || is_trained(positions_) || projection_.trained();
}

template <class Real>
Operand<Real> PatchEmbedding<Real>::pixels(const BlockPass<Real>& pass) const {
  const MatrixRef<Real> pixels = narrow(pixels_MF_, pass.batch.samples * patches(), patch_values());
  patches_of_images<Real>(pass.exec, pass.batch.fields.reals(Field::values), image_, patch_,
                          pixels);
  return pass.workspace.products.input(pass.exec, pixels);
}

template <class Real>
void PatchEmbedding<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::PatchEmbedding::forward");
  const MatrixRef<Real> made = narrow(patches_MC_, pass.batch.samples * patches(), channels_);
  projection_.forward(pass.exec, pixels(pass), made, pass.workspace);
  place_patches<Real>(pass.exec, made, parameters_.value(class_token_),
                      rows(parameters_.matrix(positions_)), x);
  if (pass.training && dropout_ > 0)
    apply_dropout<Real>(pass.exec, pass.dropout(dropout_, site_), x, x);
}

template <class Real>
void PatchEmbedding<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                                    bool accumulate) const {
  const ProfilingRegion region("deltapipe::PatchEmbedding::backward");
  const ExecSpace& exec = pass.exec;
  const Workspace<Real>& w = pass.workspace;
  const int tokens = patches() + 1;
  if (dropout_ > 0) apply_dropout<Real>(exec, pass.dropout(dropout_, site_), gradient, gradient);
  if (is_trained(positions_))
    position_gradient<Real>(exec, gradient, tokens, accumulate,
                            rows(parameters_.gradient_matrix(positions_)));
  if (is_trained(class_token_))
    class_token_gradient<Real>(exec, gradient, tokens, accumulate,
                               parameters_.gradient(class_token_));
  if (!projection_.trained()) return;
  const MatrixRef<Real> dpatches = narrow(patches_MC_, pass.batch.samples * patches(), channels_);
  patch_rows<Real>(exec, gradient, tokens, dpatches);
  projection_.parameter_gradient(exec, pixels(pass), w.products.gradient(exec, dpatches),
                                 accumulate, w);
}

template class PatchEmbedding<float>;
template class PatchEmbedding<double>;

}  // namespace deltapipe
