// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/check_traffic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "app/output/progress_display.hpp"
#include "app/session/frozen_parameters.hpp"
#include "models/model.hpp"

namespace deltapipe {

namespace {

/// "1,234,567"
std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

/// The lengths of all payloads of the run depend on shapes alone, and the run ends after all steps.
bool is_exact(const Settings& settings, const TrafficPrediction& traffic) {
  const PipelineOptions options = pipeline_options(settings);
  const bool ends_at_wrong_answers =
      !settings.data.answers.files.empty() &&
      std::ranges::any_of(options.evaluation.modes, [&](EvaluationMode mode) {
        return !crosses_token_by_token(options, mode, settings.pipeline.stages);
      });
  const bool lengths_are_fixed =
      settings.pipeline.stages == 1 ||
      (has_fixed_length(settings.forward) && has_fixed_length(settings.backward));
  return settings.training.patience == 0 && !ends_at_wrong_answers && traffic.counts_all_steps() &&
         lengths_are_fixed;
}

std::string part_of(std::uint64_t bytes, std::uint64_t all) {
  return all == 0
             ? "-"
             : fmt::format("{:.1f} %", 100 * static_cast<double>(bytes) / static_cast<double>(all));
}

}  // namespace

void print_summary(const Settings& settings, const ModelLayout& model,
                   const AvailableInputs& inputs, std::uint64_t steps,
                   const std::vector<RankMemory>& ranks,
                   const std::optional<TrafficPrediction>& traffic,
                   const std::vector<DiskNeed>& disks) {
  std::printf("# model: %s, %s parameters\n", model.model->description().c_str(),
              parameters_text(parameter_count(*model.model)).c_str());
  if (inputs.data)
    std::printf("# run: %s steps of up to %s samples\n", grouped(steps).c_str(),
                grouped(static_cast<std::uint64_t>(settings.training.micro_batch_size) *
                        settings.training.micro_batches * settings.pipeline.replicas)
                    .c_str());
  else if (ranks_of(settings.pipeline) > 1)
    std::printf("# run: its length and its bytes are known when tokenizer and text are there\n");
  if (traffic) {
    const char* const of_links = settings.pipeline.stages > 1 ? "network" : "network.replicas";
    const WireBytes boundaries = traffic->boundaries();
    const std::uint64_t all = boundaries.all() + traffic->replicas();
    std::printf("# network: %s%s a step, %s the run, %s of fp32; evaluations %s more\n",
                is_exact(settings, *traffic) ? "" : "at most ", bytes_text(all / steps).c_str(),
                bytes_text(all).c_str(),
                part_of(all, boundaries.fp32 + traffic->replica_fp32).c_str(),
                bytes_text(traffic->evaluation_bytes().all()).c_str());
    if (!traffic->links.empty())
      std::printf(
          "# links: about %.3g s a step and %s the run, if computing hides behind them; how long "
          "stages compute is not known before a run\n",
          traffic->step_seconds,
          duration_text(traffic->step_seconds * static_cast<double>(steps)).c_str());
    else
      std::printf(
          "# links: not known; %s.bandwidth=\"100 Mbit/s\" %s.latency=\"1 ms\" on the command line "
          "gives their seconds\n",
          of_links, of_links);
    if (!traffic->links.empty() && settings.pipeline.replicas > 1 &&
        settings.network.wire == WireSharing::boundary &&
        settings.network.replicas == LinkSettings())
      std::printf(
          "# links: without those of sums over replicas, which network.replicas.bandwidth names\n");
  }
  std::uint64_t largest = 0;
  for (const RankMemory& rank : ranks) largest = std::max(largest, rank.host_peak());
  std::printf("# memory: up to %s a rank\n", bytes_text(largest).c_str());
  for (const DiskNeed& need : disks)
    std::printf("# files: %s in %s\n", bytes_text(need.bytes).c_str(), need.directory.c_str());
}

void print_traffic(const Settings& settings, const TrafficPrediction& traffic) {
  const std::uint64_t steps = traffic.steps;
  std::printf("#\n# sent in the run: payload + headers = bytes%s; mean, part of fp32\n",
              is_exact(settings, traffic) ? "" : " at most");
  const auto row = [](const std::string& name, const WireBytes& bytes, std::uint64_t count,
                      const char* of) {
    if (bytes.messages == 0) return;
    std::printf("# %-26s %s + %s = %s; %s %s, %s\n", name.c_str(), grouped(bytes.payload).c_str(),
                grouped(bytes.headers).c_str(), grouped(bytes.all()).c_str(),
                bytes_text(bytes.all() / count).c_str(), of,
                part_of(bytes.all(), bytes.fp32).c_str());
  };
  for (std::size_t b = 0; b < traffic.forward.size(); ++b) {
    row(fmt::format("boundary {} forward", b), traffic.forward[b], steps, "a step");
    row(fmt::format("boundary {} backward", b), traffic.backward[b], steps, "a step");
  }
  const bool are_common = traffic.shares_common_values;
  row(are_common ? "relative embeddings" : "token rows", traffic.tied_rows, steps, "a step");
  row(are_common ? "their gradients" : "token row gradients", traffic.tied_gradients, steps,
      "a step");
  for (std::size_t r = 0; r < traffic.replica_bytes.size(); ++r)
    if (traffic.replica_bytes[r] > 0)
      std::printf("# sums over replicas, rank %-4zu %s; %s a step\n", r,
                  grouped(traffic.replica_bytes[r]).c_str(),
                  bytes_text(traffic.replica_bytes[r] / steps).c_str());
  for (std::size_t b = 0; b < traffic.evaluation_forward.size(); ++b)
    row(fmt::format("evaluations, boundary {}", b), traffic.evaluation_forward[b],
        traffic.evaluations, "each");
  row("evaluations, token rows", traffic.evaluation_rows, traffic.evaluations, "each");
  if (traffic.evaluations > 0)
    std::printf("# (evaluations: %s of them)\n", grouped(traffic.evaluations).c_str());
  if (!traffic.counts_all_steps())
    std::printf("# %s of %s steps were counted, the others continue their second half\n",
                grouped(traffic.counted_steps).c_str(), grouped(steps).c_str());
  for (const LinkLoad& link : traffic.links)
    std::printf("# link of %s: busy %.3g s a step, %s the run\n", link.name.c_str(),
                link.busy_seconds,
                duration_text(link.busy_seconds * static_cast<double>(steps)).c_str());
}

}  // namespace deltapipe
