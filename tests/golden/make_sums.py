#!/usr/bin/env python3
"""Makes tests/golden/sums.json: what PEFT computes with several adapters of the demo at once, each with a weight.
tests/adapters_test.py serves the same."""

from golden_common import HERE, versions, write_json

import peft
import torch
import transformers
from transformers import AutoTokenizer

torch.set_grad_enabled(False)
DEMO = HERE.parent.parent / "demo"
NEW_TOKENS = 12
PROMPTS = ["<|user|>abc def<|end|><|assistant|>", "<|user|>one two three<|end|><|assistant|>"]
# Different ranks, scales, modules; rsLoRA; an output matrix; one adapter with a weight.
SUMS = [
    {"reverse": 1.0, "upper": 1.0},
    {"upper": 0.5, "json": -0.25},
    {"rot13": 0.75, "swap": 0.5, "spell": 1.0},
    {"tools": 0.5},
]


def main():
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    runs = []
    for weights in SUMS:
        model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
        for name in weights:
            if isinstance(model, peft.PeftModel):
                model.load_adapter(DEMO / "adapters" / name, adapter_name=name)
            else:
                model = peft.PeftModel.from_pretrained(model, DEMO / "adapters" / name, adapter_name=name)
        model.base_model.set_adapter(list(weights))
        for module in model.modules():
            if isinstance(module, peft.tuners.lora.LoraLayer):
                for name in module.scaling:
                    module.scaling[name] *= weights[name]
        model.eval()
        for text in PROMPTS:
            prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
            ids, tokens, logprobs = list(prompt), [], []
            for _ in range(NEW_TOKENS):
                row = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1], -1)
                best = row.topk(2).values
                assert best[0] - best[1] > 1e-3, "no clear winner"
                tokens.append(row.argmax().item())
                logprobs.append(round(best[0].item(), 6))
                ids.append(tokens[-1])
            runs.append({"weights": weights, "prompt": prompt, "tokens": tokens, "logprobs": logprobs})
    write_json(HERE / "sums.json", {"versions": versions(), "runs": runs})


if __name__ == "__main__":
    main()
