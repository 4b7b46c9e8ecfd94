// SPDX-License-Identifier: BSD-3-Clause
// Catch2 3 under the header name and the names of Catch2 2, which the tests are written with.
#pragma once

#include <catch2/catch_all.hpp>

using Catch::Approx;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;
