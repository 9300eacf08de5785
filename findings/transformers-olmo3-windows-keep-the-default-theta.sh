#!/usr/bin/env bash
# OLMo 3 with `rope_theta` at the top level: transformers takes it for full layers, and 500,000 in layers with a window.
#
# Versions    transformers 5.24.0
# Behaviour   Before transformers 5, `rope_theta` was one number for all layers. transformers 5 still reads it, into a
#             `rope_parameters` for each kind of layer. For OLMo 3 the full layers take the number away, and the layers with
#             a window get the default of the class. Nothing is said. What save_pretrained writes then looks as if it had
#             been meant.
# Why         Three of four layers turn positions by another angle than in training. The model still writes, worse. An
#             adapter that was trained on the folder before fits no longer. Published models have 500,000 and show nothing.
# What to do  Write `rope_parameters` with both kinds of layers into config.json.
# Seen        rope_theta 10,000: full_attention 10,000, sliding_attention 500,000; OLMo 2: 10,000
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0
check <<'EOF2'
import json, pathlib
from transformers import AutoConfig

for kind, expected in [("olmo3", {"sliding_attention": 500000.0, "full_attention": 10000.0}), ("olmo2", 10000.0)]:
    folder = pathlib.Path(kind)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "rope_theta": 10000.0}))
    read = AutoConfig.from_pretrained(folder).rope_parameters
    thetas = read["rope_theta"] if "rope_theta" in read else {name: layer["rope_theta"] for name, layer in read.items()}
    seen(f"{kind} with rope_theta 10000", thetas, expected)
EOF2
