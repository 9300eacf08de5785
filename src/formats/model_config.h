// The architecture of a base model, read from a Hugging Face `config.json`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "formats/activation.h"
#include "formats/layer_forms.h"
#include "formats/recurrent_config.h"

namespace loramux {

// The supported architectures. What they have in common and what not is a table: formats/model_family.h.
enum class ModelFamily {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kGemma2,
  kGemma3,
  kGemma4,
  kGranite,
  kOlmo2,
  kOlmo3,
  kSmolLm3,
  kExaone4,
  kPhi3,
  kGlm,
  kGlm4,
  kStableLm,
  kGptNeoX,
  kFalcon,
  kOpt,
  kBloom,
  kMinistral3,
  kMixtral,
  kQwen2Moe,
  kQwen3Moe,
  kOlmoe,
  kGraniteMoe,
  kGptOss,
  kQwen35,
  kQwen35Moe,
  kQwen3Next,
  kGraniteHybrid,
  kFalconH1,
  kNemotronH,
};

// The family's name for messages.
const char* ModelFamilyName(ModelFamily family);

// The architecture of a base model.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;  // divides num_heads
  std::int64_t head_dim = 0;      // even
  // Those of layers with a window (`other_slide`), or of those without, if these are other heads. Their keys are no
  // longer, so that pages have room for them.
  std::optional<HeadShape> other_heads;
  bool other_slide = false;
  // The last layers have no keys and values, but read those of the last layer before them that sees as far.
  std::int64_t shared_kv_layers = 0;
  bool shared_are_wide = false;        // their feed-forward blocks are twice as large
  std::int64_t layer_input_size = 0;   // width of each layer's own inputs (Gemma 4); 0: layers have none
  double layer_input_scale = 1.0;      // factor of the embedding rows that make these inputs
  std::int64_t intermediate_size = 0;  // feed-forward width; if all layers have experts, the shared expert's or one's
  std::int64_t vocab_size = 0;
  std::int64_t added_tokens = 0;  // tokens at the end of the vocabulary that only adapters have (AddTokens)
  std::int64_t max_position = 0;  // max_position_embeddings
  double norm_eps = 1e-6;
  NormKind norm_kind = NormKind::kRms;
  double norm_weight_offset = 0.0;  // what is added to the stored weights of norms (1 in Gemma)
  NormPlaces norm_places = NormPlaces::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  BlockOrder block_order = BlockOrder::kSequential;
  Activation activation = Activation::kSilu;
  bool gated = true;  // the feed-forward block is down(f(gate) * up), else down(f(up)) without a gate
  double swiglu_alpha = 0.0, swiglu_limit = 0.0;  // constants of Activation::kClampedSwiglu
  bool sinks = false;                             // each head has one more logit, which has no value (gpt-oss)
  Alibi alibi = Alibi::kNone;
  bool value_norm = false;       // each head of v is normed, without weights
  bool keys_are_values = false;  // in layers without a window, v is k before its norm
  bool layer_scales = false;     // a layer's result is multiplied by a number of its own
  std::optional<ExpertsConfig> experts;
  std::optional<RecurrentConfig> recurrent;
  std::vector<LayerPart> layer_parts;  // by layer; empty: kBoth
  BlockScales block_scales;
  // What attention gives is multiplied by the sigmoid of gates; q_proj has the gates of each head after its queries.
  bool output_gate = false;
  // Positions are rows of a matrix, this many before that of position 0, and are added to the embedding; nullopt: not.
  std::optional<std::int64_t> position_rows_before;
  // The width of the embedding and of the output layer, which projections turn into hidden_size and back; 0: that.
  std::int64_t embedding_size = 0;
  bool embedding_norm = false;      // the embedding is normed
  bool final_norm = true;           // the result of the last layer is normed
  double embedding_scale = 1.0;     // factor of the rows of the embedding
  double residual_scale = 1.0;      // factor of what each block adds
  double logit_scale = 1.0;         // factor of the logits, before the cap
  double logit_soft_cap = 0.0;      // c: logits are c tanh(logit / c); 0: none
  double attention_scale = 0.0;     // factor of the products of queries and keys; 0: 1 / sqrt(head_dim)
  double attention_soft_cap = 0.0;  // c: scaled products are c tanh(product / c); 0: none
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;
  std::vector<LayerRope> layer_rope;   // by layer; empty: kMain
  bool attention_qkv_bias = false;     // biases of q, k, v (Qwen2; Llama and Qwen3 with attention_bias)
  bool attention_output_bias = false;  // bias of o (Llama and Qwen3 with attention_bias)
  bool mlp_bias = false;
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
  // The length up to which positions of a sequence turn alike whatever its length is; whether all up to `length` do.
  std::int64_t TurnsAlikeUpTo(const RopeConfig& of) const {
    if (of.scaling == RopeConfig::Scaling::kDynamic) return max_position;
    const bool has_long = of.scaling == RopeConfig::Scaling::kLongRope;
    return has_long ? of.original_max_position : std::numeric_limits<std::int64_t>::max();
  }
  std::int64_t TurnsAlikeUpTo() const { return TurnsAlikeUpTo(rope); }
  bool TurnsAlike(std::int64_t length) const { return length <= TurnsAlikeUpTo(); }
  LayerRope RopeOf(std::int64_t layer) const {
    return layer_rope.empty() ? LayerRope::kMain : layer_rope[static_cast<std::size_t>(layer)];
  }
  // How many elements of a head turn.
  std::int64_t RotaryDim(const RopeConfig& of) const { return of.rotary_dim == 0 ? head_dim : of.rotary_dim; }
  // By what the query at a position is multiplied, besides.
  float QueryScale(std::int64_t position) const {
    if (rope.query_beta == 0 || position < rope.original_max_position) return 1.0f;
    const auto steps = static_cast<float>(position / rope.original_max_position);
    return 1.0f + static_cast<float>(rope.query_beta) * std::log(1.0f + steps);
  }
  // The scale of the products of queries and keys.
  float AttentionScale() const {
    return attention_scale > 0 ? static_cast<float>(attention_scale) : 1.0f / std::sqrt(static_cast<float>(head_dim));
  }

