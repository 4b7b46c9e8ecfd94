// SPDX-License-Identifier: BSD-3-Clause
// Classifiers of texts against transformers, with the batches that
// tests/golden/make_bert_fixtures.py and the scripts that use it write.
#pragma once

#include <algorithm>

#include "comm/pipeline/token_index.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "support/golden_classifier.hpp"

namespace deltapipe::test {

template <class Real>
class GoldenTextClassifier final : public GoldenClassifier<Real> {
 public:
  static constexpr int kSamples = 4, kTokens = 17;

  /// Arguments are those of GoldenClassifier.
  GoldenTextClassifier(std::unique_ptr<BlockStage<Real>> stage, const WeightNames& names,
                       const std::string& directory, int vocabulary, int classes, bool split,
                       bool recompute, const OptimizerSettings& settings)
      : GoldenClassifier<Real>(std::move(stage), names, directory,
                               capacity_of(vocabulary, split, recompute), classes, settings),
        index_(vocabulary, kSamples * kTokens, 1) {}

 private:
  static StageCapacity capacity_of(int vocabulary, bool split, bool recompute) {
    StageCapacity capacity;
    capacity.samples = kSamples;
    capacity.tokens = kTokens;
    capacity.embedding_rows = std::min(vocabulary, kSamples * kTokens);
    capacity.splits_backward = split;
    capacity.recompute = recompute;
    return capacity;
  }
  void set_inputs(const hdf5::Location& golden, std::size_t step, MicroBatch& batch) override {
    constexpr std::size_t kRows = kSamples * kTokens;
    ids_ = batch_of<std::int32_t>(golden, "input_ids", step, kRows);
    tokens_ = to_device(ids_);
    segments_ = to_device(batch_of<std::int32_t>(golden, "token_type_ids", step, kRows));
    lengths_ = to_device(batch_of<std::int32_t>(golden, "lengths", step, kSamples));
    batch.length_B = lengths_;
    batch.fields.set(Field::tokens, tokens_);
    batch.fields.set(Field::segments, segments_);
  }
  /// The gradients of the token table and of common parameters.
  void finish_gradients() override {
    if (const CommonParameters<Real>* const common = this->stage().common_parameters()) {
      common->add_gradients(this->exec(), true);
      common->finish_gradients(this->exec());
    }
    index_.clear();
    index_.add(ids_, 0);
    index_.finish(this->exec());
    TokenEmbedding<Real>& embedding = *this->stage().token_embedding();
    const MatrixRef<Real> table = this->stage().parameters().gradient_matrix(embedding.wte());
    Kokkos::deep_copy(this->exec(), table, Real(0));
    add_rows<Real>(this->exec(), index_.token_by_last_use_U(),
                   embedding.embedding_gradient(this->exec(), index_.first_of_U(), index_.row_of(),
                                                index_.size()),
                   table);
  }

  TokenIndex index_;
  std::vector<std::int32_t> ids_;
  Vector<std::int32_t> tokens_, segments_, lengths_;
};

/// Returns the configuration of a fixture, with its classes.
template <class Config>
Config read_classifier_config(const std::string& directory) {
  const ConfigFile file = read_config_file(directory);
  Config config = Config::read(file);
  config.classes = classes_of_classifier(file);
  return config;
}

/// Checks the probabilities, loss and gradients of DIRECTORY/NAME with the group PREFIX + NAME of
/// golden.h5. make(directory, split, recompute, settings) returns its GoldenTextClassifier.
template <class Make>
void check_text_gradients(const std::string& directory, const std::string& name, const Make& make,
                          const std::string& prefix = "") {
  use_single_threaded_blas();
  const bool split = GENERATE(false, true), recompute = GENERATE(false, true);
  if (split && recompute) return;
  CAPTURE(name, split, recompute);
  const hdf5::File file = hdf5::File::open_read_only(directory + "/golden.h5");
  const int classes =
      static_cast<int>(classes_of_classifier(read_config_file(directory + "/" + name)).size());
  auto model = make(directory + "/" + name, split, recompute, OptimizerSettings{});
  check_gradients(model, file.open_group(prefix + name), classes);
}

/// Checks ten steps of AdamW in the same way.
template <class Make>
void check_text_training(const std::string& directory, const std::string& name, const Make& make,
                         const std::string& prefix = "") {
  CAPTURE(name);
  const hdf5::File file = hdf5::File::open_read_only(directory + "/golden.h5");
  const hdf5::Group golden = file.open_group(prefix + name);
  auto model =
      make(directory + "/" + name, false, false, golden_settings(golden.open_group("training")));
  check_training(model, golden, "training");
}

}  // namespace deltapipe::test
