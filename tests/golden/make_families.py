#!/usr/bin/env python3
"""Makes the cases of tests/golden/models that have other architectures than make_models.py: one or more for each family
of models. With --faults, shows what each constant and each vector of a stored case does to its logits."""

import json
import pathlib
import tempfile

from golden_common import read_json, stable_seed, write_json

import torch
from make_embeddings import store_embeddings
from make_models import (ALL_LINEAR, ATTENTION, adapter, case, command, load_model, reset_rope, rope, shape,
                         spell_all_linear)

NEOX_LINEAR = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
DELTA_LINEAR = [f"in_proj_{part}" for part in ("qkv", "z", "a", "b")] + ["out_proj"]
MAMBA_LINEAR = ["in_proj", "out_proj", "input_linear", "output_linear"]  # and Granite 4's feed-forward block
# PEFT refuses out_proj of these two.
FALCON_H1_LINEAR = ["in_proj", "gate_proj", "up_proj", "down_proj"]
NEMOTRON_LINEAR = ["in_proj", "up_proj", "down_proj"]
INPUT_LINEAR = ["per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"]
OPT_LINEAR = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
WITH_IMAGES = {"auto": "AutoModelForImageTextToText"}
BOTH_NAMES = ("text_class", "language_model_first")
QWEN_IMAGES = {"image_token_id": 101, "video_token_id": 102, "vision_start_token_id": 103, "vision_end_token_id": 104}
FUSED_MLP = ["gate_up_proj", "down_proj"]
FINAL_NORMS = ("model.norm.weight", "model.final_layernorm.weight", "norm_f.weight", "language_model.norm.weight", "decoder.final_layer_norm.weight", "ln_f.weight")
PLAIN_NORMS = ("vision", "visual", "linear_attn")
LAYER_NORMS = ("opt", "falcon", "bloom")
OF_DELTANET = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
LEAST_FAULT = 1e-3  # least relative change of the logits that a fault must make


# --------------------------------------------------------------------------- what is made

def family_weights(model, seed):
    """Random weights of any architecture, as random_weights in make_models.py. No norm, bias or scale is left at the
    value that would hide it."""
    gen = torch.Generator().manual_seed(seed)
    config = model.config.get_text_config()
    tied = model.config.tie_word_embeddings
    gains = {"v_proj": 1.2, "up_proj": 1.2, "down_proj": 1.8, "dense_4h_to_h": 1.8, "fc2": 1.8,
             "project_in": 1.0, "project_out": 1.0}
    around_zero = config.model_type in ("gemma2", "gemma3_text", *OF_DELTANET)  # norms times 1 + weight
    scales = {n: b for n, b in model.named_buffers() if n.endswith("layer_scalar")}
    for name, p in sorted({**dict(model.named_parameters()), **scales}.items()):
        noise = torch.randn(p.shape, generator=gen)
        if name.endswith("A_log"):  # states that last for some tokens
            p.copy_(0.6 * noise - 1.5)
        elif name.endswith("dt_bias"):
            p.copy_(0.5 * noise)
        elif name.endswith("bias"):  # large ones would make all tokens alike
            p.copy_((0.4 if any(part in name for part in ("q_proj", "k_proj", "v_proj", "query")) else 0.15) * noise)
        elif name.endswith("layer_scalar"):
            p.copy_(1 + 0.3 * noise)
        elif tied and name.endswith(FINAL_NORMS):  # a mean of 0, or each token is followed by itself
            p.copy_((0.7 if config.model_type in (*LAYER_NORMS, *OF_DELTANET) else 1.5) * noise - int(around_zero))
        elif config.model_type == "gemma4_text" and name.endswith(("q_norm.weight", "k_norm.weight")):
            p.copy_(0.55 + 0.2 * noise)  # whose product is not scaled
        elif p.dim() == 1:
            p.copy_(0.25 * noise + (0 if around_zero and not any(part in name for part in PLAIN_NORMS) else 1))
        elif any(part in name for part in ("embed_positions", "embed_tokens_per_layer")):
            p.copy_(noise * (0.3 if "positions" in name else p.shape[1] ** -0.5 * config.num_hidden_layers ** 0.5))
        elif any(part in name for part in ("embed_tokens", "embed_in", "word_embeddings", "lm_head", "embeddings.weight")):
            times = 1 if tied and config.model_type.startswith("gemma") else 4 if config.model_type in LAYER_NORMS else 2
            own = 3 if config.model_type == "gpt_neox" else 1
            p.copy_(noise * (times / p.shape[1]**0.5 if tied or "lm_head" in name else own))
        else:
            p.copy_(noise * gains.get(name.split(".")[-2], 1.4) / p[0].numel() ** 0.5)


def small(layers, *, hidden=32, heads=4, kv_heads=2, ffn=40, vocab=97, **more):
    """The sizes of most of the models; the large epsilon makes a wrong one visible."""
    return shape(hidden, heads, kv_heads, ffn, vocab, layers, **{"rms_norm_eps": 0.01, "pad_token_id": 0, **more})


def kinds(letters):
    names = {"s": "sliding_attention", "f": "full_attention", "l": "linear_attention"}
    return {"layer_types": [names[c] for c in letters]}


def two_ropes(sliding, full):
    return {"rope_parameters": {"sliding_attention": {"rope_type": "default", **sliding},
                                "full_attention": {"rope_type": "default", **full}}}


