#!/usr/bin/env python3
"""One model on several processes beside one process: bytes of weights on each rank, the time of a step by part (computing,
exchanges, reports), and that adapters add no exchange. A model of random weights, without adapters and with sixteen. Standard
library only; needs mpirun and the plugin (tools/setup.sh mpi).

Usage: group_steps.py PATH_OF_LORAMUX [SHAPE] [RANKS...]     (SHAPE: 160m or 1.1b; ranks 1 2 4)
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests"))
import serving

SHAPES = {"160m": dict(hidden=768, layers=12, heads=12, kv=4, block=2048, vocabulary=32000),
          "1.1b": dict(hidden=2048, layers=22, heads=32, kv=4, block=5632, vocabulary=32000)}
HIGH_BYTES = bytes((0x3C if i & 1 else 0x3B) | (i & 0x80) for i in range(256))   # bf16 of small magnitude, either sign
SEQUENCES, TOKENS = 8, 24
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--enable-recovery", "--mca",
          "odls_base_sigkill_timeout", "60"]


def random_bf16(count):
    block = bytearray(os.urandom(min(2 * count, 1 << 24)))
    block[1::2] = bytes(block[1::2]).translate(HIGH_BYTES)
    return (bytes(block) * (2 * count // len(block) + 1))[:2 * count]


def write_tensors(path, shapes):
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            ones = "norm" in name
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            file.write(struct.pack("<H", 0x3F80) * count if ones else random_bf16(count))


def layer_shapes(shape):
    hidden, head = shape["hidden"], shape["hidden"] // shape["heads"]
    return {"self_attn.q_proj": [hidden, hidden], "self_attn.k_proj": [shape["kv"] * head, hidden],
            "self_attn.v_proj": [shape["kv"] * head, hidden], "self_attn.o_proj": [hidden, hidden],
            "mlp.gate_proj": [shape["block"], hidden], "mlp.up_proj": [shape["block"], hidden],
            "mlp.down_proj": [hidden, shape["block"]]}


def write_model(folder, shape):
    config = json.loads((serving.DEMO / "model/config.json").read_text())
    config.update(hidden_size=shape["hidden"], num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
                  num_key_value_heads=shape["kv"], head_dim=shape["hidden"] // shape["heads"],
                  intermediate_size=shape["block"], vocab_size=shape["vocabulary"], tie_word_embeddings=False)
    folder.mkdir()
    for file in (serving.DEMO / "model").iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {"model.embed_tokens.weight": [shape["vocabulary"], shape["hidden"]],
               "lm_head.weight": [shape["vocabulary"], shape["hidden"]], "model.norm.weight": [shape["hidden"]]}
    for i in range(shape["layers"]):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{i}.{norm}.weight"] = [shape["hidden"]]
        tensors |= {f"model.layers.{i}.{name}.weight": extents for name, extents in layer_shapes(shape).items()}
    write_tensors(folder / "model.safetensors", tensors)


def write_adapter(folder, shape, rank=16):
    folder.mkdir(parents=True)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": targets}))
    tensors = {}
    for i in range(shape["layers"]):
        for name, (out, inputs) in layer_shapes(shape).items():
            if name.split(".")[1] in targets:
                module = f"base_model.model.model.layers.{i}.{name}"
                tensors[f"{module}.lora_A.weight"] = [rank, inputs]
                tensors[f"{module}.lora_B.weight"] = [out, rank]
    write_tensors(folder / "adapter_model.safetensors", tensors)


def serve(ranks, model, adapters):
    command = [serving.LORAMUX, "serve", str(model), "--served-model-name", "demo", "--adapter-dir", str(adapters), "--port",
               "0", "--threads", "1", "--device-memory", "512MiB", "--host-memory", "512MiB"]
    if ranks > 1:
        command = [*MPIRUN, "-n", str(ranks), *command, "--tensor-parallel-size", str(ranks)]
    return serving.Server.run(command)


def measure(ranks, model, adapters, names):
    server = serve(ranks, model, adapters)

    def ask(index, tokens):
        status, answer = server.json("POST", "/v1/completions", {
            "model": names[index % len(names)], "prompt": f"{index}: one two three four five", "max_tokens": tokens,
            "ignore_eos": True, "temperature": 0, "seed": 1})
        assert status == 200, answer
        return answer["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(SEQUENCES) as pool:
        texts = list(pool.map(lambda i: ask(i, 2), range(max(SEQUENCES, len(names)))))   # loads every adapter
        began = time.monotonic()
        texts += pool.map(lambda i: ask(i, TOKENS), range(SEQUENCES))
    step = 1e3 * (time.monotonic() - began) / TOKENS
    weights = re.findall(r"(\S+ [KMG]iB) of weights", server.text())
    if ranks > 1:   # rank 0 decides when all end
        server.process.terminate()
        server.process.wait(timeout=serving.PATIENCE)
        text = server.text()
    else:
        text = server.stop()
    parts = re.search(r"(\d+) steps on \d+ ranks: ([\d.]+) ms to compute, ([\d.]+) ms in exchanges, which receive (.+?), and "
                      r"([\d.]+) ms", text)
    return texts, step, weights, parts.groups() if parts else None


def main():
    serving.LORAMUX = sys.argv[1]
    shape = SHAPES[sys.argv[2] if len(sys.argv) > 2 else "160m"]
    all_ranks = [int(text) for text in sys.argv[3:]] or [1, 2, 4]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_model(folder / "model", shape)
        names = [f"adapter-{i}" for i in range(16)]
        for name in names:
            write_adapter(folder / "adapters" / name, shape)
        print(f"{SEQUENCES} sequences decode {TOKENS} tokens each; one thread on each rank\n")
        print("| adapters | ranks | weights on a rank | ms for a token of all sequences | computing | exchanges | reports | received "
              "in a step |\n|---|---|---|---|---|---|---|---|")
        for of_step in (["demo"], names):
            expected = None
            for ranks in all_ranks:
                texts, step, weights, parts = measure(ranks, folder / "model", folder / "adapters", of_step)
                expected = expected or texts
                assert texts == expected, "the answers differ"
                _, computing, exchanges, received, reports = parts or ("", "", "", "", "")
                print(f"| {0 if of_step == ['demo'] else len(of_step)} | {ranks} | {', '.join(sorted(set(weights)))} | {step:.1f} | "
                      f"{computing} | {exchanges} | {reports} | {received} |", flush=True)


if __name__ == "__main__":
    main()
