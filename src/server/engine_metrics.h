// The engine's part of /metrics, from one snapshot: nothing here is remembered between scrapes, so no series outlives
// what it is about.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <prometheus/metric_family.h>

#include "adapter/registry.h"
#include "engine/snapshot.h"

namespace loramux {

struct EngineMetricsInput {
  const EngineSnapshot* snapshot = nullptr;
  std::vector<std::shared_ptr<const AdapterVersion>> registered;  // AdapterRegistry::List()
  std::string model_name;
  std::size_t top_adapters = 50;  // with series of their own
  std::int64_t unix_seconds = 0;
};

std::vector<prometheus::MetricFamily> EngineMetrics(const EngineMetricsInput& input);

}  // namespace loramux