def plain(name, targets, notes="", r=4, **more):
    return adapter(name, r=r, lora_alpha=2 * r, target_modules=targets,
                   notes=f"scale {2 * r}/{r}" + (f"; {notes}" if notes else ""), **more)


def of_out_proj(mixer, layers, others):
    """Of what PEFT does not make in these families, and other programs do."""
    modules = [f"{mixer.format(layer)}.out_proj" for layer in layers] + others
    return adapter("out_r2", by_hand={module: 2 for module in modules}, r=2, lora_alpha=6, task_type="CAUSAL_LM",
                   target_modules=sorted({module.split(".")[-1] for module in modules}),
                   notes="scale 6/2; of out_proj, which PEFT 0.21.2 refuses here: written by hand")


def family(name, kind, config, adapters, notes, **more):
    return case(name, kind, config, adapters, weights=family_weights, notes=notes, **more)


def text_of(linears, one, layouts=("text_class",)):
    """Adapters for the language model of a model that reads images."""
    return [
        plain("all_r4", linears, exclude_modules=".*vis.*", layouts=layouts),
        plain("regex_r4", rf".*language_model.*\.{one}", "target_modules is a regular expression"),
    ]


def layer_norms(config):
    return {"layer_norm_eps": config.pop("rms_norm_eps"), **config}


def heads_alike(config):
    """With LayerNorm, and as many heads of keys as of queries."""
    return layer_norms({k: v for k, v in config.items() if k != "num_key_value_heads"})


def opt(**more):
    return dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=3, ffn_dim=40, vocab_size=97,
                max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0, **more)


def falcon(rope_theta=None, **more):
    return dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=3, ffn_hidden_size=40, vocab_size=97,
                layer_norm_epsilon=0.01, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                **(rope(rope_theta) if rope_theta else {}), **more)


def bloom(hidden, heads, layers):
    return dict(hidden_size=hidden, n_head=heads, n_layer=layers, vocab_size=97, layer_norm_epsilon=0.01, bos_token_id=1,
                eos_token_id=2, pad_token_id=0)


def gemma4(letters, **more):
    """As its dense models of more than ten billion parameters are: without inputs for each layer, and no layer shares keys
    and values with another."""
    return small(len(letters), ffn=24, head_dim=12, global_head_dim=16, num_global_key_value_heads=1, sliding_window=8,
                 attention_k_eq_v=True, hidden_size_per_layer_input=0, **kinds(letters),
                 **two_ropes({"rope_theta": 10000.0}, {"rope_theta": 1000000.0, "rope_type": "proportional",
                                                       "partial_rotary_factor": 0.25}), **more)


def qwen3_5(letters, **more):
    """Two value heads for each key head; no width of one kind is that of another."""
    return small(len(letters), head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                 linear_value_head_dim=12, linear_conv_kernel_dim=4, **kinds(letters), **more)


def granite_hybrid(letters, **more):
    """Mamba-2 with two heads in each of two groups; no width of one kind is that of another. Without experts."""
    return small(len(letters), ffn=24, shared_intermediate_size=40, num_local_experts=0, mamba_n_heads=4, mamba_d_head=16,
                 mamba_n_groups=2, mamba_d_state=12, mamba_d_conv=4, mamba_expand=2, embedding_multiplier=1.7,
                 residual_multiplier=0.6, attention_multiplier=0.25, logits_scaling=2.5, **kinds(letters), **more)


def falcon_h1(layers, **more):
    """Attention and Mamba-2 side by side, with every factor away from 1 and from the others."""
    factors = {"embedding_multiplier": 1.7, "lm_head_multiplier": 0.6, "mlp_multipliers": [0.8, 1.3], "key_multiplier": 1.4,
               "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.75, "ssm_in_multiplier": 0.9,
               "ssm_multipliers": [0.7, 1.25, 0.85, 1.15, 1.35], "ssm_out_multiplier": 1.1}
    sizes = {"mamba_d_ssm": 48, "mamba_n_heads": 4, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 10}
    return small(layers, ffn=40, mamba_d_conv=4, **{**factors, **sizes, **more})


def nemotron_h(letters, **more):
    """A part in each layer; no width of one kind is that of another."""
    names = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    sizes = {"mamba_num_heads": 4, "mamba_head_dim": 10, "n_groups": 2, "ssm_state_size": 14, "conv_kernel": 4}
    config = small(len(letters), ffn=40, head_dim=12, layer_norm_epsilon=0.01, **{**sizes, **more})
    return {**{k: v for k, v in config.items() if k not in ("rms_norm_eps", "num_hidden_layers")},
            "layer_types": [names[c] for c in letters]}


def published_nemotron(pattern):
    """NVIDIA's spelling: a letter for each layer."""
    def edit(config):
        edited = old_names(["layer_types", "layers_block_type", "dtype"], torch_dtype="float32")(config)
        return {**edited, "hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern),
                "time_step_limit": [0.0, float("inf")]}
    return edit


def published_granite(config):
    """Granite 4 as published: other names for the kinds of layers, and no limits of steps."""
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    edited = old_names(["time_step_limit", "dtype"], rope_theta=10000.0, torch_dtype="float32",
                       layer_types=[names[kind] for kind in config["layer_types"]])(config)
    return {**edited, "mamba_chunk_size": 256, "normalization_function": "rmsnorm"}


def keep(keys, **more):
    """An edit of a configuration: these keys only, and others."""
    return lambda config: dict(sorted({**{k: config[k] for k in ["architectures", "model_type", *keys]}, **more}.items()))


