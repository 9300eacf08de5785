// Measures what it costs that the processor computes with adapters which are not on the device yet (CpuAssist).
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>

#include "adapter/registry.h"
#include "base/result.h"
#include "costs/cpu_assist.h"
#include "runtime/placed_model.h"

namespace loramux {

// Measures for the targets and the type of `adapters`, with the workers' own kernel over ranks 8 to 128 on rows that
// are in no processor cache, and with their hand-over to the device. On the CPU nothing is measured: it reads the host
// tier in place (no cores). Without adapters: CpuAssist::measured() is false. `cores`: as many may compute. Takes about
// `seconds`. Error: no memory on the device, or the device fails.
Result<CpuAssist> MeasureAssist(const PlacedModel& model,
                                std::span<const std::shared_ptr<const AdapterVersion>> adapters, std::int64_t cores,
                                double seconds);

}  // namespace loramux
