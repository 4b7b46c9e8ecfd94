// SPDX-License-Identifier: BSD-3-Clause
// What codecs whose payloads' length depends on the data, and codecs with records at one end only,
// make of a boundary between two ranks.
#include "comm/boundary/boundary.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <optional>

#include "comm/transport/agree.hpp"
#include "core/base/error.hpp"
#include "core/cache/io_thread.hpp"
#include "mpi_test.hpp"
#include "support/instance_watch.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;
using Ids = std::vector<std::uint64_t>;

constexpr int kTokens = 20, kChannels = 9, kSamples = 2;
const std::vector<Ids> kEpoch = {{0, 1}, {2, 3}, {4}};

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

constexpr std::size_t round_up_record(std::size_t bytes) {
  return (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

BoundaryEndPlan plan_of(CodecKind kind, BoundarySide side, CacheIoThread* io = nullptr,
                        FeedbackOf feedback_of = FeedbackOf::sample) {
  BoundaryEndPlan plan;
  plan.codec.settings.kind = kind;
  plan.codec.settings.bits = 3;
  plan.codec.settings.error_feedback = kind == CodecKind::directq || kind == CodecKind::topk;
  if (kind == CodecKind::topk) plan.codec.settings.feedback_kind = FeedbackKind::ef21;
  plan.codec.shape = {kSamples, kTokens, kChannels};
  plan.codec.storage = MemoryStorage::fp32;
  plan.codec.settings.feedback_of = feedback_of;
  plan.memory.of_positions = feedback_of == FeedbackOf::position;
  plan.memory.samples = plan.memory.of_positions ? kSamples : 5;
  plan.memory.verify_every = 1;
  plan.memory.prefetch_micro_batches = 1;
  plan.memory.directory = ".";
  plan.memory.io = io;
  if (io != nullptr) plan.memory.budget_bytes = 3 * round_up_record(4 * kTokens * kChannels);
  plan.backward = true;
  plan.evaluation.modes.clear();
  plan.side = side;
  return plan;
}

int valid_tokens(std::uint64_t id) {
  return kTokens - static_cast<int>(id);
}

/// Returns true for some rows of a sample, which differ by step, and for all rows in step 3.
bool is_zero(int step, std::uint64_t id, int t) {
  return step == 3 || (static_cast<int>(id) + t * 7 + step) % 3 == 0;
}

Crossing crossing_of(int step, const Ids& ids) {
  Crossing crossing;
  crossing.kind = CrossingKind::gradient;
  crossing.step = static_cast<std::uint64_t>(step);
  crossing.sample_ids = ids;
  for (const std::uint64_t id : ids) crossing.tokens.push_back(valid_tokens(id));
  return crossing;
}

/// Valid rows are left out or waves, padding is 5.
void fill(const Matrix<float>& x, int step, const Ids& ids) {
  const auto host = Kokkos::create_mirror_view(x);
  for (int row = 0; row < kSamples * kTokens; ++row) {
    const std::size_t b = row / kTokens;
    const int t = row % kTokens;
    const bool valid = b < ids.size() && t < valid_tokens(ids[b]);
    for (int c = 0; c < kChannels; ++c) {
      const float wave = std::sin(static_cast<float>(step * 31 + row * 7 + c));
      host(row, c) = !valid ? 5.0f : is_zero(step, ids[b], t) ? 0.0f : wave;
    }
  }
  Kokkos::deep_copy(x, host);
}

std::vector<float> values_of(const Matrix<float>& x) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
  return {host.data(), host.data() + host.size()};
}

/// Three epochs from rank 0 to rank 1: what rank 1 saw, what was sent and what the ends keep.
struct Result {
  std::vector<float> seen;
  std::vector<std::uint64_t> bytes_sent;  ///< of each step
  std::uint64_t bytes_received = 0;
  bool has_cache = false;
  std::string text;  ///< what stopped the run
};

Result run(CodecKind kind, bool spills = false, CodecKind receivers_kind = CodecKind::aqsgd,
           FeedbackOf feedback_of = FeedbackOf::sample,
           PayloadMemory memory = PayloadMemory::host) {
  MPI_Comm world = MPI_COMM_NULL;  // of no further use after a stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  CacheIoThread io;
  const int rank = progress.rank();
  std::optional<BoundarySender> sender;
  std::optional<BoundaryReceiver> receiver;
  CacheIoThread* const spill = spills ? &io : nullptr;
  BoundaryEndPlan sends = plan_of(kind, BoundarySide::sender, spill, feedback_of);
  BoundaryEndPlan receives = plan_of(receivers_kind == CodecKind::aqsgd ? kind : receivers_kind,
                                     BoundarySide::receiver, spill, feedback_of);
  sends.payload_memory = receives.payload_memory = memory;
  if (rank == 0)
    sender.emplace(progress, world, 1, kBackwardTag, sends,
                   std::make_shared<EmulatedLink>(LinkSettings{}), "test");
  if (rank == 1) receiver.emplace(progress, world, 0, kBackwardTag, receives, "test");
  {
    const auto lock = progress.pause();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  const Matrix<float> x("deltapipe::Test::x", kSamples * kTokens, kChannels);
  Result result;
  try {
    agree(progress, [&] {
      for (int step = 0; step < 9; ++step) {
        const Ids& ids = kEpoch[step % 3];
        Crossing crossing = crossing_of(step, ids);
        if (rank == 0) {
          fill(x, step, ids);
          sender->prefetch(ids);
          sender->send(ExecSpace(), crossing, x);
          result.bytes_sent.push_back(sender->take_statistics().bytes);
        }
        if (rank == 1) {
          receiver->prefetch(ids);
          receiver->receive(ExecSpace(), crossing, x);
          const std::vector<float> seen = values_of(x);
          result.seen.insert(result.seen.end(), seen.begin(), seen.end());
          result.bytes_received += receiver->take_statistics().bytes;
        }
      }
      if (sender) sender->flush();
      barrier(progress, world);
    });
  } catch (const Stopped& stopped) {
    result.text = stopped.message();
  }
  if (sender) result.has_cache = sender->cache() != nullptr;
  if (receiver) result.has_cache = receiver->cache() != nullptr;
  return result;
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

TEST_CASE("A message is as long as its payload", "[boundary]") {
  if (world_size() < 2) return;
  const Result none = run(CodecKind::none);
  CHECK(none.text.empty());
  std::uint64_t total = 0;
  for (int step = 0; step < 9; ++step) {
    std::uint64_t valid = 0;
    for (const std::uint64_t id : kEpoch[step % 3]) valid += valid_tokens(id);
    const std::uint64_t bytes = sizeof(MessageHeader) + 4 * valid * kChannels;
    total += bytes;
    if (world_rank() == 0) CHECK(none.bytes_sent[step] == bytes);
  }
  if (world_rank() == 1) CHECK(none.bytes_received == total);
}

// The ends compare hashes of each sample's memory at every visit.
TEST_CASE("Payloads that MPI finds in device memory are the same", "[boundary][gpu_aware]") {
  if (world_size() < 2) return;
  for (const CodecKind kind :
       {CodecKind::none, CodecKind::directq, CodecKind::aqsgd, CodecKind::aqsgd_topk})
    for (const bool spills : {false, true}) {
      CAPTURE(kCodecKindNames[static_cast<std::size_t>(kind)], spills);
      const Result host = run(kind, spills);
      const Result device =
          run(kind, spills, CodecKind::aqsgd, FeedbackOf::sample, PayloadMemory::device);
      CHECK(host.text.empty());
      CHECK(device.text.empty());
      CHECK(device.seen == host.seen);
      CHECK(device.seen.empty() == (world_rank() != 1));
      CHECK(device.bytes_sent == host.bytes_sent);
      CHECK(device.bytes_received == host.bytes_received);
    }
}

/// Error of a receiver about a message of codec none whose payload in device memory is `damaged`
/// after its checksum was made.
std::string refusal_of_payload(bool damaged) {
  MPI_Comm world = MPI_COMM_NULL;  // of no further use after a stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  const auto plan_in_device_memory = [](BoundarySide side) {
    BoundaryEndPlan plan = plan_of(CodecKind::none, side);
    plan.payload_memory = PayloadMemory::device;
    return plan;
  };
  const BoundaryEndPlan plan = plan_in_device_memory(BoundarySide::sender);
  ChannelOptions options;
  options.max_payload_bytes = 4 * kSamples * kTokens * kChannels;
  options.name = "test";
  options.payload_memory = PayloadMemory::device;
  std::optional<SendChannel> sender;
  std::optional<BoundaryReceiver> receiver;
  if (progress.rank() == 0) sender.emplace(progress, world, 1, kBackwardTag, options);
  if (progress.rank() == 1)
    receiver.emplace(progress, world, 0, kBackwardTag,
                     plan_in_device_memory(BoundarySide::receiver), "test");
  Crossing crossing = crossing_of(1, {0, 0});
  const Matrix<float> x("deltapipe::Test::x", kSamples * kTokens, kChannels);
  try {
    agree(progress, [&] {
      if (sender) {
        const std::size_t bytes = options.max_payload_bytes;
        const auto codec = make_codec(plan.codec.settings, plan.codec.shape, plan.codec.storage);
        const SendChannel::Buffer buffer = sender->acquire();
        const auto host = Kokkos::create_mirror_view(buffer.device_payload);
        for (std::size_t i = 0; i < bytes; ++i) host(i) = static_cast<std::uint8_t>(i % 100);
        Kokkos::deep_copy(buffer.device_payload, host);
        DeviceChecksum checksum;
        checksum.queue(ExecSpace(), buffer.device_payload, bytes);
        Kokkos::fence();
        MessageHeader header = header_of(crossing, codec->id());
        header.payload_checksum = checksum.value();
        if (damaged) host(bytes - 3) ^= 4;
        Kokkos::deep_copy(buffer.device_payload, host);
        sender->send(buffer, header, bytes);
        sender->flush();
      }
      if (receiver) receiver->receive(ExecSpace(), crossing, x);
      barrier(progress, world);
    });
  } catch (const Stopped& stopped) {
    return stopped.message();
  }
  return {};
}

TEST_CASE("A damaged payload in device memory is refused", "[boundary][gpu_aware]") {
  if (world_size() < 2) return;
  CHECK(refusal_of_payload(false).empty());
  CHECK_THAT(refusal_of_payload(true), Contains("payload's checksum is 0x") && Contains("rank 0") &&
                                           Contains("rank 1") && Contains("damages data"));
}

TEST_CASE("Errors that only the sender keeps", "[boundary]") {
  if (world_size() < 2) return;
  const FeedbackOf feedback_of = GENERATE(FeedbackOf::sample, FeedbackOf::position);
  const bool of_positions = feedback_of == FeedbackOf::position;
  const Result memory = run(CodecKind::directq, false, CodecKind::aqsgd, feedback_of);
  const Result spilled = run(CodecKind::directq, true, CodecKind::aqsgd, feedback_of);
  for (const Result* result : {&memory, &spilled}) {
    CHECK(result->text.empty());
    CHECK(result->has_cache == (world_rank() == 0));
  }
  CHECK(memory.seen == spilled.seen);
  CHECK(memory.bytes_sent == spilled.bytes_sent);
  if (world_rank() > 1) return;

  // The same in one process.
  const BoundaryEndPlan plan = plan_of(CodecKind::directq, BoundarySide::sender);
  const auto codec = make_codec(plan.codec.settings, plan.codec.shape, plan.codec.storage);
  const std::size_t record = codec->record().bytes(BoundarySide::sender);
  CHECK(codec->record().bytes(BoundarySide::receiver) == 0);
  const DeviceBytes pool("deltapipe::Test::pool", 5 * record);
  const DeviceBytes payload("deltapipe::Test::payload", codec->max_payload_bytes());
  const Matrix<float> x("deltapipe::Test::x", kSamples * kTokens, kChannels);
  std::vector<float> expected;
  std::vector<std::uint32_t> visits(5, 0);
  for (int step = 0; step < 9; ++step) {
    const Ids& ids = kEpoch[step % 3];
    Crossing crossing = crossing_of(step, ids);
    MemoryRecords records{pool, {}};
    for (std::size_t b = 0; b < ids.size(); ++b) {
      const std::uint64_t kept = of_positions ? b : ids[b];
      crossing.visits.push_back(visits[kept]++);
      records.offset_B.push_back(kept * record);
    }
    fill(x, step, ids);
    const std::size_t bytes = codec->encode(ExecSpace(), crossing, x, records, payload);
    codec->decode(ExecSpace(), crossing, payload, bytes, {}, x);
    Kokkos::fence();
    const std::vector<float> seen = values_of(x);
    expected.insert(expected.end(), seen.begin(), seen.end());
    // No hashes: nothing is kept at both ends.
    if (world_rank() == 0) CHECK(memory.bytes_sent[step] == sizeof(MessageHeader) + bytes);
  }
  if (world_rank() == 1) CHECK(memory.seen == expected);
}

// The ends compare hashes of each sample's memory at every visit.
TEST_CASE("Memories of TopK's changes are the same at both ends", "[boundary]") {
  if (world_size() < 2) return;
  const FeedbackOf feedback_of = GENERATE(FeedbackOf::sample, FeedbackOf::position);
  for (const CodecKind kind : {CodecKind::topk, CodecKind::aqsgd_topk}) {
    if (kind == CodecKind::aqsgd_topk && feedback_of == FeedbackOf::position) continue;
    const Result memory = run(kind, false, CodecKind::aqsgd, feedback_of);
    const Result spilled = run(kind, true, CodecKind::aqsgd, feedback_of);
    for (const Result* result : {&memory, &spilled}) {
      CHECK(result->text.empty());
      CHECK(result->has_cache == (world_rank() < 2));
    }
    CHECK(memory.seen == spilled.seen);
    CHECK(memory.bytes_sent == spilled.bytes_sent);
    std::uint64_t total = 0;
    for (const std::uint64_t bytes : memory.bytes_sent) total += bytes;
    if (world_rank() == 0) CHECK(total < 9 * 4 * kTokens * kChannels);
  }
}

TEST_CASE("Ends with other codecs stop and say so", "[boundary]") {
  if (world_size() < 2) return;
  const Result result = run(CodecKind::fp16, false, CodecKind::none);
  CHECK_THAT(result.text, Contains("the codec is 0x") && Contains("rank 0") && Contains("rank 1"));
}

/// Three epochs of the same values from rank 0 to rank 1, each end's work on `instances`; where it
/// did not go there. Fills `seen` on rank 1.
std::vector<std::string> strays_of(CodecKind kind, const ExecutionInstances& instances,
                                   std::vector<float>& seen,
                                   PayloadMemory memory = PayloadMemory::host) {
  MPI_Comm world = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  const int rank = progress.rank();
  CacheIoThread io;
  std::optional<BoundarySender> sender;
  std::optional<BoundaryReceiver> receiver;
  BoundaryEndPlan sends = plan_of(kind, BoundarySide::sender, &io);
  BoundaryEndPlan receives = plan_of(kind, BoundarySide::receiver, &io);
  sends.payload_memory = receives.payload_memory = memory;
  if (rank == 0)
    sender.emplace(progress, world, 1, kBackwardTag, sends,
                   std::make_shared<EmulatedLink>(LinkSettings{}), "test", instances);
  if (rank == 1) receiver.emplace(progress, world, 0, kBackwardTag, receives, "test", instances);
  barrier(progress, world);
  const Matrix<float> x("deltapipe::Test::x", kSamples * kTokens, kChannels);
  fill(x, 1, kEpoch[0]);
  Kokkos::fence();
  test::InstanceWatch watch({instances.compute, instances.codec, instances.copy});
  for (int step = 0; step < 9; ++step) {
    const Ids& ids = kEpoch[step % 3];
    Crossing crossing = crossing_of(step, ids);
    if (sender) sender->send(instances.compute, crossing, x);
    if (receiver) receiver->receive(instances.compute, crossing, x);
  }
  if (sender) sender->take_codec_statistics();
  watch.end();
  if (sender) sender->flush();
  if (receiver) seen = values_of(x);
  barrier(progress, world);
  return watch.strays();
}

TEST_CASE("Both ends work on the instances that they are given", "[boundary][execution]") {
  if (world_size() < 2) return;
  const ExecutionInstances separate = {test::another_instance(), test::another_instance(),
                                       test::another_instance()};
  for (const CodecKind kind : {CodecKind::none, CodecKind::directq, CodecKind::aqsgd}) {
    CAPTURE(kCodecKindNames[static_cast<std::size_t>(kind)]);
    std::vector<float> seen, expected;
    CHECK(strays_of(kind, separate, seen) == std::vector<std::string>{});
    // Instances of their own change no bit.
    const ExecSpace one = test::another_instance();
    CHECK(strays_of(kind, {one, one, one}, expected) == std::vector<std::string>{});
    CHECK(seen == expected);
    CHECK(seen.empty() == (world_rank() != 1));
    CHECK(strays_of(kind, separate, seen, PayloadMemory::device) == std::vector<std::string>{});
    CHECK(seen == expected);
  }
}

/// Four epochs of changes from rank 0 to rank 1, whose steps hold a target; the first one is sent
/// as fp32. What the sender has counted and what it has put on the wire since then.
struct HeldTarget {
  StepTotals counted;
  std::uint64_t bytes = 0;
  double values = 0;
  StepStatistics steps;
  CodecStatistics measured;
  std::vector<float> seen;  ///< on rank 1
};

HeldTarget hold(const StepTarget& target) {
  MPI_Comm world = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  const auto end_plan = [&](BoundarySide side) {
    BoundaryEndPlan plan = plan_of(CodecKind::aqsgd, side);
    plan.codec.settings.entropy_coding = true;
    plan.codec.settings.warmup_epochs = 1;
    plan.codec.settings.rms_step = 0.1;
    plan.target = target;
    return plan;
  };
  std::optional<BoundarySender> sender;
  std::optional<BoundaryReceiver> receiver;
  if (progress.rank() == 0)
    sender.emplace(progress, world, 1, kBackwardTag, end_plan(BoundarySide::sender),
                   std::make_shared<EmulatedLink>(LinkSettings{}), "test");
  if (progress.rank() == 1)
    receiver.emplace(progress, world, 0, kBackwardTag, end_plan(BoundarySide::receiver), "test");
  barrier(progress, world);
  const Matrix<float> x("deltapipe::Test::x", kSamples * kTokens, kChannels);
  HeldTarget held;
  for (int step = 0; step < 12; ++step) {
    const Ids& ids = kEpoch[step % 3];
    Crossing crossing = crossing_of(step, ids);
    crossing.epoch = step / 3;
    fill(x, step, ids);
    if (sender) sender->send(ExecSpace(), crossing, x);
    if (receiver) receiver->receive(ExecSpace(), crossing, x);
    const std::uint64_t bytes = sender ? sender->take_statistics().bytes : 0;
    if (step < 3) continue;
    held.bytes += bytes;
    for (const int tokens : crossing.tokens) held.values += tokens * kChannels;
  }
  if (sender) {
    CHECK(sender->controller()->totals().steered == 9);
    held.counted = sender->controller()->totals();
    held.steps = sender->take_steps();
    held.measured = sender->take_codec_statistics();
    sender->flush();
  }
  if (receiver) held.seen = values_of(x);
  barrier(progress, world);
  return held;
}

TEST_CASE("A target of bits counts what was on the wire behind the warm-up", "[boundary]") {
  if (world_size() < 2) return;
  const HeldTarget held = hold({.bits = 14});
  if (world_rank() != 0) return;
  CHECK(held.counted.bits == 8.0 * static_cast<double>(held.bytes));
  CHECK(held.counted.values == held.values);
  CHECK(held.steps.messages == 9);
  CHECK(held.measured.signal2 == 0);  // nobody asked for it
}

TEST_CASE("A target of an error measures each message, and reports see all of them", "[boundary]") {
  if (world_size() < 2) return;
  const HeldTarget fine = hold({.error = 0.02}), coarse = hold({.error = 0.2});
  if (world_rank() == 1) CHECK(fine.seen != coarse.seen);
  if (world_rank() != 0) return;
  CHECK(fine.counted.error2 < 0.1 * coarse.counted.error2);
  CHECK(fine.bytes > coarse.bytes);
  CHECK(fine.steps.sum < coarse.steps.sum);
  for (const HeldTarget* held : {&fine, &coarse}) {
    CHECK(held->measured.error2 == Approx(held->counted.error2));
    CHECK(held->measured.signal2 > held->counted.signal2);  // with the warm-up's
  }
}

TEST_CASE("Memory at the ends of a boundary is what each of them keeps", "[boundary]") {
  for (const bool spills : {false, true}) {
    CacheIoThread io;
    const auto cache_bytes = [&](CodecKind kind, BoundarySide side) {
      const BoundaryEndPlan plan = plan_of(kind, side, spills ? &io : nullptr);
      const CacheNeed need = cache_need(plan);
      CHECK(boundary_end_memory(plan).bytes(MemoryUse::cache) == need.memory_bytes);
      CHECK((need.disk_bytes > 0) == (spills && need.record_bytes > 0));
      return need.record_bytes;
    };
    const std::uint64_t record = round_up_record(4 * kTokens * kChannels);
    CHECK(cache_bytes(CodecKind::directq, BoundarySide::sender) == record);
    CHECK(cache_bytes(CodecKind::directq, BoundarySide::receiver) == 0);
    CHECK(cache_bytes(CodecKind::aqsgd, BoundarySide::sender) == record);
    CHECK(cache_bytes(CodecKind::aqsgd, BoundarySide::receiver) == record);
    CHECK(cache_bytes(CodecKind::none, BoundarySide::sender) == 0);
    for (const BoundarySide side : {BoundarySide::sender, BoundarySide::receiver}) {
      CHECK(cache_bytes(CodecKind::topk, side) == record);
      CHECK(cache_bytes(CodecKind::aqsgd_topk, side) == record);
    }
  }
}

TEST_CASE("Memory of messages is where MPI finds their payloads", "[boundary][gpu_aware]") {
  for (const BoundarySide side : {BoundarySide::sender, BoundarySide::receiver}) {
    BoundaryEndPlan plan = plan_of(CodecKind::aqsgd, side);
    const std::uint64_t hashes = 8 * kSamples;  // of every sample
    const std::uint64_t payload = BoundaryCodecs(plan).max_payload_bytes() + hashes;
    const MemoryLedger host = boundary_end_memory(plan);
    plan.payload_memory = PayloadMemory::device;
    const MemoryLedger device = boundary_end_memory(plan);
    const bool is_receiver = side == BoundarySide::receiver;
    // Beside each header is room for what an end with payloads in the host's memory would send.
    const std::uint64_t kept = host.host(MemoryUse::messages) + (is_receiver ? hashes : 0);
    if (std::is_same_v<MemSpace, Kokkos::HostSpace>) {
      CHECK(device.host(MemoryUse::messages) == kept + 2 * payload);
    } else {  // no staging, but as many payloads as buffers
      CHECK(device.host(MemoryUse::messages) == kept);
      CHECK(device.device(MemoryUse::messages) ==
            host.device(MemoryUse::messages) + payload + hashes);
    }
  }
}

}  // namespace
}  // namespace deltapipe
