#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random models, PEFT adapters for them, and the results of
transformers + PEFT (README.md describes the files)."""

import argparse
import copy
import json
import pathlib
import re
import sys
import tempfile
import warnings

from golden_common import (HERE, fresh_dir, read_json, stable_seed, tidy_adapter_config, versions,
                           write_json)

import peft
import torch
import transformers
from merged_adapters import describe_file, merged, random_file
from peft.tuners.lora.layer import ParamWrapper
from routers import router_gaps
from safetensors.torch import load_file, save_file

warnings.filterwarnings("ignore")
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.set_grad_enabled(False)

PROMPT_LENGTHS = (1, 7, 41)
NEW_TOKENS = 64
FULL_ROWS_UP_TO = 8   # a longer prompt keeps its last 8 rows of logits only
MIN_GAP = 2e-3        # least distance of the best and the second-best logit, at every greedy step
MIN_DISTINCT = 12     # least number of different tokens among the greedy ones
MIN_ROUTER_GAP = 1e-4        # least distance of the last expert that a router takes and the first that it leaves out, in
MIN_ROUTER_LOGIT_GAP = 2e-3  # probability and in logits, for every token that is computed
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
ALL_LINEAR = ATTENTION + MLP
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# --------------------------------------------------------------------------- what is made

def adapter(name, *, dtype="float32", config_edit=None, layouts=(), save_embedding_layers=False,
            shared_a=False, added_tokens=0, by_hand=None, notes="", **lora):
    """One adapter: LoraConfig arguments plus how it is stored. `layouts` adds copies whose tensors
    are renamed and whose results are therefore the same; `config_edit` changes the saved JSON.
    `shared_a`: layers that other models fuse have one lora_A. `added_tokens`: by how many tokens the base model's
    vocabulary was resized before the training. `by_hand`: the modules, {name: rank}, of an adapter in a form that
    PEFT no longer saves (merged_adapters.py)."""
    lora.setdefault("task_type", "CAUSAL_LM")
    return dict(name=name, lora=lora, dtype=dtype, config_edit=config_edit, layouts=layouts,
                save_embedding_layers=save_embedding_layers, shared_a=shared_a, added_tokens=added_tokens, by_hand=by_hand,
                notes=notes)


def case(name, kind, config, adapters=(), *, spelling="new", rope_key="rope_type", dtype="float32",
         stored_head="as_saved", headless=False, shard_size=None, config_edit=None, tensors_edit=None, weights=None,
         auto="AutoModelForCausalLM", prompt_lengths=PROMPT_LENGTHS, min_distinct=MIN_DISTINCT, notes=""):
    """One model. `headless`: it and its adapters are saved from AutoModel, which has no output layer. `weights`: what
    draws the weights (random_weights); `auto`: the class of transformers that makes the model; `tensors_edit`: what
    turns the saved tensors into those of the file."""
    return dict(name=name, kind=kind, config=config, adapters=list(adapters), spelling=spelling,
                rope_key=rope_key, dtype=dtype, stored_head=stored_head, headless=headless, shard_size=shard_size,
                config_edit=config_edit, tensors_edit=tensors_edit, weights=weights or random_weights, auto=auto,
                prompt_lengths=prompt_lengths, min_distinct=min_distinct, notes=notes)


def shape(hidden, heads, kv_heads, ffn, vocab, layers=2, **more):
    return dict(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads,
                intermediate_size=ffn, vocab_size=vocab, num_hidden_layers=layers,
                max_position_embeddings=256, bos_token_id=1, eos_token_id=2, **more)


def rope(theta=10000.0, kind="default", **more):
    return {"rope_parameters": {"rope_theta": theta, "rope_type": kind, **more}}


# Renames of tensors that servers are asked to tolerate.
LAYOUTS = {
    "default": lambda k: k.replace(".lora_A.weight", ".lora_A.default.weight")
                          .replace(".lora_B.weight", ".lora_B.default.weight"),
    "base_layer": lambda k: k.replace(".lora_A.", ".base_layer.lora_A.")
                             .replace(".lora_B.", ".base_layer.lora_B."),
    "language_model": lambda k: k.replace("base_model.model.", "base_model.model.language_model.", 1),
    "model_language_model": lambda k: k.replace("base_model.model.model.",
                                                "base_model.model.model.language_model.", 1),
    # trained on AutoModel, and on a model that torch.compile wrapped
    "feature_extraction": lambda k: k.replace("base_model.model.model.", "base_model.model.", 1),
    "compiled": lambda k: k.replace("base_model.model.", "base_model.model._orig_mod.", 1),
}
# Of adapters with lm_head: Tinker's name for it.
HEAD_LAYOUTS = {"unembed": lambda k: k.replace("base_model.model.lm_head.", "base_model.model.model.unembed_tokens.")}

# Of adapters with DoRA and biases: an adapter's name in the tensors' names, and the biases' names before 2023.
VECTOR_LAYOUTS = {
    "magnitude_weight": lambda k: k.replace("lora_magnitude_vector", "lora_magnitude_vector.default.weight"),
    "plain_bias": lambda k: k.replace(".base_layer.bias", ".bias"),
}

# Of adapters with trained tokens: an adapter's name in the tensors' names.
TOKEN_LAYOUTS = {"token_default": lambda k: k.replace("trainable_tokens_delta", "trainable_tokens_delta.default"),
                 "embedding_default": lambda k: re.sub("lora_embedding_[AB]", r"\g<0>.default", k)}
SOME_TOKENS = [*range(0, 100, 3)]

# Of adapters for models with images: the names of the class that has the language model alone (and of Qwen2.5-VL before
# transformers 4.52), and those of other models before then.
TEXT_LAYOUTS = {"text_class": lambda k: k.replace(".model.language_model.", ".model."),
                "language_model_first": lambda k: k.replace(".model.language_model.", ".language_model.model.")}

# The keys that PEFT wrote in 2023, without the newer ones.
OLD_ADAPTER_KEYS = ["base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode",
                    "init_lora_weights", "lora_alpha", "lora_dropout", "modules_to_save", "peft_type",
                    "r", "revision", "target_modules", "task_type"]


# Of Nemotron-H: as NVIDIA's own class names its layers.
OWN_CLASS_LAYOUTS = {"backbone": lambda k: k.replace("base_model.model.model.", "base_model.model.backbone.")}


def keep_old_keys(config):
    return {k: config[k] for k in OLD_ADAPTER_KEYS}


def spell_all_linear(config):
    return {**config, "target_modules": "all-linear"}


def all_cases():
    llama3_rope = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=64)
    return [
        case("llama2", "llama", shape(64, 4, 4, 96, 128, **rope()), [
            adapter("attention_r8", r=8, lora_alpha=16, target_modules=ATTENTION,
                    layouts=tuple(LAYOUTS), notes="scale 16/8"),
            adapter("qv_r1", r=1, lora_alpha=2, target_modules=["q_proj", "v_proj"],
                    notes="scale 2/1"),
            adapter("all_r4_bf16", r=4, lora_alpha=8, target_modules=ALL_LINEAR, dtype="bfloat16",
                    notes="scale 8/4; tensors stored as bfloat16"),
            adapter("qv_r8_f16", r=8, lora_alpha=8, target_modules=["q_proj", "v_proj"],
                    dtype="float16", notes="scale 8/8; tensors stored as float16"),
            adapter("down_r8", r=8, lora_alpha=16, target_modules=["down_proj"], notes="scale 16/8"),
            adapter("old_config", r=4, lora_alpha=32, target_modules=["q_proj", "v_proj"],
                    lora_dropout=0.1, config_edit=keep_old_keys,
                    notes="scale 32/4; adapter_config.json with the keys of PEFT 0.3 only"),
            adapter("bias_all", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], bias="all",
                    notes="scale 8/4; bias \"all\", of which the model has none"),
            adapter("velora", r=4, lora_alpha=8, target_modules=["q_proj", "o_proj"],
                    velora_config={"num_groups": 16},
                    notes="scale 8/4; VeLoRA, whose lora_velora_embed acts on gradients alone"),
            adapter("embedding_copies", r=4, lora_alpha=8, target_modules=["v_proj"], save_embedding_layers=True,
                    notes="scale 8/4; with copies of the model's embedding and output matrix"),
        ], notes="multi-head attention, plain rope"),

        case("llama3", "llama", shape(48, 3, 1, 80, 150, rms_norm_eps=1e-5,
                                      **rope(500000.0, "llama3", **llama3_rope)), [
            adapter("all_linears_r8", r=8, lora_alpha=16, target_modules=ALL_LINEAR,
                    notes="scale 16/8"),
            adapter("all_linear_expanded", r=4, lora_alpha=4, target_modules="all-linear",
                    notes="scale 4/4; asked for with \"all-linear\", which PEFT saves as a list"),
            adapter("all_linear_string", r=13, lora_alpha=26, target_modules="all-linear",
                    config_edit=spell_all_linear,
                    notes="scale 26/13; target_modules is the string \"all-linear\" in the file"),
            adapter("regex", r=4, lora_alpha=12,
                    target_modules=r".*\.layers\.[01]\.(self_attn\.(q|v)_proj|mlp\.up_proj)",
                    notes="scale 12/4; target_modules is a regular expression (full match)"),
            adapter("rslora_r64", r=64, lora_alpha=16, use_rslora=True, target_modules=["q_proj", "v_proj"],
                    notes="scale 16/sqrt(64) = 2; rank larger than the layer's width"),
            adapter("rslora_r13", r=13, lora_alpha=8, use_rslora=True, target_modules=["o_proj", "gate_proj"],
                    notes="scale 8/sqrt(13)"),
            adapter("lm_head", r=8, lora_alpha=16, target_modules=["q_proj", "lm_head"],
                    notes="scale 16/8; saved with save_embedding_layers=False"),
            adapter("lm_head_peft_auto", r=4, lora_alpha=8, target_modules=["v_proj", "lm_head"],
                    save_embedding_layers="auto",
                    notes="scale 8/4; PEFT's default save also stores the base's own output matrix "
                          "as base_model.model.lm_head.base_layer.weight (equal to the model's)"),
        ], notes="grouped queries, rope type llama3 whose bands lie inside the tested positions"),

        case("llama3_old", "llama", shape(32, 2, 1, 48, 100, rms_norm_eps=1e-5,
                                          **rope(500000.0, "llama3", **llama3_rope)),
             [adapter("qkvo_r4", r=4, lora_alpha=8, target_modules=ATTENTION, notes="scale 8/4")],
             spelling="old", notes="like llama3, config in the spelling of transformers 4"),

        case("llama_linear", "llama", shape(32, 2, 2, 48, 100, **rope(10000.0, "linear", factor=4.0)),
             [adapter("qv_r4", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], notes="scale 8/4")],
             spelling="old", rope_key="type", notes="rope_scaling {\"type\": \"linear\"}"),

        case("llama_dynamic", "llama",
             {**shape(32, 2, 2, 48, 100, **rope(10000.0, "dynamic", factor=2.0)),
              "max_position_embeddings": 32},
             [adapter("qv_r4", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], notes="scale 8/4")],
             spelling="old", rope_key="type",
             notes="dynamic NTK; runs go beyond max_position_embeddings = 32 (README.md: what "
                   "transformers does then)"),

        case("llama_dynamic_new", "llama",
             {**shape(32, 2, 1, 48, 100, **rope(10000.0, "dynamic", factor=4.0)),
              "max_position_embeddings": 32}, notes="dynamic NTK, new spelling"),

        case("llama_head_dim", "llama", shape(40, 2, 1, 72, 101, head_dim=32, rms_norm_eps=1e-3, **rope()),
             [adapter("all_r8", r=8, lora_alpha=8, target_modules=ALL_LINEAR, notes="scale 8/8")],
             notes="explicit head_dim 32 where hidden/heads is 20; large rms_norm_eps"),

        case("llama_odd", "llama", shape(72, 4, 2, 100, 131, **rope()), [
            adapter("patterns", r=8, lora_alpha=16, target_modules=ALL_LINEAR,
                    rank_pattern={"model.layers.1.mlp.down_proj": 13, "down_proj": 4,
                                  r"layers\.0\.self_attn\.(k|v)_proj": 1, "^model.layers.1.self_attn.q_proj": 3},
                    alpha_pattern={"down_proj": 8, r"layers\.1\..*": 24, "k_proj": 5},
                    notes="first matching key wins: layers.1 down_proj r 13, alpha 8; layers.0 down_proj "
                          "r 4, alpha 8; layers.0 k_proj r 1, alpha 5; layers.0 v_proj r 1, alpha 16; "
                          "layers.1 q_proj r 3, alpha 24; other layers.1 r 8, alpha 24; rest 16/8"),
            adapter("patterns_rslora", r=4, lora_alpha=4, use_rslora=True, target_modules=["q_proj", "up_proj"],
                    rank_pattern={"up_proj": 9}, alpha_pattern={"q_proj": 6},
                    notes="q_proj 6/sqrt(4), up_proj 4/sqrt(9)"),
            adapter("one_layer", r=8, lora_alpha=16, target_modules=["q_proj", "down_proj"],
                    layers_to_transform=[1], layers_pattern="layers", notes="scale 16/8; layer 1 only"),
            adapter("exclude", r=4, lora_alpha=8, target_modules=ATTENTION,
                    exclude_modules=["model.layers.0.self_attn.q_proj", "o_proj"], notes="scale 8/4"),
            adapter("fractional_alpha", r=3, lora_alpha=5, target_modules=["up_proj"],
                    config_edit=lambda c: {**c, "lora_alpha": 5.0},
                    notes="scale 5/3; lora_alpha written as 5.0"),
        ], notes="head_dim 18, ffn 100 and vocab 131: multiples of neither 16 nor 32"),

        case("llama_bias", "llama", shape(36, 3, 1, 50, 97, attention_bias=True, mlp_bias=True, **rope()),
             [adapter("all_r4", r=4, lora_alpha=8, target_modules=ALL_LINEAR, notes="scale 8/4")],
             notes="attention_bias and mlp_bias, head_dim 12"),

        case("llama_sharded", "llama", shape(32, 2, 1, 48, 100, layers=3, **rope()),
             [adapter("all_r4", r=4, lora_alpha=8, target_modules=ALL_LINEAR, notes="scale 8/4")],
             shard_size="40KB", notes="model.safetensors.index.json and several shards"),

        case("llama_bf16", "llama", shape(64, 4, 2, 96, 128, **rope()), [
            adapter("all_r8_bf16", r=8, lora_alpha=16, target_modules=ALL_LINEAR, dtype="bfloat16",
                    notes="scale 16/8; bfloat16 tensors"),
            adapter("qv_r4_f32", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], notes="scale 8/4"),
        ], dtype="bfloat16", notes="weights stored as bfloat16; expected values computed in float32"),

        case("llama_f16", "llama", shape(32, 1, 1, 64, 100, head_dim=64, **rope()),
             [adapter("all_r8_f16", r=8, lora_alpha=16, target_modules=ALL_LINEAR, dtype="float16",
                      notes="scale 16/8; float16 tensors")],
             dtype="float16", spelling="old",
             notes="weights stored as float16; expected values computed in float32; one head of 64"),

        case("mistral", "mistral", shape(32, 2, 1, 48, 100, sliding_window=8, **rope(1000000.0)),
             [adapter("qv_r4", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], notes="scale 8/4")],
             spelling="old", notes="sliding_window 8 in every layer; head_dim = hidden/heads"),

        case("mistral_head_dim", "mistral", shape(40, 2, 1, 64, 101, head_dim=32, sliding_window=8, **rope()),
             [adapter("all_r8", r=8, lora_alpha=16, target_modules=ALL_LINEAR, notes="scale 16/8")],
             notes="sliding_window 8, head_dim 32 where hidden/heads is 20"),

        case("mistral_full", "mistral", shape(32, 2, 1, 48, 100, sliding_window=None, **rope(1000000.0)),
             spelling="old", notes="sliding_window null: full attention"),

        case("qwen2", "qwen2", shape(48, 3, 1, 84, 141, use_sliding_window=False, **rope(1000000.0)), [
            adapter("all_r8", r=8, lora_alpha=16, target_modules=ALL_LINEAR, notes="scale 16/8"),
            adapter("qkv_r4", r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj"], notes="scale 8/4"),
        ], spelling="old",
             config_edit=lambda c: {**c, "sliding_window": 8, "max_window_layers": 1},
             notes="biases on q, k and v; sliding_window 8 is in the file but use_sliding_window is "
                   "false, so attention is full (what published Qwen2 configs look like)"),

        case("qwen2_window", "qwen2", shape(32, 2, 1, 48, 100, layers=3, use_sliding_window=True,
                                            sliding_window=8, max_window_layers=1, **rope()),
             [adapter("qv_r4", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], notes="scale 8/4")],
             notes="use_sliding_window: layer 0 full, layers 1 and 2 with window 8; layer_types in the file"),

        case("qwen2_window_old", "qwen2", shape(32, 2, 1, 48, 100, layers=3, use_sliding_window=True,
                                                sliding_window=8, max_window_layers=2, **rope()),
             spelling="old", notes="use_sliding_window without layer_types: layers 0, 1 full, layer 2 windowed"),

        case("qwen3", "qwen3", shape(48, 2, 1, 80, 130, head_dim=64, **rope(1000000.0)), [
            adapter("all_r8", r=8, lora_alpha=16, target_modules=ALL_LINEAR, notes="scale 16/8"),
            adapter("down_r13_bf16", r=13, lora_alpha=13, target_modules=["down_proj"], dtype="bfloat16",
                    notes="scale 13/13; bfloat16 tensors"),
        ], notes="q_norm and k_norm with random weights, explicit head_dim 64"),

        case("qwen3_old", "qwen3", shape(32, 4, 2, 48, 100, head_dim=16, tie_word_embeddings=True,
                                         **rope(1000000.0)),
             [adapter("qv_r4", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], notes="scale 8/4")],
             spelling="old", notes="q_norm and k_norm, head_dim 16, tied embeddings"),

        case("qwen3_headless", "qwen3", shape(32, 4, 2, 48, 100, head_dim=16, tie_word_embeddings=True,
                                              **rope(1000000.0)),
             [adapter("qv_r4", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"],
                      task_type="FEATURE_EXTRACTION", notes="scale 8/4; trained on AutoModel")],
             headless=True, notes="saved from AutoModel: Qwen3Model, names without \"model.\""),

        case("kinds_llama", "llama", shape(32, 2, 1, 48, 100, attention_bias=True, mlp_bias=True, **rope()), [
            adapter("plain_r4", r=4, lora_alpha=8, target_modules=ALL_LINEAR, notes="scale 8/4"),
            adapter("dora_r4", r=4, lora_alpha=8, target_modules=ALL_LINEAR, use_dora=True, notes="scale 8/4; DoRA"),
            adapter("dora_bias", r=3, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], use_dora=True,
                    bias="lora_only", layouts=tuple(VECTOR_LAYOUTS),
                    notes="scale 6/3; DoRA, whose layers have trained biases"),
            adapter("bias_all", r=2, lora_alpha=4, target_modules=["q_proj", "up_proj"], bias="all",
                    notes="scale 4/2; trained biases of all linear layers, of most without LoRA"),
            adapter("lora_bias_f16", r=4, lora_alpha=6, target_modules=["k_proj", "o_proj", "gate_proj"],
                    lora_bias=True, dtype="float16", notes="scale 6/4; biases of lora_B; float16 tensors"),
            adapter("tokens", r=2, lora_alpha=4, target_modules=["v_proj"], use_dora=True,
                    trainable_token_indices={"embed_tokens": [97, *range(0, 60, 2), 1], "lm_head": [*range(3, 99, 4)]},
                    layouts=("token_default",),
                    notes="scale 4/2; DoRA; trained rows of the embedding, in any order, and others of the output matrix"),
            adapter("saved", r=2, lora_alpha=4, target_modules=["o_proj"], modules_to_save=["embed_tokens", "lm_head"],
                    notes="scale 4/2; embedding and output matrix of its own, of which a third of the rows are the base's"),
            adapter("tokens_saved_head", r=1, lora_alpha=2, target_modules=["q_proj"], trainable_token_indices=SOME_TOKENS,
                    modules_to_save=["lm_head"], notes="scale 2/1; trained rows of the embedding, an output matrix of its own"),
            adapter("more_tokens", r=2, lora_alpha=4, target_modules=["q_proj"], added_tokens=3,
                    modules_to_save=["embed_tokens", "lm_head"],
                    notes="scale 4/2; three tokens more than the base model, embedding and output matrix of its own"),
            adapter("norms", r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["norm"],
                    notes="scale 4/2; all norms of its own: \"norm\" is the end of each one's name"),
            adapter("embedding", r=3, lora_alpha=6, target_modules=["embed_tokens", "q_proj"], layouts=("embedding_default",),
                    save_embedding_layers="auto",
                    notes="scale 6/3; LoRA of the embedding; as PEFT saves it by default: with the base's embedding"),
            adapter("embedding_alone_f16", r=4, lora_alpha=4, use_rslora=True, target_modules=["embed_tokens"],
                    dtype="float16", notes="scale 4/sqrt(4); LoRA of the embedding alone; float16 tensors; saved with "
                    "save_embedding_layers=False"),
            adapter("embedding_dora", r=2, lora_alpha=4, target_modules=["embed_tokens", "v_proj"], use_dora=True,
                    notes="scale 4/2; DoRA, of the embedding too"),
        ], notes="biases everywhere; DoRA, trained biases and own embeddings beside plain LoRA"),

        case("kinds_qwen2", "qwen2", shape(32, 2, 1, 48, 100, tie_word_embeddings=True, use_sliding_window=False,
                                           **rope(1000000.0)), [
            adapter("plain_r4", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], notes="scale 8/4"),
            adapter("dora_head", r=4, lora_alpha=8, target_modules=ATTENTION + ["lm_head"], use_dora=True,
                    notes="scale 8/4; DoRA, of the tied output matrix too; saved with save_embedding_layers=False"),
            adapter("dora_rslora_bf16", r=4, lora_alpha=4, use_rslora=True, target_modules=["k_proj", "gate_proj"],
                    use_dora=True, dtype="bfloat16", notes="scale 4/sqrt(4); DoRA; bfloat16 tensors"),
            adapter("bias_lora_only", r=4, lora_alpha=8, target_modules=ALL_LINEAR, bias="lora_only",
                    notes="scale 8/4; trained biases of q, k and v, which alone have any"),
            adapter("tokens", r=2, lora_alpha=4, target_modules=["v_proj"], trainable_token_indices=SOME_TOKENS,
                    notes="scale 4/2; trained rows of the embedding, which the tied output matrix shares"),
            adapter("tokens_apart", r=2, lora_alpha=4, target_modules=["v_proj"],
                    trainable_token_indices={"embed_tokens": SOME_TOKENS, "lm_head": [5, 10, 11, 90]},
                    notes="scale 4/2; rows of the embedding and others of the tied output matrix, which is then apart"),
            adapter("tokens_head_lora", r=2, lora_alpha=4, target_modules=["v_proj", "lm_head"],
                    trainable_token_indices=SOME_TOKENS,
                    notes="scale 4/2; trained rows of the embedding and so of the output matrix, and LoRA of that; saved "
                          "with save_embedding_layers=False"),
            adapter("saved_tied", r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["lm_head"],
                    ensure_weight_tying=True, notes="scale 4/2; one matrix of its own for both, saved twice"),
            adapter("saved_embedding", r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=["embed_tokens"],
                    notes="scale 4/2; an embedding of its own; the output matrix stays the base's"),
            adapter("saved_with_copies", r=2, lora_alpha=4, target_modules=["v_proj"],
                    modules_to_save=["embed_tokens", "lm_head"], save_embedding_layers=True,
                    notes="scale 4/2; both of its own; PEFT saves each twice, and the base's"),
            adapter("tokens_with_copies", r=2, lora_alpha=4, target_modules=["v_proj"],
                    trainable_token_indices=SOME_TOKENS, save_embedding_layers=True,
                    notes="scale 4/2; trained rows, tied; PEFT saves them twice, and the base's"),
            adapter("more_trained_tokens", r=2, lora_alpha=4, target_modules=["v_proj"], added_tokens=2,
                    trainable_token_indices=[7, 100, 101], save_embedding_layers=True,
                    notes="scale 4/2; two tokens more than the base model, tied; trained rows"),
            adapter("more_tokens_tied", r=2, lora_alpha=4, target_modules=["v_proj"], added_tokens=4,
                    save_embedding_layers=True, notes="scale 4/2; four tokens more than the base model, tied; not trained"),
            adapter("norms_f16", r=2, lora_alpha=4, target_modules=["up_proj"], dtype="float16",
                    modules_to_save=["post_attention_layernorm", "model.norm"],
                    notes="scale 4/2; norms of its own; float16 tensors"),
            adapter("embedding", r=4, lora_alpha=8, target_modules=["embed_tokens", "v_proj"],
                    rank_pattern={"embed_tokens": 2}, alpha_pattern={"embed_tokens": 3},
                    notes="scale 3/2 of the embedding, whose tied output matrix stays, else 8/4"),
            adapter("embedding_tied_lora", r=4, lora_alpha=6, target_modules=["embed_tokens"], ensure_weight_tying=True,
                    rank_pattern={"embed_tokens": 2},
                    notes="scale 6/2 of the embedding, and 6/4 of the tied output matrix, whose LoRA is of rank 2 too"),
            adapter("embedding_more_tokens", r=2, lora_alpha=4, target_modules=["embed_tokens", "q_proj"], added_tokens=3,
                    save_embedding_layers=True, notes="scale 4/2; LoRA of the embedding with three tokens more"),
        ], notes="biases of q, k and v; tied; DoRA, trained biases and own embeddings beside plain LoRA"),

        case("kinds_qwen3", "qwen3", shape(32, 2, 1, 48, 100, head_dim=16, **rope(1000000.0)), [
            adapter("dora_r8", r=8, lora_alpha=16, target_modules=ALL_LINEAR, use_dora=True, notes="scale 16/8; DoRA"),
            adapter("lora_bias_head", r=4, lora_alpha=8, target_modules=["o_proj", "lm_head"], lora_bias=True,
                    notes="scale 8/4; biases of lora_B where the base has none; saved with "
                          "save_embedding_layers=False"),
            adapter("plain_r1", r=1, lora_alpha=2, target_modules=["down_proj"], notes="scale 2/1"),
            adapter("tokens_bf16", r=2, lora_alpha=4, target_modules=["k_proj"], dtype="bfloat16",
                    trainable_token_indices={"lm_head": SOME_TOKENS},
                    notes="scale 4/2; trained rows of the output matrix; bfloat16 tensors"),
            adapter("saved_bf16", r=2, lora_alpha=4, target_modules=["k_proj"], dtype="bfloat16",
                    modules_to_save=["model.embed_tokens", "lm_head"],
                    notes="scale 4/2; embedding and output matrix of its own; bfloat16 tensors"),
            adapter("more_tokens_untied", r=2, lora_alpha=4, target_modules=["v_proj"], dtype="bfloat16", added_tokens=1,
                    save_embedding_layers=True, notes="scale 4/2; a token more than the base model; not trained"),
            adapter("head_norms", r=2, lora_alpha=4, target_modules=["k_proj"],
                    modules_to_save=["q_norm", "k_norm", "layers.1.input_layernorm"],
                    notes="scale 4/2; norms of its own, of the heads of queries and keys too"),
            adapter("embedding_bf16", r=2, lora_alpha=4, target_modules=["embed_tokens", "lm_head", "down_proj"],
                    dtype="bfloat16", notes="scale 4/2; LoRA of the embedding and of the output matrix; bfloat16 tensors"),
        ], dtype="bfloat16", notes="weights stored as bfloat16; expected values computed in float32"),

        case("llama_fused", "llama", shape(32, 4, 2, 48, 100, **rope()), [
            adapter("all_r4", r=4, lora_alpha=8, target_modules=ALL_LINEAR, shared_a=True, notes="scale 8/4"),
            adapter("dora_r4", r=4, lora_alpha=8, target_modules=ALL_LINEAR, use_dora=True, shared_a=True,
                    notes="scale 8/4; DoRA"),
        ], notes="q, k and v share one lora_A, and so do gate and up, as those of a model that fuses them"),

        case("tied_embed_only", "llama", shape(32, 2, 1, 48, 100, tie_word_embeddings=True, **rope()), [
            adapter("lm_head", r=4, lora_alpha=8, target_modules=["v_proj", "lm_head"],
                    layouts=tuple(HEAD_LAYOUTS), notes="scale 8/4; acts on the output only, not on the tied embedding; "
                          "saved with save_embedding_layers=False"),
            adapter("lm_head_peft_auto", r=4, lora_alpha=8, target_modules=["v_proj", "lm_head"],
                    save_embedding_layers="auto",
                    notes="as PEFT saves it by default: with base_model.model.lm_head.base_layer.weight"),
        ], stored_head="embed_only", notes="tied; only model.embed_tokens.weight is stored"),
        case("tied_head_only", "llama", shape(32, 2, 1, 48, 100, tie_word_embeddings=True, **rope()),
             spelling="old", stored_head="head_only", notes="tied; only lm_head.weight is stored"),
        case("tied_both", "llama", shape(32, 2, 1, 48, 100, tie_word_embeddings=True, **rope()),
             stored_head="both", notes="tied; both are stored, with equal values"),
        case("tied_both_differ", "llama", shape(32, 2, 1, 48, 100, tie_word_embeddings=True, **rope()),
             stored_head="both_differ",
             notes="tie_word_embeddings is true but both are stored with DIFFERENT values: "
                   "transformers 5 warns and does not tie, each is used for itself"),
    ]


# --------------------------------------------------------------------------- models

def random_weights(model, seed):
    """Random weights that keep activations near unit size and give logits with a spread of about 2."""
    gen = torch.Generator().manual_seed(seed)
    hidden = model.config.hidden_size
    tied = model.config.tie_word_embeddings
    gains = {"q_proj": 1.4, "k_proj": 1.4, "v_proj": 1.2, "o_proj": 1.4, "gate_proj": 1.4, "up_proj": 1.2,
             "down_proj": 1.8}
    for name, p in sorted(dict(model.named_parameters()).items()):
        noise = torch.randn(p.shape, generator=gen)
        if name.endswith("norm.weight"):
            p.copy_(1 + 0.2 * noise)
        elif name.endswith(".bias"):
            p.copy_(0.4 * noise)
        elif "embed_tokens" in name or "lm_head" in name:
            p.copy_(noise * (2 / hidden**0.5 if tied or "lm_head" in name else 1.0))
        else:
            p.copy_(noise * gains[name.split(".")[-2]] / p.shape[1] ** 0.5)


def old_spelling(config, rope_key):
    """A config.json of transformers 5 rewritten the way transformers 4 wrote it."""
    config = dict(config)
    params = dict(config.pop("rope_parameters"))
    config["rope_theta"] = params.pop("rope_theta")
    kind = params.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {rope_key: kind, **params}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.0"
    config.pop("layer_types", None)
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
        config.pop("head_dim")
    return dict(sorted(config.items()))


def same_config(a, b, edited):
    def essence(d):
        ignored = ["_name_or_path", "transformers_version", "dtype", "head_dim", "quantization_config"]
        unread = ["max_window_layers", "experts_per_token", "initial_context_length", "n_inner", "offset_alibi",
                  "seq_length", "normalization_function"]  # of some families
        for key in ignored + (["sliding_window", "partial_rotary_factor", *unread] if edited else []):
            d.pop(key, None)
        if d.get("rope_parameters"):
            d["rope_parameters"] = {k: v for k, v in d["rope_parameters"].items() if k != "type"}
        if "text_config" in d:
            essence(d["text_config"])
        return d
    return essence(a.to_dict()) == essence(b.to_dict())


def store_model(spec, out):
    """Writes the model's directory."""
    config_class = transformers.AutoConfig.for_model(spec["kind"]).__class__
    config = config_class(**copy.deepcopy(spec["config"]))
    torch.manual_seed(0)
    model = getattr(transformers, spec["auto"]).from_config(config, dtype=torch.float32)
    spec["weights"](model, stable_seed("model", spec["name"]))
    model = model.to(DTYPES[spec["dtype"]])
    model.config.dtype = DTYPES[spec["dtype"]]
    if spec["headless"]:
        model = model.model
    save_args = {"max_shard_size": spec["shard_size"]} if spec["shard_size"] else {}
    model.save_pretrained(out, **save_args)
    if spec["spelling"] == "old":
        (out / "generation_config.json").unlink(missing_ok=True)

    if spec["stored_head"] != "as_saved":
        path = out / "model.safetensors"
        tensors = load_file(path)
        matrix = tensors.pop("model.embed_tokens.weight", None)
        matrix = tensors.pop("lm_head.weight", None) if matrix is None else matrix
        if spec["stored_head"] in ("embed_only", "both", "both_differ"):
            tensors["model.embed_tokens.weight"] = matrix
        if spec["stored_head"] in ("head_only", "both"):
            tensors["lm_head.weight"] = matrix.clone()
        if spec["stored_head"] == "both_differ":
            gen = torch.Generator().manual_seed(7)
            tensors["lm_head.weight"] = torch.randn(matrix.shape, generator=gen) * matrix.std()
        save_file(tensors, path, metadata={"format": "pt"})

    if spec["tensors_edit"]:
        save_file(spec["tensors_edit"](load_file(out / "model.safetensors")), out / "model.safetensors",
                  metadata={"format": "pt"})

    raw = read_json(out / "config.json")
    if spec["spelling"] == "old":
        raw = old_spelling(raw, spec["rope_key"])
    if spec["config_edit"]:
        raw = spec["config_edit"](raw)
    write_json(out / "config.json", raw)
    reread = transformers.AutoConfig.from_pretrained(out)
    assert same_config(reread, model.config, bool(spec["config_edit"])), \
        f"{spec['name']}: the two spellings are not read the same"


