// What the operating system says of this process, under the names that Prometheus clients give it.
#pragma once

#include <vector>

#include <prometheus/metric_family.h>

namespace loramux {

// process_resident_memory_bytes, process_virtual_memory_bytes, process_cpu_seconds_total, process_start_time_seconds,
// process_threads, process_open_fds, process_max_fds. What the system does not tell is left out. Any thread.
std::vector<prometheus::MetricFamily> ProcessMetrics();

}  // namespace loramux
