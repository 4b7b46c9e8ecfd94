// SPDX-License-Identifier: BSD-3-Clause
// Memories that move with the views of images.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/codec/codec.hpp"
#include "core/codec/settings_check.hpp"
#include "support/codec_link.hpp"
#include "support/codec_pair.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

constexpr int kChannels = 37;  // not a multiple of a tile or of a lane
constexpr int kSamples = 3;

/// Rows of a ResNet's boundary, and of a ViT's: an odd grid after a row that has no place.
const RowGrid kPixels = {.height = 4, .width = 6, .stride = 1};
const RowGrid kPatches = {.leading = 1, .height = 3, .width = 5, .stride = 2};

CodecShape shape_of(const RowGrid& grid, bool moves) {
  CodecShape shape{2, grid.rows(), kChannels};
  if (moves) shape.grid = grid;
  return shape;
}

CodecSettings settings_of(CodecKind kind) {
  CodecSettings settings;
  settings.kind = kind;
  settings.bits = 3;
  settings.topk = 0.15;
  settings.tile = 24;
  return settings;
}

/// Returns all codecs with records of samples.
std::vector<CodecSettings> codecs_with_records() {
  std::vector<CodecSettings> all;
  for (const auto kind : {CodecKind::aqsgd, CodecKind::aqsgd_topk})
    for (const auto first : {FirstVisit::fp32, FirstVisit::quantize8}) {
      CodecSettings settings = settings_of(kind);
      settings.first_visit = first;
      all.push_back(settings);
    }
  CodecSettings message = settings_of(CodecKind::aqsgd);
  message.scale = ScaleKind::message;
  message.rms_step = 0.7;
  all.push_back(message);
  CodecSettings channel = settings_of(CodecKind::aqsgd);
  channel.scale = ScaleKind::channel;
  channel.rounding = Rounding::stochastic;
  all.push_back(channel);
  for (const auto kind : {CodecKind::topk, CodecKind::directq})
    for (const auto feedback : {FeedbackKind::ef, FeedbackKind::ef21, FeedbackKind::mixed}) {
      CodecSettings settings = settings_of(kind);
      settings.error_feedback = true;
      settings.feedback_kind = feedback;
      if (!contradiction_in(settings)) all.push_back(settings);
    }
  CodecSettings warm = settings_of(CodecKind::aqsgd_topk);
  warm.warmup_epochs = 3;
  all.push_back(warm);
  warm = settings_of(CodecKind::topk);
  warm.error_feedback = true;
  warm.warmup_epochs = 3;
  all.push_back(warm);
  return all;
}

/// Returns the bytes of a row in the parts of a record.
std::vector<std::size_t> row_parts(MemoryStorage storage) {
  constexpr std::size_t kLanes = (kChannels + 7) / 8;
  switch (storage) {
    case MemoryStorage::fp32:
      return {4 * kChannels};
    case MemoryStorage::fp16:
    case MemoryStorage::bf16:
      return {2 * kChannels};
    case MemoryStorage::bits8:
      return {2, 8 * kLanes};
    case MemoryStorage::bits4:
      break;
  }
  return {2, 4 * kLanes};
}

struct Found {
  int nearest;  ///< the image's row at the nearest place
  bool inside;  ///< the view is inside of the image there
};

/// Returns the image's row at row `row` of the view, by the definition of RowView.
Found find(const RowGrid& grid, const RowView& view, int row) {
  if (row < grid.leading) return {row, true};
  const int y = (row - grid.leading) / grid.width + view.dy;
  const int x = (row - grid.leading) % grid.width + view.dx;
  const int near_y = std::clamp(y, 0, grid.height - 1), near_x = std::clamp(x, 0, grid.width - 1);
  return {grid.leading + near_y * grid.width + near_x, near_y == y && near_x == x};
}

/// Returns the view that shows the image to a view, where they overlap.
RowView inverse_of(const RowView& view) {
  return {-view.dy, -view.dx};
}

/// Records in the image's frame that the test moves on the host by the formula. Outside of the
/// image, memories have the nearest rows and errors have zeros.
class Frame {
 public:
  Frame(const RowGrid& grid, MemoryStorage storage, std::size_t bytes, bool is_memory)
      : grid_(grid), parts_(row_parts(storage)), record_(bytes, 0), is_memory_(is_memory) {}

  Bytes view(const RowView& view) const {
    Bytes seen(record_.size(), 0);
    for (int row = 0; row < grid_.rows(); ++row)
      if (const Found found = find(grid_, view, row); found.inside || is_memory_)
        copy(record_, found.nearest, seen, row);
    return seen;
  }
  void keep(const RowView& view, const Bytes& seen) {
    for (int row = 0; row < grid_.rows(); ++row) {
      const Found there = find(grid_, inverse_of(view), row);
      if (there.inside || (is_first_ && is_memory_)) copy(seen, there.nearest, record_, row);
    }
    is_first_ = false;
  }
  const Bytes& record() const { return record_; }

