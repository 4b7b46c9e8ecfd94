// SPDX-License-Identifier: BSD-3-Clause
// Everything runs on the execution space instance that it was given, and nothing waits but where
// the host reads. tests/style/instances.py looks for the same in the sources.
#include "core/base/parallel/execution.hpp"

#include <catch2/catch.hpp>

#include "comm/pipeline/token_index.hpp"
#include "core/cache/io_thread.hpp"
#include "core/codec/codec.hpp"
#include "core/codec/settings_check.hpp"
#include "core/kernels/content_hash.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/optimizer.hpp"
#include "support/device_values.hpp"
#include "support/instance_watch.hpp"
#include "support/text_batch.hpp"
#include "tests/unit/core/cache/cache_support.hpp"

using namespace deltapipe;
using deltapipe::test::another_instance;
using deltapipe::test::InstanceWatch;
using deltapipe::test::to_device;

namespace {

const std::vector<std::string> kNone;

/// Work on other instances meanwhile.
template <class Work>
std::vector<std::string> strays_of(const ExecSpace& exec, const Work& work) {
  InstanceWatch watch({exec});
  work();
  watch.end();
  return watch.strays();
}

/// A codec of every kind, with what changes its kernels.
std::vector<CodecSettings> all_codecs() {
  std::vector<CodecSettings> all;
  const auto add = [&all](CodecSettings settings) {
    settings.warmup_epochs = all.size() % 2 == 0 ? 0 : 1;
    if (!contradiction_in(settings)) all.push_back(settings);
  };
  const auto add_feedback = [&add](CodecSettings settings) {
    settings.error_feedback = true;
    for (const auto kind : {FeedbackKind::ef, FeedbackKind::ef21, FeedbackKind::mixed}) {
      settings.feedback_kind = kind;
      add(settings);
    }
  };
  CodecSettings settings;
  for (const auto kind : {CodecKind::none, CodecKind::fp16, CodecKind::bf16}) {
    settings.kind = kind;
    add(settings);
  }
  for (const auto kind : {CodecKind::directq, CodecKind::aqsgd})
    for (const auto scale : {ScaleKind::channel, ScaleKind::tile}) {
      settings.kind = kind;
      settings.scale = scale;
      settings.rms_step = 0;
      settings.entropy_coding = false;
      add(settings);
      if (kind == CodecKind::directq) add_feedback(settings);
      settings.entropy_coding = true;
      for (const double rms_step : {0.0, 1.0}) {
        settings.rms_step = rms_step;
        add(settings);
      }
      settings.scale = ScaleKind::message;
      add(settings);
    }
  settings = {};
  for (const auto values : {ChosenValues::fp32, ChosenValues::fp16, ChosenValues::codes}) {
    settings.values = values;
    settings.kind = CodecKind::topk;
    add(settings);
    add_feedback(settings);
    settings.kind = CodecKind::aqsgd_topk;
    add(settings);
  }
  return all;
}

/// Three visits, the first one in the warm-up if there is one.
void cross(Codec& codec, const ExecSpace& exec, const Activations& x_BTC,
           const DeviceBytes& payload, const MemoryRecords& sender, const MemoryRecords& receiver) {
  Crossing crossing;
  crossing.sample_ids = {4, 7};
  crossing.tokens = {5, 3};
  for (std::uint32_t visit = 0; visit < 3; ++visit) {
    crossing.step = visit;
    crossing.epoch = visit;
    crossing.visits = {visit, visit};
    const std::size_t bytes = codec.encode(exec, crossing, x_BTC, sender, payload);
    codec.decode(exec, crossing, payload, bytes, receiver, x_BTC);
  }
  codec.take_statistics(exec);
}

Gpt2Config small_config() {
  Gpt2Config config;
  config.n_layer = 2;
  config.n_head = 3;
  config.n_embd = 21;
  config.n_inner = 50;
  config.n_positions = 16;
  config.vocabulary_size = 37;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0.1;
  return config;
}

}  // namespace

