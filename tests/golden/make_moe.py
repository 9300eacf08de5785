#!/usr/bin/env python3
"""Makes the cases of tests/golden/models that are mixtures of experts, with adapters of attention, experts, shared experts
and routers in every form that PEFT saves or saved. With --faults, shows what mistakes do to their logits."""

import re

from golden_common import read_json, stable_seed

import torch
from make_embeddings import store_embeddings
from make_families import (DELTA_LINEAR, LEAST_FAULT, MAMBA_LINEAR, NEMOTRON_LINEAR, QWEN_IMAGES, WITH_IMAGES,
                           family_weights, gemma4, granite_hybrid, kinds, logits_of, nemotron_h, old_names, plain,
                           published_nemotron, qwen3_5, show_faults, small)
from make_models import ATTENTION, adapter, case, command, load_model, rope, with_adapter
from routers import routers_of, watched

EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
GATE_UP_DOWN = ["gate_proj", "up_proj", "down_proj"]
MXFP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
MXFP4_BLOCK = 32


# --------------------------------------------------------------------------- models

def moe_weights(model, seed):
    """As family_weights, with experts that differ and routers that decide."""
    family_weights(model, seed)
    gen = torch.Generator().manual_seed(stable_seed("experts", seed))
    transposed = model.config.model_type == "gpt_oss"  # [expert, in, out]
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=gen)
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            gain = 1.4 if "gate_up" in name else 2.2
            if model.config.model_type == "gemma4_text":  # whose sum is normed: only the epsilon shows how large it was
                gain *= 0.5
            p.copy_(noise * gain / p.shape[1 if transposed else 2] ** 0.5)
        elif name.endswith("experts.up_proj"):
            p.copy_(noise * 1.4 / p.shape[2] ** 0.5)
        elif name.endswith(("mlp.gate.weight", "mixer.gate.weight", "router.weight")):
            p.copy_(noise * 2 / p.shape[1] ** 0.5)
        elif name.endswith("router.proj.weight"):  # whose input is divided by the root of its width
            p.copy_(noise * 2)
        elif name.endswith("router.bias"):
            p.copy_(noise)
        elif name.endswith("shared_expert_gate.weight"):
            p.copy_(noise * 2 / p.shape[1] ** 0.5)
        elif name.endswith(("gate_up_proj_bias", "down_proj_bias")):
            p.copy_(0.4 * noise)
        elif name.endswith("sinks"):
            p.copy_(1 + noise)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=gen))


def fused(tensors):
    """One tensor for the experts of a layer, as transformers 5 has them in memory."""
    out = {k: v for k, v in tensors.items() if ".experts." not in k}
    for first in [k for k in tensors if k.endswith(".experts.0.gate_proj.weight")]:
        experts = first.removesuffix(".0.gate_proj.weight")
        count = sum(k.startswith(experts) and k.endswith(".gate_proj.weight") for k in tensors)
        gate, up, down = ([tensors[f"{experts}.{e}.{part}.weight"] for e in range(count)] for part in GATE_UP_DOWN)
        out[f"{experts}.gate_up_proj"] = torch.cat([torch.stack(gate), torch.stack(up)], dim=1)
        out[f"{experts}.down_proj"] = torch.stack(down)
    return out


def mxfp4_of(matrices):
    """[expert, in, out] in float32 to blocks [expert, out, in / 32, 16] of pairs of 4 bits, the first in the low ones, and
    scales [expert, out, in / 32], which are exponents of 2 with the bias 127."""
    rows = matrices.transpose(1, 2)
    parts = rows.reshape(*rows.shape[:2], -1, MXFP4_BLOCK)
    exponents = parts.abs().amax(-1).log2().floor() - 2  # the largest number of 4 bits is 6 = 1.5 * 2^2
    scaled = parts / exponents.exp2()[..., None]
    codes = (scaled.abs()[..., None] - MXFP4).abs().argmin(-1) + 8 * (scaled < 0)
    pairs = codes.reshape(*codes.shape[:-1], MXFP4_BLOCK // 2, 2)
    return (pairs[..., 0] + 16 * pairs[..., 1]).to(torch.uint8), (exponents + 127).to(torch.uint8)


def in_mxfp4(tensors):
    out = {}
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[f"{name}_blocks"], out[f"{name}_scales"] = (t.contiguous() for t in mxfp4_of(tensor))
        else:
            out[name] = tensor
    return out


def gpt_oss(hidden, intermediate, **more):
    return small(3, hidden=hidden, ffn=intermediate, head_dim=16, num_local_experts=6, num_experts_per_tok=2,
                 sliding_window=8, **kinds("sfs"),
                 **rope(1000.0, "yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=1.5, beta_slow=0.25,
                        truncate=False), **more)


# Mixtures with a shared expert, whose sizes are those of nothing else.
SHARED = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 48, "num_experts": 6, "num_experts_per_tok": 3}
NEXT_LINEAR = ["in_proj_qkvz", "in_proj_ba", "out_proj"]


