// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/hdf5.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

#include "core/base/error.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::FileSizeLimit;
using deltapipe::testing::message_of;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

TEST_CASE("HDF5 attributes come back as written", "[files][hdf5]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.h5";
  const std::string large(200000, 'x');
  {
    hdf5::File file = hdf5::File::create(path);
    file.write_attribute("text", "old, to be replaced by another kind");
    file.write_attribute("text", 7);
    file.write_attribute("text", "grün");
    file.write_attribute("empty", "");
    file.write_attribute("large", large);
    file.write_attribute("pi", 3.25);
    file.write_attribute("huge", std::uint64_t{0xFFFFFFFFFFFFFFFF});
    file.write_attribute("list", std::vector<int>{3, -1, 4});
    file.write_attribute("none", std::vector<int>{});
    file.write_attribute("names", std::vector<std::string>{"a", "bc"});
    file.close();
  }
  const hdf5::File file = hdf5::File::open_read_only(path);
  CHECK(file.read_string_attribute("text") == "grün");
  CHECK(file.read_string_attribute("empty").empty());
  CHECK(file.read_string_attribute("large") == large);
  CHECK(file.read_attribute<double>("pi") == 3.25);
  CHECK(file.read_attribute<std::uint64_t>("huge") == 0xFFFFFFFFFFFFFFFF);
  CHECK(file.read_vector_attribute<int>("list") == std::vector<int>{3, -1, 4});
  CHECK(file.read_vector_attribute<int>("none").empty());
  CHECK(file.has_attribute("names"));
  CHECK_FALSE(file.has_attribute("missing"));
  CHECK(message_of<UserError>([&] {
          file.read_string_attribute("missing");
        }).find(path + ": has no attribute 'missing'") == 0);
  CHECK_THROWS_AS(file.read_string_attribute("pi"), UserError);
  CHECK_THROWS_AS(file.read_string_attribute("names"), UserError);
  CHECK_THROWS_AS(file.read_attribute<double>("list"), UserError);
  CHECK_THROWS_AS(file.read_attribute<double>("text"), UserError);
}

TEST_CASE("HDF5 attributes of files that may be damaged", "[files][hdf5]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "p.h5";
  {
    hdf5::File file = hdf5::File::create(path, {.checksummed = true});
    file.write_fixed_attribute("fixed", "grün");
    file.write_fixed_attribute("empty", "");
    file.write_attribute("variable", "text");
    file.write_attribute("huge", std::uint64_t{0xFFFFFFFFFFFFFFFF});
    file.write_attribute("negative", -7);
    file.write_attribute("real", 3.25);
    file.write_attribute("list", std::vector<int>{3, -1, 4});
    file.close();
  }
  const hdf5::File file = hdf5::File::open_read_only(path);
  CHECK(file.find_plain_attribute("fixed") == "grün");
  CHECK(file.find_plain_attribute("empty") == "");
  CHECK(file.find_plain_attribute("huge") == "18446744073709551615");
  CHECK(file.find_plain_attribute("negative") == "-7");
  for (const char* name : {"variable", "real", "list", "missing"}) {
    INFO(name);
    CHECK_FALSE(file.find_plain_attribute(name).has_value());
  }
  CHECK(file.read_string_attribute("fixed") == "grün");
}

