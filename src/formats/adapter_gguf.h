// Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them. Internal to formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"
#include "formats/file.h"
#include "formats/safetensors.h"
#include "formats/tensor_reader.h"

namespace loramux {

// What such a file holds, in PEFT's form.
struct GgufAdapter {
  AdapterConfig config;
  std::vector<TensorEntry> tensors;
  // Without a base model: whether the rows of queries and keys lie in an order that depends on its heads.
  bool rows_need_base = false;
};

// Reads the head of a file of `file_bytes` bytes: `head` is its beginning. `model` may be null. `label` names the file.
// Error (metadata or tensor named): no adapter, or what loramux does not serve.
Result<GgufAdapter> ParseGgufAdapter(std::span<const std::byte> head, std::uint64_t file_bytes,
                                     const ModelConfig* model, const TensorFileLimits& limits,
                                     const std::string& label);

// The same of an open file. Reads the head alone.
Result<GgufAdapter> ReadGgufAdapter(const RegularFile& file, const std::filesystem::path& path,
                                    const ModelConfig* model, const TensorFileLimits& limits);

}  // namespace loramux
