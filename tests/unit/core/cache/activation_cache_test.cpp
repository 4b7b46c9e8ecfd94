// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <memory>
#include <optional>

#include "core/base/error.hpp"
#include "core/cache/io_thread.hpp"
#include "tests/unit/core/cache/cache_support.hpp"

using namespace cache_test;
using deltapipe::CacheIoThread;
using deltapipe::CacheStatistics;
using deltapipe::ExecSpace;
using deltapipe::SpillStart;

namespace {

/// Trains `epochs` shuffled epochs in micro-batches with the order announced `ahead` samples
/// before.
void train(ActivationCache& cache, Model& model, std::uint64_t samples, std::size_t batch,
           int epochs, std::size_t ahead) {
  Ids order;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const Ids ids = shuffled(samples, model.random());
    order.insert(order.end(), ids.begin(), ids.end());
  }
  std::size_t announced = 0;
  for (std::size_t begin = 0; begin < order.size();) {
    const std::size_t to_epoch_end = samples - begin % samples;
    const std::size_t size = std::min(batch, to_epoch_end);
    const std::size_t until = std::min(order.size(), begin + size + ahead);
    cache.prefetch({order.data() + announced, until - announced});
    announced = until;
    model.visit(cache, Ids(order.begin() + static_cast<std::ptrdiff_t>(begin),
                           order.begin() + static_cast<std::ptrdiff_t>(begin + size)));
    begin += size;
  }
}

}  // namespace

TEST_CASE("a cache without a budget keeps everything in memory", "[cache]") {
  const CacheShape shape{.samples = 11, .record_bytes = 77, .max_samples_in_flight = 4};
  ActivationCache cache(ExecSpace(), nullptr, shape, identity(), 0, "");
  Model model(shape, 1);
  train(cache, model, shape.samples, 3, 3, 5);
  model.check_all(cache);
  cache.flush();
  REQUIRE(damaged(cache).empty());
  const CacheStatistics statistics = cache.take_statistics();
  REQUIRE(statistics.first_visits == 11);
  REQUIRE(statistics.hits == 22);
  REQUIRE(statistics.misses == 0);
  REQUIRE(statistics.bytes_read + statistics.bytes_written == 0);
  REQUIRE(cache.take_statistics().hits == 0);
}

TEST_CASE("a use of no records changes nothing", "[cache]") {
  const CacheShape shape{.samples = 4, .record_bytes = 5, .max_samples_in_flight = 2};
  ActivationCache cache(ExecSpace(), nullptr, shape, identity(), 0, "");
  Model model(shape, 1);
  model.visit(cache, {2, 1});
  deltapipe::MemoryRecords records;
  std::vector<std::uint32_t> visits;
  cache.acquire({}, records, visits);
  REQUIRE(visits.empty());
  cache.release(ExecSpace(), {});
  model.check_all(cache);
}

TEST_CASE("wrong use of a cache is an internal error", "[cache]") {
  const CacheShape shape{.samples = 4, .record_bytes = 5, .max_samples_in_flight = 2};
  deltapipe::MemoryRecords records;
  std::vector<std::uint32_t> visits;
  const auto fresh = [&] {
    return std::make_unique<ActivationCache>(ExecSpace(), nullptr, shape, identity(), 0, "");
  };
  REQUIRE_THROWS_AS(fresh()->acquire(Ids{4}, records, visits), deltapipe::InternalError);
  REQUIRE_THROWS_AS(fresh()->acquire(Ids{1, 1}, records, visits), deltapipe::InternalError);
  REQUIRE_THROWS_AS(fresh()->acquire(Ids{1, 2, 3}, records, visits), deltapipe::InternalError);
  REQUIRE_THROWS_AS(fresh()->release(ExecSpace(), Ids{1}), deltapipe::InternalError);
  REQUIRE_THROWS_AS(fresh()->prefetch(Ids{4}), deltapipe::InternalError);
}

TEST_CASE("shuffled epochs with spilling give back what was released", "[cache]") {
  const int batch = GENERATE(1, 3);
  const std::uint64_t extra = GENERATE(0, 1, 2, 3, 20);
  const std::size_t ahead = GENERATE(0, 2, 9, 200);
  const CacheShape shape{
      .samples = 41, .record_bytes = 131, .max_samples_in_flight = batch, .prefetch_samples = 6};
  const TemporaryDirectory directory;
  CacheIoThread io;
  const std::uint64_t budget = budget_for(shape, static_cast<std::uint64_t>(batch) + extra);
  ActivationCache cache(ExecSpace(), &io, shape, identity(), budget, directory / "c.h5");
  Model model(shape, 7);
  train(cache, model, shape.samples, static_cast<std::size_t>(batch), 4, ahead);
  const CacheStatistics statistics = cache.take_statistics();
  REQUIRE(statistics.first_visits == 41);
  REQUIRE(statistics.hits + statistics.misses == 3 * 41);
  REQUIRE(statistics.misses > 0);
  model.check_all(cache);
}

