// SPDX-License-Identifier: BSD-3-Clause
// A model with its configuration, without its weights: everything that the program knows of an
// architecture. To add one, write a folder with a class derived from Model, and a line in the table
// of model_types().
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/image_shape.hpp"
#include "core/base/numeric/precision.hpp"
#include "core/files/safetensors.hpp"
#include "core/stage/parameters.hpp"
#include "core/stage/stage.hpp"
#include "core/stage/task.hpp"
#include "models/partition.hpp"

namespace deltapipe {

struct ConfigFile;  // models/config_file.hpp

struct ModelShape {
  int blocks = 0;
  int channels = 0;   ///< C, width of what crosses a boundary
  int positions = 0;  ///< the longest sequence T
  int vocabulary = 0;
  bool tied = false;      ///< the token embedding is also the output matrix
  int segments = 0;       ///< texts of a sample that the model tells apart; 0: it has no segments
  ImageShape image = {};  ///< of a model of images; all 0 for others
  /// Rows of a sample in the smallest batch normalisation; 0: no such layer, or the size of the
  /// images is not known yet.
  int normalized_rows = 0;
};

/// Probabilities of dropout; negative: the model's own.
struct DropoutProbabilities {
  double embedding = -1;
  double attention = -1;
  double residual = -1;
};

/// Shape of a new model.
struct NewModel {
  int blocks = 0;
  int heads = 0;
  int channels = 0;
  int positions = 0;
  int hidden = 0;  ///< width of the MLP; 0: 4 * channels
  int vocabulary = 0;
  int end_of_text = -1;                       ///< -1: no such token
  std::vector<std::string> class_names = {};  ///< of a classifier
  ImageShape image = {};                      ///< of a model of images
  int patch = 0;                              ///< side of a patch of an image
  std::vector<int> depths = {};               ///< blocks of a residual network's groups
  bool cifar_stem = true;                     ///< of a residual network: the stem for small images
};

/// Tokens that begin and end a generated text.
struct TextEnds {
  std::int32_t begin = -1;  ///< first token of a text without a prompt; -1: the model defines none
  std::vector<std::int32_t> ends;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual ModelShape shape() const = 0;
  /// Returns a text such as "GPT-2 of 12 blocks x 768 channels".
  virtual std::string description() const = 0;
  /// Returns "key = value" of everything that changes results, for comparison between ranks.
  virtual std::vector<std::string> configuration() const = 0;
  /// Returns what the model is trained for and evaluated on.
  virtual const Task& task() const { return language_model_task(); }
  /// Returns the names of the classes that the model predicts; empty: it is not a classifier.
  virtual std::vector<std::string> class_names() const { return {}; }
  /// Gives a model without classes a new head. Throws UserError if it cannot classify.
  virtual void set_class_names(const std::vector<std::string>& names);
  /// Sets the size of the images of a model that takes any. Others ignore it.
  virtual void set_image(const ImageShape&) {}
  /// Returns the fields of samples that the model requires: inputs and targets.
  virtual std::vector<Field> fields() const { return {Field::tokens, task().targets()}; }
  /// Returns the parameters that load() does not read. They have initial values.
  const std::set<std::string>& fresh() const { return fresh_; }
  virtual DropoutProbabilities dropout() const = 0;
  virtual void set_dropout(const DropoutProbabilities& dropout) = 0;
  virtual ModelCost cost(int tokens) const = 0;

  /// Freezes the named parameters: stages that are made later compute no gradients for them.
  void freeze(std::set<std::string> names) { frozen_ = std::move(names); }
  const std::set<std::string>& frozen() const { return frozen_; }
  /// Trains relative embeddings, which are frozen otherwise. Throws UserError if the model has
  /// none.
  virtual void train_relative_embeddings();

  /// Returns a stage without memory, which reports its parameters and the memory that it will
  /// require.
  virtual std::unique_ptr<Stage<float>> make_stage(const StagePart& part) const = 0;
  /// Returns the parameters of a stage, in its order.
  std::vector<ParameterInfo> parameters(const StagePart& part) const {
    return make_stage(part)->parameters().info();
  }

