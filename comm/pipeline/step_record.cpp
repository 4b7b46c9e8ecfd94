// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/step_record.hpp"

namespace deltapipe {

// The first entry is the sum of the seven after it.
const std::array<RankColumn, kRankValues> kRankColumns = {{
    {"wall_seconds", "s", "wall time of the step"},
    {"compute_seconds", "s", "kernels of the model and the optimizer"},
    {"codec_seconds", "s", "encoding and decoding"},
    {"cache_seconds", "s", "activation cache: copies and waiting for its file"},
    {"wire_exposed_seconds", "s", "waiting for a message on its way, or for room to send one"},
    {"bubble_seconds", "s", "waiting for a stage that had nothing to send yet"},
    {"replica_wait_seconds", "s", "waiting for sums of gradients over replicas"},
    {"other_seconds", "s", "loading samples, checksums, bookkeeping"},
    {"wire_seconds", "s", "time with a message on its way to or from the rank"},
    {"wire_hidden_seconds", "s", "the part of wire_seconds in which the rank did not wait"},
    {"cache_stall_seconds", "s", "the part of cache_seconds that waits for the file"},
    {"cache_first_visits", "1", "samples that had no memory yet"},
    {"cache_hits", "1", "memories found in device memory"},
    {"cache_misses", "1", "memories that came from the file"},
    {"cache_late_misses", "1", "misses that the step waited for"},
    {"cache_damaged", "1", "damaged records; both ends start their samples again"},
    {"cache_bytes_read", "B", "read from the cache's file"},
    {"cache_bytes_written", "B", "written to the cache's file"},
    {"replica_bytes", "B",
     "sent for sums of gradients over replicas, by all of them, with headers"},
}};

}  // namespace deltapipe
