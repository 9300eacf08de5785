// One server of a simulation: the control plane of `serve` (ControlPlane, Engine) with an executor and transfers that
// are models. A simulation of one server and one of a fleet make the same object. It runs on a clock and a queue of
// events that are not its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapter/registry.h"
#include "base/clock.h"
#include "cluster/server_snapshot.h"
#include "engine/control_plane.h"
#include "engine/engine.h"
#include "engine/wakeup.h"
#include "schedule/predict/oracle_predictor.h"
#include "simulate/event_queue.h"
#include "simulate/simulated_executor.h"
#include "simulate/simulated_transfer.h"
#include "simulate/simulation.h"
#include "workload/workload.h"

namespace loramux {

// What all servers need to know of a workload: its adapters, registered once, and its longest sequences. Servers change
// nothing of it but the list of retired generations, so servers share it unless the adapters change during the run.
class SimulatedAdapters {
 public:
  // Adapter i of the workload is named "adapter-<i>". Its digest is its name. Error: as AdapterRegistry::Commit.
  static Result<std::shared_ptr<SimulatedAdapters>> Create(const SimulatedDevice& device, const Workload& workload);

  // Gives an adapter other content, named by `digest`. Requests in flight keep the old one.
  void Replace(std::size_t adapter, const std::string& digest);

  // The present version of an adapter. REQUIRES: adapter < size().
  const AdapterVersion& Of(std::size_t adapter) const { return *versions_[adapter]; }
  std::size_t size() const { return versions_.size(); }
  // The generation for a request; of adapter -1 the base model's.
  AdapterGeneration GenerationOf(std::int32_t adapter) const {
    return adapter < 0 ? kBaseModel : versions_[static_cast<std::size_t>(adapter)]->generation;
  }
  // Position of the generation's name among all names in ascending order.
  std::uint32_t OrderOf(AdapterGeneration generation) const { return order_[generation.value]; }
  AdapterRegistry& registry() { return registry_; }
  // Positions of the longest sequence, at least 2, and tokens of the longest output.
  std::int64_t max_model_len() const { return max_model_len_; }
  std::int32_t longest_output() const { return longest_output_; }

 private:
  AdapterRegistry registry_{ModelConfig{}, {"base"}, {}};
  std::int64_t max_model_len_ = 2;
  std::int32_t longest_output_ = 0;
  std::vector<std::shared_ptr<const AdapterVersion>> versions_;
  std::vector<std::uint32_t> order_;  // by generation
};

// What a server is made with, beside its options. The pointers must outlive it.
struct SimulatedPlace {
  const Clock* clock = nullptr;
  EventQueue* events = nullptr;
  std::int32_t server = 0;  // the server's number in its events
  std::string instance;     // ServerSnapshot::instance. Not empty: it keeps what Snapshot needs
};

// The complete description of a simulated server. Error: an unknown cache.
Result<SystemSpec> SpecOf(const SimulationOptions& options, std::int64_t max_model_len);

// The server. Not thread-safe.
class SimulatedServer {
 public:
  // `options` must outlive the server. Errors: an unknown cache or order; memory too small for one page.
  static Result<std::unique_ptr<SimulatedServer>> Create(const SimulationOptions& options, SimulatedPlace place,
                                                         std::shared_ptr<SimulatedAdapters> adapters);
  ~SimulatedServer();

  // Lets the engine do all that can be done now.
  void Run() {
    while (engine_->Step()) {
    }
  }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }
  SimulatedAdapters& adapters() { return *adapters_; }
  const SimulatedAdapters& adapters() const { return *adapters_; }
  const SimulatedExecutor& executor() const { return executor_; }
  const SimulatedTransfer::Links& links() const { return transfer_.links(); }
  // How much of the adapter's last load to the device lies between `from` and `to`.
  TimeNs LoadedBetween(AdapterGeneration generation, TimeNs from, TimeNs to) const {
    return transfer_.LoadedBetween(generation.value, from, to);
  }

  // Gives an adapter other content (SimulatedAdapters::Replace).
  void ReplaceAdapter(std::size_t adapter, const std::string& digest);

  // Whether a request with this adapter can begin at once. REQUIRES: as Snapshot.
  bool HasOnDevice(AdapterGeneration generation) const;

  // What a server of this state publishes for routers; each call has a new version. Not to be called during Run.
  // REQUIRES: an instance (SimulatedPlace).
  ServerSnapshot Snapshot(bool draining);

 private:
  class Watcher;
  SimulatedServer(const SimulationOptions& options, SimulatedPlace place, std::shared_ptr<SimulatedAdapters> adapters);
  Status Build();
  // Tells the engine of all adapters. The host tier then holds them, as far as it has room: at once, or if they lie on
  // disk, when they were read.
  void RegisterAdapters();
  void DescribeAdapters(ServerSnapshot& snapshot) const;

  const SimulationOptions& options_;
  const SimulatedPlace place_;
  const std::shared_ptr<SimulatedAdapters> adapters_;
  SimulatedTransfer transfer_;
  SimulatedExecutor executor_;
  OraclePredictor predictor_;
  Wakeup wakeup_;
  std::unique_ptr<Watcher> watcher_;  // null: no snapshots
  std::unique_ptr<ControlPlane> plane_;
  std::unique_ptr<Engine> engine_;
  std::uint64_t version_ = 0;  // version of the last snapshot
};

}  // namespace loramux
