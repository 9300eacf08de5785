#!/usr/bin/env python3
"""Compares what llama.cpp computes with the files of gguf/families with what transformers computed with the models that
were converted. Writes nothing.

    pip install llama-cpp-python==0.3.36 safetensors==0.8.0
    python llama_cpp_logits.py            # all files; some, if names are given

llama.cpp keeps keys and values in float32 here, and computes attention without the fused kernel, which rounds them.
Each column is the largest difference of any logit of one prompt, in the largest logit.
"""
import argparse
import ctypes
import pathlib
import struct

import llama_cpp
import numpy as np
from safetensors.numpy import load_file

FAMILIES = pathlib.Path(__file__).resolve().parent / "gguf" / "families"
NEAR = 1e-4
CONTEXT = 256
GELU = 2e-3, "llama.cpp takes GELU from a table of numbers in 16 bits"
# What llama.cpp computes otherwise: (the largest difference, why).
OTHERS = {
    "gemma2": GELU,
    "gemma3": GELU,
    "gemma4": GELU,
    "gemma4_small": (5e-3, GELU[1]),
    "qwen35_q8_0": (0.2, "llama.cpp takes the epsilon for queries and keys too, and rounds what is multiplied to 8 bits"),
    "bloom": GELU,
    **dict.fromkeys(("gptneox", "gptneox_sequential", "falcon_7b", "falcon_40b", "falcon_11b"),
                    (GELU[0], GELU[1] + ", and its tanh form")),
    "gptneox_q8_0": (0.05, "as gptneox; and llama.cpp rounds what is multiplied by matrices in 8 bits to 8 bits"),
    "granitehybrid_q8_0": (0.1, "llama.cpp rounds what is multiplied by matrices in 8 bits to 8 bits"),
    "qwen2vl": (0.05, "llama.cpp reads no epsilon"),
    "phi3": (2, "llama.cpp has no window: only the prompt within it agrees"),
    "exaone4": (2, "llama.cpp has windows, and layers without rope, in models of 64 layers alone"),
    "qwen3moe_f16": (5e-3, "llama.cpp rounds what is multiplied by matrices in 16 bits to 16 bits"),
    "gpt_oss": (0.1, "llama.cpp rounds the bounds of yarn's correction, as if truncate were true"),
    "gpt_oss_mxfp4": (0.5, "as gpt_oss; and llama.cpp rounds what is multiplied by MXFP4 to 8 bits"),
    "phi3_longrope": (2, "llama.cpp takes the factors by the size of its context: the longer prompts agree"),
}


@llama_cpp.llama_log_callback
def quiet(level, text, _):
    del level, text, _


def logits_of(path, prompts):
    """The logits of all tokens of each prompt."""
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = False  # those have matrices in other layouts, and other sums
    # A model whose name is that of Phi-3 must have Phi-3's tokens, which those of a dummy tokenizer are not.
    overrides = (llama_cpp.llama_model_kv_override * 2)()
    overrides[0].tag, overrides[0].key = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR, b"general.name"
    overrides[0].value.val_str = b"a model"
    params.kv_overrides = overrides
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, path
    try:
        size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        for prompt in prompts:
            yield logits_of_prompt(model, prompt, size)
    finally:
        llama_cpp.llama_model_free(model)


def logits_of_prompt(model, prompt, size):
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT
    params.n_threads = params.n_threads_batch = 1
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, params)
    assert context
    count = len(prompt)
    batch = llama_cpp.llama_batch_init(count, 0, 1)
    try:
        batch.n_tokens = count
        for i, token in enumerate(prompt):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        assert llama_cpp.llama_decode(context, batch) == 0
        found = ctypes.string_at(llama_cpp.llama_get_logits(context), 4 * count * size)
        return np.array(struct.unpack(f"{count * size}f", found), dtype=np.float32).reshape(count, size)
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)


def compare(name):
    """The largest difference of each prompt, and the number of tokens after which another one is the likeliest."""
    stored = load_file(FAMILIES / f"{name}.safetensors")
    count = sum(key.startswith("prompt_") for key in stored)
    prompts = [stored[f"prompt_{i}"] for i in range(count)]
    off, others = [], 0
    for i, found in enumerate(logits_of(FAMILIES / f"{name}.gguf", prompts)):
        expected = stored[f"logits_{i}"]
        found = found[:, :expected.shape[1]]
        off.append(float(np.abs(found - expected).max() / np.abs(expected).max()))
        others += int((found.argmax(-1) != expected.argmax(-1)).sum())
    return off, others


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of files; all if none is given")
    args = parser.parse_args()
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    surprises = []
    for name in args.names or sorted(path.stem for path in FAMILIES.glob("*.gguf")):
        off, others = compare(name)
        limit, why = OTHERS.get(name, (NEAR, ""))
        if max(off) > limit or why and max(off) < NEAR:
            surprises.append(name)
        print(f"{name:18} {'near' if max(off) < NEAR else 'OFF '}  {'  '.join(f'{o:.1e}' for o in off)}  "
              f"other tokens {others}  {why}", flush=True)
    if surprises:
        raise SystemExit(f"not as expected: {', '.join(surprises)}")


if __name__ == "__main__":
    main()
