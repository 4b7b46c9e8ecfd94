// SPDX-License-Identifier: BSD-3-Clause
// The residual network as a model in the table of model_types().
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/classifier_model.hpp"
#include "models/resnet/resnet_config.hpp"
#include "models/resnet/resnet_stage.hpp"

namespace deltapipe {

/// Returns the names of ResNetForImageClassification.
const WeightNames& resnet_names();

class ResnetModel final : public ClassifierModel<ResnetConfig> {
 public:
  explicit ResnetModel(ResnetConfig config, Json file = {}, std::set<std::string> fresh = {})
      : ClassifierModel(resnet_names(), std::move(config), std::move(file), std::move(fresh)) {}

  ModelShape shape() const override;
  std::string description() const override;
  std::vector<Field> fields() const override { return {Field::values, Field::label}; }
  DropoutProbabilities dropout() const override { return {0, 0, 0}; }
  void set_dropout(const DropoutProbabilities& dropout) override;
  void set_image(const ImageShape& image) override;
  ModelCost cost(int) const override { return resnet_cost(config()); }
  std::vector<std::string> saved_counters(const ParameterInfo& parameter) const override;
  void initialise(std::uint64_t seed, ParameterArena<float>& parameters) const override;

 private:
  void check_block_counts(const SafetensorsReader& weights,
                          const std::string& directory) const override;
};

std::unique_ptr<Model> load_resnet(const ConfigFile& config, const SafetensorsReader* weights,
                                   std::vector<std::string>& warnings);
std::unique_ptr<Model> create_resnet(const NewModel& shape);

}  // namespace deltapipe
