// SPDX-License-Identifier: BSD-3-Clause
// AQ-SGD (arXiv 2206.01299): both ends keep a memory m(s) of each sample s, and later visits send
// the change against it,
//
//   first visit    x_hat = what first_visit_format() makes of x      m(s) := x_hat
//   later visits   x_hat = m(s) + Q(x - m(s))                        m(s) := x_hat
//
// The receiver computes with x_hat in fp32. What is stored is rounded to the storage's precision;
// that rounding is part of the next change. With prediction x_hat = p(s) + Q(x - p(s)), where p(s)
// is a linear map of m(s) (drift_prediction.hpp).
//
// NaN is sent as no change (a first visit: 0), infinities as the largest code or number; neither
// counts into scales.
#include <memory>

#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/algorithms/first_visit.hpp"
#include "core/codec/prediction/drift_prediction.hpp"
#include "core/codec/rows/quantized_rows.hpp"

namespace deltapipe::codec {

namespace {

RowFormats formats_of(const CodecSettings& settings, int channels) {
  RowFormats formats = RowFormats::all(code_format(settings, channels));
  const bool from_zeros = settings.first_visit == FirstVisit::zero;
  if (!from_zeros) formats.format[kFirstVisit] = first_visit_format(settings, channels);
  RowFormat& change = formats.format[kLaterVisit];
  change.uses_memory = true;
  // Rows of activations differ in size, and the next layer normalises them. Gradients count
  // unchanged.
  change.is_relative = !from_zeros;
  for (int f = 0; f < RowFormats::kCount; ++f) formats.format[f].table = f;
  return formats;
}

/// Rows of memories, one after the other, and which rows have one; zeros for the others.
template <class M>
struct LoadMemories {
  RowArguments a;
  RowFormats formats;
  float* m_NC;
  std::uint8_t* known_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const SampleEntry& sample = a.samples[index / a.tokens];
    const RowBuffers buffers = RowBuffers::of(team, a.channels);
    const MemoryRow record = row_of(a, sample, index);
    const bool known =
        formats.format[sample.format].uses_memory && index % a.tokens < sample.tokens;
    float* row = m_NC + static_cast<std::size_t>(index) * a.channels;
    if (known)
      load_scaled<M>(team, record, row, buffers.codes);
    else
      NoMemory::load(team, record, row, buffers.codes);
    std::uint8_t* knowns = known_N;
    row_once(team, [=]() { knowns[index] = known ? 1 : 0; });
  }
};

template <MemoryStorage storage>
class AqsgdCodec final : public QuantizedCodec<Memory<storage>> {
  using Base = QuantizedCodec<Memory<storage>>;

 public:
  AqsgdCodec(const CodecSettings& settings, const CodecShape& shape)
      : Base(shape, settings_hash(settings, shape, storage, 2),
             formats_of(settings, shape.channels)),
        record_bytes_(record_bytes_of<Memory<storage>>(shape)) {
    if (settings.prediction == Prediction::linear)
      prediction_ = std::make_unique<DriftPrediction>(shape, settings.prediction_interval);
  }

  RecordLayout record() const override { return {.shared_bytes = record_bytes_}; }
  std::size_t max_payload_bytes() const override {
    return Base::max_payload_bytes() + (prediction_ ? prediction_->most_bytes() : 0);
  }
  std::size_t memory_bytes() const override {
    return Base::memory_bytes() + (prediction_ ? prediction_->memory_bytes() : 0);
  }
  bool waits() const override { return prediction_ || Base::waits(); }
  void write_state(StateWriter& writer, const ExecSpace& exec) const override {
    if (prediction_) prediction_->write_state(writer, exec);
  }
  void read_state(StateReader& reader, const ExecSpace& exec) override {
    if (prediction_) prediction_->read_state(reader, exec);
  }

 private:
  /// Both ends know which samples have a memory.
  bool predicts(const Crossing& crossing) const {
    bool any = false;
    for (std::size_t b = 0; prediction_ && b < crossing.samples(); ++b)
      any = any || (crossing.visits[b] > 0 && crossing.tokens[b] > 0);
    return any;
  }
  std::size_t trailer_bytes(const Crossing& crossing) const override {
    return predicts(crossing) ? prediction_->most_bytes(crossing) : 0;
  }

  std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                         std::size_t max_bytes) override {
    const Crossing& crossing = this->crossing();
    if (!predicts(crossing)) return Base::run_encode(exec, arguments, max_bytes);
    const int rows = arguments.sample_count * arguments.tokens;
    load_memories(exec, arguments);
    RowArguments from_starts = arguments;
    from_starts.starts = prediction_->choose(exec, crossing, arguments.x, rows);
    const std::size_t end =
        Base::run_encode(exec, from_starts, max_bytes - trailer_bytes(crossing));
    prediction_->learn(exec, arguments.x, rows);
    return prediction_->append(exec, arguments.payload, end);
  }

  std::size_t expected_bytes(const ExecSpace& exec, const Crossing& crossing,
                             const RowArguments& arguments, std::size_t bytes) override {
    if (!predicts(crossing)) return Base::expected_bytes(exec, crossing, arguments, bytes);
    const std::size_t end = prediction_->read(exec, crossing, arguments.payload, bytes);
    return Base::expected_bytes(exec, crossing, arguments, bytes - end) + end;
  }

  void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) override {
    RowArguments from_starts = arguments;
    if (predicts(this->crossing()) && prediction_->predicts()) {
      load_memories(exec, arguments);
      from_starts.starts =
          prediction_->predict(exec, arguments.payload, arguments.sample_count * arguments.tokens);
    }
    Base::run_decode(exec, rows, from_starts);
  }

  std::uint32_t shared_state() const override {
    return prediction_ && prediction_->has_map() ? 1 : 0;
  }
  CodecStatistics take_more_statistics() override {
    CodecStatistics statistics;
    if (prediction_) prediction_->add_statistics(statistics);
    return statistics;
  }

  void load_memories(const ExecSpace& exec, const RowArguments& arguments) {
    for_rows(
        "deltapipe::AqsgdCodec::load_memories",
        row_policy(exec, arguments.sample_count * arguments.tokens,
                   RowBuffers::bytes(arguments.channels)),
        LoadMemories<Memory<storage>>{arguments, this->formats(), prediction_->memories().data(),
                                      prediction_->known().data()});
  }

  int format_of(const Crossing& crossing, std::size_t b) const override {
    return crossing.visits[b] == 0 ? kFirstVisit : kLaterVisit;
  }

  std::unique_ptr<DriftPrediction> prediction_;
  const std::size_t record_bytes_;
};

}  // namespace

std::unique_ptr<Codec> make_aqsgd(const CodecSettings& settings, const CodecShape& shape,
                                  MemoryStorage storage) {
  return with_storage(storage, [&]<MemoryStorage stored>() -> std::unique_ptr<Codec> {
    return std::make_unique<AqsgdCodec<stored>>(settings, shape);
  });
}

}  // namespace deltapipe::codec
