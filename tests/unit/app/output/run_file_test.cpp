// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/run_file.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "app/output/former_run_file.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/machine_memory.hpp"
#include "core/files/hdf5.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::FileSizeLimit;
using deltapipe::testing::message_of;
using deltapipe::testing::read_bytes;
using deltapipe::testing::TemporaryDirectory;

namespace {

RunAttributes attributes_of(int stages) {
  RunAttributes attributes;
  attributes.pipeline.stages = stages;
  attributes.pipeline.replicas = 2;
  attributes.partition = std::vector<int>(static_cast<std::size_t>(stages), 3);
  attributes.parameters = 5'000'000'000;
  attributes.trained_parameters = 7;
  attributes.deltapipe_version = "0.1.0";
  attributes.source_revision = "abc";
  attributes.deck = "[training]\nepochs = 2\n";
  attributes.kokkos = "Serial";
  attributes.command = "deltapipe train run.toml";
  attributes.hosts = {"a", "b"};
  attributes.threads_per_rank = 3;
  attributes.mpi = "MPI 4";
  return attributes;
}

MetricValue perplexity_of(double loss) {
  return {&language_model_task().metrics().front(), std::exp(loss)};
}

/// A record whose every value follows from its step.
StepRecord step_record(std::uint64_t step, int stages) {
  const auto x = static_cast<double>(step);
  const auto boundaries = static_cast<std::size_t>(stages - 1);
  StepRecord record;
  record.step = step;
  record.epoch = x / 100;
  record.seconds = x * 0.25;
  record.loss = 3 + 4 * std::exp(-x / 50);
  record.learning_rate = 1e-4;
  record.gradient_norm = 1 / x;
  record.tokens = 2048;
  record.samples = 16;
  record.collective_bytes = step * 3;
  for (DirectionRecord* direction : {&record.forward, &record.backward}) {
    for (std::size_t i = 0; i < boundaries; ++i) {
      direction->bytes.push_back(step * 10 + i);
      direction->error.push_back(i == 0 ? std::nan("") : 0.01);
      direction->wire_seconds.push_back(0.1);
      direction->step.push_back(0.5 + x / 1000);
    }
  }
  for (int s = 0; s < stages; ++s) {
    RankRecord& rank = record.ranks.emplace_back();
    for (std::size_t i = 0; i < kRankValues; ++i)
      rank[i] = static_cast<double>(100 * (s + 1) + static_cast<int>(i));
  }
  return record;
}

EvaluationRecord evaluation_record(std::uint64_t step, int stages) {
  const double loss = 3.5 + 1.0 / static_cast<double>(step);
  EvaluationFigures figures{loss, {perplexity_of(loss)}, 0.25, {}, 70, 0};
  for (int boundary = 0; boundary + 1 < stages; ++boundary)
    figures.forward_bytes.push_back(static_cast<std::uint64_t>(500 + boundary));
  return {
      step,        static_cast<double>(step) / 100, static_cast<double>(step) * 0.25, 999, figures,
      std::nullopt};
}

template <typename T>
std::vector<T> column(const hdf5::File& file, const std::string& name) {
  const hdf5::Dataset dataset = file.open_dataset(name);
  std::vector<T> values(dataset.rows() * dataset.row_elements());
  dataset.read(0, std::span<T>(values));
  return values;
}

/// Steps in the file; -1 when it is not complete.
long long complete_steps(const std::string& path) {
  const hdf5::File file = hdf5::File::open_read_only(path);
  const hdf5::Group steps = file.open_group("steps");
  const auto rows = static_cast<long long>(steps.open_dataset("step").rows());
  for (const std::string& name : steps.names()) {
    if (static_cast<long long>(steps.open_dataset(name).rows()) != rows) return -1;
  }
  const auto numbers = column<std::uint64_t>(file, "steps/step");
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != i + 1) return -1;
  }
  return rows;
}

}  // namespace