TEST_CASE("HDF5 says where elements lie that keep their places", "[files][hdf5]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "o.h5";
  {
    hdf5::File file = hdf5::File::create(path, {.checksummed = true, .alignment = 4096});
    file.create_dataset(
        "fixed", hdf5::ElementType::u8, {50, 300},
        {.chunk = {1, 300}, .extendable = false, .allocate_early = true, .fill = false});
    file.create_dataset("table", hdf5::ElementType::u32, {50},
                        {.chunk = {}, .allocate_early = true});
    file.create_dataset("unwritten", hdf5::ElementType::u32, {50});
    file.create_dataset("growing", hdf5::ElementType::u8, {0, 4}, {.chunk = {8, 4}});
    hdf5::Dataset fixed = file.open_dataset("fixed");
    for (std::uint64_t row = 0; row < 50; ++row)
      fixed.write<std::uint8_t>(row,
                                std::vector<std::uint8_t>(300, static_cast<std::uint8_t>(row)));
    CHECK_THROWS_AS(fixed.resize(51), UserError);
    file.close();
  }
  CHECK_THROWS_AS(hdf5::File::create(path, {.replace = false, .shown_path = "shown.h5"}),
                  UserError);
  CHECK(message_of<UserError>([&] {
          hdf5::File::create(path, {.replace = false, .shown_path = "shown.h5"});
        }).find("shown.h5: cannot be created") == 0);
  const hdf5::File file = hdf5::File::open_read_only(path);
  const hdf5::Dataset fixed = file.open_dataset("fixed");
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  for (const std::uint64_t row : {0, 1, 31, 49}) {
    const auto offset = fixed.chunk_file_offset(row, 300);
    REQUIRE(offset.has_value());
    CHECK(*offset == *fixed.chunk_file_offset(0, 300) + 300 * row);
    CHECK(bytes.substr(*offset, 300) == std::string(300, static_cast<char>(row)));
  }
  CHECK_FALSE(fixed.chunk_file_offset(0, 299).has_value());
  CHECK_FALSE(fixed.file_offset().has_value());
  CHECK(file.open_dataset("table").file_offset().value_or(0) > 0);
  CHECK_FALSE(file.open_dataset("unwritten").file_offset().has_value());
  CHECK_FALSE(file.open_dataset("growing").chunk_file_offset(0, 32).has_value());
}

TEST_CASE("HDF5 datasets grow and are read in slices", "[files][hdf5]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "d.h5";
  std::vector<float> values(35);
  std::iota(values.begin(), values.end(), 0.0F);
  const std::vector<std::uint16_t> halves = {0x3C00, 0xC000, 0x7E00};
  {
    hdf5::File file = hdf5::File::create(path);
    hdf5::Group group = file.create_group("g");
    hdf5::Dataset matrix =
        group.create_dataset("m", hdf5::ElementType::f32, {0, 5}, {.chunk = {2, 5}});
    matrix.append(std::span<const float>(values).first(15));
    matrix.append(std::span<const float>());
    matrix.append(std::span<const float>(values).subspan(15));
    matrix.write_attribute("unit", "m/s");
    hdf5::Dataset half = file.create_dataset("h", hdf5::ElementType::f16, {3});
    half.write_elements(0, 3, hdf5::ElementType::f16, halves.data());
    hdf5::Dataset narrow = file.create_dataset("narrow", hdf5::ElementType::f64, {0, 0},
                                               {.chunk = {4, 1}, .deflate_level = 1});
    narrow.resize(9);
    CHECK_THROWS_AS(half.append_elements(1, hdf5::ElementType::f16, halves.data()), UserError);
    CHECK_THROWS_AS(matrix.write(6, std::span<const float>(values).first(10)), InternalError);
    CHECK_THROWS_AS(matrix.append(std::span<const float>(values).first(7)), InternalError);
    CHECK_THROWS_AS(file.create_group("g"), UserError);
    file.close();
  }
  const hdf5::File file = hdf5::File::open_read_only(path);
  CHECK(file.names() == std::vector<std::string>{"g", "h", "narrow"});
  CHECK(file.exists("g"));
  CHECK_FALSE(file.exists("x"));
  const hdf5::Dataset matrix = file.open_group("g").open_dataset("m");
  CHECK(matrix.shape() == std::vector<std::uint64_t>{7, 5});
  CHECK(matrix.read_string_attribute("unit") == "m/s");
  CHECK(matrix.element_type() == hdf5::ElementType::f32);
  std::vector<double> rows(15);
  matrix.read(2, std::span<double>(rows));
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(rows[i] == 10.0 + static_cast<double>(i));
  const hdf5::Dataset half = file.open_dataset("h");
  CHECK(half.element_type() == hdf5::ElementType::f16);
  std::vector<float> converted(3);
  half.read(0, std::span<float>(converted));
  CHECK(converted[0] == 1.0F);
  CHECK(converted[1] == -2.0F);
  CHECK(std::isnan(converted[2]));
  CHECK(file.open_dataset("narrow").shape() == std::vector<std::uint64_t>{9, 0});
}