def load_inner(path):
    """The model without its output layer."""
    return transformers.AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def auto_class(path):
    """The class of transformers that reads the model in a directory, and the attention it is computed with."""
    config = read_json(path / "config.json")
    with_images = config["architectures"][0].endswith("ForConditionalGeneration")
    auto = transformers.AutoModelForImageTextToText if with_images else transformers.AutoModelForCausalLM
    return auto, "sdpa" if config["model_type"] == "falcon" else "eager"  # Falcon's eager one adds ALiBi twice


def load_model(path):
    auto, attention = auto_class(path)
    model, report = auto.from_pretrained(path, dtype=torch.float32, attn_implementation=attention,
                                         experts_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    assert all(p.dtype == torch.float32 for p in model.parameters())
    config = model.generation_config
    config.eos_token_id = None
    config.pad_token_id = 0
    config.do_sample = False
    return model.eval()


def with_added_tokens(model, count):
    """The model after resize_token_embeddings, which draws the new rows at random."""
    if count == 0:
        return model
    known = model.config.vocab_size
    model.resize_token_embeddings(known + count, mean_resizing=False)
    gen = torch.Generator().manual_seed(stable_seed("added tokens", count))
    for matrix in {id(m): m for m in (model.get_input_embeddings().weight, model.get_output_embeddings().weight)}.values():
        matrix[known:] = matrix[:known].std() * torch.randn((count, matrix.shape[1]), generator=gen)
    return model


# --------------------------------------------------------------------------- adapters

def random_adapter(model, seed):
    """Random A and B; B so large that the adapter changes its module's output by about half of it."""
    gen = torch.Generator().manual_seed(seed)
    for name, module in sorted(model.named_modules()):
        if not isinstance(module, (peft.tuners.lora.Linear, peft.tuners.lora.Embedding, ParamWrapper)):
            continue
        of_embedding = isinstance(module, peft.tuners.lora.Embedding)
        if of_embedding:
            a, b = module.lora_embedding_A["default"], module.lora_embedding_B["default"]
        else:
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
        r, scale = a.shape[0] // getattr(module, "num_experts", 1), module.scaling["default"]
        a.copy_(torch.randn(a.shape, generator=gen) / a.shape[1] ** 0.5)
        b.copy_(torch.randn(b.shape, generator=gen) * 0.6 / (abs(scale) * r**0.5))
        if of_embedding:  # a token takes one column of A: as large as half of the rows
            a.mul_(a.shape[1] ** 0.5 * module.base_layer.weight.std())
        if not of_embedding and module.lora_B["default"].bias is not None:
            bias = module.lora_B["default"].bias
            bias.copy_(torch.randn(bias.shape, generator=gen) * 0.4 / abs(scale))
        if "default" in module.lora_magnitude_vector:
            magnitude = module.lora_magnitude_vector["default"].weight
            magnitude.mul_(1 + 0.3 * torch.randn(magnitude.shape, generator=gen))
    for name, parameter in sorted(model.named_parameters()):
        if name.endswith(".bias") and "lora_" not in name and parameter.requires_grad:
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=gen))
        if "trainable_tokens_delta" in name:
            parameter.add_(0.5 * parameter.std() * torch.randn(parameter.shape, generator=gen))
        if "modules_to_save" in name:
            scale = 0.5 * parameter.std() if parameter.dim() == 2 else 0.2
            change = scale * torch.randn(parameter.shape, generator=gen)
            change[::3] = 0  # rows that stay the base's
            parameter.add_(change)


