#!/usr/bin/env python3
"""Writes PEFT adapters of tests/golden/models in the forms of other tools, by these tools, and adds them to case.json as
copies of the originals. Each tool's own reader computes the logits of its file again (README.md). Run it after
make_models.py."""

import argparse
import copy
import importlib.util
import pathlib
import subprocess
import sys

from golden_common import HERE, fresh_dir, read_json

import mlx.core as mx
import numpy
import peft
import torch
import transformers
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model as load_mlx_model, save_config
from safetensors.torch import load_file

from make_models import write_adapter, write_case_json

LARGEST = 1e-4  # difference of logits, in float32
PLAIN = "base_model.model."


def tensors_of(folder):
    return load_file(folder / "adapter_model.safetensors")


def as_mlx(array):
    return mx.array(array.to(torch.float32).numpy()).astype(
        {torch.float32: mx.float32, torch.bfloat16: mx.bfloat16, torch.float16: mx.float16}[array.dtype])


def logits_by_mlx(model, prompt):
    return torch.from_numpy(numpy.array(model(mx.array([prompt]))[0].astype(mx.float32)))


def write_mlx(case_dir, entry, out, default_keys):
    """As mlx_lm.lora writes it after a training: the trainable parameters, and its arguments as the configuration."""
    modules = entry["modules"]
    rank, scale = next((m["r"], m["scale"]) for m in modules.values())
    assert all((m["r"], m["scale"]) == (rank, scale) for m in modules.values())
    model, config = load_mlx_model(case_dir / "model")
    layers = {int(name.split(".")[2]) for name in modules}
    count = len(model.layers)
    assert layers == set(range(min(layers), count)), "mlx-lm adapts the last layers"
    keys = sorted({name.split(".", 3)[3] for name in modules})
    parameters = {"rank": rank, "dropout": 0.0, "scale": scale, **({} if default_keys else {"keys": keys})}
    num_layers = -1 if len(layers) == count else len(layers)
    model.freeze()
    stored = tensors_of(case_dir / entry["dir"])
    dora = any(name.endswith("lora_magnitude_vector") for name in stored)
    linear_to_lora_layers(model, num_layers, parameters, use_dora=dora)
    weights = []
    for name in modules:
        for own, peft_name in (("lora_a", "lora_A"), ("lora_b", "lora_B")):
            weights.append((f"{name}.{own}", as_mlx(stored[f"{PLAIN}{name}.{peft_name}.weight"]).T))
        if dora:
            weights.append((f"{name}.m", as_mlx(stored[f"{PLAIN}{name}.lora_magnitude_vector"])))
    model.load_weights(weights, strict=False)
    trainable = dict(tree_flatten(model.trainable_parameters()))
    assert set(trainable) == {name for name, _ in weights}
    fresh_dir(out)
    mx.save_safetensors(str(out / "adapters.safetensors"), trainable)
    save_config({"model": f"loramux-golden/{case_dir.name}", "train": True, "fine_tune_type": "dora" if dora else "lora",
                 "adapter_path": "adapters", "num_layers": num_layers, "lora_parameters": parameters,
                 "optimizer": "adam", "mask_prompt": False}, out / "adapter_config.json")
    again, _ = load_mlx_model(case_dir / "model")
    again = load_adapters(again, str(out))
    return lambda prompt: logits_by_mlx(again, prompt)


def write_gguf(case_dir, entry, out, outtype):
    """By llama.cpp's converter. Its values are checked here; its forward pass rounds them."""
    fresh_dir(out)
    subprocess.run([sys.executable, LLAMA_CPP / "convert_lora_to_gguf.py", "--base", case_dir / "model", "--outtype", outtype,
                    "--outfile", out / "adapter.gguf", case_dir / entry["dir"]], check=True, stderr=subprocess.DEVNULL)
    return None


FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


def fuse(tensors):
    """The tensors of layers that Phi-3 fuses as Phi-3 has them: rows one after the other, one lora_A."""
    fused = dict(tensors)
    for whole, parts in FUSED.items():
        for name in [n for n in tensors if f".{parts[0]}." in n]:
            pieces = [fused.pop(name.replace(parts[0], part)) for part in parts]
            shared = "lora_A" in name
            assert not shared or all(torch.equal(piece, pieces[0]) for piece in pieces)
            fused[name.replace(parts[0], whole)] = pieces[0] if shared else torch.cat(pieces)
    return fused


