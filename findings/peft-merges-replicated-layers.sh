#!/usr/bin/env bash
# PEFT: an adapter with `layer_replication` answers otherwise once it is merged.
#
# Versions    peft 0.21.2, transformers 5.24.0, torch 2.15.0 (needs 6 GB of disk while it runs)
# Behaviour   layer_replication stacks layers of the base model again, and gives each copy a LoRA of its own; the copies
#             share the weights of the base. merge_and_unload adds the products of all copies to the shared matrix, so
#             every copy gets the sum of them. There is neither an error nor a warning.
# Why         A merged export of such an adapter is another model than the adapter. Whoever tests a server against the
#             merged one finds a fault that is not there.
# What to do  Give each copy a matrix of its own before the merge, or serve the adapter unmerged.
# Seen        largest difference of logits after the merge: 0.2 with a layer that is used twice, below 1e-5 without
#             replication
source "$(dirname "$0")/common.sh"
packages peft==0.21.2 transformers==5.24.0 torch==2.15.0
check <<'EOF2'
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

tokens = torch.arange(8)[None]


def logits(model):
    with torch.no_grad():
        return model.eval()(tokens).logits


for replication in (None, [(0, 2), (1, 2)]):
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2))
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], layer_replication=replication))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, 0, 0.1)
    before = logits(model)
    difference = float((logits(model.merge_and_unload()) - before).abs().max())
    print(f"layer_replication {replication}: largest difference of logits after the merge {difference:.6f}")
    seen(f"layer_replication {replication}: the merge keeps the answers", difference < 1e-5, replication is None)
EOF2
