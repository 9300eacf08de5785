// Writes PEFT adapters with random weights, for benchmarks and for `loramux profile`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/adapter_config.h"

namespace loramux {

// Creates DIR with adapter_config.json and adapter_model.safetensors (bf16), with rank `rank` on the given targets of
// every layer (of each of its experts too, but in Granite 4 of the block beside them alone), and on lm_head if that is
// one. Deterministic in `seed`.
Status WriteRandomAdapter(const std::filesystem::path& directory, const ModelConfig& model, std::int32_t rank,
                          const std::vector<LoraTarget>& targets, std::uint64_t seed);

}  // namespace loramux
