// SPDX-License-Identifier: BSD-3-Clause
// Bounds TCP's retransmission timeouts.
#pragma once

#include <chrono>

namespace deltapipe {

/// Linux's default bound of a retransmission timeout.
inline constexpr std::chrono::seconds kTcpWait{120};

/// Bounds the retransmission timeouts of all current TCP connections of this process, which belong
/// to MPI. Timeouts double with every loss. A link that works again therefore stays idle for as
/// long as it lost everything. Returns the bound in force: kTcpWait without a connection, and on
/// Linux before 6.15, which cannot change it.
std::chrono::seconds bound_tcp_waits() noexcept;

}  // namespace deltapipe
