#!/usr/bin/env python3
"""Makes tests/golden/models/CASE/embeddings.safetensors: the embeddings of the runs of every case, as
transformers + PEFT compute them (README.md describes the file). Needs what make_models.py made."""

import argparse

from golden_common import HERE, read_json

import torch
from make_models import load_model, reset_rope, with_adapter
from safetensors.torch import load_file, save_file


def embeddings_of(case_dir):
    """Two vectors for each run: KEY.last and KEY.mean, not normalised."""
    stored = read_json(case_dir / "case.json")
    tensors = {}
    for name in [None] + [a["name"] for a in stored["adapters"] if a["same_as"] is None]:
        model = load_model(case_dir / "model") if name is None else \
            with_adapter(case_dir / "model", case_dir / "adapters" / name, stored)
        inner = (model.get_base_model() if hasattr(model, "get_base_model") else model).base_model  # without lm_head
        for run in (r for r in stored["runs"] if r["adapter"] == name):
            reset_rope(model)
            hidden = inner(input_ids=torch.tensor([run["prompt_ids"]]), use_cache=False).last_hidden_state[0]
            tensors[f"{run['key']}.last"] = hidden[-1].clone()
            tensors[f"{run['key']}.mean"] = hidden.mean(dim=0)
    return tensors


def store_embeddings(case_dir):
    path = case_dir / "embeddings.safetensors"
    tensors = embeddings_of(case_dir)
    save_file(tensors, path)
    path.chmod(0o644)  # safetensors writes 0600
    print(f"{case_dir.name}: {len(tensors)} vectors", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing: recompute the files and compare")
    parser.add_argument("cases", nargs="*", help="only these cases (all of them otherwise)")
    args = parser.parse_args()
    for case_dir in sorted((HERE / "models").iterdir()):
        if args.cases and case_dir.name not in args.cases:
            continue
        if args.check:
            tensors = embeddings_of(case_dir)
            expected = load_file(case_dir / "embeddings.safetensors")
            assert expected.keys() == tensors.keys()
            worst = max((tensors[k] - expected[k]).abs().max().item() for k in tensors)
            print(f"{case_dir.name}: largest difference {worst:.2g}", flush=True)
            continue
        store_embeddings(case_dir)


if __name__ == "__main__":
    main()
