// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/safetensors.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>

#include "core/base/error.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::FileSizeLimit;
using deltapipe::testing::message_of;
using deltapipe::testing::read_bytes;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

namespace {

const std::string fixtures = std::string(DELTAPIPE_FIXTURES) + "/safetensors/";

std::string length_field(std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string safetensors_bytes(const std::string& header, std::size_t data_bytes) {
  return length_field(header.size()) + header + std::string(data_bytes, '\1');
}

std::vector<float> read_all(const SafetensorsReader& reader, const std::string& name) {
  std::vector<float> values(reader.info(name).elements());
  reader.read_fp32(name, values);
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string tensor_bytes(const std::string& path, const std::string& name) {
  const TensorInfo info = SafetensorsReader::open_file(path).info(name);
  return read_bytes(path).substr(info.begin, info.end - info.begin);
}

}  // namespace

TEST_CASE("Tensors of every float type read as PyTorch converts them", "[files][safetensors]") {
  const auto reader = SafetensorsReader::open_file(fixtures + "types.safetensors");
  for (const std::string name : {"x_f64", "x_f32", "x_f16", "x_bf16"}) {
    INFO(name);
    CHECK(same_bits(read_all(reader, name), read_all(reader, "fp32/" + name)));
  }
  CHECK(reader.info("x_f16").type == TensorType::F16);
  CHECK(reader.info("x_f32").shape == std::vector<std::uint64_t>{2, 3});
  CHECK(reader.info("scalar").shape.empty());
  CHECK(read_all(reader, "scalar") == std::vector<float>{2.5F});
  CHECK(read_all(reader, "empty").empty());
  CHECK(read_all(reader, "naïve/名") == std::vector<float>{1, 1});
  CHECK(reader.info("ids").type == TensorType::I64);
  CHECK_FALSE(reader.contains("__metadata__"));
  CHECK_FALSE(reader.contains("nothing"));
}

TEST_CASE("Rows of a tensor are read alone", "[files][safetensors]") {
  const auto reader = SafetensorsReader::open_directory(fixtures + "sharded");
  CHECK(reader.tensors().size() == 3);
  std::vector<float> rows(6);
  reader.read_fp32_rows("a.weight", 1, 2, rows);
  CHECK(rows == std::vector<float>{3, 4, 5, 6, 7, 8});
  reader.read_fp32_rows("b.weight", 2, 2, rows);
  CHECK(rows == std::vector<float>{18, 19, 20, 21, 22, 23});
  reader.read_fp32_rows("b.weight", 4, 0, std::span<float>());
  CHECK_THROWS_AS(reader.read_fp32_rows("b.weight", 3, 2, rows), InternalError);
  const auto types = SafetensorsReader::open_file(fixtures + "types.safetensors");
  types.read_fp32_rows("empty", 0, 0, std::span<float>());
  CHECK_THROWS_AS(types.read_fp32_rows("scalar", 0, 1, std::span(rows).first(1)), InternalError);
}

TEST_CASE("A reader says what does not fit", "[files][safetensors]") {
  const auto reader = SafetensorsReader::open_file(fixtures + "types.safetensors");
  std::vector<float> out(6);
  CHECK(message_of<UserError>([&] { reader.read_fp32("ids", out); }) ==
        fixtures + "types.safetensors: tensor 'ids' does not hold weights (got I64); " +
            "convert the weights to F32, F16 or BF16");
  CHECK(message_of<UserError>([&] { reader.info("lm_head"); }).find("has no tensor 'lm_head'") !=
        std::string::npos);
  CHECK(message_of<UserError>([&] {
          reader.expect_shape("x_f32", {3, 2});
        }).find("tensor 'x_f32' must have the shape [3, 2] (got [2, 3])") != std::string::npos);
  reader.expect_shape("x_f32", {2, 3});
  reader.expect_shape("scalar", {});
}

TEST_CASE("Narrowing rounds as PyTorch does and keeps NaN", "[files][safetensors]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "narrow.safetensors";
  const auto reader = SafetensorsReader::open_file(fixtures + "types.safetensors");
  const std::vector<float> inputs = read_all(reader, "rounding");
  SafetensorsWriter writer(
      path, {{"h", TensorType::F16, {inputs.size()}}, {"b", TensorType::BF16, {inputs.size()}}});
  writer.write_fp32("b", inputs);
  writer.write_fp32("h", inputs);
  writer.finish();
  CHECK(tensor_bytes(path, "h") == tensor_bytes(fixtures + "types.safetensors", "rounding_f16"));
  CHECK(tensor_bytes(path, "b") == tensor_bytes(fixtures + "types.safetensors", "rounding_bf16"));
  for (const std::uint32_t bits : {0x7F800001U, 0x7FC00000U, 0xFF800001U, 0xFFFFFFFFU}) {
    const float nan = std::bit_cast<float>(bits);
    CHECK(std::isnan(float_of_bfloat(bfloat_of(nan))));
    CHECK(std::isnan(float_of_half(half_of(nan))));
    CHECK(std::signbit(float_of_half(half_of(nan))) == std::signbit(nan));
  }
}

TEST_CASE("Every half value survives the way through fp32", "[files][safetensors]") {
  int changed = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (!std::isnan(float_of_half(half)) && half_of(float_of_half(half)) != half) ++changed;
    if (!std::isnan(float_of_bfloat(half)) && bfloat_of(float_of_bfloat(half)) != half) ++changed;
  }
  CHECK(changed == 0);
}

TEST_CASE("Values beyond a tensor's type are counted", "[files][safetensors]") {
  const TemporaryDirectory directory;
  const std::vector<float> values = {65519.0f,     -65520.0f, 1e30f, 0x1.fefffep127f,
                                     -0x1.ffp127f, INFINITY,  NAN,   0.0f};
  SafetensorsWriter writer(
      directory / "beyond.safetensors",
      {{"h", TensorType::F16, {8}}, {"b", TensorType::BF16, {8}}, {"f", TensorType::F32, {8}}});
  writer.write_fp32("f", values);
  CHECK(writer.overflows() == 0);
  writer.write_fp32("b", values);
  CHECK(writer.overflows() == 1);
  writer.write_fp32("h", values);
  CHECK(writer.overflows() == 1 + 4);
}

TEST_CASE("What is written in pieces and any order reads back", "[files][safetensors]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "w.safetensors";
  // More than one piece of the reader and the writer.
  std::vector<float> large(700 * 1001);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<float>(i % 2048);
  SafetensorsWriter writer(path, {{"w", TensorType::F32, {700, 1001}},
                                  {"h", TensorType::F16, {700, 1001}},
                                  {"scalar", TensorType::F32, {}},
                                  {"empty", TensorType::BF16, {3, 0}}});
  writer.write_fp32_rows("w", 500, std::span<const float>(large).subspan(500 * 1001));
  writer.write_fp32("h", large);
  writer.write_fp32_rows("w", 0, std::span<const float>(large).first(200 * 1001));
  const float value = -3.5F;
  writer.write_fp32("scalar", std::span(&value, 1));
  CHECK_THROWS_AS(writer.write_fp32_rows("w", 199, std::span<const float>(large).first(1001)),
                  InternalError);
  CHECK_THROWS_AS(writer.write_fp32_rows("w", 700, std::span<const float>(large).first(1001)),
                  InternalError);
  CHECK_THROWS_AS(writer.write_fp32("other", large), InternalError);
  CHECK_THROWS_AS(writer.finish(), InternalError);
  writer.write_fp32_rows("w", 200, std::span<const float>(large).subspan(200 * 1001, 300 * 1001));
  CHECK_FALSE(std::filesystem::exists(path));
  writer.finish();
  const auto entries = std::filesystem::directory_iterator(directory.path());
  CHECK(std::distance(begin(entries), end(entries)) == 1);

  const auto reader = SafetensorsReader::open_file(path);
  CHECK(same_bits(read_all(reader, "w"), large));
  CHECK(same_bits(read_all(reader, "h"), large));
  CHECK(read_all(reader, "scalar") == std::vector<float>{-3.5F});
  CHECK(reader.info("empty").shape == std::vector<std::uint64_t>{3, 0});
  CHECK(read_bytes(path).find(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32")") == 8);
}

TEST_CASE("An abandoned or failed write leaves the old weights", "[files][safetensors]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "w.safetensors";
  write_bytes(path, "old");
  {
    SafetensorsWriter writer(path, {{"w", TensorType::F32, {4}}});
    writer.write_fp32("w", std::vector<float>(4, 1.0F));
  }
  std::string message;
  {
    const FileSizeLimit limit(1 << 16);
    message = message_of<UserError>([&] {
      SafetensorsWriter writer(path, {{"w", TensorType::F32, {1 << 20}}});
    });
  }
  CHECK(message.find(path + ": cannot allocate") == 0);
  CHECK(message.find("free disk space") != std::string::npos);
  CHECK(read_bytes(path) == "old");
  const auto entries = std::filesystem::directory_iterator(directory.path());
  CHECK(std::distance(begin(entries), end(entries)) == 1);
}

TEST_CASE("Broken safetensors files are refused with their mistake", "[files][safetensors]") {
  struct Broken {
    const char* name;
    std::string bytes;
    const char* expected;
  };
  const auto one = [](const std::string& entry, std::size_t data = 8) {
    return safetensors_bytes("{\"w\":" + entry + "}", data);
  };
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string second = R"({"dtype":"F32","shape":[2],"data_offsets":[8,16]})";
  const std::string max = "18446744073709551615";
  const std::vector<Broken> table = {
      {"empty file", "", "too short"},
      {"seven bytes", "1234567", "too short"},
      {"length beyond the file", length_field(100) + "{}", "more bytes than the file has"},
      {"length of 2^64-1", length_field(~0ULL) + "{}", "100 MB"},
      {"length just above the cap", length_field(100'000'001) + "{}", "100 MB"},
      {"Git LFS pointer", "version https://git-lfs.github.com/spec/v1\n", "Git LFS"},
      {"no header", length_field(0), "start with '{'"},
      {"leading space", safetensors_bytes(" {}", 0), "start with '{'"},
      {"a JSON list", safetensors_bytes("[]", 0), "start with '{'"},
      {"cut JSON", safetensors_bytes("{\"w\":", 8),
       "its JSON header is not valid JSON: syntax error"},
      {"text after JSON", safetensors_bytes("{\"w\":" + good + "}x", 8), "is not valid JSON"},
      {"NUL after JSON", safetensors_bytes("{\"w\":" + good + "}" + std::string(1, '\0'), 8),
       "is not valid JSON"},
      {"broken UTF-8", safetensors_bytes("{\"w\xFF\":" + good + "}", 8), "is not valid JSON"},
      {"number beyond a double", one(R"({"dtype":"F32","shape":[1e999],"data_offsets":[0,8]})"),
       "is not valid JSON"},
      {"deep nesting",
       safetensors_bytes("{\"w\":" + std::string(50000, '[') + std::string(50000, ']') + "}", 0),
       "nested deeper than 64 levels (byte 69 of the JSON text)"},
      {"tensor twice", safetensors_bytes("{\"w\":" + good + ",\"w\":" + second + "}", 16),
       "key 'w' twice"},
      {"key twice in a tensor",
       one(R"({"dtype":"F32","dtype":"I64","shape":[2],"data_offsets":[0,8]})"),
       "key 'dtype' twice"},
      {"entry is a number", one("3"), "not an object"},
      {"no dtype", one(R"({"shape":[2],"data_offsets":[0,8]})"), "has no 'dtype'"},
      {"no shape", one(R"({"dtype":"F32","data_offsets":[0,8]})"), "has no 'shape'"},
      {"no offsets", one(R"({"dtype":"F32","shape":[2]})"), "has no 'data_offsets'"},
      {"unknown dtype", one(R"({"dtype":"F4","shape":[2],"data_offsets":[0,8]})"),
       "tensor 'w': unknown dtype (got F4)"},
      {"dtype is a number", one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"),
       "'dtype' must be a string"},
      {"shape is a number", one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"),
       "'shape' must be a list"},
      {"negative dimension", one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
       "whole number >= 0 (got -2)"},
      {"fraction as dimension", one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
       "whole number >= 0 (got 2.0)"},
      {"text as dimension", one(R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})"),
       "whole number >= 0"},
      {"dimension above 64 bits",
       one(R"({"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]})"),
       "whole number >= 0"},
      {"33 dimensions",
       one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})",
           4),
       "too many dimensions (got 33)"},
      {"product overflows to the right size",
       one(R"({"dtype":"F32","shape":[4611686018427387905,2],"data_offsets":[0,8]})"),
       "more elements than any file can hold"},
      {"bytes overflow to zero",
       one(R"({"dtype":"F32","shape":[4294967296,1073741824],"data_offsets":[0,0]})", 0),
       "more elements than any file can hold"},
      {"one offset", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"),
       "must be two numbers"},
      {"offsets as text", one(R"({"dtype":"F32","shape":[2],"data_offsets":["0","8"]})"),
       "whole number >= 0"},
      {"negative offset", one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"),
       "whole number >= 0"},
      {"offsets swapped", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
       "end before they begin"},
      {"offsets beyond the file", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
       "beyond the end of the file"},
      {"huge offsets",
       one(R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551607,)" + max + "]}"),
       "beyond the end of the file"},
      {"shape too small", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,8]})"),
       "need 4 bytes, 'data_offsets' give 8"},
      {"shape too large", one(R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,8]})"),
       "need 16 bytes, 'data_offsets' give 8"},
      {"dtype of another size", one(R"({"dtype":"F16","shape":[2],"data_offsets":[0,8]})"),
       "need 4 bytes, 'data_offsets' give 8"},
      {"overlap", safetensors_bytes("{\"w\":" + good + ",\"v\":" + good + "}", 8),
       "overlap those of tensor 'v'"},
      {"partial overlap",
       safetensors_bytes(
           "{\"w\":" + good + R"(,"v":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
       "overlap those of tensor 'w'"},
      {"hole",
       safetensors_bytes(
           "{\"w\":" + good + R"(,"v":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16),
       "4 bytes before it belong to no tensor"},
      {"hole at the start", one(second, 16), "8 bytes before it belong to no tensor"},
      {"bytes after the last", one(good, 9), "last 1 bytes belong to no tensor"},
      {"data cut off", one(good, 7), "beyond the end of the file"},
      {"no tensors but data", safetensors_bytes("{}", 3), "last 3 bytes belong to no tensor"},
  };
  const TemporaryDirectory directory;
  const std::string path = directory / "model.safetensors";
  for (const Broken& broken : table) {
    INFO(broken.name);
    write_bytes(path, broken.bytes);
    const std::string message =
        message_of<UserError>([&] { SafetensorsReader::open_directory(directory.path()); });
    CHECK(message.find(path + ": ") == 0);
    CHECK_THAT(message, Catch::Matchers::Contains(broken.expected));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(message.size() < 1000);
  }
  write_bytes(path, one(good));
  CHECK(SafetensorsReader::open_file(path).tensors().size() == 1);
  write_bytes(path, safetensors_bytes("{}", 0));
  CHECK(SafetensorsReader::open_file(path).tensors().empty());
}

