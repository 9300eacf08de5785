// Flags for the constants that the source documents give, the same in `serve` and `simulate`. Their defaults are the
// documents' values.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "schedule/presets.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// Times in seconds.
struct ConstantFlags {
  DocumentConstants constants;  // what is no time
  double lane_refresh = 300, expect_bin = 1, swap_interval = 0.1, batch_window = 5;
};

// Adds the flags to `line`; they write into `flags`, which must outlive the parse.
void AddConstantFlags(CommandLine& line, ConstantFlags& flags);
// The constants that the flags say. Error: thresholds in the wrong order.
Result<DocumentConstants> ConstantsOf(const ConstantFlags& flags);

}  // namespace loramux
