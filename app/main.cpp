// SPDX-License-Identifier: BSD-3-Clause
// deltapipe: fine-tunes transformers over pipelines of machines joined by slow networks.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "app/commands/command_line.hpp"
#include "app/commands/commands.hpp"
#include "app/preflight/memory_prediction.hpp"
#include "app/preflight/start_check.hpp"
#include "comm/transport/agree.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/core_share.hpp"
#include "comm/transport/gpu_aware_mpi.hpp"
#include "comm/transport/launch.hpp"
#include "comm/transport/machines.hpp"
#include "comm/transport/mpi_session.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "comm/transport/start_watch.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"
#include "core/base/observe/machine_memory.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/kernels/gemm/blas.hpp"

namespace deltapipe {

namespace {

int run_command(const CommandLine& line, const Settings& settings, const ProcessGrid& grid,
                ProgressThread& progress) {
  switch (line.command) {
    case Command::train:
      switch (run_train(settings, grid, progress)) {
        case TrainingEnd::finished:
          return exit_success;
        case TrainingEnd::stopped:
          return exit_stopped;
        case TrainingEnd::stopped_without_progress:
          return exit_no_progress;
      }
      break;
    case Command::evaluate:
      run_evaluate(settings, grid, progress);
      break;
    case Command::predict:
      run_predict(settings, grid, progress);
      break;
    case Command::generate:
      run_generate(settings, grid, progress);
      break;
    case Command::export_model:
      run_export(settings, line.step, line.directory, grid, progress);
      break;
    case Command::check:
    case Command::tokenize:
      break;
  }
  return exit_success;
}

/// The message as one line that also tells what to do about too little memory.
std::string message_of(const Stopped& stopped) {
  const std::string text = stopped.message().substr(0, stopped.message().find('\n'));
  if (!text.starts_with("Kokkos failed to allocate") && text != std::bad_alloc().what())
    return text;
  return "not enough memory (" + text +
         "); use more stages, smaller micro-batches or activation recomputation, see what "
         "`deltapipe check` says a rank needs, and raise a limit on address space (ulimit -v)";
}

/// Ends the program's work with a message. A rank that could not reach the others ends them;
/// nullptr: it is alone.
int report(const Stopped& stopped, const MpiSession* mpi, int exit_code) {
  if (stopped.print_here())
    std::fprintf(stderr, "\ndeltapipe: error: %s\n", message_of(stopped).c_str());
  if (stopped.in_deck()) exit_code = exit_usage;
  if (stopped.signal() != 0) exit_code = exit_signal + stopped.signal();
  if (mpi != nullptr && !stopped.agreed()) mpi->abort(exit_code);
  return exit_code;
}

/// The command line; nothing to run on any rank: the status to leave with. The first rank with an
/// answer gives it.
std::variant<CommandLine, int> read_command_line(const MpiSession& mpi, int argc, char** argv) {
  const ParsedCommandLine mine = parse_command_line(argc, argv, false);
  std::vector<std::uint64_t> first = {
      static_cast<std::uint64_t>(mine.command_line ? mpi.size() : mpi.rank())};
  all_reduce(MPI_COMM_WORLD, first, Reduction::min);
  if (first[0] == static_cast<std::uint64_t>(mpi.size())) return *mine.command_line;
  if (first[0] == static_cast<std::uint64_t>(mpi.rank())) parse_command_line(argc, argv, true);
  std::vector<std::uint64_t> status = {static_cast<std::uint64_t>(mine.exit_code)};
  all_reduce(MPI_COMM_WORLD, status, Reduction::max);
  return static_cast<int>(status[0]);
}

/// Number of OpenBLAS' work buffers, which it shares with other code that multiplies in a process.
constexpr int kMostThreadsByDefault = 128;

/// Threads of a process's kernels: what the environment says, else its share of the machine's
/// cores.
int threads_of_process(int share) {
  const int chosen = threads_of_environment();
  return chosen > 0 ? chosen : std::min(share, kMostThreadsByDefault);
}

/// Collective.
int threads_of_rank() {
  const int share = share_of_cores(MPI_COMM_WORLD, process_cores(), cpu_quota());
  int threads = 0;
  agree(MPI_COMM_WORLD, [&] { threads = threads_of_process(share); });
  return threads;
}

void start_kokkos(std::optional<Kokkos::ScopeGuard>& kokkos, int threads, int argc, char** argv) {
  propose_kokkos_threads(threads);
  try {
    kokkos.emplace(argc, argv);
  } catch (const std::exception& error) {
    throw UserError({.what = fmt::format("Kokkos does not start: {}", error.what()),
                     .remedy = "see the variables KOKKOS_... and OMP_... of the environment"});
  }
  start_host_team(threads);
  reserve_blas_memory(HostTeam::instance().size());
}

WatchSettings watch_settings(const Settings& settings, const ProcessGrid& grid) {
  WatchSettings watch;
  watch.timeout_seconds = settings.pipeline.timeout_seconds;
  watch.step_timeout_seconds = settings.pipeline.step_timeout_seconds;
  watch.name_of_rank = [ranks = grid.pipeline_ranks(), stages = grid.stages(),
                        each = grid.stages_per_rank()](int rank) {
    return fmt::format("rank {} ({}, replica {})", rank, stages_text(rank % ranks, stages, each),
                       rank / ranks);
  };
  return watch;
}

/// Collective. UserError where the ranks or the MPI library do not fit the deck.
void make_grid(const Settings& settings, std::optional<ProcessGrid>& grid) {
  if (settings.pipeline.gpu_aware_mpi) check_gpu_aware_mpi(gpu_awareness_of_mpi());
  grid.emplace(MPI_COMM_WORLD, settings.pipeline.stages, settings.pipeline.replicas,
               settings.pipeline.stages_per_rank);
}

/// Collective. Ranks other than rank 0 have something to check when all of a run are there.
void check(const CommandLine& line, const Settings& settings, const DeckPlaces& places,
           const MpiSession& mpi, StartWatch& watch) {
  const int ranks = settings.pipeline.pipeline_ranks() * settings.pipeline.replicas;
  const std::vector<RankMachine> machines = machines_of_ranks(MPI_COMM_WORLD);
  if (line.plan || mpi.size() != ranks || ranks == 1) {
    watch.stop();
    agree(MPI_COMM_WORLD, [&] {
      if (mpi.rank() != 0) return;
      with_places(places, [&] {
        if (line.plan) return run_plan(settings, line.json);
        run_check(settings, ranks == mpi.size() ? machines : std::vector<RankMachine>(),
                  {line.schedule, line.shows_deck});
      });
      if (mpi.size() > 1 && !line.plan)
        std::printf("# %d ranks were started and the run has %d: they are not compared\n",
                    mpi.size(), ranks);
    });
    return;
  }
  std::optional<ProcessGrid> grid;
  agree(MPI_COMM_WORLD, [&] { with_places(places, [&] { make_grid(settings, grid); }); });
  ProgressThread progress(grid->world(), watch_settings(settings, *grid));
  watch.stop();
  std::vector<Fact> facts;
  agree(progress, [&] {
    with_places(places, [&] {
      facts = mpi.rank() == 0 ? run_check(settings, machines, {line.schedule, line.shows_deck})
                              : run_check_elsewhere(settings, mpi.rank());
    });
  });
  agree(progress, [&] { compare_inputs(progress, facts); });
}

/// A command of one process, which needs no MPI: an installation that cannot start here, as in a
/// batch job without its launcher, keeps nobody from checking a deck.
int run_alone(const CommandLine& line, int argc, char** argv) {
  Settings settings;
  DeckPlaces places;
  std::optional<Kokkos::ScopeGuard> kokkos;
  int status = exit_usage;  // of a mistake in the deck
  try {
    agree([&] { settings = settings_of(line, &places); });
    status = exit_failure;
    if (line.command == Command::check)
      agree([&] {
        const int share = share_of_cores(process_cores(), cpu_quota());
        start_kokkos(kokkos, threads_of_process(share), argc, argv);
      });
    agree([&] {
      with_places(places, [&] {
        if (line.command == Command::tokenize) return run_tokenize(settings);
        if (line.plan) return run_plan(settings, line.json);
        const bool is_whole = ranks_of(settings.pipeline) == 1;
        run_check(settings,
                  is_whole ? std::vector<RankMachine>{this_machine()} : std::vector<RankMachine>(),
                  {line.schedule, line.shows_deck});
      });
    });
    return exit_success;
  } catch (const Stopped& stopped) {
    return report(stopped, nullptr, status);
  }
}

int run(const CommandLine& line, const MpiSession& mpi, StartWatch& watch, int argc, char** argv) {
  // 1. The deck, on every rank; one rank speaks of a mistake in it.
  Settings settings;
  DeckPlaces places;
  try {
    agree(MPI_COMM_WORLD, [&] { settings = settings_of(line, &places); });
    agree(MPI_COMM_WORLD,
          [&] { compare_program_and_deck(MPI_COMM_WORLD, line.command, settings); });
  } catch (const Stopped& stopped) {
    return report(stopped, &mpi, exit_usage);
  }

  // 2. Kokkos, the process grid and the command; whatever stops one rank stops all.
  std::optional<Kokkos::ScopeGuard> kokkos;
  try {
    if (line.command == Command::export_model && mpi.size() > 1) {
      agree(MPI_COMM_WORLD, [&] {
        throw UserError({.what = "export needs one process",
                         .value = fmt::format("{} were started", mpi.size()),
                         .remedy = "start it without mpirun, whatever the layout of the run"});
      });
    }
    if (line.command == Command::tokenize) {
      watch.stop();
      agree(MPI_COMM_WORLD, [&] {
        if (mpi.rank() == 0) with_places(places, [&] { run_tokenize(settings); });
      });
      return exit_success;
    }
    const int threads = threads_of_rank();
    agree(MPI_COMM_WORLD, [&] { start_kokkos(kokkos, threads, argc, argv); });
    if (line.command == Command::check) {
      check(line, settings, places, mpi, watch);
      return exit_success;
    }
    std::optional<ProcessGrid> grid;
    agree(MPI_COMM_WORLD, [&] {
      with_places(places, [&] {
        if (line.command == Command::export_model)
          grid.emplace(MPI_COMM_SELF, 1, 1);
        else
          make_grid(settings, grid);
      });
    });
    note_interruptions();  // from here on somebody looks
    ProgressThread progress(grid->world(), watch_settings(settings, *grid));
    progress.set_ends_at_once(true);
    watch.stop();  // from here on the ranks watch each other
    int status = exit_success;
    agree(progress, [&] {
      with_places(places, [&] { status = run_command(line, settings, *grid, progress); });
    });
    if (mpi.size() > 1) watch_end(mpi.rank(), settings.pipeline.timeout_seconds);
    HostTeam::instance().resize(1);
    return status;
  } catch (const Stopped& stopped) {
    if (mpi.size() > 1) watch_end(mpi.rank(), settings.pipeline.timeout_seconds);
    return report(stopped, &mpi, exit_failure);
  }
}

bool standard_output_has_no_reader() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
}

/// The output is a command's result, except for a training, which leaves files.
int status_of_output(const std::optional<CommandLine>& line) {
  errno = 0;
  const bool is_flushed = std::fflush(stdout) == 0;
  // A reader that leaves, as `head` does, has what it asked for.
  const bool has_left = errno == EPIPE || standard_output_has_no_reader();
  const bool is_written = (is_flushed && std::ferror(stdout) == 0) || has_left;
  if (is_written || (line && line->command == Command::train)) return exit_success;
  std::fprintf(stderr, "deltapipe: error: standard output cannot be written\n");
  return exit_failure;
}

}  // namespace

}  // namespace deltapipe

