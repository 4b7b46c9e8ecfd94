// SPDX-License-Identifier: BSD-3-Clause
// Errors: a user's mistake is one message that names place, value and remedy; a broken invariant is
// a bug and names the source line.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace deltapipe {

/// Information for a user to correct a mistake. The message omits empty parts. Parts may hold text
/// of outside origin (names, tokens, lines). The message shows such text as printable() does and
/// cuts it if it is very long.
struct Mistake {
  std::string what = {};    ///< the mistake, as a sentence fragment: "unknown key 'lerning_rate'"
  std::string file = {};    ///< the file it is in, as the user named it
  std::size_t line = 0;     ///< counted from 1; 0: unknown
  std::size_t column = 0;   ///< counted from 1; 0: unknown
  std::string value = {};   ///< the offending value
  std::string remedy = {};  ///< the action to take: "use one of none, fp16, bf16"
  /// Keys of the deck that are at fault, the likeliest first: "data.train". The reader of the deck
  /// adds their places (app/deck/places.hpp). Empty: the mistake is not in a deck.
  std::vector<std::string> keys = {};
};

/// Thrown for everything that a user can correct: decks, files, data, layouts, full disks.
/// what() is the whole message, one line: "FILE:LINE:COLUMN: WHAT (got VALUE); REMEDY".
class UserError : public std::runtime_error {
 public:
  explicit UserError(const Mistake& mistake);
  const Mistake& mistake() const { return *mistake_; }

 private:
  std::shared_ptr<const Mistake> mistake_;  // copies of an exception must not throw
};

/// Thrown when the program itself is wrong; what() names the condition and the source line.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_internal_error(const char* condition, const char* file, int line,
                                       const std::string& detail);

}  // namespace deltapipe

/// Checks an invariant in every build type; throws InternalError. Not for mistakes of the user.
#define DELTAPIPE_ASSERT(condition, detail)                                                        \
  do {                                                                                             \
    if (!(condition)) ::deltapipe::throw_internal_error(#condition, __FILE__, __LINE__, (detail)); \
  } while (false)
