// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe {

namespace {

/// Returns the word of Python's json (NaN, Infinity) at the start of `text`, or nothing.
std::string_view not_finite(std::string_view text) {
  for (const std::string_view word : {"NaN", "Infinity", "-Infinity"})
    if (text.starts_with(word)) return word;
  return {};
}

constexpr const char* kHalfPair =
    "a \\u escape is half of a pair of surrogates, a character that was cut in two: remove it; in "
    "data, data.bad_lines = \"skip\" skips the line";

bool may_have_nan(std::string_view text) {
  return text.find("NaN") != std::string_view::npos ||
         text.find("Infinity") != std::string_view::npos;
}

/// Returns a copy with null instead of the words that JSON lacks. It is padded so that the text
/// after a word keeps its column, except after NaN, which is shorter than null.
std::string with_nulls(std::string_view text) {
  std::string copy;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view word = in_string ? std::string_view() : not_finite(text.substr(i));
    if (!word.empty()) {
      copy += "null";
      if (word.size() > 4) copy.append(word.size() - 4, ' ');
      i += word.size() - 1;
      continue;
    }
    copy += text[i];
    if (text[i] == '"') in_string = !in_string;
    if (in_string && text[i] == '\\' && i + 1 < text.size()) copy += text[++i];
  }
  return copy;
}

/// Reads characters and counts them for the receiver of the events.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit CountingIterator(const char** position) : position_(position) {}
  reference operator*() const { return **position_; }
  CountingIterator& operator++() {
    ++*position_;
    return *this;
  }
  CountingIterator operator++(int) = delete;
  bool operator==(const CountingIterator& other) const { return *position_ == *other.position_; }
  bool operator!=(const CountingIterator& other) const { return !(*this == other); }

 private:
  const char** position_;
};

using Wanted = std::function<bool(const std::string&)>;
using Take = std::function<void(const std::string&, Json&&)>;

/// Receives the parser's events. Builds either the whole value or, with `take`, the members of the
/// outermost object one after another.
class Builder {
 public:
  Builder(std::string_view text, const JsonSource& source, const Wanted* wanted, const Take* take)
      : text_(text), source_(source), wanted_(wanted), take_(take) {}

  Json parse() {
    std::string copy;
    if (source_.nan_is_null && may_have_nan(text_)) text_ = copy = with_nulls(text_);
    const std::size_t nul = text_.find('\0');
    if (nul != std::string_view::npos) {  // the parser would treat it as the end of the text
      position_ = text_.data() + nul + 1;
      refuse("is not valid JSON: it has a NUL byte");
    }
    position_ = text_.data();
    end_ = text_.data() + text_.size();
    Json::sax_parse(CountingIterator(&position_), CountingIterator(&end_), this);
    return std::move(root_);
  }

