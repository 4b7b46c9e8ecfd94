// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/save_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "app/output/image_preprocessor.hpp"
#include "app/preflight/warnings.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/files/directory_lock.hpp"
#include "core/files/input_file.hpp"
#include "core/files/replacement.hpp"
#include "core/files/safetensors.hpp"
#include "core/text/tokenizer_files.hpp"
#include "models/model.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

constexpr int kModelTag = 30000;
constexpr std::size_t kPieceElements = std::size_t{1} << 22;

/// The parameters of every stage, as rank 0 needs to know them before they arrive.
std::vector<std::vector<ParameterInfo>> parameters_by_stage(const ModelPlan& plan) {
  std::vector<std::vector<ParameterInfo>> all;
  for (int s = 0; s < static_cast<int>(plan.partition.size()); ++s)
    all.push_back(plan.model->parameters(stage_part(plan.partition, s)));
  return all;
}

/// True for files of a model directory, which a new model may replace.
bool is_model_file(const std::string& name) {
  constexpr std::array<std::string_view, 4> names = {"config.json", "generation_config.json",
                                                     kImagePreprocessorFile,
                                                     "model.safetensors.index.json"};
  return std::find(names.begin(), names.end(), name) != names.end() || is_tokenizer_file(name) ||
         name.ends_with(".safetensors");
}

bool is_kept_unchanged(const std::string& directory, const std::string& name,
                       const std::vector<KeptFile>& files) {
  const auto file =
      std::ranges::find_if(files, [&](const KeptFile& kept) { return kept.name == name; });
  if (file == files.end()) return false;
  try {
    return read_text_file(directory + "/" + name, file->bytes.size()) == file->bytes;
  } catch (const UserError&) {
    return false;  // another file has its name
  }
}

/// A directory under construction is of no interest to who reads a message.
UserError in_terms_of(const std::string& directory, const std::string& temporary,
                      const UserError& error) {
  std::string text = error.what();
  for (std::size_t at = 0; (at = text.find(temporary, at)) != std::string::npos;)
    text.replace(at, temporary.size(), directory);
  return UserError({.what = text, .remedy = "a former model is as it was"});
}

/// Writes rows [first, first + rows) of a parameter to the tensors that hold them.
void write_rows(SafetensorsWriter& writer, const std::vector<SavedRows>& tensors,
                std::uint64_t first, std::uint64_t rows, std::span<const float> values) {
  const std::size_t row = values.size() / rows;
  for (const SavedRows& tensor : tensors) {
    const std::uint64_t begin = std::max(first, tensor.first);
    const std::uint64_t end = std::min(first + rows, tensor.first + tensor.rows);
    if (begin < end)
      writer.write_fp32_rows(tensor.name, begin - tensor.first,
                             values.subspan((begin - first) * row, (end - begin) * row));
  }
}

/// A diverged model is not saved: loading refuses it.
void require_finite(const std::string& parameter, std::span<const float> values) {
  const auto wrong = std::ranges::find_if_not(values, [](float x) { return std::isfinite(x); });
  if (wrong == values.end()) return;
  throw UserError({.what = "the trained weights are not finite: " + parameter,
                   .value = number_text("%g", *wrong),
                   .remedy = "lower training.optimizer.learning_rate"});
}

/// Every stage's parameters, one piece at a time, from the stages' ranks to the writer on the
/// first.
void transfer_weights(const ExecSpace& exec, const ModelPlan& plan, const ProcessGrid& grid,
                      ProgressThread& progress, const Stages& stages, SafetensorsWriter* writer) {
  const std::vector<std::vector<ParameterInfo>> all = parameters_by_stage(plan);
  const auto owner = std::make_shared<std::vector<float>>(kPieceElements);
  std::vector<float>& piece = *owner;
  for (int s = 0; s < grid.stages(); ++s) {
    const int owner_rank = grid.owner_of(s);
    const bool is_here = owner_rank == grid.pipeline_rank();
    if (!grid.first() && !is_here) continue;
    for (std::size_t i = 0; i < all[s].size(); ++i) {
      const ParameterInfo& p = all[s][i];
      if (p.copied) continue;
      const std::size_t row = p.size / p.shape[0];
      const std::size_t rows_a_piece = std::max<std::size_t>(1, kPieceElements / row);
      for (std::size_t first = 0; first < p.shape[0]; first += rows_a_piece) {
        progress.check();
        const std::size_t rows = std::min<std::size_t>(rows_a_piece, p.shape[0] - first);
        const std::size_t count = rows * row;
        piece.resize(std::max(piece.size(), count));
        const int bytes = static_cast<int>(count * sizeof(float));
        if (is_here) {
          const ParameterArena<float>& parameters =
              stages[static_cast<std::size_t>(s / grid.pipeline_ranks())]->parameters();
          parameters.copy_out(exec, static_cast<int>(i), first * row,
                              std::span(piece).first(count));
          if (!grid.first())
            progress.wait(
                progress.isend({owner, piece.data()}, bytes, 0, kModelTag, grid.pipeline_comm()));
        } else {
          progress.wait(progress.irecv({owner, piece.data()}, bytes, owner_rank, kModelTag,
                                       grid.pipeline_comm()));
        }
        if (writer == nullptr) continue;
        const std::span<const float> values = std::span<const float>(piece).first(count);
        require_finite(plan.model->saved_name(p.name), values);
        write_rows(*writer, plan.model->saved_tensors(p), first, rows, values);
      }
    }
  }
}

}  // namespace

