// SPDX-License-Identifier: BSD-3-Clause
// Loads and initializes weights by a table of names, for any model.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/files/safetensors.hpp"
#include "core/stage/parameters.hpp"

namespace deltapipe {

/// A parameter whose rows are equal parts with names of their own: PART replaces `module` in the
/// parameter's name.
struct SplitModule {
  std::string module;              ///< as in ".qkv."
  std::vector<std::string> parts;  ///< as in ".query."
};

/// Names of a model's tensors in its Hugging Face files.
struct WeightNames {
  std::string architecture;             ///< class in transformers
  std::string prefix;                   ///< of a saved name; files without it are read as well
  std::vector<std::string> unprefixed;  ///< parameters that are saved without the prefix
  std::vector<std::string> modules;     ///< beginnings of names of the model's tensors
  std::string blocks_key;               ///< key of config.json with the number of blocks
  std::string block_prefix;             ///< of a block's parameters, before its index
  std::string block_tensor;             ///< any tensor of a block, after its index
  std::vector<SplitModule> split = {};

  /// Returns the tensors that hold a parameter, without the prefix; usually only itself.
  std::vector<SavedRows> tensors(const ParameterInfo& parameter) const;

  /// Returns the name under which transformers saves a parameter.
  std::string saved(const std::string& parameter) const;
  /// Returns the name under which the files hold a parameter; saved() if they do not.
  std::string stored(const SafetensorsReader& reader, const std::string& parameter) const;
  /// Returns the names of tensors that are not the model's.
  std::vector<std::string> foreign(const SafetensorsReader& reader) const;
};

/// Throws UserError unless the files hold these parameters, without those in `fresh`, in these
/// shapes. Allocates no memory for
/// them, so that it can run before a stage is built from a config.json that may be wrong.
void check_weights(const SafetensorsReader& reader, const WeightNames& names,
                   const std::vector<ParameterInfo>& parameters,
                   const std::set<std::string>& fresh = {});

/// Throws UserError if the files hold a block after the last one. Such a model would train, but as
/// another one.
void check_block_count(const SafetensorsReader& reader, const WeightNames& names,
                       const std::string& directory, int blocks);
/// Adds a warning if the files hold tensors that are not the model's.
void warn_of_foreign(const SafetensorsReader& reader, const WeightNames& names,
                     const std::string& directory, std::vector<std::string>& warnings);

/// Reads only the tensors of `parameters`, without those in `fresh`. Throws UserError for a missing
/// tensor, another shape, or values that are not finite.
template <class Real>
void load_weights(const SafetensorsReader& reader, const WeightNames& names,
                  ParameterArena<Real>& parameters, const std::set<std::string>& fresh = {});

/// Returns true if two tensors have the same values. Throws UserError if their shapes differ.
bool same_matrices(const SafetensorsReader& reader, const std::string& one,
                   const std::string& other);

/// Returns true if the files hold `head` and the matrix of `parameter`, and they differ.
/// transformers 5 then keeps both, regardless of tie_word_embeddings in config.json. Throws
/// UserError for weights that cannot be read.
bool has_own_matrix(const SafetensorsReader& reader, const WeightNames& names,
                    const std::string& head, const std::string& parameter);

/// Sets initial values: matrices normal with the standard deviation that the model gives, other
/// weights and running variances 1, biases and running means 0. The values depend on seed and
/// tensor name, so that every partition gets the same.
template <class Real>
void initialize_normal(std::uint64_t seed,
                       const std::function<double(const ParameterInfo&)>& deviation_of,
                       ParameterArena<Real>& parameters);

}  // namespace deltapipe
