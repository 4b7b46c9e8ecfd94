// SPDX-License-Identifier: BSD-3-Clause
#include <catch2/catch.hpp>

#include "core/base/error.hpp"
#include "core/files/input_file.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::message_of;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

TEST_CASE("A text file is read whole or refused", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  write_bytes(path, std::string("x\0y\n", 4));
  CHECK(read_text_file(path, 100) == std::string("x\0y\n", 4));
  CHECK(read_text_file(path, 4).size() == 4);
  CHECK(message_of<UserError>([&] { read_text_file(path, 3); }).find("4 bytes") !=
        std::string::npos);
  write_bytes(path, "");
  CHECK(read_text_file(path, 100).empty());
  CHECK(message_of<UserError>([&] { read_text_file(directory / "none", 100); }) ==
        (directory / "none") + ": cannot be read: No such file or directory; check the path");
  CHECK_THROWS_AS(read_text_file(directory.path(), 100), UserError);
  CHECK_THROWS_AS(read_text_file("/dev/zero", 100), UserError);
}
