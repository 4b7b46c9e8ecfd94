// SPDX-License-Identifier: BSD-3-Clause
// Small collectives on plain values. With a ProgressThread they sleep instead of spinning, and
// throw StopRequested when another rank stops. They then also pass the emulated wire and are
// counted by the thread; over one rank they return at once. Without a ProgressThread they are MPI's
// blocking calls.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

enum class Reduction { sum, min, max };

/// Reduces values in place; every rank gets the result.
void all_reduce(MPI_Comm comm, std::span<std::uint64_t> values, Reduction reduction);
void all_reduce(ProgressThread& progress, MPI_Comm comm, std::span<double> values,
                Reduction reduction);
void all_reduce(ProgressThread& progress, MPI_Comm comm, std::span<std::uint64_t> values,
                Reduction reduction);
double all_reduce(ProgressThread& progress, MPI_Comm comm, double value, Reduction reduction);
std::uint64_t all_reduce(ProgressThread& progress, MPI_Comm comm, std::uint64_t value,
                         Reduction reduction);

/// Broadcasts the root's values. The root determines the size; other ranks' contents are replaced.
void broadcast(MPI_Comm comm, std::string& bytes, int root);
void broadcast(ProgressThread& progress, MPI_Comm comm, std::vector<double>& values, int root);
void broadcast(ProgressThread& progress, MPI_Comm comm, std::vector<std::uint64_t>& values,
               int root);
void broadcast(ProgressThread& progress, MPI_Comm comm, std::string& bytes, int root);

/// Returns one string per rank, in rank order, at the root; empty elsewhere.
std::vector<std::string> gather(MPI_Comm comm, const std::string& bytes, int root);
std::vector<std::string> gather(ProgressThread& progress, MPI_Comm comm, const std::string& bytes,
                                int root);
/// Returns all ranks' values, of equal count, in rank order at the root; empty elsewhere.
std::vector<double> gather(ProgressThread& progress, MPI_Comm comm, std::span<const double> values,
                           int root);

/// Returns all ranks' strings in rank order, one after the other, on every rank.
std::string all_gather(ProgressThread& progress, MPI_Comm comm, const std::string& bytes);

void barrier(ProgressThread& progress, MPI_Comm comm);

/// Collectives with which agree() ends a run, over a communicator. Throws AgreementTimeout after
/// `deadline`.
std::uint64_t agree_on_minimum(MPI_Comm comm, std::uint64_t value, TimePoint deadline);
void agree_on_text(MPI_Comm comm, std::string& text, int root, TimePoint deadline);

/// Same collectives over progress.control(); they also work after errors and stops.
std::uint64_t agree_on_minimum(ProgressThread& progress, std::uint64_t value);
void agree_on_text(ProgressThread& progress, std::string& text, int root);

}  // namespace deltapipe
