#include "server/metrics/process_metrics.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

#include <sys/resource.h>
#include <unistd.h>

namespace loramux {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

void Add(std::vector<MetricFamily>& families, MetricType type, std::string name, std::string help, double value) {
  prometheus::ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  families.push_back({std::move(name), std::move(help), type, {std::move(metric)}});
}

// Returns the fields of /proc/self/stat from the third on (proc(5)). Skips the second, the program's name, because it
// may contain any character.
std::vector<double> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(line.substr(name_end + 1));
  std::string state;
  rest >> state;
  std::vector<double> fields = {0};
  fields.insert(fields.end(), std::istream_iterator<double>(rest), std::istream_iterator<double>());
  return fields;
}

// Returns the Unix time at which the machine was booted; 0 if unknown.
double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  }
  return 0;
}

void AddStat(std::vector<MetricFamily>& families) {
  const std::vector<double> fields = StatFields();
  const auto field = [&](int number) { return fields[static_cast<std::size_t>(number - 3)]; };  // numbers as in proc(5)
  if (fields.size() < 22) return;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Add(families, MetricType::Counter, "process_cpu_seconds_total", "CPU time, user and system.",
      (field(14) + field(15)) / ticks);
  Add(families, MetricType::Gauge, "process_threads", "Number of threads.", field(20));
  if (const double boot = BootTime(); boot > 0) {
    Add(families, MetricType::Gauge, "process_start_time_seconds", "Unix time at which the process started.",
        boot + field(22) / ticks);
  }
  Add(families, MetricType::Gauge, "process_virtual_memory_bytes", "Virtual memory size.", field(23));
  Add(families, MetricType::Gauge, "process_resident_memory_bytes", "Resident memory size.",
      field(24) * static_cast<double>(sysconf(_SC_PAGESIZE)));
}

void AddDescriptors(std::vector<MetricFamily>& families) {
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (!error) {
    const auto count = std::distance(begin(open), end(open)) - 1;  // without the iterator's own descriptor
    Add(families, MetricType::Gauge, "process_open_fds", "Number of open file descriptors.",
        static_cast<double>(count));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    Add(families, MetricType::Gauge, "process_max_fds", "Maximum number of open file descriptors.",
        static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace

std::vector<MetricFamily> ProcessMetrics() {
  std::vector<MetricFamily> families;
  AddStat(families);
  AddDescriptors(families);
  return families;
}

}  // namespace loramux
