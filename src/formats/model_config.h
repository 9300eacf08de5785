// The architecture of a base model, read from a Hugging Face `config.json`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace loramux {

// The supported architectures.
enum class ModelFamily { kLlama, kMistral, kQwen2, kQwen3 };

// The family's name for messages.
const char* ModelFamilyName(ModelFamily family);

// Rotary position embedding. `kDynamic` is NTK scaling by the current length ("dynamic" in transformers).
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kDynamic, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  std::int64_t original_max_position = 0;  // llama3; dynamic (always max_position, as in transformers)
};

// The architecture of a base model.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // even
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t added_tokens = 0;  // of the vocabulary's last ones, those that only adapters have (AddTokens)
  std::int64_t max_position = 0;  // max_position_embeddings
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool attention_qkv_bias = false;     // biases of q, k, v (Qwen2; Llama and Qwen3 with attention_bias)
  bool attention_output_bias = false;  // bias of o (Llama and Qwen3 with attention_bias)
  bool mlp_bias = false;
  bool qk_norm = false;  // per-head RMS norm of q and k (Qwen3)
  bool tie_word_embeddings = false;
  bool without_head = false;  // the architecture has no output layer ("Qwen3Model"); tied embeddings serve as one
  // For each layer, the number of positions that attention sees, including the current one; 0: all. Size num_layers.
  std::vector<std::int64_t> sliding_window;
  std::vector<TokenId> eos_token_ids;  // from generation_config.json if present, else config.json
  TokenId bos_token_id = -1;           // -1: none
  std::string dtype;                   // as written ("bfloat16", ...); informational
  // The JSON text of quantization_config; empty: weights in floats. The room `quant` says what it reads of it.
  std::string quantization;
  // Lengths to which embeddings may be cut (matryoshka_dimensions); empty: any (is_matryoshka). nullopt: none.
  std::optional<std::vector<std::int64_t>> matryoshka;

  // The most positions that can be computed as the model says: max_position, or `factor` times as many with kDynamic.
  std::int64_t MostPositions() const;
  // Whether positions of a sequence up to this length turn alike whatever its length is.
  bool TurnsAlike(std::int64_t length) const {
    return rope.scaling != RopeConfig::Scaling::kDynamic || length <= max_position;
  }

  // Makes room in the vocabulary for tokens that the base model does not have: adapters bring their rows of the
  // embedding and of the output matrix. Without an adapter's row, a token can be neither read nor generated.
  void AddTokens(std::int64_t count) {
    vocab_size += count;
    added_tokens += count;
  }
  std::int64_t BaseTokens() const { return vocab_size - added_tokens; }

  std::int64_t QDim() const { return num_heads * head_dim; }
  std::int64_t KvDim() const { return num_kv_heads * head_dim; }
};

// Parses the text of a config.json. Accepts the spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype) and
// 5 (rope_parameters, dtype, layer_types); absent fields have the defaults of transformers. Errors name the field, what
// was expected and what was found. Refused by name: an unknown architecture, an activation other than silu, a rope type
// other than the four above, and mixtures of experts. Extents are bounded so that later products
// cannot overflow: each extent and QDim() by 2^24, layers by 1024. `label` names the source in errors.
Result<ModelConfig> ParseModelConfig(std::string_view json, const std::string& label);

// Reads DIR/config.json and, if present, DIR/generation_config.json (for eos_token_id, which may be a list).
Result<ModelConfig> LoadModelConfig(const std::filesystem::path& directory);

}  // namespace loramux
