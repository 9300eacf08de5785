#!/usr/bin/env bash
# transformers keeps time_step_limit of Mamba-2 layers while it reads a prompt, and forgets it token by token.
#
# Versions    transformers 5.24.0, torch 2.15.0 (on a processor; needs 2 GB of disk while it runs)
# Behaviour   With a finite time_step_limit, granitemoehybrid and falcon_h1 compute other logits for a token that comes alone,
#             behind a cache, than for the same token at the end of a prompt. Without a limit both are the same.
# Why         The form for prompts clamps the steps, the one for single tokens does not. An answer goes on with other
#             states than those that the same text has as the next prompt.
# What to do  Compare with transformers without its cache, where a model has a finite limit.
# Seen        the largest difference, in parts of the largest logit: below 1e-5 without a limit; above 0.05 with steps of at
#             most 0.3
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0 torch==2.15.0 numpy==2.4.6
check <<'EOF2'
import math

import torch
import transformers

SHAPE = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, initializer_range=0.2, mamba_n_heads=4, mamba_d_head=16,
             mamba_d_state=8, mamba_n_groups=1, mamba_expand=2, intermediate_size=32, num_attention_heads=4,
             num_key_value_heads=2)
KINDS = {
    "granitemoehybrid": dict(layer_types=["linear_attention", "full_attention"], num_local_experts=0,
                             shared_intermediate_size=32),
    "falcon_h1": dict(mamba_d_ssm=64, head_dim=8),
}
for kind, more in KINDS.items():
    for limit in (math.inf, 0.3):
        torch.manual_seed(1)
        config = transformers.AutoConfig.for_model(kind, time_step_limit=(0.0, limit), **SHAPE, **more)
        model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
        ids = torch.arange(1, 33)[None]
        with torch.no_grad():
            whole = model(ids, use_cache=False).logits[0, -1]
            cache = model(ids[:, :-1], use_cache=True).past_key_values
            alone = model(ids[:, -1:], past_key_values=cache, use_cache=True).logits[0, -1]
        off = ((whole - alone).abs().max() / whole.abs().max()).item()
        print(f"{kind}, steps of at most {limit}: {off:.1e}")
        seen(f"{kind}, steps of at most {limit}: below 1e-5, above 0.05", (off < 1e-5, off > 0.05),
             (True, False) if limit == math.inf else (False, True))
EOF2