 private:
  void copy(const Bytes& from, int from_row, Bytes& to, int to_row) const {
    std::size_t part = 0;
    for (const std::size_t bytes : parts_) {
      std::memcpy(to.data() + part + to_row * bytes, from.data() + part + from_row * bytes, bytes);
      part += bytes * grid_.rows();
    }
  }

  RowGrid grid_;
  std::vector<std::size_t> parts_;
  Bytes record_;
  bool is_memory_;
  bool is_first_ = true;
};

/// Replaces a record of the link.
void put(const DeviceBytes& pool, std::uint64_t id, const Bytes& record) {
  const auto host = Kokkos::create_mirror_view(pool);
  Kokkos::deep_copy(host, pool);
  std::copy(record.begin(), record.end(), host.data() + id * record.size());
  Kokkos::deep_copy(pool, host);
}

/// Returns crops, none, and a view wholly outside of the image.
RowView view_of(const RowGrid& grid, std::uint64_t id, int step) {
  std::mt19937 random(static_cast<unsigned>(17 * step + static_cast<int>(id)));
  if ((step + static_cast<int>(id)) % 7 == 6) return {grid.height, 0};
  const auto offset = [&] { return static_cast<int>(random() % 5) - 2; };
  const int dy = offset(), dx = offset();
  return {dy, dx};
}

Floats noise(std::size_t count, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<int> full(const RowGrid& grid, std::size_t samples) {
  return std::vector<int>(samples, grid.rows());
}

}  // namespace

TEST_CASE("moved memories equal those that the codec keeps of rows moved by hand",
          "[codec][moved]") {
  const auto storage = GENERATE(MemoryStorage::fp32, MemoryStorage::fp16, MemoryStorage::bf16,
                                MemoryStorage::bits8, MemoryStorage::bits4);
  for (const RowGrid& grid : {kPixels, kPatches})
    for (const CodecSettings& settings : codecs_with_records()) {
      CAPTURE(static_cast<int>(storage), static_cast<int>(settings.kind), settings.error_feedback,
              static_cast<int>(settings.feedback_kind), grid.leading);
      CodecLink moved(settings, shape_of(grid, true), storage, kSamples);
      CodecLink plain(settings, shape_of(grid, false), storage, kSamples);
      const RecordLayout layout = plain.sender->record();
      REQUIRE(moved.sender->record() == layout);
      const std::size_t near_bytes = layout.bytes(BoundarySide::sender);
      const std::size_t far_bytes = layout.bytes(BoundarySide::receiver);
      // Errors of gradients are kept in bf16 in place of fp16.
      const auto kept =
          settings.error_feedback && storage == MemoryStorage::fp16 ? MemoryStorage::bf16 : storage;
      std::map<std::uint64_t, Frame> near, far;
      for (int step = 0; step < 12; ++step) {
        std::vector<std::uint64_t> ids = {static_cast<std::uint64_t>(step % kSamples)};
        if (step % 4 != 3) ids.push_back(static_cast<std::uint64_t>((step + 1) % kSamples));
        std::vector<RowView> views;
        for (const std::uint64_t id : ids) views.push_back(view_of(grid, id, step));
        for (std::size_t b = 0; b < ids.size(); ++b) {
          if (plain.visits[ids[b]] == 0) {
            near.emplace(ids[b], Frame(grid, kept, near_bytes, far_bytes > 0));
            far.emplace(ids[b], Frame(grid, kept, far_bytes, true));
          } else {
            put(plain.near, ids[b], near.at(ids[b]).view(views[b]));
            if (far_bytes > 0) put(plain.far, ids[b], far.at(ids[b]).view(views[b]));
          }
        }
        for (CodecLink* link : {&moved, &plain}) {
          link->crossing.epoch = step / 2;
          link->crossing.scale = settings.error_feedback ? 0.37 + step : 1;
        }
        moved.crossing.views = views;
        const Floats x = noise(ids.size() * grid.rows() * kChannels, step);
        const Floats seen = moved.cross(ids, full(grid, ids.size()), x);
        REQUIRE(seen == plain.cross(ids, full(grid, ids.size()), x));
        REQUIRE(moved.sent_bytes == plain.sent_bytes);
        for (std::size_t b = 0; b < ids.size(); ++b) {
          near.at(ids[b]).keep(views[b], plain.record(plain.near, ids[b], BoundarySide::sender));
          REQUIRE(moved.record(moved.near, ids[b], BoundarySide::sender) ==
                  near.at(ids[b]).record());
          if (far_bytes == 0) continue;
          far.at(ids[b]).keep(views[b], plain.record(plain.far, ids[b], BoundarySide::receiver));
          REQUIRE(moved.record(moved.far, ids[b], BoundarySide::receiver) ==
                  far.at(ids[b]).record());
        }
      }
    }
}

