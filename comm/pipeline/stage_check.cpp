// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/stage_check.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

namespace {

/// Facts about one stage.
enum Fact {
  input_tokens,
  input_channels,
  output_tokens,
  output_channels,
  shared_channels,
  shared_lends,          ///< rows of the shared embedding travel
  shared_absent,         ///< and the embedding's table is on another stage
  common_gradient_rows,  ///< 0: the stage has no common parameters
  common_value_rows,
  common_channels,
  facts
};

void tell(const Stage<float>& stage, int tokens, std::uint64_t* facts_of_stage) {
  const BoundaryShape input = stage.input_shape(tokens), output = stage.output_shape(tokens);
  const TokenEmbedding<float>* const embedding = stage.token_embedding();
  facts_of_stage[input_tokens] = input.tokens;
  facts_of_stage[input_channels] = input.channels;
  facts_of_stage[output_tokens] = output.tokens;
  facts_of_stage[output_channels] = output.channels;
  if (embedding && embedding->shared()) {
    facts_of_stage[shared_channels] = embedding->embedding_channels();
    facts_of_stage[shared_lends] = embedding->lends_rows() ? 1 : 0;
    facts_of_stage[shared_absent] = embedding->wte() < 0 ? 1 : 0;
  }
  if (const CommonParameters<float>* const common = stage.common_parameters()) {
    facts_of_stage[common_gradient_rows] = common->gradient_shape(tokens).tokens;
    facts_of_stage[common_value_rows] = common->value_shape().tokens;
    facts_of_stage[common_channels] = common->value_shape().channels;
  }
}

std::string shape_text(std::uint64_t tokens, std::uint64_t channels) {
  return fmt::format("{} x {}", tokens, channels);
}

[[noreturn]] void refuse(const std::string& what, const std::string& value) {
  throw UserError({.what = what,
                   .value = value,
                   .remedy = "run the same program, model and deck on all ranks; the stages of a "
                             "model must agree on the shapes between them"});
}

}  // namespace

void compare_stages(ProgressThread& progress, const ProcessGrid& grid,
                    std::span<Stage<float>* const> stages, int tokens) {
  if (grid.stages() == 1) return;
  const auto facts_of_replica = static_cast<std::size_t>(facts) * grid.stages();
  std::vector<std::uint64_t> all(facts_of_replica * grid.replicas(), 0);
  std::uint64_t* const mine = all.data() + facts_of_replica * grid.replica();
  for (std::size_t local = 0; local < stages.size(); ++local)
    tell(*stages[local], tokens,
         mine + static_cast<std::size_t>(facts) * grid.stage(static_cast<int>(local)));
  all_reduce(progress, grid.world(), all, Reduction::sum);

  for (int replica = 0; replica < grid.replicas(); ++replica) {
    const std::uint64_t* const first = all.data() + facts_of_replica * replica;
    const std::uint64_t* sender = first;
    for (int boundary = 0; boundary + 1 < grid.stages(); ++boundary, sender += facts) {
      const std::uint64_t* const receiver = sender + facts;
      for (const Fact fact : {common_gradient_rows, common_value_rows, common_channels})
        if (sender[fact] != receiver[fact])
          refuse(fmt::format("stages {} and {} have other parameters in common", boundary,
                             boundary + 1),
                 shape_text(sender[common_value_rows], sender[common_channels]) + " and " +
                     shape_text(receiver[common_value_rows], receiver[common_channels]));
      const std::string sent = shape_text(sender[output_tokens], sender[output_channels]);
      const std::string expected = shape_text(receiver[input_tokens], receiver[input_channels]);
      if (sent != expected)
        refuse(fmt::format(
                   "stages {} and {} disagree on the tokens x channels of a sample at boundary {}",
                   boundary, boundary + 1, boundary),
               sent + " and " + expected);
      if (sender[output_tokens] == 0 || sender[output_channels] == 0)
        refuse(fmt::format("nothing crosses boundary {}", boundary), sent);
    }
    for (const std::uint64_t* between = first + facts; between < sender; between += facts)
      if (between[shared_channels] != 0)
        refuse("a stage between the first and the last has a shared token embedding",
               fmt::format("{} channels", between[shared_channels]));
    if (first[shared_channels] != sender[shared_channels])
      refuse(
          "the first and the last stage disagree on the channels of a shared token embedding",
          fmt::format("{} and {}; 0 means none", first[shared_channels], sender[shared_channels]));
    if (first[shared_lends] != sender[shared_lends])
      refuse(
          "the first and the last stage disagree on whether a shared token embedding is frozen",
          fmt::format("{} says that it is", sender[shared_lends] == 0 ? "the last" : "the first"));
    if (first[shared_channels] != 0 && first[shared_lends] == 0 && first[shared_absent] != 0)
      refuse("the first stage has no copy of a shared token embedding that is frozen",
             fmt::format("{} channels", first[shared_channels]));
  }
}

}  // namespace deltapipe
