#!/usr/bin/env python3
"""Makes tests/golden/models/CASE/heads and heads.json: adapters with a head for classes, as PEFT trains and saves them for
the task type SEQ_CLS, and what transformers + PEFT compute with them (README.md). Needs what make_models.py made."""

import argparse
import copy
import pathlib
import shutil
import tempfile

from golden_common import HERE, fresh_dir, read_json, stable_seed, tidy_adapter_config, versions, write_json

import peft
import torch
import transformers
from make_models import ALL_LINEAR, DTYPES, PROMPT_LENGTHS, random_adapter, write_adapter
from safetensors.torch import load_file

# CASE -> {NAME: (classes, how the tensors' names are written, type of the tensors, LoraConfig)}
HEADS = {
    "kinds_llama": {
        "three": (3, None, "float32", dict(r=4, lora_alpha=8, target_modules=ALL_LINEAR)),
        "one": (1, None, "float32", dict(r=2, lora_alpha=4, target_modules=["q_proj", "down_proj"], use_dora=True)),
    },
    "kinds_qwen2": {
        "two": (2, ".modules_to_save", "float32", dict(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"],
                                                       bias="lora_only")),
    },
    "kinds_qwen3": {
        "five_bf16": (5, None, "bfloat16", dict(r=3, lora_alpha=3, target_modules=ALL_LINEAR,
                                                modules_to_save=["model.norm"])),
    },
}


def load_base(case_dir, classes):
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        case_dir / "model", dtype=torch.float32, attn_implementation="eager", num_labels=classes).eval()


def store(case_dir, name, classes, infix, dtype, lora):
    torch.manual_seed(0)
    model = peft.get_peft_model(load_base(case_dir, classes), peft.LoraConfig(task_type="SEQ_CLS", **copy.deepcopy(lora)))
    seed = stable_seed("head", case_dir.name, name)
    random_adapter(model, seed)
    gen = torch.Generator().manual_seed(seed + 1)
    for key, weight in model.named_parameters():
        if "score.modules_to_save" in key:
            weight.copy_(torch.randn(weight.shape, generator=gen) * 2 / weight.shape[1] ** 0.5)
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        model.save_pretrained(tmp, save_embedding_layers=False)
        config = tidy_adapter_config(read_json(tmp / "adapter_config.json"), f"loramux-golden/{case_dir.name}")
        tensors = load_file(tmp / "adapter_model.safetensors")
    assert {"score", "classifier"} <= set(config["modules_to_save"])  # PEFT names both
    assert tensors["base_model.model.score.weight"].shape[0] == classes
    tensors = {key: value.to(DTYPES[dtype]).contiguous() for key, value in tensors.items()}
    write_adapter(case_dir / "heads" / name, config, tensors)
    if classes == 3:  # names of its own
        write_json(case_dir / "heads" / name / "config.json", {"id2label": {"0": "bad", "1": "fair", "2": "good"}})
    runs = compute(case_dir, name, classes)
    if infix:  # as a whole state dict has them; what PEFT reads is stored under its own names
        tensors = {key.replace("score.weight", f"score{infix}.weight"): value for key, value in tensors.items()}
        shutil.rmtree(case_dir / "heads" / name)
        write_adapter(case_dir / "heads" / name, config, tensors)
    return runs


def compute(case_dir, name, classes):
    model = peft.PeftModel.from_pretrained(load_base(case_dir, classes), case_dir / "heads" / name).eval()
    runs = []
    for length in PROMPT_LENGTHS:
        gen = torch.Generator().manual_seed(stable_seed("head prompt", case_dir.name, name, length))
        prompt = torch.randint(0, model.config.vocab_size, (length,), generator=gen).tolist()
        assert model.config.pad_token_id is None  # so that transformers takes the last token
        logits = model(input_ids=torch.tensor([prompt])).logits[0].tolist()
        runs.append({"adapter": name, "prompt_ids": prompt, "logits": logits})
    return runs


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    for case, heads in HEADS.items():
        case_dir = HERE / "models" / case
        fresh_dir(case_dir / "heads")
        runs = [run for name, head in heads.items() for run in store(case_dir, name, *head)]
        write_json(case_dir / "heads.json", {"made_with": versions(), "runs": runs})
        print(f"{case}: {len(runs)} runs")


if __name__ == "__main__":
    main()
