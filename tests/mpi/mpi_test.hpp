// SPDX-License-Identifier: BSD-3-Clause
// What the MPI tests share.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "comm/transport/collectives.hpp"
#include "comm/transport/progress_thread.hpp"
