#!/usr/bin/env python3
"""Makes tests/golden/alora.json: what PEFT computes with adapters of the demo that are activated LoRA (aLoRA), which the
adapters' configurations alone decide. tests/adapters_test.py serves the same."""

import json
import pathlib
import shutil
import tempfile

from golden_common import HERE, read_json, versions, write_json

import peft
import torch
import transformers
from transformers import AutoTokenizer

torch.set_grad_enabled(False)
DEMO = HERE.parent.parent / "demo"
NEW_TOKENS = 12
SHARED = "".join(f"line {i}: the quick brown fox jumps over the lazy dog\n" for i in range(4))
# The invocations of each adapter, and prompts: invoked once, twice, from the first token on, at the end, and never.
ADAPTERS = {
    "upper": ("<|user|>", [SHARED + "<|user|>abc def<|end|><|assistant|>", "<|user|>xyz<|end|><|assistant|>",
                           "<|user|>one<|end|>" + SHARED + "<|user|>two<|end|><|assistant|>", SHARED + "<|user|>",
                           SHARED + "abc<|end|><|assistant|>"]),
    "reverse": ("<|assistant|>", [SHARED + "<|user|>abc def<|end|><|assistant|>", "<|user|>abcdef<|end|><|assistant|>",
                                  "<|assistant|>abc<|end|><|user|>wxyz<|end|><|assistant|>"]),
}


def activated(folder, name, invocation):
    """A copy of an adapter of the demo that acts from these tokens on."""
    shutil.copytree(DEMO / "adapters" / name, folder / name)
    config = folder / name / "adapter_config.json"
    config.write_text(json.dumps({**read_json(config), "alora_invocation_tokens": invocation, "inference_mode": True}))
    return folder / name


def start_of(prompt, invocation):
    """Where the last occurrence begins, by PEFT's own search."""
    config = peft.LoraConfig(alora_invocation_tokens=invocation, task_type="CAUSAL_LM")
    offset = peft.tuners.lora.variants.calculate_alora_offsets({"a": config}, "a", torch.tensor([prompt]))[0]
    return None if offset is None else len(prompt) - offset


def run(model, prompt, invocation):
    start = start_of(prompt, invocation)
    ids, tokens, logprobs, prompt_logprobs = list(prompt), [], [], []
    for step in range(NEW_TOKENS):
        offsets = [None if start is None else len(ids) - start]
        rows = torch.log_softmax(model(input_ids=torch.tensor([ids]), alora_offsets=offsets).logits[0], -1)
        if step == 0:
            prompt_logprobs = [rows[i, prompt[i + 1]].item() for i in range(len(prompt) - 1)]
        tokens.append(rows[-1].argmax().item())
        logprobs.append(rows[-1].max().item())
        ids.append(tokens[-1])
    return {"prompt": prompt, "base_tokens": start, "tokens": tokens, "logprobs": [round(x, 6) for x in logprobs],
            "prompt_logprobs": [round(x, 6) for x in prompt_logprobs]}


def main():
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    answer = {"versions": versions(), "adapters": {}}
    for name, (invocation, prompts) in ADAPTERS.items():
        ids = tokenizer(invocation, add_special_tokens=False)["input_ids"]
        base = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
        with tempfile.TemporaryDirectory() as folder:
            model = peft.PeftModel.from_pretrained(base, activated(pathlib.Path(folder), name, ids)).eval()
            runs = [run(model, tokenizer(text, add_special_tokens=False)["input_ids"], ids) for text in prompts]
        answer["adapters"][name] = {"invocation": ids, "runs": runs}
    write_json(HERE / "alora.json", answer)


if __name__ == "__main__":
    main()
