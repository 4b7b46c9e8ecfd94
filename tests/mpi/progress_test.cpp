// SPDX-License-Identifier: BSD-3-Clause
// The progress thread, agreements, grids and collectives.
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/transport/agree.hpp"
#include "comm/transport/channel.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/gpu_aware_mpi.hpp"
#include "comm/transport/mpi_check.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/trace.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"
#include "mpi_test.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// Error that ended agree() on this rank; empty: none.
template <class Where>
std::string stopped_with(Where& where, const std::function<void()>& phase) {
  try {
    agree(where, phase);
  } catch (const Stopped& stopped) {
    CHECK(stopped.print_here() == (world_rank() == 0));
    return stopped.message();
  }
  return {};
}

UserError mistake(const std::string& what) {
  Mistake m;
  m.what = what;
  return UserError(m);
}

TEST_CASE("A grid numbers stages first", "[grid]") {
  const int size = world_size();
  for (int stages = 1; stages <= size; ++stages) {
    if (size % stages != 0) continue;
    const ProcessGrid grid(MPI_COMM_WORLD, stages, size / stages);
    CHECK(grid.rank() == world_rank());
    CHECK(grid.stage() == world_rank() % stages);
    CHECK(grid.replica() == world_rank() / stages);
    CHECK(grid.rank_of(grid.stage(), grid.replica()) == grid.rank());
    CHECK(grid.first() == (grid.stage() == 0));
    CHECK(grid.last() == (grid.stage() == stages - 1));
    int rank = -1;
    int count = 0;
    MPI_Comm_rank(grid.pipeline_comm(), &rank);
    MPI_Comm_size(grid.pipeline_comm(), &count);
    CHECK(rank == grid.stage());
    CHECK(count == stages);
    MPI_Comm_rank(grid.stage_comm(), &rank);
    MPI_Comm_size(grid.stage_comm(), &count);
    CHECK(rank == grid.replica());
    CHECK(count == size / stages);
    // Errors of the grid's communicators come back as exceptions.
    int value = 0;
    CHECK_THROWS_AS(
        [&] { DELTAPIPE_MPI(MPI_Send(&value, 1, MPI_INT, 4711, 0, grid.pipeline_comm())); }(),
        InternalError);
  }
}

TEST_CASE("A grid of another size says what to start", "[grid]") {
  const int size = world_size();
  MPI_Comm world = MPI_COMM_WORLD;
  const std::string text = stopped_with(world, [&] { ProcessGrid(MPI_COMM_WORLD, size, 3); });
  CHECK_THAT(text, Contains(std::to_string(size) + " stages x 3 replicas = " +
                            std::to_string(3 * size) + " ranks, but " + std::to_string(size)));
  CHECK_THAT(text, Contains("mpirun -n " + std::to_string(3 * size)));
}

TEST_CASE("All ranks stop with the message of the lowest that failed", "[agree]") {
  MPI_Comm world = MPI_COMM_WORLD;
  CHECK(stopped_with(world, [] {}).empty());
  const int last = world_size() - 1;
  CHECK(stopped_with(world, [&] {
          if (world_rank() == last) throw mistake("no such file");
        }) == "no such file");
  CHECK(stopped_with(world, [&] { throw mistake("rank " + std::to_string(world_rank())); }) ==
        "rank 0");
  CHECK(stopped_with(world, [] {}).empty());
  try {
    agree(world, [&] {
      if (world_rank() == last) throw std::runtime_error("bug");
    });
    CHECK(false);
  } catch (const Stopped& stopped) {
    CHECK(stopped.internal());
    CHECK(stopped.message() == "bug");
  }
}

