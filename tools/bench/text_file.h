// Whole text files, for traces, tasks and reports.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux::load {

// Errors name the path; files over 1 GiB are refused.
Result<std::string> ReadTextFile(const std::string& path);
Status WriteTextFile(const std::string& path, std::string_view text);

}  // namespace loramux::load
