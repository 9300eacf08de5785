// Whole systems by name. Those of the source papers are here as far as SystemSpec can express them, so that simulator
// and server compare the same systems.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "schedule/system_spec.h"

namespace loramux {

// What a system's own program costs beside the work of the device, as its published source and runs show. Only
// simulations know these costs (SimulatedServer); on a real server they are in the measured times.
struct ProgramCosts {
  std::int64_t link_passes = 1;  // times that an adapter's bytes cross the link for one load
  double load_seconds = 0;       // beside the bytes, for each load: its copies on the device. Loads do it one by one.
  // The host's work for a layer in a step, in seconds. It runs ahead of the device, so that a step takes the longer of
  // the two. 0: the device is never waited for.
  double layer_seconds = 0;
  // The host's work for each request of a step's batch, in seconds: sampling, bookkeeping, messages. The device waits.
  double request_seconds = 0;
};

// A system by name.
struct Preset {
  std::string_view name = {};  // unique
  std::string_view what = {};  // description, with the source
  SystemSpec spec = {};        // what an operator sets beside a preset goes over it, before Complete
  // Whether `spec.cold_start_policy` is part of the system. If not, a server has its own default.
  bool decides_cold_start = false;
  bool all_on_device = false;  // every adapter stays on the device from the start (CaraServe's CACHED)
  ProgramCosts program = {};
};

// All presets, those of loramux first.
std::span<const Preset> Presets();
// Finds a preset by name. Error: an unknown name; the message lists the valid ones.
Result<Preset> FindPreset(std::string_view name);

}  // namespace loramux
