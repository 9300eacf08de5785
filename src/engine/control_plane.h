// The one assembly of the control plane: page pools, dependency tree, its tiers, eviction policy, queue order and
// engine. Server, simulator, replay, benchmarks and tests assemble it here. They differ in their options, and in what
// the engine is connected to: a clock, an executor and a transfer that are real or modelled.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "memory/page_pool.h"
#include "prefix/dependency_tree.h"
#include "residency/kv_tiers.h"
#include "schedule/predict/length_predictor.h"
#include "schedule/queue/queue_order.h"
#include "worth/eviction_policy.h"

namespace loramux {

// Options of ControlPlane.
struct ControlPlaneOptions {
  std::unique_ptr<PagePool> device;  // required
  std::unique_ptr<PagePool> host;    // null: no host tier
  EngineOptions engine;              // its spec is complete (Complete)
  bool kv_in_host_tier = true;       // with a prefix cache and a host tier: history may move there
  std::uint64_t hash_seed = 0;       // seed of the tree's hashes (PrefixIndex)
};

// What an engine works with besides the control plane. All must outlive the engine. Pointers may be null.
struct Surroundings {
  const Clock& clock;
  Executor& executor;
  PageTransfer& transfer;
  AdapterRegistry& registry;
  Wakeup& wakeup;                            // signalled when there is work
  LengthPredictor* predictor = nullptr;      // null: none
  EngineObserver* observer = nullptr;        // null: none
  const EvictionPolicy* eviction = nullptr;  // null: that of the regime
};

// Owns the parts. Thread-safe as far as they are.
class ControlPlane {
 public:
  // Makes all but the engine. Errors: an unknown name, or options that the queue order refuses.
  static Result<std::unique_ptr<ControlPlane>> Create(ControlPlaneOptions options);

  // Makes the engine. Call it once; the engine must be destroyed before the control plane.
  std::unique_ptr<Engine> Connect(const Surroundings& surroundings);

  PagePool& device() const { return *options_.device; }
  PagePool& host() const { return *options_.host; }  // without a host tier it has no pages
  DependencyTree& tree() const { return *tree_; }    // without a prefix cache it keeps nothing
  // True if keys and values may move between the tiers.
  bool moves_kv() const { return tree_->keeps_history() && host().capacity_pages() > 0 && options_.kv_in_host_tier; }
  // The memory of the pools, for transfers.
  TierMemory tiers() const { return {host().View(), device().View()}; }

 private:
  explicit ControlPlane(ControlPlaneOptions options) : options_(std::move(options)) {}

  ControlPlaneOptions options_;
  std::unique_ptr<EvictionPolicy> eviction_;
  std::unique_ptr<QueueOrder> queue_;
  std::unique_ptr<DependencyTree> tree_;
  std::unique_ptr<KvTiers> kv_tiers_;  // from Connect on
  EngineObserver no_observer_;
  NoPredictor no_predictor_;
};

}  // namespace loramux