TEST_CASE("random operations agree with a model", "[cache]") {
  const unsigned seed = GENERATE(1, 2, 3, 4, 5, 6);
  const int in_flight = 4;
  const CacheShape shape{.samples = 23,
                         .record_bytes = 200,
                         .max_samples_in_flight = in_flight,
                         .prefetch_samples = static_cast<int>(seed % 4)};
  const TemporaryDirectory directory;
  const std::string path = directory / "c.h5";
  CacheIoThread io;
  const std::uint64_t budget = budget_for(shape, in_flight + seed % 4);
  std::optional<ActivationCache> cache;
  cache.emplace(ExecSpace(), &io, shape, identity(), budget, path);
  Model model(shape, seed);
  auto& random = model.random();
  std::vector<Ids> pinned;
  Ids plan;  // announced, not acquired yet
  const auto pinned_count = [&] {
    std::size_t count = 0;
    for (const Ids& ids : pinned) count += ids.size();
    return count;
  };
  const auto is_pinned = [&](std::uint64_t id) {
    return std::any_of(pinned.begin(), pinned.end(), [&](const Ids& ids) {
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    });
  };
  const auto acquire = [&](bool planned) {
    const std::size_t room = static_cast<std::size_t>(in_flight) - pinned_count();
    Ids ids;
    for (std::size_t want = random() % (room + 1); want > 0; --want) {
      if (planned && plan.empty()) break;
      const std::uint64_t id = planned ? plan.front() : random() % shape.samples;
      if (is_pinned(id) || std::find(ids.begin(), ids.end(), id) != ids.end()) break;
      if (planned) plan.erase(plan.begin());
      ids.push_back(id);
    }
    model.acquire(*cache, ids);
    pinned.push_back(ids);
  };
  const auto release_all = [&] {
    for (const Ids& ids : pinned) model.release(*cache, ids);
    pinned.clear();
  };
  for (int step = 0; step < 1500; ++step) {
    const auto choice = random() % 100;
    if (choice < 30) {
      Ids ids(random() % 5);
      for (std::uint64_t& id : ids) id = random() % shape.samples;
      cache->prefetch(ids);
      plan.insert(plan.end(), ids.begin(), ids.end());
    } else if (choice < 70) {
      // Unannounced uses fit no plan: they must not disturb it.
      acquire(random() % 4 != 0 || !plan.empty());
    } else if (choice < 93 && !pinned.empty()) {
      model.release(*cache, pinned.front());
      pinned.erase(pinned.begin());
    } else if (choice < 95) {
      cache->clear_prefetch();
      plan.clear();
    } else if (choice < 97) {
      release_all();
      const std::uint64_t id = random() % shape.samples;
      model.check_all(*cache);
      if (random() % 4 == 0) {
        cache->forget(Ids{id});
        model.forget(id);
      }
    } else if (choice < 99) {
      release_all();
      cache->flush();
    } else if (choice == 99) {
      release_all();
      cache->flush();
      cache.reset();
      plan.clear();
      cache.emplace(ExecSpace(), &io, shape, identity(), budget, path, SpillStart::open_existing);
      REQUIRE(damaged(*cache).empty());
    }
  }
  release_all();
  model.check_all(*cache);
}

TEST_CASE("two caches share one I/O thread", "[cache]") {
  const CacheShape shape{.samples = 17, .record_bytes = 64, .max_samples_in_flight = 2};
  const TemporaryDirectory directory;
  CacheIoThread io;
  ActivationCache first(ExecSpace(), &io, shape, identity(), budget_for(shape, 3),
                        directory / "first.h5");
  ActivationCache second(ExecSpace(), &io, shape, identity(), budget_for(shape, 4),
                         directory / "second.h5");
  Model first_model(shape, 1);
  Model second_model(shape, 2);
  for (int epoch = 0; epoch < 4; ++epoch) {
    const Ids ids = shuffled(shape.samples, first_model.random());
    first.prefetch(ids);
    second.prefetch(ids);
    for (const std::uint64_t id : ids) {
      first_model.visit(first, {id});
      second_model.visit(second, {id});
    }
  }
  first_model.check_all(first);
  second_model.check_all(second);
}

TEST_CASE("the hit rate reaches the bound of shuffled epochs", "[cache]") {
  const CacheShape shape{
      .samples = 200, .record_bytes = 16, .max_samples_in_flight = 1, .prefetch_samples = 4};
  const std::size_t ahead = GENERATE(4, 200);
  const TemporaryDirectory directory;
  CacheIoThread io;
  ActivationCache cache(ExecSpace(), &io, shape, identity(), budget_for(shape, 50),
                        directory / "c.h5");
  Model model(shape, 3);
  train(cache, model, shape.samples, 1, 11, ahead);
  const CacheStatistics statistics = cache.take_statistics();
  REQUIRE(statistics.hits + statistics.misses == 2000);
  // An epoch finds in memory only records that were there at its beginning: at most 50 of 200. One
  // record is given up for the first miss before its use is known to be near.
  REQUIRE(statistics.hits <= 500);
  REQUIRE(statistics.hits >= 480);
}

TEST_CASE("sizes are known before training", "[cache]") {
  const CacheShape shape{
      .samples = 1000, .record_bytes = 100, .max_samples_in_flight = 4, .prefetch_samples = 8};
  REQUIRE(ActivationCache::minimum_budget_bytes(shape) == 4 * 128);
  REQUIRE(ActivationCache::memory_bytes(shape, 0).pool_bytes == 1000 * 128);
  REQUIRE(ActivationCache::memory_bytes(shape, 0).staging_bytes == 0);
  REQUIRE(ActivationCache::memory_bytes(shape, 1300).pool_bytes == 10 * 128);
  REQUIRE(ActivationCache::memory_bytes(shape, 1300).staging_bytes == 24 * 128);
  REQUIRE(ActivationCache::disk_bytes_needed(shape, 0) == 0);
  REQUIRE(ActivationCache::disk_bytes_needed(shape, 1300) >= 1000 * 112);

  const TemporaryDirectory directory;
  CacheIoThread io;
  const std::string path = directory / "c.h5";
  REQUIRE_THROWS_WITH(ActivationCache(ExecSpace(), &io, shape, identity(), 511, path),
                      Catch::Contains("got 511 bytes") && Catch::Contains("at least 512"));
  ActivationCache cache(ExecSpace(), &io, shape, identity(), 512, path);
  REQUIRE(std::filesystem::file_size(path) <= ActivationCache::disk_bytes_needed(shape, 512));
}
