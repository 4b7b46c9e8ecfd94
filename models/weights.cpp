// SPDX-License-Identifier: BSD-3-Clause
#include "models/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"
#include "core/base/numeric/random.hpp"
#include "core/base/printable.hpp"

namespace deltapipe {

namespace {

constexpr std::size_t kInitializedAtOnce = std::size_t{1} << 18;  // elements, a multiple of 4

void check_values(const std::string& file, const std::string& name,
                  const std::vector<float>& values) {
  const bool is_variance = name.ends_with(".running_var");
  const auto shown = [&](std::size_t i) {
    return fmt::format("{:f} in element {} of tensor {}", values[i], i, name);
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]))
      throw UserError({.what = "the weights are not finite",
                       .file = file,
                       .value = shown(i),
                       .remedy = "use weights from before the training that made them diverged"});
    if (is_variance && values[i] < 0)
      throw UserError({.what = "a running variance is negative",
                       .file = file,
                       .value = shown(i),
                       .remedy = "use undamaged weights"});
  }
}

/// Returns the FNV-1a hash of a name, which selects the stream of a tensor's initial values.
std::uint64_t name_key(const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3ull;
  return hash;
}

/// Draws four standard normal numbers (Box-Muller).
void draw_normal(const RandomStream& stream, std::uint64_t key, std::uint32_t block,
                 double normal[4]) {
  std::uint32_t bits[4];
  stream.draw(key, block, bits);
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2 * std::log((bits[2 * pair] + 0.5) / 4294967296.0));
    const double angle = 2 * M_PI * (bits[2 * pair + 1] / 4294967296.0);
    normal[2 * pair] = radius * std::cos(angle);
    normal[2 * pair + 1] = radius * std::sin(angle);
  }
}

}  // namespace

std::string WeightNames::saved(const std::string& parameter) const {
  return std::find(unprefixed.begin(), unprefixed.end(), parameter) != unprefixed.end()
             ? parameter
             : prefix + parameter;
}

std::string WeightNames::stored(const SafetensorsReader& reader,
                                const std::string& parameter) const {
  const std::string prefixed = saved(parameter);
  return reader.contains(parameter) && !reader.contains(prefixed) ? parameter : prefixed;
}

std::vector<std::string> WeightNames::foreign(const SafetensorsReader& reader) const {
  std::vector<std::string> names;
  for (const auto& [name, info] : reader.tensors()) {
    const std::string own = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    const auto is_in = [&](const std::string& module) { return own.starts_with(module); };
    if (std::find(unprefixed.begin(), unprefixed.end(), name) == unprefixed.end() &&
        std::none_of(modules.begin(), modules.end(), is_in))
      names.push_back(name);
  }
  return names;
}

std::vector<SavedRows> WeightNames::tensors(const ParameterInfo& parameter) const {
  for (const SplitModule& module : split) {
    const std::size_t at = parameter.name.find(module.module);
    if (at == std::string::npos) continue;
    const std::uint64_t rows = parameter.shape[0] / module.parts.size();
    std::vector<SavedRows> tensors;
    for (const std::string& part : module.parts) {
      std::string name = parameter.name;
      name.replace(at, module.module.size(), part);
      tensors.push_back({std::move(name), tensors.size() * rows, rows});
    }
    return tensors;
  }
  return {{parameter.name, 0, parameter.shape[0]}};
}

void check_weights(const SafetensorsReader& reader, const WeightNames& names,
                   const std::vector<ParameterInfo>& parameters,
                   const std::set<std::string>& fresh) {
  for (const ParameterInfo& p : parameters) {
    if (fresh.contains(p.name)) continue;
    for (const SavedRows& tensor : names.tensors(p)) {
      std::vector<std::uint64_t> shape = p.shape;
      shape[0] = tensor.rows;
      reader.expect_shape(names.stored(reader, tensor.name), shape);
    }
  }
}

void check_block_count(const SafetensorsReader& reader, const WeightNames& names,
                       const std::string& directory, int blocks) {
  const std::string next = fmt::format("{}{}.{}", names.block_prefix, blocks, names.block_tensor);
  if (!reader.contains(next) && !reader.contains(names.saved(next))) return;
  throw UserError(
      {.what = "the weights have more blocks than config.json says",
       .file = directory,
       .value = fmt::format("{} {}, tensor {}", names.blocks_key, blocks, next),
       .remedy = "set " + names.blocks_key + " in config.json to the number of blocks"});
}

