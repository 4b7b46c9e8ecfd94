// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/request_set.hpp"

#include <utility>

#include "comm/transport/mpi_check.hpp"
#include "comm/transport/operation.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

void RequestSet::adopt(const Ticket& operation, RequestList& requests) {
  try {
    requests_.reserve(requests_.size() + requests.size());
    owners_.reserve(owners_.size() + requests.size());
  } catch (...) {  // MPI has its buffers already
    operation->self = operation;
    throw;
  }
  for (const MPI_Request request : requests) {
    if (request == MPI_REQUEST_NULL) continue;
    requests_.push_back(request);
    owners_.push_back(operation);
    ++operation->outstanding;
  }
  requests.clear();
}

std::vector<RequestSet::Finished> RequestSet::take_finished() {
  if (requests_.empty()) return {};
  const int count = static_cast<int>(requests_.size());
  tested_indices_.resize(requests_.size());
  tested_statuses_.resize(requests_.size());
  int finished = 0;
  const int code = MPI_Testsome(count, requests_.data(), &finished, tested_indices_.data(),
                                tested_statuses_.data());
  int error_class = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &error_class);
  if (code != MPI_SUCCESS && error_class != MPI_ERR_IN_STATUS)
    throw UserError({.what = "MPI failed while messages were in flight: " + mpi_error_text(code),
                     .remedy = "check the network and that all ranks are still alive"});
  if (finished == MPI_UNDEFINED || finished == 0) return {};
  std::vector<Finished> taken;
  taken.reserve(static_cast<std::size_t>(finished));  // nothing may throw half-way
  for (int i = 0; i < finished; ++i) {
    const auto index = static_cast<std::size_t>(tested_indices_[static_cast<std::size_t>(i)]);
    const MPI_Status& status = tested_statuses_[static_cast<std::size_t>(i)];
    taken.push_back(
        {std::move(owners_[index]), status, code == MPI_SUCCESS ? MPI_SUCCESS : status.MPI_ERROR});
    requests_[index] = MPI_REQUEST_NULL;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (!owners_[i]) continue;
    requests_[kept] = requests_[i];
    if (kept != i) owners_[kept] = std::move(owners_[i]);
    ++kept;
  }
  requests_.resize(kept);
  owners_.resize(kept);
  return taken;
}

void RequestSet::cancel(const Ticket& operation) {
  for (std::size_t i = 0; i < owners_.size(); ++i)
    if (owners_[i] == operation) MPI_Cancel(&requests_[i]);
}

void RequestSet::abandon() noexcept {
  // There may be no memory left.
  for (const Ticket& owner : owners_)
    if (owner) owner->self = owner;
  owners_.clear();
  requests_.clear();
}

}  // namespace deltapipe
