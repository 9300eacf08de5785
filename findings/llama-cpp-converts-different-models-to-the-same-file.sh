#!/usr/bin/env bash
# Models that compute different logits become one and the same GGUF file: llama.cpp's converter leaves out what differs.
#
# Versions    llama-cpp-python 0.3.36 (its source archive has the converter), transformers 5.24.0, torch 2.15.0 (needs 6 GB
#             of disk while it runs)
# Behaviour   llama.cpp has in its code, by the name of the family, which layers have a window or no rope, and by what scores
#             are divided. The converter takes the configuration to agree, and checks nothing. It leaves out: Qwen2's
#             window (use_sliding_window), SmolLM3's no_rope_layers, Gemma 3's layer_types, Gemma 2's rope_theta and
#             query_pre_attn_scalar, norm_topk_prob of Qwen3-MoE, Qwen2-MoE and OLMoE, and gpt-oss's swiglu_limit and
#             truncate. Its log is the same for both models of each pair.
# Why         The file of a model that a maker changed in one of these loads and writes. It is another model than the
#             one that its adapters were trained on.
# What to do  Compare these keys with the family's usual values before a conversion. The file cannot tell.
# Seen        each pair: different logits, the same bytes, the same warnings
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0 torch==2.15.0 gguf==0.19.0 numpy==2.4.6
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$work" \
  llama-cpp-python==0.3.36
tar -xzf "$work"/llama_cpp_python-0.3.36.tar.gz -C "$work" --strip-components=3 --wildcards \
  '*/vendor/llama.cpp/conversion/*' '*/vendor/llama.cpp/gguf-py/*'
check <<'EOF2'
import json, logging, pathlib, shutil, sys

import torch
import transformers

sys.path.insert(0, ".")
from conversion import ModelBase, get_model_class
from conversion.base import ModelType, get_model_architecture, gguf

SHAPE = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, initializer_range=0.3)
HEADS = dict(head_dim=8, sliding_window=4)
KINDS = {"s": "sliding_attention", "f": "full_attention"}
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[])
OSS = dict(num_local_experts=8, num_experts_per_tok=2, pad_token_id=0, **HEADS)
YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=32.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=1.0)
PAIRS = [
    ("qwen3_moe", "norm_topk_prob", True, False, EXPERTS),
    ("qwen2_moe", "norm_topk_prob", False, True, dict(shared_expert_intermediate_size=32, **EXPERTS)),
    ("olmoe", "norm_topk_prob", False, True, dict(num_experts=8, num_experts_per_tok=2)),
    ("gpt_oss", "swiglu_limit", 7.0, 0.5, OSS),
    ("gpt_oss", "rope_parameters", {**YARN, "truncate": False}, {**YARN, "truncate": True}, OSS),
    ("qwen2", "use_sliding_window", False, True, dict(sliding_window=4, max_window_layers=0)),
    ("smollm3", "no_rope_layers", [1, 1, 1, 0], [1, 0, 1, 0], dict(pad_token_id=0, tie_word_embeddings=True)),
    ("gemma3_text", "layer_types", [KINDS[k] for k in "ssss"], [KINDS[k] for k in "sfsf"], HEADS),
    ("gemma2", "rope_theta", 10000.0, 500.0, HEADS),
    ("gemma2", "query_pre_attn_scalar", 8, 64, HEADS),
]
said = []
listener = logging.Handler(logging.WARNING)
listener.emit = lambda record: said.append(record.getMessage())
logging.getLogger().addHandler(listener)


def model(kind, config):
    """Logits, the bytes of its GGUF file, and the warnings of the converter."""
    torch.manual_seed(1)
    made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config)).float().eval()
    folder = pathlib.Path(kind)
    shutil.rmtree(folder, ignore_errors=True)
    made.save_pretrained(folder)
    tokens = {chr(ord("0") + i): i for i in range(SHAPE["vocab_size"])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": []}))
    kind = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    kind.set_vocab = lambda self: None   # what it writes of tokens is none of this matter
    said.clear()
    kind(folder, gguf.LlamaFileType.ALL_F32, pathlib.Path("model.gguf"), eager=True).write()
    with torch.no_grad():
        return made(torch.arange(1, 33)[None]).logits, pathlib.Path("model.gguf").read_bytes(), list(said)


for kind, key, usual, other, more in PAIRS:
    a, b = (model(kind, {**SHAPE, **more, key: value}) for value in (usual, other))
    seen(f"{kind}, {key}: same logits, file, warnings",
         ((a[0] - b[0]).abs().max().item() < 1e-2 * a[0].std().item(), a[1] == b[1], a[2] == b[2]), (False, True, True))
EOF2
