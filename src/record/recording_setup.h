// The setup of a recording as JSON.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "record/recording.h"

namespace loramux {

// All fields except `history`.
std::string SetupAsJson(const RecordedSetup& setup);
// A setting that is not there has its default: the server was older. Errors name the field that is missing, has an
// invalid value, or is not known.
Result<RecordedSetup> SetupFromJson(std::string_view json);

}  // namespace loramux