TEST_CASE("A run file holds what was appended", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  RunFile run(path, attributes_of(3));
  {
    const hdf5::File file = hdf5::File::open_read_only(path);
    CHECK(file.read_string_attribute("status") == "running");
    CHECK(file.read_string_attribute("deck") == "[training]\nepochs = 2\n");
    CHECK(file.read_attribute<int>("stages") == 3);
    CHECK(file.read_attribute<int>("replicas") == 2);
    CHECK(file.read_attribute<int>("format_version") == 2);
    CHECK(file.read_vector_attribute<int>("partition") == std::vector<int>{3, 3, 3});
    CHECK(file.read_attribute<std::uint64_t>("parameters") == 5'000'000'000);
    CHECK(file.read_attribute<std::uint64_t>("trained_parameters") == 7);
    CHECK(file.read_string_attribute("started").size() == 20);
    CHECK(file.read_string_attribute("command") == "deltapipe train run.toml");
    CHECK(file.read_attribute<int>("threads_per_rank") == 3);
    CHECK(file.read_string_attribute("mpi") == "MPI 4");
    CHECK(file.has_attribute("hosts"));
  }
  for (std::uint64_t step = 1; step <= 700; ++step) run.append(step_record(step, 3));
  run.append(evaluation_record(700, 3));
  CHECK(complete_steps(path) == 0);
  run.flush();
  CHECK(complete_steps(path) == 700);
  run.append(step_record(701, 3));
  run.close();
  run.close();
  const hdf5::File file = hdf5::File::open_read_only(path);
  CHECK(file.read_string_attribute("status") == "finished");
  CHECK(complete_steps(path) == 701);
  const auto bytes = column<std::uint64_t>(file, "steps/forward_bytes");
  CHECK(bytes.size() == 2 * 701);
  CHECK(bytes[2 * 700 + 1] == 7011);
  const auto error = column<double>(file, "steps/backward_error");
  CHECK(std::isnan(error[0]));
  CHECK(error[1] == 0.01);
  CHECK(column<double>(file, "steps/loss")[49] == 3 + 4 * std::exp(-1.0));
  for (std::size_t i = 0; i < kRankValues; ++i) {
    const std::string name = std::string("steps/") + kRankColumns[i].name;
    CAPTURE(name);
    const auto number = static_cast<double>(i);
    std::vector<double> last;
    if (is_seconds(static_cast<RankValue>(i))) {
      last = column<double>(file, name);
    } else {
      const auto counts = column<std::uint64_t>(file, name);
      last.assign(counts.begin(), counts.end());
    }
    REQUIRE(last.size() == 3 * 701);
    last.erase(last.begin(), last.end() - 3);
    CHECK(last == std::vector<double>{100 + number, 200 + number, 300 + number});
  }
  CHECK(file.open_dataset("steps/seconds").read_string_attribute("unit") == "s");
  CHECK(column<double>(file, "evaluations/perplexity") ==
        std::vector<double>{std::exp(3.5 + 1.0 / 700)});
  CHECK(column<std::uint64_t>(file, "evaluations/forward_bytes") ==
        std::vector<std::uint64_t>{500, 501});
  CHECK(column<std::uint64_t>(file, "evaluations/tied_row_bytes") ==
        std::vector<std::uint64_t>{70});
  CHECK(column<std::uint64_t>(file, "steps/collective_bytes")[700] == 701 * 3);
}

TEST_CASE("Evaluations through the codecs have columns of their own", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  RunAttributes attributes = attributes_of(3);
  attributes.evaluates_codec = true;
  RunFile run(path, attributes);
  EvaluationRecord record = evaluation_record(7, 3);
  record.codec = EvaluationFigures{4, {perplexity_of(4)}, 0.5, {30, 31}, 7, 5};
  run.append(record);
  record.plain.reset();
  run.append(record);
  record.codec.reset();
  run.append(record);
  run.close();
  const hdf5::File file = hdf5::File::open_read_only(path);
  const auto loss = column<double>(file, "evaluations/loss");
  const auto codec_loss = column<double>(file, "evaluations/codec_loss");
  CHECK(loss[0] == 3.5 + 1.0 / 7);
  CHECK(std::isnan(loss[1]));
  CHECK(std::isnan(column<double>(file, "evaluations/perplexity")[1]));
  CHECK(codec_loss[1] == 4);
  CHECK(std::isnan(codec_loss[2]));
  CHECK(column<double>(file, "evaluations/codec_perplexity")[0] == std::exp(4.0));
  CHECK(column<std::uint64_t>(file, "evaluations/forward_bytes") ==
        std::vector<std::uint64_t>{500, 501, 0, 0, 0, 0});
  CHECK(column<std::uint64_t>(file, "evaluations/codec_forward_bytes") ==
        std::vector<std::uint64_t>{30, 31, 30, 31, 0, 0});
  CHECK(column<std::uint64_t>(file, "evaluations/codec_tied_row_bytes") ==
        std::vector<std::uint64_t>{7, 7, 0});
  CHECK(column<std::uint64_t>(file, "evaluations/codec_collective_bytes") ==
        std::vector<std::uint64_t>{5, 5, 0});
  CHECK(column<std::uint64_t>(file, "evaluations/tokens").size() == 3);

  RunFile plain(directory / "plain.h5", attributes_of(3));
  EvaluationRecord coded = evaluation_record(1, 3);
  coded.codec = coded.plain;
  CHECK_THROWS_AS(plain.append(coded), InternalError);
  plain.close();
  const hdf5::File none = hdf5::File::open_read_only(directory / "plain.h5");
  for (const std::string& name : none.open_group("evaluations").names())
    CHECK(name.find("codec") == std::string::npos);
}

TEST_CASE("A run of one stage has no boundaries", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  RunFile run(path, attributes_of(1));
  run.append(step_record(1, 1));
  CHECK_THROWS_AS(run.append(step_record(2, 2)), InternalError);
  RunFile other(directory / "other.h5", attributes_of(1));
  other.append(step_record(1, 1));
  other.append(step_record(2, 1));
  other.close();
  CHECK(complete_steps(directory / "other.h5") == 2);
  const hdf5::File file = hdf5::File::open_read_only(directory / "other.h5");
  CHECK(file.open_dataset("steps/forward_bytes").shape() == std::vector<std::uint64_t>{2, 0});
}

TEST_CASE("A run that ends without close has failed", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  { RunFile(path, attributes_of(2)).append(step_record(1, 2)); }
  CHECK(hdf5::File::open_read_only(path).read_string_attribute("status") == "failed");
  CHECK(complete_steps(path) == 1);
}

TEST_CASE("A full disk shows at creation, or later loses nothing", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  CHECK(message_of<UserError>([&] {
          RunFile(directory / "no/run.h5", attributes_of(2));
        }).find(directory / "no/run.h5") == 0);
  {
    const FileSizeLimit limit(100);
    CHECK_THROWS_AS(RunFile(path, attributes_of(2)), UserError);
  }
  CHECK_FALSE(std::filesystem::exists(path));
  std::vector<std::string> warnings;
  RunFile run(
      path, attributes_of(2), [&](const std::string& message) { warnings.push_back(message); },
      std::chrono::seconds(0));
  run.append(step_record(1, 2));
  run.flush();
  const std::string before = read_bytes(path);
  {
    const FileSizeLimit limit(before.size() + 1000);
    for (std::uint64_t step = 2; step <= 2000; ++step) run.append(step_record(step, 2));
    run.flush();
    CHECK_THROWS_WITH(run.close(), Catch::Contains("free disk space"));
  }
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find(path) == 0);
  CHECK(warnings[0].find("free disk space") != std::string::npos);
  CHECK(complete_steps(path) < 2000);
  CHECK(hdf5::File::open_read_only(path).read_string_attribute("status") == "running");
  run.flush();
  CHECK(complete_steps(path) == 2000);
  run.append(step_record(2001, 2));
  {
    const FileSizeLimit limit(100);
    run.flush();
  }
  REQUIRE(warnings.size() == 2);
  CHECK(warnings[1].find("cannot allocate") != std::string::npos);  // before anything is copied
  run.close();
  CHECK(complete_steps(path) == 2001);
  CHECK(hdf5::File::open_read_only(path).read_string_attribute("status") == "finished");
}