TEST_CASE("A rank that others do not answer leaves with its own message", "[agree]") {
  if (world_size() == 1) return;
  MPI_Comm comm = MPI_COMM_NULL;  // left to MPI_Finalize: a collective on it never ends
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  if (world_rank() == world_size() - 1) {
    try {
      agree(
          comm, [] { throw mistake("alone"); }, std::chrono::milliseconds(200));
      CHECK(false);
    } catch (const Stopped& stopped) {
      CHECK_FALSE(stopped.agreed());
      CHECK(stopped.print_here());
      CHECK(stopped.message() == "alone");
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("A signal that interrupts a rank is known to all", "[agree]") {
  ProgressThread progress(MPI_COMM_WORLD);
  try {
    agree(progress, [&] {
      if (world_rank() == world_size() - 1) throw Interrupted(15);
      try {
        for (;;) {
          progress.check();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      } catch (const StopRequested& stop) {
        CHECK(stop.rank() == world_size() - 1);
        CHECK(stop.signal() == 15);
        throw;
      }
    });
    CHECK(false);
  } catch (const Stopped& stopped) {
    CHECK(stopped.agreed());
    CHECK(stopped.signal() == 15);
    CHECK(stopped.message() == "interrupted by SIGTERM");
  }
}

TEST_CASE("Ranks that live are not treated as lost, however long they compute", "[agree]") {
  WatchSettings watch;
  watch.timeout_seconds = 1;
  ProgressThread progress(MPI_COMM_WORLD, watch);
  if (world_rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  CHECK_NOTHROW(barrier(progress, MPI_COMM_WORLD));
}

TEST_CASE("A step that takes too long ends on all ranks", "[agree]") {
  WatchSettings watch;
  watch.step_timeout_seconds = 0.5;
  const int culprit = world_size() - 1;
  // A stop leaves collectives unfinished: the communicator is of no further use.
  MPI_Comm world = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  const auto take = [world](ProgressThread& progress, int milliseconds) {
    const WatchedStep watched(progress.step_watch(), 7);
    progress.step_watch().doing("forward 3");
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    progress.check();
    barrier(progress, world);
  };
  {
    ProgressThread progress(world, watch);
    for (int step = 0; step < 4; ++step) CHECK_NOTHROW(take(progress, 200));
    std::this_thread::sleep_for(std::chrono::milliseconds(700));  // between steps
    CHECK_NOTHROW(barrier(progress, world));
  }
  ProgressThread progress(world, watch);
  const std::string message =
      stopped_with(progress, [&] { take(progress, world_rank() == culprit ? 1200 : 0); });
  CHECK_THAT(message, Contains("rank " + std::to_string(culprit) +
                               " is in step 7 for 1 s, at "
                               "'forward 3', and waits for nobody"));
}

/// Text that a call writes to stderr.
template <class Call>
std::string stderr_of(const Call& call) {
  std::fflush(stderr);
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  const int kept = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  call();
  std::fflush(stderr);
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

TEST_CASE("A step that waits much longer than all before it is a warning", "[agree]") {
  if (world_size() == 1) return;  // it waits for nobody
  WatchSettings watch;
  watch.stall_seconds = 0.5;
  MPI_Comm world = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world, watch);
  const int late = world_size() - 1;
  const auto take = [&](std::uint64_t step, int milliseconds) {
    const WatchedStep watched(progress.step_watch(), step);
    if (world_rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    barrier(progress, world);
  };
  const std::string told = stderr_of([&] {
    const TimePoint begin = Clock::now();
    take(1, 50);
    take(2, 20);
    const double before =
        all_reduce(progress, world, seconds_between(begin, Clock::now()), Reduction::max);
    const int late_by = static_cast<int>(1000 * (12 * before + 1));
    for (const std::uint64_t step : {3, 4}) {  // the stalled one before is no measure
      take(step, late_by);
      std::this_thread::sleep_for(std::chrono::seconds(1));  // for the progress thread to look
    }
  });
  if (world_rank() == late) {
    CHECK(told.empty());  // it computed
  } else {
    CHECK_THAT(told, Contains("s in step 3 (") && Contains("a link has lost messages"));
    CHECK_THAT(told, Contains("step 3 is complete, "));
    CHECK_THAT(told, Contains("s in step 4 ("));
    CHECK_THAT(told, !Contains("in step 2"));
  }
  MPI_Comm_free(&world);
}

TEST_CASE("Inner agreements stop outer ones", "[agree]") {
  MPI_Comm world = MPI_COMM_WORLD;
  CHECK(stopped_with(world, [&] {
          agree(world, [] {
            if (world_rank() == world_size() - 1) throw mistake("inner");
          });
        }) == "inner");
}

TEST_CASE("A rank that fails in a step wakes those that wait for it", "[agree]") {
  const int size = world_size();
  const int culprit = size - 1;
  // A stop leaves collectives unfinished: the communicator is of no further use.
  MPI_Comm world = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  ProgressThread progress(world);
  ChannelOptions options;
  options.max_payload_bytes = 1 << 20;
  options.name = "ring";
  SendChannel send(progress, world, (world_rank() + 1) % size, 0, options);
  ReceiveChannel receive(progress, world, (world_rank() + size - 1) % size, 0, options);
  {
    // All channels are there before a rank stops the others.
    const auto lock = progress.pause();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  SECTION("in a receive") {
    CHECK(stopped_with(progress, [&] {
            if (world_rank() == culprit) throw mistake("the disk is full");
            receive.receive({});
          }) == "the disk is full");
  }
  SECTION("in a collective") {
    CHECK(stopped_with(progress, [&] {
            if (world_rank() == culprit) throw mistake("the disk is full");
            all_reduce(progress, world, 1.0, Reduction::sum);
          }) == "the disk is full");
  }
  SECTION("with large sends that nobody receives") {
    CHECK(stopped_with(progress, [&] {
            for (int i = 0; i < 6; ++i) {
              if (world_rank() == culprit && i == 4) throw mistake("the disk is full");
              send.send(send.acquire(), {}, 1 << 20);
            }
          }) == "the disk is full");
  }
  SECTION("with a message that waits on a slow link") {
    LinkSettings slow;
    slow.latency_seconds = 3600;
    SendChannel far(progress, world, (world_rank() + 1) % size, 1, options,
                    std::make_shared<EmulatedLink>(slow));
    CHECK(stopped_with(progress, [&] {
            far.send(far.acquire(), {}, 1);
            if (world_rank() == culprit) throw mistake("the disk is full");
            far.flush();
          }) == "the disk is full");
  }
  CHECK_THROWS_AS(progress.submit({}), StopRequested);
}

TEST_CASE("Errors on the progress thread reach the compute thread", "[progress]") {
  ProgressThread progress(MPI_COMM_SELF);
  OperationPlan plan;
  SECTION("at the start") {
    plan.start = [](RequestList& requests) {
      requests.push_back(MPI_REQUEST_NULL);
      DELTAPIPE_MPI(MPI_Isend(nullptr, 1, MPI_INT, 4711, 0, MPI_COMM_WORLD, &requests.back()));
    };
    const Ticket ticket = progress.submit(std::move(plan));
    CHECK_THROWS_AS(progress.wait(ticket), InternalError);
  }
  SECTION("at the end") {
    plan.start = [](RequestList& requests) {
      requests.push_back(MPI_REQUEST_NULL);
      DELTAPIPE_MPI(MPI_Ibarrier(MPI_COMM_SELF, &requests.back()));
    };
    plan.completed = [](const MPI_Status&, RequestList&) { throw mistake("unexpected"); };
    const Ticket ticket = progress.submit(std::move(plan));
    CHECK_THROWS_WITH(progress.wait(ticket), "unexpected");
  }
  CHECK_THROWS(progress.drain());
  CHECK_THROWS(progress.submit({}));
}

TEST_CASE("An exception unwinds through channels and the progress thread", "[progress]") {
  const TimePoint begin = Clock::now();
  try {
    ProgressThread progress(MPI_COMM_SELF);
    ChannelOptions options;
    options.max_payload_bytes = 4 << 20;
    ReceiveChannel receive(progress, MPI_COMM_SELF, 0, 0, options);
    SendChannel send(progress, MPI_COMM_SELF, 0, 1, options);
    send.send(send.acquire(), {}, 4 << 20);  // nobody receives it
    throw mistake("unwinding");
  } catch (const UserError& error) {
    CHECK(std::string(error.what()) == "unwinding");
  }
  CHECK(seconds_between(begin, Clock::now()) < 10);
}

TEST_CASE("Cancelled receives leave nothing behind", "[progress]") {
  ProgressThread progress(MPI_COMM_WORLD);
  ChannelOptions options;
  options.max_payload_bytes = 100;
  const int size = world_size();
  for (int round = 0; round < 3; ++round) {
    {
      SendChannel send(progress, MPI_COMM_WORLD, (world_rank() + 1) % size, 0, options);
      ReceiveChannel receive(progress, MPI_COMM_WORLD, (world_rank() + size - 1) % size, 0,
                             options);
      MessageHeader header;
      header.step = static_cast<std::uint64_t>(round);
      send.send(send.acquire(), header, 10);
      receive.release(receive.receive(header));
      send.flush();
    }
    barrier(progress, MPI_COMM_WORLD);
  }
}

TEST_CASE("Blocking collectives are allowed while the progress thread is paused", "[progress]") {
  ProgressThread progress(MPI_COMM_WORLD);
  ChannelOptions options;
  options.max_payload_bytes = 1 << 20;
  const int size = world_size();
  SendChannel send(progress, MPI_COMM_WORLD, (world_rank() + 1) % size, 0, options);
  ReceiveChannel receive(progress, MPI_COMM_WORLD, (world_rank() + size - 1) % size, 0, options);
  for (std::uint64_t step = 0; step < 5; ++step) {
    MessageHeader header;
    header.step = step;
    send.send(send.acquire(), header, 1 << 20);
    {
      const auto pause = progress.pause();
      std::uint64_t value = 1;
      all_reduce(MPI_COMM_WORLD, std::span(&value, 1), Reduction::sum);
      CHECK(value == static_cast<std::uint64_t>(size));
    }
    receive.release(receive.receive(header));
  }
  send.flush();
  barrier(progress, MPI_COMM_WORLD);
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_CASE("Waiting costs next to no processor time", "[progress]") {
  ProgressThread progress(MPI_COMM_WORLD);
  ChannelOptions options;
  options.max_payload_bytes = 1000;
  const int size = world_size();
  LinkSettings slow;
  slow.latency_seconds = 1.0;
  SendChannel send(progress, MPI_COMM_WORLD, (world_rank() + 1) % size, 0, options,
                   std::make_shared<EmulatedLink>(slow));
  ReceiveChannel receive(progress, MPI_COMM_WORLD, (world_rank() + size - 1) % size, 0, options);
  send.send(send.acquire(), {}, 1000);
  const double before = processor_seconds();
  receive.release(receive.receive({}));
  const double used = processor_seconds() - before;
  CAPTURE(used);
  CHECK(used < 0.50);  // of one second; a spinning wait takes all of it
  send.flush();
  barrier(progress, MPI_COMM_WORLD);
}

TEST_CASE("Collectives carry values, texts and nothing", "[collectives]") {
  ProgressThread progress(MPI_COMM_WORLD);
  const int rank = progress.rank();
  const int size = progress.size();
  CHECK(all_reduce(progress, MPI_COMM_WORLD, 0.5 * rank, Reduction::sum) ==
        0.25 * size * (size - 1));
  CHECK(all_reduce(progress, MPI_COMM_WORLD, static_cast<double>(rank), Reduction::max) ==
        size - 1);
  CHECK(all_reduce(progress, MPI_COMM_WORLD, std::uint64_t{1} << 60, Reduction::min) ==
        std::uint64_t{1} << 60);
  std::vector<double> values(static_cast<std::size_t>(rank == size - 1 ? 1001 : rank), rank);
  broadcast(progress, MPI_COMM_WORLD, values, size - 1);
  CHECK(values == std::vector<double>(1001, size - 1));
  std::string text = rank == 0 ? std::string("a\0b", 3) : "";
  broadcast(progress, MPI_COMM_WORLD, text, 0);
  CHECK(text == std::string("a\0b", 3));
  text = "old";
  if (rank == 0) text.clear();
  broadcast(progress, MPI_COMM_WORLD, text, 0);
  CHECK(text.empty());
  const std::string mine(static_cast<std::size_t>(rank * 1000), static_cast<char>('a' + rank));
  const std::vector<std::string> all = gather(progress, MPI_COMM_WORLD, mine, size - 1);
  if (rank == size - 1) {
    CHECK(all.size() == static_cast<std::size_t>(size));
    for (int r = 0; r < static_cast<int>(all.size()); ++r) {
      CHECK(all[static_cast<std::size_t>(r)] ==
            std::string(static_cast<std::size_t>(r * 1000), static_cast<char>('a' + r)));
    }
  } else {
    CHECK(all.empty());
  }
  const std::vector<double> pair = {1.0 * rank, -1.0 * rank};
  const std::vector<double> pairs = gather(progress, MPI_COMM_WORLD, pair, 0);
  CHECK(pairs.size() == (rank == 0 ? 2 * static_cast<std::size_t>(size) : 0));
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    CHECK(pairs[i] == (i % 2 == 0 ? 1.0 : -1.0) * static_cast<double>(i / 2));
  }
}

TEST_CASE("Collectives over one rank need no others and see a stop", "[collectives]") {
  ProgressThread progress(MPI_COMM_SELF);
  CHECK(all_reduce(progress, MPI_COMM_SELF, 0.1, Reduction::sum) == 0.1);
  const double nothing = -0.0;
  CHECK(std::signbit(all_reduce(progress, MPI_COMM_SELF, nothing, Reduction::sum)));
  std::string text = "alone";
  broadcast(progress, MPI_COMM_SELF, text, 0);
  CHECK(gather(progress, MPI_COMM_SELF, text, 0) == std::vector<std::string>{"alone"});
  barrier(progress, MPI_COMM_SELF);
  CHECK(progress.take_collective_bytes() == 0);
  progress.stop_others();
  CHECK_THROWS_AS(all_reduce(progress, MPI_COMM_SELF, 0.1, Reduction::sum), StopRequested);
  CHECK_THROWS_AS(broadcast(progress, MPI_COMM_SELF, text, 0), StopRequested);
  CHECK_THROWS_AS(gather(progress, MPI_COMM_SELF, text, 0), StopRequested);
  CHECK_THROWS_AS(barrier(progress, MPI_COMM_SELF), StopRequested);
}

TEST_CASE("Collectives are counted once and pass the emulated wire", "[collectives][link]") {
  const int size = world_size();
  ProgressThread progress(MPI_COMM_WORLD);
  LinkSettings settings;
  settings.latency_seconds = 0.05;
  progress.set_wire({std::make_shared<EmulatedLink>(settings, Framing::ethernet),
                     std::make_shared<EmulatedLink>(settings, Framing::ethernet)});
  int levels = 0;
  while (1 << levels < size) ++levels;
  const auto seconds_of = [&](const auto& collective) {
    const TimePoint begin = Clock::now();
    collective();
    return seconds_between(begin, Clock::now());
  };
  std::vector<double> values(10, 1.0);
  CHECK(seconds_of([&] { all_reduce(progress, MPI_COMM_WORLD, values, Reduction::sum); }) >=
        2 * levels * 0.05);
  const std::uint64_t others = static_cast<std::uint64_t>(size) - 1;
  CHECK(progress.take_collective_bytes() == (world_rank() == 0 ? 2 * others * 80 : 0));
  CHECK(seconds_of([&] { broadcast(progress, MPI_COMM_WORLD, values, size - 1); }) >=
        2 * levels * 0.05);
  CHECK(progress.take_collective_bytes() == (world_rank() == size - 1 ? others * (8 + 80) : 0));
  const std::string mine(static_cast<std::size_t>(world_rank()), 'x');
  const double gathered = seconds_of([&] { gather(progress, MPI_COMM_WORLD, mine, 0); });
  if (world_rank() == 0 && size > 1) CHECK(gathered >= 0.05);
  CHECK(progress.take_collective_bytes() ==
        (world_rank() == 0 ? others * sizeof(int) + others * (others + 1) / 2 : 0));
  CHECK(seconds_of([&] { barrier(progress, MPI_COMM_WORLD); }) >= levels * 0.05);
}

TEST_CASE("Rank 0 hears of every rank that lives, also after a stop", "[progress]") {
  ProgressThread progress(MPI_COMM_WORLD);
  CHECK_THROWS_AS(agree(progress,
                        [&] {
                          const std::chrono::seconds limit(10);
                          for (int call = 0; world_rank() == 0 && call < 2; ++call)
                            CHECK(progress.silent_ranks(limit).empty());
                          if (world_rank() == 0) progress.stop_others(15);
                          CHECK(progress.silent_ranks(limit).empty());
                          for (;;) {
                            progress.check();
                            std::this_thread::sleep_for(std::chrono::milliseconds(1));
                          }
                        }),
                  Stopped);
}

TEST_CASE("An MPI that says that it cannot is refused", "[gpu_aware]") {
  CHECK_NOTHROW(check_gpu_aware_mpi(GpuAwareness::yes));
  CHECK_NOTHROW(check_gpu_aware_mpi(GpuAwareness::unknown));
  std::string text;
  try {
    check_gpu_aware_mpi(GpuAwareness::no);
  } catch (const UserError& error) {
    text = error.what();
    CHECK(error.mistake().keys == std::vector<std::string>{"pipeline.gpu_aware_mpi"});
  }
  CHECK_THAT(text, Contains("GPU memory") && Contains("got pipeline.gpu_aware_mpi = true") &&
                       Contains("set pipeline.gpu_aware_mpi to false"));
  if (std::is_same_v<MemSpace, Kokkos::HostSpace>)
    CHECK(gpu_awareness_of_mpi() == GpuAwareness::yes);
}

TEST_CASE("A trace of all ranks is one JSON file", "[trace]") {
  ProgressThread progress(MPI_COMM_WORLD);
  const std::string path = "mpi_trace_test_" + std::to_string(progress.size()) + ".json";
  { const TraceScope ignored(TraceCategory::compute, "before the start"); }
  TraceRecorder::instance().start();
  barrier(progress, MPI_COMM_WORLD);
  {
    const TraceScope forward(TraceCategory::compute, "forward \"quoted\"", 3);
    const TraceScope encode(TraceCategory::encode, "encode", -1, "codec");
  }
  write_trace(progress, TraceRecorder::instance().stop(), path);
  if (progress.rank() == 0) {
    std::ifstream file(path);
    const nlohmann::json trace = nlohmann::json::parse(file);
    int events = 0;
    double earliest = 1e300;
    for (const auto& event : trace.at("traceEvents")) {
      if (event.at("ph") != "X") continue;
      ++events;
      earliest = std::min(earliest, event.at("ts").get<double>());
      CHECK(event.at("ts").get<double>() >= 0);
      CHECK(event.at("ts").get<double>() < 5e6);
      CHECK(event.at("dur").get<double>() >= 0);
      if (event.at("tid") == 1) CHECK(event.at("name") == "forward \"quoted\" 3");
    }
    CHECK(events == 2 * progress.size());
    CHECK(earliest == 0);
    CHECK(std::remove(path.c_str()) == 0);
  }
  if (progress.rank() == 0) {
    CHECK_THROWS_AS(write_trace(progress, {}, "no/such/directory/trace.json"), UserError);
  } else {
    write_trace(progress, {}, "");
  }
}

TEST_CASE("Clocks of ranks on one machine agree", "[progress]") {
  ProgressThread progress(MPI_COMM_WORLD);
  CHECK(std::abs(progress.clock_offset().count()) < 5'000'000);
  // They are compared again while all run.
  const std::uint64_t first = progress.clock().seen();
  const TimePoint limit = Clock::now() + std::chrono::seconds(60);
  while (progress.rank() > 0 && progress.clock().seen() < first + 2 && Clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (progress.rank() > 0) CHECK(progress.clock().seen() >= first + 2);
  CHECK(std::abs(progress.clock_offset().count()) < 5'000'000);
  barrier(progress, MPI_COMM_WORLD);
}

}  // namespace
}  // namespace deltapipe
