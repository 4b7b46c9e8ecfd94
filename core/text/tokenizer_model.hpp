// SPDX-License-Identifier: BSD-3-Clause
// The interface of the kinds of tokenizers behind Tokenizer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/text/tokenizer.hpp"

namespace deltapipe {

/// See Tokenizer for the member functions. Several threads may call them.
class TokenizerModel {
 public:
  virtual ~TokenizerModel() = default;
  virtual void encode_to(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  virtual std::size_t safe_cut(std::string_view text) const = 0;
  virtual int vocabulary_size() const = 0;
  /// Returns the bytes that ids depend on, in a form that no other tokenizer has.
  virtual std::string identity() const = 0;
  virtual std::int32_t end_of_text() const = 0;
  virtual TextMarks marks() const = 0;
  virtual const std::vector<std::string>& warnings() const = 0;
  virtual void save(const std::string&) const {
    DELTAPIPE_ASSERT(false, "only trained tokenizers are written; files of others are copied");
  }
};

}  // namespace deltapipe
