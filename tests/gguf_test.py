#!/usr/bin/env python3
"""GGUF files as models of the loramux program. Standard library only.

Usage: gguf_test.py PATH_OF_LORAMUX

Writes the demo model as GGUF files and compares their answers with those of its directory.
"""
import json
import pathlib
import struct
import subprocess
import tempfile
import unittest

import adapter_files
import serving
from serving import DEMO

F32, Q8_0, BF16 = 0, 8, 30
LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def array(kind, items):
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def metadata(model, extra):
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    numbers = {"llama.context_length": config["max_position_embeddings"], "llama.embedding_length": config["hidden_size"],
               "llama.block_count": config["num_hidden_layers"], "llama.feed_forward_length": config["intermediate_size"],
               "llama.attention.head_count": config["num_attention_heads"],
               "llama.attention.head_count_kv": config["num_key_value_heads"],
               "llama.attention.key_length": config["head_dim"], "llama.attention.value_length": config["head_dim"],
               "llama.rope.dimension_count": config["head_dim"], "tokenizer.ggml.bos_token_id": config["bos_token_id"],
               "tokenizer.ggml.eos_token_id": config["eos_token_id"]}
    floats = {"llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"], "llama.rope.freq_base": 10000.0}
    texts = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
             "tokenizer.chat_template": (model / "chat_template.jinja").read_text()}
    fields = [text(key) + struct.pack("<If", 6, value) for key, value in floats.items()]
    fields += [text(key) + struct.pack("<II", 4, value) for key, value in {**numbers, **extra}.items()]
    fields += [text(key) + struct.pack("<I", 8) + text(value) for key, value in texts.items()]
    fields.append(text("tokenizer.ggml.tokens") + struct.pack("<I", 9) + array(8, [text(token) for token in tokens]))
    fields.append(text("tokenizer.ggml.token_type") + struct.pack("<I", 9) +
                  array(5, [struct.pack("<i", 3 if token in special else 1) for token in tokens]))
    return config, fields