  // Makes room in the vocabulary for tokens that the base model does not have: adapters bring their rows of the
  // embedding and of the output matrix. Without an adapter's row, a token can be neither read nor generated.
  void AddTokens(std::int64_t count) {
    vocab_size += count;
    added_tokens += count;
  }
  std::int64_t BaseTokens() const { return vocab_size - added_tokens; }

  // Whether a layer has attention or a recurrence; a feed-forward block or experts.
  bool Has(LayerPart part, std::int64_t layer) const {
    return layer_parts.empty() || layer_parts[static_cast<std::size_t>(layer)] == LayerPart::kBoth ||
           layer_parts[static_cast<std::size_t>(layer)] == part;
  }
  // Whether a layer has experts; whether it has a feed-forward block that is none.
  bool HasExperts(std::int64_t layer) const { return experts && experts->layers[static_cast<std::size_t>(layer)]; }
  bool HasOwnBlock(std::int64_t layer) const {
    return Has(LayerPart::kFeedForward, layer) &&
           (!HasExperts(layer) || experts->shared_size > 0 || experts->beside_block);
  }
  // The size of that block; of the largest, or of an expert if that is larger.
  std::int64_t BlockSize(std::int64_t layer) const {
    if (HasExperts(layer) && experts->shared_size > 0) return experts->shared_size;
    return shared_are_wide && SharesKv(layer) ? 2 * intermediate_size : intermediate_size;
  }
  std::int64_t MostBlockSize() const {
    const std::int64_t own = shared_are_wide ? 2 * intermediate_size : intermediate_size;
    return experts ? std::max({own, experts->shared_size, experts->intermediate_size}) : own;
  }

  // The rows of gate and up of such a block together.
  std::int64_t GateUpDim(std::int64_t block_size) const { return gated ? 2 * block_size : block_size; }
  // The width of a row of the embedding, of what goes into the output layer, and of the model's last hidden state.
  std::int64_t EmbeddingSize() const { return embedding_size == 0 ? hidden_size : embedding_size; }

