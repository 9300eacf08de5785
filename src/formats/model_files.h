// The text files of a model, whether it is a Hugging Face directory or a GGUF file, and of an adapter.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>

#include "base/result.h"

namespace loramux {

// Whether `model` is a GGUF file: its name ends in ".gguf", and it is no directory.
bool IsGgufModel(const std::filesystem::path& model);

// The content of a file of a model: `path` is MODEL/NAME, as "DIR/config.json" or "FILE.gguf/config.json". A GGUF file
// has config.json, generation_config.json, tokenizer.json and tokenizer_config.json, made of its metadata. Errors:
// kNotFound (no such file); the file has more than `max_bytes`; those of the GGUF file.
Result<std::string> ReadModelFile(const std::filesystem::path& path, std::size_t max_bytes);

// Reads a text file of an adapter's folder. `check` (may be empty) is asked about the opened file's real location, as
// in OpenAdapter. Errors: kNotFound (there is none), more than `max_bytes`, what `check` says, those of the file.
Result<std::string> ReadAdapterText(const std::filesystem::path& path, std::size_t max_bytes,
                                    const std::function<Status(const std::filesystem::path&)>& check = {});

}  // namespace loramux
