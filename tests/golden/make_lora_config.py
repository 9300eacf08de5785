#!/usr/bin/env python3
"""Writes lora_config.json: every field of PEFT's LoraConfig with a value other than its default (README.md)."""

import dataclasses

import peft

from golden_common import HERE, write_json

SAMPLES = {
    "task_type": "CAUSAL_LM", "peft_type": "LORA", "auto_mapping": {"base_model_class": "LlamaForCausalLM"},
    "peft_version": "0.21.2", "base_model_name_or_path": "org/model", "revision": "main", "inference_mode": True,
    "r": 4, "target_modules": ["q_proj"], "exclude_modules": ["v_proj"], "lora_alpha": 16, "lora_dropout": 0.1,
    "fan_in_fan_out": True, "bias": "all", "use_rslora": True, "modules_to_save": ["lm_head"],
    "init_lora_weights": "gaussian", "layers_to_transform": [1], "layers_pattern": "layers", "rank_pattern": {"q_proj": 2},
    "alpha_pattern": {"q_proj": 2}, "megatron_config": {"x": 1}, "megatron_core": "megatron.core",
    "trainable_token_indices": [1], "loftq_config": {"loftq_bits": 4}, "eva_config": {"rho": 2.0},
    "corda_config": {"x": 1}, "lora_ga_config": {"direction": "ArB2r"}, "use_dora": True,
    "velora_config": {"x": 1}, "alora_invocation_tokens": [1, 2], "use_qalora": True, "qalora_group_size": 32,
    "monteclora_config": {"x": 1}, "layer_replication": [[0, 2]], "runtime_config": {"ephemeral_gpu_offload": True},
    "lora_bias": True, "target_parameters": ["x"], "use_bdlora": {"x": 1}, "arrow_config": {"x": 1},
    "kasa_config": {"x": 1}, "ensure_weight_tying": True,
}

names = [field.name for field in dataclasses.fields(peft.LoraConfig)]
assert set(names) == set(SAMPLES), set(names) ^ set(SAMPLES)
write_json(HERE / "lora_config.json", {"peft": peft.__version__, "fields": {name: SAMPLES[name] for name in names}})