  // The rows of q, and of k or v, of layers without other heads.
  std::int64_t QDim() const { return num_heads * head_dim; }
  std::int64_t KvDim() const { return num_kv_heads * head_dim; }
  bool Slides(std::int64_t layer) const { return sliding_window[static_cast<std::size_t>(layer)] != 0; }
  // The heads of layers with or without a window; of a layer.
  HeadShape HeadsOfKind(bool slides) const {
    return other_heads && other_slide == slides ? *other_heads : HeadShape{num_kv_heads, head_dim};
  }
  HeadShape HeadsOf(std::int64_t layer) const {
    return other_heads ? HeadsOfKind(Slides(layer)) : HeadShape{num_kv_heads, head_dim};
  }
  std::int64_t QDim(std::int64_t layer) const { return num_heads * HeadsOf(layer).head_dim; }
  std::int64_t KvDim(std::int64_t layer) const { return HeadsOf(layer).num_kv_heads * HeadsOf(layer).head_dim; }
  // The rows of q_proj; of all that is computed of a layer's input at first: q_proj, k_proj and v_proj, or
  // RecurrentConfig::InputRows of a recurrent layer.
  std::int64_t QProjDim(std::int64_t layer) const { return output_gate ? 2 * QDim(layer) : QDim(layer); }
  std::int64_t QkvDim(std::int64_t layer) const {
    if (!HasAttention(layer)) return IsRecurrent(layer) ? recurrent->InputRows() : 0;
    return QProjDim(layer) + (SharesKv(layer) ? 0 : 2 * KvDim(layer));
  }
  // The width of what goes into o_proj, or into out_proj.
  std::int64_t MostAttended() const { return std::max(MostQDim(), recurrent ? recurrent->Values() : 0); }
  // The most of all layers.
  std::int64_t MostHeadDim() const { return std::max(head_dim, other_heads ? other_heads->head_dim : 0); }
  std::int64_t MostQDim() const { return num_heads * MostHeadDim(); }
  std::int64_t MostQkvDim() const {
    const std::int64_t other = other_heads ? (num_heads + 2 * other_heads->num_kv_heads) * other_heads->head_dim : 0;
    const std::int64_t states = recurrent ? recurrent->InputRows() : 0;
    return std::max({QDim() * (output_gate ? 2 : 1) + 2 * KvDim(), other, states});
  }
  // Whether a layer has a state; whether it has keys and values; how many have these before a layer, and in all.
  bool IsRecurrent(std::int64_t layer) const { return recurrent && recurrent->layers[static_cast<std::size_t>(layer)]; }
  bool HasAttention(std::int64_t layer) const {
    return Has(LayerPart::kMixer, layer) && (!IsRecurrent(layer) || recurrent->beside_attention);
  }
  std::int64_t KvIndex(std::int64_t layer) const {
    if (!recurrent && layer_parts.empty()) return layer;
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < layer; ++i) before += HasAttention(i) ? 1 : 0;
    return before;
  }
  std::int64_t KvLayers() const { return KvIndex(num_layers); }
  // Whether a layer's values are its keys before their norm.
  bool ValuesAreKeys(std::int64_t layer) const { return keys_are_values && !Slides(layer); }
  // Whether a layer has no keys and values; the layer whose it reads.
  bool SharesKv(std::int64_t layer) const { return layer >= num_layers - shared_kv_layers; }
  std::int64_t KvSource(std::int64_t layer) const {
    if (!SharesKv(layer)) return layer;
    std::int64_t source = num_layers - shared_kv_layers - 1;
    while (Slides(source) != Slides(layer)) --source;
    return source;
  }
};

// Parses the text of a config.json. Accepts the spellings of transformers 4 (rope_theta, rope_scaling, torch_dtype) and
// 5 (rope_parameters, dtype, layer_types); absent fields have the defaults of transformers. Errors name the field, what
// was expected and what was found. Of a model of text and images, the text part is read. Refused by name: an unknown
// architecture, an activation or a rope type other than those above. Extents are bounded so
// that later products cannot overflow: each extent and QDim() by 2^24, layers by 1024. `label` names the source in
// errors.
Result<ModelConfig> ParseModelConfig(std::string_view json, const std::string& label);

// Reads DIR/config.json and, if present, DIR/generation_config.json (for eos_token_id, which may be a list).
Result<ModelConfig> LoadModelConfig(const std::filesystem::path& directory);

}  // namespace loramux
