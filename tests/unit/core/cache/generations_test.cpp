// SPDX-License-Identifier: BSD-3-Clause
// States that refer to a spill file's records, which later visits must not touch.
#include <deque>
#include <filesystem>

#include "core/base/error.hpp"
#include "core/cache/io_thread.hpp"
#include "core/files/hdf5.hpp"
#include "support/memory_state_reader.hpp"
#include "tests/unit/core/cache/cache_support.hpp"

using namespace cache_test;
using deltapipe::CacheIoThread;
using deltapipe::ExecSpace;
using deltapipe::MemoryStateReader;
using deltapipe::SpillStart;
using deltapipe::StateContent;
using deltapipe::StatePart;
using deltapipe::UserError;
using deltapipe::testing::message_of;

namespace {

constexpr std::uint64_t kSamples = 23;

CacheShape shape_of(std::uint64_t spare) {
  return {.samples = kSamples,
          .record_bytes = 300,
          .max_samples_in_flight = 2,
          .prefetch_samples = 3,
          .spare_records = spare,
          .reserved_records = spare / 2};
}

std::unique_ptr<ActivationCache> open(const std::string& path, CacheIoThread& io,
                                      std::uint64_t spare, SpillStart start) {
  const CacheShape shape = shape_of(spare);
  return std::make_unique<ActivationCache>(ExecSpace(), &io, shape, identity(),
                                           budget_for(shape, 4), path, start);
}

StateContent state_of(ActivationCache& cache, std::uint64_t generation) {
  cache.refer_to_file(generation);
  const StatePart part = part_of(cache);
  return deltapipe::state_in_memory(std::span(&part, 1));
}

void read_back(ActivationCache& cache, const StateContent& content) {
  MemoryStateReader reader(content);
  const StatePart part = part_of(cache);
  deltapipe::read_state(std::span(&part, 1), reader);
}

void visit_some(ActivationCache& cache, Model& model, int count) {
  for (int i = 0; i < count; ++i) model.visit(cache, {model.random()() % kSamples});
}

}  // namespace

TEST_CASE("a cache goes back to what a state refers to", "[cache][generations]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  const int before = GENERATE(0, 1, 9, 60);
  const int after = GENERATE(0, 1, 7, 90);
  CAPTURE(before, after);
  Model model(shape_of(0), 7);
  StateContent content;
  Model then = model;
  {
    const auto cache = open(path, io, 2 * kSamples, SpillStart::create);
    visit_some(*cache, model, before);
    content = state_of(*cache, 100);
    then = model;
    visit_some(*cache, model, after);
    model.check_all(*cache);
    cache->flush();
  }  // as after a kill: the file is newer
  const auto& records = item(content, "records").item;
  CHECK(records.shape[0] <= 4);  // no more than memory held
  const auto cache = open(path, io, 2 * kSamples, SpillStart::open_existing);
  read_back(*cache, content);
  then.check_all(*cache);
  // And again: the state is still whole after more visits.
  visit_some(*cache, then, 40);
  then.check_all(*cache);
}

TEST_CASE("rows are free again when no state refers to them", "[cache][generations]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  constexpr int kKept = 3, kVisits = 5;
  // The ends of a boundary assume the same: the most records that move between two states.
  const std::uint64_t spare = kKept * (kVisits + 4);
  const auto cache = open(path, io, spare, SpillStart::create);
  Model model(shape_of(spare), 3);
  std::deque<std::pair<StateContent, Model>> kept;
  for (std::uint64_t generation = 1; generation <= 60; ++generation) {
    visit_some(*cache, model, kVisits);
    kept.emplace_back(state_of(*cache, generation), model);
    if (kept.size() < kKept) continue;
    cache->let_go(generation + 1 - kKept);
    kept.pop_front();
  }
  cache->let_go(1);  // long gone: nothing
  const auto bytes = std::filesystem::file_size(path);
  for (auto& [content, then] : kept) {
    read_back(*cache, content);
    then.check_all(*cache);
  }
  CHECK(std::filesystem::file_size(path) == bytes);
}

