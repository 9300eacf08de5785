#include "record/world_samples.h"

namespace loramux {

WorldSample SampleOf(const EngineStats& stats, TimeNs at) {
  return {.at = at,
          .running = stats.running,
          .waiting = stats.waiting,
          .free_pages = stats.device.free_pages,
          .running_kv_pages = stats.device.used(PageCategory::kKv) - stats.history_pages,
          .history_pages = stats.history_pages,
          .adapter_pages = stats.device.used(PageCategory::kAdapter),
          .idle_adapter_pages = stats.idle_adapter_pages,
          .steps = stats.steps};
}

void WorldSamples::Add(const WorldSample& sample) {
  if (samples_.size() == kMostSamples) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < samples_.size(); i += 2) samples_[kept++] = samples_[i];
    samples_.resize(kept);
    gap_ *= 2;
  }
  samples_.push_back(sample);
}

}  // namespace loramux
