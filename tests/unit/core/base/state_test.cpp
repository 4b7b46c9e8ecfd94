// SPDX-License-Identifier: BSD-3-Clause
// Every part of a run's state comes back to the bit, from memory and from files, and what does not
// fit is refused by name.
#include "core/base/state/state.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <memory>
#include <optional>
#include <set>

#include "app/training/run_totals.hpp"
#include "core/base/error.hpp"
#include "core/base/state/state_views.hpp"
#include "core/cache/io_thread.hpp"
#include "core/files/state_file.hpp"
#include "core/stage/parameters.hpp"
#include "support/device_values.hpp"
#include "support/memory_state_reader.hpp"
#include "tests/unit/core/cache/cache_support.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;
using test::copy_to_device;
using test::to_host;
using testing::message_of;
using testing::TemporaryDirectory;

/// One part of any items.
struct Sample {
  std::vector<float> values = {0.0f, -0.0f, 1e-45f, std::numeric_limits<float>::infinity(),
                               3.5f, -7.0f};
  std::vector<std::uint64_t> none;
  std::int64_t scalar = -5;
  std::string text = "grün\n", no_text;

  StatePart part(const std::string& name = "sample") {
    return {name,
            [this](StateWriter& writer) {
              writer.begin_item({"values", StateType::f32, {2, 3}});
              writer.append(values.data(), 5);  // pieces end anywhere
              writer.append(reinterpret_cast<const char*>(values.data()) + 5, 19);
              write_array<std::uint64_t>(writer, "none", none);
              write_scalar(writer, "scalar", scalar);
              write_text(writer, "text", text);
              write_text(writer, "no text", no_text);
            },
            [this](StateReader& reader) {
              text = read_text(reader, "text");  // in any order
              no_text = read_text(reader, "no text");
              reader.begin_item({"values", StateType::f32, {2, 3}});
              reader.take(values.data(), 23);
              reader.take(reinterpret_cast<char*>(values.data()) + 23, 1);
              read_array<std::uint64_t>(reader, "none", none);
              scalar = read_scalar<std::int64_t>(reader, "scalar");
            }};
  }
};

/// Written and read back through memory or a file.
class RoundTrip {
 public:
  explicit RoundTrip(bool file) : file_(file) {}

  void write(const std::vector<StatePart>& parts) {
    content_ = state_in_memory(parts);
    if (!file_) return;
    StateFileWriter writer(path());
    write_state(parts, writer);
    writer.close();
  }
  void read(const std::vector<StatePart>& parts) const {
    if (file_) {
      StateFileReader reader(path());
      read_state(parts, reader);
    } else {
      MemoryStateReader reader(content_);
      read_state(parts, reader);
    }
  }
  std::string path() const { return directory_ / "state.h5"; }
  const StateContent& content() const { return content_; }

 private:
  bool file_;
  StateContent content_;
  TemporaryDirectory directory_;
};

TEST_CASE("Items of a state come back as they were", "[state]") {
  RoundTrip trip(GENERATE(false, true));
  Sample written, other;
  trip.write({written.part(), other.part("another part")});
  Sample read;
  read.values.assign(6, 9.0f);
  read.scalar = 0;
  read.text.clear();
  read.no_text = "some";
  trip.read({other.part("another part"), read.part()});
  CHECK(std::memcmp(read.values.data(), written.values.data(), 24) == 0);
  CHECK(read.scalar == -5);
  CHECK(read.text == "grün\n");
  CHECK(read.no_text.empty());
  CHECK(state_in_memory(std::vector{read.part(), other.part("another part")}) == trip.content());
}

