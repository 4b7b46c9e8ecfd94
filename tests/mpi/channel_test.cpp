// SPDX-License-Identifier: BSD-3-Clause
// Channels between neighbouring ranks: rank r sends to r + 1, the last one to the first.
#include "comm/transport/channel.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>

#include "comm/transport/agree.hpp"
#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"
#include "mpi_test.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;

ChannelOptions options_of(std::size_t max_payload_bytes, int buffers,
                          std::size_t piece_bytes = ChannelOptions{}.piece_bytes) {
  ChannelOptions options;
  options.max_payload_bytes = max_payload_bytes;
  options.buffers = buffers;
  options.piece_bytes = piece_bytes;
  options.name = "ring";
  return options;
}

MessageHeader header_of(std::uint32_t micro_batch) {
  MessageHeader header;
  header.kind = CrossingKind::activation;
  header.step = 7;
  header.micro_batch = micro_batch;
  header.boundary = 3;
  header.direction = Direction::forward;
  header.sample_hash = 0x9abc'def0 + micro_batch;
  header.sample_count = 2;
  header.codec_id = 99;
  return header;
}

std::uint8_t byte_at(std::size_t position, std::uint32_t micro_batch, int source) {
  return static_cast<std::uint8_t>(position * 31 + micro_batch * 7 +
                                   static_cast<std::size_t>(source) * 13 + position / 251);
}

void fill(const HostBytes& payload, std::size_t size, std::uint32_t micro_batch, int source) {
  for (std::size_t i = 0; i < size; ++i) payload(i) = byte_at(i, micro_batch, source);
}

bool holds(const HostBytes& payload, std::size_t size, std::uint32_t micro_batch, int source) {
  if (payload.extent(0) != size) return false;
  for (std::size_t i = 0; i < size; ++i) {
    if (payload(i) != byte_at(i, micro_batch, source)) return false;
  }
  return true;
}

struct Ring {
  explicit Ring(const ProgressThread& progress)
      : rank(progress.rank()),
        next((rank + 1) % progress.size()),
        previous((rank + progress.size() - 1) % progress.size()) {}
  int rank;
  int next;
  int previous;
};

