#include "engine/control_plane.h"

#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/check.h"
#include "worth/cache_regime.h"

namespace loramux {
namespace {

std::unique_ptr<DependencyTree> MakeTree(const ControlPlaneOptions& options) {
  const std::int64_t page_tokens = options.engine.spec.page_tokens;
  if (!options.engine.spec.keep_history) return std::make_unique<DependencyTree>(page_tokens);
  const bool host_tier = options.kv_in_host_tier && options.host->capacity_pages() > 0;
  auto tree =
      std::make_unique<DependencyTree>(page_tokens, options.device.get(), host_tier ? options.host.get() : nullptr,
                                       options.engine.spec.usage_window, options.hash_seed);
  tree->set_state_pages(options.engine.spec.state_pages);
  return tree;
}

}  // namespace

Result<std::unique_ptr<ControlPlane>> ControlPlane::Create(ControlPlaneOptions options) {
  CHECK(options.device != nullptr);
  if (options.host == nullptr) options.host = PagePool::WithoutPages(options.device->page_bytes());
  std::unique_ptr<ControlPlane> plane(new ControlPlane(std::move(options)));
  const ControlPlaneOptions& o = plane->options_;
  const SystemSpec& spec = o.engine.spec;
  const std::int64_t device_bytes = o.device->capacity_pages() * o.device->page_bytes();
  if (spec.adapter_bytes > device_bytes - o.device->page_bytes()) {
    return InvalidArgument(fmt::format("--adapter-memory: expected less than the device's {}, of which keys and values "
                                       "need some, found {}",
                                       FormatBytes(device_bytes), FormatBytes(spec.adapter_bytes)),
                           "--adapter-memory");
  }
  ASSIGN_OR_RETURN(const CacheRegime regime, FindCacheRegime(spec.cache));
  ASSIGN_OR_RETURN(plane->eviction_, MakeEvictionPolicy(regime.policy, spec.score_weights));
  ASSIGN_OR_RETURN(plane->queue_, MakeQueueOrder(spec));
  plane->tree_ = MakeTree(o);
  return plane;
}

std::unique_ptr<Engine> ControlPlane::Connect(const Surroundings& surroundings) {
  const Surroundings& s = surroundings;
  kv_tiers_ = moves_kv() ? std::make_unique<KvTiers>(*tree_, *options_.device, *options_.host, s.transfer,
                                                     options_.engine.kv_slices)
                         : std::make_unique<KvTiers>(*tree_);
  return std::make_unique<Engine>(options_.engine,
                                  EngineParts{.clock = &s.clock,
                                              .executor = &s.executor,
                                              .transfer = &s.transfer,
                                              .device = options_.device.get(),
                                              .host = options_.host.get(),
                                              .registry = &s.registry,
                                              .eviction = s.eviction != nullptr ? s.eviction : eviction_.get(),
                                              .tree = tree_.get(),
                                              .tiers = kv_tiers_.get(),
                                              .queue = queue_.get(),
                                              .predictor = s.predictor != nullptr ? s.predictor : &no_predictor_,
                                              .wakeup = &s.wakeup,
                                              .observer = s.observer != nullptr ? s.observer : &no_observer_});
}

}  // namespace loramux