def share_a(model):
    """Gives k and v the lora_A of q, and up that of gate."""
    for name, module in model.named_modules():
        for first, others in (("q_proj", ("k_proj", "v_proj")), ("gate_proj", ("up_proj",))):
            if not name.endswith(first) or not isinstance(module, peft.tuners.lora.Linear):
                continue
            for other in others:
                weight = model.get_submodule(name.replace(first, other)).lora_A["default"].weight
                weight.copy_(module.lora_A["default"].weight)


def with_adapter(model_dir, adapter_dir, stored):
    """The model of a stored case (`stored` is its case.json) with an adapter, by PEFT."""
    if any(a.get("merged") for a in stored["adapters"] if a["name"] == adapter_dir.name):
        return merged(load_model(model_dir), adapter_dir)
    if not stored["model"].get("headless"):
        base = load_model(model_dir)
        added = next((a.get("added_tokens", 0) for a in stored["adapters"] if a["name"] == adapter_dir.name), 0)
        if added:  # as people do: resize, then load; the rows come from the adapter's file
            base.resize_token_embeddings(base.config.vocab_size + added, mean_resizing=False)
        return peft.PeftModel.from_pretrained(base, adapter_dir).eval()
    # PEFT reads such an adapter into AutoModel. Under the names of a whole model it must give the same.
    inner = peft.PeftModel.from_pretrained(load_inner(model_dir), adapter_dir).eval()
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        tensors = load_file(adapter_dir / "adapter_model.safetensors")
        renamed = {k.replace("base_model.model.", "base_model.model.model."): v for k, v in tensors.items()}
        write_adapter(tmp / "renamed", read_json(adapter_dir / "adapter_config.json"), renamed)
        model = peft.PeftModel.from_pretrained(load_model(model_dir), tmp / "renamed").eval()
    ids = torch.tensor([[5, 3, 8, 2]])
    hidden = inner(input_ids=ids).last_hidden_state
    assert torch.equal(hidden @ inner.get_input_embeddings().weight.T, model(input_ids=ids).logits)
    return model


