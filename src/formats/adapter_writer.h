// Writes adapters as PEFT saves them, whatever form they were read from.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "formats/adapter_config.h"

namespace loramux {

// Error: `directory` cannot be the folder of a new adapter, because it has content.
Status CheckNewAdapterDirectory(const std::filesystem::path& directory);

// Writes `file` to the new or empty `directory`: adapter_config.json, adapter_model.safetensors and, from the folder of
// `file`, what it has of tokenizer, chat template and generation settings. The folder is complete or not there at all.
// What is written is read again, and has the digest of `file`. `model` is the one with which `file` was opened; null:
// none. Errors: as CheckNewAdapterDirectory; kIoError; kUnsupported: the order of rows is unknown without a model.
Status WriteAdapter(const AdapterFile& file, const ModelConfig* model, const std::filesystem::path& directory);

}  // namespace loramux