std::uint64_t saving_memory_bytes() {
  return kPieceElements * sizeof(float);
}

namespace {

/// True when `path` is `directory` or in it, links followed.
bool is_in(const std::string& path, const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.empty() || !fs::exists(path, error)) return false;
  const fs::path inner = fs::canonical(path, error), outer = fs::weakly_canonical(directory, error);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

void check_model_directory(const std::string& directory, const Settings& settings) {
  for (const auto& [key, path] : {std::pair{"model.path", settings.model.path},
                                  std::pair{"tokenizer.path", settings.tokenizer.path}})
    if (is_in(path, directory))
      throw UserError({.what = fmt::format("the trained model would replace that of {}", key),
                       .value = path,
                       .remedy = "set another output.directory",
                       .keys = {"output.directory", key}});
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::symlink_status(directory, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_directory(status)) return;
  throw UserError({.what = directory + (std::filesystem::is_symlink(status)
                                            ? " is a symbolic link, which the trained model would "
                                              "replace"
                                            : " is in the place of the trained model's directory"),
                   .remedy = "remove or rename it, or choose another output.directory",
                   .keys = {"output.directory"}});
}

std::string save_model(const ExecSpace& exec, const std::string& directory, Precision precision,
                       const ModelPlan& plan, const ProcessGrid& grid, ProgressThread& progress,
                       const Stages& stages) {
  if (grid.replica() > 0) return {};
  if (!grid.first()) {
    transfer_weights(exec, plan, grid, progress, stages, nullptr);
    return {};
  }
  // Nothing is lost with a former file that the new model has, too.
  const auto is_expendable = [&](const std::string& name) {
    return is_model_file(name) || is_kept_unchanged(directory, name, plan.kept_files);
  };
  AtomicDirectory model(directory, is_expendable);
  const std::string temporary = model.path();
  try {
    // An export holds no lock on the directory around it, where a run may start meanwhile.
    std::optional<DirectoryLock> lock(std::in_place, temporary, new_run_id());
    std::vector<ParameterInfo> declared;
    for (const auto& infos : parameters_by_stage(plan))
      std::copy_if(infos.begin(), infos.end(), std::back_inserter(declared),
                   [](const ParameterInfo& p) { return !p.copied; });
    SafetensorsWriter writer(model.path() + "/model.safetensors",
                             tensor_declarations(*plan.model, declared, precision));
    transfer_weights(exec, plan, grid, progress, stages, &writer);
    for (const ParameterInfo& p : declared)
      for (const std::string& name : plan.model->saved_counters(p)) writer.write_zeros(name);
    writer.finish();
    if (writer.overflows() > 0)
      print_warnings(
          {fmt::format("{} weights in {} are infinite: they are beyond the range of "
                       "output.model_precision; use \"bf16\" or \"fp32\"",
                       writer.overflows(), directory)});
    plan.model->save_configuration(model.path(), precision);
    write_kept_files(plan.kept_files, model.path());
    const auto is_of_tokenizer = [](const KeptFile& file) { return is_tokenizer_file(file.name); };
    if (plan.tokenizer && std::ranges::none_of(plan.kept_files, is_of_tokenizer))
      plan.tokenizer->save(model.path());
    lock.reset();
    return model.commit();
  } catch (const UserError& error) {
    if (model.is_in_place()) throw;
    throw in_terms_of(directory, temporary, error);
  }
}

}  // namespace deltapipe