TEST_CASE("a file with too few rows becomes a larger one", "[cache][generations]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  Model model(shape_of(0), 11);
  StateContent content;
  {
    const auto cache = open(path, io, 2, SpillStart::create);
    visit_some(*cache, model, 70);
    content = state_of(*cache, 3);
  }
  const auto cache = open(path, io, 3 * kSamples, SpillStart::open_existing);
  read_back(*cache, content);
  model.check_all(*cache);
  for (std::uint64_t generation = 4; generation < 6; ++generation) {
    visit_some(*cache, model, 70);
    state_of(*cache, generation);
  }
  model.check_all(*cache);
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("a cache whose states are never let go says so", "[cache][generations]") {
  const TemporaryDirectory directory;
  CacheIoThread io;
  const auto cache = open(directory / "c.h5", io, 2, SpillStart::create);
  Model model(shape_of(2), 3);
  const auto run = [&] {
    for (std::uint64_t generation = 1; generation <= 20; ++generation) {
      visit_some(*cache, model, 40);
      state_of(*cache, generation);
    }
  };
  CHECK_THAT(message_of<UserError>(run), Catch::Contains("no spare record left"));
}

TEST_CASE("states that are not of this file are refused", "[cache][generations]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  const auto cache = open(path, io, 9, SpillStart::create);
  Model model(shape_of(9), 3);
  visit_some(*cache, model, 80);
  StateContent content = state_of(*cache, 1);
  const auto problem = [&] { return message_of<UserError>([&] { read_back(*cache, content); }); };
  auto& slots = const_cast<StateContent::Item&>(item(content, "slots")).bytes;
  SECTION("a row twice") {
    std::uint32_t* const values = reinterpret_cast<std::uint32_t*>(slots.data());
    std::uint32_t* first = nullptr;
    for (std::uint64_t i = 0; i < kSamples; ++i) {
      if (values[i] == ~0u) continue;
      if (first != nullptr) values[i] = *first;
      first = values + i;
    }
    CHECK_THAT(problem(), Catch::Contains("two samples have one record"));
  }
  SECTION("a cache without a file") {
    ActivationCache other(ExecSpace(), nullptr, shape_of(9), identity(), 0, "");
    CHECK_THAT(message_of<UserError>([&] { read_back(other, content); }),
               Catch::Contains("spill file") && Catch::Contains("cache.budget"));
  }
}

TEST_CASE("the slot table leads h5py to every record", "[cache][generations]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  const auto cache = open(path, io, 2 * kSamples, SpillStart::create);
  Model model(shape_of(0), 5);
  visit_some(*cache, model, 90);
  state_of(*cache, 1);
  visit_some(*cache, model, 90);
  cache->flush();
  const auto file = deltapipe::hdf5::File::open_read_only(path);
  std::vector<std::uint32_t> slots(kSamples), visits(kSamples);
  file.open_dataset("slots").read<std::uint32_t>(0, slots);
  file.open_dataset("visits").read<std::uint32_t>(0, visits);
  Bytes record(300);
  int moved = 0;
  for (std::uint64_t id = 0; id < kSamples; ++id) {
    CHECK(visits[id] == model.visits(id));
    if (visits[id] == 0) continue;
    file.open_dataset("records").read<std::uint8_t>(slots[id], record);
    CHECK(record == model.bytes(id));
    moved += slots[id] != id;
  }
  CHECK(moved > 5);
}

TEST_CASE("a spill file is needed once a state refers to it", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  StateContent content;
  {
    const auto cache = open(path, io, 2 * kSamples, SpillStart::create);
    Model model(shape_of(2 * kSamples), 1);
    for (std::uint64_t id = 0; id < kSamples; ++id) model.visit(*cache, {id});
    const StatePart part = part_of(*cache);
    (void)deltapipe::state_in_memory(std::span(&part, 1));  // a copy of all
    CHECK(!deltapipe::run_that_needs(path));
    content = state_of(*cache, 1);
    CHECK(deltapipe::run_that_needs(path));
    cache->let_replace_file();
    CHECK(!deltapipe::run_that_needs(path));
  }
  read_back(*open(path, io, 2 * kSamples, SpillStart::open_existing), content);
  CHECK(deltapipe::run_that_needs(path));
}
