// Tied embeddings over more than one stage: the token table lives on the last stage, and the first
// one borrows the rows of a step's tokens and returns their gradients.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "app/boundary.hpp"
#include "app/token_table.hpp"
#include "comm/process_grid.hpp"
#include "models/stage.hpp"

namespace deltapipe {

/// Sends rows in groups of micro-batches, so that only the first rows and the last gradients are
/// waited for: rows before the group's first forward pass, gradients after the last backward pass
/// that adds to them. Groups double in size away from the moment that waits, which takes a
/// message for each power of two of micro-batches.
class TokenExchange {
 public:
  struct Shape {
    int vocabulary = 0;
    int rows_per_micro_batch = 0;  ///< B * T
    int micro_batches = 0;         ///< M
    int channels = 0;
    bool training = true;
  };

  /// On the first and the last stage of a grid; the other one builds its end at the same time.
  /// Over emulated links `link` is the one from this stage to the other.
  TokenExchange(const Settings& settings, const Shape& shape, const ProcessGrid& grid,
                ProgressThread& progress, std::shared_ptr<EmulatedLink> link);

  /// Last stage, before a step: sends all rows of the step.
  void send_rows(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                 const MatrixRef<const float>& table_VC);
  /// First stage, before the forward pass of a micro-batch: takes what it is the first to need.
  void receive_rows(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                    int micro_batch, Stage<float>& stage);
  /// First stage, after the backward pass of a micro-batch: sends what it completes.
  void send_gradients(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                      int micro_batch, Stage<float>& stage);
  /// Last stage, after its backward passes: the gradients of a step's rows, by last use. [U, C]
  MatrixRef<float> receive_gradients(const ExecSpace& exec, const Crossing& step,
                                     const TokenIndex& index);

  ChannelStatistics take_sent() { return sender_->take_statistics(); }
  ChannelStatistics take_received() { return receiver_->take_statistics(); }
  bool sends() const { return sender_.has_value(); }
  bool receives() const { return receiver_.has_value(); }

 private:
  void set_groups(int micro_batches);
  Crossing crossing(const Crossing& step, MessageKind kind, int first_micro_batch,
                    std::span<const std::int32_t> tokens);

  int boundary_;  ///< K - 1, the one that joins the last stage to the first
  std::optional<BoundarySender> sender_;
  std::optional<BoundaryReceiver> receiver_;
  Matrix<float> rows_UC_;  ///< last stage: rows to send, gradients received
  int micro_batches_ = 0;  ///< of the step, for which the groups are
  std::vector<int> row_groups_, gradient_groups_;
  std::vector<std::uint64_t> ids_;
  std::vector<int> lengths_;
};

/// Where groups of rows end, in micro-batches: 1, 2, 4 ... M.
std::vector<int> row_groups(int micro_batches);
/// Where groups of gradients end: ... M - 2, M - 1, M.
std::vector<int> gradient_groups(int micro_batches);

}  // namespace deltapipe
