// The setup of a recording as JSON.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/recording.h"

namespace loramux {

// All of it but `history`.
std::string SetupAsJson(const RecordedSetup& setup);
// Errors name the field: it is missing, or has a value that no server has.
Result<RecordedSetup> SetupFromJson(std::string_view json);

}  // namespace loramux