def store_by_hand(model_dir, case_name, spec, out):
    gen = torch.Generator().manual_seed(stable_seed("adapter", case_name, spec["name"]))
    lora = {k: v for k, v in spec["lora"].items() if k != "task_type"}
    config, tensors = random_file(load_model(model_dir), spec["by_hand"], lora, gen)
    write_adapter(out, tidy_adapter_config(config, f"loramux-golden/{case_name}"), tensors)
    return [(out.name, None)]


def store_adapter(model_dir, case_name, spec, out, headless=False):
    if spec["by_hand"]:
        return store_by_hand(model_dir, case_name, spec, out)
    base = load_inner(model_dir) if headless else with_added_tokens(load_model(model_dir), spec["added_tokens"])
    model = peft.get_peft_model(base, peft.LoraConfig(**copy.deepcopy(spec["lora"])))
    random_adapter(model, stable_seed("adapter", case_name, spec["name"]))
    if spec["shared_a"]:
        share_a(model)
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        model.save_pretrained(tmp, save_embedding_layers=spec["save_embedding_layers"])
        config = read_json(tmp / "adapter_config.json")
        tensors = load_file(tmp / "adapter_model.safetensors")
    config = tidy_adapter_config(config, f"loramux-golden/{case_name}")
    for key in ("rank_pattern", "alpha_pattern"):  # PEFT sorts the keys when it saves; their order matters
        config[key] = spec["lora"].get(key, config[key])
    if spec["config_edit"]:
        config = spec["config_edit"](config)
    tensors = {k: v.to(DTYPES[spec["dtype"]]).contiguous() for k, v in tensors.items()}
    write_adapter(out, config, tensors)
    written = [(out.name, None)]
    for layout in spec["layouts"]:
        renamed = {{**LAYOUTS, **HEAD_LAYOUTS, **VECTOR_LAYOUTS, **TOKEN_LAYOUTS,
                   **TEXT_LAYOUTS, **OWN_CLASS_LAYOUTS}[layout](k): v for k, v in tensors.items()}
        assert set(renamed) != set(tensors)
        name = f"{out.name}-layout_{layout}"
        write_adapter(out.parent / name, config, renamed)
        written.append((name, out.name))
    return written


