// SPDX-License-Identifier: BSD-3-Clause
#include "models/model.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace deltapipe {

void Model::set_class_names(const std::vector<std::string>&) {
  throw UserError({.what = "the model does not classify",
                   .value = description(),
                   .remedy = "set data.kind to \"text\", or use a model of type \"bert\"",
                   .keys = {"data.kind", "model.path"}});
}

void Model::train_relative_embeddings() {
  throw UserError({.what = "the model has no relative embeddings to train",
                   .value = description(),
                   .remedy = "leave the key out; it is for models of type \"deberta-v2\"",
                   .keys = {"training.optimizer.relative_embeddings"}});
}

std::vector<BoundaryShape> boundary_shapes(const Model& model, const std::vector<int>& partition,
                                           int tokens) {
  std::vector<BoundaryShape> shapes;
  for (int stage = 0; stage + 1 < static_cast<int>(partition.size()); ++stage)
    shapes.push_back(model.make_stage(stage_part(partition, stage))->output_shape(tokens));
  return shapes;
}

int first_trained_stage(const Model& model, const std::vector<int>& partition) {
  int stage = 0;
  for (const int last = static_cast<int>(partition.size()) - 1; stage < last; ++stage)
    if (model.make_stage(stage_part(partition, stage))->has_trained()) break;
  return stage;
}

ParameterCount parameter_count(const Model& model) {
  ParameterCount count;
  for (const ParameterInfo& p : model.parameters({0, model.shape().blocks, true, true})) {
    if (p.statistic) continue;
    count.all += p.size;
    if (!p.frozen) count.trained += p.size;
  }
  return count;
}

std::vector<TensorDeclaration> tensor_declarations(const Model& model,
                                                   const std::vector<ParameterInfo>& parameters,
                                                   Precision precision) {
  const TensorType type = precision == Precision::fp16   ? TensorType::F16
                          : precision == Precision::bf16 ? TensorType::BF16
                                                         : TensorType::F32;
  std::vector<TensorDeclaration> declarations;
  for (const ParameterInfo& p : parameters)  // first, so that they are aligned
    for (const std::string& name : model.saved_counters(p))
      declarations.push_back({name, TensorType::I64, {}});
  for (const ParameterInfo& p : parameters)
    for (const SavedRows& tensor : model.saved_tensors(p)) {
      declarations.push_back({tensor.name, type, p.shape});
      declarations.back().shape[0] = tensor.rows;
    }
  return declarations;
}

std::uint64_t loading_memory_bytes(const std::vector<ParameterInfo>& parameters, bool from_file) {
  if (!from_file) return 0;
  std::size_t largest = 0;
  for (const ParameterInfo& p : parameters) largest = std::max(largest, p.size);
  return largest * sizeof(float);
}

}  // namespace deltapipe
