// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/dataset.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"
#include "core/data/corpus.hpp"
#include "core/data/split.hpp"
#include "core/data/token_store.hpp"

namespace deltapipe {
namespace {

/// Collects the documents of a set and cuts them into windows.
class SetBuilder : public TokenSink {
 public:
  SetBuilder(const Vocabulary& vocabulary, Packing packing, int sequence_length)
      : end_of_text_(vocabulary.end_of_text),
        packing_(packing),
        sequence_length_(sequence_length),
        store_(std::make_shared<TokenStore>(vocabulary.size)) {}

  void append(std::span<const std::int32_t> ids) override {
    if (ids.empty()) return;
    store_->append(ids);
    last_ = ids.back();
  }

  void end_document() override {
    const bool empty = store_->size() == document_start_;
    if (!empty && end_of_text_ >= 0 && last_ != end_of_text_) store_->append({&end_of_text_, 1});
    if (packing_ == Packing::document) cut(document_start_);
    document_start_ = store_->size();
  }

  void skip_lines(const SkippedLines& lines) override { skipped_.push_back(lines); }
  const std::vector<SkippedLines>& skipped() const { return skipped_; }

  /// Returns the windows of all documents, in order.
  std::vector<TokenWindow> windows() {
    if (packing_ == Packing::stream) cut(0);
    return std::move(windows_);
  }
  std::shared_ptr<const TokenStore> store() const { return store_; }

 private:
  /// Cuts the tokens from `start` to the end of the store: n tokens have n - 1 targets.
  void cut(std::uint64_t start) {
    const auto length = static_cast<std::uint64_t>(sequence_length_);
    for (; start + 1 < store_->size(); start += length) {
      windows_.push_back(
          {start, static_cast<std::int32_t>(std::min(length, store_->size() - 1 - start))});
    }
  }

  std::int32_t end_of_text_;
  Packing packing_;
  int sequence_length_;
  std::shared_ptr<TokenStore> store_;
  std::vector<TokenWindow> windows_;
  std::uint64_t document_start_ = 0;
  std::int32_t last_ = -1;
  std::vector<SkippedLines> skipped_;
};

[[noreturn]] void fail(const char* key, const std::string& what, const std::string& value,
                       const std::string& remedy) {
  throw UserError({.what = what, .value = value, .remedy = remedy, .keys = {key}});
}

struct CutSet {
  std::shared_ptr<const TokenStore> store;
  std::vector<TokenWindow> windows;
  std::vector<SkippedLines> skipped;
};

CutSet read_set(const std::vector<std::string>& files, const char* key,
                const DataSettings& settings, const Vocabulary& vocabulary, int sequence_length) {
  SetBuilder builder(vocabulary, settings.packing, sequence_length);
  for (const std::string& file : files) read_tokens(file, settings, vocabulary, builder);
  CutSet set{builder.store(), builder.windows(), builder.skipped()};
  if (set.windows.empty()) {
    fail(key, fmt::format("the files of {} give no sample", key),
         fmt::format("{} tokens in {} files", set.store->size(), files.size()),
         "give files with at least two tokens");
  }
  return set;
}

/// Reads prompts with answers. Each of them is a sample whose targets are the answer and its end.
CutSet read_answer_set(const DataSettings& settings, const Vocabulary& vocabulary,
                       int sequence_length) {
  const auto store = std::make_shared<TokenStore>(vocabulary.size);
  CutSet set{store, {}, {}};
  for (const std::string& file : settings.answers.files) {
    const SkippedLines skipped = read_answers(
        file, settings, vocabulary, sequence_length, [&](const PromptWithAnswer& sample) {
          set.windows.push_back({store->size(), static_cast<std::int32_t>(sample.tokens.size() - 1),
                                 static_cast<std::int32_t>(sample.first_of_answer - 1)});
          store->append(sample.tokens);
        });
    if (skipped.count > 0) set.skipped.push_back(skipped);
  }
  return set;
}

void put_little_endian(std::vector<unsigned char>& bytes, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<unsigned char>(value >> (8 * i)));
}

}  // namespace

std::uint64_t held_out(std::uint64_t samples, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {
    fail("data.validation_fraction", "data.validation_fraction is not a fraction",
         std::to_string(fraction), "set it from 0 to below 1");
  }
  if (fraction == 0) return 0;
  if (samples < 2) {
    fail("data.train", "the training data has only one sample, none can be held out for validation",
         "", "give more data, a shorter data.sequence_length, or files in data.validation");
  }
  const auto wanted =
      static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(samples)));
  return std::clamp<std::uint64_t>(wanted, 1, samples - 1);
}

TokenDataset::TokenDataset(std::shared_ptr<const TokenStore> store,
                           std::vector<TokenWindow> windows, int sequence_length,
                           std::int32_t padding)
    : store_(std::move(store)),
      windows_(std::move(windows)),
      sequence_length_(sequence_length),
      padding_(padding) {
  for (std::uint64_t id = 0; id < size(); ++id) targets_ += static_cast<std::uint64_t>(targets(id));
}

