// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/block_stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

std::size_t elements_of(const BoundaryShape& shape) {
  return static_cast<std::size_t>(shape.tokens) * shape.channels;
}

}  // namespace

template <class Real>
BlockStage<Real>::BlockStage(Build build, const std::set<std::string>& frozen)
    : build_(std::move(build)), parameters_(frozen), parts_(build_(parameters_)) {}

template <class Real>
MemoryLedger BlockStage<Real>::memory(const StageCapacity& capacity) const {
  MemoryLedger ledger;
  const ViewAllocator counting(ledger);
  BlockStage stage(build_, parameters_.frozen());
  stage.compute_as_on_device(as_on_device_);
  stage.parameters_.set_moments(parameters_.moments());
  stage.parameters_.allocate(capacity.training, capacity.products, counting);
  stage.reserve(capacity, counting);
  return ledger;
}

template <class Real>
std::vector<BoundaryShape> BlockStage<Real>::shapes(int tokens) const {
  std::vector<BoundaryShape> shapes = {parts_.input_shape(tokens)};
  for (int i = 0; i < blocks(); ++i) shapes.push_back(block(i).output_shape(shapes.back()));
  return shapes;
}

template <class Real>
int BlockStage<Real>::first_backward_block(const StageCapacity& capacity) const {
  if (!capacity.training) return blocks();
  if (parts_.common) return 0;
  if (parts_.first ? parts_.first->trained() : capacity.input_gradient) return 0;
  int i = 0;
  for (; i < blocks(); ++i) {
    const int bucket = parts_.blocks[i].bucket;
    if (bucket < 0) continue;
    const BucketRange& gradients = parameters_.buckets()[bucket];
    if (gradients.begin < gradients.end) break;
  }
  return i;
}

template <class Real>
void BlockStage<Real>::reserve(const StageCapacity& capacity) {
  DELTAPIPE_ASSERT(parts_.longest == 0 || capacity.tokens <= parts_.longest,
                   "longer samples than positions");
  capacity_ = capacity;
  reserve(capacity, ViewAllocator());
}

template <class Real>
void BlockStage<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  DELTAPIPE_ASSERT(parameters_.products() == capacity.products,
                   "parameters of another precision of products");
  reserve_slots(capacity, memory);
  reserve_saved(capacity, memory);
  WorkspaceSize size;
  require(capacity, size);
  workspace_.reserve(size, capacity, as_on_device_, memory);
  if (parts_.last) parts_.last->reserve(capacity, memory);
  if (capacity.keeps_text) {
    DELTAPIPE_ASSERT(!capacity.training && capacity.samples == 1, "a text is one sample");
    DELTAPIPE_ASSERT(capacity.products == ProductPrecision::fp32,
                     "products of one row are of fp32");
    for (auto& piece : parts_.blocks) piece.block->reserve_text(capacity, memory);
  }
  if (parts_.first) parts_.first->reserve(capacity, memory);
  if (parts_.common) parts_.common->reserve(capacity, memory);
}

template <class Real>
void BlockStage<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  for (const BoundaryShape& shape : shapes(capacity.tokens))
    size.rows = std::max(size.rows, capacity.samples * shape.tokens);
  if (parts_.first) parts_.first->require(capacity, size);
  for (const auto& piece : parts_.blocks) piece.block->require(capacity, size);
  if (parts_.last) parts_.last->require(capacity, size);
}

/// Allocates what crosses between blocks, and its gradient.
template <class Real>
void BlockStage<Real>::reserve_slots(const StageCapacity& capacity, const ViewAllocator& memory) {
  const std::vector<BoundaryShape> shapes = this->shapes(capacity.tokens);
  const BoundaryShape largest = *std::max_element(
      shapes.begin(), shapes.end(),
      [](const auto& a, const auto& b) { return elements_of(a) < elements_of(b); });
  const auto matrix = [&](MemoryUse use, const char* label, const BoundaryShape& shape) {
    return memory.uninitialized<Matrix<Real>>(use, label, capacity.samples * shape.tokens,
                                              shape.channels);
  };
  const int first_backward = first_backward_block(capacity);
  slots_.clear();
  slots_.resize(capacity.slots);
  for (Slot& slot : slots_) {
    for (int i = 0; i <= blocks(); ++i) {
      const bool passes = i > 0 && i <= first_backward && i < blocks() && block(i - 1).in_place() &&
                          shapes[i] == shapes[i - 1];
      slot.x.push_back(passes
                           ? slot.x.back()
                           : matrix(MemoryUse::activations, "deltapipe::BlockStage::x", shapes[i]));
    }
    if (capacity.training && parts_.last)
      slot.gradient =
          matrix(MemoryUse::activations, "deltapipe::BlockStage::headGradient", largest);
  }
  if (capacity.training && !parts_.last)
    gradient_ = matrix(MemoryUse::workspace, "deltapipe::BlockStage::gradient", largest);
}

