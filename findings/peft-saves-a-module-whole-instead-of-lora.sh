#!/usr/bin/env bash
# PEFT: a module in both `target_modules` and `modules_to_save` gets no LoRA, and the configuration says that it has one.
#
# Versions    peft 0.21.2, transformers 5.24.0, torch 2.15.0 (needs 6 GB of disk while it runs)
# Behaviour   PEFT trains the module as a whole and leaves LoRA out of it, without a warning. adapter_config.json keeps the
#             name in target_modules, r and lora_alpha. PEFT refuses the configuration only if no other module is left.
# Why         An output matrix that was meant to learn in rank 8 is trained and stored in full. A server that plans memory
#             by r, or expects a lora_A of each target module, is wrong about the adapter. One that skips the full matrix,
#             since it knows LoRA alone, answers without what was trained there.
# What to do  Name each module once. Take the tensors in the file for what was trained.
# Seen        lm_head in both: no warning, one tensor lm_head.weight of the whole matrix; target_modules has lm_head
source "$(dirname "$0")/common.sh"
packages peft==0.21.2 transformers==5.24.0 torch==2.15.0
check <<'EOF2'
import json, pathlib, warnings
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM


def model(targets):
    base = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                                        num_attention_heads=2, num_key_value_heads=1))
    return get_peft_model(base, LoraConfig(r=2, target_modules=targets, modules_to_save=["lm_head"]))


with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    made = model(["q_proj", "lm_head"])
seen("warnings of lm_head", [str(w.message) for w in said if "lm_head" in str(w.message) or "modules_to_save" in str(w.message)], [])
made.save_pretrained("adapter")
tensors = load_file("adapter/adapter_model.safetensors")
seen("tensors of lm_head", {n: list(t.shape) for n, t in tensors.items() if "lm_head" in n}, {"base_model.model.lm_head.weight": [64, 32]})
seen("target_modules", sorted(json.loads(pathlib.Path("adapter/adapter_config.json").read_text())["target_modules"]), ["lm_head", "q_proj"])
try:
    model(["lm_head"])
    refused = ""
except ValueError as error:
    refused = type(error).__name__
seen("lm_head alone in both", refused, "NoMatchingPeftModuleError")
EOF2