TEST_CASE("A file that shrinks after it was opened is an error", "[files][safetensors]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "model.safetensors";
  std::filesystem::copy_file(fixtures + "sharded/model-00001-of-00002.safetensors", path);
  const auto reader = SafetensorsReader::open_file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  std::vector<float> out(12);
  CHECK(message_of<UserError>([&] { reader.read_fp32("a.weight", out); }).find("ends before") !=
        std::string::npos);
}

TEST_CASE("Broken sharded models are refused with their mistake", "[files][safetensors]") {
  struct Broken {
    const char* name;
    std::function<void(const TemporaryDirectory&)> damage;
    const char* expected;
  };
  const auto index = [](const std::string& text) {
    return [text](const TemporaryDirectory& directory) {
      write_bytes(directory / "model.safetensors.index.json", text);
    };
  };
  const auto shard = [&](const std::string& name) {
    return index("{\"weight_map\":{\"a.weight\":\"" + name + "\"}}");
  };
  const std::string first = "model-00001-of-00002.safetensors";
  const std::string second = "model-00002-of-00002.safetensors";
  const std::vector<Broken> table = {
      {"no weights at all",
       [](const TemporaryDirectory& d) {
         std::filesystem::remove(d / "model.safetensors.index.json");
       },
       "has no model.safetensors"},
      {"shard missing", [&](const TemporaryDirectory& d) { std::filesystem::remove(d / second); },
       "the shard 'model-00002-of-00002.safetensors' is missing"},
      {"shard is a directory",
       [&](const TemporaryDirectory& d) {
         std::filesystem::remove(d / second);
         std::filesystem::create_directory(d / second);
       },
       "Is a directory"},
      {"tensor not in its shard",
       index(R"({"weight_map":{"a.weight":")" + first + R"(","c":")" + first + R"("}})"),
       "tensor 'c' is not in the shard"},
      {"tensor in the other shard",
       index(R"({"weight_map":{"a.weight":")" + second + R"(","b.bias":")" + first + R"("}})"),
       "tensor 'a.weight' is not in the shard"},
      {"same tensor in two shards",
       [&](const TemporaryDirectory& d) {
         std::filesystem::remove(d / second);
         std::filesystem::copy_file(d / first, d / second);
       },
       "tensor 'a.weight' is in "},
      {"parent directory", shard("../model.safetensors"), "file in the same directory"},
      {"absolute path", shard("/etc/passwd"), "file in the same directory"},
      {"sub-directory", shard("sub/x.safetensors"), "file in the same directory"},
      {"backslashes", shard("..\\\\x.safetensors"), "file in the same directory"},
      {"NUL in the name", shard("x\\u0000.safetensors"), "file in the same directory"},
      {"dots", shard(".."), "file in the same directory"},
      {"empty name", shard(""), "file in the same directory"},
      {"shard is a number", index(R"({"weight_map":{"a.weight":1}})"), "must be a file name"},
      {"no weight_map", index("{}"), "has no object 'weight_map'"},
      {"weight_map is a list", index(R"({"weight_map":[]})"), "has no object 'weight_map'"},
      {"weight_map is empty", index(R"({"weight_map":{}})"), "names no tensor"},
      {"tensor twice", index(R"({"weight_map":{"a":"x","a":"y"}})"), "key 'a' twice"},
      {"not JSON", index("weights"), "is not valid JSON"},
      {"empty index", index(""), "is not valid JSON"},
  };
  for (const Broken& broken : table) {
    INFO(broken.name);
    const TemporaryDirectory directory;
    for (const auto& entry : std::filesystem::directory_iterator(fixtures + "sharded")) {
      std::filesystem::copy_file(entry.path(), directory / entry.path().filename().string());
    }
    broken.damage(directory);
    const std::string message =
        message_of<UserError>([&] { SafetensorsReader::open_directory(directory.path()); });
    CHECK_THAT(message, Catch::Matchers::Contains(broken.expected));
    CHECK(message.find(directory.path()) == 0);
  }
}
