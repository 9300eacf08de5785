#include "formats/model_family.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"

namespace loramux {
namespace {

constexpr NormNames kAfterBoth = {.attention_output = "post_attention_layernorm",
                                  .mlp_output = "post_feedforward_layernorm"};
constexpr NormNames kOfGemma = {.attention = "input_layernorm",
                                .attention_output = "post_attention_layernorm",
                                .mlp = "pre_feedforward_layernorm",
                                .mlp_output = "post_feedforward_layernorm"};
constexpr NormNames kOfGlm4 = {.attention = "input_layernorm",
                               .attention_output = "post_self_attn_layernorm",
                               .mlp = "post_attention_layernorm",
                               .mlp_output = "post_mlp_layernorm"};

// Source: the configuration classes and the modelling files of transformers 5.24.
constexpr std::array<FamilyInfo, 33> kFamilies = {{
    {.family = ModelFamily::kLlama,
     .name = "llama",
     .architecture = "LlamaForCausalLM",
     .max_position = 2048,
     .bos = 1,
     .eos = 2,
     .biases = BiasRule::kAttention,
     .mlp_bias = true},
    {.family = ModelFamily::kMistral,
     .name = "mistral",
     .architecture = "MistralForCausalLM",
     .max_position = 131072,
     .num_kv_heads = 8,
     .sliding_window = 4096,
     .bos = 1,
     .eos = 2,
     .windows = WindowRule::kAlways},
    {.family = ModelFamily::kQwen2,
     .name = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .max_position = 32768,
     .num_kv_heads = 32,
     .sliding_window = 4096,
     .biases = BiasRule::kAlwaysQkv,
     .windows = WindowRule::kFrom},
    {.family = ModelFamily::kQwen3,
     .name = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .max_position = 32768,
     .num_kv_heads = 32,
     .head_dim = 128,
     .sliding_window = 4096,
     .qk_norm = QkNorm::kHeads,
     .biases = BiasRule::kAttention,
     .windows = WindowRule::kFrom},
    {.family = ModelFamily::kGemma2,
     .name = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .max_position = 8192,
     .num_kv_heads = 4,
     .head_dim = 256,
     .sliding_window = 4096,
     .bos = 2,
     .eos = 1,
     .tied = true,
     .activation = Activation::kGeluTanh,
     .fields = {.activation = "hidden_activation"},
     .norms = kOfGemma,
     .norm_weight_offset = 1.0,
     .biases = BiasRule::kAttention,
     .windows = WindowRule::kButEachNth,
     .window_pattern = 2,
     .scales_embedding = true,
     .query_scalar = true},
    {.family = ModelFamily::kGemma3,
     .name = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .max_position = 131072,
     .vocab_size = 262208,
     .num_heads = 8,
     .num_kv_heads = 4,
     .head_dim = 256,
     .sliding_window = 4096,
     .bos = 2,
     .eos = 1,
     .theta = 1000000.0,
     .tied = true,
     .activation = Activation::kGeluTanh,
     .fields = {.activation = "hidden_activation"},
     .norms = kOfGemma,
     .norm_weight_offset = 1.0,
     .qk_norm = QkNorm::kHeads,
     .biases = BiasRule::kAttention,
     .windows = WindowRule::kButEachNth,
     .window_pattern = 6,
     .local_theta = 10000.0,
     .scales_embedding = true,
     .query_scalar = true},
    {.family = ModelFamily::kGemma4,
     .name = "gemma4_text",
     .architecture = "Gemma4ForCausalLM",
     .max_position = 131072,
     .vocab_size = 262144,
     .num_heads = 8,
     .num_kv_heads = 4,
     .head_dim = 256,
     .sliding_window = 512,
     .bos = 2,
     .eos = 1,
     .theta = 1000000.0,
     .tied = true,
     .activation = Activation::kGeluTanh,
     .fields = {.activation = "hidden_activation"},
     .norms = kOfGemma,
     .qk_norm = QkNorm::kHeads,
     .biases = BiasRule::kAttention,
     .windows = WindowRule::kButEachNth,
     .window_pattern = 6,
     .local_theta = 10000.0,
     .scales_embedding = true,
     .of_gemma4 = true,
     .experts = {.count = "num_experts",
                 .enabled = "enable_moe_block",
                 .per_token = "top_k_experts",
                 .intermediate = "moe_intermediate_size",
                 .always_renormalises = true,
                 .shared_block = "mlp.",
                 .beside_block = true}},
    {.family = ModelFamily::kGranite,
     .name = "granite",
     .architecture = "GraniteForCausalLM",
     .max_position = 2048,
     .bos = 1,
     .eos = 2,
     .biases = BiasRule::kAttention,
     .mlp_bias = true,
     .multipliers = true},
    {.family = ModelFamily::kOlmo2,
     .name = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .max_position = 2048,
     .eos = 50279,
     .norm_eps = 1e-5,
     .norms = kAfterBoth,
     .qk_norm = QkNorm::kRow,
     .biases = BiasRule::kAttention},
    {.family = ModelFamily::kOlmo3,
     .name = "olmo3",
     .architecture = "Olmo3ForCausalLM",
     .max_position = 2048,
     .sliding_window = 4096,
     .eos = 50279,
     .norm_eps = 1e-5,
     .theta = 500000.0,
     .norms = kAfterBoth,
     .qk_norm = QkNorm::kRow,
     .biases = BiasRule::kAttention,
     .windows = WindowRule::kButEachNth,
     .window_pattern = 4,
     .local_theta = 500000.0},
    {.family = ModelFamily::kSmolLm3,
     .name = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .max_position = 32768,
     .num_kv_heads = 4,
     .bos = 128000,
     .eos = 128001,
     .theta = 2000000.0,
     .tied = true,
     .biases = BiasRule::kAttention,
     .mlp_bias = true,
     .windows = WindowRule::kFrom,
     .ropes = RopeRule::kListed},
    {.family = ModelFamily::kExaone4,
     .name = "exaone4",
     .architecture = "Exaone4ForCausalLM",
     .max_position = 2048,
     .sliding_window = 4096,
     .bos = 0,
     .eos = 2,
     .norm_eps = 1e-5,
     .norms = kAfterBoth,
     .qk_norm = QkNorm::kHeads,
     .windows = WindowRule::kButEachNth,
     .window_pattern = 4,
     .ropes = RopeRule::kSlidingOnly},
    {.family = ModelFamily::kPhi3,
     .name = "phi3",
     .architecture = "Phi3ForCausalLM",
     .max_position = 4096,
     .bos = 1,
     .eos = 32000,
     .norm_eps = 1e-5,
     .partial_rotary = true,
     .windows = WindowRule::kAlways},
    {.family = ModelFamily::kGlm,
     .name = "glm",
     .architecture = "GlmForCausalLM",
     .max_position = 131072,
     .num_kv_heads = 2,
     .head_dim = 128,
     .norm_eps = 1.5625e-07,
     .attention_bias = true,
     .partial_rotary = true,
     .partial_rotary_factor = 0.5,
     .biases = BiasRule::kQkv,
     .adjacent_pairs = true},
    {.family = ModelFamily::kGlm4,
     .name = "glm4",
     .architecture = "Glm4ForCausalLM",
     .max_position = 131072,
     .num_kv_heads = 2,
     .head_dim = 128,
     .norm_eps = 1.5625e-07,
     .attention_bias = true,
     .partial_rotary = true,
     .partial_rotary_factor = 0.5,
     .norms = kOfGlm4,
     .biases = BiasRule::kQkv,
     .adjacent_pairs = true},
    {.family = ModelFamily::kStableLm,
     .name = "stablelm",
     .architecture = "StableLmForCausalLM",
     .max_position = 4096,
     .bos = 0,
     .eos = 0,
     .norm_eps = 1e-5,
     .partial_rotary = true,
     .partial_rotary_factor = 0.25,
     .fields = {.norm_eps = "layer_norm_eps", .bias = "use_qkv_bias"},
     .norm_kind = NormKind::kLayer,
     .biases = BiasRule::kQkv},
    {.family = ModelFamily::kGptNeoX,
     .name = "gpt_neox",
     .architecture = "GPTNeoXForCausalLM",
     .max_position = 2048,
     .bos = 0,
     .eos = 2,
     .norm_eps = 1e-5,
     .attention_bias = true,
     .partial_rotary = true,
     .partial_rotary_factor = 0.25,
     .activation = Activation::kGelu,
     .gated = false,
     .fields = {.norm_eps = "layer_norm_eps"},
     .norm_kind = NormKind::kLayer,
     .biases = BiasRule::kMlpAlways},
    {.family = ModelFamily::kFalcon,
     .name = "falcon",
     .architecture = "FalconForCausalLM",
     .max_position = 2048,
     .bos = 11,
     .eos = 11,
     .norm_eps = 1e-5,
     .tied = true,
     .activation = Activation::kGelu,
     .gated = false,
     .fields = {.intermediate = "ffn_hidden_size",
                .norm_eps = "layer_norm_epsilon",
                .activation = "activation",
                .bias = "bias"},
     .norm_kind = NormKind::kLayer,
     .biases = BiasRule::kAllOrNone},
    {.family = ModelFamily::kOpt,
     .name = "opt",
     .architecture = "OPTForCausalLM",
     .max_position = 2048,
     .bos = 2,
     .eos = 2,
     .norm_eps = 1e-5,
     .tied = true,
     .attention_bias = true,
     .activation = Activation::kRelu,
     .gated = false,
     .fields = {.intermediate = "ffn_dim",
                .norm_eps = "layer_norm_eps",
                .activation = "activation_function",
                .bias = "enable_bias"},
     .norm_kind = NormKind::kLayer,
     .biases = BiasRule::kAllOrNone,
     .learned_positions = true},
    {.family = ModelFamily::kBloom,
     .name = "bloom",
     .architecture = "BloomForCausalLM",
     .max_position = 2048,
     .vocab_size = 250880,
     .bos = 1,
     .eos = 2,
     .norm_eps = 1e-5,
     .tied = true,
     .attention_bias = true,
     .activation = Activation::kGeluTanh,
     .gated = false,
     .fields = {.norm_eps = "layer_norm_epsilon"},
     .norm_kind = NormKind::kLayer,
     .biases = BiasRule::kMlpAlways,
     .alibi = Alibi::kExact,
     .embedding_norm = true},
    {.family = ModelFamily::kMinistral3,
     .name = "ministral3",
     .architecture = "Ministral3ForCausalLM",
     .max_position = 262144,
     .num_kv_heads = 8,
     .head_dim = 128,
     .bos = 1,
     .eos = 2,
     .norm_eps = 1e-5,
     .theta = 1000000.0,
     .windows = WindowRule::kAlways},
    {.family = ModelFamily::kMixtral,
     .name = "mixtral",
     .architecture = "MixtralForCausalLM",
     .max_position = 131072,
     .num_kv_heads = 8,
     .bos = 1,
     .eos = 2,
     .norm_eps = 1e-5,
     .theta = 1000000.0,
     .windows = WindowRule::kAlways,
     .experts = {.count = "num_local_experts",
                 .other_count = "num_experts",
                 .default_count = 8,
                 .default_per_token = 2,
                 .always_renormalises = true}},
    {.family = ModelFamily::kQwen2Moe,
     .name = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .max_position = 32768,
     .num_kv_heads = 16,
     .sliding_window = 4096,
     .attention_bias = true,
     .fields = {.bias = "qkv_bias"},
     .biases = BiasRule::kQkv,
     .windows = WindowRule::kFrom,
     .experts = {.count = "num_experts",
                 .other_count = "num_local_experts",
                 .default_count = 60,
                 .default_per_token = 4,
                 .intermediate = "moe_intermediate_size",
                 .default_intermediate = 1408,
                 .sparse_step = true,
                 .default_shared = 5632}},
    {.family = ModelFamily::kQwen3Moe,
     .name = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .max_position = 32768,
     .num_kv_heads = 4,
     .sliding_window = 4096,
     .qk_norm = QkNorm::kHeads,
     .biases = BiasRule::kAttention,
     .windows = WindowRule::kAllIfUsed,
     .experts = {.count = "num_experts",
                 .other_count = "num_local_experts",
                 .default_count = 128,
                 .default_per_token = 8,
                 .intermediate = "moe_intermediate_size",
                 .default_intermediate = 768,
                 .sparse_step = true}},
    {.family = ModelFamily::kOlmoe,
     .name = "olmoe",
     .architecture = "OlmoeForCausalLM",
     .max_position = 4096,
     .eos = 50279,
     .norm_eps = 1e-5,
     .qk_norm = QkNorm::kRow,
     .biases = BiasRule::kAttention,
     .experts =
         {.count = "num_experts", .other_count = "num_local_experts", .default_count = 64, .default_per_token = 8}},
    {.family = ModelFamily::kGraniteMoe,
     .name = "granitemoe",
     .architecture = "GraniteMoeForCausalLM",
     .max_position = 2048,
     .bos = 1,
     .eos = 2,
     .biases = BiasRule::kAttention,
     .multipliers = true,
     .experts = {.count = "num_local_experts",
                 .other_count = "num_experts",
                 .default_count = 8,
                 .default_per_token = 2,
                 .always_renormalises = true}},
    {.family = ModelFamily::kGptOss,
     .name = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .max_position = 131072,
     .num_kv_heads = 8,
     .head_dim = 64,
     .sliding_window = 128,
     .norm_eps = 1e-5,
     .theta = 150000.0,
     .attention_bias = true,
     .activation = Activation::kClampedSwiglu,
     .biases = BiasRule::kAttention,
     .windows = WindowRule::kButEachNth,
     .window_pattern = 2,
     .sinks = true,
     .experts = {.count = "num_local_experts",
                 .other_count = "num_experts",
                 .default_count = 128,
                 .default_per_token = 4,
                 .always_renormalises = true,
                 .biases = true}},
    {.family = ModelFamily::kQwen35,
     .name = "qwen3_5_text",
     .architecture = "Qwen3_5ForCausalLM",
     .max_position = 32768,
     .vocab_size = 248320,
     .num_heads = 16,
     .num_kv_heads = 4,
     .head_dim = 256,
     .partial_rotary = true,
     .partial_rotary_factor = 0.25,
     .norm_weight_offset = 1.0,
     .qk_norm = QkNorm::kHeads,
     .biases = BiasRule::kAttention,
     .of_deltanet = true},
    {.family = ModelFamily::kQwen35Moe,
     .name = "qwen3_5_moe_text",
     .architecture = "Qwen3_5MoeForCausalLM",
     .max_position = 32768,
     .vocab_size = 248320,
     .num_heads = 16,
     .num_kv_heads = 2,
     .head_dim = 256,
     .partial_rotary = true,
     .partial_rotary_factor = 0.25,
     .fields = {.intermediate = "moe_intermediate_size"},
     .norm_weight_offset = 1.0,
     .qk_norm = QkNorm::kHeads,
     .biases = BiasRule::kAttention,
     .of_deltanet = true,
     .experts = {.count = "num_experts",
                 .other_count = "num_local_experts",
                 .default_count = 256,
                 .default_per_token = 8,
                 .intermediate = "moe_intermediate_size",
                 .default_intermediate = 512,
                 .always_renormalises = true,
                 .default_shared = 512}},
    {.family = ModelFamily::kQwen3Next,
     .name = "qwen3_next",
     .architecture = "Qwen3NextForCausalLM",
     .max_position = 32768,
     .vocab_size = 151936,
     .num_heads = 16,
     .num_kv_heads = 2,
     .head_dim = 256,
     .partial_rotary = true,
     .partial_rotary_factor = 0.25,
     .norm_weight_offset = 1.0,
     .qk_norm = QkNorm::kHeads,
     .biases = BiasRule::kAttention,
     .of_deltanet = true,
     .experts = {.count = "num_experts",
                 .other_count = "num_local_experts",
                 .default_count = 512,
                 .default_per_token = 10,
                 .intermediate = "moe_intermediate_size",
                 .default_intermediate = 512,
                 .renormalises = true,
                 .sparse_step = true,
                 .default_shared = 512}},
    {.family = ModelFamily::kGraniteHybrid,
     .name = "granitemoehybrid",
     .architecture = "GraniteMoeHybridForCausalLM",
     .max_position = 2048,
     .bos = 1,
     .eos = 2,
     .biases = BiasRule::kAttention,
     .ropes = RopeRule::kNamed,
     .multipliers = true,
     .of_mamba = true,
     .experts = {.count = "num_local_experts",
                 .other_count = "num_experts",
                 .default_count = 8,
                 .default_per_token = 2,
                 .always_renormalises = true,
                 .default_shared = 1024,
                 .shared = "shared_intermediate_size",
                 .shared_gate = false,
                 .shared_block = "mlp.",
                 .may_be_none = true}},
    {.family = ModelFamily::kFalconH1,
     .name = "falcon_h1",
     .architecture = "FalconH1ForCausalLM",
     .max_position = 8192,
     .vocab_size = 128000,
     .num_heads = 32,
     .num_kv_heads = 8,
     .bos = 1,
     .eos = 2,
     .norm_eps = 1e-5,
     .norms = {.attention = "input_layernorm", .mlp = "pre_ff_layernorm"},
     .biases = BiasRule::kAttention,
     .mlp_bias = true,
     .of_mamba = true},
    {.family = ModelFamily::kNemotronH,
     .name = "nemotron_h",
     .architecture = "NemotronHForCausalLM",
     .max_position = 4096,
     .vocab_size = 131072,
     .num_heads = 32,
     .num_kv_heads = 8,
     .head_dim = 128,
     .bos = 1,
     .eos = 2,
     .norm_eps = 1e-5,
     .activation = Activation::kRelu2,
     .gated = false,
     .fields = {.norm_eps = "layer_norm_epsilon", .activation = "mlp_hidden_act"},
     .norms = {.attention = "input_layernorm"},
     .mlp_bias = true,
     .ropes = RopeRule::kNever,
     .of_mamba = true,
     .experts = {.count = "n_routed_experts",
                 .other_count = "num_local_experts",
                 .default_count = 8,
                 .default_per_token = 2,
                 .intermediate = "moe_intermediate_size",
                 .default_intermediate = 7688,
                 .renormalises = true,
                 .default_shared = 7688,
                 .shared = "moe_shared_expert_intermediate_size",
                 .shared_gate = false,
                 .listed = true,
                 .sigmoid = true}},
}};

constexpr PartName kPartsOfNeoX[] = {{"self_attn.qkv_proj", "attention.query_key_value"},
                                     {"self_attn.o_proj", "attention.dense"},
                                     {"mlp.up_proj", "mlp.dense_h_to_4h"},
                                     {"mlp.down_proj", "mlp.dense_4h_to_h"}};
constexpr PartName kPartsOfFalcon[] = {{"self_attn.qkv_proj", "self_attention.query_key_value"},
                                       {"self_attn.o_proj", "self_attention.dense"},
                                       {"mlp.up_proj", "mlp.dense_h_to_4h"},
                                       {"mlp.down_proj", "mlp.dense_4h_to_h"},
                                       {"input_layernorm", "ln_attn"},
                                       {"post_attention_layernorm", "ln_mlp"}};
constexpr PartName kOthersOfBloom[] = {{"model.embed_norm", "transformer.word_embeddings_layernorm"}};
constexpr PartName kOthersOfOpt[] = {{"model.embed_positions", "model.decoder.embed_positions"},
                                     {"model.project_in", "model.decoder.project_in"},
                                     {"model.project_out", "model.decoder.project_out"}};
constexpr PartName kPartsOfOpt[] = {{"self_attn.o_proj", "self_attn.out_proj"},
                                    {"mlp.up_proj", "fc1"},
                                    {"mlp.down_proj", "fc2"},
                                    {"input_layernorm", "self_attn_layer_norm"},
                                    {"post_attention_layernorm", "final_layer_norm"}};
constexpr PartName kPartsOfGranite4[] = {{"mlp.gate_up_proj", "shared_mlp.input_linear"},
                                         {"mlp.down_proj", "shared_mlp.output_linear"}};
constexpr PartName kPartsOfFalconH1[] = {{"mlp.gate_proj", "feed_forward.gate_proj"},
                                         {"mlp.up_proj", "feed_forward.up_proj"},
                                         {"mlp.down_proj", "feed_forward.down_proj"}};
// Whose layers have one part each: the same name may be of any of them.
constexpr PartName kPartsOfNemotronH[] = {{"input_layernorm", "norm"},
                                          {"self_attn.q_proj", "mixer.q_proj"},
                                          {"self_attn.k_proj", "mixer.k_proj"},
                                          {"self_attn.v_proj", "mixer.v_proj"},
                                          {"self_attn.o_proj", "mixer.o_proj"},
                                          {"mamba.in_proj", "mixer.in_proj"},
                                          {"mamba.out_proj", "mixer.out_proj"},
                                          {"mamba.conv1d", "mixer.conv1d"},
                                          {"mamba.norm", "mixer.norm"},
                                          {"mamba.A_log", "mixer.A_log"},
                                          {"mamba.D", "mixer.D"},
                                          {"mamba.dt_bias", "mixer.dt_bias"},
                                          {"mlp.up_proj", "mixer.up_proj"},
                                          {"mlp.down_proj", "mixer.down_proj"},
                                          {"mlp.gate", "mixer.gate"},
                                          {"mlp.experts", "mixer.experts"},
                                          {"mlp.shared_expert", "mixer.shared_experts"}};
constexpr FamilyNames kFamilyNames[] = {
    {ModelFamily::kGptNeoX, "gpt_neox.layers.", "gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out",
     kPartsOfNeoX},
    {ModelFamily::kFalcon, "transformer.h.", "transformer.word_embeddings", "transformer.ln_f", "lm_head",
     kPartsOfFalcon, kOthersOfBloom},
    {ModelFamily::kBloom, "transformer.h.", "transformer.word_embeddings", "transformer.ln_f", "lm_head",
     kPartsOfFalcon, kOthersOfBloom},
    {ModelFamily::kOpt, "model.decoder.layers.", "model.decoder.embed_tokens", "model.decoder.final_layer_norm",
     "lm_head", kPartsOfOpt, kOthersOfOpt},
    {ModelFamily::kGraniteHybrid, "model.layers.", "model.embed_tokens", "model.norm", "lm_head", kPartsOfGranite4},
    {ModelFamily::kFalconH1, "model.layers.", "model.embed_tokens", "model.final_layernorm", "lm_head",
     kPartsOfFalconH1},
    {ModelFamily::kNemotronH, "model.layers.", "model.embeddings", "model.norm_f", "lm_head", kPartsOfNemotronH},
    // As NVIDIA's files have them.
    {ModelFamily::kNemotronH, "backbone.layers.", "backbone.embeddings", "backbone.norm_f", "lm_head",
     kPartsOfNemotronH},
};

constexpr std::string_view kLayers = "model.layers.", kEmbedding = "model.embed_tokens", kNorm = "model.norm",
                           kHead = "lm_head";

// What follows `whole` in `name`, which is it or goes on with a dot; nullopt: it does not.
std::optional<std::string_view> AfterPart(std::string_view name, std::string_view whole) {
  if (whole.empty() || !name.starts_with(whole)) return std::nullopt;
  const std::string_view rest = name.substr(whole.size());
  return rest.empty() || rest.front() == '.' ? std::optional(rest) : std::nullopt;
}

constexpr std::array<Wrapper, 7> kWrappers = {{
    {"Gemma3ForConditionalGeneration", "gemma3", "gemma3_text"},
    {"Gemma4ForConditionalGeneration", "gemma4", "gemma4_text"},
    {"Mistral3ForConditionalGeneration", "mistral3", "mistral"},
    {"Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", "qwen2"},
    {"Qwen3VLForConditionalGeneration", "qwen3_vl", "qwen3"},
    {"Qwen3_5ForConditionalGeneration", "qwen3_5", "qwen3_5_text"},
    {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", "qwen3_5_moe_text"},
}};

}  // namespace

const FamilyInfo& InfoOf(ModelFamily family) {
  const auto* const found = std::ranges::find(kFamilies, family, &FamilyInfo::family);
  CHECK(found != kFamilies.end());
  return *found;
}

std::span<const FamilyInfo> AllFamilies() { return kFamilies; }

const Wrapper* FindWrapper(std::string_view architecture, std::string_view model_type) {
  const auto* const found = std::ranges::find_if(kWrappers, [&](const Wrapper& wrapper) {
    return architecture.empty() ? wrapper.name == model_type : wrapper.architecture == architecture;
  });
  return found == kWrappers.end() ? nullptr : found;
}

const FamilyInfo* FindFamilyByType(std::string_view model_type) {
  if (model_type == "qwen2_5_vl_text") model_type = "qwen2";
  if (model_type == "qwen3_vl_text") model_type = "qwen3";
  const auto* const found =
      std::ranges::find_if(kFamilies, [&](const FamilyInfo& info) { return info.name == model_type; });
  return found == kFamilies.end() ? nullptr : found;
}

std::string SupportedArchitectures() {
  std::string list;
  for (const FamilyInfo& info : kFamilies) list += (list.empty() ? "" : ", ") + std::string(info.architecture);
  return list;
}

std::vector<std::vector<std::int64_t>> RowsOfFused(std::span<const std::int64_t> sizes, std::int64_t groups) {
  std::vector<std::vector<std::int64_t>> rows(sizes.size());
  std::int64_t next = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::size_t part = 0; part < sizes.size(); ++part) {
      for (std::int64_t i = 0; i < sizes[part] / groups; ++i) rows[part].push_back(next++);
    }
  }
  return rows;
}

