// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/labelled_text.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"
#include "core/data/records.hpp"
#include "core/data/split.hpp"
#include "core/data/token_store.hpp"

namespace deltapipe {

FieldSizes LabelledTexts::fields() const {
  FieldSizes sizes;
  sizes[Field::tokens] = sizes[Field::segments] = sequence_length_;
  sizes[Field::label] = 1;
  return sizes;
}

void LabelledTexts::read(std::uint64_t id, const SampleVisit&, const SampleSpans& fields) const {
  const Sample& sample = samples_[id];
  const auto length = static_cast<std::size_t>(sample.length);
  if (const auto tokens = fields.integers(Field::tokens); !tokens.empty()) {
    store_->copy(sample.start, tokens.first(length));
    std::ranges::fill(tokens.subspan(length), padding_);
  }
  if (const auto segments = fields.integers(Field::segments); !segments.empty()) {
    const auto first = static_cast<std::size_t>(sample.first);
    std::ranges::fill(segments, 0);
    std::ranges::fill(segments.subspan(first, length - first), 1);
  }
  for (std::int32_t& label : fields.integers(Field::label)) label = sample.label;
}

std::uint64_t LabelledTexts::fingerprint() const {
  std::uint64_t hash = XXH64(&sequence_length_, sizeof(sequence_length_), 0);
  std::vector<std::int32_t> numbers;
  for (const Sample& sample : samples_) {
    numbers.assign({sample.length, sample.first, sample.label});
    numbers.resize(3 + static_cast<std::size_t>(sample.length));
    store_->copy(sample.start, std::span(numbers).subspan(3));
    hash = XXH64(numbers.data(), numbers.size() * sizeof(std::int32_t), hash);
  }
  return hash;
}

KeptTokens truncate_longest_first(std::size_t n1, std::size_t n2, std::size_t most) {
  if (n1 + n2 <= most) return {n1, n2};
  const std::size_t shorter = std::min(n1, n2);
  const std::size_t kept =
      2 * shorter <= most ? shorter : most / 2;  // of the shorter text, or of the first of equals
  const std::size_t rest = most - kept;
  return n1 <= n2 ? KeptTokens{kept, rest} : KeptTokens{rest, kept};
}

namespace {

constexpr const char* kKeys = "data.labelled.texts and data.labelled.label";

RecordFields record_fields(const std::string& file, const DataSettings& settings) {
  const LabelledTextSettings& labelled = settings.labelled;
  RecordFields fields;
  fields.format = data_format(file, settings.format);
  const bool has_records = fields.format == DataFormat::jsonl || fields.format == DataFormat::csv ||
                           fields.format == DataFormat::tsv;
  if (!has_records)
    throw UserError({.what = "labelled texts are read from JSON lines, CSV and TSV",
                     .file = file,
                     .remedy = "name such a file, or set data.format to jsonl, csv or tsv"});
  fields.names = labelled.texts;
  fields.names.push_back(labelled.label);
  fields.keys = kKeys;
  fields.header = labelled.header;
  fields.numbers = true;
  return fields;
}

void require_label(const std::string& file, std::size_t line, const std::string& label) {
  if (label.find_first_not_of(" \t\r\n") != std::string::npos) return;
  throw UserError(
      {.what = "the label is empty",
       .file = file,
       .line = line,
       .remedy = "give every record a label; data.bad_lines = \"skip\" skips such lines"});
}

struct LabelledSet {
  std::vector<LabelledTexts::Sample> samples;
  std::vector<SkippedLines> skipped;
  std::uint64_t truncated = 0;
};

class SetReader {
 public:
  SetReader(const DataSettings& settings, const Vocabulary& vocabulary,
            const std::vector<std::string>& classes, int sequence_length)
      : settings_(settings),
        vocabulary_(vocabulary),
        marks_(vocabulary.tokenizer->marks()),
        classes_(classes),
        sequence_length_(sequence_length),
        store_(std::make_shared<TokenStore>(vocabulary.size)) {}