def old_names(keys, **more):
    """An edit of a configuration that gives rope_theta as published models have it, drops `keys`, and adds others."""
    def edit(config):
        config = {k: v for k, v in config.items() if k not in ("rope_parameters", "transformers_version", *keys)}
        return dict(sorted({**config, **more}.items()))
    return edit


def flat(config):
    """Qwen2.5-VL as published: what belongs to the language model stands outside."""
    text = old_names(["model_type", "layer_types"], rope_theta=1000000.0,
                     rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]})(config["text_config"])
    return dict(sorted({**text, **{k: v for k, v in config.items() if k != "text_config"}}.items()))


def published_spellings():
    """Configurations as the models were published with, which transformers 5 reads but does not write."""
    sizes = ["hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
             "vocab_size", "head_dim"]
    return [
        old("gemma3_old", "gemma3_text",
            small(6, ffn=24, head_dim=16, query_pre_attn_scalar=256, sliding_window=8, rms_norm_eps=1e-6,
                  tie_word_embeddings=True, **kinds("sssssf"),
                  **two_ropes({"rope_theta": 10000.0}, {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 8.0})),
            keep([*sizes, "sliding_window", "max_position_embeddings", "bos_token_id", "eos_token_id"],
                 rope_scaling={"factor": 8.0, "rope_type": "linear"}),
            "little else than sizes: thetas, layer types, query_pre_attn_scalar 256, epsilon and tied embeddings are "
            "defaults"),
        old("gemma2_old", "gemma2",
            small(2, head_dim=12, query_pre_attn_scalar=256, sliding_window=8, tie_word_embeddings=True, **kinds("sf"),
                  attn_logit_softcapping=50.0, final_logit_softcapping=30.0, **rope()),
            old_names(["layer_types", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
                       "tie_word_embeddings"], rope_theta=10000.0),
            "no layer_types; both caps, query_pre_attn_scalar 256 and tied embeddings are defaults"),
        old("phi3_old", "phi3",
            small(2, original_max_position_embeddings=124,
                  **rope(100.0, "longrope", partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3],
                         long_factor=[1.1, 1.9, 3.3])),
            old_names([], rope_theta=100.0, partial_rotary_factor=0.75,
                      rope_scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.1, 1.9, 3.3]}),
            "rope_scaling, and partial_rotary_factor outside; otherwise as phi3_longrope",
            prompt_lengths=(1, 60, 130)),
        old("olmo3_old", "olmo3",
            small(4, ffn=24, sliding_window=8, **kinds("sssf"), **two_ropes(
                {"rope_theta": 500000.0},
                {"rope_theta": 500000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                 "attention_factor": 1.3, "beta_fast": 2.0, "beta_slow": 0.25})),
            old_names(["layer_types"], rope_theta=500000.0,
                      rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                                    "attention_factor": 1.3, "beta_fast": 2.0, "beta_slow": 0.25}),
            "rope_scaling, which is that of the full layers alone; no layer_types; attention_factor of its own"),
        old("smollm3_old", "smollm3", small(4, ffn=24, tie_word_embeddings=True, **rope(2000000.0)),
            old_names(["no_rope_layers", "layer_types", "tie_word_embeddings"]),
            "no_rope_layer_interval 4 alone; theta 2000000 and tied embeddings are defaults"),
        old("glm4_old", "glm4", small(2, head_dim=12, **rope(partial_rotary_factor=0.5)),
            old_names([], rope_theta=10000.0, partial_rotary_factor=0.5), "rope_theta and partial_rotary_factor outside"),
        old("gpt_neox_old", "gpt_neox", heads_alike(small(2, rms_norm_eps=0.1, **rope(5000.0, partial_rotary_factor=0.5))),
            old_names(["attention_bias"], rotary_pct=0.5, rotary_emb_base=5000), "rotary_pct and rotary_emb_base",
            min_distinct=4),
        old("falcon_7b_old", "falcon", {**falcon(rope_theta=10000.0), "num_hidden_layers": 2, "ffn_hidden_size": 128},
            old_names(["num_kv_heads", "ffn_hidden_size", "num_ln_in_parallel_attn", "tie_word_embeddings", "activation"]),
            "no num_kv_heads, no ffn_hidden_size (four times hidden_size), no theta", min_distinct=6),
        old("stablelm_old", "stablelm", layer_norms(small(2, heads=2, kv_heads=1, **rope(partial_rotary_factor=0.25))),
            old_names(["use_parallel_residual", "qk_layernorm"], rope_theta=10000),
            "partial_rotary_factor 0.25 is the default"),
        old("qwen2_5_vl_old", "qwen2_5_vl",
            {"text_config": small(2, heads=2, kv_heads=1, **rope(1000000.0, mrope_section=[2, 3, 3])),
             "vision_config": {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "patch_size": 4,
                               "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [0]},
             **QWEN_IMAGES},
            flat, "the language model's configuration stands outside text_config; rope_scaling of type mrope",
            **WITH_IMAGES),
        old("qwen3_5_old", "qwen3_5_text", qwen3_5("llfl", vocab=264, **rope(10000.0, partial_rotary_factor=0.25)),
            old_names(["layer_types", "linear_conv_kernel_dim"], rope_theta=10000.0, full_attention_interval=3),
            "full_attention_interval, and no layer_types; the convolution's width and the share of a head that turns are "
            "defaults; as many tokens as the demo's tokenizer has"),
        old("granite_hybrid_old", "granitemoehybrid",
            {**granite_hybrid("lflll", vocab=264, position_embedding_type="nope", mamba_conv_bias=False,
                              mamba_proj_bias=True, tie_word_embeddings=True), "mamba_d_head": "auto"},
            lambda config: {**published_granite(config), "mamba_d_head": "auto"},
            "layer_types mamba and attention; position_embedding_type nope; no time_step_limit; no bias of the convolution, "
            "but biases of in_proj and out_proj; as many tokens as the demo's tokenizer has"),
        old("granite_dense_old", "granitemoehybrid",
            granite_hybrid("ff", position_embedding_type="rope", tie_word_embeddings=True), published_granite,
            "every layer has attention, as in the family's models without Mamba"),
        old("bloom_old", "bloom", bloom(36, 3, 2),
            lambda config: {**{k: v for k, v in config.items() if k not in ("hidden_size", "n_head", "transformers_version")},
                            "n_embed": 36, "num_attention_heads": 3, "n_inner": None, "offset_alibi": 100,
                            "seq_length": 2048},
            "n_embed and num_attention_heads; tensors without \"transformer.\"",
            tensors_edit=lambda tensors: {k.removeprefix("transformer."): v for k, v in tensors.items()}, min_distinct=8),
        old("gemma4_old", "gemma4_text",
            gemma4("sfsf", tie_word_embeddings=True),
            lambda config: {**{k: v for k, v in config.items() if k not in ("per_layer_config", "rope_parameters")},
                            "global_head_dim": 16, "num_global_key_value_heads": 1},
            "global_head_dim and num_global_key_value_heads; thetas are defaults; no inputs for each layer"),
    ]


