// SPDX-License-Identifier: BSD-3-Clause
// Bounds TCP's retransmission timeouts.
#pragma once

#include <chrono>

namespace deltapipe {

/// Linux' default bound of a retransmission timeout.
inline constexpr std::chrono::seconds kTcpWait{120};

/// Bounds the retransmission timeouts of all TCP connections that this process has now, which are
/// MPI's. Timeouts double with every loss, so that a link that works again stays idle for as long
/// as it lost everything. Returns the bound in force: kTcpWait without a connection, and on Linux
/// before 6.15, which cannot change it.
std::chrono::seconds bound_tcp_waits() noexcept;

}  // namespace deltapipe
