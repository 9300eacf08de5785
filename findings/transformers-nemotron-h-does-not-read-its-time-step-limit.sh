#!/usr/bin/env bash
# transformers holds the steps of Nemotron-H's Mamba-2 layers at time_step_min and above, and does not read time_step_limit.
#
# Versions    transformers 5.24.0, torch 2.15.0 (on a processor; needs 2 GB of disk while it runs)
# Behaviour   time_step_limit changes no logit of nemotron_h; time_step_min, which says how dt_bias is first drawn, does.
# Why         NemotronHMamba2Mixer takes (time_step_min, infinity) as its limits. NVIDIA's own program, vLLM and llama.cpp
#             take time_step_limit, which is (0, infinity) in the published models, or none.
# What to do  Set time_step_min to 0 where a published model is compared with transformers.
# Seen        the largest difference, in parts of the largest logit: 0 with steps of at most 0.3; above 0.01 with a
#             time_step_min of 0.7
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0 torch==2.15.0 numpy==2.4.6
check <<'EOF2'
import torch
import transformers

SHAPE = dict(vocab_size=64, hidden_size=32, initializer_range=0.2, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8,
             n_groups=1, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
             layer_types=["linear_attention", "full_attention"])


def logits(**more):
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model("nemotron_h", **{**SHAPE, **more})
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            parameter.data.zero_()  # which time_step_min has a part in drawing
    with torch.no_grad():
        return model(torch.arange(1, 33)[None], use_cache=False).logits


right = logits()
for what, more, changes in (("time_step_limit up to 0.3", dict(time_step_limit=(0.0, 0.3)), False),
                            ("time_step_min 0.7", dict(time_step_min=0.7, time_step_max=0.8), True)):
    off = ((logits(**more) - right).abs().max() / right.abs().max()).item()
    print(f"{what}: {off:.1e}")
    seen(f"{what}: 0, above 0.01", (off == 0, off > 0.01), (not changes, changes))
EOF2
