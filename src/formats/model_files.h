// The JSON files of a model, whether it is a Hugging Face directory or a GGUF file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace loramux {

// Whether `model` is a GGUF file: its name ends in ".gguf", and it is no directory.
bool IsGgufModel(const std::filesystem::path& model);

// The content of a file of a model: `path` is MODEL/NAME, as "DIR/config.json" or "FILE.gguf/config.json". A GGUF file
// has config.json, generation_config.json, tokenizer.json and tokenizer_config.json, made of its metadata. Errors:
// kNotFound (no such file); the file has more than `max_bytes`; those of the GGUF file.
Result<std::string> ReadModelFile(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace loramux
