#!/usr/bin/env bash
# A Llama model whose config.json transformers 5 has saved, and mlx-lm: it turns positions as if nothing were said.
#
# Versions    mlx 0.32.4, mlx-lm 0.32.2
# Behaviour   transformers 5 writes the base and the scaling of rotary positions into `rope_parameters`. mlx-lm's Llama
#             reads `rope_theta` and `rope_scaling` at the top level alone, and takes 10,000 without scaling where they
#             are not. It says nothing.
# Why         An adapter trained on such a folder by mlx-lm fits a model that nothing else computes: other servers, which
#             read `rope_parameters`, answer as with an adapter that was damaged.
# What to do  Write the old keys beside the new one in config.json before mlx-lm reads it. Train such adapters anew.
# Seen        logits of rope_parameters equal those of theta 10,000 and differ from those of theta 500,000 with llama3
source "$(dirname "$0")/common.sh"
packages mlx==0.32.4 mlx-cpu==0.32.4 mlx-lm==0.32.2
check <<'EOF2'
import json, pathlib

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import load_model

SHAPE = dict(model_type="llama", hidden_size=64, num_hidden_layers=2, intermediate_size=128, num_attention_heads=4,
             num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=97, max_position_embeddings=512, tie_word_embeddings=False)
SCALING = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
mx.random.seed(1)
model = llama.Model(llama.ModelArgs(**SHAPE))
weights = {name: mx.random.normal(value.shape) * (0.3 if value.ndim > 1 else 0) + (0 if value.ndim > 1 else 1)
           for name, value in tree_flatten(model.parameters())}


def logits(name, **rope):
    folder = pathlib.Path(name)
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({**SHAPE, **rope}))
    loaded, _ = load_model(folder)
    return loaded(mx.arange(1, 65)[None])


def same(a, b):
    return mx.abs(a - b).max().item() < 1e-4


old = logits("old", rope_theta=500000.0, rope_scaling=SCALING)
new = logits("new", rope_parameters={"rope_theta": 500000.0, **SCALING})
nothing = logits("nothing", rope_theta=10000.0)
seen("rope_parameters as rope_theta and rope_scaling", same(new, old), False)
seen("rope_parameters as theta 10,000 without scaling", same(new, nothing), True)
EOF2
