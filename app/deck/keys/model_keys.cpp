// SPDX-License-Identifier: BSD-3-Clause
// Keys of [model], [model.new] and [tokenizer].
#include "app/deck/keys/section_keys.hpp"
#include "models/model.hpp"

namespace deltapipe::deck {

void add_model(std::vector<Key>& keys, ModelSettings& m) {
  SectionKeys add(keys, "model");
  add("path", Text{&m.path},
      "Hugging Face directory with config.json and model.safetensors. If it is empty, training "
      "starts with a new model.");
  add("dropout_embedding", Real{&m.dropout_embedding, -1, 1, false, true},
      "Dropout probability after the embeddings. A negative value keeps the model's own (0 for a "
      "new model).");
  add("dropout_attention", Real{&m.dropout_attention, -1, 1, false, true},
      "Dropout probability of attention weights. A negative value keeps the model's own.");
  add("dropout_residual", Real{&m.dropout_residual, -1, 1, false, true},
      "Dropout probability before each residual addition. A negative value keeps the model's own.");

  SectionKeys add_new(keys, "model.new");
  add_new(
      "type", name_choice(m.type, model_types()),
      "Architecture: gpt2 is a language model or classifies texts, bert and deberta-v2 classify "
      "texts (data.kind = \"labelled_text\"), vit and resnet classify images (data.kind = "
      "\"images\").");
  add_new("n_layer", Integer{&m.n_layer, 1, 10000},
          "Number of transformer blocks. resnet has depths.");
  add_new("n_head", Integer{&m.n_head, 1, 1024}, "Number of attention heads. It divides n_embd.");
  add_new("n_inner", Integer{&m.n_inner, 0, 262144}, "Hidden width of the MLP. 0 means 4 n_embd.");
  add_new("n_embd", Integer{&m.n_embd, 1, 65536},
          "Number of channels. For resnet: of its first group; each group doubles them.");
  add_new("n_positions", Integer{&m.n_positions, 1, 1 << 20}, "Longest sequence, in tokens.");
  add_new("patch_size", Integer{&m.patch_size, 1, 1 << 14},
          "For vit: side of the patches, in pixels. It divides the image's height and width.");
  add_new(
      "depths", IntegerList{&m.depths, 1, 1000},
      "For resnet: basic blocks of each of up to 16 groups. From the second group on, the first "
      "block halves the image's sides. [2, 2, 2, 2] is ResNet-18, [3, 4, 6, 3] ResNet-34.");
  add_new("stem", choice(m.stem, {{"cifar", StemKind::cifar}, {"imagenet", StemKind::imagenet}}),
          "For resnet: first layers. cifar is a convolution of 3 x 3 that keeps the image's size, "
          "imagenet one of 7 x 7 and a maximum, which divide its sides by 4.");
}

void add_tokenizer(std::vector<Key>& keys, TokenizerSettings& t) {
  SectionKeys add(keys, "tokenizer");
  add("path", Text{&t.path},
      "A tokenizer.json or spm.model, or a directory with one of these: tokenizer.json; vocab.json "
      "and merges.txt; vocab.txt; spm.model. If it is empty, the model's directory is used.");
  add("train_vocabulary", Integer{&t.train_vocabulary, 0, 1 << 20},
      "For new models: number of tokens, at least 257, of a byte-level BPE that is trained on the "
      "training text. 0 trains none.");
}

}  // namespace deltapipe::deck