std::vector<std::vector<std::int64_t>> RowsOfFusedStates(const RecurrentConfig& config, bool gates) {
  if (gates) return RowsOfFused(std::array{config.value_heads, config.value_heads}, config.key_heads);
  const std::int64_t keys = config.key_heads * config.key_dim;
  auto rows = RowsOfFused(std::array{keys, keys, config.Values(), config.Values()}, config.key_heads);
  for (const std::size_t part : {1, 2}) rows[0].insert(rows[0].end(), rows[part].begin(), rows[part].end());
  return {std::move(rows[0]), std::move(rows[3])};
}

const FamilyNames* NamesOf(ModelFamily family) {
  const auto* const found = std::ranges::find(kFamilyNames, family, &FamilyNames::family);
  return found == std::end(kFamilyNames) ? nullptr : found;
}

std::span<const FamilyNames> AllFamilyNames() { return kFamilyNames; }

std::vector<std::string> TheirNames(const FamilyNames& names, std::string_view ours) {
  std::vector<PartName> whole = {{kEmbedding, names.embedding}, {kNorm, names.norm}, {kHead, names.head}};
  whole.insert(whole.end(), names.others.begin(), names.others.end());
  for (const PartName& name : whole) {
    if (const auto rest = AfterPart(ours, name.ours)) {
      return {std::string(name.theirs) + std::string(*rest), std::string(ours)};
    }
  }
  if (!ours.starts_with(kLayers)) return {std::string(ours)};
  const std::size_t dot = ours.find('.', kLayers.size());
  if (dot == std::string_view::npos) return {std::string(ours)};
  const std::string layer =
      std::string(names.layers) + std::string(ours.substr(kLayers.size(), dot + 1 - kLayers.size()));
  const std::string_view part = ours.substr(dot + 1);
  std::vector<std::string> found;
  for (const PartName& name : names.parts) {
    if (const auto rest = AfterPart(part, name.ours))
      found.push_back(layer + std::string(name.theirs) + std::string(*rest));
  }
  found.push_back(layer + std::string(part));
  found.emplace_back(ours);  // as `loramux quantize` writes them
  return found;
}