def write_adapter(out, config, tensors):
    out.mkdir(parents=True)
    write_json(out / "adapter_config.json", config)
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})


def describe_adapter(model):
    """Per module: rank and scale, as PEFT applies them. A parameter of experts has the rank of each one."""
    modules = {}
    for name, module in model.named_modules():
        if isinstance(module, ParamWrapper):
            layer = name.removeprefix("base_model.model.").removesuffix(".base_layer")
            whole = layer if module.parameter_name == "weight" else f"{layer}.{module.parameter_name}"
            modules[whole] = {"r": module.r["default"], "scale": module.scaling["default"]}
        if isinstance(module, (peft.tuners.lora.Linear, peft.tuners.lora.Embedding)):
            # What a tied output layer shares with the embedding has the rank of that, whatever the module says.
            of_embedding = isinstance(module, peft.tuners.lora.Embedding)
            a = module.lora_embedding_A["default"] if of_embedding else module.lora_A["default"].weight
            modules[name.removeprefix("base_model.model.")] = {"r": a.shape[0], "scale": module.scaling["default"]}
    if model.peft_config["default"].bias == "all":
        for name, _ in model.named_parameters():
            module, kind = name.removeprefix("base_model.model.").rsplit(".", 1)
            if kind == "bias" and module not in modules and not module.endswith((".base_layer", ".lora_B.default")):
                modules[module] = {"r": 0, "scale": 0}
    return modules


