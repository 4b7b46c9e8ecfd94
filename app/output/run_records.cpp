// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/run_records.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "app/deck/deck.hpp"
#include "app/output/former_output.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/mpi_check.hpp"
#include "core/base/observe/machine_memory.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/base/printable.hpp"
#include "core/base/version.hpp"

namespace deltapipe {

namespace {

/// As the system knows it, arguments with blanks between them; empty: it does not say.
std::string process_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(file), {}};
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  return command;
}

/// The first line of the library's description.
std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  DELTAPIPE_MPI(MPI_Get_library_version(text.data(), &length));
  const std::string whole(text.data());
  return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace

RunAttributes run_attributes(const Settings& settings, const ModelPlan& plan) {
  RunAttributes attributes;
  attributes.pipeline = settings.pipeline;
  attributes.partition = plan.partition;
  const ParameterCount parameters = parameter_count(*plan.model);
  attributes.parameters = parameters.all;
  attributes.trained_parameters = parameters.trained;
  attributes.deltapipe_version = std::string(version());
  attributes.source_revision = std::string(revision());
  attributes.deck = effective_deck(settings);
  attributes.kokkos = kokkos_configuration(settings.training.precision);
  attributes.command = process_command();
  attributes.slurm_job = slurm_job();
  attributes.threads_per_rank = kTeamExecution   ? HostTeam::instance().size()
                                : kHostExecution ? ExecSpace().concurrency()
                                                 : 1;
  attributes.mpi = mpi_library();
  attributes.task = &plan.model->task();
  attributes.evaluates_codec = settings.evaluation.has(EvaluationMode::codec);
  attributes.compares_answers = !settings.data.answers.files.empty();
  return attributes;
}

void print_program(const RunAttributes& attributes) {
  std::vector<std::string> hosts = attributes.hosts;
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  std::string names;
  for (const std::string& host : hosts) names += (names.empty() ? "" : ", ") + host;
  std::printf("deltapipe %s (%s), %s, %zu rank(s) with %d thread(s) each on %s\n",
              attributes.deltapipe_version.c_str(), attributes.source_revision.c_str(),
              attributes.mpi.c_str(), attributes.hosts.size(), attributes.threads_per_rank,
              printable(names).c_str());
}

std::vector<RankMemoryRecord> gather_memory(const RankMemory& predicted, const ProcessGrid& grid,
                                            ProgressThread& progress) {
  std::vector<double> mine = {
      static_cast<double>(process_memory().peak), static_cast<double>(predicted.host_peak()),
      static_cast<double>(predicted.device_peak()), static_cast<double>(predicted.process)};
  for (std::size_t use = 0; use < kMemoryUses; ++use)
    mine.push_back(static_cast<double>(predicted.ledger.bytes(static_cast<MemoryUse>(use))));
  const std::vector<double> all = gather(progress, grid.world(), mine, 0);
  std::vector<RankMemoryRecord> records;
  for (auto row = all.begin(); row != all.end(); row += static_cast<std::ptrdiff_t>(mine.size())) {
    const auto bytes = [row](std::size_t i) { return static_cast<std::uint64_t>(row[i]); };
    RankMemoryRecord record{bytes(0), bytes(1), bytes(2), bytes(3), {}};
    for (std::size_t use = 0; use < kMemoryUses; ++use)
      record.uses.emplace_back(kMemoryUseNames[use], bytes(4 + use));
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace deltapipe
