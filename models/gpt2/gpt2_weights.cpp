// SPDX-License-Identifier: BSD-3-Clause
#include "models/gpt2/gpt2_weights.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"
#include "core/base/numeric/random.hpp"

namespace deltapipe {

namespace {

const std::string kPrefix = "transformer.";
constexpr std::size_t kInitialisedAtOnce = std::size_t{1} << 18;  // elements, a multiple of 4

std::string stored_name(const SafetensorsReader& reader, const std::string& name) {
  const std::string prefixed = saved_name(name);
  return reader.contains(name) && !reader.contains(prefixed) ? name : prefixed;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

void check_finite(const std::string& file, const std::string& name,
                  const std::vector<float>& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      throw UserError({.what = "the weights are not finite",
                       .file = file,
                       .value = std::to_string(values[i]) + " in element " + std::to_string(i) +
                                " of tensor " + name,
                       .remedy = "use weights from before the training that made them diverged"});
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

std::string saved_name(const std::string& parameter) {
  return parameter == "lm_head.weight" ? parameter : kPrefix + parameter;
}

void check_weights(const SafetensorsReader& reader, const std::vector<ParameterInfo>& parameters) {
  for (const ParameterInfo& p : parameters)
    reader.expect_shape(stored_name(reader, p.name), p.shape);
}

template <class Real>
void load_weights(const SafetensorsReader& reader, ParameterArena<Real>& parameters) {
  check_weights(reader, parameters.info());
  std::vector<float> values;
  for (std::size_t i = 0; i < parameters.info().size(); ++i) {
    const ParameterInfo& p = parameters.info()[i];
    const std::string name = stored_name(reader, p.name);
    values.resize(p.size);
    reader.read_fp32(name, values);
    check_finite(reader.path_of(name), name, values);
    if constexpr (std::is_same_v<Real, float>)
      parameters.copy_in(ExecSpace(), static_cast<int>(i), 0, values);
    else
      parameters.copy_in(ExecSpace(), static_cast<int>(i), 0,
                         std::vector<Real>(values.begin(), values.end()));
  }
}

std::vector<std::string> foreign_tensors(const SafetensorsReader& reader) {
  std::vector<std::string> names;
  for (const auto& [name, info] : reader.tensors()) {
    const std::string own = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
    const auto is_in = [&](const char* module) { return own.starts_with(module); };
    if (name != "lm_head.weight" && !is_in("wte.") && !is_in("wpe.") && !is_in("h.") &&
        !is_in("ln_f."))
      names.push_back(name);
  }
  return names;
}

bool has_own_head(const SafetensorsReader& reader) {
  const std::string head = "lm_head.weight", embedding = stored_name(reader, "wte.weight");
  if (!reader.contains(head) || !reader.contains(embedding)) return false;
  const std::vector<std::uint64_t>& shape = reader.info(embedding).shape;
  reader.expect_shape(head, shape);
  if (shape.size() != 2 || reader.info(embedding).elements() == 0) return false;
  constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;
  const std::uint64_t most = std::max<std::uint64_t>(1, kElementsAtOnce / shape[1]);
  std::vector<float> a, b;
  for (std::uint64_t row = 0; row < shape[0]; row += most) {
    const std::uint64_t rows = std::min(most, shape[0] - row);
    a.resize(rows * shape[1]);
    b.resize(a.size());
    reader.read_fp32_rows(head, row, rows, a);
    reader.read_fp32_rows(embedding, row, rows, b);
    if (a != b) return true;
  }
  return false;
}

template <class Real>
void initialise_weights(const Gpt2Config& config, std::uint64_t seed,
                        ParameterArena<Real>& parameters) {
  const RandomStream stream(seed, 0, 0);
  std::vector<Real> piece;
  for (std::size_t i = 0; i < parameters.info().size(); ++i) {
    const ParameterInfo& p = parameters.info()[i];
    const int index = static_cast<int>(i);
    if (p.shape.size() == 1) {
      Kokkos::deep_copy(parameters.value(index), Real(ends_with(p.name, ".weight") ? 1 : 0));
      continue;
    }
    double deviation = config.initializer_range;
    if (ends_with(p.name, "c_proj.weight")) deviation /= std::sqrt(2.0 * config.n_layer);
    const std::uint64_t key = name_key(p.name);
    for (std::size_t first = 0; first < p.size; first += kInitialisedAtOnce) {
      piece.resize(std::min(kInitialisedAtOnce, p.size - first));
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

template void load_weights<float>(const SafetensorsReader&, ParameterArena<float>&);
template void load_weights<double>(const SafetensorsReader&, ParameterArena<double>&);
template void initialise_weights<float>(const Gpt2Config&, std::uint64_t, ParameterArena<float>&);
template void initialise_weights<double>(const Gpt2Config&, std::uint64_t, ParameterArena<double>&);

}  // namespace deltapipe