/// Allocates what blocks keep between passes. Blocks share it where nothing is kept.
template <class Real>
void BlockStage<Real>::reserve_saved(const StageCapacity& capacity, const ViewAllocator& memory) {
  const std::vector<BoundaryShape> shapes = this->shapes(capacity.tokens);
  const bool keeps = capacity.training && !capacity.recompute;
  const int first_backward = first_backward_block(capacity);
  const auto allocate = [&](const SavedTensors& tensors, int rows) {
    Tensors made;
    for (const SavedTensor& t : tensors)
      made.push_back(memory.uninitialized<Matrix<Real>>(MemoryUse::activations, t.label,
                                                        t.rows_of_batch > 0 ? t.rows_of_batch
                                                        : t.rows_of_sample > 0
                                                            ? capacity.samples * t.rows_of_sample
                                                            : rows,
                                                        t.columns));
    return made;
  };
  struct Shared {
    SavedTensors tensors;
    int rows;
    Tensors memory;
  };
  std::vector<Shared> shared;
  const auto share = [&](const SavedTensors& tensors, int rows) {
    for (const Shared& s : shared)
      if (s.tensors == tensors && s.rows == rows) return s.memory;
    shared.push_back({tensors, rows, allocate(tensors, rows)});
    return shared.back().memory;
  };
  for (Slot& slot : slots_)
    for (int i = 0; i < blocks(); ++i) {
      const int rows = capacity.samples * std::max(shapes[i].tokens, shapes[i + 1].tokens);
      const bool own = keeps && i >= first_backward;
      slot.saved.push_back(own ? allocate(block(i).saved(), rows) : share(block(i).saved(), rows));
      slot.postponed.push_back(
          own && capacity.splits_backward ? allocate(block(i).postponed(), rows) : Tensors());
    }
}

template <class Real>
BlockPass<Real> BlockStage<Real>::pass(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                       int block, bool training) const {
  const Slot& s = slots_[slot];
  if (block < 0) return {exec, batch, workspace_, nullptr, nullptr, training};
  const Tensors& postponed = s.postponed[block];
  return {exec,
          batch,
          workspace_,
          s.saved[block].data(),
          postponed.empty() ? nullptr : postponed.data(),
          training};
}

template <class Real>
MatrixRef<Real> BlockStage<Real>::input(int slot, int rows) {
  return narrow(slots_[slot].x.front(), rows, input_shape(capacity_.tokens).channels);
}

template <class Real>
MatrixRef<Real> BlockStage<Real>::output(int slot, int rows) {
  return narrow(slots_[slot].x.back(), rows, output_shape(capacity_.tokens).channels);
}

template <class Real>
MatrixRef<Real> BlockStage<Real>::output_gradient(int slot, int rows) {
  return gradient(slot, rows, output_shape(capacity_.tokens).channels);
}

template <class Real>
MatrixRef<Real> BlockStage<Real>::input_gradient(int slot, int rows) {
  return gradient(slot, rows, input_shape(capacity_.tokens).channels);
}

template <class Real>
void BlockStage<Real>::forward(const ExecSpace& exec, const MicroBatch& batch, int slot,
                               bool training, bool accumulate) {
  DELTAPIPE_ASSERT(batch.samples <= capacity_.samples && batch.tokens <= capacity_.tokens,
                   "micro-batch larger than reserved");
  const std::vector<BoundaryShape> shapes = this->shapes(batch.tokens);
  const BlockPass<Real> end = pass(exec, batch, slot, -1, training);
  if (parts_.first) parts_.first->forward(end, x(slot, 0, batch, shapes[0]));
  for (int i = 0; i < blocks(); ++i) {
    const BlockPass<Real> p = pass(exec, batch, slot, i, training);
    block(i).forward_saved(p, x(slot, i, batch, shapes[i]));
    block(i).forward_output(p, x(slot, i, batch, shapes[i]), x(slot, i + 1, batch, shapes[i + 1]));
  }
  if (!parts_.last) return;
  const MatrixRef<Real> y = x(slot, blocks(), batch, shapes.back());
  parts_.last->forward(end, y, gradient(slot, y.extent_int(0), y.extent_int(1)), accumulate);
}