  // The interface that the parser calls; false would stop it, but is never needed.
  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(Json::number_integer_t value) { return scalar(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return scalar(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return scalar(value); }
  bool string(std::string& value) { return scalar(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }  // not in JSON text
  bool start_object(std::size_t) { return start(Json::value_t::object); }
  bool start_array(std::size_t) { return start(Json::value_t::array); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }

  bool key(std::string& name) {
    if (depth_ == 1 && take_ != nullptr) {
      if (!names_.insert(name).second) twice(name);
      skipping_ = !(*wanted_)(name);
      name_ = std::move(name);
      root_ = Json();
      values_ = 0;
      slot_ = &root_;
      return true;
    }
    if (skipping_) return true;
    auto& object = open_.back()->get_ref<Json::object_t&>();
    const auto [place, is_new] = object.try_emplace(std::move(name), nullptr);
    if (!is_new) twice(name);
    slot_ = &place->second;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ..."
    std::string reason = error.what();
    for (const char* part : {"] ", "parse error at "}) {
      const std::size_t begin = reason.find(part);
      if (begin != std::string::npos) reason.erase(0, begin + std::string(part).size());
    }
    if (reason.starts_with("line ")) {
      const std::size_t colon = reason.find(": ");
      if (colon != std::string::npos) reason.erase(0, colon + 2);
    }
    const char* const last = position_ > text_.data() ? position_ - 1 : position_;
    const bool is_python =
        !not_finite(text_.substr(static_cast<std::size_t>(last - text_.data()))).empty();
    refuse("is not valid JSON: " + printable(reason, 200),
           is_python                                       ? "write a number or null instead"
           : reason.find("surrogate") != std::string::npos ? kHalfPair
                                                           : source_.remedy);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse(what, source_.remedy); }

  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const {
    const auto read = text_.substr(0, static_cast<std::size_t>(position_ - text_.data()));
    Mistake mistake{.what = source_.subject + what, .file = source_.file, .remedy = remedy};
    if (source_.line == 0) {
      mistake.what += fmt::format(" (byte {} of the JSON text)", read.size());
    } else {
      // The place is that of the last character read.
      const auto before = read.substr(0, read.empty() ? 0 : read.size() - 1);
      const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
      mistake.line =
          source_.line + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
      mistake.column = before.size() - line_start + 1;
    }
    throw UserError(mistake);
  }

  [[noreturn]] void twice(const std::string& name) const {
    refuse("has the key '" + printable(name, 200) + "' twice");
  }

  /// Target of the next value; null: it is skipped.
  Json* place() {
    if (skipping_) return nullptr;
    if (++values_ > source_.max_values) refuse("has too many values");
    if (open_.empty() || open_.back()->is_object()) return slot_;
    auto& array = open_.back()->get_ref<Json::array_t&>();
    array.emplace_back();
    return &array.back();
  }

  template <class Value>
  bool scalar(Value&& value) {
    if (take_ != nullptr && depth_ == 0) refuse("is not a JSON object");
    if (Json* const target = place()) *target = std::forward<Value>(value);
    deliver();
    return true;
  }

  bool start(Json::value_t type) {
    if (++depth_ > source_.max_depth) {
      refuse(fmt::format("is nested deeper than {} levels", source_.max_depth));
    }
    if (take_ != nullptr && depth_ == 1) {
      if (type != Json::value_t::object) refuse("is not a JSON object");
      return true;
    }
    if (Json* const target = place()) {
      *target = Json(type);
      open_.push_back(target);
    }
    return true;
  }

  bool end() {
    --depth_;
    if (!skipping_ && !open_.empty()) open_.pop_back();
    deliver();
    return true;
  }

  /// Passes a complete member to `take`.
  void deliver() {
    if (take_ == nullptr || depth_ != 1) return;
    if (!skipping_) (*take_)(name_, std::move(root_));
    skipping_ = false;
  }

  std::string_view text_;
  const JsonSource& source_;
  const Wanted* wanted_;
  const Take* take_;
  const char* position_ = nullptr;
  const char* end_ = nullptr;
  Json root_;
  Json* slot_ = &root_;
  std::vector<Json*> open_;  // open arrays and objects, the innermost last
  int depth_ = 0;
  std::size_t values_ = 0;
  // Members of the outermost object: names so far, the current one, and true if it is skipped.
  std::unordered_set<std::string> names_;
  std::string name_;
  bool skipping_ = false;
};

constexpr std::size_t most_shown = 60;

/// Appends the value's text, or only part of it if `text` is already long enough.
void append_shown(const Json& value, std::string& text) {
  if (text.size() > most_shown) return;
  if (value.is_structured()) {
    const bool is_object = value.is_object();
    text += is_object ? '{' : '[';
    const char* separator = "";
    for (auto item = value.begin(); item != value.end() && text.size() <= most_shown; ++item) {
      text += separator;
      separator = ",";
      if (is_object) {
        append_shown(Json(item.key().substr(0, 2 * most_shown)), text);
        text += ':';
      }
      append_shown(*item, text);
    }
    text += is_object ? '}' : ']';
    return;
  }
  constexpr auto replace = Json::error_handler_t::replace;
  if (const auto* string = value.get_ptr<const std::string*>()) {
    text += Json(string->substr(0, 2 * most_shown)).dump(-1, ' ', false, replace);
  } else {
    text += value.dump(-1, ' ', false, replace);
  }
}

}  // namespace

Json parse_json(std::string_view text, const JsonSource& source) {
  return Builder(text, source, nullptr, nullptr).parse();
}

Json read_json_file(const std::string& path, std::uint64_t max_bytes) {
  const std::string text = read_text_file(path, max_bytes);
  return parse_json(text, {.file = path});
}

void for_each_json_member(std::string_view text, const JsonSource& source, const Wanted& wanted,
                          const Take& take) {
  Builder(text, source, &wanted, &take).parse();
}

std::string shown(const Json& value) {
  std::string text;
  append_shown(value, text);
  return printable(text, most_shown);
}

}  // namespace deltapipe
