// The architecture of a base model, read from a Hugging Face `config.json`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace loramux {

enum class ModelFamily { kLlama, kMistral, kQwen2, kQwen3 };

const char* ModelFamilyName(ModelFamily family);

// Rotary position embedding. `kDynamic` is NTK scaling by the current length (transformers' "dynamic").
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kDynamic, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  std::int64_t original_max_position = 0;  // llama3; dynamic (always max_position, as in transformers)
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // even
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position = 0;  // max_position_embeddings
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool attention_qkv_bias = false;     // q, k, v have biases (Qwen2; Llama and Qwen3 with attention_bias)
  bool attention_output_bias = false;  // o has one too (Llama and Qwen3 with attention_bias)
  bool mlp_bias = false;
  bool qk_norm = false;  // per-head RMS norm of q and k (Qwen3)
  bool tie_word_embeddings = false;
  // Per layer: number of positions that attention sees, itself included; 0 = all. Size num_layers.
  std::vector<std::int64_t> sliding_window;
  std::vector<TokenId> eos_token_ids;  // from generation_config.json if there, else from config.json
  TokenId bos_token_id = -1;           // -1 if none
  std::string dtype;                   // "bfloat16", ... as written; informational

  std::int64_t QDim() const { return num_heads * head_dim; }
  std::int64_t KvDim() const { return num_kv_heads * head_dim; }
};

// Parses the text of a config.json. Accepts both spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype)
// and 5 (rope_parameters, dtype, layer_types); what is absent means what it means there. Errors name the field, what
// was expected and what was found; an unknown architecture, an activation other than silu, a rope type other than the
// four above, quantized weights and mixtures of experts are refused by name. Extents are bounded (each, and QDim(), at
// most 2^24, layers at most 1024) so that later products cannot overflow. `label` names the source in errors.
Result<ModelConfig> ParseModelConfig(std::string_view json, const std::string& label);

// Reads DIR/config.json and, if present, DIR/generation_config.json (for eos_token_id, which may be a list).
Result<ModelConfig> LoadModelConfig(const std::filesystem::path& directory);

}  // namespace loramux
