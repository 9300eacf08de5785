// The transfer links, measured through the thread that serves them: how long moves of different sizes take.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "adapter/registry.h"
#include "base/prng.h"
#include "base/result.h"

namespace loramux {

// Medians of repetitions.
struct LinkMeasurements {
  std::vector<double> bytes, seconds;
};

struct LinkMeasurementsOfAll {
  LinkMeasurements disk, host_to_device, device_to_host;
};

// Host and device: 1 to 64 MiB of pages (at least one), each time other pages, so that they come from memory. Disk:
// each adapter from its file, transposition included; the file's pages are dropped from the system's cache first, as
// far as the system lets us. `seconds`: about how long it may take.
Result<LinkMeasurementsOfAll> MeasureLinks(const std::vector<std::shared_ptr<const AdapterVersion>>& adapters,
                                           std::int64_t page_bytes, double seconds, Prng& prng);

}  // namespace loramux