void warn_of_foreign(const SafetensorsReader& reader, const WeightNames& names,
                     const std::string& directory, std::vector<std::string>& warnings) {
  const std::vector<std::string> others = names.foreign(reader);
  if (others.empty()) return;
  warnings.push_back(fmt::format(
      "{}: {} {} not part of {} and not used: the trained model is saved without ({}{})",
      printable(directory, 200), others.size(), others.size() > 1 ? "tensors are" : "tensor is",
      names.architecture, printable(others.front(), 100), others.size() > 1 ? ", ..." : ""));
}

template <class Real>
void load_weights(const SafetensorsReader& reader, const WeightNames& names,
                  ParameterArena<Real>& parameters, const std::set<std::string>& fresh) {
  check_weights(reader, names, parameters.info(), fresh);
  std::vector<float> values;
  for (std::size_t i = 0; i < parameters.info().size(); ++i) {
    const ParameterInfo& p = parameters.info()[i];
    if (fresh.contains(p.name)) continue;
    const std::size_t row = p.size / p.shape[0];
    for (const SavedRows& tensor : names.tensors(p)) {
      const std::string name = names.stored(reader, tensor.name);
      values.resize(tensor.rows * row);
      reader.read_fp32(name, values);
      check_values(reader.path_of(name), name, values);
      const std::size_t first = tensor.first * row;
      if constexpr (std::is_same_v<Real, float>)
        parameters.copy_in(ExecSpace(), static_cast<int>(i), first, values);
      else
        parameters.copy_in(ExecSpace(), static_cast<int>(i), first,
                           std::vector<Real>(values.begin(), values.end()));
    }
  }
}

bool same_matrices(const SafetensorsReader& reader, const std::string& one,
                   const std::string& other) {
  const std::vector<std::uint64_t>& shape = reader.info(other).shape;
  reader.expect_shape(one, shape);
  if (shape.size() != 2 || reader.info(other).elements() == 0) return true;
  constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;
  const std::uint64_t most = std::max<std::uint64_t>(1, kElementsAtOnce / shape[1]);
  std::vector<float> a, b;
  for (std::uint64_t row = 0; row < shape[0]; row += most) {
    const std::uint64_t rows = std::min(most, shape[0] - row);
    a.resize(rows * shape[1]);
    b.resize(a.size());
    reader.read_fp32_rows(one, row, rows, a);
    reader.read_fp32_rows(other, row, rows, b);
    if (a != b) return false;
  }
  return true;
}

bool has_own_matrix(const SafetensorsReader& reader, const WeightNames& names,
                    const std::string& head, const std::string& parameter) {
  const std::string stored = names.stored(reader, parameter);
  return reader.contains(head) && reader.contains(stored) && !same_matrices(reader, head, stored);
}

template <class Real>
void initialize_normal(std::uint64_t seed,
                       const std::function<double(const ParameterInfo&)>& deviation_of,
                       ParameterArena<Real>& parameters) {
  const RandomStream stream(seed, 0, 0);
  std::vector<Real> piece;
  for (std::size_t i = 0; i < parameters.info().size(); ++i) {
    const ParameterInfo& p = parameters.info()[i];
    const int index = static_cast<int>(i);
    if (p.shape.size() == 1) {
      const bool is_one = p.name.ends_with(".weight") || p.name.ends_with(".running_var");
      Kokkos::deep_copy(parameters.value(index), Real(is_one ? 1 : 0));
      continue;
    }
    const double deviation = deviation_of(p);
    const std::uint64_t key = name_key(p.name);
    for (std::size_t first = 0; first < p.size; first += kInitializedAtOnce) {
      piece.resize(std::min(kInitializedAtOnce, p.size - first));
      for (std::size_t j = 0; j < piece.size(); j += 4) {
        double normal[4];
        draw_normal(stream, key, static_cast<std::uint32_t>((first + j) / 4), normal);
        for (std::size_t l = 0; l < 4 && j + l < piece.size(); ++l)
          piece[j + l] = static_cast<Real>(deviation * normal[l]);
      }
      parameters.copy_in(ExecSpace(), index, first, piece);
    }
  }
}

template void load_weights<float>(const SafetensorsReader&, const WeightNames&,
                                  ParameterArena<float>&, const std::set<std::string>&);
template void load_weights<double>(const SafetensorsReader&, const WeightNames&,
                                   ParameterArena<double>&, const std::set<std::string>&);
template void initialize_normal<float>(std::uint64_t,
                                       const std::function<double(const ParameterInfo&)>&,
                                       ParameterArena<float>&);
template void initialize_normal<double>(std::uint64_t,
                                        const std::function<double(const ParameterInfo&)>&,
                                        ParameterArena<double>&);

}  // namespace deltapipe