TEST_CASE("A run whose last rows find no room is not finished", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  RunFile run(path, attributes_of(2));
  run.append(step_record(1, 2));
  {
    const FileSizeLimit limit(100);
    CHECK_THROWS_AS(run.close(), UserError);
  }
  run.close(RunStatus::failed, "a full disk");
  CHECK(hdf5::File::open_read_only(path).read_string_attribute("status") == "failed");
  CHECK_FALSE(find_run_file(path)->is_finished);
}

TEST_CASE("A run file says how and why a run stopped", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  {
    RunFile run(path, attributes_of(2));
    run.append(step_record(1, 2));
    run.close(RunStatus::failed, "rank 1 does not answer");
    run.close(RunStatus::interrupted, "SIGTERM");
  }
  const hdf5::File file = hdf5::File::open_read_only(path);
  CHECK(file.read_string_attribute("status") == "interrupted");
  CHECK(file.read_string_attribute("reason") == "SIGTERM");
  CHECK(complete_steps(path) == 1);
}

TEST_CASE("A run file is readable while the run writes and after it was killed",
          "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      // Every append flushes, so that the kill is likely to come in the middle of one.
      RunFile run(path, attributes_of(4), {}, std::chrono::seconds(0));
      for (std::uint64_t step = 1;; ++step) {
        run.append(step_record(step, 4));
        run.flush();
      }
    } catch (...) {
      ::_exit(1);
    }
  }
  REQUIRE(child > 0);
  while (!std::filesystem::exists(path)) std::this_thread::yield();
  long long last = 0;
  bool complete = true;
  for (int reading = 0; reading < 100 || last < 20; ++reading) {
    const long long steps = complete_steps(path);
    complete = complete && steps >= last;
    last = steps;
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) != 0) FAIL("the writer ended");
  }
  CHECK(complete);
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(complete_steps(path) >= last);
  CHECK(hdf5::File::open_read_only(path).read_string_attribute("status") == "running");
  // The next run in the same place is not hindered by what the killed one left.
  RunFile next(path, attributes_of(4));
  next.close();
  CHECK(complete_steps(path) == 0);
}

