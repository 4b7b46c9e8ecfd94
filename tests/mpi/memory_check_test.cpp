// SPDX-License-Identifier: BSD-3-Clause
// Both ends' memories are compared on the way, and a damaged one is found and named.
#include <catch2/catch.hpp>
#include <cmath>
#include <optional>

#include "comm/boundary/boundary.hpp"
#include "comm/transport/agree.hpp"
#include "core/base/error.hpp"
#include "core/cache/io_thread.hpp"
#include "mpi_test.hpp"
#include "support/memory_state_reader.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;
using Ids = std::vector<std::uint64_t>;

constexpr int kTokens = 3, kChannels = 70;
const std::vector<Ids> kEpoch = {{0, 2}, {4, 6}, {8}};  // of the first of two replicas

BoundaryEndPlan end_plan(MemoryStorage storage, std::uint64_t verify_every, CacheIoThread* spill) {
  BoundaryEndPlan plan;
  plan.codec.settings.kind = CodecKind::aqsgd;
  plan.codec.settings.bits = 4;
  plan.codec.shape = {2, kTokens, kChannels};
  plan.codec.storage = storage;
  plan.memory.samples = 5;
  plan.memory.sample_stride = 2;
  plan.memory.verify_every = verify_every;
  plan.memory.prefetch_micro_batches = 1;
  plan.memory.directory = ".";
  plan.memory.io = spill;
  if (spill != nullptr) plan.memory.budget_bytes = 2 * 4 * kTokens * kChannels + 256;
  return plan;
}

void fill(const Matrix<float>& x, int step, const Ids& ids) {
  const auto host = Kokkos::create_mirror_view(x);
  for (std::size_t row = 0; row < host.extent(0); ++row)
    for (std::size_t c = 0; c < host.extent(1); ++c) {
      const std::uint64_t id = ids[std::min(row / kTokens, ids.size() - 1)];
      host(row, c) = std::sin(static_cast<float>(id * 100 + row % kTokens * 17 + c)) +
                     0.1f * std::cos(static_cast<float>(step * 31 + static_cast<int>(c)));
    }
  Kokkos::deep_copy(x, host);
}

/// All samples have been visited.
void flip_bit(ActivationCache& cache, std::uint64_t record, std::size_t byte) {
  const StatePart part = {"cache", [&](StateWriter& writer) { cache.write_state(writer); },
                          [&](StateReader& reader) { cache.read_state(reader); }};
  StateContent content = state_in_memory({&part, 1});
  for (StateContent::Item& item : content.parts[0].items)
    if (item.item.name == "records") item.bytes[record * item.item.shape[1] + byte] ^= std::byte{1};
  MemoryStateReader reader(content);
  read_state({&part, 1}, reader);
}

struct Damage {
  int rank = -1;
  std::uint64_t record = 0;
  std::size_t byte = 0;
  int step = 0;          ///< before which it happens
  bool forgets = false;  ///< the end forgets the record; else one of its bits is flipped
};

