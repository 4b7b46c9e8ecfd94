// SPDX-License-Identifier: BSD-3-Clause
// Messages and sums that MPI finds in device memory: channels, and training with and without. Where
// device memory is the host's, payloads are Views of their own beside the headers all the same.
#include <catch2/catch.hpp>

#include "comm/transport/channel.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "small_run.hpp"
#include "tests/unit/core/files/files_support.hpp"

namespace deltapipe {
namespace {

using namespace test;
using Catch::Matchers::Contains;

ChannelOptions channel_options(std::size_t max_payload_bytes, int buffers,
                               PayloadMemory memory = PayloadMemory::device) {
  ChannelOptions options;
  options.max_payload_bytes = max_payload_bytes;
  options.buffers = buffers;
  options.name = "ring";
  options.payload_memory = memory;
  return options;
}

struct Ring {
  explicit Ring(const ProgressThread& progress)
      : rank(progress.rank()),
        next((rank + 1) % progress.size()),
        previous((rank + progress.size() - 1) % progress.size()) {}
  int rank, next, previous;
};

MessageHeader header_of(std::uint32_t micro_batch) {
  MessageHeader header;
  header.step = 7;
  header.micro_batch = micro_batch;
  header.codec_id = 99;
  return header;
}

std::vector<std::uint8_t> bytes_of(std::size_t size, int source) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 251 + static_cast<std::size_t>(source) * 13);
  return bytes;
}

void write(const DeviceBytes& to, const std::vector<std::uint8_t>& bytes) {
  const auto part = Kokkos::subview(to, Kokkos::make_pair(std::size_t{0}, bytes.size()));
  const auto host = Kokkos::create_mirror_view(part);
  std::copy(bytes.begin(), bytes.end(), host.data());
  Kokkos::deep_copy(part, host);
}

std::vector<std::uint8_t> read(const DeviceBytes& from) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), from);
  return {host.data(), host.data() + host.extent(0)};
}

