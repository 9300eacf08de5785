// Reads and writes whole text files: traces, tasks and reports.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace loramux {

// Read or write a file. Errors name the path; reading refuses files over 1 GiB.
Result<std::string> ReadTextFile(const std::string& path);
Status WriteTextFile(const std::string& path, std::string_view text);

}  // namespace loramux
