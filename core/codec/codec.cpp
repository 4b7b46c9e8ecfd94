// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/codec.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <string>

#include "core/base/error.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/settings_check.hpp"
#include "core/codec/topk/forward_masks.hpp"

namespace deltapipe {

void register_codecs(CodecRegistry& registry);  // written by core/codec/codecs.cmake

namespace {

class Registry final : public CodecRegistry {
 public:
  Registry() { register_codecs(*this); }
  void add(CodecKind kind, Make make) override {
    DELTAPIPE_ASSERT(makers_.emplace(kind, std::move(make)).second,
                     std::string("two codecs of kind ") + codec::name_of(kind));
  }
  const Make& find(CodecKind kind) const {
    const auto found = makers_.find(kind);
    DELTAPIPE_ASSERT(found != makers_.end(),
                     std::string("no codec of kind ") + codec::name_of(kind));
    return found->second;
  }

 private:
  std::map<CodecKind, Make> makers_;
};

void require(bool in_range, const char* key, double value, const char* remedy) {
  if (in_range) return;
  Mistake mistake;
  mistake.what = std::string("a codec's ") + key + " is out of range";
  mistake.value = std::to_string(value);
  mistake.remedy = remedy;
  throw UserError(mistake);
}

void check(const CodecSettings& settings, const CodecShape& shape) {
  DELTAPIPE_ASSERT(shape.max_samples > 0 && shape.tokens > 0 && shape.channels > 0,
                   "a codec's shape has positive extents");
  DELTAPIPE_ASSERT(static_cast<std::int64_t>(shape.max_samples) * shape.tokens <=
                       std::numeric_limits<int>::max(),
                   "rows are counted in int");
  require(settings.bits >= 2 && settings.bits <= 8, "bits", settings.bits, "use 2 to 8");
  require(settings.tile >= 1, "tile", settings.tile, "use 1 or more channels");
  require(settings.rms_step >= kLeastRmsStep && settings.rms_step <= kLargestRmsStep, "rms_step",
          settings.rms_step, "use 0.01 to 2.5");
  require(
      settings.first_visit_step >= kLeastRmsStep && settings.first_visit_step <= kLargestRmsStep,
      "first_visit_step", settings.first_visit_step, "use 0.01 to 2.5");
  require(settings.prediction_interval >= 1, "prediction_interval", settings.prediction_interval,
          "use 1 or more steps");
  require(settings.warmup_epochs >= 0, "warmup_epochs", settings.warmup_epochs, "use 0 or more");
  if (sends_positions(settings)) {
    require(settings.topk > 0 && settings.topk <= 1, "topk", settings.topk,
            "use a part above 0 and up to 1");
    const double values = static_cast<double>(shape.tokens) * shape.channels;
    require(values < 0x1p31, "number of values in a sample", values,
            "topk counts them in 31 bits: use shorter samples or another codec");
  }
  if (const auto mistake = contradiction_in(settings)) throw UserError(*mistake);
}

/// fp32 until the warm-up ends, then another codec.
class WarmupCodec final : public Codec {
 public:
  WarmupCodec(const CodecSettings& settings, std::unique_ptr<Codec> warmup,
              std::unique_ptr<Codec> main)
      : epochs_(settings.warmup_epochs), warmup_(std::move(warmup)), main_(std::move(main)) {
    DELTAPIPE_ASSERT(warmup_->record() == main_->record() || warmup_->record() == RecordLayout{},
                     "one kind of memory");
    id_ = codec::folded(
        codec::chained(codec::chained(0, std::bit_cast<std::uint64_t>(epochs_)), main_->id()));
  }

  std::uint32_t id() const override { return id_; }
  std::uint32_t state_hash(const Crossing& crossing) const override {
    const Codec& codec = is_warmup(crossing) ? *warmup_ : *main_;
    return codec::folded(codec::chained(is_warmup(crossing) ? 1 : 0, codec.state_hash(crossing)));
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
  void write_state(StateWriter& writer, const ExecSpace& exec) const override {
    main_->write_state(writer, exec);
  }
  void read_state(StateReader& reader, const ExecSpace& exec) override {
    main_->read_state(reader, exec);
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
  /// Gradients have no use for their activations' positions.
  void leave_masks(const Crossing& crossing) const {
    if (masks_) masks_->release(crossing);
  }
  /// A first visit sets the memory to what was sent.
  static Crossing as_first(Crossing crossing) {
    std::fill(crossing.visits.begin(), crossing.visits.end(), 0u);
    return crossing;
  }

  /// fp32 leaves no error: records that the warm-up does not write become zeros.
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

/// EF21 is a change codec whose memories begin as zeros.
CodecSettings from_zeros(CodecSettings settings) {
  settings.first_visit = FirstVisit::zero;
  return settings;
}

/// fp32, with the memories that the codec itself has and none of its work space.
CodecSettings warmup_of(const CodecSettings& settings) {
  CodecSettings warmup;
  warmup.kind = has_shared_memory(settings) ? CodecKind::delta : CodecKind::none;
  warmup.first_visit = FirstVisit::fp32;
  return warmup;
}

std::unique_ptr<Codec> make(const CodecSettings& settings, const CodecShape& shape,
                            MemoryStorage storage) {
  static const Registry registry;
  const bool changes = has_shared_memory(settings) && settings.kind == CodecKind::quantize;
  return registry.find(changes ? CodecKind::delta : settings.kind)(settings, shape, storage);
}

}  // namespace

std::unique_ptr<Codec> make_codec(const CodecSettings& settings, const CodecShape& shape,
                                  MemoryStorage storage) {
  check(settings, shape);
  const bool feedback = has_feedback(settings);
  // Errors of gradients are too small for fp16.
  if (feedback && storage == MemoryStorage::fp16) storage = MemoryStorage::bf16;
  const bool from_zero = feedback && settings.feedback_kind == FeedbackKind::ef21;
  auto main = make(from_zero ? from_zeros(settings) : settings, shape, storage);
  if (settings.warmup_epochs == 0 || settings.kind == CodecKind::none) return main;
  return std::make_unique<WarmupCodec>(settings, make(warmup_of(settings), shape, storage),
                                       std::move(main));
}

}  // namespace deltapipe
