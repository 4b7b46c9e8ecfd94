// SPDX-License-Identifier: BSD-3-Clause
// Base class of classifiers that are transformer encoders.
#pragma once

#include <cstdint>
#include <vector>

#include "models/classifier_model.hpp"

namespace deltapipe {

/// Config derives from EncoderConfig and has facts() and save().
template <class Config>
class EncoderModel : public ClassifierModel<Config> {
 public:
  using ClassifierModel<Config>::ClassifierModel;

  DropoutProbabilities dropout() const override {
    return {this->config().embedding_dropout, this->config().attention_dropout,
            this->config().hidden_dropout};
  }
  void set_dropout(const DropoutProbabilities& dropout) override {
    if (dropout.attention >= 0) this->config().attention_dropout = dropout.attention;
    if (dropout.residual >= 0) this->config().hidden_dropout = dropout.residual;
    if (dropout.embedding >= 0) this->config().embedding_dropout = dropout.embedding;
  }
  void initialise(std::uint64_t seed, ParameterArena<float>& parameters) const override {
    initialize_normal<float>(
        seed, [&](const ParameterInfo&) { return this->config().initializer_range; }, parameters);
  }
};

/// An encoder of texts. Config derives from TextEncoderConfig.
template <class Config>
class TextEncoderModel : public EncoderModel<Config> {
 public:
  using EncoderModel<Config>::EncoderModel;

  ModelShape shape() const override {
    const Config& config = this->config();
    return {.blocks = config.layers,
            .channels = config.channels,
            .positions = config.positions,
            .vocabulary = config.vocabulary,
            .segments = config.segments};
  }
  std::vector<Field> fields() const override {
    if (this->config().segments == 0) return {Field::tokens, Field::label};
    return {Field::tokens, Field::segments, Field::label};
  }
};

/// Returns the configuration of a new encoder, without dropout.
template <class Config>
Config new_encoder(const NewModel& shape) {
  Config config;
  config.layers = shape.blocks;
  config.heads = shape.heads;
  config.channels = shape.channels;
  config.hidden = shape.hidden > 0 ? shape.hidden : 4 * shape.channels;
  config.hidden_dropout = config.embedding_dropout = config.attention_dropout = 0;
  config.classes = shape.class_names;
  return config;
}

}  // namespace deltapipe
