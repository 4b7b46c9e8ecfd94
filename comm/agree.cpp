#include "comm/agree.hpp"

#include <cstdint>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/mpi_check.hpp"
#include "core/error.hpp"

namespace deltapipe {
namespace {

/// How a phase ended on this rank.
struct Outcome {
  enum State { fine, stopped, mistaken, broken } state = fine;
  std::string message;
};

Outcome run(const std::function<void()>& phase) {
  try {
    phase();
    return {};
  } catch (const Stopped&) {
    throw;  // an inner agreement: all ranks are on their way out already
  } catch (const StopRequested& stop) {
    return {Outcome::stopped, stop.what()};
  } catch (const UserError& error) {
    return {Outcome::mistaken, error.what()};
  } catch (const std::exception& error) {
    return {Outcome::broken, error.what()};
  } catch (...) {
    return {Outcome::broken, "unknown exception"};
  }
}

/// Ranks that failed by themselves come before those that were told to stop.
std::uint64_t priority(const Outcome& outcome, int rank, int size) {
  const auto r = static_cast<std::uint64_t>(rank);
  const auto n = static_cast<std::uint64_t>(size);
  if (outcome.state == Outcome::fine) return 2 * n;
  return outcome.state == Outcome::stopped ? n + r : r;
}

/// `reduce_min` and `broadcast` are collectives over the ranks that agree.
template <class ReduceMin, class Broadcast>
void conclude(const Outcome& outcome, int rank, int size, ReduceMin reduce_min,
              Broadcast broadcast_text) {
  const std::uint64_t first = reduce_min(priority(outcome, rank, size));
  if (first == 2 * static_cast<std::uint64_t>(size)) return;
  const int speaker = static_cast<int>(first % static_cast<std::uint64_t>(size));
  std::string text;
  if (rank == speaker) text = (outcome.state == Outcome::broken ? "!" : " ") + outcome.message;
  broadcast_text(text, speaker);
  throw Stopped(text.substr(1), rank == 0, text[0] == '!');
}

}  // namespace

void agree(MPI_Comm comm, const std::function<void()>& phase) {
  int rank = 0;
  int size = 0;
  DELTAPIPE_MPI(MPI_Comm_rank(comm, &rank));
  DELTAPIPE_MPI(MPI_Comm_size(comm, &size));
  const Outcome outcome = run(phase);
  conclude(
      outcome, rank, size,
      [&](std::uint64_t value) {
        all_reduce(comm, std::span(&value, 1), Reduction::min);
        return value;
      },
      [&](std::string& text, int root) { broadcast(comm, text, root); });
}

void agree(ProgressThread& progress, const std::function<void()>& phase) {
  const Outcome outcome = run(phase);
  if (outcome.state != Outcome::fine && outcome.state != Outcome::stopped) progress.stop_others();
  conclude(
      outcome, progress.rank(), progress.size(),
      [&](std::uint64_t value) { return agree_on_minimum(progress, value); },
      [&](std::string& text, int root) { agree_on_text(progress, text, root); });
}

}  // namespace deltapipe
