// SPDX-License-Identifier: BSD-3-Clause
// toml++ for the deck's sources, which include nothing else of it.
// Where toml++ is used as headers its assertions become exceptions in every build type: version 3.3
// finds some mistakes, as a section name that starts with a letter outside ASCII, by an assertion
// first.
#pragma once

#include <exception>

namespace deltapipe {

struct TomlAssertion : std::exception {};

[[noreturn]] inline void throw_toml_assertion() {
  throw TomlAssertion();
}

}  // namespace deltapipe

#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::deltapipe::throw_toml_assertion())
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")