def from_backbone(tensors):
    """NVIDIA's names."""
    return {re.sub("^model[.]", "backbone.", name): tensor for name, tensor in tensors.items()}


def without_own_size(config):
    """Of a class without dense layers."""
    return {k: v for k, v in config.items() if k != "intermediate_size"}


def published_gpt_oss(config):
    """As gpt-oss-20b has it: the values of yarn stand in rope_scaling, and some are there twice."""
    yarn = {k: v for k, v in config["rope_parameters"].items() if k != "rope_theta"}
    return old_names(["swiglu_alpha", "dtype"], rope_theta=1000.0, rope_scaling=yarn, experts_per_token=2,
                     initial_context_length=32, torch_dtype="float32", quantization_config={
                         "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                    "model.embed_tokens", "lm_head"],
                         "quant_method": "mxfp4"})(config)


# --------------------------------------------------------------------------- adapters

def by_hand(name, modules, notes, *, r=2, rank_pattern=None, targets=None, **lora):
    """An adapter of transformers 4, with these modules, by rank 2 or `rank_pattern`."""
    patterns = rank_pattern or {}
    ranks = {m: next((v for k, v in patterns.items() if re.fullmatch(rf"(.*\.)?({k})", m)), r) for m in modules}
    return adapter(name, by_hand=ranks, r=r, lora_alpha=6, rank_pattern=patterns,
                   target_modules=targets or sorted({m.split(".")[-1] for m in modules}), task_type="CAUSAL_LM",
                   notes=notes, **lora)


def each_expert(layers, block, parts, experts):
    return [f"model.layers.{layer}.{block}.experts.{e}.{part}" for layer in layers for e in experts for part in parts]


def each_layer(layers, *names):
    return [f"model.layers.{layer}.{name}" for layer in layers for name in names]


def on_experts(name, targets=("q_proj",), parameters=tuple(EXPERTS), notes="", r=3, **more):
    return adapter(name, r=r, lora_alpha=6, target_modules=targets if isinstance(targets, str) else list(targets), target_parameters=list(parameters),
                   notes=f"scale 6/{r}; target_parameters" + (f"; {notes}" if notes else ""), **more)


def rewritten(name, targets, notes=""):
    return adapter(name, r=2, lora_alpha=6, target_modules=targets,
                   notes="scale 6/2; PEFT makes target_parameters of the experts' names, gate_up_proj with twice the rank and "
                         "the same scale" + (f"; {notes}" if notes else ""))


def attention(**more):
    return plain("attention_r4", ATTENTION, "k_proj of rank 1", rank_pattern={"k_proj": 1}, **more)


def dora():
    return plain("dora_r2", ["q_proj", "o_proj"], "DoRA", r=2, use_dora=True)


def tinker(attention, layers):
    """As Tinker saves them: A of w1 and w3, and B of w2, are those of all experts."""
    modules = each_layer(layers, "mlp.experts.w1", "mlp.experts.w2", "mlp.experts.w3", *(f"{attention}.{p}" for p in ATTENTION))
    return by_hand("tinker_r2", modules, "as Tinker saves them, written by hand: experts stacked, with a side that all share; "
                   "PEFT 0.21.2 leaves the experts out", targets="all-linear")


def before_0_19(name, layers, targets):
    """target_parameters as PEFT 0.17 and 0.18 saved them."""
    modules = each_layer(layers, *(f"mlp.{parameter}" for parameter in EXPERTS),
                         *(f"self_attn.{target}" for target in targets))
    return by_hand(name, modules, "target_parameters as PEFT 0.18 saved them, written by hand: in and out have changed places; "
                   "PEFT 0.21.2 cannot read it", targets=list(targets), target_parameters=sorted(EXPERTS),
                   peft_version="0.18.1")


V4 = "as PEFT saved it on transformers 4, written by hand"
APART = "with matrices for each expert apart"


