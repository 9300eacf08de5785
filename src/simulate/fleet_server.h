// One place of a simulated fleet: a server that may start, freeze, drain, die and start again. It knows no router.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "simulate/event_queue.h"
#include "simulate/fleet.h"
#include "simulate/simulated_server.h"

namespace loramux {

// Not thread-safe.
class FleetServer {
 public:
  // What became of a request that was sent here.
  enum class Offer : std::uint8_t {
    kAccepted,    // it will be executed
    kHeld,        // the connection stands, but the server is frozen
    kRefused,     // by the engine; `message` says why
    kNotStarted,  // draining, or it has other content than was demanded
    kNoConnection,
  };
  // A request that a frozen server has not read yet.
  struct Held {
    std::size_t index = 0;
    std::int32_t adapter = -1;
    GenerationRequest request;
    std::string digest;  // digest that was demanded
  };

  // All arguments must outlive the server. It is down.
  FleetServer(const SimulationOptions& options, const Clock& clock, EventQueue& events, std::int32_t index);

  // Begins a new life with nothing in memory. REQUIRES: down. Errors: as SimulatedServer::Create.
  Status Start(std::shared_ptr<SimulatedAdapters> adapters);
  // Ends this life at once. Requests that it had are gone. REQUIRES: up.
  void Stop();

  bool up() const { return server_ != nullptr; }
  // Whether it can do anything now.
  bool runs() const { return up() && !frozen; }
  const std::string& name() const { return name_; }
  std::int64_t life() const { return totals_.starts; }
  // REQUIRES: up.
  SimulatedServer& server() { return *server_; }

  // A router sends a request for an adapter (-1: the base model). The request is moved from if the result is kAccepted,
  // kHeld or kRefused. A frozen server holds it until someone calls Take again.
  Offer Take(std::size_t index, std::int32_t adapter, GenerationRequest& request, const std::string& digest,
             std::string& message);
  // The content that it has of an adapter.
  const std::string& DigestOf(std::int32_t adapter) const;
  // Cancels a request that it has.
  void Cancel(std::size_t index);
  // A request is over.
  void Forget(std::size_t index) { requests_.erase(index); }
  // Requests that it executes, ascending.
  std::vector<std::size_t> Requests() const;

  // Its state now; the same object until something happened.
  std::shared_ptr<const ServerSnapshot> Snapshot();
  // Something happened.
  void Changed() {
    ++change_;
    snapshot_ = nullptr;
  }
  std::uint64_t change() const { return change_; }

  FleetServerTotals& totals() { return totals_; }
  // Adds what the present life did. Call once, at the end.
  void CountLife();

  bool frozen = false, draining = false, refusing = false;  // refusing: nothing new is taken
  TimeNs frozen_since = 0;
  bool touched = false, move_pending = false;
  std::vector<Held> held;

 private:
  const SimulationOptions& options_;
  const Clock& clock_;
  EventQueue& events_;
  const std::int32_t index_;
  const std::string name_;
  std::unique_ptr<SimulatedServer> server_;
  std::map<std::size_t, RequestId> requests_;
  std::shared_ptr<const ServerSnapshot> snapshot_;
  std::uint64_t change_ = 1;
  FleetServerTotals totals_;
};

}  // namespace loramux
