// SPDX-License-Identifier: BSD-3-Clause
// The warm-up of the papers: the first epochs are sent as fp32. During these, codecs whose ends
// share a memory set m(s) := a(s), and records of errors become zero.
#include <algorithm>
#include <bit>

#include "core/base/error.hpp"
#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/topk/forward_masks.hpp"

namespace deltapipe::codec {

namespace {

class WarmupCodec final : public Codec {
 public:
  WarmupCodec(double epochs, std::unique_ptr<Codec> warmup, std::unique_ptr<Codec> main)
      : epochs_(epochs), warmup_(std::move(warmup)), main_(std::move(main)) {
    DELTAPIPE_ASSERT(warmup_->record() == main_->record() || warmup_->record() == RecordLayout{},
                     "one kind of memory");
    id_ = folded(chained(chained(0, std::bit_cast<std::uint64_t>(epochs_)), main_->id()));
  }

  std::uint32_t id() const override { return id_; }
  std::uint32_t state_hash(const Crossing& crossing) const override {
    const Codec& codec = is_warmup(crossing) ? *warmup_ : *main_;
    return folded(chained(is_warmup(crossing) ? 1 : 0, codec.state_hash(crossing)));
  }
  RecordLayout record() const override { return main_->record(); }
  std::size_t max_payload_bytes() const override {
    return std::max(warmup_->max_payload_bytes(), main_->max_payload_bytes());
  }
  std::size_t memory_bytes() const override {
    return warmup_->memory_bytes() + main_->memory_bytes();
  }
  std::size_t payload_bytes(const Crossing& crossing) const override {
    return is_warmup(crossing) ? warmup_->payload_bytes(as_first(crossing))
                               : main_->payload_bytes(crossing);
  }
  void share(std::shared_ptr<ForwardMasks> masks) override {
    masks_ = masks;
    main_->share(std::move(masks));
  }
  bool waits() const override { return warmup_->waits() || main_->waits(); }
  std::uint64_t values_in_rms_steps(const Crossing& crossing) const override {
    return is_warmup(crossing) ? 0 : main_->values_in_rms_steps(crossing);
  }
  void set_rms_step(double fraction) override { main_->set_rms_step(fraction); }
  std::size_t encode(const ExecSpace& exec, const Crossing& crossing, Activations x_BTC,
                     const MemoryRecords& records, DeviceBytes payload) override {
    if (!is_warmup(crossing)) return main_->encode(exec, crossing, x_BTC, records, payload);
    leave_masks(crossing);
    clear(exec, records, BoundarySide::sender);
    return warmup_->encode(exec, as_first(crossing), x_BTC, records, payload);
  }
  void decode(const ExecSpace& exec, const Crossing& crossing, DeviceBytes payload,
              std::size_t bytes, const MemoryRecords& records, Activations x_BTC) override {
    if (!is_warmup(crossing)) {
      main_->decode(exec, crossing, payload, bytes, records, x_BTC);
      return;
    }
    leave_masks(crossing);
    clear(exec, records, BoundarySide::receiver);
    warmup_->decode(exec, as_first(crossing), payload, bytes, records, x_BTC);
  }
  bool lost_values() const override { return warmup_->lost_values() || main_->lost_values(); }
  void measure_errors(bool on) override {
    warmup_->measure_errors(on);
    main_->measure_errors(on);
  }
  CodecStatistics take_statistics(const ExecSpace& exec) override {
    CodecStatistics sum = warmup_->take_statistics(exec);
    sum += main_->take_statistics(exec);
    return sum;
  }

 private:
  bool is_warmup(const Crossing& crossing) const { return crossing.epoch < epochs_; }
  /// Releases the activations' positions, which gradients in fp32 do not need.
  void leave_masks(const Crossing& crossing) const {
    if (masks_) masks_->release(crossing);
  }
  /// Describes the crossing as a first visit, which sets the memory to what was sent.
  static Crossing as_first(Crossing crossing) {
    std::fill(crossing.visits.begin(), crossing.visits.end(), 0u);
    return crossing;
  }

  /// Zeroes records that the warm-up does not write: fp32 leaves no error.
  void clear(const ExecSpace& exec, const MemoryRecords& records, BoundarySide side) const {
    const std::size_t bytes = main_->record().bytes(side);
    if (warmup_->record().bytes(side) == bytes) return;
    for (const std::uint64_t offset : records.offset_B)
      Kokkos::deep_copy(exec,
                        Kokkos::subview(records.pool, Kokkos::make_pair(offset, offset + bytes)),
                        std::uint8_t{0});
  }

  const double epochs_;
  const std::unique_ptr<Codec> warmup_;
  const std::unique_ptr<Codec> main_;
  std::shared_ptr<ForwardMasks> masks_;
  std::uint32_t id_;
};

}  // namespace

std::unique_ptr<Codec> make_warmup(const CodecSettings& settings, const CodecShape& shape,
                                   MemoryStorage storage, std::unique_ptr<Codec> main) {
  // fp32, with the memories of the codec itself but without its work space.
  CodecSettings fp32;
  if (has_shared_memory(settings)) fp32.kind = CodecKind::aqsgd;
  fp32.first_visit = FirstVisit::fp32;
  return std::make_unique<WarmupCodec>(
      settings.warmup_epochs,
      has_shared_memory(settings) ? make_aqsgd(fp32, shape, storage) : make_dense(fp32, shape),
      std::move(main));
}

}  // namespace deltapipe::codec
