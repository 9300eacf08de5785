#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/must.h"
#include "tools/doctor/cgroup.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/examine.h"

namespace loramux::doctor_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// A machine made of files.
class Doctor : public testing::Test {
 protected:
  Doctor() : root_(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~Doctor() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
  // A machine on which nothing could be better.
  void WriteGoodMachine() {
    Write("proc/cpuinfo",
          "processor\t: 0\nmodel name\t: Test 9000\nflags\t\t: fpu sse2 avx2 fma avx512f avx512bw avx512vl\n");
    Write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\n");
    Write("proc/self/limits",
          "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024     1048576    files\n");
    Write("proc/self/cgroup", "0::/\n");
    Write("proc/loadavg", "0.25 0.30 0.10 1/300 4242\n");
    Write("proc/meminfo", "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   60000000 kB\n");
    Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    Write("sys/devices/system/node/online", "0\n");
    Write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
  }
  std::vector<Finding> All() const { return Examine(files(), facts_); }
  Finding Of(const std::string& name) const {
    for (const Finding& finding : All()) {
      if (finding.name == name) return finding;
    }
    ADD_FAILURE() << "no check " << name;
    return {};
  }
  CgroupLimits Limits() const { return ReadCgroupLimits(files()); }
  SystemFiles files() const { return SystemFiles(root_); }

  const fs::path root_;
  MachineFacts facts_{.address = "127.0.0.1:8000", .cache = "/cache", .cache_free = std::int64_t{100} << 30};
};

TEST_F(Doctor, AGoodMachineHasNothingToChange) {
  WriteGoodMachine();
  for (const Finding& finding : All()) {
    EXPECT_EQ(finding.verdict, CheckVerdict::kOk) << finding.name << ": " << finding.found;
    EXPECT_THAT(finding.advice, IsEmpty()) << finding.name;
  }
  EXPECT_FALSE(PreventsServing(All()));
  EXPECT_THAT(FindingsAsText(All()),
              AllOf(HasSubstr("ok      processor      Test 9000, AVX-512\n"), HasSubstr("Nothing could be better.")));
  EXPECT_EQ(FindingsAsJson(All())["serves"], true);
}

TEST_F(Doctor, AMachineWithoutAnyFileCanServe) { EXPECT_FALSE(PreventsServing(All())) << FindingsAsText(All()); }

TEST_F(Doctor, ProcessorsWithoutAvx2CouldBeBetter) {
  Write("proc/cpuinfo", "model name : Old\nflags : fpu sse2 sse4_2\n");
  EXPECT_EQ(Of("processor").verdict, CheckVerdict::kBetter);
  Write("proc/cpuinfo", "model name : Newer\nflags : fpu avx2 fma\n");
  EXPECT_EQ(Of("processor").found, "Newer, AVX2");
  Write("proc/cpuinfo", "CPU implementer : 0x41\nFeatures : fp asimd\n");
  EXPECT_EQ(Of("processor").found, "0x41, NEON");
}

TEST_F(Doctor, CgroupsOfVersion2AreReadUpToTheRoot) {
  Write("proc/self/cgroup", "0::/outer/inner\n");
  Write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/outer/cpu.max", "150000 100000\n");
  Write("sys/fs/cgroup/outer/inner/memory.max", "1073741824\n");
  Write("sys/fs/cgroup/outer/inner/memory.current", "4096\n");
  Write("sys/fs/cgroup/outer/inner/memory.stat", "anon 3000\nfile 1096\ninactive_file 1000\nactive_file 96\n");
  Write("sys/fs/cgroup/outer/memory.max", "2147483648\n");
  Write("sys/fs/cgroup/pids.max", "200\n");
  EXPECT_EQ(Limits().processors, 1.5);
  EXPECT_EQ(Limits().memory_bytes, std::int64_t{1} << 30);
  EXPECT_EQ(Limits().memory_used, 3000);  // cached files can be dropped
  EXPECT_EQ(Limits().tasks, 200);
}

TEST_F(Doctor, CgroupsOfVersion1) {
  Write("proc/self/cgroup", "12:memory:/docker/x\n5:cpu,cpuacct:/docker/x\n3:pids:/docker/x\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "536870912\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", "4096\n");
  Write("sys/fs/cgroup/memory/docker/x/memory.stat",
        "inactive_file 1\ntotal_inactive_file 96\ntotal_active_file 5000\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "400000\n");
  Write("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/pids/docker/x/pids.max", "max\n");
  EXPECT_EQ(Limits().processors, 4.0);
  EXPECT_EQ(Limits().memory_bytes, std::int64_t{512} << 20);
  EXPECT_EQ(Limits().memory_used, 0);
  EXPECT_EQ(Limits().tasks, std::nullopt);
}

TEST_F(Doctor, CgroupPathsStayInTheirTree) {
  Write("proc/self/cgroup", "0::/../../etc\n");
  Write("etc/memory.max", "1\n");
  Write("sys/fs/cgroup/memory.max", "2\n");
  EXPECT_EQ(Limits().memory_bytes, 2);
}

TEST_F(Doctor, LimitsOfTheGroupAreAdvice) {
  WriteGoodMachine();
  Write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(Of("threads").verdict, CheckVerdict::kBetter);
  EXPECT_THAT(Of("threads").advice, HasSubstr("--threads 2:"));
  Write("sys/fs/cgroup/memory.max", std::to_string(std::int64_t{4} << 30) + "\n");
  EXPECT_EQ(Of("memory").verdict, CheckVerdict::kBetter);
  EXPECT_THAT(Of("memory").advice, HasSubstr("--device-memory 1024MiB --host-memory 1024MiB"));
  Write("sys/fs/cgroup/memory.max", std::to_string(std::int64_t{100} << 20) + "\n");
  EXPECT_EQ(Of("memory").verdict, CheckVerdict::kWrong);
  EXPECT_TRUE(PreventsServing(All()));
  Write("sys/fs/cgroup/pids.max", "10\n");
  EXPECT_EQ(Of("tasks").verdict, CheckVerdict::kWrong);
}

TEST_F(Doctor, WhatSlowsEveryStep) {
  WriteGoodMachine();
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_EQ(Of("huge pages").verdict, CheckVerdict::kBetter);
  Write("sys/devices/system/node/online", "0-1\n");
  EXPECT_THAT(Of("NUMA").advice, HasSubstr("numactl"));
  Write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  EXPECT_THAT(Of("frequency").advice, HasSubstr("cpupower"));
  Write("proc/loadavg", "5.50 0.30 0.10 1/300 4242\n");
  EXPECT_THAT(Of("load").advice, HasSubstr("6 processors"));
  Write("proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_EQ(Of("address space").verdict, CheckVerdict::kBetter);
  EXPECT_FALSE(PreventsServing(All()));
}

TEST_F(Doctor, OpenFiles) {
  WriteGoodMachine();
  Write("proc/self/limits", "Max open files            1024                 1024                 files\n");
  EXPECT_EQ(Of("open files").verdict, CheckVerdict::kBetter);
  Write("proc/self/limits", "Max open files            16                 16                 files\n");
  EXPECT_EQ(Of("open files").verdict, CheckVerdict::kWrong);
  Write("proc/self/limits", "Max open files            16                 unlimited                 files\n");
  EXPECT_EQ(Of("open files").verdict, CheckVerdict::kOk);
}

TEST_F(Doctor, GpusDriversAndPlugins) {
  facts_.gpu_problem = "no driver";
  EXPECT_EQ(Of("GPU").verdict, CheckVerdict::kOk);
  Write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  Write("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  EXPECT_EQ(Of("GPU").verdict, CheckVerdict::kBetter);
  EXPECT_THAT(Of("GPU").found, HasSubstr("no driver"));
  facts_.gpus = {"H100", "H100"};
  facts_.plugin_problem = "it is not there";
  EXPECT_EQ(Of("GPU").found, "H100 and 1 more; without its plugin");
  facts_.plugin = "/usr/lib/libloramux_cuda.so";
  EXPECT_EQ(Of("GPU").verdict, CheckVerdict::kOk);
}

TEST_F(Doctor, PortsAndTheCache) {
  facts_.address_problem = "127.0.0.1:8000 is in use";
  EXPECT_EQ(Of("port").verdict, CheckVerdict::kWrong);
  EXPECT_TRUE(PreventsServing(All()));
  facts_.cache_free = 5;
  EXPECT_EQ(Of("model cache").verdict, CheckVerdict::kBetter);
  facts_.cache_writable = false;
  EXPECT_THAT(Of("model cache").found, HasSubstr("not writable"));
}

// Files of a host that means ill: no crash, no control characters, numbers out of range taken as unknown.
TEST_F(Doctor, HostileFiles) {
  const std::vector<std::string> texts = {"",
                                          "\n",
                                          std::string(100000, '9'),
                                          std::string("\0\x1b[2J\xff\n", 7),
                                          "-1",
                                          "[",
                                          "]never[",
                                          "18446744073709551616 0",
                                          "0::\n0:\n::::\n:",
                                          std::string(70000, '\n'),
                                          "1 0 \n",
                                          "0-99999999999999,",
                                          "Max open files",
                                          "MemTotal: 9223372036854775807 kB\nMemAvailable: 9 kB\n",
                                          "nan nan\n",
                                          "max max\n"};
  const std::vector<std::string> paths = {"proc/cpuinfo",
                                          "proc/self/status",
                                          "proc/self/limits",
                                          "proc/self/cgroup",
                                          "proc/loadavg",
                                          "proc/meminfo",
                                          "proc/sys/vm/overcommit_memory",
                                          "sys/fs/cgroup/cpu.max",
                                          "sys/fs/cgroup/memory.max",
                                          "sys/fs/cgroup/memory.current",
                                          "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
                                          "sys/kernel/mm/transparent_hugepage/enabled",
                                          "sys/devices/system/node/online"};
  for (const std::string& path : paths) {
    WriteGoodMachine();
    for (const std::string& text : texts) {
      Write(path, text);
      const std::string report = FindingsAsText(All());
      for (const char c : report) ASSERT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= ' ') << path;
      EXPECT_THAT(FindingsAsJson(All()).dump(), Not(IsEmpty()));
    }
  }
}

TEST_F(Doctor, NamesCannotSteerATerminal) {
  Write("proc/cpuinfo", "model name : a\x1b]0;b\x07\nflags : avx2 fma\n");
  EXPECT_THAT(FindingsAsText(All()), Not(HasSubstr("\x1b")));
}

TEST_F(Doctor, FoldersInPlaceOfFilesAreUnknown) {
  fs::create_directories(root_ / "proc/meminfo");
  fs::create_directories(root_ / "proc/cpuinfo");
  EXPECT_THAT(Of("memory").found, HasSubstr("cannot be read"));
}

TEST(SystemFilesText, ListsAndNumbers) {
  EXPECT_EQ(CountOfList("0-3,8,10-11"), 7);
  EXPECT_EQ(CountOfList("3-0"), std::nullopt);
  EXPECT_EQ(CountOfList("0-65536"), std::nullopt);
  EXPECT_EQ(CountOfList("-9223372036854775808-9223372036854775807"), std::nullopt);
  EXPECT_EQ(CountOf(" 12\n"), 12);
  EXPECT_EQ(CountOf("12x"), std::nullopt);
  EXPECT_EQ(ValueOf("MemTotalX: 3\nMemTotal: 4 kB\n", "MemTotal"), "4 kB");
}

}  // namespace
}  // namespace loramux::doctor_test
