// What each family of models has, as data: a row for each architecture, with the defaults of its class in transformers
// and the names of its parts. docs/design/extending.md says how to add one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/model_config.h"

namespace loramux {

// The names of a layer's norms after "model.layers.N."; null: the family has no such norm.
struct NormNames {
  const char* attention = nullptr;         // the norm before attention
  const char* attention_output = nullptr;  // the norm of attention's output
  const char* mlp = nullptr;               // the norm before the feed-forward block
  const char* mlp_output = nullptr;
};

// Which layers have a sliding window where `layer_types` does not say it.
enum class WindowRule : std::uint8_t {
  kNever,
  kAlways,      // Mistral
  kFrom,        // from max_window_layers on, if use_sliding_window says so (Qwen)
  kButEachNth,  // all but each n-th: n is sliding_window_pattern
  kAllIfUsed,   // all, if use_sliding_window says so
};

// Which layers turn queries and keys.
enum class RopeRule : std::uint8_t {
  kAll,
  kListed,       // as no_rope_layers says (SmolLM3)
  kSlidingOnly,  // those with a window, or all if none has one (EXAONE 4)
  kNamed,        // all, if position_embedding_type says so (Granite 4)
  kNever,        // none
};

// Which biases the linear layers have.
enum class BiasRule : std::uint8_t {
  kNone,
  kAttention,  // q, k, v and o, if attention_bias says so
  kQkv,        // q, k and v, if attention_bias says so
  kAlwaysQkv,  // q, k and v
  kAllOrNone,  // all layers, if the key says so
  kMlpAlways,  // q, k, v and o if the key says so; those of the feed-forward block always
};

// What a field of config.json is called.
struct FieldNames {
  const char* intermediate = "intermediate_size";
  const char* norm_eps = "rms_norm_eps";
  const char* activation = "hidden_act";
  const char* bias = "attention_bias";
};

// What a family's mixtures of experts are.
struct ExpertRule {
  const char* count = nullptr;    // the field; null: the family has none
  const char* enabled = nullptr;  // the field without which there are none; null: there always are
  const char* other_count = nullptr;
  std::int64_t default_count = 0, default_per_token = 0;
  const char* per_token = "num_experts_per_tok";
  const char* intermediate = "intermediate_size";  // the field of the size of an expert
  std::int64_t default_intermediate = 0;           // 0: required
  bool always_renormalises = false;                // else norm_topk_prob says it
  bool renormalises = false;                       // norm_topk_prob, if missing
  bool sparse_step = false;                        // decoder_sparse_step and mlp_only_layers say which layers
  std::int64_t default_shared = 0;                 // the size of the shared expert, if missing; 0: there is none
  bool biases = false;                             // router and experts have biases
  const char* shared = "shared_expert_intermediate_size";  // the field of that size
  bool shared_gate = true;                                 // the shared expert has a gate
  const char* shared_block = "mlp.shared_expert.";         // where it is, after "model.layers.N."
  bool listed = false;                                     // layer_types says which layers have experts
  bool sigmoid = false;                                    // scores are sigmoids, as in DeepSeek-V3
  // There may be none: 0 of them, and feed-forward blocks of the size of the shared expert.
  bool may_be_none = false;
  bool beside_block = false;  // ExpertsConfig::beside_block
};

// One row of the table.
struct FamilyInfo {
  ModelFamily family;
  const char* name;  // model_type
  const char* architecture;
  // Defaults of fields that a config.json may leave out.
  std::int64_t max_position;
  std::int64_t vocab_size = 0, num_heads = 0;  // 0: required
  std::int64_t num_kv_heads = 0;               // 0: as many as heads
  std::int64_t head_dim = 0;                   // 0: hidden_size / num_attention_heads
  std::int64_t sliding_window = 0;             // 0: the family has none
  std::int64_t bos = -1, eos = -1;             // -1: none
  double norm_eps = 1e-6;
  double theta = 10000.0;
  bool tied = false;            // tie_word_embeddings
  bool attention_bias = false;  // whether layers have the biases of `biases`, if the configuration does not say it
  bool partial_rotary = false;  // partial_rotary_factor counts
  double partial_rotary_factor = 1.0;
  // What the family computes.
  Activation activation = Activation::kSilu;
  bool gated = true;
  FieldNames fields = {};
  NormNames norms = {.attention = "input_layernorm", .mlp = "post_attention_layernorm"};
  NormKind norm_kind = NormKind::kRms;
  double norm_weight_offset = 0.0;
  QkNorm qk_norm = QkNorm::kNone;
  BiasRule biases = BiasRule::kNone;
  bool mlp_bias = false;  // if mlp_bias says so
  WindowRule windows = WindowRule::kNever;
  std::int64_t window_pattern = 0;  // the default n of kButEachNth
  RopeRule ropes = RopeRule::kAll;
  double local_theta = 0.0;       // theta of layers with a window, which have an embedding of their own; 0: that of all
  bool adjacent_pairs = false;    // RopeConfig::adjacent_pairs
  bool scales_embedding = false;  // by the root of hidden_size
  bool query_scalar = false;      // query_pre_attn_scalar says the scale of attention; soft caps
  bool multipliers = false;       // those of Granite
  bool learned_positions = false;  // those of OPT: two rows before the first
  bool sinks = false;
  Alibi alibi = Alibi::kNone;
  bool embedding_norm = false;
  bool of_gemma4 = false;    // its norm of values, its scales of layers, its heads of full layers
  bool of_deltanet = false;  // recurrent layers beside those of attention, which have an output gate
  bool of_mamba = false;     // or layers of Mamba-2
  ExpertRule experts = {};
};

// A part of a layer, after "model.layers.N.": as this program calls it, and as a family's checkpoints do.
struct PartName {
  std::string_view ours, theirs;
};

// How a family's checkpoints call what Llama's call "model.layers.", "model.embed_tokens", "model.norm" and "lm_head".
// The first part of these names is missing in the files of a model without an output layer.
struct FamilyNames {
  ModelFamily family;
  std::string_view layers, embedding, norm, head;
  std::span<const PartName> parts;
  std::span<const PartName> others = {};  // outside the layers, by their whole names
};
// The names of the family; null: as Llama's. All of them.
const FamilyNames* NamesOf(ModelFamily family);
std::span<const FamilyNames> AllFamilyNames();
// The names under which a family's checkpoint may hold "model.layers.3.mlp.up_proj.weight", likeliest first.
std::vector<std::string> TheirNames(const FamilyNames& names, std::string_view ours);
// The other direction, of a module. A name that is none of the family's stays.
std::string OurName(const FamilyNames& names, std::string_view theirs);

// Whether its qkv_proj has the queries, keys and values of a group of heads after those of the group before.
inline bool FusesByHeads(ModelFamily family) {
  return family == ModelFamily::kGptNeoX || family == ModelFamily::kFalcon || family == ModelFamily::kBloom;
}

// Which rows of a fused layer are those of its parts, which have `sizes` rows: one part after the other, or the parts
// of a group of heads after those of the group before.
std::vector<std::vector<std::int64_t>> RowsOfFused(std::span<const std::int64_t> sizes, std::int64_t groups);

// Which rows of Qwen3-Next's in_proj_qkvz are those of in_proj_qkv and of in_proj_z: it has queries, keys, values and z
// of a head of keys after those of the head before. With `gates`, which of in_proj_ba those of in_proj_b and in_proj_a.
std::vector<std::vector<std::int64_t>> RowsOfFusedStates(const RecurrentConfig& config, bool gates);

// The row of the family.
const FamilyInfo& InfoOf(ModelFamily family);
// All rows, in the order in which messages name them.
std::span<const FamilyInfo> AllFamilies();

// A model of text and images whose text part is one of the families.
struct Wrapper {
  const char* architecture;
  const char* name;  // model_type
  const char* text;  // type of the text part, if it does not say it
};
// The wrapper of this architecture (first non-empty) or model_type; null: none.
const Wrapper* FindWrapper(std::string_view architecture, std::string_view model_type);
// The row of a text part by its model_type ("gemma3_text"), or of a whole model; null: none.
const FamilyInfo* FindFamilyByType(std::string_view model_type);
// "LlamaForCausalLM, MistralForCausalLM, ..."
std::string SupportedArchitectures();

}  // namespace loramux
