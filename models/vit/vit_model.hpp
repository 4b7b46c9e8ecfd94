// SPDX-License-Identifier: BSD-3-Clause
// The vision transformer as a model in the table of model_types().
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/encoder_model.hpp"
#include "models/vit/vit_config.hpp"
#include "models/vit/vit_stage.hpp"

namespace deltapipe {

/// Returns the names of ViTForImageClassification.
const WeightNames& vit_names();

class VitModel final : public EncoderModel<VitConfig> {
 public:
  explicit VitModel(VitConfig config, Json file = {}, std::set<std::string> fresh = {})
      : EncoderModel(vit_names(), std::move(config), std::move(file), std::move(fresh)) {}

  ModelShape shape() const override;
  std::string description() const override;
  std::vector<Field> fields() const override { return {Field::values, Field::label}; }
  ModelCost cost(int) const override { return vit_cost(config()); }
};

std::unique_ptr<Model> load_vit(const ConfigFile& config, const SafetensorsReader* weights,
                                std::vector<std::string>& warnings);
std::unique_ptr<Model> create_vit(const NewModel& shape);

}  // namespace deltapipe
