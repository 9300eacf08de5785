// The setup of a recording as JSON.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "record/recording.h"

namespace loramux {

// All fields except `history`.
std::string SetupAsJson(const RecordedSetup& setup);
// Errors name the field that is missing or has an invalid value.
Result<RecordedSetup> SetupFromJson(std::string_view json);

}  // namespace loramux
