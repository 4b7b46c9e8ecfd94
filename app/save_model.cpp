#include "app/save_model.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/files/checked_file.hpp"
#include "core/files/safetensors.hpp"
#include "models/gpt2_weights.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

constexpr int kModelTag = 30000;
constexpr std::size_t kPieceElements = std::size_t{1} << 22;

/// The parameters of every stage, as rank 0 needs to know them before they arrive.
std::vector<std::vector<ParameterInfo>> parameters_by_stage(const ModelPlan& plan) {
  std::vector<std::vector<ParameterInfo>> all;
  for (int s = 0; s < static_cast<int>(plan.partition.size()); ++s)
    all.push_back(gpt2_parameters(plan.config, stage_part(plan.partition, s)));
  return all;
}

}  // namespace

std::uint64_t saving_memory_bytes() {
  return kPieceElements * sizeof(float);
}

void save_model(const std::string& directory, Precision precision, const ModelPlan& plan,
                const ProcessGrid& grid, ProgressThread& progress, Stage<float>& stage) {
  if (grid.replica() > 0) return;
  const std::vector<std::vector<ParameterInfo>> all = parameters_by_stage(plan);
  std::optional<SafetensorsWriter> writer;
  if (grid.first()) {
    make_directory(directory);
    std::vector<ParameterInfo> declared;
    for (const auto& infos : all) declared.insert(declared.end(), infos.begin(), infos.end());
    writer.emplace(directory + "/model.safetensors", tensor_declarations(declared, precision));
  }
  std::vector<float> piece(kPieceElements);
  for (int s = 0; s < grid.stages(); ++s) {
    if (!grid.first() && grid.stage() != s) continue;
    for (std::size_t i = 0; i < all[s].size(); ++i) {
      const ParameterInfo& p = all[s][i];
      const std::size_t row = p.size / p.shape[0];
      const std::size_t rows_a_piece = std::max<std::size_t>(1, kPieceElements / row);
      for (std::size_t first = 0; first < p.shape[0]; first += rows_a_piece) {
        const std::size_t rows = std::min<std::size_t>(rows_a_piece, p.shape[0] - first);
        const std::size_t count = rows * row;
        piece.resize(std::max(piece.size(), count));
        const int bytes = static_cast<int>(count * sizeof(float));
        if (grid.stage() == s) {
          const VectorRef<float> values(
              stage.parameters().value(static_cast<int>(i)).data() + first * row, count);
          Kokkos::deep_copy(Kokkos::View<float*, Layout, Kokkos::HostSpace>(piece.data(), count),
                            values);
          if (!grid.first())
            progress.wait(progress.isend(piece.data(), bytes, 0, kModelTag, grid.pipeline_comm()));
        } else {
          progress.wait(progress.irecv(piece.data(), bytes, s, kModelTag, grid.pipeline_comm()));
        }
        if (writer)
          writer->write_fp32_rows(saved_name(p.name), first, std::span(piece).first(count));
      }
    }
  }
  if (!writer) return;
  plan.config.save(directory);
  plan.tokenizer.save(directory);
  writer->finish();
}

}  // namespace deltapipe
