// SPDX-License-Identifier: BSD-3-Clause
// What the fuzz targets share: files in a scratch directory, and what a reader may throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace deltapipe::fuzz {

/// One directory for the life of the process, in memory where the system has a place for that.
inline const std::filesystem::path& scratch() {
  static const struct Scratch {
    Scratch() {
      const char* const asked = std::getenv("TMPDIR");
      const std::string base = asked != nullptr                      ? asked
                               : std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                                     : "/tmp";
      std::string name = base + "/deltapipe-fuzz-XXXXXX";
      if (::mkdtemp(name.data()) == nullptr) std::abort();
      path = name;
    }
    ~Scratch() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::filesystem::path path;
  } directory;
  return directory.path;
}

inline std::string write(const std::string& name, std::string_view bytes) {
  const std::string path = (scratch() / name).string();
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

inline void remove(const std::string& name) {
  std::filesystem::remove(scratch() / name);
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// The parts of an input between the bytes 0xFE, which no UTF-8 text has.
inline std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == '\xFE') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// Stops the fuzzer where something that has to hold does not.
inline void expect(bool condition) {
  if (!condition) std::abort();
}

/// Counts inputs by what they are for; the counts are printed when the fuzzer ends.
inline void count(const char* what) {
  static struct Counts {
    ~Counts() {
      std::string line;
      for (const auto& [name, inputs] : of)
        line += (line.empty() ? "" : ", ") + name + " " + std::to_string(inputs);
      std::fprintf(stderr, "inputs: %s\n", line.c_str());
    }
    std::map<std::string, std::uint64_t> of;
  } counts;
  ++counts.of[what];
}

/// For LLVMFuzzerCustomMutator: three of four inputs get another first byte, so that whatever it
/// chooses has its share of the inputs, however much there is to find elsewhere.
inline std::size_t mutate_with_choice(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                      unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (size > 0 && seed % 4 != 0) data[0] = static_cast<std::uint8_t>(seed >> 8);
  return size;
}

/// A reader takes its input or throws a UserError of one short printable line; true if it took it.
/// Anything else that it throws ends the fuzzer.
template <class Read>
bool takes(const Read& read) {
  try {
    read();
    return true;
  } catch (const UserError& error) {
    const std::string_view message = error.what();
    expect(printable(message) == message && !message.empty() && message.size() < 16384);
    return false;
  }
}

}  // namespace deltapipe::fuzz
