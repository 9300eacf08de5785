#!/usr/bin/env bash
# PEFT drops tensors of adapters that were trained on transformers 4, and does not say so: those of dense layers and routers.
#
# Versions    peft 0.21.2, transformers 5.24.0, torch 2.15.0
# Behaviour   In models of experts, PEFT turns the target modules gate_proj, up_proj and down_proj into target_parameters, since
#             transformers 5 has one tensor for all experts of a layer. Where some layers are dense (mlp_only_layers,
#             decoder_sparse_step), their modules of these names no longer get an adapter. What an old file has for them is
#             left out when it is loaded, and no warning names it. The same happens to Granite-MoE's router,
#             block_sparse_moe.router.layer in transformers 4. One warning says that the pattern of ranks matched no module
#             and was ignored; yet it was applied.
# Why         The model answers, and is another one than the one that was trained.
# What to do  Compare the tensors of the file with the modules of the loaded model.
# Seen        Qwen3-MoE: the file has the dense layer's gate_proj, up_proj and down_proj, the model has LoRA in the layer of
#             experts only, no warning names the others. Granite-MoE: the same of the router
source "$(dirname "$0")/common.sh"
packages peft==0.21.2 transformers==5.24.0 torch==2.15.0
check <<'EOF2'
import json, pathlib, warnings

import peft
import torch
import transformers
from safetensors.torch import save_file

SHAPE = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, num_experts_per_tok=2)
PARTS = ("gate_proj", "up_proj", "down_proj")


def load(kind, config, modules):
    """Loads an adapter that has these modules, {name: (in, out)}. Returns the modules that have LoRA then, and all warnings."""
    base = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **SHAPE, **config))
    folder = pathlib.Path(kind)
    folder.mkdir()
    tensors = {}
    for name, (inputs, outputs) in modules.items():
        tensors[f"base_model.model.model.{name}.lora_A.weight"] = torch.ones(2, inputs)
        tensors[f"base_model.model.model.{name}.lora_B.weight"] = torch.ones(outputs, 2)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "task_type": "CAUSAL_LM",
        "target_modules": sorted({name.rsplit(".", 1)[1] for name in modules})}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = peft.PeftModel.from_pretrained(base, folder)
    return model, [str(warning.message) for warning in caught]


def modules_of(model):
    return sorted(name.removeprefix("base_model.model.model.") for name, module in model.named_modules()
                  if isinstance(module, peft.tuners.lora.LoraLayer))


experts = {f"layers.1.mlp.experts.{e}.{part}": (32, 32) for e in range(4) for part in PARTS}
dense = {f"layers.0.mlp.{part}": (32, 32) for part in PARTS}
model, said = load("qwen3_moe", dict(num_experts=4, moe_intermediate_size=32, mlp_only_layers=[0]), {**experts, **dense})
seen("Qwen3-MoE: modules with LoRA", modules_of(model), ["layers.1.mlp.experts", "layers.1.mlp.experts.base_layer"])
seen("warnings that name layer 0", [line for line in said if "layers.0" in line], [])
seen("warnings that the rank was ignored", sum("rank_pattern" in line and "ignored" in line for line in said), 1)
seen("its rank", model.get_submodule("base_model.model.model.layers.1.mlp.experts.base_layer").r["default"], 4)

model, said = load("granitemoe", dict(num_local_experts=4), {
    "layers.0.self_attn.v_proj": (32, 16), "layers.0.block_sparse_moe.router.layer": (32, 4),
    "layers.1.self_attn.v_proj": (32, 16), "layers.1.block_sparse_moe.router.layer": (32, 4)})
seen("Granite-MoE: modules with LoRA", modules_of(model), ["layers.0.self_attn.v_proj", "layers.1.self_attn.v_proj"])
seen("warnings that name a router", [line for line in said if "router" in line], [])
EOF2
