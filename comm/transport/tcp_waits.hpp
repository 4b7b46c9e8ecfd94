// SPDX-License-Identifier: BSD-3-Clause
// How long TCP waits before it sends again what a link lost.
#pragma once

#include <chrono>

namespace deltapipe {

/// Linux' own bound of these waits.
inline constexpr std::chrono::seconds kTcpWait{120};

/// Bounds the waits on all TCP connections that this process has now, which are MPI's: they double
/// with every loss, so that a link that works again stays unused for as long as it lost everything.
/// Returns the bound in force; Linux before 6.15 has no other than kTcpWait. Without a connection:
/// kTcpWait.
std::chrono::seconds bound_tcp_waits() noexcept;

}  // namespace deltapipe
