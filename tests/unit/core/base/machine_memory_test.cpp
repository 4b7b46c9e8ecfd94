// SPDX-License-Identifier: BSD-3-Clause
// Limits of control groups, nested as containers and batch systems nest them.
#include "core/base/observe/machine_memory.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "tests/unit/core/files/files_support.hpp"

namespace deltapipe {

namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

}  // namespace

TEST_CASE("the least quota between a process's control group and the root counts", "[base]") {
  const testing::TemporaryDirectory directory;
  const fs::path root = directory.path(), groups = root / "sys/fs/cgroup";
  CHECK(cpu_quota(root) == 0);

  SECTION("version 2") {
    write(root / "proc/self/cgroup", "0::/system.slice/job_7/step_0\n");
    write(groups / "system.slice/job_7/step_0/cpu.max", "max 100000\n");
    CHECK(cpu_quota(root) == 0);
    write(groups / "system.slice/job_7/cpu.max", "250000 100000\n");
    CHECK(cpu_quota(root) == 2.5);
    write(groups / "system.slice/cpu.max", "800000 100000\n");
    CHECK(cpu_quota(root) == 2.5);
    write(groups / "system.slice/job_7/step_0/cpu.max", "50000 100000\n");
    CHECK(cpu_quota(root) == 0.5);
    write(groups / "other/cpu.max", "1000 100000\n");
    CHECK(cpu_quota(root) == 0.5);
  }
  SECTION("version 1, where a container sees its own group at the root") {
    write(root / "proc/self/cgroup", "5:memory:/m\n3:cpu,cpuacct:/docker/abc\n0::/unused\n");
    write(groups / "cpu/cpu.cfs_quota_us", "300000\n");
    write(groups / "cpu/cpu.cfs_period_us", "100000\n");
    CHECK(cpu_quota(root) == 3);
    write(groups / "cpu/docker/abc/cpu.cfs_quota_us", "-1\n");
    write(groups / "cpu/docker/abc/cpu.cfs_period_us", "100000\n");
    CHECK(cpu_quota(root) == 3);
    write(groups / "cpu/docker/abc/cpu.cfs_quota_us", "150000\n");
    CHECK(cpu_quota(root) == 1.5);
  }
  SECTION("the root of version 2, as a container with its own name space sees it") {
    write(root / "proc/self/cgroup", "0::/\n");
    write(groups / "cpu.max", "400000 100000\n");
    CHECK(cpu_quota(root) == 4);
  }
}

}  // namespace deltapipe
