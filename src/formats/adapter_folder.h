// What a folder holds that is no adapter as its tool saves one, for the messages of its refusal.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace loramux {

// The GGUF file of an adapter at `path`: `path` itself, or the only one in a folder without adapter_config.json. Looks
// at no more than some thousand names; blocks on the disk.
std::optional<std::filesystem::path> GgufFileOfAdapter(const std::filesystem::path& path);

// Whether a folder holds an adapter, or what its owner may take for one: then the check of it says what is wrong.
bool HoldsAdapter(const std::filesystem::path& path);

// Looks at the names in `directory` for what people mistake for an adapter: the shards of one, an adapter of mlx-lm or
// in GGUF, checkpoints of a training, several adapters in sub-folders, a whole model. Returns what it seems to hold and
// what to do, without a full stop; empty: nothing known. Looks at no more than some thousand names; blocks on the disk.
std::string WhatAdapterFolderHolds(const std::filesystem::path& directory);

}  // namespace loramux