TEST_CASE("Messages of all sizes cross a channel in order", "[channel]") {
  const std::size_t piece =
      GENERATE(std::size_t{1} << 30, std::size_t{1000}, sizeof(MessageHeader));
  const std::size_t largest = piece < 1000 ? 5000 : 8 << 20;
  const constexpr std::size_t edge = 1000 - sizeof(MessageHeader);
  const std::vector<std::size_t> all = {0, 1, 3, edge - 1, edge, edge + 1, 4097, 100'001, 8 << 20};
  std::vector<std::size_t> sizes;
  for (const std::size_t size : all) {
    if (size <= largest) sizes.push_back(size);
  }
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  SendChannel send(progress, MPI_COMM_WORLD, ring.next, 5, options_of(largest, 2, piece));
  ReceiveChannel receive(progress, MPI_COMM_WORLD, ring.previous, 5, options_of(largest, 2, piece));
  std::uint64_t total = 0;
  for (std::uint32_t m = 0; m < sizes.size(); ++m) {
    const SendChannel::Buffer buffer = send.acquire();
    fill(buffer.payload, sizes[m], m, ring.rank);
    send.send(buffer, header_of(m), sizes[m]);
    const ReceiveChannel::Received received = receive.receive(header_of(m));
    CHECK(holds(received.payload, sizes[m], m, ring.previous));
    CHECK(received.header.source_rank == static_cast<std::uint32_t>(ring.previous));
    receive.release(received);
    total += sizes[m] + sizeof(MessageHeader);
  }
  send.flush();
  const ChannelStatistics sent = send.take_statistics();
  const ChannelStatistics got = receive.take_statistics();
  CHECK(sent.bytes == total);
  CHECK(got.bytes == total);
  // Small messages take less time than what the ranks' clocks may differ by.
  if (largest >= 1 << 20) CHECK(got.wire_seconds > 0);
  CHECK(send.take_statistics().bytes == 0);
  barrier(progress, MPI_COMM_WORLD);
}

// Kokkos counts references to Views without atomic operations if it was built for one thread.
TEST_CASE("Buffers of many messages have no other owners afterwards", "[channel]") {
  constexpr std::uint32_t kBuffers = 8, kMessages = 20000;
  constexpr std::size_t kSize = 64;
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  SendChannel send(progress, MPI_COMM_WORLD, ring.next, 6, options_of(kSize, kBuffers));
  ReceiveChannel receive(progress, MPI_COMM_WORLD, ring.previous, 6, options_of(kSize, kBuffers));
  std::uint32_t sent = 0;
  for (std::uint32_t received = 0; received < kMessages; ++received) {
    for (; sent < std::min(kMessages, received + kBuffers); ++sent)
      send.send(send.acquire(), header_of(sent), kSize);
    receive.release(receive.receive(header_of(received)));
  }
  send.flush();
  std::vector<SendChannel::Buffer> buffers;
  for (std::uint32_t i = 0; i < kBuffers; ++i) {
    buffers.push_back(send.acquire());
    CHECK(buffers.back().payload.use_count() == 2);  // this one's and the channel's
  }
  barrier(progress, MPI_COMM_WORLD);
}

TEST_CASE("A sender with one slot waits for its receiver", "[channel]") {
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  const std::size_t size = 1 << 20;
  SendChannel send(progress, MPI_COMM_WORLD, ring.next, 0, options_of(size, 1));
  ReceiveChannel receive(progress, MPI_COMM_WORLD, ring.previous, 0, options_of(size, 1));
  for (std::uint32_t m = 0; m < 20; ++m) {
    const SendChannel::Buffer buffer = send.acquire();
    fill(buffer.payload, size - m, m, ring.rank);
    send.send(buffer, header_of(m), size - m);
    const ReceiveChannel::Received received = receive.receive(header_of(m));
    CHECK(holds(received.payload, size - m, m, ring.previous));
    receive.release(received);
  }
  send.flush();
  barrier(progress, MPI_COMM_WORLD);
}

TEST_CASE("Both directions of a boundary carry large messages at once", "[channel]") {
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  const std::size_t size = 3'000'001;
  const std::size_t piece =
      GENERATE(std::size_t{1} << 30, std::size_t{1} << 18, ChannelOptions{}.piece_bytes);
  SendChannel forward_out(progress, MPI_COMM_WORLD, ring.next, 0, options_of(size, 2, piece));
  ReceiveChannel forward_in(progress, MPI_COMM_WORLD, ring.previous, 0, options_of(size, 3, piece));
  SendChannel backward_out(progress, MPI_COMM_WORLD, ring.previous, 1, options_of(size, 2, piece));
  ReceiveChannel backward_in(progress, MPI_COMM_WORLD, ring.next, 1, options_of(size, 1, piece));
  for (std::uint32_t m = 0; m < 6; ++m) {
    for (SendChannel* out : {&forward_out, &backward_out}) {
      const SendChannel::Buffer buffer = out->acquire();
      fill(buffer.payload, size, m, ring.rank);
      out->send(buffer, header_of(m), size);
    }
    const ReceiveChannel::Received a = forward_in.receive(header_of(m));
    CHECK(holds(a.payload, size, m, ring.previous));
    forward_in.release(a);
    const ReceiveChannel::Received b = backward_in.receive(header_of(m));
    CHECK(holds(b.payload, size, m, ring.next));
    backward_in.release(b);
  }
  forward_out.flush();
  backward_out.flush();
  barrier(progress, MPI_COMM_WORLD);
}

/// Error on rank 0 when rank `size - 1` sends `sent` while rank 0 awaits `expected`.
std::string refusal(const MessageHeader& sent, const MessageHeader& expected) {
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  SendChannel send(progress, MPI_COMM_WORLD, ring.next, 0, options_of(64, 1));
  ReceiveChannel receive(progress, MPI_COMM_WORLD, ring.previous, 0, options_of(64, 1));
  const SendChannel::Buffer buffer = send.acquire();
  fill(buffer.payload, 64, 0, ring.rank);
  send.send(buffer, sent, 64);
  std::string text;
  try {
    receive.receive(expected);
  } catch (const UserError& error) {
    text = error.what();
  }
  send.flush();
  barrier(progress, MPI_COMM_WORLD);
  return text;
}

TEST_CASE("A message that is not the awaited one is refused, naming both sides", "[channel]") {
  const MessageHeader expected = header_of(1);
  MessageHeader sent = expected;
  std::string field;
  std::string awaited;
  std::string arrived;
  SECTION("the same") {}
  SECTION("kind") {
    sent.kind = CrossingKind::gradient;
    field = "kind";
    awaited = "activation";
    arrived = "gradient";
  }
  SECTION("direction") {
    sent.direction = Direction::backward;
    field = "direction";
    awaited = "forward";
    arrived = "backward";
  }
  SECTION("boundary") {
    sent.boundary = 4;
    field = "boundary";
    awaited = "3";
    arrived = "4";
  }
  SECTION("step") {
    sent.step = 8;
    field = "step";
    awaited = "7";
    arrived = "8";
  }
  SECTION("micro-batch") {
    sent.micro_batch = 2;
    field = "micro-batch";
    awaited = "1";
    arrived = "2";
  }
  SECTION("samples") {
    sent.sample_hash = 0x77;
    field = "hash of the sample ids";
    awaited = "0x9abcdef1";
    arrived = "0x77";
  }
  SECTION("sample count") {
    sent.sample_count = 3;
    field = "number of samples";
    awaited = "2";
    arrived = "3";
  }
  SECTION("codec") {
    sent.codec_id = 0x98;
    field = "codec";
    awaited = "0x63";
    arrived = "0x98";
  }
  SECTION("version") {
    sent.version = MessageHeader::kVersion + 1;
    field = "version";
    awaited = std::to_string(MessageHeader::kVersion);
    arrived = std::to_string(MessageHeader::kVersion + 1);
  }
  SECTION("magic") {
    sent.magic = 0x55;
    field = "first word";
    awaited = "0x4d504c44";
    arrived = "0x55";
  }
  const std::string text = refusal(sent, expected);
  if (field.empty()) {
    CHECK(text.empty());
  } else {
    int rank = 0;
    int size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const std::string here = "rank " + std::to_string(rank);
    const std::string there = "rank " + std::to_string((rank + size - 1) % size);
    CHECK_THAT(text, Contains(field + " is " + awaited + " on " + here));
    CHECK_THAT(text, Contains(arrived + " in the message from " + there));
  }
}

/// Sends raw bytes over a channel's first tag in place of a SendChannel.
std::string refusal_of_bytes(std::vector<std::uint8_t> bytes, std::size_t max_payload_bytes) {
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  const auto message = std::make_shared<std::vector<std::uint8_t>>(std::move(bytes));
  std::string text;
  // Sent before anything is received: what arrives may be the progress thread's last message.
  const Ticket sent = progress.isend({message, message->data()}, static_cast<int>(message->size()),
                                     ring.next, 0, MPI_COMM_WORLD);
  try {
    ReceiveChannel receive(progress, MPI_COMM_WORLD, ring.previous, 0,
                           options_of(max_payload_bytes, 2));
    receive.receive(header_of(0));
  } catch (const UserError& error) {
    text = error.what();
  }
  progress.wait_regardless(sent);
  return text;
}

std::vector<std::uint8_t> message_bytes(std::size_t payload_bytes, int source, int target) {
  std::vector<std::uint8_t> bytes(sizeof(MessageHeader) + payload_bytes, 5);
  MessageHeader header = header_of(0);
  header.source_rank = static_cast<std::uint32_t>(source);
  header.target_rank = static_cast<std::uint32_t>(target);
  header.payload_bytes = payload_bytes;
  header.payload_checksum = checksum(bytes.data() + sizeof header, payload_bytes);
  seal(header);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

TEST_CASE("Damaged and cut messages are refused", "[channel]") {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<std::uint8_t> bytes = message_bytes(500, rank, (rank + 1) % size);
  std::string complaint;
  std::size_t max_payload_bytes = 500;
  bool truncated = false;
  SECTION("whole") {}
  SECTION("payload cut") {
    bytes.pop_back();
    complaint = "payload's size is 500";
  }
  SECTION("header cut") {
    bytes.erase(bytes.begin() + 95, bytes.end());
    complaint = "header's size is 104 bytes";
  }
  SECTION("nothing") {
    bytes.clear();
    complaint = "0 bytes in the message";
  }
  SECTION("one bit of the payload") {
    bytes[300] ^= 1;
    complaint = "payload's checksum";
  }
  SECTION("one bit of the header") {
    bytes[20] ^= 1;
    complaint = "header's checksum";
  }
  SECTION("longer than the receiver's buffer") {
    max_payload_bytes = 100;
    complaint = "";  // MPI or the header notices, depending on the transport
    truncated = true;
  }
  const std::string text = refusal_of_bytes(bytes, max_payload_bytes);
  CAPTURE(text);
  if (complaint.empty() && !truncated) {
    CHECK(text.empty());
  } else {
    if (truncated) {
      CHECK_THAT(text, Contains("payload's size is 500") || Contains("truncated"));
    } else {
      CHECK_THAT(text, Contains(complaint));
    }
    CHECK_THAT(text, Contains("rank " + std::to_string((rank + size - 1) % size)));
    CHECK_THAT(text, Contains("rank " + std::to_string(rank)));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// Busy machines deliver late; how late is a matter for a benchmark.
constexpr double kSlack = 5;
// Two ranks' clocks, aligned by messages on a machine with fewer cores than ranks.
constexpr double kClockError = 0.0005;

double seconds_on_rank_0(const ProgressThread& progress) {
  return std::chrono::duration<double>(Clock::now().time_since_epoch() + progress.clock_offset())
      .count();
}

TEST_CASE("An emulated link is never faster than it should be", "[channel][link]") {
  ProgressThread progress(MPI_COMM_WORLD);
  const Ring ring(progress);
  LinkSettings link;
  link.bits_per_second = 80e6;  // 10 bytes a microsecond
  link.latency_seconds = 0.005;
  const std::size_t size = 100'000 - sizeof(MessageHeader);  // 10 ms
  const int messages = 8;
  SendChannel send(progress, MPI_COMM_WORLD, ring.next, 0, options_of(size, messages),
                   std::make_shared<EmulatedLink>(link));
  ReceiveChannel receive(progress, MPI_COMM_WORLD, ring.previous, 0, options_of(size, messages));
  barrier(progress, MPI_COMM_WORLD);
  const double begin = seconds_on_rank_0(progress);
  for (std::uint32_t m = 0; m < messages; ++m) {
    send.send(send.acquire(), header_of(m), size);
  }
  CHECK(seconds_on_rank_0(progress) - begin < 0.080);  // sending does not wait for the link
  std::vector<double> arrivals;
  for (std::uint32_t m = 0; m < messages; ++m) {
    const ReceiveChannel::Received received = receive.receive(header_of(m));
    arrivals.push_back(seconds_on_rank_0(progress));
    receive.release(received);
  }
  send.flush();
  std::vector<double> begins(progress.size());
  begins[progress.rank()] = begin;
  all_reduce(progress, MPI_COMM_WORLD, begins, Reduction::sum);
  for (double& arrival : arrivals) arrival -= begins[ring.previous];
  const ChannelStatistics sent = send.take_statistics();
  const ChannelStatistics got = receive.take_statistics();
  CHECK(sent.wire_seconds >= 0.085);
  CHECK(sent.wire_seconds < 0.085 + kSlack);
  CHECK(got.wire_seconds >= 0.084);
  CHECK(got.wire_seconds < 0.085 + kSlack);
  for (std::size_t m = 0; m < arrivals.size(); ++m) {
    CAPTURE(m, arrivals[m]);
    CHECK(arrivals[m] >= 0.010 * static_cast<double>(m + 1) + 0.005 - kClockError);
  }
  CHECK(arrivals.back() < 0.085 + kSlack);
}

// With four ranks: 1 and 3 send to 2; 0 sends to 1. Each message takes 20 ms of a wire.
TEST_CASE("All that reaches a rank passes its one wire", "[channel][link]") {
  ProgressThread progress(MPI_COMM_WORLD);
  if (progress.size() < 3) return;
  LinkSettings settings;
  settings.bits_per_second = 80e6;
  const auto link = [&] { return std::make_shared<EmulatedLink>(settings, Framing::ethernet); };
  progress.set_wire({link(), link()});
  const int size = progress.size(), rank = progress.rank();
  const std::size_t bytes = 200'000 - sizeof(MessageHeader);
  const double alone = progress.wire().in->seconds_of(200'000);
  CHECK(alone == Approx(0.0209).epsilon(1e-3));
  std::optional<SendChannel> send;
  std::vector<std::unique_ptr<ReceiveChannel>> receive;
  if (rank > 0) {
    send.emplace(progress, MPI_COMM_WORLD, 0, rank, options_of(bytes, 1), progress.wire().out);
  } else {
    for (int peer = 1; peer < size; ++peer)
      receive.push_back(std::make_unique<ReceiveChannel>(progress, MPI_COMM_WORLD, peer, peer,
                                                         options_of(bytes, 1)));
  }
  barrier(progress, MPI_COMM_WORLD);
  const double begin =
      all_reduce(progress, MPI_COMM_WORLD, seconds_on_rank_0(progress), Reduction::max);
  if (send) {
    send->send(send->acquire(), header_of(0), bytes);
    send->flush();
  }
  for (std::size_t i = 0; i < receive.size(); ++i)
    receive[i]->release(receive[i]->receive(header_of(0)));
  const double end = seconds_on_rank_0(progress);
  // Senders have a wire each; that of rank 0 carries all messages one after the other.
  CHECK(end - begin > (rank == 0 ? size - 1 : 1) * alone - 0.005);
  CHECK(end - begin < (size - 1) * alone + kSlack);
  const double sum_begin = seconds_on_rank_0(progress);
  std::vector<double> values(25'000, 1);
  all_reduce(progress, MPI_COMM_WORLD, values, Reduction::sum);
  CHECK(seconds_on_rank_0(progress) - sum_begin > (size > 2 ? 4 : 2) * alone);
  CHECK(values.back() == size);
}

}  // namespace
}  // namespace deltapipe
