// The digest of the weights that a profile was measured on.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace loramux {

// Returns XXH3 (128 bits, hexadecimal) of the names, types, shapes and contents of the tensors in a model directory, in
// file order: the same tensors in another order of shards have another digest. Not cryptographic. Reads every byte.
// Errors: those of opening the model.
Result<std::string> ModelDigest(const std::filesystem::path& directory);

}  // namespace loramux