TokenDataset TokenDataset::outline(std::vector<TokenWindow> windows, int sequence_length,
                                   std::int32_t padding, std::uint64_t fingerprint) {
  for (const TokenWindow& window : windows)
    DELTAPIPE_ASSERT(window.length >= 0 && window.length <= sequence_length &&
                         window.first_target >= 0 && window.first_target <= window.length,
                     fmt::format("{} tokens", window.length));
  TokenDataset set(nullptr, std::move(windows), sequence_length, padding);
  set.outlined_ = fingerprint;
  return set;
}

TokenDataset TokenDataset::at_target(int index, std::span<const std::uint64_t> ids) const {
  TokenDataset set = *this;
  set.windows_.clear();
  for (const std::uint64_t id : ids) {
    DELTAPIPE_ASSERT(index >= 0 && index < targets(id), fmt::format("target {}", index));
    const int first = first_target(id) + index;
    set.windows_.push_back({windows_[id].start, first + 1, first});
  }
  set.targets_ = ids.size();
  return set;
}

int TokenDataset::read(std::uint64_t id, std::span<std::int32_t> inputs_T,
                       std::span<std::int32_t> targets_T) const {
  DELTAPIPE_ASSERT(id < windows_.size(), fmt::format("sample {}", id));
  const auto width = static_cast<std::size_t>(sequence_length_);
  const auto fits = [&](std::size_t size) { return size == width || size == 0; };
  DELTAPIPE_ASSERT(fits(inputs_T.size()) && fits(targets_T.size()),
                   fmt::format("spans of {} and {}", inputs_T.size(), targets_T.size()));
  const TokenWindow window = windows_[id];
  const auto length = static_cast<std::size_t>(outlined_ ? 0 : window.length);
  if (!inputs_T.empty()) {
    if (length > 0) store_->copy(window.start, inputs_T.first(length));
    std::fill(inputs_T.begin() + length, inputs_T.end(), padding_);
  }
  if (!targets_T.empty()) {
    if (length > 0) store_->copy(window.start + 1, targets_T.first(length));
    std::fill(targets_T.begin(), targets_T.begin() + window.first_target, -1);
    std::fill(targets_T.begin() + length, targets_T.end(), -1);
  }
  return window.length;
}

std::uint64_t TokenDataset::fingerprint() const {
  if (outlined_) return *outlined_;
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state(XXH64_createState(),
                                                                         &XXH64_freeState);
  DELTAPIPE_ASSERT(state != nullptr, "xxHash has no memory");
  XXH64_reset(state.get(), 0);
  std::vector<unsigned char> bytes;
  put_little_endian(bytes, static_cast<std::uint64_t>(sequence_length_), 8);
  put_little_endian(bytes, size(), 8);
  std::vector<std::int32_t> ids;
  for (const TokenWindow& window : windows_) {
    ids.resize(static_cast<std::size_t>(window.length) + 1);
    store_->copy(window.start, ids);
    put_little_endian(bytes, static_cast<std::uint64_t>(window.length), 8);
    if (window.first_target > 0)
      put_little_endian(bytes, static_cast<std::uint64_t>(window.first_target), 8);
    for (const std::int32_t id : ids) put_little_endian(bytes, static_cast<std::uint32_t>(id), 4);
    XXH64_update(state.get(), bytes.data(), bytes.size());
    bytes.clear();
  }
  XXH64_update(state.get(), bytes.data(), bytes.size());
  return XXH64_digest(state.get());
}

DataSplit load_data(const DataSettings& settings, const Vocabulary& vocabulary,
                    int sequence_length) {
  if (sequence_length < 1) {
    fail("data.sequence_length", "a sample has no tokens", std::to_string(sequence_length),
         "set data.sequence_length to at least 1");
  }
  if (settings.train.empty())
    fail("data.train", "there is no training data", "", "name files in data.train");
  CutSet train = read_set(settings.train, "data.train", settings, vocabulary, sequence_length);
  CutSet validation{train.store, {}, {}};
  if (!settings.validation.empty()) {
    validation =
        read_set(settings.validation, "data.validation", settings, vocabulary, sequence_length);
  } else {
    const std::uint64_t kept =
        train.windows.size() - held_out(train.windows.size(), settings.validation_fraction);
    validation.windows.assign(train.windows.begin() + static_cast<std::ptrdiff_t>(kept),
                              train.windows.end());
    train.windows.resize(kept);
  }
  limit(train.windows, settings.max_train_samples);
  limit(validation.windows, settings.max_validation_samples);
  std::vector<SkippedLines> skipped = std::move(train.skipped);
  skipped.insert(skipped.end(), validation.skipped.begin(), validation.skipped.end());
  if (!settings.answers.files.empty() && validation.windows.empty())
    fail("evaluation.prompts", "there are prompts with answers but no validation data", "",
         "set data.validation_fraction above 0 or name files in data.validation: evaluations "
         "report loss and exact match");
  CutSet answers = read_answer_set(settings, vocabulary, sequence_length);
  skipped.insert(skipped.end(), answers.skipped.begin(), answers.skipped.end());
  const std::int32_t padding = std::max(vocabulary.end_of_text, 0);
  const auto set_of = [&](CutSet& set) {
    return TokenDataset(std::move(set.store), std::move(set.windows), sequence_length, padding);
  };
  return {std::make_shared<TokenDataset>(set_of(train)),
          std::make_shared<TokenDataset>(set_of(validation)),
          set_of(answers),
          std::move(skipped),
          {}};
}

}  // namespace deltapipe