TEST_CASE("Payloads of all sizes cross a channel from device memory", "[channel][gpu_aware]") {
  const std::size_t piece = GENERATE(std::size_t{kLargestMessagePiece}, std::size_t{1000});
  const std::size_t largest = piece > 1000 ? 8 << 20 : 5000;
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  ChannelOptions options = channel_options(largest, 2);
  options.piece_bytes = piece;
  SendChannel send(progress, MPI_COMM_WORLD, ring.next, 5, options);
  ReceiveChannel receive(progress, MPI_COMM_WORLD, ring.previous, 5, options);
  std::uint64_t total = 0;
  std::uint32_t messages = 0;
  const std::vector<std::size_t> sizes = {0, 1, 999, 1000, 1001, 2000, 0, 4097, 100'001, 8 << 20};
  for (const std::size_t size : sizes) {
    if (size > largest) continue;
    const SendChannel::Buffer buffer = send.acquire();
    CHECK(buffer.payload.extent(0) == 0);
    CHECK(buffer.device_payload.extent(0) == largest);
    write(buffer.device_payload, bytes_of(size, ring.rank));
    MessageHeader header = header_of(messages);
    header.payload_checksum = 17 + size;
    send.send(buffer, header, size);
    const ReceiveChannel::Received received = receive.receive(header_of(messages));
    CHECK(received.payload.extent(0) == 0);
    CHECK(read(received.device_payload) == bytes_of(size, ring.previous));
    CHECK(received.header.payload_checksum == 17 + size);
    receive.release(received);
    total += size + sizeof(MessageHeader);
    ++messages;
  }
  send.flush();
  for (const ChannelStatistics& statistics : {send.take_statistics(), receive.take_statistics()})
    CHECK(statistics.bytes == total);
  barrier(progress, MPI_COMM_WORLD);
}

TEST_CASE("Payloads in device memory pass emulated links and wires", "[channel][gpu_aware][link]") {
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  LinkSettings link;
  link.bits_per_second = 80e6;
  const bool of_ranks = GENERATE(false, true);
  if (of_ranks)
    progress.set_wire({std::make_shared<EmulatedLink>(link, Framing::none),
                       std::make_shared<EmulatedLink>(link, Framing::none)});
  const std::size_t size = 100'000 - sizeof(MessageHeader);  // 10 ms
  const std::uint32_t messages = 6;
  const auto its_link = of_ranks ? progress.wire().out : std::make_shared<EmulatedLink>(link);
  SendChannel send(progress, MPI_COMM_WORLD, ring.next, 0, channel_options(size, 3), its_link);
  ReceiveChannel receive(progress, MPI_COMM_WORLD, ring.previous, 0, channel_options(size, 2));
  barrier(progress, MPI_COMM_WORLD);
  const TimePoint begin = Clock::now();
  for (std::uint32_t m = 0; m < messages; ++m) {
    const SendChannel::Buffer buffer = send.acquire();
    write(buffer.device_payload, bytes_of(size, ring.rank + static_cast<int>(m)));
    send.send(buffer, header_of(m), size);
    if (m == 0) continue;
    const ReceiveChannel::Received received = receive.receive(header_of(m - 1));
    CHECK(read(received.device_payload) == bytes_of(size, ring.previous + static_cast<int>(m) - 1));
    receive.release(received);
  }
  receive.release(receive.receive(header_of(messages - 1)));
  send.flush();
  CHECK(seconds_between(begin, Clock::now()) >= 0.010 * messages - 0.001);
  barrier(progress, MPI_COMM_WORLD);
}

/// Every rank's error about a neighbour's message whose payload is in another memory.
std::string refusal_of_memory(PayloadMemory sends, PayloadMemory receives, std::size_t size) {
  MPI_Comm world = MPI_COMM_NULL;  // of no further use after a stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  const Ring ring(progress);
  SendChannel send(progress, world, ring.next, 0, channel_options(4000, 1, sends));
  send.send(send.acquire(), header_of(0), size);
  ReceiveChannel receive(progress, world, ring.previous, 0, channel_options(4000, 1, receives));
  try {
    receive.receive(header_of(0));
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("Ends whose payloads are in other memories refuse each other", "[channel][gpu_aware]") {
  const auto sends = GENERATE(PayloadMemory::host, PayloadMemory::device);
  const bool sends_host = sends == PayloadMemory::host;
  const auto receives = sends_host ? PayloadMemory::device : PayloadMemory::host;
  const std::size_t size = GENERATE(std::size_t{0}, std::size_t{200}, std::size_t{3000});
  const std::string text = refusal_of_memory(sends, receives, size);
  CAPTURE(text, size);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string here = "rank " + std::to_string(rank);
  CHECK_THAT(text, Contains(here) && Contains("same deck"));
  CHECK_THAT(text, Contains(std::string("memory of its payload is ") +
                            (sends_host ? "the device's" : "the host's") + " on " + here));
  MPI_Barrier(MPI_COMM_WORLD);
}

/// Every rank's error when fewer than 500 bytes of payload arrive.
std::string refusal_of_payload(int sent) {
  MPI_Comm world = MPI_COMM_NULL;  // of no further use after a stop
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  const Ring ring(progress);
  const auto header = std::make_shared<MessageHeader>(header_of(0));
  header->source_rank = static_cast<std::uint32_t>(ring.rank);
  header->target_rank = static_cast<std::uint32_t>(ring.next);
  header->payload_memory = PayloadMemory::device;
  header->payload_bytes = 500;
  seal(*header);
  const auto payload = std::make_shared<std::vector<std::uint8_t>>(bytes_of(500, ring.rank));
  const Ticket first = progress.isend(header, sizeof(MessageHeader), ring.next, 0, world);
  const Ticket second = progress.isend({payload, payload->data()}, sent, ring.next, 1, world);
  ReceiveChannel receive(progress, world, ring.previous, 0, channel_options(500, 1));
  std::string text;
  try {
    receive.receive(header_of(0));
  } catch (const UserError& error) {
    text = error.what();
  }
  progress.wait_regardless(first);
  progress.wait_regardless(second);
  return text;
}

TEST_CASE("A cut payload in device memory is refused", "[channel][gpu_aware]") {
  CHECK(refusal_of_payload(500).empty());
  CHECK_THAT(refusal_of_payload(499), Contains("payload's size is 500") && Contains("499"));
  MPI_Barrier(MPI_COMM_WORLD);
}

PipelineOptions training_options(int stages, int replicas, const std::string& directory) {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.pipeline.replicas = replicas;
  options.pipeline.in_flight = 2;
  options.seed = kSeed;
  options.micro_batch_size = 2;
  options.micro_batches = 3;
  options.forward.kind = CodecKind::aqsgd;
  options.forward.bits = 3;
  options.backward.kind = CodecKind::directq;
  options.backward.bits = 4;
  options.backward.error_feedback = true;
  options.cache.storage = MemoryStorage::fp16;
  options.cache.directory = directory;
  options.cache.verify_every = 2;
  return options;
}

struct Trained {
  std::vector<double> losses;
  std::uint64_t sent_bytes = 0;
  double evaluated = 0;
  StateContent state;
};

Trained train(const PipelineOptions& options) {
  SmallRun run(options);
  run.train(static_cast<int>(2 * run.steps_per_epoch()) + 1);
  Trained trained;
  trained.losses = run.losses();
  trained.sent_bytes = run.trained_bytes();
  trained.evaluated = run.evaluate(EvaluationMode::plain);
  trained.state = state_in_memory(run.state());
  return trained;
}

// The state has parameters, moments and what both ends of every boundary remember.
TEST_CASE("Training over device memory has the same bits and bytes", "[pipeline][gpu_aware]") {
  const int ranks = world_size();
  const int replicas = GENERATE(1, 2);
  if (ranks % replicas != 0) return;
  const bool spills = GENERATE(false, true);
  const bool interleaves = GENERATE(false, true);
  const int stages = ranks / replicas * (interleaves ? 2 : 1);
  if (interleaves && (ranks == replicas || stages > kBlocks || spills)) return;
  CAPTURE(stages, replicas, spills, interleaves);
  const testing::TemporaryDirectory directory;
  PipelineOptions options = training_options(stages, replicas, directory.path());
  if (spills) options.cache.budget_bytes = 1024;
  if (interleaves) interleave(options, 2);
  const Trained host = train(options);
  options.pipeline.gpu_aware_mpi = true;
  const Trained device = train(options);
  CHECK(device.losses == host.losses);
  CHECK(device.sent_bytes == host.sent_bytes);
  CHECK(device.evaluated == host.evaluated);
  check_same(device.state, host.state);
}

TEST_CASE("More replicas over device memory have equal weights", "[pipeline][gpu_aware]") {
  const int ranks = world_size();
  if (ranks < 3) return;
  const testing::TemporaryDirectory directory;
  PipelineOptions options = training_options(1, ranks, directory.path());
  const Trained host = train(options);
  options.pipeline.gpu_aware_mpi = true;
  const Trained device = train(options);
  REQUIRE(device.losses.size() == host.losses.size());
  for (std::size_t i = 0; i < host.losses.size(); ++i)
    CHECK(device.losses[i] == Approx(host.losses[i]).epsilon(1e-4));
  const auto& weights = device.state.parts.at(0);
  CHECK(weights.name == "parameters");
  for (const auto& item : weights.items) {
    auto least = item.bytes, most = item.bytes;
    const int bytes = static_cast<int>(item.bytes.size());
    MPI_Allreduce(item.bytes.data(), least.data(), bytes, MPI_UINT8_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(item.bytes.data(), most.data(), bytes, MPI_UINT8_T, MPI_MAX, MPI_COMM_WORLD);
    CHECK(least == most);
  }
}

TEST_CASE("Plans of ends have the deck's memory of payloads", "[pipeline][gpu_aware]") {
  const auto model = small_model();
  const bool gpu_aware = GENERATE(false, true);
  PipelineOptions options = training_options(2, 1, ".");
  options.pipeline.gpu_aware_mpi = gpu_aware;
  const std::vector<int> partition = small_partition(2);
  const PayloadMemory expected = gpu_aware ? PayloadMemory::device : PayloadMemory::host;
  for (int s = 0; s < 2; ++s) {
    const auto stage = model->make_stage(stage_part(partition, s));
    const StagePlan plan = plan_stage(options, pipeline_shape(options, kVocabulary, kTokens, true),
                                      *stage, {s, 2, 0, 1});
    for (const auto* end :
         {&plan.send_forward, &plan.receive_forward, &plan.send_backward, &plan.receive_backward})
      if (*end) CHECK((*end)->payload_memory == expected);
    REQUIRE(plan.tokens);
    CHECK(plan.tokens->rows.payload_memory == expected);
    CHECK(plan.tokens->gradients->payload_memory == expected);
  }
}

}  // namespace
}  // namespace deltapipe
