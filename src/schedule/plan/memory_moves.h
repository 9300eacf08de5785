// What a plan moves in memory.
#pragma once

#include <vector>

#include "base/ids.h"
#include "cache/tree_nodes.h"

namespace loramux {

// The load of an adapter to the device.
struct PlannedLoad {
  AdapterGeneration adapter;
  bool via_host = false;  // the host tier keeps a copy
  bool begins = false;    // a request of the plan begins with that copy
};

// Evictions, and the loads that they make room for.
struct MemoryMoves {
  std::vector<NodeId> kv_evictions;  // leaves first
  std::vector<AdapterGeneration> device_evictions;
  std::vector<AdapterGeneration> host_evictions;
  std::vector<PlannedLoad> loads;

  // Empties all and keeps the memory.
  void Clear() {
    kv_evictions.clear();
    device_evictions.clear();
    host_evictions.clear();
    loads.clear();
  }
};

}  // namespace loramux