# --------------------------------------------------------------------------- expected values

def reset_rope(model):
    """Dynamic rope keeps the longest length it has seen: every run starts from a fresh state."""
    for module in model.modules():
        if hasattr(module, "original_inv_freq") and hasattr(module, "original_max_seq_len"):
            module.inv_freq = module.original_inv_freq.clone()
            module.max_seq_len_cached = module.original_max_seq_len


def far_apart(gaps):
    """Whether no rounding decides which experts a token takes: `gaps` are router_gaps."""
    return gaps[0] >= MIN_ROUTER_GAP and gaps[1] >= MIN_ROUTER_LOGIT_GAP


def compute_run(model, prompt, dynamic):
    """(logits of one forward pass, greedy tokens, least gap of the two best logits)"""
    ids = torch.tensor([prompt])
    reset_rope(model)
    logits = model(input_ids=ids, use_cache=False).logits[0]
    reset_rope(model)
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS,
                         min_new_tokens=None, do_sample=False, use_cache=True,
                         return_dict_in_generate=True, output_logits=True)
    greedy = out.sequences[0, len(prompt):]
    assert len(greedy) == NEW_TOKENS
    steps = torch.cat(out.logits)
    assert torch.equal(steps.argmax(-1), greedy)
    if not dynamic:  # one pass over everything agrees with prefill + decode over the cache
        whole = model(input_ids=out.sequences[:, :-1], use_cache=False).logits[0, len(prompt) - 1:]
        if (whole - steps).abs().max() >= 1e-3:  # a token takes other experts, which a rounding decides
            gaps = router_gaps(model, out.sequences[0, :-1].tolist())
            assert gaps is not None and not far_apart(gaps)
            return logits, greedy, 0.0
    best = steps.topk(2).values
    return logits, greedy, (best[:, 0] - best[:, 1]).min().item()