std::string OurName(const FamilyNames& names, std::string_view theirs) {
  for (const FamilyNames& other : kFamilyNames) {  // with which NVIDIA's own class names adapters
    const bool same = other.family == names.family && other.layers != names.layers;
    if (same && theirs.starts_with(other.layers)) return OurName(other, theirs);
  }
  for (const auto& [own, of_family] :
       {std::pair{kEmbedding, names.embedding}, std::pair{kNorm, names.norm}, std::pair{kHead, names.head}}) {
    if (theirs == of_family) return std::string(own);
  }
  for (const PartName& other : names.others) {
    if (const auto rest = AfterPart(theirs, other.theirs)) return std::string(other.ours) + std::string(*rest);
  }
  if (!theirs.starts_with(names.layers)) return std::string(theirs);
  const std::size_t dot = theirs.find('.', names.layers.size());
  if (dot == std::string_view::npos) return std::string(theirs);
  std::string part(theirs.substr(dot + 1));
  for (const PartName& name : names.parts) {
    if (const auto rest = AfterPart(theirs.substr(dot + 1), name.theirs)) {
      part = std::string(name.ours) + std::string(*rest);
      break;
    }
  }
  return std::string(kLayers) + std::string(theirs.substr(names.layers.size(), dot + 1 - names.layers.size())) + part;
}

const char* ModelFamilyName(ModelFamily family) { return InfoOf(family).name; }

}  // namespace loramux