TEST_CASE("The watch notices the default instance", "[execution]") {
#if DELTAPIPE_TEST_INSTANCES_BLOCK
  const ExecSpace exec = another_instance();
  deltapipe::test::BusyInstance patient(exec, std::chrono::milliseconds(50));
  patient.release();
  CHECK_FALSE(patient.ended_by_itself());
  // A shorter patience than the watch has, for mistakes made on purpose.
  const auto is_noticed = [&](const auto& mistake) {
    deltapipe::test::BusyInstance busy(ExecSpace(), std::chrono::milliseconds(300));
    mistake();
    busy.release();
    return busy.ended_by_itself();
  };
  const Vector<float> a("test::a", 8), b("test::b", 8);
  CHECK_FALSE(is_noticed([&] { Kokkos::deep_copy(exec, a, b); }));
  CHECK_FALSE(is_noticed([&] { exec.fence(); }));
  CHECK(is_noticed([&] { Kokkos::deep_copy(a, b); }));
  CHECK(is_noticed([&] { Kokkos::deep_copy(a, 1.0f); }));
  CHECK(is_noticed([&] { const Vector<float> c("test::c", 8); }));
  CHECK(is_noticed([&] { Kokkos::fence(); }));
  CHECK(is_noticed([&] {
    Kokkos::parallel_for(
        "test::stray", Kokkos::RangePolicy<ExecSpace>(0, 8), DELTAPIPE_LAMBDA(int i) { a(i) = 1; });
  }));
#endif
}

TEST_CASE("A rank's instances", "[execution]") {
  const ExecutionInstances instances = make_execution_instances();
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP)
  CHECK_FALSE(is_same_instance(instances.compute, instances.codec));
  CHECK_FALSE(is_same_instance(instances.compute, instances.copy));
  CHECK_FALSE(is_same_instance(instances.codec, instances.copy));
#elif KOKKOS_VERSION >= 40000
  for (const ExecSpace& instance : {instances.compute, instances.codec, instances.copy})
    CHECK(is_same_instance(instance, ExecSpace()));
  CHECK_FALSE(is_same_instance(another_instance(), ExecSpace()));
#else
  CHECK(instances.compute.concurrency() == ExecSpace().concurrency());
#endif
}

TEST_CASE("An instance is ordered after another one", "[execution]") {
  const Vector<int> value("test::value", 1);
  const ExecSpace earlier = another_instance(), later = another_instance();
  Kokkos::parallel_for(
      "test::earlier", Kokkos::RangePolicy<ExecSpace>(earlier, 0, 1), DELTAPIPE_LAMBDA(int) {
        // Long enough that the other kernel would come first.
        unsigned hash = 1;
        for (int i = 0; i < 1000000; ++i) hash = hash * 1664525u + 1013904223u;
        value(0) = hash == 0 ? 0 : 1;
      });
  order_after(later, earlier);
  Kokkos::parallel_for(
      "test::later", Kokkos::RangePolicy<ExecSpace>(later, 0, 1),
      DELTAPIPE_LAMBDA(int) { value(0) *= 2; });
  later.fence();
  CHECK(deltapipe::test::to_host(value) == std::vector<int>{2});
#if DELTAPIPE_TEST_INSTANCES_BLOCK
  deltapipe::test::BusyInstance busy(earlier, std::chrono::milliseconds(100));
  order_after(earlier, earlier);  // queues nothing, waits for nothing
  CHECK_FALSE(busy.ended_by_itself());
  order_after(later, earlier);
  busy.release();
  CHECK(busy.ended_by_itself());
#endif
}

TEST_CASE("Codecs run on the instance that they are given", "[execution][codec]") {
  const ExecSpace exec = another_instance();
  const CodecShape shape{2, 5, 77};
  for (const CodecSettings& settings : all_codecs()) {
    CAPTURE(kCodecKindNames[static_cast<std::size_t>(settings.kind)], settings.scale,
            settings.error_feedback, settings.warmup_epochs);
    const auto codec = make_codec(settings, shape, MemoryStorage::bits4);
    codec->measure_errors(true);
    std::vector<float> values;
    for (int i = 0; i < 10 * shape.channels; ++i) values.push_back(0.01f * static_cast<float>(i));
    const Activations x_BTC = to_device(values, shape.channels);
    const DeviceBytes payload("test::payload", codec->max_payload_bytes());
    const auto records = [&](BoundarySide side) {
      const std::size_t bytes = codec->record().bytes(side);
      return MemoryRecords{DeviceBytes("test::pool", 2 * bytes), {0, bytes}};
    };
    const MemoryRecords sender = records(BoundarySide::sender);
    const MemoryRecords receiver = records(BoundarySide::receiver);
    CHECK(strays_of(exec, [&] { cross(*codec, exec, x_BTC, payload, sender, receiver); }) == kNone);
  }
}

