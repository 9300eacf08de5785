// Metrics of this process as the operating system reports them, under the names that Prometheus clients use.
#pragma once

#include <vector>

#include <prometheus/metric_family.h>

namespace loramux {

// Returns process_resident_memory_bytes, process_virtual_memory_bytes, process_cpu_seconds_total,
// process_start_time_seconds, process_threads, process_open_fds and process_max_fds. Leaves out values that the system
// does not provide. Thread-safe.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace loramux
