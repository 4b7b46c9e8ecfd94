// Schedules run in a simulator: no deadlock, each micro-batch once, memory and idle time as
// promised.
#include "comm/schedule.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <deque>
#include <map>
#include <set>

#include "core/error.hpp"

namespace deltapipe {
namespace {

constexpr int kUnbounded = 1 << 20;

struct Message {
  int micro_batch;
  double arrival;
};

/// One direction of one boundary: `capacity` messages fit between the sender's send and the
/// receiver's receive; a send into a full link waits.
struct Link {
  std::deque<Message> messages;
  std::deque<double> freed;  // times at which a place became free
};

/// Runs all stages' instructions; messages take no time, receives wait, sends wait when `capacity`
/// messages are unreceived.
class Simulator {
 public:
  Simulator(PipelineSchedule kind, int stages, int micro_batches, int capacity,
            double forward_cost = 1, double backward_cost = 1, int in_flight = 1)
      : stages_(stages),
        capacity_(capacity),
        forward_cost_(forward_cost),
        backward_cost_(backward_cost),
        forward_links_(static_cast<std::size_t>(stages)),
        backward_links_(static_cast<std::size_t>(stages)),
        clock_(static_cast<std::size_t>(stages), 0) {
    for (int s = 0; s < stages; ++s) {
      programs_.push_back(make_schedule(kind, s, stages, micro_batches, in_flight));
    }
    position_.resize(static_cast<std::size_t>(stages), 0);
    for (auto* links : {&forward_links_, &backward_links_}) {
      for (Link& link : *links)
        link.freed.assign(static_cast<std::size_t>(std::min(capacity, 4096)), 0);
    }
  }

  /// False when no stage can go on although not all are at their end.
  bool run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t s = 0; s < programs_.size(); ++s) {
        while (position_[s] < programs_[s].size() && execute(s, programs_[s][position_[s]])) {
          ++position_[s];
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < programs_.size(); ++s) {
      if (position_[s] < programs_[s].size()) return false;
    }
    return true;
  }

  double makespan() const { return *std::max_element(clock_.begin(), clock_.end()); }
  bool links_are_empty() const {
    for (const auto* links : {&forward_links_, &backward_links_}) {
      for (const Link& link : *links) {
        if (!link.messages.empty()) return false;
      }
    }
    return true;
  }

 private:
  bool execute(std::size_t s, const Instruction& instruction) {
    switch (instruction.action) {
      case Action::forward:
        clock_[s] += forward_cost_;
        return true;
      case Action::backward:
        clock_[s] += backward_cost_;
        return true;
      case Action::receive_activation:
        return receive(s, forward_links_[s - 1], instruction.micro_batch);
      case Action::send_activation:
        return send(s, forward_links_[s], instruction.micro_batch);
      case Action::receive_gradient:
        return receive(s, backward_links_[s], instruction.micro_batch);
      case Action::send_gradient:
        return send(s, backward_links_[s - 1], instruction.micro_batch);
    }
    return false;
  }

  bool send(std::size_t s, Link& link, int micro_batch) {
    if (link.messages.size() >= static_cast<std::size_t>(capacity_)) return false;
    if (!link.freed.empty()) {
      clock_[s] = std::max(clock_[s], link.freed.front());
      link.freed.pop_front();
    }
    link.messages.push_back({micro_batch, clock_[s]});
    return true;
  }

  bool receive(std::size_t s, Link& link, int micro_batch) {
    if (link.messages.empty()) return false;
    REQUIRE(link.messages.front().micro_batch == micro_batch);
    clock_[s] = std::max(clock_[s], link.messages.front().arrival);
    link.messages.pop_front();
    link.freed.push_back(clock_[s]);
    return true;
  }

