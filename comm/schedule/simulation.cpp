// SPDX-License-Identifier: BSD-3-Clause
#include "comm/schedule/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "comm/schedule/executor.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

/// Returns a stage's or boundary's entry of a list, or the one that applies to all.
template <class T>
const T& entry(const std::vector<T>& list, int index) {
  return list.size() == 1 ? list.front() : list.at(static_cast<std::size_t>(index));
}

struct Message {
  int micro_batch = 0;
  LinkCost cost;
  double sent = 0;
  std::optional<double> arrival;
};

/// Messages of one kind over one boundary that were not received yet, in the order of sending.
struct Queue {
  std::size_t receiver = 0;
  std::deque<Message> messages;
  std::optional<std::size_t> waiting_sender;
};

/// Executes what happens in the order of its time, so that links serve messages in that order.
class Simulator {
 public:
  Simulator(const std::vector<Program>& programs, const SimulationCosts& costs)
      : programs_(programs), costs_(costs), ranks_(programs.size()) {
    result_.ranks.resize(programs.size());
    result_.seconds.resize(programs.size());
    for (std::size_t r = 0; r < programs.size(); ++r)
      for (const Instruction& instruction : programs[r])
        last_stage_ = std::max(last_stage_, instruction.stage);
  }

  Simulation run() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) wake(r, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.message != nullptr)
        enter(event.rank, *event.message, event.time);
      else if (event.sum != nullptr)
        pass_piece(event.rank, *event.sum, event.time);
      else
        go_on(event.rank, event.time);
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].position < programs_[r].size())
        result_.deadlock +=
            (result_.deadlock.empty() ? "" : "; ") + to_text(programs_[r][ranks_[r].position]);
    for (const auto& [place, queue] : queues_)
      DELTAPIPE_ASSERT(!result_.deadlock.empty() || queue.messages.empty(),
                       "a message is never received");
    return std::move(result_);
  }

 private:
  /// A sum that shares its rank's wire.
  struct Sum {
    double piece_seconds = 0, latency_seconds = 0;
    int pieces = 0;                  ///< that have not passed
    double begin = 0, complete = 0;  ///< not before
  };
  struct Rank {
    std::size_t position = 0;
    double clock = 0;
    bool has_encoded = false;    ///< the message of its next instruction
    double out = 0, in = 0;      ///< when its wires become free
    double sum = 0;              ///< when its link to other replicas becomes free
    double sum_arrival = 0;      ///< when its last sum is complete
    std::deque<Sum> sums;        ///< that share its wires; the first one passes
    std::set<int> final_stages;  ///< whose next pass completes their gradients
  };
  /// A rank may continue, or a message or a piece of a sum reaches the rank's wire.
  struct Event {
    double time = 0;
    std::uint64_t number = 0;  ///< order of events at the same time
    std::size_t rank = 0;
    Message* message = nullptr;
    Sum* sum = nullptr;
    bool operator<(const Event& other) const {
      return std::pair(time, number) > std::pair(other.time, other.number);
    }
  };

  void wake(std::size_t rank, double time) { events_.push({time, events_so_far_++, rank}); }

  /// Executes a rank's next instruction. If it has to wait, the rank is woken later.
  void go_on(std::size_t r, double now) {
    Rank& rank = ranks_[r];
    if (now < rank.clock || rank.position == programs_[r].size()) return;
    const Instruction& instruction = programs_[r][rank.position];
    if (const std::optional<Transfer> transfer = transfer_of(instruction)) {
      if (!(transfer->sends ? send(r, *transfer, now) : receive(r, *transfer, now))) return;
    } else {
      if (instruction.action == Action::finish_reductions && !rank.sums.empty()) return;
      compute(r, instruction);
    }
    ++rank.position;
    wake(r, rank.clock);
  }

  void compute(std::size_t r, const Instruction& instruction) {
    Rank& rank = ranks_[r];
    if (instruction.action == Action::finish_reductions && rank.sum_arrival > rank.clock) {
      result_.seconds[r].replicas += rank.sum_arrival - rank.clock;
      rank.clock = rank.sum_arrival;
    }
    const double seconds = cost_of(instruction);
    sum_over_replicas(r, instruction, seconds);
    result_.seconds[r].compute += seconds;
    note(r, seconds);
  }
  /// The rank's next instruction occupies it for some time.
  void note(std::size_t r, double seconds) {
    Rank& rank = ranks_[r];
    const double begin = rank.clock;
    rank.clock += seconds;
    result_.ranks[r].push_back({programs_[r][rank.position], begin, rank.clock});
  }

  void sum_over_replicas(std::size_t r, const Instruction& instruction, double seconds) {
    Rank& rank = ranks_[r];
    const int stage = instruction.stage;
    if (instruction.action == Action::reduce_gradients) rank.final_stages.insert(stage);
    const bool completes =
        instruction.action == Action::backward || instruction.action == Action::backward_parameters;
    if (instruction.action == Action::reduce_zeros ||
        (completes && rank.final_stages.erase(stage) > 0)) {
      const SumCost& sum = entry(costs_.sums, stage);
      start_sum(r, sum, rank.clock + seconds / sum.parts,
                rank.clock + seconds + sum.seconds / sum.parts);
    } else if (instruction.action == Action::add_embedding_gradient) {
      start_sum(r, costs_.embedding_sum, rank.clock, rank.clock);
    } else if (instruction.action == Action::add_common_gradient && stage == 0) {
      start_sum(r, costs_.common_sum, rank.clock, rank.clock);
    }
  }

  /// Starts a sum, not before `begin`. It is not complete before `complete` and a latency.
  void start_sum(std::size_t r, const SumCost& sum, double begin, double complete) {
    if (sum.seconds == 0 && sum.latency_seconds == 0) return;
    Rank& rank = ranks_[r];
    if (costs_.sharing == LinkSharing::rank_wires && sum.seconds > 0) {
      rank.sums.push_back(
          {sum.seconds / sum.pieces, sum.latency_seconds, sum.pieces, begin, complete});
      if (rank.sums.size() == 1) pass_next(r, begin);
      return;
    }
    rank.sum = std::max(std::max(rank.sum, begin) + sum.seconds, complete);
    rank.sum_arrival = std::max(rank.sum_arrival, rank.sum + sum.latency_seconds);
  }

  /// The next piece of the rank's first sum reaches its wire at `time`.
  void pass_next(std::size_t r, double time) {
    Sum& sum = ranks_[r].sums.front();
    events_.push({std::max(time, sum.begin), events_so_far_++, r, nullptr, &sum});
  }

  /// A rank sends to replicas while it receives as much from them.
  void pass_piece(std::size_t r, Sum& sum, double now) {
    Rank& rank = ranks_[r];
    rank.out = rank.in = std::max({now, rank.out, rank.in}) + sum.piece_seconds;
    if (--sum.pieces > 0) return pass_next(r, rank.out);
    const double end = std::max(rank.out, sum.complete);
    rank.sum_arrival = std::max(rank.sum_arrival, end + sum.latency_seconds);
    rank.sums.pop_front();
    if (!rank.sums.empty()) return pass_next(r, rank.out);
    wake(r, rank.sum_arrival);
  }

  /// Returns false if the rank has to wait, or encodes until later.
  bool send(std::size_t r, const Transfer& transfer, double now) {
    Rank& rank = ranks_[r];
    Queue& queue = queues_[{transfer.wire, transfer.boundary}];
    const LinkCost& cost = cost_of(transfer);
    const bool is_bounded = transfer.wire == Wire::activation || transfer.wire == Wire::gradient;
    if (is_bounded && static_cast<int>(queue.messages.size()) >= costs_.buffers) {
      queue.waiting_sender = r;
      return false;
    }
    result_.seconds[r].wire += now - rank.clock;
    rank.clock = now;
    if (!rank.has_encoded) {
      rank.has_encoded = true;
      note(r, cost.encode_seconds);
      result_.seconds[r].codec += cost.encode_seconds;
      if (cost.encode_seconds > 0) {
        wake(r, rank.clock);
        return false;
      }
    }
    rank.has_encoded = false;
    queue.receiver = receiver_of(transfer);
    queue.messages.push_back({transfer.micro_batch, cost, now, std::nullopt});
    leave(r, queue.receiver, queue.messages.back());
    return true;
  }

  void leave(std::size_t sender, std::size_t receiver, Message& message) {
    const auto [seconds, latency, encode, decode] = message.cost;
    if (costs_.sharing == LinkSharing::receiver_wires) {
      events_.push({message.sent, events_so_far_++, receiver, &message});
      return;
    }
    const bool is_wire = costs_.sharing == LinkSharing::rank_wires;
    double& free = is_wire ? ranks_[sender].out : links_[{sender, receiver}];
    const double begin = std::max(message.sent, free);
    free = begin + seconds;
    if (is_wire)
      events_.push({begin + latency, events_so_far_++, receiver, &message});
    else
      arrive(receiver, message, free + latency);
  }
  /// A message reaches its receiver's wire.
  void enter(std::size_t receiver, Message& message, double now) {
    double& free = ranks_[receiver].in;
    free = std::max(now, free) + message.cost.message_seconds;
    if (costs_.sharing == LinkSharing::receiver_wires) free += message.cost.latency_seconds;
    arrive(receiver, message, free);
  }
  void arrive(std::size_t receiver, Message& message, double time) {
    message.arrival = time;
    wake(receiver, time);
  }

  /// Returns false if the rank has to wait.
  bool receive(std::size_t r, const Transfer& transfer, double now) {
    Rank& rank = ranks_[r];
    Queue& queue = queues_[{transfer.wire, transfer.boundary}];
    if (queue.messages.empty()) return false;
    const Message message = queue.messages.front();
    DELTAPIPE_ASSERT(message.micro_batch == transfer.micro_batch,
                     fmt::format("micro-batch {} is received as {} arrives", transfer.micro_batch,
                                 message.micro_batch));
    if (!message.arrival || *message.arrival > now) return false;
    queue.messages.pop_front();
    const double sent = std::clamp(message.sent, rank.clock, now);
    result_.seconds[r].bubble += sent - rank.clock;
    result_.seconds[r].wire += now - sent;
    rank.clock = now;
    note(r, message.cost.decode_seconds);
    result_.seconds[r].codec += message.cost.decode_seconds;
    if (queue.waiting_sender) wake(*queue.waiting_sender, now);
    queue.waiting_sender.reset();
    return true;
  }

  double cost_of(const Instruction& instruction) const {
    const PassCost& pass = entry(costs_.stages, instruction.stage);
    switch (instruction.action) {
      case Action::forward:
        return pass.forward;
      case Action::backward:
        return pass.backward;
      case Action::backward_inputs:
        return pass.backward * (1 - pass.parameter_share);
      case Action::backward_parameters:
        return pass.backward * pass.parameter_share;
      case Action::update:
        return costs_.update;
      default:
        return 0;
    }
  }

  const LinkCost& cost_of(const Transfer& transfer) const {
    switch (transfer.wire) {
      case Wire::activation:
        return entry(costs_.activations, transfer.boundary);
      case Wire::gradient:
        return entry(costs_.gradients, transfer.boundary);
      case Wire::embedding:
        return costs_.embedding;
      case Wire::embedding_gradient:
        return costs_.embedding_gradient;
      case Wire::common_gradient:
        return costs_.common_gradient;
      case Wire::common_values:
        break;
    }
    return costs_.common_values;
  }

  std::size_t receiver_of(const Transfer& transfer) const {
    const auto rank_of = [&](int stage) { return static_cast<std::size_t>(stage) % ranks_.size(); };
    switch (transfer.wire) {
      case Wire::activation:
      case Wire::common_values:
        return rank_of(transfer.boundary + 1);
      case Wire::gradient:
      case Wire::common_gradient:
        return rank_of(transfer.boundary);
      case Wire::embedding:
        return 0;
      case Wire::embedding_gradient:
        break;
    }
    return rank_of(last_stage_);
  }

  const std::vector<Program>& programs_;
  const SimulationCosts& costs_;
  int last_stage_ = 0;
  std::vector<Rank> ranks_;
  std::map<std::pair<Wire, int>, Queue> queues_;
  std::map<std::pair<std::size_t, std::size_t>, double> links_;  ///< when they become free
  std::priority_queue<Event> events_;
  std::uint64_t events_so_far_ = 0;
  Simulation result_;
};

