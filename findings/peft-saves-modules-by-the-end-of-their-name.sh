#!/usr/bin/env bash
# PEFT: `modules_to_save=["norm"]`, meant for the last norm, takes every module whose name ends so.
#
# Versions    peft 0.21.2, transformers 5.24.0, torch 2.15.0 (needs 6 GB of disk while it runs)
# Behaviour   Names of modules_to_save are compared with the end of a module's full name, without a dot before them. So
#             "norm" takes model.norm, and each layer's input_layernorm, post_attention_layernorm, q_norm and k_norm too.
#             target_modules in the same configuration takes whole names alone: "proj" finds nothing.
# Why         More is trained and saved than the configuration seems to say. A reader that takes the names as
#             whole names finds tensors that it does not expect.
# What to do  Take the tensors in the file for what was trained, not the names in the configuration.
# Seen        saved for "norm": the five norms of a Qwen3 model; target_modules=["proj"]: refused
source "$(dirname "$0")/common.sh"
packages peft==0.21.2 transformers==5.24.0 torch==2.15.0
check <<'EOF2'
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import Qwen3Config, Qwen3ForCausalLM


def model(**config):
    base = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                        num_attention_heads=4, num_key_value_heads=2, head_dim=8))
    return get_peft_model(base, LoraConfig(r=4, **config))


names = get_peft_model_state_dict(model(target_modules=["q_proj"], modules_to_save=["norm"]))
saved = sorted({name.split(".")[-2] for name in names if "lora_" not in name})
seen("saved for 'norm'", saved, ["input_layernorm", "k_norm", "norm", "post_attention_layernorm", "q_norm"])
try:
    model(target_modules=["proj"])
    found = True
except ValueError:
    found = False
seen("target_modules=['proj'] finds modules", found, False)
EOF2