  int stages_;
  int capacity_;
  double forward_cost_;
  double backward_cost_;
  std::vector<std::vector<Instruction>> programs_;
  std::vector<std::size_t> position_;
  std::vector<Link> forward_links_;   // by lower stage
  std::vector<Link> backward_links_;  // by lower stage
  std::vector<double> clock_;
};

const std::vector<int> kStages = {1, 2, 3, 4, 7, 8};
const std::vector<int> kMicroBatches = {1, 2, 3, 5, 8, 31};
const std::vector<PipelineSchedule> kKinds = {PipelineSchedule::gpipe,
                                              PipelineSchedule::one_forward_one_backward};

template <class What>
void for_all(What what) {
  for (const PipelineSchedule kind : kKinds) {
    for (const int stages : kStages) {
      for (const int micro_batches : kMicroBatches) {
        CAPTURE(static_cast<int>(kind), stages, micro_batches);
        what(kind, stages, micro_batches);
      }
    }
  }
}

TEST_CASE("Every micro-batch passes every stage once, backward in order", "[schedule]") {
  for_all([](PipelineSchedule kind, int stages, int micro_batches) {
    for (int s = 0; s < stages; ++s) {
      std::map<Action, std::vector<int>> seen;
      for (const Instruction& i : make_schedule(kind, s, stages, micro_batches)) {
        seen[i.action].push_back(i.micro_batch);
      }
      std::vector<int> all(static_cast<std::size_t>(micro_batches));
      for (int m = 0; m < micro_batches; ++m) all[static_cast<std::size_t>(m)] = m;
      const std::vector<int> none;
      CHECK(seen[Action::forward] == all);
      CHECK(seen[Action::backward] == all);
      CHECK(seen[Action::receive_activation] == (s == 0 ? none : all));
      CHECK(seen[Action::send_gradient] == (s == 0 ? none : all));
      CHECK(seen[Action::send_activation] == (s == stages - 1 ? none : all));
      CHECK(seen[Action::receive_gradient] == (s == stages - 1 ? none : all));
    }
  });
}

TEST_CASE("Messages stand next to the pass that needs or makes them", "[schedule]") {
  for_all([](PipelineSchedule kind, int stages, int micro_batches) {
    for (int s = 0; s < stages; ++s) {
      std::map<std::pair<Action, int>, std::size_t> at;
      const std::vector<Instruction> program = make_schedule(kind, s, stages, micro_batches);
      for (std::size_t i = 0; i < program.size(); ++i) {
        at[{program[i].action, program[i].micro_batch}] = i;
      }
      for (int m = 0; m < micro_batches; ++m) {
        const std::size_t forward = at[{Action::forward, m}];
        const std::size_t backward = at[{Action::backward, m}];
        CHECK(forward < backward);
        if (s > 0) CHECK(at[{Action::receive_activation, m}] + 1 == forward);
        if (s > 0) CHECK(at[{Action::send_gradient, m}] == backward + 1);
        if (s < stages - 1) CHECK(at[{Action::send_activation, m}] == forward + 1);
        if (s < stages - 1) CHECK(at[{Action::receive_gradient, m}] + 1 == backward);
      }
    }
  });
}

TEST_CASE("A stage holds as many micro-batches as promised, each in its slot", "[schedule]") {
  for_all([](PipelineSchedule kind, int stages, int micro_batches) {
    for (int s = 0; s < stages; ++s) {
      const int promised =
          kind == PipelineSchedule::gpipe ? micro_batches : std::min(micro_batches, stages - s);
      CHECK(slots_needed(kind, s, stages, micro_batches) == promised);
      std::map<int, int> slot_of;  // of living micro-batches
      std::set<int> used;
      std::size_t most = 0;
      for (const Instruction& i : make_schedule(kind, s, stages, micro_batches)) {
        CHECK(i.slot >= 0);
        CHECK(i.slot < promised);
        if (i.action == Action::forward) {
          CHECK(used.insert(i.slot).second);
          slot_of[i.micro_batch] = i.slot;
        } else if (slot_of.count(i.micro_batch) == 1) {
          CHECK(slot_of[i.micro_batch] == i.slot);
        }
        if (i.action == Action::receive_activation) CHECK(used.count(i.slot) == 0);
        most = std::max(most, slot_of.size());
        if (i.action == Action::backward) {
          used.erase(i.slot);
          slot_of.erase(i.micro_batch);
        }
      }
      CHECK(most == static_cast<std::size_t>(promised));
      CHECK(slot_of.empty());
    }
  });
}

TEST_CASE("No schedule deadlocks, also when only one message fits into a link", "[schedule]") {
  for (const int capacity : {1, 2, kUnbounded}) {
    CAPTURE(capacity);
    for_all([&](PipelineSchedule kind, int stages, int micro_batches) {
      Simulator simulator(kind, stages, micro_batches, capacity);
      CHECK(simulator.run());
      CHECK(simulator.links_are_empty());
    });
  }
}

TEST_CASE("With a boundary's message buffers no schedule deadlocks or waits for one",
          "[schedule]") {
  for (int in_flight = 1; in_flight <= kMostInFlight; ++in_flight)
    for (const PipelineSchedule kind : kKinds)
      for (const int stages : {2, 3, 8})
        for (const int micro_batches : {1, 4, in_flight, in_flight + 3, 2 * in_flight + 5}) {
          if (kind == PipelineSchedule::gpipe && in_flight > 1) continue;
          CAPTURE(static_cast<int>(kind), stages, micro_batches, in_flight);
          const int buffers = message_buffers(kind, micro_batches, in_flight);
          Simulator ideal(kind, stages, micro_batches, kUnbounded, 1, 2, in_flight);
          REQUIRE(ideal.run());
          // A message takes a buffer at one end at least until it is received.
          for (const int capacity : {buffers, buffers + 1, 2 * buffers}) {
            Simulator simulator(kind, stages, micro_batches, capacity, 1, 2, in_flight);
            CHECK(simulator.run());
            CHECK(simulator.links_are_empty());
            if (kind != PipelineSchedule::gpipe) CHECK(simulator.makespan() == ideal.makespan());
          }
        }
}

TEST_CASE("The simulator finds the deadlock of too few buffers", "[schedule]") {
  // 65 forwards ahead fit no longer into 16 buffers at each of two ends.
  constexpr auto kind = PipelineSchedule::one_forward_one_backward;
  CHECK(Simulator(kind, 2, 128, 2 * 16, 1, 1, 64).run());
  CHECK_FALSE(Simulator(kind, 2, 128, 2 * 16, 1, 1, 65).run());
}

TEST_CASE("Idle time is the ideal (K - 1) / (M + K - 1)", "[schedule]") {
  for (const double backward_cost : {1.0, 2.0}) {
    for_all([&](PipelineSchedule kind, int stages, int micro_batches) {
      Simulator simulator(kind, stages, micro_batches, kUnbounded, 1, backward_cost);
      REQUIRE(simulator.run());
      const double work = micro_batches * (1 + backward_cost);
      CHECK(1 - work / simulator.makespan() ==
            Approx(bubble_fraction(stages, micro_batches)).margin(1e-12));
      CHECK(bubble_fraction(stages, micro_batches) ==
            Approx(static_cast<double>(stages - 1) / (micro_batches + stages - 1)));
    });
  }
}

TEST_CASE("1F1B of the third of four stages is the textbook's", "[schedule]") {
  using enum Action;
  const std::vector<Instruction> expected = {
      {receive_activation, 0, 0}, {forward, 0, 0},  {send_activation, 0, 0},
      {receive_activation, 1, 1}, {forward, 1, 1},  {send_activation, 1, 1},
      {receive_gradient, 0, 0},   {backward, 0, 0}, {send_gradient, 0, 0},
      {receive_activation, 2, 0}, {forward, 2, 0},  {send_activation, 2, 0},
      {receive_gradient, 1, 1},   {backward, 1, 1}, {send_gradient, 1, 1},
      {receive_gradient, 2, 0},   {backward, 2, 0}, {send_gradient, 2, 0}};
  CHECK(make_schedule(PipelineSchedule::one_forward_one_backward, 2, 4, 3) == expected);
}

TEST_CASE("Impossible layouts are refused", "[schedule]") {
  for (const PipelineSchedule kind : kKinds) {
    CHECK_THROWS_AS(make_schedule(kind, 2, 2, 1), InternalError);
    CHECK_THROWS_AS(make_schedule(kind, -1, 2, 1), InternalError);
    CHECK_THROWS_AS(make_schedule(kind, 0, 2, 0), InternalError);
  }
  CHECK_THROWS_AS(bubble_fraction(0, 1), InternalError);
}

}  // namespace
}  // namespace deltapipe