TEST_CASE("A state that does not fit is refused by part and item", "[state]") {
  const bool file = GENERATE(false, true);
  RoundTrip trip(file);
  Sample sample;
  trip.write({sample.part()});
  const auto refusal = [&](const std::vector<StatePart>& parts) {
    return message_of<UserError>([&] { trip.read(parts); });
  };
  const auto reading = [&](auto read) { return refusal({{"sample", [](StateWriter&) {}, read}}); };
  const std::string where = file ? trip.path() + ": " : "";
  CHECK_THAT(refusal({sample.part("lost")}), Contains("part 'sample' is unknown"));
  CHECK_THAT(refusal({sample.part(), sample.part("lost")}),
             Contains(where + "the state's part 'lost' is missing"));
  CHECK_THAT(refusal({}), Contains("part 'sample' is unknown"));
  CHECK_THAT(reading([](StateReader&) {}), Contains("of part 'sample' is unknown"));
  CHECK_THAT(reading([](StateReader& r) { read_scalar<int>(r, "lost"); }),
             Contains(where + "the state's item 'lost' of part 'sample' is missing"));
  CHECK_THAT(reading([](StateReader& r) { read_scalar<double>(r, "scalar"); }),
             Contains("'scalar'") && Contains("got i64 [1], not f64 [1]"));
  CHECK_THAT(reading([](StateReader& r) {
               r.begin_item({"values", StateType::f32, {3, 2}});
             }),
             Contains("got f32 [2, 3], not f32 [3, 2]"));
  CHECK_THAT(reading([](StateReader& r) {
               r.begin_item({"values", StateType::f32, {6}});
             }),
             Contains("got f32 [2, 3], not f32 [6]"));
  CHECK_THAT(reading([](StateReader& r) { read_text(r, "values"); }), Contains("is not text"));
  CHECK_THAT(reading([](StateReader& r) { expect_scalar<std::int64_t>(r, "scalar", 4); }),
             Contains("'scalar'") && Contains("got -5, not 4"));
  // Twice.
  CHECK_THAT(reading([](StateReader& r) {
               read_scalar<std::int64_t>(r, "scalar");
               read_scalar<std::int64_t>(r, "scalar");
             }),
             Contains("is missing"));
}

TEST_CASE("Mistakes of who writes a state are noticed", "[state]") {
  const TemporaryDirectory directory;
  StateFileWriter writer(directory / "state.h5");
  CHECK_THROWS_AS(writer.begin_item({"x", StateType::u8, {1}}), InternalError);
  writer.begin_part("a");
  CHECK_THROWS_AS(writer.begin_part("b"), InternalError);
  CHECK_THROWS_AS(writer.begin_item({"a/b", StateType::u8, {1}}), InternalError);
  writer.begin_item({"x", StateType::u8, {2}});
  writer.append("1", 1);
  CHECK_THROWS_AS(writer.end_part(), InternalError);
  CHECK_THROWS_AS(writer.append("23", 2), InternalError);
  writer.append("2", 1);
  CHECK_THROWS_AS(writer.begin_item({"x", StateType::u8, {2}}), InternalError);
  writer.end_part();
  CHECK_THROWS_AS(writer.begin_part("a"), InternalError);
}

TEST_CASE("Files that are no state, incomplete, cut or damaged are refused", "[state][files]") {
  RoundTrip trip(true);
  Sample sample;
  const auto refusal = [&] { return message_of<UserError>([&] { trip.read({sample.part()}); }); };
  CHECK_THAT(refusal(), Contains(trip.path()));
  testing::write_bytes(trip.path(), "text");
  CHECK_THAT(refusal(), Contains(trip.path()));
  hdf5::File::create(trip.path()).close();
  CHECK_THAT(refusal(), Contains(trip.path() + ": is not the state of a run"));
  {
    StateFileWriter writer(trip.path());
    write_state(std::vector{sample.part()}, writer);
  }
  CHECK_THAT(refusal(), Contains("is an incomplete state"));

  trip.write({sample.part()});
  CHECK(refusal().empty());
  const std::string whole = testing::read_bytes(trip.path());
  for (std::size_t size = 0; size < whole.size(); size += whole.size() / 37 + 1) {
    testing::write_bytes(trip.path(), whole.substr(0, size));
    CAPTURE(size);
    CHECK_THAT(refusal(), Contains(trip.path()));
  }
  // A bit of any item's values.
  std::string damaged = whole;
  const std::size_t place = whole.find("grün");
  REQUIRE(place != std::string::npos);
  damaged[place] ^= 1;
  testing::write_bytes(trip.path(), damaged);
  CHECK_THAT(refusal(), Contains("'text'") && Contains("is damaged"));
}

