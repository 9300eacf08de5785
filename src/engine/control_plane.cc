#include "engine/control_plane.h"

#include <utility>

#include "base/check.h"
#include "cache/cache_regime.h"

namespace loramux {

Result<std::unique_ptr<ControlPlane>> ControlPlane::Create(ControlPlaneOptions options) {
  CHECK(options.device != nullptr);
  std::unique_ptr<ControlPlane> plane(new ControlPlane(std::move(options)));
  const ControlPlaneOptions& o = plane->options_;
  ASSIGN_OR_RETURN(plane->eviction_, MakeEvictionPolicy(o.eviction));
  ASSIGN_OR_RETURN(plane->queue_, MakeQueueOrder(o.queue));
  if (o.prefix_cache) {
    PagePool* const host = o.kv_in_host_tier ? o.host.get() : nullptr;
    plane->tree_ = std::make_unique<DependencyTree>(o.engine.scheduler.page_tokens, o.device.get(), host,
                                                    kFrequencyHalfLife, o.hash_seed);
  }
  return plane;
}

std::unique_ptr<Engine> ControlPlane::Connect(const Surroundings& surroundings) {
  const Surroundings& s = surroundings;
  return std::make_unique<Engine>(options_.engine,
                                  EngineParts{.clock = &s.clock,
                                              .executor = &s.executor,
                                              .transfer = &s.transfer,
                                              .device = options_.device.get(),
                                              .host = options_.host.get(),
                                              .registry = &s.registry,
                                              .eviction = s.eviction != nullptr ? s.eviction : eviction_.get(),
                                              .tree = tree_.get(),
                                              .kv_transfer = moves_kv() ? s.kv_transfer : nullptr,
                                              .queue = queue_.get(),
                                              .predictor = s.predictor,
                                              .wakeup = &s.wakeup,
                                              .observer = s.observer != nullptr ? s.observer : &no_observer_});
}

}  // namespace loramux