  LabelledSet read(const std::vector<std::string>& files) {
    LabelledSet set;
    for (const std::string& file : files) {
      const auto make = [&](std::vector<std::string>&& fields, std::size_t line) {
        const std::string label = std::move(fields.back());
        fields.pop_back();
        const std::int32_t number = class_of(file, line, label);
        return std::pair(encoded(file, line, fields), number);
      };
      const SkippedLines skipped = read_records(
          file, settings_.bad_lines, fields_of(file), make,
          [&](auto& made) { set.samples.push_back(add(std::move(made.first), made.second, set)); });
      if (skipped.count > 0) set.skipped.push_back(skipped);
    }
    return set;
  }

  std::shared_ptr<const TokenStore> store() const { return store_; }

 private:
  RecordFields fields_of(const std::string& file) const {
    RecordFields fields = record_fields(file, settings_);
    fields.last_is_optional = settings_.labels_optional;
    return fields;
  }
  std::int32_t class_of(const std::string& file, std::size_t line, const std::string& label) const {
    if (settings_.labels_optional && label.empty()) return -1;
    require_label(file, line, label);
    const auto named = std::ranges::find(classes_, label);
    if (named != classes_.end()) return static_cast<std::int32_t>(named - classes_.begin());
    const std::optional<std::int64_t> number = whole_number(label);
    if (!names_are_numbers_ && number && *number >= 0 &&
        *number < static_cast<std::int64_t>(classes_.size()))
      return static_cast<std::int32_t>(*number);
    throw UserError(
        {.what = fmt::format("the label is not one of the model's {} classes", classes_.size()),
         .file = file,
         .line = line,
         .value = printable(label, 60),
         .remedy = fmt::format("use {}, {}{}; data.bad_lines = \"skip\" skips such lines",
                               printable(classes_.front(), 60), printable(classes_[1], 60),
                               classes_.size() > 2 ? " ..." : "")});
  }

  using TokenIds = std::vector<std::vector<std::int32_t>>;  ///< of each text of a record

  /// Throws UserError with the line if the tokenizer refuses a text.
  TokenIds encoded(const std::string& file, std::size_t line,
                   const std::vector<std::string>& texts) const {
    TokenIds ids;
    try {
      for (const std::string& text : texts) ids.push_back(vocabulary_.tokenizer->encode(text));
    } catch (const UserError& error) {
      Mistake mistake = error.mistake();
      mistake.file = file;
      mistake.line = line;
      throw UserError(mistake);
    }
    return ids;
  }

  LabelledTexts::Sample add(TokenIds ids, std::int32_t label, LabelledSet& set) {
    const std::size_t marks =
        (marks_.begin >= 0 ? 1 : 0) + (marks_.separator >= 0 ? ids.size() : std::size_t{0});
    const std::size_t most = static_cast<std::size_t>(sequence_length_) - marks;
    const KeptTokens kept =
        truncate_longest_first(ids[0].size(), ids.size() > 1 ? ids[1].size() : 0, most);
    if (kept.first < ids[0].size() || (ids.size() > 1 && kept.second < ids[1].size()))
      ++set.truncated;
    LabelledTexts::Sample sample{.start = store_->size(), .label = label};
    std::vector<std::int32_t> tokens;
    if (marks_.begin >= 0) tokens.push_back(marks_.begin);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i].resize(i == 0 ? kept.first : kept.second);
      tokens.insert(tokens.end(), ids[i].begin(), ids[i].end());
      if (marks_.separator >= 0) tokens.push_back(marks_.separator);
      if (i == 0) sample.first = static_cast<std::int32_t>(tokens.size());
    }
    // An empty text without marks still has a row.
    if (tokens.empty()) {
      tokens.push_back(marks_.padding);
      sample.first = 1;
    }
    sample.length = static_cast<std::int32_t>(tokens.size());
    store_->append(tokens);
    return sample;
  }

  const DataSettings& settings_;
  const Vocabulary& vocabulary_;
  const TextMarks marks_;
  const std::vector<std::string>& classes_;
  int sequence_length_;
  /// A number that is not among names such as "1" to "5" is a mistake, not the number of a class.
  bool names_are_numbers_ = std::ranges::all_of(
      classes_, [](const std::string& name) { return whole_number(name).has_value(); });
  std::shared_ptr<TokenStore> store_;
};

