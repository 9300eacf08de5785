#!/usr/bin/env python3
"""Makes the mixtures of experts of gguf/families, as make_gguf_families.py makes the other families.

    python make_gguf_moe.py CONVERTER_DIR            # the folder of convert_hf_to_gguf.py
    python make_gguf_moe.py CONVERTER_DIR --list     # writes nothing: metadata and tensors of the stored files

llama.cpp has in its code whether the weights of the experts that a token takes sum to 1 (in Mixtral, Qwen3-MoE and Granite),
or are those of all experts (in Qwen2-MoE and OLMoE), and the constants of gpt-oss.
"""
from golden_common import read_json, write_json

import torch
from make_families import gemma4, granite_hybrid, kinds, nemotron_h, published_nemotron, qwen3_5, small
from make_gguf_families import PROMPTS, WINDOW, command, published_kinds
from make_models import rope
from make_moe import SHARED, from_backbone, in_mxfp4, moe_weights, without_own_size
from safetensors.torch import load_file, save_file

MAX_BYTES = 260_000
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}
LOCAL_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}


def two_layers(**more):
    return small(2, heads=2, kv_heads=1, ffn=32, **more)


def halves(model, seed):
    """Weights that 16 bits hold."""
    moe_weights(model, seed)
    for _, p in model.named_parameters():
        p.copy_(p.half().float())


def beyond_limits(model, seed):
    """As moe_weights, with experts that meet the limits of gpt-oss, which are 7."""
    moe_weights(model, seed)
    for name, p in model.named_parameters():
        if name.endswith("experts.gate_up_proj"):
            p.mul_(4)
        elif name.endswith("experts.down_proj"):
            p.mul_(0.2)


def packed(model_dir):
    """Puts the experts in MXFP4, as published."""
    path = model_dir / "model.safetensors"
    save_file(in_mxfp4(load_file(path)), path, metadata={"format": "pt"})
    config = read_json(model_dir / "config.json")
    write_json(model_dir / "config.json", {**config, "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4"}})


def gpt_oss(hidden, intermediate):
    # The published values of yarn; its correction starts and ends at frequency 2.3 and 4.8 of 8 (truncate).
    yarn = rope(150000.0, "yarn", factor=32.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0,
                truncate=False)
    return {**small(2, hidden=hidden, heads=2, kv_heads=1, ffn=intermediate, head_dim=16, sliding_window=WINDOW,
                    **LOCAL_EXPERTS, **kinds("sf"), **yarn), "max_position_embeddings": 131072}


def published(pattern, dense=False):
    """An edit of a saved Nemotron-H: as NVIDIA's files are."""
    def edit(model_dir):
        path = model_dir / "model.safetensors"
        save_file(from_backbone(load_file(path)), path, metadata={"format": "pt"})
        config = published_nemotron(pattern)(read_json(model_dir / "config.json"))
        left_out = ("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group") if dense else ()
        write_json(model_dir / "config.json", {k: v for k, v in config.items() if k not in left_out})
    return {"edit": edit}


def models():
    """(the arguments of make_gguf_families.store, others)."""
    moe = {"weights": moe_weights, "max_bytes": MAX_BYTES}
    yield ("mixtral", "mixtral", two_layers(sliding_window=None, **LOCAL_EXPERTS, **rope(1000000.0)), PROMPTS), moe
    qwen3 = two_layers(head_dim=12, moe_intermediate_size=32, norm_topk_prob=True, **EXPERTS, **rope(1000000.0))
    yield ("qwen3moe", "qwen3_moe", qwen3, PROMPTS), moe
    yield ("qwen3moe_f16", "qwen3_moe", qwen3, PROMPTS), {**moe, "weights": halves, "numbers": "MOSTLY_F16"}
    yield ("qwen2moe", "qwen2_moe", two_layers(moe_intermediate_size=32, shared_expert_intermediate_size=64, norm_topk_prob=False,
                                               use_sliding_window=False, **EXPERTS, **rope(1000000.0)), PROMPTS), moe
    # The converter writes this epsilon, whatever the model has; llama.cpp reads as many heads of keys as of queries.
    yield ("olmoe", "olmoe", {**two_layers(norm_topk_prob=False, rms_norm_eps=1e-5, **EXPERTS, **rope()),
                              "num_key_value_heads": 2}, PROMPTS), moe
    yield ("granitemoe", "granitemoe", two_layers(
        embedding_multiplier=1.7, residual_multiplier=0.6, attention_multiplier=0.25, logits_scaling=2.5,
        tie_word_embeddings=True, **LOCAL_EXPERTS, **rope()), PROMPTS), moe
    yield ("granitehybrid_moe", "granitemoehybrid", {**granite_hybrid("lf", tie_word_embeddings=True), **LOCAL_EXPERTS,
                                                     "intermediate_size": 32}, PROMPTS), {**moe, **published_kinds()}
    # Without Mamba layers, the converter calls it by the name of Granite 3, and says that all has rope.
    yield ("granite4_moe", "granitemoehybrid", {
        **granite_hybrid("ff", position_embedding_type="rope", tie_word_embeddings=True, **rope(10000.0)), **LOCAL_EXPERTS,
        "intermediate_size": 32}, PROMPTS), {**moe, **published_kinds()}
    yield ("gemma4_moe", "gemma4_text", {
        **gemma4("sf", tie_word_embeddings=True, final_logit_softcapping=3.0), "intermediate_size": 16, "enable_moe_block": True,
        "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32}, PROMPTS), moe
    # llama.cpp knows one size for the heads of queries, keys and values, and takes the norms' epsilon for the length of
    # queries and keys too, which have 1e-6 in transformers. The files of Qwen3-Next hold the heads of values in order.
    delta = {**qwen3_5("lf", heads=2, kv_heads=1, ffn=32, rms_norm_eps=1e-6), "linear_value_head_dim": 8, **SHARED}
    yield ("qwen3next", "qwen3_next", {**delta, "norm_topk_prob": True, **rope(1000.0, partial_rotary_factor=0.5)},
           PROMPTS), moe
    yield ("qwen35moe", "qwen3_5_moe_text", without_own_size({**delta, **rope(
        1000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)}), PROMPTS), moe
    yield ("nemotron_h", "nemotron_h", nemotron_h("M-*M-", ssm_state_size=16, mamba_head_dim=16), PROMPTS), {
        "max_bytes": MAX_BYTES, **published("M-*M-", dense=True)}
    yield ("nemotron_h_moe", "nemotron_h", nemotron_h("ME*E", ssm_state_size=16, mamba_head_dim=16, moe_intermediate_size=20, n_routed_experts=6,
                                                      moe_shared_expert_intermediate_size=28, num_experts_per_tok=2,
                                                      routed_scaling_factor=1.6), PROMPTS), {**moe, **published("ME*E")}
    oss = {**moe, "weights": beyond_limits}
    yield ("gpt_oss", "gpt_oss", gpt_oss(32, 32), PROMPTS), oss
    yield ("gpt_oss_mxfp4", "gpt_oss", gpt_oss(64, 96), PROMPTS), {**oss, "edit": packed}


if __name__ == "__main__":
    command(__doc__, models())
