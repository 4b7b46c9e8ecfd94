// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "core/base/error.hpp"
#include "core/cache/disk_space.hpp"
#include "core/cache/io_thread.hpp"
#include "core/files/hdf5.hpp"
#include "tests/unit/core/cache/cache_support.hpp"

using namespace cache_test;
using deltapipe::CacheIoThread;
using deltapipe::CacheOwner;
using deltapipe::ExecSpace;
using deltapipe::SpillStart;
using deltapipe::UserError;
using deltapipe::testing::FileSizeLimit;

namespace {

const CacheShape kShape{
    .samples = 9, .record_bytes = 300, .max_samples_in_flight = 1, .prefetch_samples = 3};

std::string read_all(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void flip_byte(const std::string& path, std::size_t offset) {
  std::string bytes = read_all(path);
  bytes.at(offset) = static_cast<char>(bytes.at(offset) ^ 0x10);
  deltapipe::testing::write_bytes(path, bytes);
}

std::size_t offset_of(const std::string& path, const void* bytes, std::size_t size) {
  const std::size_t offset =
      read_all(path).find(std::string(static_cast<const char*>(bytes), size));
  REQUIRE(offset != std::string::npos);
  return offset;
}

/// A cache whose samples but the last have been visited once or twice, flushed and closed.
void leave_cache(const std::string& path, Model& model, CacheIoThread& io) {
  ActivationCache cache(ExecSpace(), &io, kShape, identity(), budget_for(kShape, 2), path);
  for (std::uint64_t id = 0; id + 1 < kShape.samples; ++id) model.visit(cache, {id});
  for (std::uint64_t id = 0; id < 3; ++id) model.visit(cache, {id});
  cache.flush();
}

std::unique_ptr<ActivationCache> reopen(const std::string& path, CacheIoThread& io,
                                        const CacheIdentity& who = identity(),
                                        const CacheShape& shape = kShape) {
  return std::make_unique<ActivationCache>(ExecSpace(), &io, shape, who, budget_for(kShape, 2),
                                           path, SpillStart::open_existing);
}

}  // namespace

TEST_CASE("XXH3 of known bytes", "[cache]") {
  // From the specification's reference: the hash of no bytes.
  REQUIRE(deltapipe::record_checksum(nullptr, 0) == 0x2d06800538d394c2u);
}

TEST_CASE("a flushed cache comes back", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  Model model(kShape, 1);
  leave_cache(path, model, io);
  const auto cache = reopen(path, io);
  REQUIRE(damaged(*cache).empty());
  model.check_all(*cache);
  model.visit(*cache, {8});
  model.visit(*cache, {0});
  model.check_all(*cache);
}

TEST_CASE("the spill file is read through HDF5 while the cache is in use", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  Model model(kShape, 1);
  leave_cache(path, model, io);
  const auto cache = reopen(path, io);

  const auto file = deltapipe::hdf5::File::open_read_only(path);
  REQUIRE(file.read_string_attribute("format") == "deltapipe activation cache");
  REQUIRE(file.read_attribute<std::uint64_t>("format_version") == 5);
  REQUIRE(file.read_attribute<std::uint64_t>("boundary") == 2);
  REQUIRE(file.read_string_attribute("direction") == "forward");
  REQUIRE(file.read_string_attribute("end") == "sender");
  REQUIRE(file.read_attribute<std::uint64_t>("blocks_before") == 5);
  REQUIRE(file.read_string_attribute("storage") == "fp16");
  REQUIRE(file.read_attribute<std::uint64_t>("tokens") == 16);
  REQUIRE(file.read_attribute<std::uint64_t>("channels") == 8);
  REQUIRE(file.read_attribute<std::uint64_t>("data_fingerprint") == 0x1234567890abcdefu);
  REQUIRE(file.read_attribute<std::uint64_t>("samples") == 9);
  REQUIRE(file.read_attribute<std::uint64_t>("record_bytes") == 300);
  REQUIRE(file.read_string_attribute("run_id") == "run-1");
  REQUIRE(file.read_string_attribute("output_directory") == "/runs/one");
  REQUIRE(file.read_string_attribute("checkpoint_directory") == "/checkpoints/one");
  std::vector<std::uint32_t> visits(9);
  file.open_dataset("visits").read<std::uint32_t>(0, visits);
  REQUIRE(visits == std::vector<std::uint32_t>{2, 2, 2, 1, 1, 1, 1, 1, 0});
  std::vector<std::uint64_t> checksums(9);
  file.open_dataset("checksums").read<std::uint64_t>(0, checksums);
  Bytes record(300);
  for (std::uint64_t id = 0; id < 8; ++id) {
    REQUIRE(checksums[id] == model.hash(id));
    file.open_dataset("records").read<std::uint8_t>(id, record);
    REQUIRE(record == model.bytes(id));
  }
}

TEST_CASE("a damaged record is never used", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  Model model(kShape, 1);
  leave_cache(path, model, io);
  const std::uint64_t checksum = model.hash(5);
  const bool in_record = GENERATE(true, false);
  flip_byte(path, in_record ? offset_of(path, model.bytes(5).data(), 300) + 299
                            : offset_of(path, &checksum, sizeof checksum));

  SECTION("acquire") {
    const auto cache = reopen(path, io);
    model.visit(*cache, {4});
    REQUIRE_FALSE(cache->has_damaged());
    deltapipe::MemoryRecords records;
    std::vector<std::uint32_t> visits;
    cache->acquire(Ids{5}, records, visits);
    REQUIRE(cache->has_damaged());
    REQUIRE(visits == std::vector<std::uint32_t>{1});
    REQUIRE(get(records, 0, kShape.record_bytes) == Bytes(kShape.record_bytes, 0));
    cache->release(ExecSpace(), Ids{5});
    REQUIRE(cache->take_damaged() == Ids{5});
    REQUIRE(cache->take_damaged().empty());
    REQUIRE(cache->take_statistics().damaged == 1);
    cache->forget(Ids{5});
    model.forget(5);
    model.visit(*cache, {5});
    cache->flush();
    model.check_all(*cache);
  }
  SECTION("read ahead") {
    const auto cache = reopen(path, io);
    cache->prefetch(Ids{4, 5, 6});
    model.visit(*cache, {4});
    while (!cache->has_damaged()) cache->prefetch(Ids{});
    REQUIRE(cache->take_damaged() == Ids{5});
    cache->forget(Ids{5});
    model.forget(5);
    model.visit(*cache, {5});
    model.visit(*cache, {6});
    model.check_all(*cache);
    REQUIRE_FALSE(cache->has_damaged());
  }
  SECTION("forgotten") {
    const auto cache = reopen(path, io);
    REQUIRE(damaged(*cache) == Ids{5});
    cache->forget(Ids{5});
    model.forget(5);
    REQUIRE(damaged(*cache).empty());
    model.check_all(*cache);
    model.visit(*cache, {5});
    model.visit(*cache, {6});
    model.visit(*cache, {7});
    cache->flush();
    model.check_all(*cache);
  }
}

TEST_CASE("a file that is not the cache's is refused", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  Model model(kShape, 1);
  leave_cache(path, model, io);
  const std::string whole = read_all(path);

  SECTION("another cache") {
    const auto refused = [&](auto change, const std::string& what) {
      CacheIdentity other = identity();
      change(other);
      REQUIRE_THROWS_WITH(reopen(path, io, other),
                          Catch::StartsWith(path) && Catch::Contains(what));
    };
    refused([](CacheIdentity& who) { who.boundary = 3; }, "boundary is not 3 (got 2)");
    refused([](CacheIdentity& who) { who.backward = true; }, "direction is not backward");
    refused([](CacheIdentity& who) { who.sender = false; }, "end is not receiver (got sender)");
    refused([](CacheIdentity& who) { who.blocks_before = 4; }, "blocks_before is not 4 (got 5)");
    refused([](CacheIdentity& who) { who.storage = "8bit"; }, "storage is not 8bit (got fp16)");
    refused([](CacheIdentity& who) { who.tokens = 17; }, "tokens is not 17");
    refused([](CacheIdentity& who) { who.channels = 9; }, "channels is not 9");
    refused([](CacheIdentity& who) { who.data_fingerprint = 5; }, "data_fingerprint is not 5");
    refused([](CacheIdentity& who) { who.first_sample = 1; }, "first_sample is not 1");
    refused([](CacheIdentity& who) { who.sample_stride = 2; }, "sample_stride is not 2");
    refused([](CacheIdentity& who) { who.owner.run_id = "run-2"; }, "run_id is not run-2");
    CacheShape larger = kShape;
    larger.samples = 10;
    REQUIRE_THROWS_WITH(reopen(path, io, identity(), larger), Catch::Contains("samples is not 10"));
    larger = kShape;
    larger.record_bytes = 256;
    REQUIRE_THROWS_WITH(reopen(path, io, identity(), larger), Catch::Contains("record_bytes"));
  }
  SECTION("missing") {
    REQUIRE_THROWS_WITH(reopen(directory / "none.h5", io), Catch::Contains("none.h5"));
  }
  SECTION("truncated") {
    for (const std::size_t size :
         {whole.size() - 1, whole.size() / 2, std::size_t{100}, std::size_t{0}}) {
      deltapipe::testing::write_bytes(path, whole.substr(0, size));
      REQUIRE_THROWS_WITH(reopen(path, io), Catch::StartsWith(path));
    }
  }
  SECTION("truncated while in use") {
    const auto cache = reopen(path, io);
    std::filesystem::resize_file(path, offset_of(path, model.bytes(7).data(), 300) + 299);
    deltapipe::MemoryRecords records;
    std::vector<std::uint32_t> visits;
    REQUIRE_THROWS_WITH(cache->acquire(Ids{7}, records, visits),
                        Catch::StartsWith(path) && Catch::Contains("truncated"));
  }
  SECTION("any damage to HDF5's structures is an error or none, never a crash") {
    const std::size_t records = offset_of(path, model.bytes(0).data(), 300);
    for (std::size_t offset = 0; offset < whole.size(); offset += offset < 2048 ? 1 : 37) {
      if (offset >= records && offset < records + 9 * 300) continue;
      deltapipe::testing::write_bytes(path, whole);
      flip_byte(path, offset);
      try {
        reopen(path, io)->find_damaged_records();
      } catch (const UserError& error) {
        REQUIRE_THAT(error.what(), Catch::StartsWith(path));
      }
    }
  }
  SECTION("repacked: records elsewhere") {
    std::filesystem::remove(path);
    auto file = deltapipe::hdf5::File::create(path);
    file.create_dataset("records", deltapipe::hdf5::ElementType::u8, {9, 300}, {.chunk = {1, 300}});
    REQUIRE_THROWS_WITH(reopen(path, io), Catch::Contains("format"));
  }
  SECTION("in use") {
    const auto cache = reopen(path, io);
    REQUIRE_THROWS_WITH(reopen(path, io), Catch::Contains("another process uses"));
    REQUIRE_THROWS_WITH(
        ActivationCache(ExecSpace(), &io, kShape, identity(), budget_for(kShape, 2), path),
        Catch::Contains("another process uses"));
    model.check_all(*cache);
  }
}

TEST_CASE("a new cache replaces an old one and nothing else", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  const auto create = [&] {
    return std::make_unique<ActivationCache>(ExecSpace(), &io, kShape, identity(),
                                             budget_for(kShape, 2), path);
  };
  Model old_model(kShape, 1);
  leave_cache(path, old_model, io);
  Model model(kShape, 2);
  {
    const auto cache = create();
    model.check_all(*cache);
  }
  deltapipe::testing::write_bytes(path, "a user's notes");
  REQUIRE_THROWS_WITH(create(), Catch::StartsWith(path) && Catch::Contains("in the way"));
  REQUIRE(read_all(path) == "a user's notes");
  std::filesystem::remove(path);
  { deltapipe::hdf5::File::create(path).write_attribute("format", "a run"); }
  REQUIRE_THROWS_WITH(create(), Catch::Contains("in the way"));
  REQUIRE_THROWS_WITH(ActivationCache(ExecSpace(), &io, kShape, identity(), budget_for(kShape, 2),
                                      directory / "none/c.h5"),
                      Catch::Contains("none"));
}

TEST_CASE("a file that another run needs is not replaced", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  const auto create = [&](const CacheIdentity& who) {
    return std::make_unique<ActivationCache>(ExecSpace(), &io, kShape, who, budget_for(kShape, 2),
                                             path);
  };
  CacheIdentity needed = identity();
  needed.is_needed = true;
  CacheIdentity other = identity();
  other.owner = {"run-2", "/runs/two"};
  const auto refused = [&](auto call) {
    REQUIRE_THROWS_WITH(call(), Catch::StartsWith(path) && Catch::Contains("another run") &&
                                    Catch::Contains("run run-1 in /runs/one") &&
                                    Catch::Contains("set another cache.directory"));
  };

  create(needed);
  const std::string whole = read_all(path);
  refused([&] { create(other); });
  refused([&] { deltapipe::check_spill_file_owner(path, other.owner); });
  // Also one that is damaged: that may be another run's to look at.
  deltapipe::testing::write_bytes(path, whole.substr(0, whole.size() - 1));
  REQUIRE_THROWS_AS(create(other), UserError);
  deltapipe::testing::write_bytes(path, whole);
  REQUIRE(read_all(path) == whole);

  // The same run under another name of its directory, and one that starts again in the same one. A
  // directory of the same name alone may be another one.
  deltapipe::check_spill_file_owner(path, {"run-1", "/moved"});
  REQUIRE(deltapipe::is_spill_file_of(path, {"run-1", "/moved"}));
  for (const CacheOwner& owner :
       {CacheOwner{"run-2", "/runs/one"}, CacheOwner{"run-2", "/runs/one", "", {"run-0", "run-12"}},
        CacheOwner{"run-2", "/runs/two", "", {"run-1"}}}) {
    refused([&] { deltapipe::check_spill_file_owner(path, owner); });
    REQUIRE(!deltapipe::is_spill_file_of(path, owner));
    other.owner = owner;
    refused([&] { create(other); });
  }
  REQUIRE(read_all(path) == whole);
  const auto needs = deltapipe::run_that_needs(path);
  REQUIRE(needs);
  REQUIRE(needs->run_id == "run-1");
  REQUIRE(needs->directory == "/runs/one");
  REQUIRE(needs->checkpoints == "/checkpoints/one");
  other.owner = {"run-2", "/runs/one", "", {"run-0", "run-1"}};
  deltapipe::check_spill_file_owner(path, other.owner);
  REQUIRE(deltapipe::is_spill_file_of(path, other.owner));
  create(other);
  REQUIRE(!deltapipe::run_that_needs(path));
  // Not needed, or no longer.
  create(identity());
  other.owner = {"run-3", "/runs/three"};
  deltapipe::check_spill_file_owner(path, other.owner);
  create(other);
  needed.owner = other.owner;
  create(needed)->let_replace_file();
  deltapipe::check_spill_file_owner(path, identity().owner);
  create(identity());
  deltapipe::check_spill_file_owner(directory / "none.h5", identity().owner);
  // Released by another process.
  needed.owner = identity().owner;
  create(needed);
  refused([&] { deltapipe::check_spill_file_owner(path, {"run-4", "/runs/four"}); });
  deltapipe::let_replace_spill_file(path);
  deltapipe::check_spill_file_owner(path, {"run-4", "/runs/four"});
  REQUIRE_THROWS_AS(deltapipe::let_replace_spill_file(directory / "none.h5"), UserError);
}

TEST_CASE("a spill file is needed from when its run has checkpoints", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  Model model(kShape, 1);
  leave_cache(path, model, io);
  REQUIRE(!deltapipe::run_that_needs(path));
  CacheIdentity needed = identity();
  needed.is_needed = true;
  model.check_all(*reopen(path, io, needed));
  REQUIRE(deltapipe::run_that_needs(path));
  // A start without any does not take it from the one before.
  reopen(path, io);
  REQUIRE(deltapipe::run_that_needs(path));
}

TEST_CASE("what a spill file does not say of its run protects it", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  const CacheOwner other{"", "/runs/two"};
  const auto refused = [&] {
    REQUIRE_THROWS_WITH(deltapipe::check_spill_file_owner(path, other),
                        Catch::StartsWith(path) && Catch::Contains("another run"));
  };
  for (const std::vector<std::uint64_t>& shape :
       std::vector<std::vector<std::uint64_t>>{{0}, {2}, {1, 2}}) {
    deltapipe::hdf5::File file = deltapipe::hdf5::File::create(path);
    file.write_fixed_attribute("format", "deltapipe activation cache");
    file.write_fixed_attribute("run_id", "run-1");
    file.create_dataset("needed", deltapipe::hdf5::ElementType::u32, shape);
    file.close();
    refused();
  }
  std::filesystem::remove(path);
  CacheIdentity needed = identity();
  needed.is_needed = true;
  ActivationCache(ExecSpace(), &io, kShape, needed, budget_for(kShape, 2), path);
  {
    deltapipe::hdf5::File file = deltapipe::hdf5::File::open_read_write(path);
    file.write_attribute("run_id", std::vector<std::string>{"run-1", "run-2"});
    file.close();
  }
  refused();
  const std::string whole = read_all(path);
  REQUIRE_THROWS_AS(
      ActivationCache(ExecSpace(), &io, kShape, identity(), budget_for(kShape, 2), path),
      UserError);
  REQUIRE(read_all(path) == whole);
}

TEST_CASE("a spill file of another version is refused or replaced", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  Model model(kShape, 1);
  leave_cache(path, model, io);
  {
    deltapipe::hdf5::File file = deltapipe::hdf5::File::open_read_write(path);
    file.write_attribute("format_version", std::uint64_t{4});
    file.close();
  }
  REQUIRE_THROWS_WITH(reopen(path, io), Catch::StartsWith(path) &&
                                            Catch::Contains("another version") &&
                                            Catch::Contains("format_version 4, not 5"));
  ActivationCache(ExecSpace(), &io, kShape, identity(), budget_for(kShape, 2), path);
  Model(kShape, 1).check_all(*reopen(path, io));
}

TEST_CASE("a damaged file is replaced when it says that it is the run's", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  const auto create = [&](const CacheOwner& owner) {
    CacheIdentity who = identity();
    who.owner = owner;
    return std::make_unique<ActivationCache>(ExecSpace(), &io, kShape, who, budget_for(kShape, 2),
                                             path);
  };
  create(identity().owner);
  const std::string whole = read_all(path);
  const auto in_the_way = [&](const CacheOwner& owner) {
    REQUIRE_THROWS_WITH(create(owner), Catch::StartsWith(path) && Catch::Contains("in the way"));
  };
  for (const std::size_t size : {whole.size() - 1, whole.size() / 2, std::size_t{2000}}) {
    const std::string cut = whole.substr(0, size);
    deltapipe::testing::write_bytes(path, cut);
    in_the_way({"run-2", "/runs/two"});
    REQUIRE(read_all(path) == cut);
    // Names that begin or end alike.
    for (const CacheOwner& owner :
         {CacheOwner{"run-", "/moved"}, CacheOwner{"un-1", "/moved"},
          CacheOwner{"run-2", "/runs/on", "", {"run-1"}},
          CacheOwner{"run-2", "/runs/one", "", {"run-"}}, CacheOwner{"run-2", "/runs/one"}})
      in_the_way(owner);
    create({"run-2", "/runs/one", "", {"run-1"}});
    deltapipe::testing::write_bytes(path, cut);
    create({"run-1", "/moved"});
    Model model(kShape, 1);
    model.check_all(*create(identity().owner));
  }
  // Nothing says whose these are.
  for (const std::string& bytes : std::vector<std::string>{
           whole.substr(0, 100), "deltapipe activation cache of run-1", "x" + whole}) {
    deltapipe::testing::write_bytes(path, bytes);
    in_the_way(identity().owner);
    REQUIRE(read_all(path) == bytes);
  }
}

TEST_CASE("too little disk is an error at the start", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  REQUIRE_THROWS_WITH(deltapipe::check_disk_space(directory.path(), ~std::uint64_t{0}, path),
                      Catch::StartsWith(path) && Catch::Contains("18446744073709551615 bytes"));
  deltapipe::check_disk_space(directory.path(), 1, path);

  CacheIoThread io;
  const CacheShape huge{.samples = std::uint64_t{1} << 20,
                        .record_bytes = std::size_t{1} << 30,
                        .max_samples_in_flight = 1};
  const std::uint64_t budget = std::uint64_t{1} << 30;
  REQUIRE_THROWS_WITH(ActivationCache(ExecSpace(), &io, huge, identity(), budget, path),
                      Catch::StartsWith(path) && Catch::Contains("are free"));
  REQUIRE(!std::filesystem::exists(path));

  const FileSizeLimit limit(4000);
  REQUIRE_THROWS_WITH(
      ActivationCache(ExecSpace(), &io, kShape, identity(), budget_for(kShape, 2), path),
      Catch::StartsWith(path));
  REQUIRE(!std::filesystem::exists(path));
}

TEST_CASE("a disk that gets full loses nothing that was complete", "[cache]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  Model model(kShape, 1);
  leave_cache(path, model, io);
  Model later = model;
  {
    auto cache = reopen(path, io);
    const FileSizeLimit limit(1);
    // Only the first record given up fails; the error comes with a later call.
    REQUIRE_THROWS_WITH(
        [&] {
          for (int i = 0; i < 1000; ++i) later.visit(*cache, {static_cast<std::uint64_t>(i % 8)});
        }(),
        Catch::StartsWith(path) && Catch::Contains("full") && Catch::Contains("bytes") &&
            Catch::Contains("cache.directory"));
    REQUIRE_THROWS_AS(cache->flush(), UserError);
    cache.reset();  // with room again it could still write its last records
  }
  const auto cache = reopen(path, io);
  REQUIRE(damaged(*cache).empty());
  model.check_all(*cache);
}
