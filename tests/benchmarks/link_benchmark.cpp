// SPDX-License-Identifier: BSD-3-Clause
// How faithful emulated links are: messages from rank 0 to rank 1 against size / bandwidth +
// latency.
//
//   mpirun -n 2 link_benchmark
//
// Rank 0 hands over all messages of a case at once, so that they queue on the link; rank 1 answers
// when it had the last one, on the clock that both share. Medians of the repetitions.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/transport/channel.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/mpi_session.hpp"

using namespace deltapipe;

namespace {

constexpr int kRepetitions = 9;

struct Case {
  double bits_per_second;
  double latency_seconds;
  std::size_t payload_bytes;
  int messages;
};

MessageHeader header_of(std::uint32_t message) {
  MessageHeader header;
  header.kind = CrossingKind::activation;
  header.micro_batch = message;
  return header;
}

ChannelOptions options_of(std::size_t payload_bytes, int buffers, const char* name) {
  ChannelOptions options;
  options.max_payload_bytes = payload_bytes;
  options.buffers = buffers;
  options.name = name;
  return options;
}

void send_all(SendChannel& channel, int messages, std::size_t bytes) {
  for (int m = 0; m < messages; ++m) channel.send(channel.acquire(), header_of(m), bytes);
}

void receive_all(ReceiveChannel& channel, int messages) {
  for (int m = 0; m < messages; ++m) channel.release(channel.receive(header_of(m)));
}

std::int64_t shared_clock(const ProgressThread& progress) {
  return nanoseconds_of(Clock::now()) + progress.clock_offset().count();
}

void send_time(SendChannel& channel, const ProgressThread& progress) {
  const std::int64_t time = shared_clock(progress);
  const SendChannel::Buffer buffer = channel.acquire();
  std::memcpy(buffer.payload.data(), &time, sizeof time);
  channel.send(buffer, header_of(0), sizeof time);
}

std::int64_t receive_time(ReceiveChannel& channel) {
  const ReceiveChannel::Received received = channel.receive(header_of(0));
  std::int64_t time = 0;
  std::memcpy(&time, received.payload.data(), sizeof time);
  channel.release(received);
  return time;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Rank 0: seconds until rank 1 had all messages.
double sender_seconds(ProgressThread& progress, const Case& test) {
  const LinkSettings link{test.bits_per_second, test.latency_seconds};
  SendChannel send(progress, MPI_COMM_WORLD, 1, 0,
                   options_of(test.payload_bytes, test.messages, "messages"),
                   std::make_shared<EmulatedLink>(link));
  ReceiveChannel answer(progress, MPI_COMM_WORLD, 1, 1,
                        options_of(sizeof(std::int64_t), 1, "answer"));
  std::vector<double> seconds;
  for (int r = 0; r < kRepetitions; ++r) {
    receive_time(answer);  // rank 1 is ready
    const std::int64_t begin = shared_clock(progress);
    send_all(send, test.messages, test.payload_bytes);
    seconds.push_back(static_cast<double>(receive_time(answer) - begin) * 1e-9);
  }
  send.flush();
  return median(seconds);
}

void answer_sender(ProgressThread& progress, const Case& test) {
  ReceiveChannel receive(progress, MPI_COMM_WORLD, 0, 0,
                         options_of(test.payload_bytes, test.messages, "messages"));
  SendChannel answer(progress, MPI_COMM_WORLD, 0, 1, options_of(sizeof(std::int64_t), 1, "answer"));
  for (int r = 0; r < kRepetitions; ++r) {
    send_time(answer, progress);
    receive_all(receive, test.messages);
    send_time(answer, progress);
  }
  answer.flush();
}

void print(const Case& test, double seconds) {
  const double bytes = static_cast<double>(test.payload_bytes + sizeof(MessageHeader));
  const double expected = bytes * 8 * test.messages / test.bits_per_second + test.latency_seconds;
  std::printf("%8.0f Mbit/s %6.1f ms  %2d x %8zu bytes  %10.3f ms, formula %10.3f ms  %+6.2f %%\n",
              test.bits_per_second / 1e6, test.latency_seconds * 1e3, test.messages,
              test.payload_bytes, seconds * 1e3, expected * 1e3, 100 * (seconds / expected - 1));
}

}  // namespace

int main(int argc, char** argv) {
  MpiSession mpi(&argc, &argv);
  const Kokkos::ScopeGuard kokkos(argc, argv);
  if (mpi.size() != 2) {
    if (mpi.rank() == 0) std::fprintf(stderr, "usage: mpirun -n 2 %s\n", argv[0]);
    return 2;
  }
  ProgressThread progress(MPI_COMM_WORLD);
  for (const double bandwidth : {1e7, 1e8, 1e9})
    for (const double latency : {0.0, 0.01})
      for (const auto& [bytes, messages] :
           {std::pair<std::size_t, int>{20'000, 1}, {20'000, 16}, {200'000, 8}, {2'000'000, 2}}) {
        const Case test{bandwidth, latency, bytes, messages};
        if (mpi.rank() == 0)
          print(test, sender_seconds(progress, test));
        else
          answer_sender(progress, test);
        // The receives of this case are gone before the next one sends with the same tags.
        barrier(progress, MPI_COMM_WORLD);
      }
  return 0;
}