def changes_much(base, prompt, logits):
    """Whether an adapter, which gives these logits, matters."""
    reset_rope(base)
    known = [min(token, base.config.get_text_config().vocab_size - 1) for token in prompt]
    of_base = base(input_ids=torch.tensor([known]), use_cache=False).logits[0]
    return (of_base - logits[:, :of_base.shape[1]]).abs().max() > 0.2


def make_runs(model, spec, adapter_name, dynamic, first_index, base=None, added=0):
    runs, tensors, notes = [], {}, []
    case_name, vocab_size = spec["name"], model.config.get_text_config().vocab_size
    for length in spec["prompt_lengths"]:
        for attempt in range(500):
            gen = torch.Generator().manual_seed(
                stable_seed("prompt", case_name, adapter_name, length, attempt))
            prompt = torch.randint(0, vocab_size, (length,), generator=gen).tolist()
            for i in range(added if length > added else 0):  # each of them, in prompts that have room
                prompt[(i + 1) * length // (added + 1)] = vocab_size - added + i
            logits, greedy, gap = compute_run(model, prompt, dynamic)
            distinct = len(set(greedy.tolist()))
            if gap < MIN_GAP or distinct < spec["min_distinct"]:
                continue
            routers = router_gaps(model, prompt + greedy[:-1].tolist())
            if routers and not far_apart(routers):
                continue
            if base is None or changes_much(base, prompt, logits):
                break
        else:
            raise SystemExit(f"{case_name}/{adapter_name}: no prompt of {length} tokens is good enough")
        start = 0 if length <= FULL_ROWS_UP_TO else length - FULL_ROWS_UP_TO
        key = f"run{first_index + len(runs)}"
        tensors[f"{key}.logits"] = logits[start:].to(torch.float32).contiguous()
        tensors[f"{key}.greedy"] = greedy.to(torch.int64).contiguous()
        runs.append({"adapter": adapter_name, "key": key, "logit_rows": start,
                     "greedy_min_gap": round(gap, 5),
                     **({"router_min_gap": round(routers[0], 5)} if routers else {}), "prompt_ids": prompt})
        notes.append(f"{length}:try{attempt + 1},std{logits.std():.1f},distinct{distinct}")
    return runs, tensors, notes


def make_case(spec, models_dir):
    out = fresh_dir(models_dir / spec["name"])
    model_dir = out / "model"
    store_model(spec, model_dir)
    base = load_model(model_dir)
    dynamic = "dynamic" in json.dumps(spec["config"])
    most = max((a["added_tokens"] for a in spec["adapters"]), default=0)
    model_entry = {"dir": "model", "model_type": spec["kind"], "dtype": spec["dtype"],
                   "config_spelling": spec["spelling"], **({"headless": True} if spec["headless"] else {}),
                   **({"added_tokens": most} if most else {}), "notes": spec["notes"]}

    runs, tensors, notes = make_runs(base, spec, None, dynamic, 0)
    print(f"{spec['name']}: base {' '.join(notes)}", flush=True)
    adapters = []
    for a in spec["adapters"]:
        written = store_adapter(model_dir, spec["name"], a, out / "adapters" / a["name"], spec["headless"])
        entry = {"name": a["name"], **({"added_tokens": a["added_tokens"]} if a["added_tokens"] else {}),
                 **({"merged": True} if a["by_hand"] else {})}
        model = with_adapter(model_dir, out / "adapters" / a["name"], {"model": model_entry, "adapters": [entry]})
        more, more_tensors, notes = make_runs(model, spec, a["name"], dynamic, len(tensors) // 2, base,
                                              a["added_tokens"])
        print(f"  {a['name']}: {' '.join(notes)}", flush=True)
        tensors.update(more_tensors)
        modules = describe_file(out / "adapters" / a["name"]) if a["by_hand"] else describe_adapter(model)
        for name, same_as in written:
            adapters.append({**entry, "name": name, "dir": f"adapters/{name}", "dtype": a["dtype"],
                             "same_as": same_as, "notes": a["notes"], "modules": modules})
            runs += [{**r, "adapter": name} for r in more]

    save_file(tensors, out / "expected.safetensors")
    write_case_json(out / "case.json", {
        "format": 1,
        "name": spec["name"],
        "model": model_entry,
        "made_with": versions(),
        "adapters": adapters,
        "runs": runs,
    })


def check_case(case_dir):
    """Recomputes a stored case; the largest difference of any logit."""
    stored = read_json(case_dir / "case.json")
    expected = load_file(case_dir / "expected.safetensors")
    dynamic = "dynamic" in json.dumps(read_json(case_dir / "model" / "config.json"))
    worst = 0.0
    for name in [None] + [a["name"] for a in stored["adapters"] if a["same_as"] is None]:
        model = load_model(case_dir / "model") if name is None else \
            with_adapter(case_dir / "model", case_dir / "adapters" / name, stored)
        for run in stored["runs"]:
            if run["adapter"] == name:
                logits, greedy, _ = compute_run(model, run["prompt_ids"], dynamic)
                difference = logits[run["logit_rows"]:] - expected[f"{run['key']}.logits"]
                worst = max(worst, difference.abs().max().item())
                assert torch.equal(greedy, expected[f"{run['key']}.greedy"]), (name, run["key"])
    return worst


def write_case_json(path, value):
    """JSON with one adapter module and one run per line."""
    adapters, runs = value.pop("adapters"), value.pop("runs")
    head = json.dumps(value, indent=1, ensure_ascii=False)[:-2]

    def one(a):
        rest = {k: v for k, v in a.items() if k != "modules"}
        lines = ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in a["modules"].items())
        return f"  {json.dumps(rest, ensure_ascii=False)[:-1]},\n   \"modules\": {{\n    {lines}}}}}"

    text = head + ',\n "adapters": [' + ("\n" if adapters else "") + ",\n".join(map(one, adapters)) + "],\n"
    text += ' "runs": [\n' + ",\n".join("  " + json.dumps(r) for r in runs) + "]\n}\n"
    assert json.loads(text) == {**value, "adapters": adapters, "runs": runs}
    path.write_text(text, encoding="utf-8")


