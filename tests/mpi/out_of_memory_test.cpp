// SPDX-License-Identifier: BSD-3-Clause
// A progress thread that finds no memory ends with an error that waits throw, not with the process.
#ifndef __CUDACC__  // which compiles a replaced operator new for devices as well
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <new>

#include "comm/transport/mpi_check.hpp"
#include "comm/transport/progress_thread.hpp"

namespace {
thread_local bool has_no_memory = false;
}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = has_no_memory ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return has_no_memory ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}

namespace deltapipe {
namespace {

TEST_CASE("A progress thread without memory fails its operations", "[progress]") {
  // More than it has room for without asking for memory.
  constexpr int kReceives = 256;
  static std::array<int, kReceives> received;  // MPI may keep it until the end
  ProgressThread progress(MPI_COMM_WORLD);
  const auto buffers = std::make_shared<int>();
  Ticket ticket =
      progress.submit({.name = "receives of nothing",
                       .start =
                           [comm = progress.control(), held = buffers](RequestList& requests) {
                             for (int& value : received) {
                               requests.push_back(MPI_REQUEST_NULL);
                               DELTAPIPE_MPI(MPI_Irecv(&value, 1, MPI_INT, MPI_PROC_NULL, 0, comm,
                                                       &requests.back()));
                             }
                             has_no_memory = true;
                           },
                       .completed = {}});
  CHECK_THROWS_AS(progress.wait(ticket), std::bad_alloc);
  CHECK_THROWS_AS(progress.drain(), std::bad_alloc);
  ticket.reset();
  CHECK(buffers.use_count() > 1);  // MPI has them still
}

}  // namespace
}  // namespace deltapipe
#endif
