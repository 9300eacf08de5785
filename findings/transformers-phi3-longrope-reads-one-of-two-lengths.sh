#!/usr/bin/env bash
# Phi-3 and longrope: transformers ignores `original_max_position_embeddings` inside `rope_parameters`, where it writes it.
#
# Versions    transformers 5.24.0
# Behaviour   Beyond original_max_position_embeddings longrope takes the long factors, and the number is in the attention
#             factor too. For Phi-3 it may stand at the top level. transformers 5 copies it into `rope_parameters`, saves
#             both, and overwrites the copy when it reads them. The class has a default, 4096. So a file that has the
#             number in `rope_parameters` alone is read with 4096. For other models the number in there counts.
# Why         A program that reads `rope_parameters`, as the new format suggests, computes another model from the same file
#             where the two differ: short factors for long ones, and another attention factor. Nothing fails.
# What to do  Read and change the number at the top level for Phi-3.
# Seen        8192 in rope_parameters alone: 4096; changed from 8192 to 16 after a save: 8192; Llama: 8192
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0
check <<'EOF2'
import json, pathlib
from transformers import AutoConfig, Phi3Config

ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
SHAPE = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32768}


def read(kind, length):
    path = pathlib.Path(kind, "config.json")
    path.parent.mkdir(exist_ok=True)
    rope = {**ROPE, "original_max_position_embeddings": length}
    path.write_text(json.dumps({"model_type": kind, **SHAPE, "rope_parameters": rope}))
    return AutoConfig.from_pretrained(kind).rope_parameters["original_max_position_embeddings"]


seen("phi3, 8192 in rope_parameters alone", read("phi3", 8192), 4096)
seen("llama, 8192 in rope_parameters alone", read("llama", 8192), 8192)

Phi3Config(**SHAPE, original_max_position_embeddings=8192, rope_parameters=dict(ROPE)).save_pretrained("saved")
path = pathlib.Path("saved/config.json")
config = json.loads(path.read_text())
where = {"top": config["original_max_position_embeddings"], "rope": config["rope_parameters"]["original_max_position_embeddings"]}
seen("phi3, as saved", where, {"top": 8192, "rope": 8192})
config["rope_parameters"]["original_max_position_embeddings"] = 16
path.write_text(json.dumps(config))
seen("phi3, 16 in rope_parameters", AutoConfig.from_pretrained("saved").rope_parameters["original_max_position_embeddings"], 8192)
EOF2