/// The resident memory before the first row, and the most that was seen.
struct UsedMemory {
  std::uint64_t before = 0, most = 0;
};

/// Appends rows; calls `look` every `every` steps, before the memory is read.
template <class Look>
UsedMemory append_steps(RunFile& run, int stages, std::uint64_t steps, std::uint64_t every,
                        const Look& look) {
  const StepRecord record = step_record(1, stages);
  UsedMemory used{process_memory().resident, 0};
  for (std::uint64_t step = 1; step <= steps; ++step) {
    run.append(record);
    if (step % every != 0) continue;
    look();
    used.most = std::max(used.most, process_memory().resident);
  }
  return used;
}

TEST_CASE("Memory does not grow with the run file", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  const int stages = 64;
  constexpr std::uint64_t kSteps = 4000;
  PipelineSettings pipeline;
  pipeline.stages = stages;
  // No flush by time: only waiting rows force one.
  RunFile run(path, attributes_of(stages), {}, std::chrono::hours(1));
  const auto [before, most] = append_steps(run, stages, kSteps, 50, [] {});
  const std::uint64_t on_disk = std::filesystem::file_size(path);
  run.close();
  const std::uint64_t bytes = std::filesystem::file_size(path);
  CAPTURE(bytes, before, most);
  CHECK(bytes > 13'000 * kSteps);
  CHECK(on_disk > bytes / 2);
  // 16 MiB of waiting rows, and HDF5 while it writes them.
#ifndef DELTAPIPE_SANITIZED  // the address sanitizer keeps freed memory for a while
  CHECK(most < before + RunFile::memory_bytes(pipeline, kSteps));
#endif
  CHECK(RunFile::memory_bytes(pipeline, kSteps) < bytes);
}

TEST_CASE("Twenty thousand steps take little of disk and memory", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5";
  const int stages = 2;
  constexpr std::uint64_t kSteps = 20'000;
  PipelineSettings pipeline;
  pipeline.stages = stages;
  RunFile run(path, attributes_of(stages), {}, std::chrono::hours(1));
  const auto [before, most] = append_steps(run, stages, kSteps, 1000, [&] { run.flush(); });
  run.close();
  CAPTURE(before, most);
#ifndef DELTAPIPE_SANITIZED  // the address sanitizer keeps freed memory for a while
  CHECK(most < before + RunFile::memory_bytes(pipeline, kSteps));
#endif
  CHECK(std::filesystem::file_size(path) < 600 * kSteps);
  CHECK(column<std::uint64_t>(hdf5::File::open_read_only(path), "steps/step").size() == kSteps);
}

// Run by tests/scripts: writes runs for the analysis scripts into $DELTAPIPE_WRITE_RUNS.
TEST_CASE("Runs for the analysis scripts", "[.write_runs]") {
  const char* directory = std::getenv("DELTAPIPE_WRITE_RUNS");
  REQUIRE(directory != nullptr);
  for (const int stages : {1, 3}) {
    RunFile run(std::string(directory) + "/stages" + std::to_string(stages) + ".h5",
                attributes_of(stages));
    for (std::uint64_t step = 1; step <= 200; ++step) {
      run.append(step_record(step, stages));
      if (step % 100 == 0) run.append(evaluation_record(step, stages));
    }
    run.close();
  }
  RunFile running(std::string(directory) + "/empty.h5", attributes_of(2));
}

TEST_CASE("A run file knows its best evaluation, also after a restart", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5", copy = directory / "copy.h5";
  RunAttributes attributes = attributes_of(2);
  attributes.run_id = "abc";
  {
    RunFile run(path, attributes);
    CHECK(!run.best());
    for (std::uint64_t step = 1; step <= 4; ++step) {
      run.append(step_record(step, 2));
      if (step % 2 == 0) run.append(evaluation_record(step, 2));
      if (step == 3) run.snapshot().write(copy);
      if (step == 2) run.write_best({2, 4});
      if (step == 4) run.write_best({4, 3.75});
    }
  }
  const auto losses = losses_of_evaluations(path, false, 3);
  REQUIRE(losses.size() == 1);
  CHECK(losses[0].step == 2);
  CHECK(losses[0].loss == 4);
  CHECK(losses_of_evaluations(path, false, 4).size() == 2);
  CHECK_FALSE(message_of<UserError>([&] { losses_of_evaluations(path, true, 4); }).empty());
  // The model that it is about is on the disk, whatever the checkpoint's step.
  const bool is_lost = GENERATE(false, true);
  if (is_lost) std::filesystem::remove(path);
  { RunFile run(path, attributes, {{3, 0, 0, 0}, copy, path}); }
  const hdf5::File file = hdf5::File::open_read_only(path);
  CHECK(file.read_attribute<std::uint64_t>("best_step") == (is_lost ? 2 : 4));
  CHECK(file.read_attribute<double>("best_loss") == (is_lost ? 4 : 3.75));
  CHECK(losses_of_evaluations(path, false, 4).size() == 1);
}

TEST_CASE("A run file continues from the rows of a checkpoint's copy", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5", copy = directory / "copy.h5";
  RunAttributes attributes = attributes_of(2);
  attributes.run_id = "abc";
  const CheckpointRecord from{550, 0.25, 2, 99};
  {
    RunFile run(path, attributes);
    for (std::uint64_t step = 1; step <= 600; ++step) {
      run.append(step_record(step, 2));
      if (step % 200 == 0) run.append(evaluation_record(step, 2));
      if (step % 250 == 0) run.append(CheckpointRecord{step, 0.5, 1.5, 1000 + step});
      if (step == 550) {
        const RunFileSnapshot snapshot = run.snapshot();
        // It has the rows of its time, whatever becomes of the file.
        run.flush();
        std::filesystem::remove(path);
        snapshot.write(copy);
      }
    }
    run.append(from);  // complete after it was copied
  }
  const std::string started = hdf5::File::open_read_only(path).read_string_attribute("started");
  attributes.source_revision = "def";
  for (int restart = 1; restart <= 2; ++restart) {
    // Later rows than those of the checkpoint go, twice.
    RunFile run(path, attributes, {from, copy, path, restart == 1 ? "" : "rate = 2 -> 1"});
    for (std::uint64_t step = 551; step <= 560; ++step) run.append(step_record(step, 2));
    run.append(evaluation_record(560, 2));
    run.close(RunStatus::stopped, "SIGTERM");
    CHECK(complete_steps(path) == 560);
    const hdf5::File file = hdf5::File::open_read_only(path);
    CHECK(file.read_string_attribute("status") == "stopped");
    CHECK(file.read_string_attribute("started") == started);
    CHECK(column<std::uint64_t>(file, "evaluations/step") ==
          std::vector<std::uint64_t>{200, 400, 560});
    CHECK(column<std::uint64_t>(file, "checkpoints/step") ==
          std::vector<std::uint64_t>{250, 500, 550});
    CHECK(column<std::uint64_t>(file, "checkpoints/bytes") ==
          std::vector<std::uint64_t>{1250, 1500, 99});
    CHECK(column<std::uint64_t>(file, "restarts/step") ==
          std::vector<std::uint64_t>(static_cast<std::size_t>(restart), 550));
    CHECK(file.open_group("restarts").find_plain_attribute("revisions") ==
          (restart == 1 ? "def" : "def\ndef"));
    CHECK(file.open_group("restarts").find_plain_attribute("changes") ==
          (restart == 1 ? "" : "\nrate = 2 -> 1"));
    const auto bytes = column<std::uint64_t>(file, "steps/forward_bytes");
    for (std::uint64_t step = 1; step <= 560; ++step) CHECK(bytes[step - 1] == step * 10);
    const auto summary = find_run_file(path);
    REQUIRE(summary);
    CHECK(!summary->is_finished);
    CHECK(summary->run_id == "abc");
    CHECK(summary->steps == 560);
    CHECK(summary->deck == attributes.deck);
  }
  SECTION("the last file is of another run, or damaged") {
    const bool damaged = GENERATE(false, true);
    if (damaged) {
      testing::write_bytes(path, "no HDF5");
    } else {
      attributes.run_id = "other";
      RunFile(path, attributes).close();
      CHECK(find_run_file(path)->is_finished);
      attributes.run_id = "abc";
    }
    { RunFile run(path, attributes, {from, copy, path}); }
    const hdf5::File file = hdf5::File::open_read_only(path);
    CHECK(complete_steps(path) == 550);
    // Its attributes describe the last run.
    CHECK(column<std::uint64_t>(file, "checkpoints/step") ==
          std::vector<std::uint64_t>{250, 500, 550});
    CHECK(column<double>(file, "checkpoints/seconds").back() == 2);
    CHECK(column<std::uint64_t>(file, "restarts/step") == std::vector<std::uint64_t>{550});
  }
  SECTION("a kill came before the last file had the rows that the copy has") {
    const std::string stale = path + ".stale";
    {
      RunFile run(stale, attributes);
      for (std::uint64_t step = 1; step <= 260; ++step) run.append(step_record(step, 2));
      run.append(CheckpointRecord{250, 0.5, 1.5, 1250});
    }
    { RunFile run(path, attributes, {from, copy, stale}); }
    const hdf5::File file = hdf5::File::open_read_only(path);
    CHECK(column<std::uint64_t>(file, "checkpoints/step") ==
          std::vector<std::uint64_t>{250, 500, 550});
    CHECK(column<std::uint64_t>(file, "restarts/step") == std::vector<std::uint64_t>{550});
  }
  SECTION("a history with too few rows is refused") {
    CHECK_THAT(message_of<UserError>([&] {
                 RunFile(path, attributes, {{561, 0, 0, 0}, copy, path});
               }),
               Catch::Contains("lacks step 551 of 561"));
  }
}

TEST_CASE("Columns that the file of a checkpoint lacks are unknown", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5", copy = directory / "copy.h5";
  constexpr std::size_t rows = 700;  // more than are copied at a time
  RunAttributes attributes = attributes_of(3);
  {
    RunFile run(path, attributes);
    for (std::uint64_t step = 1; step <= rows; ++step) {
      run.append(step_record(step, 3));
      run.append(evaluation_record(step, 3));
    }
    run.snapshot().write(copy);
  }
  attributes.evaluates_codec = attributes.compares_answers = true;
  { RunFile run(path, attributes, {{rows, 0, 0, 0}, copy, path}); }
  const hdf5::File file = hdf5::File::open_read_only(path);
  CHECK(column<double>(file, "evaluations/loss").size() == rows);
  CHECK_FALSE(std::isnan(column<double>(file, "evaluations/loss").back()));
  for (const char* name : {"exact_match", "codec_loss", "codec_exact_match"}) {
    const auto values = column<double>(file, std::string("evaluations/") + name);
    CHECK(values.size() == rows);
    CHECK(std::all_of(values.begin(), values.end(), [](double x) { return std::isnan(x); }));
  }
  CHECK(column<std::uint64_t>(file, "evaluations/codec_forward_bytes") ==
        std::vector<std::uint64_t>(2 * rows));
}

TEST_CASE("A run file continues over more and over fewer stages", "[files][run_file]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "run.h5", copy = directory / "copy.h5";
  {
    RunFile run(copy, attributes_of(2));
    for (std::uint64_t step = 1; step <= 3; ++step) run.append(step_record(step, 2));
    run.append(evaluation_record(3, 2));
    run.flush();
  }
  const int stages = GENERATE(1, 4);
  const std::size_t boundaries = stages == 1 ? 1 : 3;
  {
    RunFile run(path, attributes_of(stages), {{2, 0, 0, 0}, copy, path});
    run.append(step_record(3, stages));
    run.append(evaluation_record(3, stages));
  }
  CHECK(complete_steps(path) == 3);
  const hdf5::File file = hdf5::File::open_read_only(path);
  CHECK(file.read_attribute<int>("stages") == stages);
  const auto bytes = column<std::uint64_t>(file, "steps/forward_bytes");
  const auto errors = column<double>(file, "steps/forward_error");
  const auto wall = column<double>(file, "steps/wall_seconds");
  REQUIRE(bytes.size() == 3 * boundaries);
  REQUIRE(wall.size() == static_cast<std::size_t>(3 * std::max(2, stages)));
  CHECK(bytes[0] == 10);
  CHECK(bytes[2 * boundaries] == (stages == 1 ? 0u : 30u));
  if (stages == 4) {
    CHECK(bytes[1] == 0);  // no such boundary then
    CHECK(std::isnan(errors[1]));
    CHECK(wall[3] == 0);
    CHECK(wall[11] == 400);
  } else {
    CHECK(std::isnan(errors[2]));
    CHECK(wall[5] == 0);
  }
}
