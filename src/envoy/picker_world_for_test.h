// A picker over servers that are known by their snapshots alone.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/must.h"
#include "cluster/dispatcher.h"
#include "envoy/endpoint_picker.h"
#include "envoy/exchange.h"

namespace loramux {

// Three servers "a", "b" and "c" at 10.0.0.1:8000 to 10.0.0.3:8000, idle; the busier ones are last.
struct PickerWorld {
  explicit PickerWorld(std::string policy = "most-idle") {
    auto model = std::make_shared<PerformanceModel>();
    model->step = 0.01;
    model->per_prefill_token = 0.0001;
    DispatcherOptions options;
    options.policy = std::move(policy);
    options.model = model;
    picker = std::make_unique<EndpointPicker>(Must(Dispatcher::Create(options)), clock);
    picker->SetServers(servers);
    for (std::size_t i = 0; i < servers.size(); ++i) Report(servers[i].name, static_cast<std::int64_t>(i) * 3);
    clock.Advance(20 * kNsPerSecond);  // after the slow start
    for (std::size_t i = 0; i < servers.size(); ++i) Report(servers[i].name, static_cast<std::int64_t>(i) * 3);
  }

  void Report(const std::string& name, std::int64_t running) {
    ServerSnapshot snapshot;
    snapshot.instance = "instance-of-" + name;
    snapshot.version = ++version;
    snapshot.base_model = "base";
    snapshot.running = running;
    snapshot.max_running = 64;
    snapshot.max_batch_tokens = 512;
    snapshot.page_tokens = 16;
    snapshot.device_pages = snapshot.free_pages = 1000;
    picker->Observe(name, std::move(snapshot), clock.Now());
  }

  Dispatcher::ServerState State(const std::string& name) const {
    for (const auto& state : picker->States()) {
      if (state.name == name) return state;
    }
    return {};
  }

  VirtualClock clock;
  std::vector<PickerEndpoint> servers = {{"a", "10.0.0.1:8000"}, {"b", "10.0.0.2:8000"}, {"c", "10.0.0.3:8000"}};
  std::unique_ptr<EndpointPicker> picker;
  std::uint64_t version = 0;
};

}  // namespace loramux
