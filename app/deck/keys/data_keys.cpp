// SPDX-License-Identifier: BSD-3-Clause
// Keys of [data], [evaluation] and [generate].
#include <algorithm>
#include <tuple>

#include "app/deck/keys/section_keys.hpp"

namespace deltapipe::deck {

namespace {

/// One way of evaluations, or both.
Choice evaluation_choice(EvaluationSettings& evaluation) {
  using Modes = std::vector<EvaluationMode>;
  const Modes plain = {EvaluationMode::plain};
  const std::vector<std::pair<Modes, PlainPrecision>> choices = {
      {plain, PlainPrecision::fp32},
      {plain, PlainPrecision::fp16},
      {plain, PlainPrecision::quantize8},
      {{EvaluationMode::codec}, PlainPrecision::fp32},
      {{EvaluationMode::plain, EvaluationMode::codec}, PlainPrecision::fp32}};
  Choice result;
  result.names = {"fp32", "fp16", "quantize8", "codec", "both"};
  result.get = [&evaluation, choices] {
    const std::pair<Modes, PlainPrecision> set = {evaluation.modes, evaluation.precision};
    return static_cast<std::size_t>(std::find(choices.begin(), choices.end(), set) -
                                    choices.begin());
  };
  result.set = [&evaluation, choices](std::size_t i) {
    std::tie(evaluation.modes, evaluation.precision) = choices[i];
  };
  return result;
}

}  // namespace

void add_data(std::vector<Key>& keys, DataSettings& d) {
  SectionKeys add(keys, "data");
  add("kind", choice(d.kind, kDataKindNames),
      "text trains a language model to predict the next tokens. labelled_text trains a classifier "
      "on records with one or two texts and a label. images trains one on images.");
  add("train", TextList{&d.train}, "Training files, or directories of images, read in this order.");
  add("validation", TextList{&d.validation},
      "Validation files. If the list is empty, validation_fraction of the training samples is "
      "used: "
      "the last ones of texts, random ones of other data.");
  add("predict", TextList{&d.predict},
      "Files whose classes `deltapipe predict` writes. Their samples may lack labels. If the list "
      "is "
      "empty, it predicts the validation samples.");
  add("validation_fraction", Real{&d.validation_fraction, 0, 1, false, true},
      "Part of the training samples that is kept for validation if data.validation is empty.");
  add("format", choice(d.format, kDataFormatNames),
      "Format of the files. automatic goes by the suffix: .txt, .jsonl, .csv, .tsv or .h5. For "
      "images, files with -idx in their names are IDX files (plain or .gz), whose labels are in "
      "...labels-idx1-ubyte; .bin files are CIFAR's; a directory has a sub-directory of PNG and "
      "JPEG files for each class.");
  add("jsonl_fields", TextList{&d.jsonl_fields},
      "Fields of a JSON line that make up its text, joined in this order.");
  add("bad_lines", choice(d.bad_lines, {{"error", BadLines::error}, {"skip", BadLines::skip}}),
      "Lines that are invalid or lack a field: error ends the run, skip leaves them out, "
      "counts and reports them.");
  add("packing", choice(d.packing, {{"stream", Packing::stream}, {"document", Packing::document}}),
      "stream joins documents and cuts them into windows. document starts a window with each "
      "document and pads its last one.");
  add("sequence_length", Integer{&d.sequence_length, 0, 1 << 20},
      "Tokens of a sample. 0 means the model's n_positions.");
  add("shuffle", Flag{&d.shuffle}, "Gives the samples another order in every epoch.");
  add("max_train_samples", Integer{&d.max_train_samples, 0, kAnyCount},
      "Largest number of training samples. 0 uses all.");
  add("max_validation_samples", Integer{&d.max_validation_samples, 0, kAnyCount},
      "Largest number of validation samples. 0 uses all.");

  SectionKeys add_labelled(keys, "data.labelled");
  add_labelled("texts", TextList{&d.labelled.texts},
               "Field of the text of a record, or fields of its two texts. Columns of a table "
               "without a header are numbers from \"1\".");
  add_labelled("label", Text{&d.labelled.label},
               "Field of the label: the name of a class, or its number from 0.");
  add_labelled("header", Flag{&d.labelled.header},
               "The first line of a CSV or TSV file names its columns.");

  SectionKeys add_images(keys, "data.images");
  add_images("size", IntegerList{&d.images.size, 1, 1 << 14},
             "Size to which images of directories are resized: a side, or height and width. If it "
             "is empty, the model's size is used, or the images' own, which must be the same.");
  add_images("fit", choice(d.images.fit, kImageFitNames),
             "crop resizes images of directories until they cover the size, and keeps the centre. "
             "stretch resizes height and width independently.");
  add_images("mean", RealList{&d.images.mean, -1e3, 1e3},
             "Subtracted from pixels, which are from 0 to 1: one value, or one for each channel.");
  add_images("deviation", RealList{&d.images.deviation, 1e-6, 1e3},
             "Divides pixels after that: one value, or one for each channel.");
  add_images("padding", Integer{&d.images.padding, 0, 1 << 14},
             "Augmentation in training: pads each side with this many black pixels and crops the "
             "original size at a random place.");
  add_images("flip", Flag{&d.images.flip},
             "Augmentation in training: half of the images are flipped, left to right.");
}

void add_evaluation(std::vector<Key>& keys, EvaluationSettings& e, AnswerSettings& a) {
  SectionKeys add(keys, "evaluation");
  add("prompts", TextList{&a.files},
      "JSON lines, each with a prompt and the expected answer. Evaluations report exact match: the "
      "share of prompts whose greedy answer has the expected tokens.");
  add("prompt_field", Text{&a.prompt_field}, "Field of a line that holds the prompt.");
  add("answer_field", Text{&a.answer_field}, "Field of a line that holds the answer.");
  add("answer_end", Text{&a.end},
      "Text that ends an answer and that the model has to write as well, for example \"\\n\". If "
      "it "
      "is empty, the end-of-text token ends an answer.");
  add("boundary", evaluation_choice(e),
      "Format of activations: fp32, fp16, quantize8 (8 bits, a scale for every 64 channels) or "
      "codec (boundary.forward's, without memories and warm-up). both evaluates with fp32 and "
      "codec.");
  add("changes",
      choice(e.changes, {{"first_visit", ChangesWithoutMemory::first_visit},
                         {"direct", ChangesWithoutMemory::direct}}),
      "For aqsgd and aqsgd_topk: first_visit sends each sample as one without memory. direct sends "
      "the values as training sends changes.");
}

void add_generate(std::vector<Key>& keys, GenerateSettings& g) {
  SectionKeys add(keys, "generate");
  add("prompts", TextList{&g.prompts}, "Texts to continue.");
  add("max_new_tokens", Integer{&g.max_new_tokens, 1, 1 << 20}, "Tokens to add to each text.");
  add("temperature", Real{&g.temperature, 0, 1e3},
      "Divides the logits. 0 always chooses the likeliest token.");
  add("top_k", Integer{&g.top_k, 0, 1 << 24},
      "Number of likeliest tokens to choose from. 0 chooses from all.");
  add("seed", Integer{&g.seed, 0, kAnyCount}, "Seed of the choices.");
}

}  // namespace deltapipe::deck