def old(name, kind, config, edit, notes, **more):
    return family(name, kind, config, [], notes, config_edit=edit, spelling="published", **more)


def all_cases():
    return families() + published_spellings()


def families():
    return [
        family("gemma3", "gemma3_text",
               small(5, head_dim=12, query_pre_attn_scalar=20, sliding_window=8, tie_word_embeddings=True,
                     **kinds("ssfsf"), **two_ropes({"rope_theta": 10000.0}, {"rope_theta": 1000000.0})), [
                         plain("all_r4", ALL_LINEAR),
                         plain("v_r4", ["v_proj"]),
                         plain("dora_r2", ["q_proj", "o_proj", "down_proj"], "DoRA", r=2, use_dora=True),
                         plain("norms", ["k_proj"], "norms of its own, of which the base has four in a layer, and of heads",
                               r=2, modules_to_save=["input_layernorm", "pre_feedforward_layernorm",
                                                     "post_feedforward_layernorm", "q_norm", "model.norm"]),
                     ],
               "window 8 in three of five layers, two thetas; norms times 1 + weight; query_pre_attn_scalar 20 where "
               "head_dim is 12; tied"),

        family("gemma2", "gemma2",
               small(4, head_dim=12, query_pre_attn_scalar=8, sliding_window=8, tie_word_embeddings=True,
                     attn_logit_softcapping=2.0, final_logit_softcapping=3.0, **kinds("sfsf"), **rope()), [
                         plain("all_r4", ALL_LINEAR),
                         plain("o_r4", ["o_proj"]),
                         plain("norms", ["v_proj"], "norms of its own", r=2,
                               modules_to_save=["post_attention_layernorm", "layers.1.pre_feedforward_layernorm"]),
                     ],
               "scores capped at 2, logits at 3; window 8 in every other layer; query_pre_attn_scalar 8 where head_dim "
               "is 12"),

        family("granite", "granite",
               small(4, embedding_multiplier=1.7, residual_multiplier=0.6, attention_multiplier=0.25, logits_scaling=2.5,
                     tie_word_embeddings=True, **rope()), [
                         plain("all_r4", ALL_LINEAR),
                         plain("qv_r4", ["q_proj", "v_proj"]),
                         plain("dora_r2", ["q_proj", "o_proj", "down_proj"], "DoRA", r=2, use_dora=True),
                         plain("norms", ["k_proj"], "norms of its own", r=2,
                               modules_to_save=["input_layernorm", "model.norm"]),
                     ],
               "embedding_multiplier 1.7, residual_multiplier 0.6, logits_scaling 2.5; attention_multiplier 0.25, where "
               "1/sqrt(head_dim) is 0.354; tied"),

        family("olmo2", "olmo2", small(4, **rope(500000.0)), [
            plain("all_r4", ALL_LINEAR),
            plain("v_r4", ["v_proj"]),
            plain("dora_r2", ["q_proj", "o_proj", "down_proj"], "DoRA", r=2, use_dora=True),
            plain("norms", ["k_proj"], "norms of its own, of whole rows of queries and keys too", r=2,
                  modules_to_save=["q_norm", "k_norm", "post_feedforward_layernorm", "model.norm"]),
        ], "norms after attention and MLP only; q_norm and k_norm over all heads"),

        family("smollm3", "smollm3", small(5, no_rope_layers=[1, 0, 1, 0, 1], tie_word_embeddings=True, **rope(2000000.0)), [
            plain("all_r4", ALL_LINEAR),
            plain("qv_r4", ["q_proj", "v_proj"]),
        ], "no rope in layers 1 and 3; tied"),

        family("olmo3", "olmo3",
               small(4, heads=2, kv_heads=1, sliding_window=8, **kinds("sfsf"), **two_ropes(
                   {"rope_theta": 10000.0},
                   {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                    "beta_fast": 2.0, "beta_slow": 0.25})), [
                        plain("all_r4", ALL_LINEAR),
                        plain("qv_r4", ["q_proj", "v_proj"]),
                    ],
               "as olmo2, with window 8 in every other layer and yarn in the others, whose attention factor is that of "
               "factor 4"),

        family("exaone4", "exaone4",
               small(4, head_dim=12, sliding_window=8, sliding_window_pattern=2, **kinds("sfsf"), **rope(1000000.0)), [
                   plain("all_r4", ALL_LINEAR),
                   plain("o_r4", ["o_proj"]),
                   plain("norms", ["v_proj"], "norms of its own", r=2,
                         modules_to_save=["q_norm", "post_attention_layernorm"]),
               ],
               "norms after attention and MLP only; window 8 and rope in every other layer, the others have neither"),

        family("phi3", "phi3", small(4, sliding_window=12, **rope(partial_rotary_factor=0.75)), [
            plain("all_r4", ["qkv_proj", "o_proj", *FUSED_MLP]),
            plain("qkv_r4", ["qkv_proj"]),
            plain("dora_r2", ["qkv_proj", "gate_up_proj"], "DoRA", r=2, use_dora=True),
            plain("norms", ["o_proj"], "norms of its own", r=2, modules_to_save=["input_layernorm", "model.norm"]),
        ], "q, k and v are one matrix, and so are gate and up; rope turns 6 of 8 dimensions; window 12 in all layers"),

        family("phi3_longrope", "phi3",
               small(3, heads=2, kv_heads=1, original_max_position_embeddings=124,
                     **rope(100.0, "longrope", partial_rotary_factor=0.75,
                            short_factor=[1.0, 1.02, 1.1, 1.25, 1.5, 1.6], long_factor=[1.1, 1.4, 1.9, 2.6, 3.3, 4.2])), [
                                plain("all_r4", ["qkv_proj", "o_proj", *FUSED_MLP]),
                            ],
               "longrope: the prompts of 1 and 60 tokens and what follows them stay within original_max_position_embeddings "
               "= 124 and have the short factors, the one of 130 has the long ones; 12 of 16 dimensions turn",
               prompt_lengths=(1, 60, 130)),

        family("glm4", "glm4", small(4, head_dim=12, **rope(partial_rotary_factor=0.5)), [
            plain("all_r4", [*ATTENTION, *FUSED_MLP]),
            plain("gate_up_r4", ["gate_up_proj"]),
            plain("norms", ["k_proj"], "norms of its own", r=2,
                  modules_to_save=["post_self_attn_layernorm", "post_mlp_layernorm", "input_layernorm"]),
        ], "rope turns pairs of neighbours, in 6 of 12 dimensions; biases of q, k and v; norms before and after attention "
           "and MLP; gate and up are one matrix"),

        family("glm", "glm", small(4, head_dim=12, **rope(partial_rotary_factor=0.5)), [
            plain("all_r4", [*ATTENTION, *FUSED_MLP]),
            plain("qv_r4", ["q_proj", "v_proj"]),
        ], "as glm4, with norms before attention and MLP only"),

        family("gemma3_vl", "gemma3",
               {"text_config": small(4, head_dim=12, query_pre_attn_scalar=20, sliding_window=8, **kinds("sfsf"),
                                     **two_ropes({"rope_theta": 10000.0},
                                                 {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 2.0})),
                "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                                  "num_attention_heads": 2, "image_size": 16, "patch_size": 8},
                "mm_tokens_per_image": 4, "boi_token_index": 101, "eoi_token_index": 102, "image_token_index": 103,
                "tie_word_embeddings": True}, text_of(ALL_LINEAR, "v_proj", BOTH_NAMES),
               "Gemma 3 with images, asked with text; the full layers have rope of type linear", **WITH_IMAGES),

        family("qwen2_5_vl", "qwen2_5_vl",
               {"text_config": small(3, heads=2, kv_heads=1, **rope(1000000.0, mrope_section=[2, 3, 3])),
                "vision_config": {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "patch_size": 4,
                                  "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [0]},
                **QWEN_IMAGES}, text_of(ALL_LINEAR, "(q|v)_proj"),
               "Qwen2.5-VL asked with text, whose three positions are the same; biases of q, k and v", **WITH_IMAGES),

        family("qwen3_vl", "qwen3_vl",
               {"text_config": small(3, heads=2, kv_heads=1, head_dim=20,
                                     **rope(1000000.0, mrope_section=[4, 3, 3], mrope_interleaved=True)),
                "vision_config": {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "patch_size": 4,
                                  "out_hidden_size": 32, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
                **QWEN_IMAGES, "tie_word_embeddings": True}, text_of(ALL_LINEAR, "o_proj"),
               "Qwen3-VL asked with text, whose three positions are the same; tied", **WITH_IMAGES),

        family("qwen3_5", "qwen3_5_text",
               qwen3_5("llflf", **rope(100.0, partial_rotary_factor=0.5)), [
                   plain("all_r4", [*DELTA_LINEAR, *ALL_LINEAR]),
                   plain("delta_r2", ["in_proj_qkv", "in_proj_b"], r=2),
                   plain("qz_r4", ["q_proj", "in_proj_z", "out_proj"]),
                   plain("norms", ["in_proj_a"], "norms of its own", r=2,
                         modules_to_save=["input_layernorm", "q_norm", "model.norm"]),
                   plain("states_dora_r2", DELTA_LINEAR, "DoRA", r=2, use_dora=True),
               ],
               "three of five layers are gated DeltaNet with two value heads for each key head, the others have an output "
               "gate; rope turns 8 of 16 dimensions; norms times 1 + weight, but not that of DeltaNet"),

        family("qwen3_5_vl", "qwen3_5",
               {"text_config": qwen3_5("llfl", **rope(1000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1],
                                                      mrope_interleaved=True)),
                "vision_config": {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "patch_size": 4,
                                  "out_hidden_size": 32, "num_position_embeddings": 16},
                **QWEN_IMAGES, "tie_word_embeddings": True}, text_of([*DELTA_LINEAR, *ALL_LINEAR], "in_proj_z"),
               "Qwen3.5 with images asked with text, whose three positions are the same; tied", **WITH_IMAGES),

        family("granite_hybrid", "granitemoehybrid",
               granite_hybrid("llflf", position_embedding_type="rope", **rope(100.0)), [
                   plain("all_r4", [*MAMBA_LINEAR, *ATTENTION]),
                   plain("mamba_r2", ["in_proj"], r=2),
                   plain("mlp_r4", ["input_linear", "out_proj", "v_proj"]),
                   plain("everything_r4", "all-linear", config_edit=spell_all_linear),
                   plain("dora_r2", ["q_proj", "input_linear", "output_linear"], "DoRA", r=2, use_dora=True),
                   plain("norms", ["out_proj"], "norms of its own", r=2,
                         modules_to_save=["input_layernorm", "post_attention_layernorm", "model.norm"]),
               ],
               "three of five layers are Mamba-2 with two groups of two heads, the others have rope; the multipliers of "
               "Granite; no experts"),
        family("granite_hybrid_nope", "granitemoehybrid",
               granite_hybrid("lflll", attention_bias=True), [
                   plain("all_r4", [*MAMBA_LINEAR, *ATTENTION]),
                   plain("in_r4", ["in_proj"]),
                   plain("states_dora_r2", ["in_proj", "out_proj"], "DoRA", r=2, use_dora=True),
                   plain("states_bias_r2", ["in_proj", "out_proj"], "biases of lora_B", r=2, lora_bias=True),
               ], "as granite_hybrid, without rope; biases of attention"),

        family("falcon_h1", "falcon_h1", falcon_h1(3, head_dim=12, **rope(100.0)), [
            plain("all_r4", [*FALCON_H1_LINEAR, *ATTENTION]),
            plain("states_r2", ["in_proj", "o_proj"], r=2),
            plain("some_r3", ["k_proj", "gate_proj"], r=3),
            of_out_proj("model.layers.{}.mamba", (0, 2), ["model.layers.1.self_attn.v_proj"]),
            plain("dora_r2", ["q_proj", "k_proj", "gate_proj", "down_proj"], "DoRA", r=2, use_dora=True),
            plain("norms", ["in_proj"], "norms of its own", r=2,
                  modules_to_save=["input_layernorm", "pre_ff_layernorm", "final_layernorm"]),
        ], "attention and Mamba-2 of the same input in each layer; thirteen multipliers; no gated norm"),
        family("falcon_h1_norm", "falcon_h1",
               falcon_h1(2, mamba_rms_norm=True, mamba_norm_before_gate=False, attention_bias=True, mlp_bias=True,
                         mamba_proj_bias=True, projectors_bias=True, mamba_d_ssm=None, mamba_d_head=16,
                         tie_word_embeddings=True, **rope()), [
                   plain("all_r4", [*FALCON_H1_LINEAR, *ATTENTION]),
                   plain("states_dora_r2", ["in_proj", "v_proj"], "DoRA; trained biases", r=2, use_dora=True, bias="lora_only"),
               ], "as falcon_h1, with a norm of what is gated, and biases of all linear layers; as wide as mamba_expand says; "
                  "tied"),
        family("falcon_h1_norm_first", "falcon_h1",
               falcon_h1(2, vocab=264, mamba_rms_norm=True, mamba_conv_bias=False, mamba_n_groups=1, **rope(1000.0)), [
                   plain("in_r4", ["in_proj", "v_proj"]),
                   plain("down_r2", ["down_proj", "q_proj"], r=2),
               ], "as falcon_h1, with a norm before the gate; no bias of the convolution; as many tokens as the demo's "
                  "tokenizer has"),

        family("nemotron_h", "nemotron_h", nemotron_h("M-*M-M*-"), [
            plain("all_r4", [*NEMOTRON_LINEAR, *ATTENTION]),
            plain("mamba_r2", ["in_proj"], r=2, layouts=("backbone",)),
            plain("mlp_r4", ["up_proj", "v_proj"]),
            of_out_proj("model.layers.{}.mixer", (0, 3), ["model.layers.6.mixer.o_proj"]),
            plain("dora_r2", ["q_proj", "up_proj", "down_proj"], "DoRA", r=2, use_dora=True),
            plain("norms", ["in_proj"], "norms of its own", r=2, modules_to_save=["layers.0.norm", "layers.1.norm", "layers.2.norm", "norm_f"]),
        ], "each of eight layers is Mamba-2, attention without rope or a feed-forward block with the square of relu"),
        old("nemotron_h_old", "nemotron_h", nemotron_h("*-MM", vocab=264, use_bias=True, mlp_bias=True, use_conv_bias=False),
            published_nemotron("*-MM"),
            "hybrid_override_pattern; time_step_limit with Infinity as Python writes it; biases, but of the convolution; "
            "as many tokens as the demo's tokenizer has"),

        family("mistral3", "mistral3",
               {"text_config": {"model_type": "mistral",
                                **small(3, head_dim=12, sliding_window=None, **rope(1000000.0))},
                "vision_config": {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16,
                                  "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8},
                "image_token_index": 103, "spatial_merge_size": 2, "tie_word_embeddings": False},
               text_of(ALL_LINEAR, "v_proj", BOTH_NAMES), "Mistral 3 with images, asked with text", **WITH_IMAGES),

        family("ministral3", "ministral3",
               small(3, head_dim=16, **rope(10000.0, "yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=1.5,
                                            beta_slow=0.25, truncate=False, mscale=1.2, mscale_all_dim=0.6,
                                            llama_4_scaling_beta=0.3)), [
                   plain("all_r4", ALL_LINEAR),
                   plain("qv_r4", ["q_proj", "v_proj"]),
               ], "yarn with mscale and without truncate; queries grow with the position (llama_4_scaling_beta)"),

        family("stablelm", "stablelm",
               layer_norms(small(3, heads=2, kv_heads=1, use_qkv_bias=True, **rope(partial_rotary_factor=0.25))), [
                   plain("all_r4", ALL_LINEAR),
                   plain("v_r4", ["v_proj"]),
               ], "LayerNorm; biases of q, k and v; rope turns 4 of 16 dimensions"),
        family("stablelm_parallel", "stablelm",
               layer_norms(small(3, heads=4, kv_heads=2, hidden=48, qk_layernorm=True, use_parallel_residual=True,
                                 **rope(partial_rotary_factor=0.5))), [
                   plain("all_r4", ALL_LINEAR),
               ], "attention and MLP side by side; a LayerNorm of its own for each head of queries and keys"),

        family("gpt_neox", "gpt_neox",
               heads_alike(small(3, hidden=36, heads=3, rms_norm_eps=0.1, **rope(partial_rotary_factor=0.5))), [
                   plain("all_r4", NEOX_LINEAR),
                   plain("qkv_r4", ["query_key_value"]),
               ], "attention and MLP side by side; q, k and v of each head are together in one matrix", min_distinct=8),
        family("gpt_neox_sequential", "gpt_neox",
               heads_alike(small(3, heads=2, rms_norm_eps=0.1, use_parallel_residual=False,
                                 **rope(1000.0, partial_rotary_factor=0.25))), [
                   plain("all_r4", NEOX_LINEAR),
               ], "attention, then MLP; rope turns 4 of 16 dimensions", min_distinct=4),

        family("opt", "opt", opt(), [
            plain("all_r4", OPT_LINEAR),
            plain("out_r4", ["out_proj"]),
        ], "learned positions from row 2 on; relu; LayerNorm; biases; tied", min_distinct=5),
        family("opt_post_norm", "opt", opt(do_layer_norm_before=False, word_embed_proj_dim=24), [
            plain("all_r4", OPT_LINEAR),
            plain("fc_r4", ["fc1", "fc2"]),
            plain("everything_r4", "all-linear", "the projections of the embedding too"),
            plain("projections_r4", ["project_in", "project_out"]),
            plain("out_r4", ["project_out"]),
        ], "norms after attention and MLP, none at the end; embeddings narrower than the layers", min_distinct=4),

        family("falcon_7b", "falcon", falcon(rope_theta=10000.0), [
            plain("all_r4", NEOX_LINEAR),
            plain("qkv_r4", ["query_key_value"]),
        ], "attention and MLP side by side, of one norm; one head of keys and values at the end of the matrix; tied",
           min_distinct=6),
        family("falcon_40b", "falcon", falcon(rope_theta=20000.0, new_decoder_architecture=True, num_kv_heads=2), [
            plain("all_r4", NEOX_LINEAR),
            plain("qkv_r4", ["query_key_value"]),
        ], "attention and MLP side by side, of a norm each; keys and values follow the queries of their group",
           min_distinct=8),
        family("falcon_11b", "falcon",
               falcon(rope_theta=10000.0, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1), [
                   plain("all_r4", NEOX_LINEAR),
               ], "as falcon_40b, with one norm", min_distinct=8),
        family("falcon_rw", "falcon",
               {**falcon(multi_query=False, parallel_attn=False, bias=True, alibi=True), "hidden_size": 48,
                "num_attention_heads": 12}, [
                    plain("all_r4", NEOX_LINEAR),
                    plain("dense_r4", ["dense"]),
                ], "ALiBi in bfloat16, whose 12 slopes and positions beyond 256 are rounded; attention, then MLP; q, k and v "
                   "of each head together; biases", prompt_lengths=(1, 7, 270), min_distinct=6),

        family("bloom", "bloom", bloom(36, 3, 3), [
            plain("all_r4", NEOX_LINEAR),
            plain("qkv_r4", ["query_key_value"]),
        ], "ALiBi with 3 heads; a norm after the embedding; biases; tied", min_distinct=8),

        family("gemma4", "gemma4_text", gemma4("sfsfsf", tie_word_embeddings=True, final_logit_softcapping=3.0), [
            plain("all_r4", ALL_LINEAR),
            plain("k_r4", ["k_proj"], "of full layers, their values too"),
            plain("dora_r2", ["q_proj", "k_proj", "down_proj"], "DoRA", r=2, use_dora=True),
            plain("norms", ["v_proj"], "norms of its own", r=2,
                  modules_to_save=["q_norm", "k_norm", "post_feedforward_layernorm"]),
        ], "full layers have other heads than those with window 8, and one head of keys, which are the values too; a norm of "
           "values; a quarter of the pairs turn in full layers; each layer's result is multiplied; logits capped at 3; tied"),

        family("gemma4_small", "gemma4_text",
               {**gemma4("sfsfsf", tie_word_embeddings=True, final_logit_softcapping=3.0), "attention_k_eq_v": False,
                "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": 97}, [
                    plain("all_r4", ALL_LINEAR),
                    plain("kv_r4", ["k_proj", "v_proj"]),
                    plain("down_r4", ["down_proj"]),
                    plain("everything_r4", "all-linear", "the projections of the layers' inputs too"),
                    plain("inputs_r4", INPUT_LINEAR),
                ],
               "as its models of few parameters: inputs for each layer; the last two layers take keys and values of those "
               "before, and have wider MLPs; full layers have larger heads"),

        family("gemma4_vl", "gemma4",
               {"text_config": gemma4("sfsf"),
                "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                                  "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "patch_size": 4,
                                  "position_embedding_size": 16, "pooling_kernel_size": 2},
                "audio_config": None, "boi_token_id": 101, "eoi_token_id": 102, "image_token_id": 103, "video_token_id": 104,
                "boa_token_id": 105, "eoa_token_index": 106, "audio_token_id": 107, "tie_word_embeddings": True},
               text_of(ALL_LINEAR, "o_proj", ("text_class",)), "Gemma 4 with images, asked with text", **WITH_IMAGES),
    ]


# --------------------------------------------------------------------------- planted faults

# Keys that change no logits, or the shape of tensors.
OTHER_KEYS = ("_token_id", "_token_index", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
              "num_attention_heads", "num_key_value_heads", "initializer_range", "dropout", "use_cache", "dtype",
              "transformers_version", "architectures", "model_type", "_pdrop", "vision_config",
              "max_position_embeddings", "sliding_window_pattern", "no_rope_layer_interval")


def faults_of(value, path=()):
    """(what, the path, another value) of every constant, in the JSON of a configuration."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not any(part in key for part in OTHER_KEYS) or "original" in key:
                yield from faults_of(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from faults_of(item, (*path, i))
    elif isinstance(value, bool):
        yield path, not value
    elif value in ("sliding_attention", "full_attention"):
        yield path, "full_attention" if value[0] == "s" else "sliding_attention"
    elif isinstance(value, (int, float)):
        coarse = any(part in str(path[-1]) for part in ("eps", "beta_", "original"))  # those of yarn are rounded
        if "no_rope_layers" in path:
            yield path, 1 - value
        elif "partial_rotary_factor" in path:
            yield path, value / 2
        else:
            yield path, value * 2 if coarse else value + 1 if isinstance(value, int) else value * 1.05


def changed(config, path, value):
    config = json.loads(json.dumps(config))
    at = config
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return config


def logits_of(model, prompts):
    out = []
    for prompt in prompts:
        reset_rope(model)
        out.append(model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0])
    return torch.cat(out)


def show_faults(case_dir):
    """Prints by how much (relative) the base's logits change with each constant of the configuration, and with each vector
    set to all ones or zeros, which is what a program has that forgets it."""
    model_dir = case_dir / "model"
    stored = read_json(case_dir / "case.json")
    prompts = [r["prompt_ids"] for r in stored["runs"] if r["adapter"] is None]
    model = load_model(model_dir)
    right = logits_of(model, prompts)

    def report(what, wrong):
        change = ((wrong - right).norm() / right.norm()).item()
        print(f"  {'ok  ' if change > LEAST_FAULT else 'LOW '} {change:8.2g}  {what}", flush=True)

    print(case_dir.name, flush=True)
    config = read_json(model_dir / "config.json")
    for path, value in faults_of(config):
        what = f"{'.'.join(map(str, path))} = {value}"
        with tempfile.TemporaryDirectory() as tmp:
            tmp = pathlib.Path(tmp)
            (tmp / "model.safetensors").symlink_to((model_dir / "model.safetensors").resolve())
            write_json(tmp / "config.json", changed(config, path, value))
            try:
                report(what, logits_of(load_model(tmp), prompts))
            except Exception as error:  # many values fit neither the class nor the tensors
                print(f"  n/a            {what}: {str(error).strip().splitlines()[0][:80] if str(error) else type(error)}")
    state = model.state_dict()
    for name, tensor in state.items():
        if "vision" in name or "visual" in name or tensor.dim() > 1 and "embed_positions" not in name:
            continue
        kept = tensor.clone()
        tensor.copy_(torch.full_like(kept, float(name.endswith(("norm.weight", "ln.weight", "layer_scalar")) and
                                                 abs(kept.mean()) > 0.5)))
        report(f"{name} = {tensor.flatten()[0].item():g}", logits_of(model, prompts))
        tensor.copy_(kept)


if __name__ == "__main__":
    command(__doc__, all_cases(), store_embeddings,
            [("--faults", "write nothing: show what each constant of the stored cases does", show_faults)])