TEST_CASE("rows of a memory that a view does not see are unchanged", "[codec][moved]") {
  CodecSettings settings = settings_of(CodecKind::aqsgd);
  settings.first_visit = FirstVisit::fp32;
  CodecLink link(settings, shape_of(kPixels, true), MemoryStorage::fp32);
  const auto cross = [&](const RowView& view, int seed) {
    link.crossing.views = {view};
    link.cross({0}, full(kPixels, 1), noise(kPixels.rows() * kChannels, seed));
    return link.floats(0);
  };
  const auto row = [](const Floats& record, int y, int x) {
    const auto first = record.begin() + (y * kPixels.width + x) * kChannels;
    return Floats(first, first + kChannels);
  };
  const Floats first = cross({1, 2}, 1);
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 6; ++x)
      CHECK(row(first, y, x) == row(first, std::max(y, 1), std::max(x, 2)));
  CHECK(row(first, 1, 2) != row(first, 1, 3));
  const Floats second = cross({-1, -2}, 2);
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 6; ++x) {
      CAPTURE(y, x);
      const bool is_seen = y < 3 && x < 4;
      CHECK((row(second, y, x) == row(first, y, x)) == !is_seen);
    }
  CHECK(cross({4, 0}, 3) == second);  // wholly outside
  CHECK(cross({0, -6}, 4) == second);
}

TEST_CASE("an unchanging image has no changes under crops if memories move", "[codec][moved]") {
  const auto kind = GENERATE(CodecKind::aqsgd, CodecKind::aqsgd_topk);
  CodecSettings settings = settings_of(kind);
  settings.first_visit = FirstVisit::fp32;
  const Floats image = noise(kPixels.rows() * kChannels, 5);
  // Its padding continues its border.
  const auto seen_by = [&](const RowView& view) {
    Floats rows(image.size());
    for (int row = 0; row < kPixels.rows(); ++row)
      std::copy_n(image.begin() + find(kPixels, view, row).nearest * kChannels, kChannels,
                  rows.begin() + row * kChannels);
    return rows;
  };
  for (const bool moves : {false, true}) {
    CodecLink link(settings, shape_of(kPixels, moves), MemoryStorage::fp32);
    link.crossing.views = {{}};
    link.cross({0}, full(kPixels, 1), image);
    link.sender->take_statistics(ExecSpace());
    link.sender->measure_errors(true);
    for (int step = 1; step < 9; ++step) {
      const RowView view = view_of(kPixels, 1, step);
      link.crossing.views = {view};
      const Floats x = seen_by(view);
      const Floats y = link.cross({0}, full(kPixels, 1), x);
      for (std::size_t i = 0; moves && i < x.size(); ++i) {
        CAPTURE(step, view.dy, view.dx, i);
        REQUIRE(y[i] == x[i]);
      }
    }
    const double error = relative_error(link.sender->take_statistics(ExecSpace()));
    CAPTURE(error);
    CHECK((moves ? error == 0 : error > 0.2));
  }
}

TEST_CASE("ends with other moves refuse each other's messages", "[codec][moved]") {
  const CodecSettings settings = settings_of(CodecKind::aqsgd);
  const auto made = [&](const CodecSettings& of, const RowGrid& grid, bool moves) {
    return make_codec(of, shape_of(grid, moves), MemoryStorage::fp16);
  };
  RowGrid coarse = kPixels;
  coarse.stride = 2;
  const auto moved = made(settings, kPixels, true), plain = made(settings, kPixels, false);
  CHECK(moved->id() != plain->id());
  CHECK(moved->id() != made(settings, coarse, true)->id());
  CHECK(moved->id() == made(settings, kPixels, true)->id());

  Crossing crossing;
  crossing.sample_ids = {0};
  crossing.tokens = full(kPixels, 1);
  crossing.visits = {1};
  crossing.views = {{0, 1}};
  const std::uint32_t hash = moved->state_hash(crossing);
  for (const RowView& view : {RowView{1, 1}, RowView{0, 0}, RowView{0, -1}}) {
    crossing.views = {view};
    CHECK(moved->state_hash(crossing) != hash);
  }
  // Room for the records of a micro-batch.
  CHECK(moved->memory_bytes() >=
        plain->memory_bytes() + 2 * plain->record().bytes(BoundarySide::sender));

  // Errors of places belong to no sample, and codecs without records have nothing to move.
  CodecSettings of_places = settings_of(CodecKind::topk);
  CHECK(made(of_places, kPixels, true)->id() == made(of_places, kPixels, false)->id());
  of_places.error_feedback = true;
  of_places.feedback_of = FeedbackOf::position;
  CHECK(made(of_places, kPixels, true)->id() == made(of_places, kPixels, false)->id());
  of_places.feedback_of = FeedbackOf::sample;
  CHECK(made(of_places, kPixels, true)->id() != made(of_places, kPixels, false)->id());
}
