// config.json of a length proxy: a Hugging Face BertForSequenceClassification whose labels are ranges of output tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loramux {

// A class: from `low` tokens to `high`; 0: open.
struct LengthBucket {
  std::int32_t low = 1, high = 0;
  friend bool operator==(const LengthBucket&, const LengthBucket&) = default;
};

struct LengthProxyConfig {
  std::int64_t hidden_size = 0, num_layers = 0, num_heads = 0, intermediate_size = 0;
  std::int64_t vocab_size = 0, max_position = 0, type_vocab_size = 0;
  float layer_norm_eps = 1e-12f;
  std::vector<LengthBucket> buckets;  // by class; ascending, each beginning right after the one before
};

// Errors name the field, what was expected and what was found: another model_type or architecture, another activation
// than "gelu", relative positions, extents out of bounds, labels that are no ranges "LOW-HIGH" (the last may be "LOW-",
// open).
Result<LengthProxyConfig> ParseLengthProxyConfig(std::string_view json, const std::string& label);
// Reads DIR/config.json.
Result<LengthProxyConfig> LoadLengthProxyConfig(const std::filesystem::path& directory);

}  // namespace loramux
