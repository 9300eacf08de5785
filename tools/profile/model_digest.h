// Which weights a profile was measured on.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace loramux {

// XXH3 (128 bits, hexadecimal) of the names, types, shapes and contents of a model directory's tensors, in file order:
// another order of shards is another digest. Not cryptographic. Reads every byte. Errors: those of opening it.
Result<std::string> ModelDigest(const std::filesystem::path& directory);

}  // namespace loramux
