// What a folder holds that is no adapter as its tool saves one, for the messages of its refusal.
#pragma once

#include <filesystem>
#include <string>

namespace loramux {

// What to do with an adapter in a GGUF file.
inline constexpr const char* kGgufAdapterHint =
    "a GGUF adapter was converted from an adapter of PEFT (convert_lora_to_gguf.py): give the folder that it was made "
    "from, with adapter_config.json and adapter_model.safetensors";

// Looks at the names in `directory` for what people mistake for an adapter: the shards of one, an adapter of mlx-lm or
// in GGUF, checkpoints of a training, several adapters in sub-folders, a whole model. Returns what it seems to hold and
// what to do, without a full stop; empty: nothing known. Looks at no more than some thousand names; blocks on the disk.
std::string WhatAdapterFolderHolds(const std::filesystem::path& directory);

}  // namespace loramux
