// SPDX-License-Identifier: BSD-3-Clause
// Keys of [pipeline] and [network].
#include "app/deck/keys/section_keys.hpp"
#include "comm/schedule/schedule.hpp"

namespace deltapipe::deck {

namespace {

void add_links(std::vector<Key>& keys, Draft::Links& links, const char* section) {
  SectionKeys add(keys, section);
  add("bandwidth", QuantityList{&links.bits_per_second, kBandwidthUnits, 1, 1e15},
      "One value, or a list with one per boundary (per link between two ranks with "
      "stages_per_rank). 0 does not limit MPI.");
  add("latency", QuantityList{&links.latency_seconds, kDurationUnits, 0, 3600},
      "One value, or a list as for bandwidth.");
}

}  // namespace

void add_pipeline(std::vector<Key>& keys, PipelineSettings& p) {
  SectionKeys add(keys, "pipeline");
  add("stages", Integer{&p.stages, 1, 65536}, "Number of stages that the model is cut into.");
  add("replicas", Integer{&p.replicas, 1, 65536},
      "Data-parallel copies of the pipeline. A run needs stages / stages_per_rank x replicas MPI "
      "ranks.");
  add("stages_per_rank", Integer{&p.stages_per_rank, 1, kMostStagesPerRank},
      "For the interleaved schedule: each of the K = stages / stages_per_rank ranks of a pipeline "
      "holds every Kth stage. K x in_flight is at most 63.");
  add("schedule", name_choice(p.schedule, schedules()),
      "Order of forward and backward passes: gpipe, 1f1b (fewer activations), zb-h1 (less waiting, "
      "more memory) or interleaved (least waiting, more bytes). docs/systems.md compares them.");
  add("in_flight", Integer{&p.in_flight, 1, kMostInFlight},
      "Micro-batches that may be on their way across a boundary (not for gpipe). More of them hide "
      "slower links and need memory for as many activations.");
  add("timeout", Real{&p.timeout_seconds, 0, 1e6},
      "Seconds without a sign of life from a rank's process or machine after which the run ends. 0 "
      "never ends it.");
  add("step_timeout", Real{&p.step_timeout_seconds, 0, 1e6},
      "Seconds that a training step may last. A rank that hangs longer ends the run with a message "
      "that names it; 0 sets no limit.");
  add("partition", IntegerList{&p.partition, 1, 10000},
      "Transformer blocks of each stage, one number per stage. If the list is empty, stages are "
      "balanced by cost.");
  add("gpu_aware_mpi", Flag{&p.gpu_aware_mpi},
      "Passes GPU memory to MPI without copies in host memory. Requires a CUDA-aware or GPU-aware "
      "MPI; on processors it gains nothing.");
  add("verify_replicas", Integer{&p.verify_replicas, 0, kAnyCount},
      "Steps between comparisons of the replicas' weights; a difference ends the run. 0 never "
      "compares them.");
}

void add_network(std::vector<Key>& keys, Draft& draft) {
  SectionKeys add(keys, "network");
  NetworkSettings& n = draft.settings.network;
  add("wire", choice(n.wire, {{"boundary", WireSharing::boundary}, {"rank", WireSharing::rank}}),
      "boundary emulates a link for each direction of each boundary. rank emulates one full-duplex "
      "Ethernet wire per rank; lists then have one value per rank.");
  add_links(keys, draft.both, "network");
  add_links(keys, draft.forward, "network.forward");
  add_links(keys, draft.backward, "network.backward");
}

}  // namespace deltapipe::deck
