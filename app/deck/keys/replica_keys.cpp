// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/keys/replica_keys.hpp"

#include "core/base/error.hpp"

namespace deltapipe::deck {

void add_replicas(std::vector<Key>& keys, ReplicaSettings& settings) {
  Choice codec;
  codec.names.assign(kReplicaCodecNames.begin(), kReplicaCodecNames.end());
  codec.get = [&settings] { return static_cast<std::size_t>(settings.codec); };
  codec.set = [&settings](std::size_t i) { settings.codec = static_cast<ReplicaCodec>(i); };
  keys.push_back({"replicas", "codec", codec,
                  "what travels: none: fp32; bf16: rounded to bf16, added in fp32; quantized: "
                  "codes of `bits` bits, with error feedback of gradients and of their sums; "
                  "adam_moment: the same for "
                  "AdamW's first moments, with second moments that stay after the warm-up"});
  keys.push_back(
      {"replicas", "bits", Integer{&settings.bits, 1, 8},
       "bits per value for quantized and adam_moment; groups of 512 values share a scale"});
  keys.push_back({"replicas", "warmup_epochs", Real{&settings.warmup_epochs, 0, 1e6},
                  "epochs, with fraction, in which gradients travel in fp32; for quantized and, "
                  "where it must not be 0, for "
                  "adam_moment"});
}

void add_replica_links(std::vector<Key>& keys, Draft::Links& links) {
  keys.push_back(
      {"network.replicas", "bandwidth",
       QuantityList{&links.bits_per_second, bandwidth_units(), 1, 1e15},
       "one value, for each rank's link to other replicas; 0: as fast as MPI carries it"});
  keys.push_back({"network.replicas", "latency",
                  QuantityList{&links.latency_seconds, duration_units(), 0, 3600},
                  "one value, for each rank's link to other replicas"});
}

void check_replicas(const ReplicaSettings& settings) {
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
             std::to_string(list->size()) + " values", "give one value for all ranks");
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