std::string counts_text(const std::vector<LabelledTexts::Sample>& samples,
                        const std::vector<std::string>& classes) {
  std::vector<std::uint64_t> counts(classes.size());
  for (const LabelledTexts::Sample& sample : samples)
    ++counts[static_cast<std::size_t>(sample.label)];
  constexpr std::size_t kShown = 8;
  std::string text = "training samples by class: ";
  for (std::size_t c = 0; c < std::min(kShown, classes.size()); ++c)
    text += fmt::format("{}{} {}", c > 0 ? ", " : "", printable(classes[c], 40), counts[c]);
  if (classes.size() > kShown)
    text += fmt::format(" ... ({} classes, {} to {} samples)", classes.size(),
                        *std::ranges::min_element(counts), *std::ranges::max_element(counts));
  return text;
}

}  // namespace

std::vector<std::string> labels_of_files(const DataSettings& settings) {
  std::set<std::string> found;
  for (const std::string& file : settings.train) {
    RecordFields fields = record_fields(file, settings);
    fields.names = {settings.labelled.label};
    read_records(
        file, settings.bad_lines, fields,
        [&](std::vector<std::string>&& values, std::size_t line) {
          require_label(file, line, values.front());
          return std::move(values.front());
        },
        [&](const std::string& label) { found.insert(label); });
  }
  std::vector<std::string> labels(found.begin(), found.end());
  if (labels.size() < 2)
    throw UserError({.what = "the training files have fewer than two labels",
                     .value = labels.empty() ? "none" : printable(labels.front(), 60),
                     .remedy = "name the field of the labels in data.labelled.label",
                     .keys = {"data.labelled.label", "data.train"}});
  const auto is_number = [](const std::string& label) { return whole_number(label).has_value(); };
  if (std::ranges::all_of(labels, is_number))
    std::ranges::sort(labels, {}, [](const std::string& label) { return *whole_number(label); });
  return labels;
}

std::vector<std::string> labelled_training_texts(const DataSettings& settings) {
  std::vector<std::string> texts;
  for (const std::string& file : settings.train) {
    RecordFields fields = record_fields(file, settings);
    fields.names = settings.labelled.texts;
    read_records(
        file, settings.bad_lines, fields,
        [](std::vector<std::string>&& values, std::size_t) { return std::move(values); },
        [&](std::vector<std::string>& values) {
          for (std::string& text : values) texts.push_back(std::move(text));
        });
  }
  return texts;
}

DataSplit load_labelled_texts(const DataSettings& settings, const Vocabulary& vocabulary,
                              const std::vector<std::string>& classes, int sequence_length) {
  DELTAPIPE_ASSERT(vocabulary.tokenizer != nullptr && classes.size() >= 2,
                   fmt::format("{} classes", classes.size()));
  const TextMarks marks = vocabulary.tokenizer->marks();
  const int least = 1 + (marks.begin >= 0 ? 1 : 0) +
                    (marks.separator >= 0 ? static_cast<int>(settings.labelled.texts.size()) : 0);
  if (sequence_length < least)
    throw UserError({.what = "samples are too short for their texts",
                     .value = std::to_string(sequence_length),
                     .remedy = fmt::format("set data.sequence_length to at least {}", least),
                     .keys = {"data.sequence_length"}});
  SetReader reader(settings, vocabulary, classes, sequence_length);
  LabelledSet train = reader.read(settings.train);
  LabelledSet validation;
  if (settings.validation.empty())
    validation.samples = hold_out_at_random(train.samples, settings.validation_fraction);
  else
    validation = reader.read(settings.validation);
  limit(train.samples, settings.max_train_samples);
  limit(validation.samples, settings.max_validation_samples);
  DataSplit split;
  if (!settings.train.empty()) split.notes.push_back(counts_text(train.samples, classes));
  if (const std::uint64_t truncated = train.truncated + validation.truncated; truncated > 0)
    split.notes.push_back(fmt::format("{} {} truncated to {} tokens (training and validation)",
                                      truncated, truncated == 1 ? "sample is" : "samples are",
                                      sequence_length));
  const auto set_of = [&](std::vector<LabelledTexts::Sample>& samples) {
    return std::make_shared<LabelledTexts>(reader.store(), std::move(samples), sequence_length,
                                           marks.padding);
  };
  split.train = set_of(train.samples);
  split.validation = set_of(validation.samples);
  for (LabelledSet* set : {&train, &validation})
    for (SkippedLines& skipped : set->skipped) split.skipped.push_back(std::move(skipped));
  return split;
}

}  // namespace deltapipe
