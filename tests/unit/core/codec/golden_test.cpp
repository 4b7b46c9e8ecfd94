// SPDX-License-Identifier: BSD-3-Clause
// TopK and the records of both ends, compared with PyTorch (tests/golden/make_codec_fixtures.py).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/files/hdf5.hpp"
#include "support/codec_link.hpp"
#include "support/topk_reference.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

template <class T>
std::vector<T> read_all(const hdf5::Location& place, const std::string& name) {
  const hdf5::Dataset dataset = place.open_dataset(name);
  std::vector<T> values(dataset.rows() * dataset.row_elements());
  if (!values.empty()) dataset.read(0, std::span<T>(values));
  return values;
}

hdf5::File golden() {
  return hdf5::File::open_read_only(std::string(DELTAPIPE_FIXTURES) + "/codec/golden.h5");
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// The sample that the link sent last.
struct Sent {
  TopKHeader header;
  std::vector<std::uint32_t> positions;
  std::vector<float> values;  ///< as the receiver sees them
};

Sent send(CodecSettings settings, const CodecShape& shape, const std::vector<float>& x) {
  CodecLink link(settings, shape, MemoryStorage::fp32);
  const std::vector<float> seen = link.cross({0}, {shape.tokens}, x);
  const TopKHeader header = header_at(link.sent_bytes, 0);
  Sent sent{
      header,
      naive_positions(header, link.sent_bytes.data() + 12, static_cast<std::uint32_t>(x.size())),
      {}};
  std::size_t others = 0;  // values that must be zeros
  for (std::size_t i = 0, next = 0; i < x.size(); ++i) {
    if (next < sent.positions.size() && sent.positions[next] == i) {
      sent.values.push_back(seen[i]);
      ++next;
    } else {
      others += seen[i] == 0 ? 0 : 1;
    }
  }
  CHECK(others == 0);
  return sent;
}

CodecSettings topk(double part, ChosenValues values = ChosenValues::fp32) {
  CodecSettings settings;
  settings.kind = CodecKind::topk;
  settings.topk = part;
  settings.values = values;
  return settings;
}

}  // namespace

TEST_CASE("topk equals torch.topk, with ties going to the first", "[codec][topk][golden]") {
  const hdf5::File file = golden();
  const hdf5::Group all = file.open_group("topk");
  int through_halves = 0;
  for (const std::string& name : all.names()) {
    const hdf5::Group content = all.open_group(name);
    const std::vector<float> x = read_all<float>(content, "x");
    const auto extents = content.open_dataset("x").shape();
    const CodecShape shape{1, static_cast<int>(extents[0]), static_cast<int>(extents[1])};
    for (const std::string& number : content.names()) {
      if (number == "x") continue;
      const hdf5::Group expected = content.open_group(number);
      const double part = expected.read_attribute<double>("part");
      CAPTURE(name, part);
      const Sent sent = send(topk(part), shape, x);
      const auto positions = read_all<std::int32_t>(expected, "positions");
      CHECK(std::equal(positions.begin(), positions.end(), sent.positions.begin(),
                       sent.positions.end(),
                       [](std::int32_t a, std::uint32_t b) { return a == static_cast<int>(b); }));
      CHECK(same_bits(sent.values, read_all<float>(expected, "values")));
      std::vector<float> largest;
      for (const float value : sent.values) largest.push_back(std::abs(value));
      std::sort(largest.begin(), largest.end(), std::greater<>());
      CHECK(same_bits(largest, read_all<float>(expected, "largest")));
      if (!expected.exists("halves")) continue;
      const Sent as_halves = send(topk(part, ChosenValues::fp16), shape, x);
      CHECK(as_halves.header.exponent == expected.read_attribute<std::int64_t>("exponent"));
      CHECK(same_bits(as_halves.values, read_all<float>(expected, "halves")));
      ++through_halves;
    }
  }
  CHECK(all.names().size() == 11);
  CHECK(through_halves == 6);
}

TEST_CASE("visits with feedback and changes equal PyTorch's", "[codec][topk][feedback][golden]") {
  const hdf5::File file = golden();
  const hdf5::Group visits = file.open_group("visits");
  const std::vector<float> x = read_all<float>(visits, "x");
  const auto extents = visits.open_dataset("x").shape();  // V, B, T, C
  const CodecShape shape{static_cast<int>(extents[1]), static_cast<int>(extents[2]),
                         static_cast<int>(extents[3])};
  const std::size_t values = extents[1] * extents[2] * extents[3];
  int methods = 0;
  for (const std::string& name : visits.names()) {
    if (name == "x") continue;
    CAPTURE(name);
    const hdf5::Group expected = visits.open_group(name);
    CodecSettings settings;
    const std::string codec = expected.read_string_attribute("codec");
    const std::string feedback = expected.read_string_attribute("feedback");
    settings.kind = codec == "topk"         ? CodecKind::topk
                    : codec == "topk_delta" ? CodecKind::aqsgd_topk
                    : codec == "quantize"   ? CodecKind::directq
                                            : CodecKind::aqsgd;
    settings.error_feedback = feedback != "none";
    settings.feedback_kind = feedback == "ef21"    ? FeedbackKind::ef21
                             : feedback == "mixed" ? FeedbackKind::mixed
                                                   : FeedbackKind::ef;
    settings.topk = expected.read_attribute<double>("part");
    settings.values = ChosenValues::fp32;
    settings.bits = static_cast<int>(expected.read_attribute<std::int64_t>("bits"));
    settings.scale = ScaleKind::tile;
    settings.tile = kWholeRow;
    settings.rounding = Rounding::nearest;
    settings.levels = Levels::symmetric;
    settings.first_visit = FirstVisit::fp32;
    const int samples = shape.max_samples;
    CodecLink link(settings, shape, MemoryStorage::fp32, samples);
    const auto seen = read_all<float>(expected, "seen");
    for (std::size_t v = 0; v < extents[0]; ++v) {
      CAPTURE(v);
      const auto of_visit = [&](const std::vector<float>& all) {
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(v * values);
        return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(values));
      };
      const std::vector<int> tokens(static_cast<std::size_t>(samples), shape.tokens);
      CHECK(link.cross({0, 1}, tokens, of_visit(x)) == of_visit(seen));
    }
    std::vector<float> kept = link.floats(0);
    const std::vector<float> second = link.floats(1);
    kept.insert(kept.end(), second.begin(), second.end());
    CHECK(kept == read_all<float>(expected, "kept"));
    ++methods;
  }
  CHECK(methods == 7);
}