def command(description, cases, made=lambda directory: None, more=()):
    """Makes or checks `cases`, as the command line says. `made` is called with the directory of each one that was made,
    and `more` has other things to do with a case: (option, help, function of its directory)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "models", help="where the cases go")
    parser.add_argument("--list", action="store_true", help="only list the cases")
    parser.add_argument("--check", action="store_true",
                        help="write nothing: recompute the stored cases and compare")
    for option, text, _ in more:
        parser.add_argument(option, action="store_true", help=text)
    parser.add_argument("cases", nargs="*", help="make only these cases (all of them otherwise)")
    args = parser.parse_args()
    names = [c["name"] for c in cases]
    if args.list:
        for c in cases:
            print(f"{c['name']:18} {c['notes']}")
        return
    unknown = set(args.cases) - set(names)
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    if args.check:
        for name in args.cases or names:
            print(f"{name}: largest difference {check_case(args.out / name):.2g}", flush=True)
        return
    asked = [run for option, _, run in more if getattr(args, option.removeprefix("--").replace("-", "_"))]
    for run in asked:
        for name in args.cases or names:
            run(args.out / name)
    if asked:
        return
    for c in cases:
        if not args.cases or c["name"] in args.cases:
            make_case(c, args.out)
            made(args.out / c["name"])
            for path in (args.out / c["name"]).rglob("*.safetensors"):  # safetensors writes 0600
                path.chmod(0o644)


if __name__ == "__main__":
    command(__doc__, all_cases())
