// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/agree.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "comm/transport/collectives.hpp"
#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"

namespace deltapipe {
namespace {

/// Outcome of a phase on this rank.
struct Outcome {
  enum State { fine, stopped, mistaken, wrong_deck, broken } state = fine;
  std::string message;
  int signal = 0;

  Stopped::Cause cause() const { return {message, state == broken, signal, state == wrong_deck}; }
};

Outcome run(const std::function<void()>& phase) {
  try {
    phase();
    return {};
  } catch (const Stopped&) {
    throw;  // an inner agreement: all ranks are already about to stop
  } catch (const StopRequested& stop) {
    return {Outcome::stopped, stop.what(), stop.signal()};
  } catch (const Interrupted& interrupted) {
    return {Outcome::mistaken, interrupted.what(), interrupted.signal()};
  } catch (const UserError& error) {
    return {error.mistake().keys.empty() ? Outcome::mistaken : Outcome::wrong_deck, error.what()};
  } catch (const PeerLost& lost) {
    return {Outcome::mistaken, lost.what()};
  } catch (const std::exception& error) {
    return {Outcome::broken, error.what()};
  } catch (...) {
    return {Outcome::broken, "unknown exception"};
  }
}

/// Orders ranks: those that failed by themselves come before those that were told to stop.
std::uint64_t priority(const Outcome& outcome, int rank, int size) {
  const auto r = static_cast<std::uint64_t>(rank);
  const auto n = static_cast<std::uint64_t>(size);
  if (outcome.state == Outcome::fine) return 2 * n;
  return outcome.state == Outcome::stopped ? n + r : r;
}

/// Agrees on the outcome; `reduce_min` and `broadcast_text` are collectives over the ranks that
/// agree.
template <class ReduceMin, class Broadcast>
void conclude(const Outcome& outcome, int rank, int size, ReduceMin reduce_min,
              Broadcast broadcast_text) {
  const std::uint64_t first = reduce_min(priority(outcome, rank, size));
  if (first == 2 * static_cast<std::uint64_t>(size)) return;
  const int speaker = static_cast<int>(first % static_cast<std::uint64_t>(size));
  // The text consists of the state, the signal and the message.
  std::string text;
  if (rank == speaker) text = {static_cast<char>(outcome.state), static_cast<char>(outcome.signal)};
  if (rank == speaker) text += outcome.message;
  broadcast_text(text, speaker);
  const Outcome theirs{static_cast<Outcome::State>(text[0]), text.substr(2), text[1]};
  throw Stopped(theirs.cause(), rank == 0, true);
}

/// Runs conclude(). A rank that cannot agree leaves alone, with its own outcome; `why` describes
/// the event to a rank without an error.
template <class Conclude, class Why>
void conclude_or_leave(Outcome outcome, Conclude conclude, Why why) {
  try {
    conclude();
  } catch (const Stopped&) {
    throw;
  } catch (const std::exception& error) {
    if (outcome.state == Outcome::fine) outcome = run(why);
    if (outcome.state == Outcome::fine) outcome = {Outcome::mistaken, error.what()};
    throw Stopped(outcome.cause(), true, false);
  }
}

}  // namespace

void agree(MPI_Comm comm, const std::function<void()>& phase, std::chrono::milliseconds limit) {
  int rank = 0;
  int size = 0;
  DELTAPIPE_MPI(MPI_Comm_rank(comm, &rank));
  DELTAPIPE_MPI(MPI_Comm_size(comm, &size));
  const Outcome outcome = run(phase);
  const TimePoint deadline =
      outcome.state == Outcome::fine ? TimePoint::max() : Clock::now() + limit;
  conclude_or_leave(
      outcome,
      [&] {
        conclude(
            outcome, rank, size,
            [&](std::uint64_t value) { return agree_on_minimum(comm, value, deadline); },
            [&](std::string& text, int root) { agree_on_text(comm, text, root, deadline); });
      },
      [] {});
}

void agree(const std::function<void()>& phase) {
  const Outcome outcome = run(phase);
  if (outcome.state != Outcome::fine) throw Stopped(outcome.cause(), true, true);
}

void agree(ProgressThread& progress, const std::function<void()>& phase) {
  const Outcome outcome = run(phase);
  if (outcome.state != Outcome::fine && outcome.state != Outcome::stopped)
    progress.stop_others(outcome.signal);
  conclude_or_leave(
      outcome,
      [&] {
        conclude(
            outcome, progress.rank(), progress.size(),
            [&](std::uint64_t value) { return agree_on_minimum(progress, value); },
            [&](std::string& text, int root) { agree_on_text(progress, text, root); });
      },
      [&] { progress.check(); });
}

}  // namespace deltapipe
