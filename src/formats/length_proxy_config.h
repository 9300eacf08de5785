// The config.json of a length proxy: a Hugging Face BertForSequenceClassification whose labels are ranges of output
// tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace loramux {

// A class: `low` to `high` output tokens, inclusive; high == 0: no upper bound.
struct LengthBucket {
  std::int32_t low = 1, high = 0;
  friend bool operator==(const LengthBucket&, const LengthBucket&) = default;
};

// The architecture and the classes of a length proxy.
struct LengthProxyConfig {
  std::int64_t hidden_size = 0, num_layers = 0, num_heads = 0, intermediate_size = 0;
  std::int64_t vocab_size = 0, max_position = 0, type_vocab_size = 0;
  float layer_norm_eps = 1e-12f;
  std::vector<LengthBucket> buckets;  // by class; ascending and without gaps
};

// Parses a config.json; `label` names the source in errors. Error (names the field, what was expected and what was
// found): another model_type or architecture, an activation other than "gelu", relative positions, extents out of
// bounds, labels that are not ranges "LOW-HIGH" (the last may be "LOW-").
Result<LengthProxyConfig> ParseLengthProxyConfig(std::string_view json, const std::string& label);
// Reads DIR/config.json.
Result<LengthProxyConfig> LoadLengthProxyConfig(const std::filesystem::path& directory);

}  // namespace loramux