template <class Real>
void BlockStage<Real>::backward(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                bool accumulate,
                                const typename Stage<Real>::BucketFinal& bucket_final) {
  const auto announce = [&](int bucket) {
    if (bucket_final && bucket >= 0) bucket_final(bucket);
  };
  if (parts_.last)
    for (const int bucket : parts_.last->buckets()) announce(bucket);
  const std::vector<BoundaryShape> shapes = this->shapes(batch.tokens);
  const int first_backward = first_backward_block(capacity_);
  for (int i = blocks() - 1; i >= 0; --i) {
    if (i >= first_backward) {
      const BlockPass<Real> p = pass(exec, batch, slot, i, true);
      const MatrixRef<Real> input = x(slot, i, batch, shapes[i]);
      const BoundaryShape& widest =
          elements_of(shapes[i]) < elements_of(shapes[i + 1]) ? shapes[i + 1] : shapes[i];
      if (capacity_.recompute) block(i).forward_saved(p, input);
      block(i).backward(p, input, gradient(slot, batch.samples * widest.tokens, widest.channels),
                        accumulate);
    }
    announce(parts_.blocks[i].bucket);
  }
  if (!parts_.first) return;
  if (parts_.first->trained())
    parts_.first->backward(pass(exec, batch, slot, -1, true),
                           gradient(slot, batch.samples * shapes[0].tokens, shapes[0].channels),
                           accumulate);
  announce(parts_.first->bucket());
}

template <class Real>
void BlockStage<Real>::backward_parameters(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                           bool accumulate,
                                           const typename Stage<Real>::BucketFinal& bucket_final) {
  const std::vector<BoundaryShape> shapes = this->shapes(batch.tokens);
  int end = static_cast<int>(parameters_.buckets().size());
  for (int i = blocks() - 1; i >= 0; --i) {
    const int bucket = parts_.blocks[i].bucket;
    if (bucket < 0) continue;
    this->finish_buckets(bucket_final, end, bucket + 1);
    const BlockPass<Real> p = pass(exec, batch, slot, i, true);
    if (p.postponed != nullptr)
      block(i).backward_parameters(p, x(slot, i, batch, shapes[i]), accumulate);
    this->finish_buckets(bucket_final, bucket + 1, bucket);
    end = bucket;
  }
  this->finish_buckets(bucket_final, end, 0);
}

template <class Real>
TextContinuation<Real>* BlockStage<Real>::text_continuation() {
  const bool continues =
      (!parts_.first || parts_.first->continues_text()) &&
      std::all_of(parts_.blocks.begin(), parts_.blocks.end(),
                  [](const auto& piece) { return piece.block->continues_text(); });
  return continues ? this : nullptr;
}

template <class Real>
void BlockStage<Real>::continue_text(const ExecSpace& exec, const MicroBatch& batch, int kept,
                                     int slot) {
  DELTAPIPE_ASSERT(capacity_.keeps_text, "reserved without keys and values");
  DELTAPIPE_ASSERT(batch.samples == 1 && kept >= 0 && kept + batch.tokens <= capacity_.tokens,
                   fmt::format("{} + {} tokens", kept, batch.tokens));
  const std::vector<BoundaryShape> shapes = this->shapes(batch.tokens);
  if (parts_.first)
    parts_.first->continue_text(pass(exec, batch, slot, -1, false), kept,
                                x(slot, 0, batch, shapes[0]));
  for (int i = 0; i < blocks(); ++i)
    block(i).continue_text(pass(exec, batch, slot, i, false), kept, x(slot, i, batch, shapes[i]),
                           x(slot, i + 1, batch, shapes[i + 1]));
}

template <class Real>
VectorRef<const Real> BlockStage<Real>::logits(const ExecSpace& exec, int slot, int row) {
  return parts_.last->logits(exec, workspace_, rows_of<Real>(slots_[slot].x.back(), row, 1));
}

template class BlockStage<float>;
template class BlockStage<double>;

}  // namespace deltapipe
