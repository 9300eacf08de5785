#!/usr/bin/env bash
# PEFT: an adapter trained on a model that torch.compile wrapped first is saved under names that PEFT does not load.
#
# Versions    peft 0.21.2, transformers 5.24.0, torch 2.15.0 (needs 6 GB of disk while it runs)
# Behaviour   save_pretrained removes "_orig_mod." where the PEFT model itself was compiled. Where the base model or its
#             layers were compiled, the names keep it: "base_model.model._orig_mod.model.layers.0...". from_pretrained on a
#             model that is not compiled finds none of them: it warns of missing keys, and leaves lora_B at zero.
# Why         Such files are published. By PEFT they are the base model with a warning in the log; a server that skips
#             tensors with unknown names does the same in silence.
# What to do  Compile after get_peft_model, or remove "_orig_mod." from the names of the file.
# Seen        largest lora_B after loading: 0 where the base or the layers were compiled, that of the training otherwise
source "$(dirname "$0")/common.sh"
packages peft==0.21.2 transformers==5.24.0 torch==2.15.0
check <<'EOF2'
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

warnings.simplefilter("ignore")


def base():
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2))


def largest_b(model):
    return max(float(parameter.abs().max()) for name, parameter in model.named_parameters() if "lora_B" in name)


for compiled in ("nothing", "the PEFT model", "the base model", "each layer"):
    model = torch.compile(base()) if compiled == "the base model" else base()
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.constant_(parameter, 0.5)
    if compiled == "each layer":
        layers = model.base_model.model.model.layers
        for i, layer in enumerate(layers):
            layers[i] = torch.compile(layer)
    folder = compiled.replace(" ", "-")
    (torch.compile(model) if compiled == "the PEFT model" else model).save_pretrained(folder)
    with safe_open(f"{folder}/adapter_model.safetensors", "pt") as file:
        name = sorted(file.keys())[0]
    print(f"compiled {compiled}: {name}")
    kept = compiled in ("the base model", "each layer")
    seen(f"compiled {compiled}: _orig_mod in the names, largest lora_B as loaded",
         ("_orig_mod" in name, largest_b(PeftModel.from_pretrained(base(), folder))), (kept, 0.0 if kept else 0.5))
EOF2
