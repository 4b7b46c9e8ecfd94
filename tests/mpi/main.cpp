// SPDX-License-Identifier: BSD-3-Clause
// Catch2's runner on every rank. All ranks run the same tests in the same order. A rank that breaks
// off a test (REQUIRE, an exception) ends the run, since the others may wait for it; failed CHECKs
// are reported at the end by the rank that saw them, and make all ranks exit non-zero.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <mpi.h>

#include <Kokkos_Core.hpp>
#include <catch2/catch.hpp>
#include <iostream>
#include <sstream>

#include "comm/transport/mpi_session.hpp"
#include "support/catch_runner.hpp"
#include "support/kernel_labels.hpp"

namespace {

/// Holds this rank's report back, so that lines of ranks do not mix.
class Report {
 public:
  explicit Report(int rank) : rank_(rank), terminal_(std::cout.rdbuf(text_.rdbuf())) {
    current = this;
  }
  ~Report() {
    std::cout.rdbuf(terminal_);
    current = nullptr;
  }
  void print() const {
    std::ostream terminal(terminal_);
    terminal << "rank " << rank_ << ":\n" << text_.str() << std::flush;
  }
  static inline Report* current = nullptr;

 private:
  int rank_;
  std::ostringstream text_;
  std::streambuf* terminal_;
};

#if CATCH_VERSION_MAJOR >= 3
using Listener = Catch::EventListenerBase;
using Heard = void;
#else
using Listener = Catch::TestEventListenerBase;
using Heard = bool;
#endif

class BrokenTests : public Listener {
 public:
  using Listener::Listener;

  Heard assertionEnded(const Catch::AssertionStats& stats) override {
    const Catch::AssertionResult& result = stats.assertionResult;
    const bool continues =
        (result.m_info.resultDisposition & Catch::ResultDisposition::ContinueOnFailure) != 0 &&
        result.getResultType() != Catch::ResultWas::ThrewException;
    if (!result.isOk() && !continues) broken_ = true;
    return Heard();
  }
  // Reporters hear of an assertion after the listeners: its text is there by the section's end.
  void sectionEnded(const Catch::SectionStats&) override {
    if (!broken_ || Report::current == nullptr) return;
    Report::current->print();
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

 private:
  bool broken_ = false;
};
CATCH_REGISTER_LISTENER(BrokenTests)

int run(int rank, int argc, char** argv) {
  const Report report(rank);
  const int failures =
      deltapipe::test::run_tests(argc, argv) + deltapipe::test::report_kernel_labels();
  if (rank == 0 || failures != 0) report.print();
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  deltapipe::MpiSession mpi(&argc, &argv);
  deltapipe::test::watch_without_fences();
  Kokkos::ScopeGuard kokkos(argc, argv);
  deltapipe::test::watch_kernel_labels();
  int failures = run(mpi.rank(), argc, argv);
  MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return failures == 0 ? 0 : 1;
}