def moe(name, kind, config, adapters, notes, **more):
    return case(name, kind, config, adapters, weights=moe_weights, notes=notes, **more)


def all_cases():
    return [
        moe("mixtral", "mixtral", small(2, ffn=32, num_local_experts=8, num_experts_per_tok=2, sliding_window=8, **rope()), [
            attention(),
            dora(),
            on_experts("experts_r3", notes="and of q_proj"),
            rewritten("w123_r2", ["w1", "w2", "w3", "v_proj"]),
            plain("router_r2", ["gate", "k_proj"], "of the router too", r=2),
            by_hand("old_r2", each_expert((0, 1), "block_sparse_moe", ("w1", "w2", "w3"), range(8)) +
                    each_layer((0, 1), "block_sparse_moe.gate", "self_attn.o_proj"), f"{V4}: {APART}, and of the router"),
            by_hand("old_some", each_expert((0, 1), "block_sparse_moe", ("w2",), (1, 4, 6)) +
                    each_expert((1,), "block_sparse_moe", ("w3",), (0, 7)),
                    f"{V4}: of some experts, one of them with another rank; PEFT 0.21.2 cannot read it",
                    rank_pattern={r"experts\.4\.w2": 5}),
            before_0_19("experts_peft_0_18", (0, 1), ["k_proj"]),
        ], "8 experts of which 2 are taken, one tensor for each matrix of each; window 8"),

        moe("qwen3_moe", "qwen3_moe",
            small(2, head_dim=12, ffn=40, moe_intermediate_size=64, num_experts=6, num_experts_per_tok=3,
                  norm_topk_prob=True, **rope(1000000.0)), [
                      attention(),
                      dora(),
                      on_experts("experts_r3", ["v_proj"]),
                      on_experts("down_r2", ["o_proj"], ["experts.down_proj"], "of one matrix: no wrapper within another",
                                 r=2),
                      on_experts("gate_up_r2", ["k_proj"], ["experts.gate_up_proj"],
                                 "of one matrix: the names are those of down_r2", r=2),
                      rewritten("all_linear_r2", "all-linear", "of all layers and routers"),
                      by_hand("old_r2", each_expert((0, 1), "mlp", GATE_UP_DOWN, range(6)) +
                              each_layer((0, 1), "mlp.gate", "self_attn.q_proj"), f"{V4}: {APART}, and of the router"),
                      by_hand("old_some", each_expert((1,), "mlp", ("up_proj",), (2, 3)) +
                              each_expert((0,), "mlp", ("down_proj", "gate_proj"), (5,)),
                              f"{V4}: of some experts; PEFT 0.21.2 cannot read it"),
                      before_0_19("experts_peft_0_18", (0, 1), ["v_proj"]),
                      tinker("self_attn", (0, 1)),
                  ], "6 experts of which 3 are taken; their weights sum to 1 (norm_topk_prob)"),

        moe("qwen3_moe_plain", "qwen3_moe",
            small(6, head_dim=12, ffn=40, moe_intermediate_size=32, num_experts=6, num_experts_per_tok=2,
                  decoder_sparse_step=2, mlp_only_layers=[1], **rope(1000000.0)), [
                      attention(),
                      rewritten("gate_up_down_r2", GATE_UP_DOWN, "the dense layers' MLPs get none"),
                      on_experts("experts_r3", ["q_proj", "v_proj"]),
                      by_hand("old_r2", each_expert((3, 5), "mlp", GATE_UP_DOWN, range(6)) +
                              each_layer((0, 1, 2, 4), *(f"mlp.{part}" for part in GATE_UP_DOWN)),
                              f"{V4}: {APART}, and of the dense layers"),
                  ], "6 experts of which 2 are taken, in layers 3 and 5 alone (decoder_sparse_step, mlp_only_layers); no "
                     "norm_topk_prob, which is false; one tensor for all experts; the published spelling",
            tensors_edit=fused, spelling="published",
            config_edit=lambda config: old_names(
                ["num_local_experts", "norm_topk_prob", "sliding_window"], num_experts=6,
                rope_theta=1000000.0, rope_scaling=None, max_window_layers=6, sliding_window=None)(config)),

        moe("qwen2_moe", "qwen2_moe",
            small(3, ffn=40, moe_intermediate_size=32, shared_expert_intermediate_size=64, num_experts=6,
                  num_experts_per_tok=2, use_sliding_window=True, sliding_window=8, mlp_only_layers=[0], **kinds("sfs"),
                  **rope(1000000.0)), [
                      attention(),
                      on_experts("experts_r3", ["v_proj", "shared_expert_gate"], notes="and of the shared expert's gate"),
                      plain("all_linear_r2", "all-linear", "of shared experts, of their gates, and of the dense layer", r=2),
                      plain("router_r2", ["q_proj"], "target_parameters: of the router", r=2,
                            target_parameters=["gate.weight"]),
                      by_hand("old_r2", each_expert((1, 2), "mlp", GATE_UP_DOWN, range(6)) +
                              each_layer((1, 2), "mlp.gate", "mlp.shared_expert_gate",
                                         *(f"mlp.shared_expert.{part}" for part in GATE_UP_DOWN)) +
                              each_layer((0,), *(f"mlp.{part}" for part in GATE_UP_DOWN)),
                              f"{V4}: {APART}, of shared experts, of their gates and of routers"),
                  ], "6 experts of which 2 are taken and a shared one with a gate; norm_topk_prob false; layer 0 is dense; "
                     "biases of q, k and v; window 8 in layers 0 and 2"),

        moe("olmoe", "olmoe",
            small(2, ffn=32, num_experts=7, num_experts_per_tok=3, norm_topk_prob=True, **rope()), [
                attention(),
                dora(),
                rewritten("gate_up_down_r2", [*GATE_UP_DOWN, "gate"], "of the router too"),
                by_hand("old_r2", each_expert((0, 1), "mlp", GATE_UP_DOWN, range(7)), f"{V4}: {APART}"),
            ], "7 experts of which 3 are taken; norms of all heads of queries together, and of keys; norm_topk_prob"),

        moe("granitemoe", "granitemoe",
            small(2, ffn=64, num_local_experts=6, num_experts_per_tok=2, embedding_multiplier=1.7, residual_multiplier=0.6,
                  attention_multiplier=0.25, logits_scaling=2.5, tie_word_embeddings=True, **rope()), [
                      attention(),
                      on_experts("experts_r3", ["q_proj"], [*EXPERTS, "router.weight"], "of the router too"),
                      by_hand("old_r2", each_layer((0, 1), "block_sparse_moe.router.layer", "self_attn.v_proj"),
                              f"{V4}: of the router by its name on disk"),
                  ], "6 experts of which 2 are taken; one tensor for all experts; the multipliers of Granite; tied"),

        moe("granite_hybrid_moe", "granitemoehybrid",
            {**granite_hybrid("llf", tie_word_embeddings=True), "mamba_n_groups": 1, "num_local_experts": 6, "num_experts_per_tok": 2}, [
                plain("all_r4", [*MAMBA_LINEAR, *ATTENTION], "of the shared block, not of experts"),
                on_experts("experts_r3", ["in_proj", "output_linear"], [*EXPERTS, "router.weight"], "of the router too"),
                plain("everything_r2", "all-linear", r=2),
            ], "6 experts of which 2 are taken, beside a block for all tokens without a gate; two of three layers are Mamba-2 with one group, "
               "none has rope; tied"),

        moe("gemma4_moe", "gemma4_text",
            gemma4("sff", tie_word_embeddings=True, final_logit_softcapping=3.0, enable_moe_block=True, num_experts=6,
                   top_k_experts=2, moe_intermediate_size=20), [
                plain("all_r4", [*ATTENTION, *GATE_UP_DOWN], "of the block beside the experts"),
                on_experts("experts_r3", ["q_proj", "down_proj"]),
                plain("everything_r2", "all-linear", "of routers too", r=2),
                on_experts("down_r2", ["router.proj"], ["experts.down_proj"], "of one matrix, and of the router", r=2),
            ], "6 experts of which 2 are taken, beside a block for all tokens; norms of both, and of the router's input; factors of "
               "what each expert returns; full layers have other heads; tied"),

        moe("qwen3_next", "qwen3_next",
            qwen3_5("llflf", ffn=24, mlp_only_layers=[1], **SHARED, **rope(100.0, partial_rotary_factor=0.5)), [
                plain("all_r4", [*NEXT_LINEAR, *ATTENTION, *GATE_UP_DOWN],
                      "the projections of DeltaNet fused, and the dense layer's block"),
                plain("fused_r2", ["in_proj_qkvz"], r=2),
                plain("gates_r3", ["in_proj_ba", "out_proj"], r=3),
                rewritten("all_linear_r2", "all-linear", "of experts, routers and the shared expert's gate"),
                on_experts("experts_r3", ["in_proj_qkvz", "shared_expert_gate"]),
                by_hand("old_r2", each_expert((0, 2), "mlp", GATE_UP_DOWN, range(6)) +
                        each_layer((0, 2), "mlp.gate", "mlp.shared_expert_gate",
                                   *(f"mlp.shared_expert.{part}" for part in GATE_UP_DOWN)),
                        f"{V4}: {APART}, of shared experts, of their gates and of routers"),
            ], "three of five layers are gated DeltaNet with two value heads for each key head, whose projections are fused "
               "by key head, the others have an output gate; 6 experts of which 3 are taken and a shared one with a gate; "
               "layer 1 is dense"),
        moe("qwen3_next_old", "qwen3_next",
            qwen3_5("lflf", vocab=264, norm_topk_prob=False, **SHARED, **rope(10000.0, partial_rotary_factor=0.25)), [
                plain("all_r4", [*NEXT_LINEAR, *ATTENTION]),
                plain("out_r3", ["out_proj", "o_proj"], r=3),
                plain("states_dora_r2", NEXT_LINEAR, "DoRA, of fused projections", r=2, use_dora=True),
            ], "the published spelling: full_attention_interval 2, no layer_types; without norm_topk_prob; as many tokens as "
               "the demo's tokenizer has", spelling="published",
            config_edit=old_names(["layer_types", "linear_conv_kernel_dim", "mlp_only_layers"], rope_theta=10000.0,
                                  rope_scaling=None, partial_rotary_factor=0.25, full_attention_interval=2,
                                  decoder_sparse_step=1)),

        moe("qwen3_5_moe", "qwen3_5_moe_text",
            without_own_size(qwen3_5("llfl", **SHARED, **rope(100.0, partial_rotary_factor=0.5))), [
                plain("all_r4", [*DELTA_LINEAR, *ATTENTION]),
                plain("everything_r2", "all-linear", "of shared experts and their gates, not of experts and routers", r=2),
                on_experts("experts_r3", ["in_proj_z"]),
                on_experts("router_r2", ["in_proj_a"], [*EXPERTS, "gate.weight"], "of the router too", r=2),
            ], "three of four layers are gated DeltaNet; 6 experts of which 3 are taken and a shared one with a gate"),
        moe("qwen3_5_moe_vl", "qwen3_5_moe",
            {"text_config": without_own_size(qwen3_5("lf", **SHARED, **rope(
                1000.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))),
             "vision_config": {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "patch_size": 4,
                               "out_hidden_size": 32, "num_position_embeddings": 16},
             **QWEN_IMAGES, "tie_word_embeddings": True}, [
                 plain("all_r4", [*DELTA_LINEAR, *ATTENTION], exclude_modules=".*vis.*", layouts=("text_class",)),
                 on_experts("experts_r3", r".*language_model.*\.in_proj_z", notes="target_modules is a regular expression"),
             ], "Qwen 3.5's mixture of experts with images asked with text; one tensor for all experts; tied",
            tensors_edit=fused, **WITH_IMAGES),

        moe("nemotron_h_moe", "nemotron_h",
            nemotron_h("ME*EM-", moe_intermediate_size=20, moe_shared_expert_intermediate_size=28, n_routed_experts=8,
                       num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=1.6, norm_topk_prob=True), [
                plain("all_r4", [*NEMOTRON_LINEAR, *ATTENTION], "of the shared expert too, not of experts"),
                on_experts("experts_r3", ["in_proj"], ["experts.up_proj", "experts.down_proj"]),
                on_experts("down_r2", ["o_proj"], ["experts.down_proj"], "of one matrix", r=2),
                plain("router_r2", ["q_proj"], "target_parameters: of the router", r=2, target_parameters=["gate.weight"]),
            ], "8 experts without a gate in 4 groups, of which 2 are chosen and 3 experts in them, by sigmoids with a bias; a "
               "shared one; one part in each layer"),
        moe("nemotron_h_moe_plain", "nemotron_h",
            nemotron_h("E*ME", moe_intermediate_size=20, moe_shared_expert_intermediate_size=28, n_routed_experts=6,
                       num_experts_per_tok=2, norm_topk_prob=False, routed_scaling_factor=0.8), [
                plain("all_r4", [*NEMOTRON_LINEAR, *ATTENTION]),
            ], "6 experts of which 2 are taken, whose weights do not sum to 1; NVIDIA's spelling", spelling="published",
            config_edit=published_nemotron("E*ME"), tensors_edit=from_backbone),

        moe("gpt_oss", "gpt_oss", gpt_oss(32, 32, swiglu_alpha=1.4, swiglu_limit=1.5), [
            attention(),
            dora(),
            on_experts("experts_r3", notes="whose matrices are [expert, in, out]"),
            plain("some_layers_r2", "all-linear", "target_parameters of layer 1; of the router of layer 2", r=2,
                  target_parameters=["1.mlp.experts.gate_up_proj", "1.mlp.experts.down_proj", "2.mlp.router.weight"]),
            tinker("attn", (1,)),
        ], "6 experts of which 2 are taken, with biases, gate and up in turns, and limits; sinks; window 8 in layers 0 and 2; "
           "yarn without truncate"),

        moe("gpt_oss_mxfp4", "gpt_oss", gpt_oss(64, 96, swiglu_limit=1.5), [
            attention(),
            on_experts("experts_r3", ["v_proj"]),
        ], "as gpt_oss, with larger experts in MXFP4 (the values are those that transformers makes of them); the published "
           "spelling, without swiglu_alpha", tensors_edit=in_mxfp4, config_edit=published_gpt_oss, spelling="published"),
    ]