def write_fused(case_dir, entry, out):
    """For Phi-3, which is the model of the case with fused layers; PEFT and transformers compute it as such."""
    fresh_dir(out).rmdir()
    config = read_json(case_dir / entry["dir"] / "adapter_config.json")
    parts = {part for names in FUSED.values() for part in names}
    config["target_modules"] = sorted(set(config["target_modules"]) - parts | set(FUSED))
    write_adapter(out, config, fuse(tensors_of(case_dir / entry["dir"])))
    stored = read_json(case_dir / "model" / "config.json")
    kept = ["hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
            "num_hidden_layers", "max_position_embeddings", "rms_norm_eps", "rope_parameters"]
    phi = transformers.Phi3Config(**{key: copy.deepcopy(stored[key]) for key in kept}, pad_token_id=0,
                                  tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(phi, dtype=torch.float32, attn_implementation="eager")
    model.load_state_dict(fuse(load_file(case_dir / "model" / "model.safetensors")))
    model = peft.PeftModel.from_pretrained(model, out).eval()
    return lambda prompt: model(input_ids=torch.tensor([prompt]), use_cache=False).logits[0]


def write_torchtune(case_dir, entry, out):
    """Under torchtune's own names. Its converter must make the original of them again."""
    spec = importlib.util.spec_from_file_location("convert_weights", TORCHTUNE / "models" / "convert_weights.py")
    converter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(converter)
    model = read_json(case_dir / "model" / "config.json")
    heads, head_dim = model["num_attention_heads"], model["hidden_size"] // model["num_attention_heads"]
    dims = dict(num_heads=heads, num_kv_heads=model["num_key_value_heads"], dim=model["hidden_size"], head_dim=head_dim)
    original = tensors_of(case_dir / entry["dir"])
    own = {}
    for name, value in original.items():
        module, part = name.removeprefix(PLAIN).rsplit(".lora_", 1)
        part = {"A.weight": "lora_a.weight", "B.weight": "lora_b.weight", "magnitude_vector": "magnitude"}[part]
        turned = part != "lora_a.weight" and module.endswith(("q_proj", "k_proj"))
        if turned:
            value = value.reshape(-1, 2, head_dim // 2, *value.shape[1:]).transpose(1, 2).reshape(value.shape)
        own[converter.get_mapped_key(module + ".weight", converter._FROM_HF).replace("weight", part)] = value.contiguous()
    again = converter.tune_to_peft_adapter_weights(own, **dims)
    # It leaves the magnitudes of queries and keys in its own order, so that PEFT computes something else than torchtune.
    wrong = [name for name in original if not torch.equal(again[name], original[name])]
    assert all(name.endswith(("q_proj.lora_magnitude_vector", "k_proj.lora_magnitude_vector")) for name in wrong), wrong
    fresh_dir(out).rmdir()
    config = read_json(case_dir / entry["dir"] / "adapter_config.json")
    write_adapter(out, {key: config[key] for key in ("r", "lora_alpha", "target_modules", "peft_type")}, own)


FORMS = {  # case, adapter, name of the copy: what writes it
    ("llama_sharded", "all_r4", "mlx"): lambda *a: write_mlx(*a, default_keys=True),
    ("llama_odd", "one_layer", "mlx"): lambda *a: write_mlx(*a, default_keys=False),
    ("qwen3", "all_r8", "mlx"): lambda *a: write_mlx(*a, default_keys=True),
    ("qwen3", "down_r13_bf16", "mlx"): lambda *a: write_mlx(*a, default_keys=False),
    ("kinds_llama", "dora_r4", "mlx"): lambda *a: write_mlx(*a, default_keys=True),
    ("llama_sharded", "all_r4", "gguf"): lambda *a: write_gguf(*a, outtype="f32"),
    ("llama_bf16", "all_r8_bf16", "gguf"): lambda *a: write_gguf(*a, outtype="bf16"),
    ("llama3", "lm_head", "gguf"): lambda *a: write_gguf(*a, outtype="f32"),
    ("qwen2", "all_r8", "gguf"): lambda *a: write_gguf(*a, outtype="f32"),
    ("qwen3", "all_r8", "gguf"): lambda *a: write_gguf(*a, outtype="f32"),
    ("llama_fused", "all_r4", "fused"): write_fused,
    ("llama_fused", "dora_r4", "fused"): write_fused,
    ("llama_fused", "all_r4", "torchtune"): write_torchtune,
    ("llama_fused", "dora_r4", "torchtune"): write_torchtune,
}


def main():
    global LLAMA_CPP, TORCHTUNE
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_cpp", type=pathlib.Path, help="llama.cpp's source, as in the sdist of llama-cpp-python 0.3.36")
    parser.add_argument("torchtune", type=pathlib.Path, help="the folder of its package, version 0.6.1; it is not imported")
    parser.add_argument("--only", help="only the adapters of this form")
    args = parser.parse_args()
    LLAMA_CPP, TORCHTUNE = args.llama_cpp, args.torchtune
    cases = {}
    for (case, adapter, kind), write in FORMS.items():
        case_dir = HERE / "models" / case
        stored = cases.setdefault(case, read_json(case_dir / "case.json"))
        name = f"{adapter}-{kind}"
        entry = next(a for a in stored["adapters"] if a["name"] == adapter)
        if args.only and args.only != kind:
            continue
        compute = write(case_dir, entry, case_dir / "adapters" / name)
        expected = load_file(case_dir / "expected.safetensors")
        runs = [r for r in stored["runs"] if r["adapter"] == adapter]
        worst = 0 if compute is None else max((compute(r["prompt_ids"])[r["logit_rows"]:] - expected[f"{r['key']}.logits"])
                    .abs().max().item() for r in runs)
        assert worst < LARGEST, (name, worst)
        print(f"{case}/{name}: largest difference {worst:.2g}", flush=True)
        stored["adapters"] = [a for a in stored["adapters"] if a["name"] != name]
        stored["runs"] = [r for r in stored["runs"] if r["adapter"] != name]
        stored["adapters"].append({**entry, "name": name, "dir": f"adapters/{name}", "same_as": adapter,
                                   "notes": f"written by {kind}"})
        stored["runs"] += [{**r, "adapter": name} for r in runs]
    for case, stored in cases.items():
        write_case_json(HERE / "models" / case / "case.json", stored)


if __name__ == "__main__":
    main()
