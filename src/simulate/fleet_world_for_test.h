// A small fleet with a small load, for tests.
#pragma once

#include <vector>

#include <gtest/gtest.h>

#include "simulate/fleet.h"

namespace loramux {

// Servers with 3 GB of memory for keys, values and adapters: room for a few of the adapters at a time.
inline FleetOptions SmallFleet(std::int64_t servers, const std::string& policy) {
  FleetOptions options{.servers = servers};
  options.server.device = DescribeDevice(FindDevice("a10").value(), FindModel("llama-7b").value()).value();
  options.server.device.device_pages = options.server.device.PagesOf(3e9);
  options.server.host_bytes = 4e9;
  options.server.preset = FindPreset("loramux").value();
  options.server.preset.spec.max_running = 16;
  options.server.preset.spec.objective = 2 * kNsPerSecond;
  options.dispatcher.policy = policy;
  options.keep_log = true;
  return options;
}

inline Workload SmallLoad(std::int64_t requests, double rate, std::uint64_t seed = 1, double turns = 1) {
  return MakeWorkload({.requests = requests,
                       .rate = rate,
                       .input_mean = 100,
                       .output_mean = 12,
                       .max_input = 800,
                       .max_output = 60,
                       .adapters = 20,
                       .ranks = {8, 32, 64},
                       .turns = turns,
                       .think_seconds = 0.5,
                       .seed = seed})
      .value();
}

inline std::vector<std::string> AllRoutePolicies() {
  std::vector<std::string> names;
  for (const RoutePolicyName& policy : RoutePolicies()) names.emplace_back(policy.name);
  return names;
}

}  // namespace loramux
