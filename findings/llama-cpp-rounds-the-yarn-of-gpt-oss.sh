#!/usr/bin/env bash
# llama.cpp turns the heads of gpt-oss by other angles than the model was trained with: it rounds the bounds of yarn's correction.
#
# Versions    llama-cpp-python 0.3.36 (its source archive has llama.cpp, which is compiled: some minutes, and the converter),
#             transformers 5.24.0, torch 2.15.0 (needs 7 GB of disk while it runs)
# Behaviour   Published configurations of gpt-oss say "truncate": false: the frequencies between which yarn interpolates
#             are not rounded. The converter leaves the key out, and llama.cpp always rounds the lower bound down and the upper
#             one up. With yarn's published values and heads of 64 dimensions, the bounds 8.1 and 17.4 become 8 and 18: that
#             changes 9 of the 32 frequencies, one of them by 76 %.
# Why         One file stands for both models, and llama.cpp computes the one that was not trained. The further apart two
#             tokens are, the more: 4000 tokens apart, 9 angles are off by 0.3 to 0.9 radians.
# What to do  A program that reads such a file knows from the name of the architecture, gpt-oss, that nothing is to be rounded.
# Seen        the same file for both; llama.cpp is off by more than 1e-3 of the largest logit after 200 tokens from the model
#             with "truncate": false, and agrees to 1e-4 with the one with "truncate": true
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0 torch==2.15.0 gguf==0.19.0 numpy==2.4.6
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest "$work" \
  llama-cpp-python==0.3.36
tar -xzf "$work"/llama_cpp_python-0.3.36.tar.gz -C "$work" --strip-components=3 --wildcards \
  '*/vendor/llama.cpp/conversion/*' '*/vendor/llama.cpp/gguf-py/*'
CMAKE_ARGS="-DLLAVA_BUILD=OFF" "$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  "$work"/llama_cpp_python-0.3.36.tar.gz
check <<'EOF2'
import ctypes, json, pathlib, sys

import llama_cpp
import numpy as np
import torch
import transformers

sys.path.insert(0, ".")
from conversion import ModelBase, get_model_class
from conversion.base import ModelType, get_model_architecture, gguf

TOKENS = list(range(3, 63)) * 4
YARN = dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, original_max_position_embeddings=4096, beta_fast=32.0,
            beta_slow=1.0)
words = ["<|pad|>", "<|bos|>", "<|end|>"] + [chr(c) for c in range(ord("!"), ord("!") + 60)] + ["AB"]


def add_vocabulary(converter):
    """In place of the converter's own, which needs a tokenizer."""
    writer = converter.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([3] * 3 + [1] * 61)
    writer.add_token_merges(["A B"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


def model(truncate):
    """What transformers computes, and the bytes of the model's GGUF file."""
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(
        "gpt_oss", vocab_size=64, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, num_local_experts=4, num_experts_per_tok=2, sliding_window=16, pad_token_id=0,
        initializer_range=0.2, rope_parameters={**YARN, "truncate": truncate})
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    folder = pathlib.Path("model")
    made.save_pretrained(folder)
    kind = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT))
    kind.set_vocab = add_vocabulary
    kind(folder, gguf.LlamaFileType.ALL_F32, pathlib.Path("model.gguf"), eager=True).write()
    with torch.no_grad():
        return made(torch.tensor([TOKENS])).logits[0].numpy(), pathlib.Path("model.gguf").read_bytes()


def by_llama_cpp():
    """What llama.cpp computes with the last file, with keys and values in float32."""
    loaded = llama_cpp.llama_model_load_from_file(b"model.gguf", llama_cpp.llama_model_default_params())
    assert loaded
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 256
    params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(loaded, params)
    batch = llama_cpp.llama_batch_init(len(TOKENS), 0, 1)
    batch.n_tokens = len(TOKENS)
    for i, token in enumerate(TOKENS):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(context, batch) == 0
    found = ctypes.string_at(llama_cpp.llama_get_logits(context), 4 * len(TOKENS) * 64)
    return np.frombuffer(found, dtype=np.float32).reshape(len(TOKENS), 64)


@llama_cpp.llama_log_callback
def quiet(level, text, data):
    del level, text, data


llama_cpp.llama_log_set(quiet, None)
as_published, file = model(False)
rounded, other_file = model(True)
found = by_llama_cpp()
seen("the same file", file == other_file, True)
for name, logits, expected in (("false", as_published, False), ("true", rounded, True)):
    off = float(np.abs(found - logits).max() / np.abs(logits).max())
    print(f"truncate {name}: off by {off:.1e} of the largest logit")
    seen(f"truncate {name}: agrees to 1e-4", off < 1e-4, expected)
    seen(f"truncate {name}: off by more than 1e-3", off > 1e-3, not expected)
EOF2