def interleaved(rows, heads):
    """The order of Llama's rows of queries and keys in GGUF files: of each head, a row of each half in turn."""
    size = len(rows) // heads
    return [rows[head * size + half * size // 2 + i] for head in range(heads) for i in range(size // 2)
            for half in range(2)]


def as_float32(bf16):
    return b"".join(b"\0\0" + bf16[i:i + 2] for i in range(0, len(bf16), 2))


def as_q8_0(bf16):
    values = struct.unpack(f"<{len(bf16) // 2}f", as_float32(bf16))
    blocks = []
    for i in range(0, len(values), 32):
        block = values[i:i + 32]
        scale = max(map(abs, block)) / 127
        codes = [round(value / scale) if scale else 0 for value in block]
        blocks.append(struct.pack("<e32b", scale, *codes))
    return b"".join(blocks)


def write(model, path, kind, extra=()):
    """Writes the demo model, whose weights are BF16. `kind`: of the matrices."""
    config, fields = metadata(model, dict(extra))
    stored = (model / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", stored[:8])[0]
    header = json.loads(stored[8:8 + length])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    described, data = [], b""
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        raw, shape = stored[8 + length + begin:8 + length + end], tensor["shape"]
        parts = name.split(".")
        if parts[-2] in heads:
            row = len(raw) // shape[0]
            raw = b"".join(interleaved([raw[i:i + row] for i in range(0, len(raw), row)], heads[parts[-2]]))
        own = kind if len(shape) == 2 else F32
        raw = {F32: as_float32, Q8_0: as_q8_0, BF16: bytes}[own](raw)
        ours = WHOLE.get(name) or f"blk.{parts[2]}.{LAYER['.'.join(parts[3:-1])]}.{parts[-1]}"
        described.append(text(ours) + struct.pack(f"<I{len(shape)}qIQ", len(shape), *reversed(shape), own, len(data)))
        data += raw + b"\0" * (-len(raw) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(described), len(fields)) + b"".join(fields + described)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


def adapter_bytes(folder, model=DEMO / "model"):
    """An adapter of the demo as llama.cpp's convert_lora_to_gguf.py writes it."""
    config = json.loads((model / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
    texts = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    fields = [text(key) + struct.pack("<I", 8) + text(value) for key, value in texts.items()]
    fields.append(text("adapter.lora.alpha") + struct.pack("<If", 6, alpha))
    described, data = [], b""
    for name, tensor in adapter_files.read_tensors(folder / "adapter_model.safetensors").items():
        *_, layer, group, module, part, _ = name.split(".")
        raw, shape = tensor["bytes"], tensor["shape"]
        if part == "lora_B" and module in heads:
            row = len(raw) // shape[0]
            raw = b"".join(interleaved([raw[i:i + row] for i in range(0, len(raw), row)], heads[module]))
        ours = f"blk.{layer}.{LAYER[f'{group}.{module}']}.weight.{part.lower()}"
        described.append(text(ours) + struct.pack(f"<I{len(shape)}qIQ", len(shape), *reversed(shape), F32, len(data)))
        data += raw + b"\0" * (-len(raw) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(described), len(fields)) + b"".join(fields + described)
    return head + b"\0" * (-len(head) % 32) + data


class Gguf(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name) / "demo.gguf"
        write(DEMO / "model", cls.path, BF16)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_program(self, *arguments, status=0):
        done = subprocess.run([serving.LORAMUX, *map(str, arguments)], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def answer(self, model, prompt, *arguments):
        return self.run_program("generate", model, "--adapter-dir", DEMO / "adapters", "-p", prompt, "--max-tokens", "60",
                                *arguments).stdout

    def test_floats_answer_as_the_directory(self):
        for adapter, prompt in [(None, "hello world"), ("upper", "hello world"), ("reverse", "stone"),
                                ("piglatin", "green apple"), ("count", "a bb a"), ("sort", "pear fig apple")]:
            lora = ["--lora", adapter] if adapter else []
            expected = self.answer(DEMO / "model", prompt, *lora)
            self.assertEqual(self.answer(self.path, prompt, *lora), expected)
        self.assertEqual(self.answer(self.path, "hello world", "--lora", "upper").strip(), "HELLO WORLD")

    def test_eight_bits_answer_as_the_directory_in_eight_bits(self):
        path = pathlib.Path(self.folder.name) / "eight.gguf"
        write(DEMO / "model", path, Q8_0)
        for lora in [], ["--lora", "upper"], ["--lora", "reverse"]:
            self.assertEqual(self.answer(path, "a green stone", *lora),
                             self.answer(DEMO / "model", "a green stone", "--weights", "q8", *lora))

    def test_becomes_a_directory(self):
        directory = pathlib.Path(self.folder.name) / "directory"
        self.run_program("quantize", self.path, "--output", directory, "--weights", "q8", "--no-check")
        self.assertEqual(self.answer(directory, "hello world", "--lora", "upper").strip(), "HELLO WORLD")

    def test_inspect(self):
        report = self.run_program("inspect", self.path).stdout
        self.assertRegex(report, r"family +llama")
        self.assertRegex(report, r"element types +BF16: .*, F32: ")
        directory = json.loads(self.run_program("inspect", DEMO / "model", "--json").stdout)
        file = json.loads(self.run_program("inspect", self.path, "--json").stdout)
        for key in ("parameters", "hidden_size", "page_bytes", "eos_token_ids", "max_position"):
            self.assertEqual(file[key], directory[key], key)

    def test_refusals(self):
        path = pathlib.Path(self.folder.name) / "refused.gguf"
        write(DEMO / "model", path, BF16, {"llama.attn_logit_softcapping": 50})
        self.assertIn("'llama.attn_logit_softcapping' = 50 may change what the model computes",
                      self.run_program("generate", path, "-p", "x", status=1).stderr)
        path.write_bytes(self.path.read_bytes()[:-100000])
        self.assertIn("is the file complete?", self.run_program("generate", path, "-p", "x", status=1).stderr)


if __name__ == "__main__":
    serving.run_tests()
