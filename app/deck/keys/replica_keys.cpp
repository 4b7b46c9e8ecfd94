// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/keys/replica_keys.hpp"

#include <fmt/format.h>

#include "app/deck/keys/section_keys.hpp"
#include "core/base/error.hpp"

namespace deltapipe::deck {

void add_replicas(std::vector<Key>& keys, ReplicaSettings& settings) {
  SectionKeys add(keys, "replicas");
  add("codec", choice(settings.codec, kReplicaCodecNames),
      "none sums gradients in fp32, bf16 in bf16 on the wire, quantized in bits bits with error "
      "feedback, topk the largest of them. adam_moment sums AdamW's first moments in bits bits and "
      "freezes the second ones after the warm-up.");
  add("bits", Integer{&settings.bits, 1, 8},
      "Bits per value for quantized, topk and adam_moment. Groups of 512 values share a scale, "
      "with topk the values sent of 4096.");
  add("topk", Real{&settings.topk, 0.001, 0.25},
      "Fraction of the values that topk sends: the largest of each group of 4096.");
  add("warmup_epochs", Real{&settings.warmup_epochs, 0, 1e6},
      "Epochs, with fraction, that sum gradients in fp32. adam_moment requires a value above 0.");
  add("local_steps", Integer{&settings.local_steps, 0, 1 << 20},
      "Above 0, replicas take this number of optimizer steps of their own between outer steps, "
      "which sum "
      "the changes of their parameters in codec. With 0 they sum gradients in every step.");
  add("outer_learning_rate", Real{&settings.outer_learning_rate, 0, 10, true},
      "Learning rate of outer steps: SGD with Nesterov momentum over the mean change.");
  add("outer_momentum", Real{&settings.outer_momentum, 0, 1, false, true},
      "Momentum of outer steps.");
}

void add_replica_links(std::vector<Key>& keys, Draft::Links& links) {
  SectionKeys add(keys, "network.replicas");
  add("bandwidth", QuantityList{&links.bits_per_second, kBandwidthUnits, 1, 1e15},
      "Bandwidth of each rank's link to other replicas. 0 does not limit MPI.");
  add("latency", QuantityList{&links.latency_seconds, kDurationUnits, 0, 3600},
      "Latency of each rank's link to other replicas.");
}

void check_replicas(const ReplicaSettings& settings) {
  if (settings.local_steps > 0 && settings.codec == ReplicaCodec::adam_moment)
    throw UserError({.what = "replicas.local_steps sums changes of parameters, not moments",
                     .value = "replicas.codec = \"adam_moment\"",
                     .remedy = "use replicas.codec = \"quantized\" or \"topk\", or local_steps = 0",
                     .keys = {"replicas.codec", "replicas.local_steps"}});
  if (settings.codec != ReplicaCodec::adam_moment || settings.warmup_epochs > 0) return;
  throw UserError({.what = "replicas.codec = \"adam_moment\" needs second moments from a warm-up",
                   .value = "replicas.warmup_epochs = 0",
                   .remedy = "set replicas.warmup_epochs, such as 1",
                   .keys = {"replicas.warmup_epochs", "replicas.codec"}});
}

void join_replica_links(Draft& draft) {
  const auto refuse = [](const std::string& what, const std::string& value,
                         const std::string& remedy) {
    throw UserError(
        {.what = what,
         .value = value,
         .remedy = remedy,
         .keys = {"network.replicas.bandwidth", "network.replicas.latency", "network.wire"}});
  };
  const Draft::Links& links = draft.replicas;
  for (const auto* list : {&links.bits_per_second, &links.latency_seconds}) {
    if (list->size() > 1)
      refuse("[network.replicas] bandwidth and latency are one value each",
             fmt::format("{} values", list->size()), "give one value for all ranks");
    if (!list->empty() && draft.settings.network.wire == WireSharing::rank)
      refuse("[network.replicas] means nothing with network.wire = \"rank\"", {},
             "a rank's wire also carries what it sends to replicas: set [network] bandwidth and "
             "latency");
  }
  const auto value = [](const std::vector<double>& list) { return list.empty() ? 0 : list[0]; };
  draft.settings.network.replicas = {value(links.bits_per_second), value(links.latency_seconds)};
}

Draft::Links replica_links_of(const NetworkSettings& network) {
  Draft::Links links;
  if (network.replicas == LinkSettings()) return links;
  links.bits_per_second = {network.replicas.bits_per_second};
  links.latency_seconds = {network.replicas.latency_seconds};
  return links;
}

}  // namespace deltapipe::deck
