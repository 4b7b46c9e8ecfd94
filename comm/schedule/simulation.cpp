// SPDX-License-Identifier: BSD-3-Clause
#include "comm/schedule/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <deque>
#include <map>

#include "comm/schedule/executor.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

/// One direction of one boundary.
class SimulatedLink {
 public:
  SimulatedLink() = default;
  SimulatedLink(const LinkCost& cost, int buffers) : cost_(cost), buffers_(buffers) {}

  /// Returns false while all buffers hold messages that were not yet received.
  bool send(int micro_batch, double& clock) {
    if (static_cast<int>(messages_.size()) >= buffers_) return false;
    // The time at which the buffer's previous message was received.
    if (sent_ >= buffers_) {
      clock = std::max(clock, freed_.front());
      freed_.pop_front();
    }
    ++sent_;
    idle_from_ = std::max(clock, idle_from_) + cost_.message_seconds;
    messages_.push_back({micro_batch, idle_from_ + cost_.latency_seconds});
    return true;
  }
  /// Returns false while there is no message.
  bool receive(int micro_batch, double& clock) {
    if (messages_.empty()) return false;
    DELTAPIPE_ASSERT(messages_.front().micro_batch == micro_batch,
                     "micro-batch " + std::to_string(micro_batch) + " is received as " +
                         std::to_string(messages_.front().micro_batch) + " arrives");
    clock = std::max(clock, messages_.front().arrival);
    messages_.pop_front();
    freed_.push_back(clock);
    return true;
  }
  bool empty() const { return messages_.empty(); }

 private:
  struct Message {
    int micro_batch;
    double arrival;
  };
  LinkCost cost_;
  int buffers_ = 0;
  int sent_ = 0;
  double idle_from_ = 0;
  std::deque<Message> messages_;
  std::deque<double> freed_;
};

class Simulator {
 public:
  Simulator(const std::vector<Program>& programs, const SimulationCosts& costs)
      : programs_(programs), costs_(costs), clock_(programs.size()) {
    result_.ranks.resize(programs.size());
  }

  Simulation run() {
    result_.deadlock = advance_together(
        programs_,
        [this](std::size_t s, const Instruction& instruction) { return execute(s, instruction); });
    for (const auto& [place, link] : links_)
      DELTAPIPE_ASSERT(!result_.deadlock.empty() || link.empty(), "a message is never received");
    return std::move(result_);
  }

 private:
  bool execute(std::size_t s, const Instruction& instruction) {
    if (const std::optional<Transfer> message = transfer_of(instruction)) {
      SimulatedLink& wire = link(*message);
      const bool passed = message->sends ? wire.send(message->micro_batch, clock_[s])
                                         : wire.receive(message->micro_batch, clock_[s]);
      if (!passed) return false;
    }
    const double begin = clock_[s];
    clock_[s] += cost_of(instruction.action);
    result_.ranks[s].push_back({instruction, begin, clock_[s]});
    return true;
  }

  double cost_of(Action action) const {
    switch (action) {
      case Action::forward:
        return costs_.forward;
      case Action::backward:
        return costs_.backward;
      case Action::backward_inputs:
        return costs_.backward * (1 - costs_.parameter_share);
      case Action::backward_parameters:
        return costs_.backward * costs_.parameter_share;
      case Action::update:
        return costs_.update;
      default:
        return 0;
    }
  }

  const LinkCost& cost_of(Wire wire) const {
    switch (wire) {
      case Wire::activation:
        return costs_.activation;
      case Wire::gradient:
        return costs_.gradient;
      case Wire::embedding:
      case Wire::embedding_gradient:
        return costs_.embedding;
      case Wire::common_gradient:
        return costs_.common_gradient;
      case Wire::common_values:
        break;
    }
    return costs_.common_values;
  }

  SimulatedLink& link(const Transfer& message) {
    const Wire wire = message.wire;
    const bool bounded = wire == Wire::activation || wire == Wire::gradient;
    const int buffers = bounded ? costs_.buffers : std::numeric_limits<int>::max();
    return links_.try_emplace({wire, message.boundary}, cost_of(wire), buffers).first->second;
  }

  const std::vector<Program>& programs_;
  SimulationCosts costs_;
  std::vector<double> clock_;
  std::map<std::pair<Wire, int>, SimulatedLink> links_;
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
      std::to_string(instruction.micro_batch) +
      (names_stage ? "@" + std::to_string(instruction.stage) : std::string());
  switch (instruction.action) {
    case Action::forward:
      return "F" + micro_batch;
    case Action::backward:
    case Action::backward_inputs:
      return "B" + micro_batch;
    case Action::backward_parameters:
      return "W" + micro_batch;
    default:
      return "U";
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
    std::string line = (several ? "rank " : "stage ") + std::to_string(r) + " |";
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