bool has_several_stages(const std::vector<TimelineEntry>& timeline) {
  return std::any_of(timeline.begin(), timeline.end(), [&](const TimelineEntry& entry) {
    return entry.instruction.stage != timeline.front().instruction.stage;
  });
}

/// Returns the label of a pass: "F3", "B12", "W0", or "F3@5" if a rank has several stages.
std::string cell_of(const Instruction& instruction, bool names_stage) {
  const std::string micro_batch =
      names_stage ? fmt::format("{}@{}", instruction.micro_batch, instruction.stage)
                  : std::to_string(instruction.micro_batch);
  switch (instruction.action) {
    case Action::forward:
      return "F" + micro_batch;
    case Action::backward:
    case Action::backward_inputs:
      return "B" + micro_batch;
    case Action::backward_parameters:
      return "W" + micro_batch;
    case Action::update:
      return "U";
    default:
      return "C" + micro_batch;
  }
}

}  // namespace

double Simulation::makespan() const {
  double last = 0;
  for (const auto& timeline : ranks)
    for (const TimelineEntry& entry : timeline) last = std::max(last, entry.end);
  return last;
}

double Simulation::busy_fraction() const {
  double busy = 0;
  for (const auto& timeline : ranks)
    for (const TimelineEntry& entry : timeline) busy += entry.end - entry.begin;
  const double all = makespan() * static_cast<double>(ranks.size());
  return all > 0 ? busy / all : 0;
}

