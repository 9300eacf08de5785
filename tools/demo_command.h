// `loramux demo`: serves the demo model that came with the program.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "tools/command_line/command_line.h"

namespace loramux {

// Runs `loramux serve` on the demo model with all its adapters, with flags that it prints.
Command DemoCommand();

// The folder with the demo's `model` and `adapters`, of a program at `program`: ../share/loramux/demo from its folder
// (a package, a wheel or a tarball), or demo/ of the source tree that it was built in. Error: neither is there.
Result<std::filesystem::path> FindDemo(const std::filesystem::path& program);

}  // namespace loramux