/// Four epochs over a boundary from rank 0 to rank 1; what all stopped with, and rank 0's bytes.
std::pair<std::string, std::uint64_t> run(MemoryStorage storage, std::uint64_t verify_every,
                                          bool spills, const Damage& damage = {},
                                          PayloadMemory memory = PayloadMemory::host) {
  MPI_Comm world = MPI_COMM_NULL;  // of no further use after a stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  const int rank = progress.rank();
  CacheIoThread io;
  BoundaryEndPlan plan = end_plan(storage, verify_every, spills ? &io : nullptr);
  if (damage.forgets) plan.codec.settings.bits = 8;  // as at first visits: equally long payloads
  plan.side = rank == 0 ? BoundarySide::sender : BoundarySide::receiver;
  plan.payload_memory = memory;
  std::optional<BoundarySender> sender;
  std::optional<BoundaryReceiver> receiver;
  if (rank == 0)
    sender.emplace(progress, world, 1, kForwardTag, plan,
                   std::make_shared<EmulatedLink>(LinkSettings{}), "test");
  if (rank == 1) receiver.emplace(progress, world, 0, kForwardTag, plan, "test");
  {
    const auto lock = progress.pause();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  const Matrix<float> x("deltapipe::Test::x", 2 * kTokens, kChannels);
  std::string text;
  std::uint64_t bytes = 0;
  try {
    agree(progress, [&] {
      int step = 0;
      for (int epoch = 0; epoch < 4; ++epoch) {
        for (const Ids& ids : kEpoch) {
          if (rank == damage.rank && step == damage.step) {
            ActivationCache& cache = rank == 0 ? *sender->cache() : *receiver->cache();
            if (damage.forgets)
              cache.forget({&damage.record, 1});
            else
              flip_bit(cache, damage.record, damage.byte);
          }
          Crossing crossing;
          crossing.step = static_cast<std::uint64_t>(step++);
          crossing.epoch = epoch;
          crossing.sample_ids = ids;
          crossing.tokens.assign(ids.size(), kTokens - 1);
          if (rank > 1) continue;
          fill(x, step, ids);
          if (rank == 0) sender->prefetch(ids);
          if (rank == 0) sender->send(ExecSpace(), crossing, x);
          if (rank == 1) receiver->prefetch(ids);
          if (rank == 1) receiver->receive(ExecSpace(), crossing, x);
        }
      }
      if (sender) sender->flush();
      if (sender) bytes = sender->take_statistics().bytes;
      barrier(progress, world);
    });
  } catch (const Stopped& stopped) {
    text = stopped.message();
  }
  return {text, bytes};
}

const std::vector<MemoryStorage> kStorages = {MemoryStorage::fp32, MemoryStorage::fp16,
                                              MemoryStorage::bf16, MemoryStorage::bits8,
                                              MemoryStorage::bits4};

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

TEST_CASE("Equal memories pass, and their hashes are counted as bytes", "[memory_check]") {
  if (world_size() < 2) return;
  for (const MemoryStorage storage : kStorages)
    for (const bool spills : {false, true}) {
      CAPTURE(static_cast<int>(storage), spills);
      const auto [none, without] = run(storage, 0, spills);
      const auto [all, with] = run(storage, 1, spills);
      const auto [device, with_device] = run(storage, 1, spills, {}, PayloadMemory::device);
      CHECK(none.empty());
      CHECK(all.empty());
      CHECK(device.empty());
      // Four visits of five samples.
      if (without > 0) CHECK(with == without + 4 * 5 * sizeof(std::uint64_t));
      CHECK(with_device == with);
    }
  // Samples 0, 2, 4, 6 and 8 in turn: of every four visits one.
  const auto [some, with] = run(MemoryStorage::fp16, 4, false);
  const auto [none, without] = run(MemoryStorage::fp16, 0, false);
  CHECK(some.empty());
  if (without > 0) CHECK(with == without + 5 * sizeof(std::uint64_t));
}

TEST_CASE("A flipped bit in either end's memory is found and named", "[memory_check]") {
  if (world_size() < 2) return;
  // Each run ends like a failed one, which takes a second. Both ends are tested with both kinds of
  // memory in fp16 only.
  for (const MemoryStorage storage : kStorages)
    for (const int rank : {0, 1})
      for (const bool spills : {false, true}) {
        if (storage != MemoryStorage::fp16 && spills != (rank == 1)) continue;
        CAPTURE(static_cast<int>(storage), rank, spills);
        const PayloadMemory memory = spills ? PayloadMemory::device : PayloadMemory::host;
        // The most significant byte of the first value, or of the first scale.
        const std::size_t byte = storage == MemoryStorage::fp32 ? 3 : 1;
        const auto [text, bytes] = run(storage, 1, spills, {rank, 3, byte, 7}, memory);
        CHECK_THAT(text, Contains("rank 0 and rank 1 remember sample 6 at boundary 0 forward"));
        CHECK_THAT(text, Contains("after its visit 3, step 7"));
      }
}

TEST_CASE("Ends that remember other visits find it before they decode", "[memory_check]") {
  if (world_size() < 2) return;
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    const auto [text, bytes] =
        run(MemoryStorage::fp16, 0, false, {.rank = rank, .record = 3, .step = 7, .forgets = true});
    CHECK_THAT(text, Contains("rank 1 waits for the activation of step 7") &&
                         Contains("samples' visits") && Contains("restart all ranks"));
  }
}

}  // namespace
}  // namespace deltapipe
