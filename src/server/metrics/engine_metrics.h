// The engine's part of /metrics, computed from one snapshot. No state is kept between scrapes, so a series ends
// together with the adapter that it describes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <prometheus/metric_family.h>

#include "adapter/registry.h"
#include "engine/snapshot.h"

namespace loramux {

// The input of EngineMetrics.
struct EngineMetricsInput {
  const EngineSnapshot* snapshot = nullptr;
  std::vector<std::shared_ptr<const AdapterVersion>> registered;  // from AdapterRegistry::List()
  // The value of the label model_name.
  std::string model_name;
  std::size_t top_adapters = 50;  // adapters with series of their own; the others are summed up
  // The time of the scrape.
  std::int64_t unix_seconds = 0;
};

// Returns the engine's metric families. REQUIRES: input.snapshot is not null.
std::vector<prometheus::MetricFamily> EngineMetrics(const EngineMetricsInput& input);

}  // namespace loramux
