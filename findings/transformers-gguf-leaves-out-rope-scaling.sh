#!/usr/bin/env bash
# A GGUF file of Llama 3.1: transformers leaves out rope_freqs.weight, in which the file has its rope scaling.
#
# Versions    transformers 5.24.0, gguf 0.19.0, accelerate 1.15.0, torch 2.15.0 (needs 6 GB of disk while it runs)
# Behaviour   llama.cpp's converter writes no metadata of rope type llama3. It writes the tensor rope_freqs.weight: by how
#             much each wavelength grows. AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=FILE) skips the tensor
#             without a warning, and config.rope_parameters says "default".
# Why         Llama 3.1, 3.2 and 3.3 turn positions as Llama 3 does: the model writes well, and worse over long texts. An
#             adapter that is trained on what was read, or a reference that is computed with it, belongs to another model.
# What to do  Take rope_parameters from the model's config.json after reading the file.
# Seen        the same logits with the tensor and without it; others with rope type llama3
source "$(dirname "$0")/common.sh"
packages transformers==5.24.0 gguf==0.19.0 torch==2.15.0 accelerate==1.15.0
check <<'EOF2'
import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

VOCAB, WIDTH, HEADS, HEAD_DIM, FFN = 64, 64, 2, 32, 64
MATRICES = {"token_embd": (VOCAB, WIDTH), "output": (VOCAB, WIDTH), "blk.0.attn_q": (WIDTH, WIDTH),
            "blk.0.attn_k": (WIDTH, WIDTH), "blk.0.attn_v": (WIDTH, WIDTH), "blk.0.attn_output": (WIDTH, WIDTH),
            "blk.0.ffn_gate": (FFN, WIDTH), "blk.0.ffn_up": (FFN, WIDTH), "blk.0.ffn_down": (WIDTH, FFN)}


def write(name, factors):
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(name, "llama")
    writer.add_block_count(1)
    writer.add_context_length(131072)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    for matrix, shape in MATRICES.items():
        writer.add_tensor(f"{matrix}.weight", random.normal(0, 0.3, shape).astype(np.float32))
    for norm in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{norm}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(name):
    return AutoModelForCausalLM.from_pretrained(".", gguf_file=name, dtype=torch.float32).eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(1, 61)[None]).logits


# What llama.cpp's converter writes for Llama 3.1: the factors by which wavelengths grow, 8 for the long ones.
wavelengths = 2 * np.pi * 500000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
write("plain.gguf", None)
write("llama31.gguf", (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32))

plain, scaled = read("plain.gguf"), read("llama31.gguf")
seen("rope of the file with rope_freqs.weight", scaled.config.rope_parameters["rope_type"], "default")
seen("same logits with rope_freqs.weight and without", torch.equal(logits(plain), logits(scaled)), True)
scaled.config.rope_parameters.update(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                     original_max_position_embeddings=8192)
right = AutoModelForCausalLM.from_config(scaled.config).eval()
right.load_state_dict(scaled.state_dict())
seen("same logits as rope type llama3 gives", torch.allclose(logits(right), logits(scaled), atol=1e-2), False)
EOF2