TEST_CASE("HDF5 failures name the file and the reason", "[files][hdf5]") {
  const TemporaryDirectory directory;
  const auto open = [](const std::string& path) {
    return message_of<UserError>([&] { hdf5::File::open_read_only(path); });
  };
  CHECK(open(directory / "none.h5") ==
        (directory / "none.h5") + ": cannot be read: No such file or directory; check the path");
  write_bytes(directory / "text.h5", "not HDF5 at all");
  CHECK(open(directory / "text.h5").find("not a (complete) HDF5 file") != std::string::npos);
  write_bytes(directory / "empty.h5", "");
  CHECK(open(directory / "empty.h5").find("not a (complete) HDF5 file") != std::string::npos);
  CHECK(open(directory.path()).find(directory.path() + ": cannot be read: Is a directory") == 0);
  CHECK(message_of<UserError>([&] {
          hdf5::File::create(directory / "no/such/place.h5");
        }).find("No such file or directory") != std::string::npos);

  const std::string cut = directory / "cut.h5";
  {
    hdf5::File file = hdf5::File::create(cut);
    hdf5::Dataset data = file.create_dataset("x", hdf5::ElementType::f64, {5000});
    data.write(0, std::span<const double>(std::vector<double>(5000, 1.0)));
    file.close();
  }
  std::filesystem::resize_file(cut, 20000);
  CHECK(open(cut).find("not a (complete) HDF5 file") != std::string::npos);
}

TEST_CASE("HDF5 says that the disk is full", "[files][hdf5]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "full.h5";
  const std::vector<double> values(100000, 1.0);
  std::string message;
  {
    const FileSizeLimit limit(100000);
    hdf5::File file = hdf5::File::create(path);
    message = message_of<UserError>([&] {
      hdf5::Dataset data = file.create_dataset("x", hdf5::ElementType::f64, {0}, {.chunk = {1000}});
      data.append(std::span<const double>(values));
      file.close();
    });
  }
  CHECK(message.find(path) == 0);
  CHECK(message.find("free disk space") != std::string::npos);
}

TEST_CASE("HDF5 may be used from several threads, each with its own objects", "[files][hdf5]") {
  const TemporaryDirectory directory;
  std::atomic<int> good = 0;
  const auto work = [&](int number) {
    hdf5::File file = hdf5::File::create(directory / (std::to_string(number) + ".h5"));
    hdf5::Dataset data = file.create_dataset("x", hdf5::ElementType::i32, {0}, {.chunk = {16}});
    for (int i = 0; i < 100; ++i) {
      data.append(std::span<const int>(std::vector<int>(3, number + i)));
    }
    std::vector<int> last(3);
    data.read(297, std::span<int>(last));
    file.close();
    if (last == std::vector<int>(3, number + 99)) ++good;
  };
  std::thread first(work, 1);
  std::thread second(work, 2000);
  first.join();
  second.join();
  CHECK(good == 2);
}

TEST_CASE("An HDF5 file in memory has the bytes of a file", "[files][hdf5]") {
  const TemporaryDirectory directory;
  hdf5::File file = hdf5::File::create_in_memory(directory / "m.h5");
  hdf5::Dataset data = file.create_dataset("x", hdf5::ElementType::i32, {0}, {.chunk = {16}});
  data.append(std::span<const int>(std::vector<int>{1, 2, 3}));
  const std::vector<std::byte> image = file.image();
  CHECK_FALSE(std::filesystem::exists(directory / "m.h5"));
  const std::string path = directory / "copy.h5";
  write_bytes(path, {reinterpret_cast<const char*>(image.data()), image.size()});
  CHECK(hdf5::File::open_read_only(path).open_dataset("x").rows() == 3);
}