  /// Sets initial values of a stage's parameters. They depend on seed and tensor name, so that
  /// every partition gets the same values. Values are written with copy_in(), here and in load().
  virtual void initialise(std::uint64_t seed, ParameterArena<float>& parameters) const = 0;
  /// Reads a stage's parameters. Throws UserError for a missing tensor, another shape, or values
  /// that are not finite.
  virtual void load(const SafetensorsReader& weights, ParameterArena<float>& parameters) const = 0;
  /// Compares the headers of weights with the configuration. A model whose configuration cuts it
  /// short would train, but as another model. Throws UserError.
  virtual void check_weights(const std::string& directory, const SafetensorsReader& weights,
                             const std::vector<int>& partition) const = 0;

  /// Writes DIRECTORY/config.json for transformers: the file from which the model was loaded,
  /// except for what training changed. Dropout that a deck chose is not part of the model.
  virtual void save_configuration(const std::string& directory, Precision precision) const = 0;
  /// Returns the tokens that begin and end generated texts.
  virtual TextEnds text_ends() const = 0;
  /// Returns the name of a parameter in transformers.
  virtual std::string saved_name(const std::string& parameter) const = 0;
  /// Returns the tensors of a saved file that hold a parameter, with their names in transformers.
  virtual std::vector<SavedRows> saved_tensors(const ParameterInfo& parameter) const {
    return {{saved_name(parameter.name), 0, parameter.shape[0]}};
  }
  /// Returns the names of integers, all 0, that a saved file has beside a parameter: transformers
  /// expects them, and nothing uses them.
  virtual std::vector<std::string> saved_counters(const ParameterInfo&) const { return {}; }
  /// Returns tensors that are not separate parameters here, with the parameter that each of them
  /// equals.
  virtual std::map<std::string, std::string> tied_names() const { return {}; }

 protected:
  std::set<std::string> fresh_;

 private:
  std::set<std::string> frozen_;
};

/// An architecture, identified by the model_type of config.json.
struct ModelType {
  const char* name;
  /// Loads the configuration of config.json. Corrects it by the weights (null: not available yet)
  /// and reports corrections as warnings. Throws UserError.
  std::unique_ptr<Model> (*load)(const ConfigFile& config, const SafetensorsReader* weights,
                                 std::vector<std::string>& warnings);
  std::unique_ptr<Model> (*create)(const NewModel& shape);
  /// Keys of [model.new] that create() uses, besides type and n_embd.
  std::span<const std::string_view> new_keys;

  bool has_new_key(std::string_view key) const {
    return std::ranges::find(new_keys, key) != new_keys.end();
  }
};

/// Returns all architectures; new models use the first one.
std::span<const ModelType> model_types();
/// Returns the architecture with this name, which must be one of model_types().
const ModelType& model_type(std::string_view name);

/// Loads a model by the model_type of a directory's config.json. Throws UserError.
std::unique_ptr<Model> load_model(const std::string& directory, const SafetensorsReader* weights,
                                  std::vector<std::string>& warnings);

/// Returns what crosses each boundary of a partition for samples of `tokens` tokens.
std::vector<BoundaryShape> boundary_shapes(const Model& model, const std::vector<int>& partition,
                                           int tokens);

/// Returns the first stage that computes its own gradients, at which backward passes end. Returns
/// the last stage if all parameters are frozen.
int first_trained_stage(const Model& model, const std::vector<int>& partition);

struct ParameterCount {
  std::uint64_t all = 0;
  std::uint64_t trained = 0;  ///< not frozen
};
ParameterCount parameter_count(const Model& model);

/// Returns the declarations of these parameters in a saved file.
std::vector<TensorDeclaration> tensor_declarations(const Model& model,
                                                   const std::vector<ParameterInfo>& parameters,
                                                   Precision precision);

/// Returns the host memory that load() (`from_file`) temporarily uses for parameters in fp32.
/// initialise() uses a negligible amount.
std::uint64_t loading_memory_bytes(const std::vector<ParameterInfo>& parameters, bool from_file);

}  // namespace deltapipe
