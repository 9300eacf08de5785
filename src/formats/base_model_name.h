// Whether an adapter was trained on the base model that is served. Only names tell: adapters hold no digest of it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace loramux {

// Whether two names or paths are probably those of one model: their last parts are equal, without regard to case,
// "Meta-" at the beginning, and words at the end that say how the weights are stored ("-bnb-4bit", "-GPTQ-Int4",
// "-Q4_K_M.gguf", "-hf"). "meta-llama/Llama-3.1-8B" and "/models/llama-3.1-8b-AWQ/" are; a path within the cache of
// Hugging Face
// (".../models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f") counts as the model's name.
bool SameModelName(std::string_view a, std::string_view b);

// Returns the names by which the model in `directory` may be known: the path as given, the real path, and
// `_name_or_path` of its config.json.
std::vector<std::string> NamesOfModel(const std::filesystem::path& directory);

}  // namespace loramux
