// deltapipe: fine-tunes transformers over pipelines of machines joined by slow networks.
#include <Kokkos_Core.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "app/command_line.hpp"
#include "app/commands.hpp"
#include "app/start_check.hpp"
#include "comm/agree.hpp"
#include "comm/mpi_session.hpp"
#include "comm/process_grid.hpp"
#include "comm/progress_thread.hpp"
#include "core/error.hpp"
#include "core/kernels/gemm.hpp"

namespace deltapipe {

namespace {

void run_command(const CommandLine& line, const Settings& settings, const ProcessGrid& grid,
                 ProgressThread& progress) {
  switch (line.command) {
    case Command::train:
      return run_train(settings, grid, progress);
    case Command::evaluate:
      return run_evaluate(settings, grid, progress);
    case Command::generate:
      return run_generate(settings, grid, progress);
    case Command::check:
      break;
  }
}

/// The message as one line that also tells what to do about too little memory.
std::string message_of(const Stopped& stopped) {
  const std::string text = stopped.message().substr(0, stopped.message().find('\n'));
  if (!text.starts_with("Kokkos failed to allocate") && text != std::bad_alloc().what())
    return text;
  return "not enough memory (" + text +
         "); use more stages, smaller micro-batches or activation recomputation, and see what "
         "`deltapipe check` says a rank needs";
}

int report(const Stopped& stopped, int exit_code) {
  if (stopped.print_here())
    std::fprintf(stderr, "\ndeltapipe: error: %s\n", message_of(stopped).c_str());
  return exit_code;
}

int run(const CommandLine& line, const MpiSession& mpi, int argc, char** argv) {
  // 1. The deck, on every rank; one rank speaks of a mistake in it.
  Settings settings;
  try {
    agree(MPI_COMM_WORLD, [&] { settings = settings_of(line); });
    agree(MPI_COMM_WORLD,
          [&] { compare_program_and_deck(MPI_COMM_WORLD, line.command, settings); });
  } catch (const Stopped& stopped) {
    return report(stopped, exit_usage);
  }

  // 2. Kokkos and BLAS.
  const Kokkos::ScopeGuard kokkos(argc, argv);
  if (ExecSpace().concurrency() == 1) use_single_threaded_blas();

  // 3. The process grid and the command; whatever stops one rank stops all.
  try {
    if (line.command == Command::check) {
      std::vector<RankMachine> machines = machines_of_ranks(MPI_COMM_WORLD);
      if (mpi.size() != settings.pipeline.stages * settings.pipeline.replicas) machines.clear();
      agree(MPI_COMM_WORLD, [&] {
        if (mpi.rank() == 0) run_check(settings, machines);
      });
      return exit_success;
    }
    std::optional<ProcessGrid> grid;
    agree(MPI_COMM_WORLD, [&] {
      grid.emplace(MPI_COMM_WORLD, settings.pipeline.stages, settings.pipeline.replicas);
    });
    ProgressThread progress(grid->world());
    agree(progress, [&] { run_command(line, settings, *grid, progress); });
  } catch (const Stopped& stopped) {
    return report(stopped, exit_failure);
  }
  return exit_success;
}

}  // namespace

}  // namespace deltapipe

int main(int argc, char** argv) {
  using namespace deltapipe;
  try {
    const MpiSession mpi(&argc, &argv);
    const ParsedCommandLine parsed = parse_command_line(argc, argv, mpi.rank() == 0);
    if (!parsed.command_line) return parsed.exit_code;
    return run(*parsed.command_line, mpi, argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "deltapipe: error: %s\n", error.what());
    return exit_failure;
  }
}
