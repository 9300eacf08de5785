#!/usr/bin/env python3
"""Makes the fixtures of GGUF files (gguf 0.17 or later, numpy, tokenizers 0.22).

    python make_gguf.py            # gguf/

gguf/types.gguf has a matrix of each type, gguf/types.f32 the values that the gguf package reads from them, matrix after
matrix. gguf/tokenizers/*.gguf have the vocabularies of src/text/testdata and of the tokenizers that are trained here,
*.json beside them the tokenizer itself, with ids for a list of texts.
"""
import json
import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
OUT = HERE / "gguf"
ROWS, COLUMNS = 3, 512
Type = gguf.GGMLQuantizationType
QUANTISED_BY_PACKAGE = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
# The package reads these and does not write them: random codes with sensible float16 numbers, whose places follow.
RANDOM_BLOCKS = {Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}


def random_blocks(kind, random):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ROWS, COLUMNS // elements, size), dtype=np.uint8)
    for place in RANDOM_BLOCKS[kind]:
        halves = random.normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, place:place + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def types():
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(OUT / "types.gguf", "none")
    expected = []
    for kind in QUANTISED_BY_PACKAGE + list(RANDOM_BLOCKS):
        if kind in RANDOM_BLOCKS:
            data = random_blocks(kind, random)
        else:
            data = gguf.quants.quantize(random.normal(0, 1, (ROWS, COLUMNS)).astype(np.float32), kind)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        expected.append(gguf.quants.dequantize(data, kind).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (OUT / "types.f32").write_bytes(b"".join(values.tobytes() for values in expected))


OUT.mkdir(exist_ok=True)
types()
