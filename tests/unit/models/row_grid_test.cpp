// SPDX-License-Identifier: BSD-3-Clause
// Boundaries of models of images have a grid that says what their rows show.
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "core/kernels/gemm/blas.hpp"
#include "models/model.hpp"
#include "support/device_values.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kSide = 128;  // no pixel of the middle reaches the border

std::unique_ptr<Model> make_model(const std::string& type, const ImageShape& image, bool cifar_stem,
                                  int patch = 4) {
  NewModel shape;
  shape.blocks = 4;
  shape.heads = 2;
  shape.channels = 4;
  shape.class_names = {"a", "b"};
  shape.image = image;
  shape.patch = patch;
  shape.depths = {1, 1, 1, 1};
  shape.cifar_stem = cifar_stem;
  for (const ModelType& known : model_types())
    if (type == known.name) return known.create(shape);
  return nullptr;
}

/// Rows of the boundary after `blocks` blocks of a new model. [rows * channels]
class Rows {
 public:
  Rows(const Model& model, int blocks)
      : stage_(model.make_stage({0, blocks, true, false})), shape_(stage_->output_shape(1)) {
    StageCapacity capacity;
    capacity.training = false;
    stage_->parameters().allocate(false);
    model.initialise(3, stage_->parameters());
    stage_->reserve(capacity);
  }

  const BoundaryShape& shape() const { return shape_; }
  std::vector<float> of(const std::vector<float>& image) {
    MicroBatch batch;
    batch.samples = 1;
    batch.tokens = 1;
    const Vector<float> values = to_device(image);
    batch.fields.set(Field::values, values);
    stage_->forward(ExecSpace(), batch, 0, false, false);
    Kokkos::fence();
    return to_host(stage_->output(0, shape_.tokens));
  }

 private:
  std::unique_ptr<Stage<float>> stage_;
  BoundaryShape shape_;
};

/// Pixels around the middle of an image of zeros, moved by a crop.
std::vector<float> cropped_image(int dy, int dx) {
  std::vector<float> image(kSide * kSide);
  for (int y = 59; y < 68; ++y)
    for (int x = 58; x < 69; ++x)
      image[static_cast<std::size_t>((y - dy) * kSide + x - dx)] =
          static_cast<float>((31 * y + 17 * x) % 11 - 4);
  return image;
}

}  // namespace

TEST_CASE("Rows of a residual network move with its images", "[models][resnet][row_grid]") {
  use_single_threaded_blas();
  const bool cifar_stem = GENERATE(true, false);
  const int blocks = GENERATE(1, 2, 3, 4);
  if (!cifar_stem && blocks > 2) return;
  const auto model = make_model("resnet", {kSide, kSide, 1}, cifar_stem);
  Rows rows(*model, blocks);
  const RowGrid& grid = rows.shape().grid;
  CAPTURE(cifar_stem, blocks);
  CHECK(grid.stride == (cifar_stem ? 1 : 4) << (blocks - 1));
  REQUIRE(grid.rows() == rows.shape().tokens);
  REQUIRE(grid.leading == 0);
  const std::vector<float> whole = rows.of(cropped_image(0, 0));
  const int channels = rows.shape().channels;
  for (const auto& [y, x] : {std::pair{1, 0}, std::pair{0, -1}, std::pair{-1, 1}}) {
    // Crops by whole strides, which leave the pixels away from the borders.
    const std::vector<float> seen = rows.of(cropped_image(y * grid.stride, x * grid.stride));
    const RowView view = row_view(grid, y * grid.stride, x * grid.stride);
    for (int row = 0; row < grid.rows(); ++row) {
      const int from = row_in_image(grid, view, row);
      for (int c = 0; c < channels; ++c) {
        CAPTURE(y, x, row, c);
        REQUIRE(seen[row * channels + c] ==
                Approx(from == kNoRow ? 0.0f : whole[from * channels + c]).margin(1e-6));
      }
    }
  }
}

TEST_CASE("Boundaries of models of images have the grid of their rows", "[models][row_grid]") {
  const auto shapes_of = [](const Model& model, int tokens) {
    return boundary_shapes(model, {1, 1, 1, 1}, tokens);
  };
  const std::vector<BoundaryShape> residual =
      shapes_of(*make_model("resnet", {28, 30, 1}, true), 1);
  REQUIRE(residual.size() == 3);
  CHECK(residual[0].grid == RowGrid{0, 28, 30, 1});
  CHECK(residual[1].grid == RowGrid{0, 14, 15, 2});
  CHECK(residual[2].grid == RowGrid{0, 7, 8, 4});
  for (const BoundaryShape& shape : shapes_of(*make_model("vit", {12, 20, 3}, true), 16)) {
    CHECK(shape.grid == RowGrid{1, 3, 5, 4});
    CHECK(shape.grid.rows() == shape.tokens);
  }
}