Simulation simulate(const std::vector<Program>& programs, const SimulationCosts& costs) {
  return Simulator(programs, costs).run();
}

std::string grid_of(const Simulation& simulation, double seconds_per_column) {
  DELTAPIPE_ASSERT(seconds_per_column > 0, std::to_string(seconds_per_column));
  const auto column = [&](double seconds) {
    return static_cast<std::size_t>(std::llround(seconds / seconds_per_column));
  };
  const std::size_t columns = column(simulation.makespan());
  std::vector<std::vector<std::string>> rows(simulation.ranks.size(),
                                             std::vector<std::string>(columns, "."));
  std::size_t width = 1;
  const bool several =
      std::any_of(simulation.ranks.begin(), simulation.ranks.end(), has_several_stages);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (const TimelineEntry& entry : simulation.ranks[r])
      for (std::size_t c = column(entry.begin); c < column(entry.end); ++c) {
        rows[r][c] = c == column(entry.begin) ? cell_of(entry.instruction, several) : "-";
        width = std::max(width, rows[r][c].size());
      }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line = fmt::format("{} {} |", several ? "rank" : "stage", r);
    for (std::string& cell : rows[r]) {
      cell.resize(width, cell == "-" ? '-' : ' ');
      line += (cell.front() == '-' ? "-" : " ") + cell;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace deltapipe