DELTAPIPE_REMEMBER_CORES_FIRST();

int main(int argc, char** argv) {
  using namespace deltapipe;
  remember_process_cores();  // where nothing came before
  restart_with_better_settings(argv);
  outlive_readers();
  const Launch launch = launch_of_environment();
  try {
    // 1. What needs no other rank, and no MPI, is answered without: help, versions, and mistakes
    // and commands of a process that is alone.
    const ParsedCommandLine mine = parse_command_line(argc, argv, false);
    const bool is_alone = launch.size == 1;
    if (!mine.command_line && (is_alone || mine.exit_code == exit_success)) {
      if (launch.rank == 0) parse_command_line(argc, argv, true);
      return mine.exit_code == exit_success ? status_of_output(std::nullopt) : mine.exit_code;
    }
    if (is_alone && (mine.command_line->command == Command::check ||
                     mine.command_line->command == Command::tokenize)) {
      const int status = run_alone(*mine.command_line, argc, argv);
      return status == exit_success ? status_of_output(mine.command_line) : status;
    }

    // 2. All else starts MPI.
    StartWatch watch;
    const MpiSession mpi(&argc, &argv);
    if (mpi.size() == 1) watch.stop();
    try {
      const auto command_line = read_command_line(mpi, argc, argv);
      if (const int* status = std::get_if<int>(&command_line))
        return *status == exit_success ? status_of_output(std::nullopt) : *status;
      const CommandLine& line = std::get<CommandLine>(command_line);
      const int status = run(line, mpi, watch, argc, argv);
      return status == exit_success ? status_of_output(line) : status;
    } catch (const std::exception& error) {
      // Outside of all agreements the others cannot be told; MPI_Finalize would wait for them.
      std::fprintf(stderr, "\ndeltapipe: error: %s\n", error.what());
      mpi.abort(exit_failure);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "deltapipe: error: %s\n", error.what());
  }
  return exit_failure;
}
