// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/tcp_waits.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>

using namespace deltapipe;

namespace {

constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS of Linux from 6.15 on

int option(int descriptor, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  (void)::getsockopt(descriptor, IPPROTO_TCP, name, &value, &size);
  return value;
}

}  // namespace

TEST_CASE("TCP's waits are bounded on the connections of the process", "[progress]") {
  // One with no settings of its own, one with others that are as good, and descriptors of another
  // kind.
  const int ours = ::socket(AF_INET, SOCK_STREAM, 0);
  const int theirs = ::socket(AF_INET, SOCK_STREAM, 0);
  std::array<int, 2> others{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, others.data()) == 0);
  const int wait = 2000, patience = 7000;
  const bool knows = ::setsockopt(theirs, IPPROTO_TCP, kRtoMaxMs, &wait, sizeof wait) == 0;
  REQUIRE(::setsockopt(theirs, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience) == 0);

  const std::chrono::seconds bound = bound_tcp_waits();
  if (knows) {
    CHECK(bound == std::chrono::seconds(5));
    CHECK(option(ours, kRtoMaxMs) == 5000);
    // Else a connection would end after a minute in which the link loses everything.
    CHECK(option(ours, TCP_USER_TIMEOUT) == 3600 * 1000);
    CHECK(option(theirs, kRtoMaxMs) == wait);
  } else {
    CHECK(bound == kTcpWait);
    CHECK(option(ours, TCP_USER_TIMEOUT) == 0);
  }
  CHECK(option(theirs, TCP_USER_TIMEOUT) == patience);
  for (const int descriptor : {ours, theirs, others[0], others[1]}) ::close(descriptor);
}