TEST_CASE("A full disk ends a state's file with its name", "[state][files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "state.h5";
  const std::vector<double> values(1 << 18, 1.5);
  const testing::FileSizeLimit limit(1 << 20);
  CHECK_THAT(message_of<UserError>([&] {
               StateFileWriter writer(path);
               writer.begin_part("p");
               write_array<double>(writer, "values", values);
               writer.end_part();
               writer.close();
             }),
             Contains(path));
}

TEST_CASE("Large items pass through files in pieces", "[state][files]") {
  RoundTrip trip(true);
  // Rows of 1 byte, of more than a piece, and of a size that divides no piece.
  const std::vector<std::vector<std::uint64_t>> shapes = {
      {3'000'001}, {3, 1'500'007}, {2003, 1009}};
  const auto part = [&](const std::vector<std::uint64_t>& shape, std::vector<std::uint8_t>& bytes) {
    const StateItem item{"bytes", StateType::u8, shape};
    return StatePart{"part",
                     [&, item](StateWriter& writer) {
                       writer.begin_item(item);
                       for (std::size_t i = 0; i < bytes.size(); i += 700'001)
                         writer.append(&bytes[i], std::min<std::size_t>(700'001, bytes.size() - i));
                     },
                     [&, item](StateReader& reader) {
                       reader.begin_item(item);
                       for (std::size_t i = 0; i < bytes.size(); i += 900'007)
                         reader.take(&bytes[i], std::min<std::size_t>(900'007, bytes.size() - i));
                     }};
  };
  for (const auto& shape : shapes) {
    std::vector<std::uint8_t> bytes(StateItem{"", StateType::u8, shape}.bytes());
    std::uint32_t random = 1;
    for (std::uint8_t& byte : bytes)
      byte = static_cast<std::uint8_t>((random = random * 1664525u + 1013904223u) >> 24);
    trip.write({part(shape, bytes)});
    std::vector<std::uint8_t> read(bytes.size());
    trip.read({part(shape, read)});
    CHECK(read == bytes);
  }
}

TEST_CASE("Views pass through host memory in pieces", "[state]") {
  const ExecSpace exec;
  const std::size_t piece = state_views::kPieceBytes / sizeof(float);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, piece, 2 * piece + 3}) {
    const Vector<float> view("test::view", size), back("test::back", size);
    auto host = Kokkos::create_mirror_view(view);
    for (std::size_t i = 0; i < size; ++i) host(i) = static_cast<float>(i % 8191) - 4000.0f;
    Kokkos::deep_copy(view, host);
    RoundTrip trip(false);
    const std::vector<StatePart> parts = {
        {"part",
         [&](StateWriter& writer) {
           write_view<true>(writer, exec, "view", VectorRef<const float>(view), {size});
         },
         [&](StateReader& reader) {
           read_view<true>(reader, exec, "view", VectorRef<float>(back), {size});
         }}};
    trip.write(parts);
    trip.read(parts);
    auto host_back = Kokkos::create_mirror_view(back);
    Kokkos::deep_copy(host_back, back);
    std::size_t different = 0;
    for (std::size_t i = 0; i < size; ++i) different += host_back(i) != host(i);
    CHECK(different == 0);
  }
}

TEST_CASE("Parameters and moments come back tensor by tensor", "[state][stage]") {
  RoundTrip trip(GENERATE(false, true));
  const auto make = [] {
    ParameterArena<float> arena;
    arena.add("a.weight", {3, 5}, true, 0);
    arena.add("a.bias", {7}, false, 1);
    arena.allocate(true);
    return arena;
  };
  const ParameterArena<float> written = make(), read = make();
  const auto tensors = [](const ParameterArena<float>& arena) {
    return std::vector<VectorRef<float>>{arena.value(0),   arena.value(1),   arena.moment1(0),
                                         arena.moment1(1), arena.moment2(0), arena.moment2(1)};
  };
  float next = -3;
  for (const VectorRef<float>& tensor : tensors(written)) {
    std::vector<float> values(tensor.extent(0));
    for (float& value : values) value = next += 0.37f;
    copy_to_device(values, tensor);
  }
  const auto parts = [](const ParameterArena<float>& arena) {
    return std::vector{parameter_state(ExecSpace(), arena), moment_state(ExecSpace(), arena)};
  };
  trip.write(parts(written));
  trip.read(parts(read));
  for (std::size_t i = 0; i < tensors(read).size(); ++i)
    CHECK(to_host(tensors(read)[i]) == to_host(tensors(written)[i]));
  CHECK(trip.content().parts[0].items[0].item == StateItem{"a.weight", StateType::f32, {3, 5}});
  ParameterArena<float> other;
  other.add("a.weight", {5, 3}, true, 0);
  other.add("a.bias", {7}, false, 1);
  other.allocate(true);
  CHECK_THAT(message_of<UserError>([&] { trip.read(parts(other)); }),
             Contains("'a.weight' of part 'parameters'"));
}

TEST_CASE("Frozen parameters have no moments in a state, and another choice of them is refused",
          "[state][stage][frozen]") {
  RoundTrip trip(GENERATE(false, true));
  const auto make = [](const std::set<std::string>& frozen) {
    auto arena = std::make_unique<ParameterArena<float>>(frozen);
    arena->add("a.weight", {3, 5}, true, 0);
    arena->add("a.bias", {7}, false, 0);
    arena->add("b.bias", {2}, false, 1);
    arena->allocate(true);
    return arena;
  };
  const auto parts = [](const ParameterArena<float>& arena) {
    return std::vector{parameter_state(ExecSpace(), arena), moment_state(ExecSpace(), arena)};
  };
  const std::set<std::string> all = {"a.weight", "a.bias", "b.bias"};
  for (const std::set<std::string>& frozen :
       {std::set<std::string>{}, {"a.weight"}, {"a.weight", "a.bias"}, {"b.bias"}, all}) {
    const auto written = make(frozen), read = make(frozen);
    const std::size_t trained = all.size() - frozen.size();
    std::size_t elements = 0;
    for (const ParameterInfo& p : written->info()) elements += p.frozen ? 0 : p.size;
    CHECK((written->gradient_size() > 0) == (trained > 0));
    CHECK(written->gradient_size() >= elements);
    CHECK(written->all_gradients().extent(0) == written->gradient_size());
    CHECK(written->bucket_gradient(1).extent(0) == (frozen.contains("b.bias") ? 0 : 16));
    copy_to_device(std::vector<float>(7, 0.5f), written->value(1));
    if (!frozen.contains("a.bias"))
      copy_to_device(std::vector<float>(7, 0.25f), written->moment2(1));
    trip.write(parts(*written));
    CHECK(trip.content().parts[0].items.size() == all.size());
    CHECK(trip.content().parts[1].items.size() == 2 * trained);
    trip.read(parts(*read));
    CHECK(to_host(read->value(1)) == std::vector<float>(7, 0.5f));
    CHECK(to_host(read->moment2(1)) ==
          std::vector<float>(frozen.contains("a.bias") ? 0 : 7, 0.25f));
  }
  // Both that more and that less is frozen now.
  trip.write(parts(*make({"a.weight"})));
  CHECK_THAT(message_of<UserError>([&] { trip.read(parts(*make({}))); }),
             Contains("'a.weight.moment1' of part 'moments' is missing"));
  CHECK_THAT(message_of<UserError>([&] {
               trip.read(parts(*make({"a.weight", "a.bias"})));
             }),
             Contains("'a.bias.moment1' of part 'moments' is unknown"));
}

TEST_CASE("A cache's records and visits come back, wherever they were", "[state][cache]") {
  using namespace cache_test;
  const TemporaryDirectory directory;
  const CacheShape shape{
      .samples = 13, .record_bytes = 77, .max_samples_in_flight = 3, .prefetch_samples = 4};
  // Records in memory before and after: all, a few.
  const int before = GENERATE(0, 4), after = GENERATE(0, 4);
  const bool used = GENERATE(false, true);
  CAPTURE(before, after, used);
  RoundTrip trip(GENERATE(false, true));
  CacheIoThread io;
  const auto cache_of = [&](int records, const char* name) {
    return std::make_unique<ActivationCache>(ExecSpace(), &io, shape, identity(),
                                             records == 0 ? 0 : budget_for(shape, records),
                                             directory / name);
  };
  const auto parts = [](ActivationCache& cache) {
    return std::vector<StatePart>{{"cache", [&](StateWriter& writer) { cache.write_state(writer); },
                                   [&](StateReader& reader) { cache.read_state(reader); }}};
  };
  Model model(shape, 5);
  const auto train = [&](ActivationCache& cache, Model& values, int visits) {
    for (int i = 0; i < visits; ++i) {
      const Ids ids = {values.random()() % 4, 4 + values.random()() % 4, 8 + values.random()() % 4};
      if (i % 2 == 0) cache.prefetch(ids);
      values.visit(cache, ids);
    }
  };
  const auto first = cache_of(before, "first.h5");
  train(*first, model, 7);  // sample 12 is never visited
  trip.write(parts(*first));
  model.check_all(*first);
  const auto second = cache_of(after, "second.h5");
  if (used) {
    Model others(shape, 6);
    train(*second, others, 9);
    others.visit(*second, {12});
    second->prefetch(Ids{3, 12});
  }
  trip.read(parts(*second));
  model.check_all(*second);
  CHECK(state_in_memory(parts(*second)) == trip.content());
  train(*second, model, 9);
  model.visit(*second, {12});
  model.check_all(*second);

  const CacheShape smaller{.samples = 13, .record_bytes = 78, .max_samples_in_flight = 3};
  ActivationCache other(ExecSpace(), nullptr, smaller, identity(), 0, "");
  CHECK_THAT(message_of<UserError>([&] { trip.read(parts(other)); }), Contains("'records'"));
}

TEST_CASE("A run's totals come back to the same run only", "[state][app]") {
  RoundTrip trip(GENERATE(false, true));
  RunTotals written{.seed = 7,
                    .data_fingerprint = 0xfedcba9876543210u,
                    .steps = 12,
                    .bytes = 1ull << 40,
                    .samples = 96,
                    .tokens = 960,
                    .seconds = 0.1,
                    .last_loss = 3.25,
                    .ranks = {{1.5, 2.5}, {3.5}}};
  trip.write({written.state()});
  RunTotals read{.seed = 7, .data_fingerprint = 0xfedcba9876543210u, .ranks = {{}, {}}};
  trip.read({read.state()});
  CHECK(read.steps == 12);
  CHECK(read.ranks == written.ranks);
  CHECK(state_in_memory(std::vector{read.state()}) == trip.content());
  read.data_fingerprint = 1;
  CHECK_THAT(message_of<UserError>([&] { trip.read({read.state()}); }),
             Contains("data_fingerprint"));
  RunTotals fewer{.seed = 7, .data_fingerprint = 0xfedcba9876543210u, .ranks = {{}}};
  CHECK_THAT(message_of<UserError>([&] { trip.read({fewer.state()}); }), Contains("stages"));
}

}  // namespace
}  // namespace deltapipe
