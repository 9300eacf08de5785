// Measures the transfer links through what serves them, the CPU's thread or the device's copy streams with pinned
// memory: the time of moves of different sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "adapter/registry.h"
#include "base/prng.h"
#include "base/result.h"
#include "runtime/placed_model.h"

namespace loramux {

// Sizes and median times of moves over one link.
struct LinkMeasurements {
  std::vector<double> bytes, seconds;
};

// The measurements of all links.
struct LinkMeasurementsOfAll {
  LinkMeasurements disk, host_to_device, device_to_host;
};

// Measures all links. Host and device: moves of 1 to 64 MiB (at least one page), each with other pages, so that they
// come from memory and not from a CPU cache. Disk: loads each adapter from its file, transposition included; the file
// is dropped from the page cache first, as far as the system permits. `seconds` is the approximate duration. Errors: no
// memory for the moves; those of the transfers.
Result<LinkMeasurementsOfAll> MeasureLinks(const PlacedModel& model,
                                           const std::vector<std::shared_ptr<const AdapterVersion>>& adapters,
                                           std::int64_t page_bytes, double seconds, Prng& prng);

}  // namespace loramux
