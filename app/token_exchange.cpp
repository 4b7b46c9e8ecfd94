#include "app/token_exchange.hpp"

#include <algorithm>

#include "core/kernels/embedding.hpp"

namespace deltapipe {

namespace {

/// Rows change little from step to step: where activations are compressed, 8 bits of that change
/// are sent. A row's memory is kept exactly.
CodecSettings row_settings(const CodecSettings& forward) {
  if (forward.kind != CodecKind::quantize && forward.kind != CodecKind::delta) return forward;
  CodecSettings settings;
  settings.kind = CodecKind::delta;
  settings.bits = 8;
  settings.first_visit = FirstVisit::fp16;
  return settings;
}

/// Their gradients go back at 8 bits where the boundaries' are quantised.
CodecSettings gradient_settings(const CodecSettings& backward) {
  if (backward.kind != CodecKind::quantize) return backward;
  CodecSettings settings;
  settings.kind = CodecKind::quantize;
  settings.bits = 8;
  return settings;
}

struct Group {
  int begin = 0;  ///< micro-batches [begin, end)
  int end = 0;
};

template <class Wanted>
Group find_group(const std::vector<int>& ends, const Wanted& wanted) {
  Group group;
  for (const int end : ends) {
    group = {group.end, end};
    if (wanted(group)) return group;
  }
  return {};
}

int largest_group(const std::vector<int>& ends) {
  int largest = 0;
  for (int begin = 0; const int end : ends) {
    largest = std::max(largest, end - begin);
    begin = end;
  }
  return largest;
}

MatrixRef<float> row_range(const MatrixRef<float>& matrix, int begin, int end) {
  const std::size_t columns = matrix.extent(1);
  return MatrixRef<float>(matrix.data() + begin * columns, end - begin, columns);
}

}  // namespace

std::vector<int> row_groups(int micro_batches) {
  std::vector<int> ends;
  for (int end = 1; end < micro_batches; end *= 2) ends.push_back(end);
  if (micro_batches > 0) ends.push_back(micro_batches);
  return ends;
}

std::vector<int> gradient_groups(int micro_batches) {
  std::vector<int> ends = row_groups(micro_batches);
  std::reverse(ends.begin(), ends.end());
  for (int& end : ends) end = micro_batches - end;
  if (micro_batches > 0) {
    ends.erase(ends.begin());
    ends.push_back(micro_batches);
  }
  return ends;
}

TokenExchange::TokenExchange(const Settings& settings, const Shape& shape, const ProcessGrid& grid,
                             ProgressThread& progress, std::shared_ptr<EmulatedLink> link)
    : boundary_(grid.stages() - 1) {
  const std::vector<int> groups = row_groups(shape.micro_batches);
  const int rows = std::min(shape.vocabulary, largest_group(groups) * shape.rows_per_micro_batch);
  const int slots = static_cast<int>(groups.size());
  const CodecShape codec_shape{rows, 1, shape.channels};
  const BoundaryCodec row_codec{row_settings(settings.forward), codec_shape, MemoryStorage::fp32,
                                shape.training};
  const BoundaryCodec gradient_codec{gradient_settings(settings.backward), codec_shape,
                                     MemoryStorage::fp32, shape.training};
  BoundaryMemory memory;
  memory.samples = shape.vocabulary;

  const MPI_Comm comm = grid.pipeline_comm();
  const int peer = grid.last() ? 0 : boundary_;
  if (grid.last()) {
    rows_UC_ =
        Matrix<float>(uninitialized("deltapipe::TokenExchange::rows"),
                      std::min(shape.vocabulary, shape.micro_batches * shape.rows_per_micro_batch),
                      shape.channels);
    sender_.emplace(progress, comm, peer, kTokenRowsTag, row_codec, memory, boundary_, true, slots,
                    link, "token rows");
    if (shape.training)
      receiver_.emplace(progress, comm, peer, kTokenGradientsTag, gradient_codec, memory, boundary_,
                        false, slots, "token row gradients");
  } else {
    receiver_.emplace(progress, comm, peer, kTokenRowsTag, row_codec, memory, boundary_, true,
                      slots, "token rows");
    if (shape.training)
      sender_.emplace(progress, comm, peer, kTokenGradientsTag, gradient_codec, memory, boundary_,
                      false, slots, link, "token row gradients");
  }
}

void TokenExchange::set_groups(int micro_batches) {
  if (micro_batches == micro_batches_) return;
  micro_batches_ = micro_batches;
  row_groups_ = row_groups(micro_batches);
  gradient_groups_ = gradient_groups(micro_batches);
}

/// Rows go backward, from the last stage; their gradients forward. Tokens stand for samples.
Crossing TokenExchange::crossing(const Crossing& step, MessageKind kind, int first_micro_batch,
                                 std::span<const std::int32_t> tokens) {
  ids_.assign(tokens.begin(), tokens.end());
  lengths_.assign(tokens.size(), 1);
  Crossing c = step;
  c.kind = kind;
  c.micro_batch = static_cast<std::uint32_t>(first_micro_batch);
  c.boundary = static_cast<std::uint32_t>(boundary_);
  c.backward = kind == MessageKind::tied_rows;
  c.sample_ids = ids_;
  c.tokens = lengths_;
  return c;
}

void TokenExchange::send_rows(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                              const MatrixRef<const float>& table_VC) {
  set_groups(index.micro_batches());
  gather_rows<float>(exec, table_VC, index.token_U(), row_range(rows_UC_, 0, index.size()));
  int first = 0;
  for (const int end : row_groups_) {
    const int a = index.needed_before(first), b = index.needed_before(end);
    if (a < b)
      sender_->send(exec,
                    crossing(step, MessageKind::tied_rows, first, index.tokens().subspan(a, b - a)),
                    row_range(rows_UC_, a, b));
    first = end;
  }
}

void TokenExchange::receive_rows(const ExecSpace& exec, const Crossing& step,
                                 const TokenIndex& index, int micro_batch, Stage<float>& stage) {
  set_groups(index.micro_batches());
  const Group group =
      find_group(row_groups_, [=](const Group& g) { return g.begin == micro_batch; });
  const int a = index.needed_before(group.begin), b = index.needed_before(group.end);
  if (a < b)
    receiver_->receive(
        exec, crossing(step, MessageKind::tied_rows, group.begin, index.tokens().subspan(a, b - a)),
        row_range(stage.table_rows(index.size()), a, b));
}

void TokenExchange::send_gradients(const ExecSpace& exec, const Crossing& step,
                                   const TokenIndex& index, int micro_batch, Stage<float>& stage) {
  const Group group =
      find_group(gradient_groups_, [=](const Group& g) { return g.end == micro_batch + 1; });
  const int a = index.final_before(group.begin), b = index.final_before(group.end);
  if (a < b) {
    const VectorRef<const std::int32_t> first_of_U(index.first_of_U().data() + a, b - a + 1);
    sender_->send(exec,
                  crossing(step, MessageKind::tied_gradients, group.begin,
                           index.tokens_by_last_use().subspan(a, b - a)),
                  stage.table_gradient(exec, first_of_U, index.row_of(), b - a));
  }
}

MatrixRef<float> TokenExchange::receive_gradients(const ExecSpace& exec, const Crossing& step,
                                                  const TokenIndex& index) {
  int first = 0;
  for (const int end : gradient_groups_) {
    const int a = index.final_before(first), b = index.final_before(end);
    if (a < b)
      receiver_->receive(exec,
                         crossing(step, MessageKind::tied_gradients, first,
                                  index.tokens_by_last_use().subspan(a, b - a)),
                         row_range(rows_UC_, a, b));
    first = end;
  }
  return row_range(rows_UC_, 0, index.size());
}

}  // namespace deltapipe