# --------------------------------------------------------------------------- checks

def relative_change(wrong, right):
    return ((wrong - right).norm() / right.norm()).item()


def report(what, wrong, right, low):
    change = relative_change(wrong, right)
    print(f"  {'ok  ' if change > LEAST_FAULT else 'LOW '} {change:8.2g}  {what}", flush=True)
    if not change > LEAST_FAULT:
        low.append(what)


def other_weights(model, kind):
    """The weights of the experts that another family would take, or in another order."""
    def weights(router, logits, indices):
        taken = logits.float().gather(-1, indices)
        whole = logits.float().softmax(-1).gather(-1, indices)
        wrong = {"of all experts": whole, "that sum to 1": taken.softmax(-1), "in sigmoids": taken.sigmoid(),
                 "in another order": taken.softmax(-1).flip(-1)}[kind]
        scales = getattr(router, "per_expert_scale", None)
        return wrong if scales is None else wrong * scales[indices]
    return watched(model, weights)


def changes_of_experts(model):
    """(what, a function that makes the mistake and returns one that undoes it)."""
    parameters = {n: p for n, p in model.named_parameters() if ".experts." in n or "router" in n or ".gate." in n}
    transposed = model.config.model_type == "gpt_oss"

    def change(ends, new):
        def make():
            kept = {n: p.clone() for n, p in parameters.items() if n.endswith(ends)}
            assert kept, ends
            for n in kept:
                parameters[n].copy_(new(kept[n]))
            return lambda: [parameters[n].copy_(p) for n, p in kept.items()]
        return make

    def halves(p):
        if transposed:  # in turns
            return p.reshape(*p.shape[:-1], -1, 2).flip(-1).reshape(p.shape)
        return torch.cat(p.chunk(2, dim=1)[::-1], dim=1)

    gated = any(name.endswith("gate_up_proj") for name in parameters)
    up = "gate_up_proj" if gated else "experts.up_proj"
    yield "experts in another order", change((up, "experts.down_proj"), lambda p: p.roll(1, 0))
    yield "down_proj of the neighbour", change(("experts.down_proj",), lambda p: p.roll(1, 0))
    if gated:
        yield "gate and up swapped", change(("gate_up_proj",), halves)
    else:
        biases = {n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
        parameters.update(biases)
        yield "a choice without bias", change(("e_score_correction_bias",), torch.zeros_like)
    if transposed:
        yield "gate and up in halves", change(
            ("gate_up_proj",), lambda p: torch.stack(p.chunk(2, dim=-1), dim=-1).reshape(p.shape))
        yield "no biases of gate and up", change(("gate_up_proj_bias",), torch.zeros_like)
        yield "no biases of down", change(("down_proj_bias",), torch.zeros_like)
        yield "router without bias", change(("router.bias",), torch.zeros_like)


def changes_of_adapter(model):
    """As changes_of_experts, for the matrices of target_parameters."""
    def change(which, new):
        def make():
            kept = []
            for module in model.modules():
                if type(module).__name__ == "ParamWrapper" and module.num_experts > 1 and which(module):
                    for part in ("lora_A", "lora_B"):
                        weight = getattr(module, part)["default"].weight
                        kept.append((weight, weight.clone()))
                        weight.copy_(new(part, weight, module.num_experts))
            return (lambda: [w.copy_(k) for w, k in kept]) if kept else None
        return make

    def turned(p, count, dim):  # one order of expert and rank to the other
        p = p.transpose(0, dim)
        p = p.reshape(count, -1, p.shape[-1]).transpose(0, 1).reshape(p.shape)
        return p.transpose(0, dim)

    def of(name):
        return lambda module: module.parameter_name == name

    def every(module):
        return True

    yield "A with the expert fastest", change(every, lambda part, w, e: turned(w, e, 0) if part == "lora_A" else w)
    yield "B with the rank fastest", change(
        every, lambda part, w, e: w.reshape(w.shape[0], -1, e).transpose(1, 2).reshape(w.shape) if part == "lora_B" else w)
    yield "A of the neighbour", change(every, lambda part, w, e: w.roll(w.shape[0] // e, 0) if part == "lora_A" else w)
    yield "half the scale of gate_up_proj", change(of("gate_up_proj"), lambda part, w, e: w / 2 if part == "lora_A" else w)
    yield "gate and up swapped", change(
        of("gate_up_proj"), lambda part, w, e: torch.cat(w.chunk(2)[::-1]) if part == "lora_B" else w)
    yield "no adapter of down_proj", change(of("down_proj"), lambda part, w, e: torch.zeros_like(w))
    yield "no adapter of gate_up_proj", change(of("gate_up_proj"), lambda part, w, e: torch.zeros_like(w))


def check_faults(case_dir, stop=True):
    """Prints by how much the logits change with mistakes of a program in experts and their adapters, each of which must be
    seen."""
    stored = read_json(case_dir / "case.json")
    low = []
    print(case_dir.name, flush=True)
    for name in [None] + [a["name"] for a in stored["adapters"] if not a.get("merged")]:
        prompts = [r["prompt_ids"] for r in stored["runs"] if r["adapter"] == name]
        model = load_model(case_dir / "model") if name is None else \
            with_adapter(case_dir / "model", case_dir / "adapters" / name, stored)
        right = logits_of(model, prompts)
        for what, make in changes_of_experts(model) if name is None else changes_of_adapter(model):
            undo = make()
            if undo is not None:
                report(f"{name or 'base'}: {what}", logits_of(model, prompts), right, low)
                undo()
        if name is not None:
            continue
        alike = {"that sum to 1", "of all experts"}
        for kind in ("that sum to 1", "of all experts", "in sigmoids", "in another order"):
            with other_weights(model, kind):
                wrong = logits_of(model, prompts)
            if kind in alike and relative_change(wrong, right) < 1e-5:
                alike = set()  # what the model does
                continue
            report(f"base: weights {kind}", wrong, right, low)
        biased = any(hasattr(router, "e_score_correction_bias") for router in routers_of(model).values())
        assert not alike or biased, "the weights are neither those of all experts nor sum to 1"
    assert not low or not stop, low


def check_reading(case_dir):
    """What is computed without PEFT is what PEFT computes, where it reads the file."""
    stored = read_json(case_dir / "case.json")
    for entry in stored["adapters"]:
        if not entry.get("merged"):
            continue
        ours = with_adapter(case_dir / "model", case_dir / "adapters" / entry["name"], stored)
        prompts = [r["prompt_ids"] for r in stored["runs"] if r["adapter"] == entry["name"]]
        right = logits_of(ours, prompts)
        without = {**stored, "adapters": [{k: v for k, v in a.items() if k != "merged"} for a in stored["adapters"]]}
        try:
            theirs = with_adapter(case_dir / "model", case_dir / "adapters" / entry["name"], without)
            what = f"off by {relative_change(logits_of(theirs, prompts), right):.2g}"
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
        print(f"  {case_dir.name}/{entry['name']} by PEFT: {what}", flush=True)


def made(case_dir):
    store_embeddings(case_dir)
    check_faults(case_dir)
    check_reading(case_dir)


def show(case_dir):
    show_faults(case_dir)
    check_faults(case_dir, stop=False)
    check_reading(case_dir)


if __name__ == "__main__":
    command(__doc__, all_cases(), made, [("--faults", "write nothing: show what mistakes do to the stored cases", show)])
