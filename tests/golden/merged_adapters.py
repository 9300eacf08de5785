"""Adapters in forms that PEFT of today reads only in part or not at all: LoRA of each expert apart, as PEFT saved it on
transformers 4, and LoRA of shared experts. They are written by hand, and what they do is computed without PEFT: the product
of B and A is added to the model's matrix in float64, the sum is rounded to float32, and transformers computes the rest.

The file has `base_model.model.MODULE.lora_A.weight` and `.lora_B.weight`, where MODULE is the name in transformers 4, which
had a linear layer for each matrix of each expert and one for the router.

Another form is that of target_parameters before PEFT 0.19, which took all parameters of experts to be [expert, in, out]. Those
that are [expert, out, in], as in most models, have lora_A [expert x rank, out] and lora_B [in, rank x expert] there. A module
of this form is the parameter's name here.

Tinker saves the LoRA of all experts of a layer stacked: `mlp.experts.w1.lora_A` [experts, rank, in] and `lora_B` [experts, out,
rank], of which one may be [1, ...] and is that of every expert: lora_A of w1 and w3, lora_B of w2. Attention of gpt-oss is
`attn` there.
"""

import re

from golden_common import read_json

import torch
from safetensors.torch import load_file

PREFIX = "base_model.model."
# The matrices of one expert, by their names in transformers 4: (parameter of today, which half of its rows).
PARTS = {"gate_proj": ("gate_up_proj", 0), "w1": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1),
         "w3": ("gate_up_proj", 1), "down_proj": ("down_proj", None), "w2": ("down_proj", None)}


# Where PEFT stores the matrices of a parameter of experts, if it has both: one wrapper is within the other.
WRAPPERS = {".experts.gate_up_proj": ".experts.base_layer", ".experts.down_proj": ".experts"}


def is_parameter(module):
    return module.endswith(tuple(WRAPPERS))


def stored_name(module):
    """The module's name in the file."""
    for parameter, wrapper in WRAPPERS.items():
        if module.endswith(parameter):
            return module.removesuffix(parameter) + wrapper
    return module


def is_stacked(module):
    return re.search(r"\.experts\.w[123]$", module) is not None


def stack_of(model, module):
    """The model's matrices [experts, out, in] of a part of all experts of a layer."""
    experts, _, part = module.rpartition(".")
    parameter, half = PARTS[part]
    matrices = getattr(model.get_submodule(experts), parameter).data
    if model.config.model_type == "gpt_oss":
        matrices = matrices.transpose(1, 2)
        return matrices if half is None else matrices[:, half::2]
    return matrices if half is None else matrices.chunk(2, 1)[half]


def matrix_of(model, module):
    """The model's matrix, [out, in], that was the weight of `module` in transformers 4; or a parameter of experts."""
    if is_parameter(module):
        experts, _, parameter = module.rpartition(".")
        return getattr(model.get_submodule(experts), parameter).data
    if is_stacked(module):
        return stack_of(model, module)
    module = module.replace(".router.layer", ".router").replace(".attn.", ".self_attn.")
    layer = model.get_submodule(module.split(".block_sparse_moe.")[0]) if ".block_sparse_moe." in module else None
    if layer is not None and not hasattr(layer, "block_sparse_moe"):
        module = module.replace(".block_sparse_moe.", ".mlp.")
    expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)", module)
    if not expert:
        return model.get_submodule(module).weight.data
    parameter, half = PARTS[expert[3]]
    matrix = getattr(model.get_submodule(expert[1]), parameter).data[int(expert[2])]
    return matrix if half is None else matrix.chunk(2)[half]


def value_of(config, key, module):
    """`r` or `lora_alpha` of a module: the first pattern that matches the end of its name, else what holds for all."""
    patterns = config.get({"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key]) or {}
    return next((v for k, v in patterns.items() if re.fullmatch(rf"(.*\.)?({k})", module)), config[key])


def random_file(model, shapes, lora, gen):
    """(configuration, tensors) of an adapter with these modules: `shapes` is {module: rank}."""
    tensors = {}
    for module, rank in sorted(shapes.items()):
        shape = matrix_of(model, module).shape
        count, outputs, inputs = shape if len(shape) == 3 else (1, *shape)
        scale = value_of(lora, "lora_alpha", module) / rank
        assert value_of(lora, "r", module) == rank, module
        if is_stacked(module):
            counts = (count, 1) if module.endswith("w2") else (1, count)
            a = torch.randn((counts[0], rank, inputs), generator=gen) / inputs ** 0.5
            b = torch.randn((counts[1], outputs, rank), generator=gen) * 0.6 / (scale * rank**0.5)
            tensors[f"{PREFIX}{module}.lora_A.weight"], tensors[f"{PREFIX}{module}.lora_B.weight"] = a, b
            continue
        a = torch.randn((count * rank, inputs), generator=gen) / inputs ** 0.5
        b = torch.randn((outputs, rank * count), generator=gen) * 0.6 / (scale * rank**0.5)
        if is_parameter(module):  # in and out change places, and so do the orders of expert and rank
            a, b = (b.reshape(outputs, rank, count).permute(2, 1, 0).reshape(count * rank, outputs),
                    a.reshape(count, rank, inputs).permute(2, 1, 0).reshape(inputs, rank * count))
        tensors[f"{PREFIX}{stored_name(module)}.lora_A.weight"] = a.contiguous()
        tensors[f"{PREFIX}{stored_name(module)}.lora_B.weight"] = b.contiguous()
    config = {"base_model_name_or_path": None, "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
              "init_lora_weights": True, "layers_pattern": None, "layers_to_transform": None, "lora_dropout": 0.0,
              "modules_to_save": None, "peft_type": "LORA", "revision": None, "task_type": "CAUSAL_LM",
              "alpha_pattern": {}, "rank_pattern": {}, **lora}
    return dict(sorted(config.items())), tensors


def describe_file(adapter_dir):
    """Per module: rank and scale."""
    config = read_json(adapter_dir / "adapter_config.json")
    tensors = load_file(adapter_dir / "adapter_model.safetensors")
    modules = {}
    for key in tensors:
        module = key.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        module = next((module.removesuffix(wrapper) + name for name, wrapper in WRAPPERS.items()
                       if module.endswith(wrapper)), module)
        if key.endswith(".lora_A.weight"):
            rank = value_of(config, "r", module)
            rows = tensors[key].shape[-2]
            assert rows == tensors[key.replace("lora_A", "lora_B")].shape[-1]
            assert rows % rank == 0 if is_parameter(module) else rows == rank
            modules[module] = {"r": rank, "scale": value_of(config, "lora_alpha", module) / rank}
    assert 2 * len(modules) == len(tensors)
    return modules


def merged(model, adapter_dir):
    """The model with the adapter's products added to its matrices."""
    tensors = load_file(adapter_dir / "adapter_model.safetensors")
    for module, entry in describe_file(adapter_dir).items():
        matrix = matrix_of(model, module)
        a, b = (tensors[f"{PREFIX}{stored_name(module)}.lora_{which}.weight"].double() for which in "AB")
        if is_parameter(module):
            count, rank = matrix.shape[0], entry["r"]
            product = torch.einsum("ire,ero->eoi", b.reshape(-1, rank, count), a.reshape(count, rank, -1))
        else:
            product = b @ a
        matrix.copy_((matrix.double() + entry["scale"] * product).float())
    return model
