// SPDX-License-Identifier: BSD-3-Clause
// Configuration of a GPT-2 from config.json in a Hugging Face directory.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace deltapipe {

struct ConfigFile;

/// Shape and constants of a GPT-2. Only supported configurations are accepted: activation gelu_new
/// (or another name of the same function), scaled attention weights, no scaling by layer, no
/// cross-attention.
struct Gpt2Config {
  int n_layer = 12;
  int n_head = 12;
  int n_embd = 768;             ///< C, divisible by n_head
  int n_positions = 1024;       ///< the longest sequence T
  int vocabulary_size = 50257;  ///< V
  int n_inner = 3072;           ///< hidden width of the MLP
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double resid_pdrop = 0.1;
  bool tie_word_embeddings = true;
  std::optional<int> bos_token_id = 50256;
  std::vector<int> eos_token_ids = {50256};
  std::optional<int> pad_token_id;
  std::vector<std::string> classes;  ///< names; empty: a language model
  /// First token of a text without a prompt, and the tokens that end a text, as chosen by
  /// generate() of transformers. Not part of config.json.
  std::optional<int> generation_begin = 50256;
  std::vector<int> generation_ends = {50256};

  bool is_classifier() const { return !classes.empty(); }
  /// Returns true if the token embedding is also the output matrix.
  bool is_tied() const { return tie_word_embeddings && !is_classifier(); }
  /// Reads everything but `classes`. Throws UserError that names the key, its value and the
  /// supported values.
  static Gpt2Config read(const ConfigFile& file);
  /// Checks the ranges; `file` appears in messages.
  void check(const std::string& file) const;
  /// Returns "key = value" of everything that changes results.
  std::vector<std::string> facts() const;
  /// Writes DIRECTORY/config.json (atomically), which transformers loads as GPT2LMHeadModel or
  /// GPT2ForSequenceClassification.
  void save(const std::string& directory) const;
};

}  // namespace deltapipe