TEST_CASE("A GPT-2's passes and its optimizer run on the instance that they are given",
          "[execution][models]") {
  const ExecSpace exec = another_instance();
  const Gpt2Config config = small_config();
  const auto products = GENERATE(ProductPrecision::fp32, ProductPrecision::bf16);
  Gpt2Stage<float> stage(config, {0, 2, true, true}, true, {}, products);
  stage.reserve({2, 3, 1, 2, 6, true, GENERATE(false, true), products});
  initialise_weights(config, 1, stage.parameters());
  Optimizer<float> optimizer({}, stage.parameters());
  TokenIndex index(config.vocabulary_size, 6, 1);
  const std::vector<std::int32_t> token_values = {1, 2, 3, 1, 5, 6};
  const auto tokens = to_device(token_values);
  const auto ids = to_device(std::vector<std::uint64_t>{1, 2});
  const MicroBatch batch = test::text_batch(2, 3, ids, tokens, tokens);
  const Matrix<float> table("test::table", config.vocabulary_size, config.n_embd);
  const Matrix<float> rows("test::rows", 6, config.n_embd);
  int fences = 0;
  {
    InstanceWatch watch({exec});
    index.clear();
    index.add(token_values, 0);
    index.finish(exec);
    for (const bool training : {true, false}) stage.forward(exec, batch, 0, training, false);
    for (const bool accumulate : {false, true})
      stage.backward(exec, batch, 0, accumulate, [](int) {});
    stage.token_embedding()->embedding_gradient(exec, index.first_of_U(), index.row_of(),
                                                index.size());
    stage.logits(exec, 0, 4);
    const MatrixRef<float> rows_UC = rows_of<float>(rows, 0, index.size());
    gather_rows<float>(exec, table, index.token_U(), rows_UC);
    gather_rows<float>(exec, stage.parameters().table(stage.token_embedding()->wte()),
                       index.token_U(), rows_UC);
    add_rows<float>(exec, index.token_by_last_use_U(), rows_UC, table);
    fences = watch.fences();
    optimizer.squared_norms(exec);
    optimizer.update(exec, 0, 1e-3, 1);
    watch.end();
    CHECK(watch.strays() == kNone);
#if KOKKOS_VERSION >= 40000
    CHECK(watch.fences() == 1);  // the host reads the norms
#endif
  }
  CHECK(fences == 0);
  exec.fence();
}

TEST_CASE("A GPT-2's text goes on on the instance that it is given", "[execution][models][text]") {
  const ExecSpace exec = another_instance();
  const Gpt2Config config = small_config();
  Gpt2Stage<float> stage(config, {0, 2, true, true}, false);
  StageCapacity capacity;
  capacity.tokens = 5;
  capacity.embedding_rows = 5;
  capacity.training = false;
  capacity.keeps_text = true;
  stage.reserve(capacity);
  initialise_weights(config, 1, stage.parameters());
  const auto tokens = to_device(std::vector<std::int32_t>{1, 2, 3});
  const auto ids = to_device(std::vector<std::uint64_t>{1});
  int fences = 0;
  {
    InstanceWatch watch({exec});
    stage.continue_text(exec, test::text_batch(1, 3, ids, tokens, tokens), 0, 0);
    stage.continue_text(exec, test::text_batch(1, 1, ids, tokens, tokens), 3, 0);
    stage.logits(exec, 0, 0);
    watch.end();
    fences = watch.fences();
    CHECK(watch.strays() == kNone);
  }
  CHECK(fences == 0);
  exec.fence();
}

TEST_CASE("A cache moves records on its instance, hashes run on theirs", "[execution][cache]") {
  const cache_test::TemporaryDirectory directory;
  CacheIoThread io;
  const ExecSpace copies = another_instance(), codec = another_instance();
  const CacheShape shape{
      .samples = 6, .record_bytes = 192, .max_samples_in_flight = 2, .prefetch_samples = 2};
  ActivationCache cache(copies, &io, shape, cache_test::identity(), 3 * 192,
                        directory / "cache.h5");
  const Vector<std::uint64_t> offsets("test::offsets", 2), hashes("test::hashes", 2);
  const Vector<std::uint8_t> ones("test::ones", 192);
  Kokkos::deep_copy(ones, std::uint8_t{1});
  MemoryRecords records;
  std::vector<std::uint32_t> visits;
  InstanceWatch watch({copies, codec});
  for (int epoch = 0; epoch < 3; ++epoch)
    for (const cache_test::Ids& ids : {cache_test::Ids{0, 1}, {2, 3}, {4, 5}}) {
      cache.prefetch(ids);
      cache.acquire(ids, records, visits);
      for (const std::uint64_t offset : records.offset_B)
        Kokkos::deep_copy(
            codec, VectorRef<std::uint8_t>(records.pool.data() + offset, shape.record_bytes), ones);
      hash_ranges(codec, records.pool.data(), VectorRef<const std::uint64_t>(offsets),
                  shape.record_bytes, VectorRef<std::uint64_t>(hashes));
      cache.release(codec, ids);
    }
  cache.flush();
  watch.end();
  CHECK(watch.strays() == kNone);
  CHECK(cache.take_statistics().misses > 0);
  CHECK(cache_test::records_of(cache) == cache_test::Bytes(shape.samples * shape.record_bytes, 1));
}
