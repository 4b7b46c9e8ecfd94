// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/normed_convolution.hpp"

namespace deltapipe {

template <class Real>
NormedConvolution<Real>::NormedConvolution(ParameterArena<Real>& parameters,
                                           const std::string& name, const ConvolutionShape& shape,
                                           const BatchNormOptions& norm, int bucket)
    : parameters_(parameters), shape_(shape), options_(norm) {
  const std::uint64_t outputs = shape.outputs, kernel = shape.kernel;
  const std::string normalization = name + ".normalization.";
  filter_ =
      parameters.add(name + ".convolution.weight",
                     {outputs, std::uint64_t(shape.input.channels), kernel, kernel}, true, bucket);
  weight_ = parameters.add(normalization + "weight", {outputs}, false, bucket);
  bias_ = parameters.add(normalization + "bias", {outputs}, false, bucket);
  running_mean_ = parameters.add_statistic(normalization + "running_mean", outputs, bucket);
  running_variance_ = parameters.add_statistic(normalization + "running_var", outputs, bucket);
}

template <class Real>
void NormedConvolution<Real>::add_saved(SavedTensors& saved) const {
  saved.push_back({"deltapipe::NormedConvolution::output", shape_.outputs, shape_.output_rows()});
  saved.push_back({"deltapipe::NormedConvolution::statistics", shape_.outputs, kStatistics});
}

template <class Real>
MatrixRef<Real> NormedConvolution<Real>::output(const BlockPass<Real>& pass,
                                                const Matrix<Real>* saved) const {
  return narrow(saved[0], pass.batch.samples * shape_.output_rows(), shape_.outputs);
}

template <class Real>
ColumnNorm<Real> NormedConvolution<Real>::norm(const Matrix<Real>* saved) const {
  return {statistic(saved, kMean), statistic(saved, kRstd), parameters_.value(weight_),
          parameters_.value(bias_)};
}

template <class Real>
void NormedConvolution<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<const Real>& x,
                                      const Matrix<Real>* saved) const {
  const ImageWorkspace<Real>& w = pass.workspace.images;
  const MatrixRef<Real> y = output(pass, saved);
  convolution_forward<Real>(pass.exec, shape_, x, parameters_.value(filter_), y, w.convolution);
  if (pass.training)
    batch_statistics<Real>(pass.exec, y, options_.epsilon, statistic(saved, kMean),
                           statistic(saved, kVariance), statistic(saved, kRstd), w.column_sums);
  else
    use_running_statistics<Real>(pass.exec, options_.epsilon, parameters_.value(running_mean_),
                                 parameters_.value(running_variance_), statistic(saved, kMean),
                                 statistic(saved, kRstd));
}

template <class Real>
void NormedConvolution<Real>::update_statistics(const BlockPass<Real>& pass,
                                                const Matrix<Real>* saved) const {
  update_running_statistics<Real>(pass.exec, pass.batch.samples * shape_.output_rows(),
                                  options_.momentum, statistic(saved, kMean),
                                  statistic(saved, kVariance), parameters_.value(running_mean_),
                                  parameters_.value(running_variance_));
}

template <class Real>
void NormedConvolution<Real>::backward_parameters(
    const BlockPass<Real>& pass, const MatrixRef<const Real>& x, const Matrix<Real>* saved,
    const MatrixRef<Real>& dy, const MatrixRef<Real>& doutput, bool accumulate) const {
  const ImageWorkspace<Real>& w = pass.workspace.images;
  batch_norm_backward<Real>(pass.exec, dy, output(pass, saved), norm(saved), accumulate,
                            parameters_.gradient(weight_), parameters_.gradient(bias_), doutput,
                            w.column_pairs, w.column_sums);
  convolution_weight_gradient<Real>(pass.exec, shape_, x, doutput, accumulate,
                                    parameters_.gradient(filter_), w.convolution);
}

template <class Real>
void NormedConvolution<Real>::backward_input(const BlockPass<Real>& pass,
                                             const MatrixRef<Real>& doutput, bool add,
                                             const MatrixRef<Real>& dx) const {
  convolution_input_gradient<Real>(pass.exec, shape_, doutput, parameters_.value(filter_), add, dx,
                                   pass.workspace.images.convolution);
}

template class NormedConvolution<float>;
template class NormedConvolution<double>;

}  // namespace deltapipe
