#!/usr/bin/env bash
# A DoRA adapter that PEFT saved: PEFT loads it as it was, transformers' load_adapter leaves its magnitudes out.
#
# Versions    peft 0.21.2, transformers 5.24.0, torch 2.15.0 (needs 6 GB of disk while it runs)
# Behaviour   model.load_adapter(FOLDER) of transformers names the magnitude vectors "...lora_magnitude_vector.default",
#             and the model has them as "...lora_magnitude_vector.default.weight". They count as unexpected and as missing,
#             and are set anew. Its report says so on the log level "warning"; the call succeeds.
# Why         The logits of the adapter differ from PEFT's, here by half of what the base model's do. Whoever compares a
#             server with transformers takes the server to be wrong.
# What to do  Load DoRA adapters by peft.PeftModel.from_pretrained.
# Seen        largest difference of logits to the trained model: PEFT 0, transformers 0.18, the base model 0.34; for a LoRA
#             without DoRA: 0 by both
source "$(dirname "$0")/common.sh"
packages peft==0.21.2 transformers==5.24.0 torch==2.15.0
check <<'EOF2'
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                             num_key_value_heads=2)).save_pretrained("base")
tokens = torch.arange(8)[None]


def base():
    return AutoModelForCausalLM.from_pretrained("base").eval()


def logits(model):
    with torch.no_grad():
        return model.eval()(tokens).logits


for dora in (False, True):
    trained = get_peft_model(base(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], use_dora=dora))
    for name, parameter in trained.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, 0.2 if "magnitude" in name else 0, 0.1)
    wanted, folder = logits(trained), f"dora-{dora}"
    trained.save_pretrained(folder)
    by_peft = float((logits(PeftModel.from_pretrained(base(), folder)) - wanted).abs().max())
    model = base()
    model.load_adapter(folder)
    by_transformers = float((logits(model) - wanted).abs().max())
    print(f"use_dora {dora}: largest difference by PEFT {by_peft:.5f}, by transformers {by_transformers:.5f}, "
          f"of the base model {float((logits(base()) - wanted).abs().max()):.5f}")
    seen(f"use_dora {dora}: PEFT and transformers load what was saved", (by_peft < 1e-5, by_transformers < 1e-5), (True, not dora))
EOF2
