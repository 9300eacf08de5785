#!/usr/bin/env python3
"""What it takes from a new version's bytes in memory to its first token, beside streams that run, on the real server.

    lab/bench/version_pushes.py build/release/tools/loramux --out build/results

Makes a bf16 model of random weights with TinyLlama's shape (1.1 billion parameters) and adapters of rank 16 on all linear
layers, whose bytes a trainer would have in memory. A version comes to the server by a folder (written, then loaded), by PUT as
tar, or in shared memory; `resident` pushes nothing and asks the version that is there, which is the floor. Each push has other
bytes. The ways alternate in random order, and so do times in which nothing is pushed, which tell what the streams notice.
Writes version_pushes.json and version_pushes.md. Standard library only.
"""
import argparse
import asyncio
import http.client
import io
import json
import pathlib
import random
import statistics
import struct
import sys
import tarfile
import tempfile
import time
from multiprocessing import shared_memory

import cold_starts
from cold_starts import serving, stream, until, write_safetensors
from raw_data import write_raw_data

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCABULARY = 2048, 22, 32, 4, 5632, 32000
KV = HIDDEN // HEADS * KV_HEADS
LINEARS = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN),
           "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
           "mlp.down_proj": (HIDDEN, FFN)}
RANK = 16
WAYS = ("resident", "folder", "tar", "shared memory")
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": [name.split(".")[1] for name in LINEARS]}


def write_model(folder):
    cold_starts.HIDDEN, cold_starts.LAYERS, cold_starts.HEADS, cold_starts.FFN = HIDDEN, 0, HEADS, FFN
    cold_starts.write_model(folder)   # the tokenizer, and a model without layers
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN],
              "lm_head.weight": [VOCABULARY, HIDDEN]}
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{norm}.weight"] = [HIDDEN]
        for name, shape in LINEARS.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = list(shape)
    write_safetensors(folder / "model.safetensors", shapes, random.Random(1))
    config = json.loads((folder / "config.json").read_text())
    config.update(num_hidden_layers=LAYERS, num_key_value_heads=KV_HEADS)
    (folder / "config.json").write_text(json.dumps(config))


def tensors_in_memory(folder):
    """The bytes of adapter_model.safetensors, and where the first weight lies in them."""
    shapes = {}
    for layer in range(LAYERS):
        for name, (out, into) in LINEARS.items():
            name = f"base_model.model.model.layers.{layer}.{name}."
            shapes[name + "lora_A.weight"], shapes[name + "lora_B.weight"] = [RANK, into], [out, RANK]
    write_safetensors(folder / "adapter.safetensors", shapes, random.Random(2))
    data = bytearray((folder / "adapter.safetensors").read_bytes())
    return data, 8 + struct.unpack("<Q", data[:8])[0]


def request(port, method, path, body, kind):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request(method, path, body, {"Content-Type": kind})
    response = connection.getresponse()
    answer = response.read()
    if response.status >= 300:
        sys.exit(f"{method} {path}: {response.status} {answer!r}")


def push(port, home, way, tensors):
    if way == "folder":
        folder = home / "adapters" / "version"
        folder.mkdir(exist_ok=True)
        for name, content in (("adapter_config.json", json.dumps(CONFIG).encode()), ("adapter_model.safetensors", tensors)):
            (folder / (name + ".new")).write_bytes(content)
            (folder / (name + ".new")).rename(folder / name)
        request(port, "POST", "/v1/load_lora_adapter", json.dumps({"lora_name": "v", "lora_path": str(folder),
                                                                    "load_inplace": True}), "application/json")
    elif way == "tar":
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, content in (("adapter_config.json", json.dumps(CONFIG).encode()), ("adapter_model.safetensors", tensors)):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        request(port, "PUT", "/v1/adapters/v", packed.getbuffer(), "application/x-tar")
    elif way == "shared memory":
        memory = shared_memory.SharedMemory(create=True, size=len(tensors))
        memory.buf[:len(tensors)] = tensors
        request(port, "POST", "/load_lora_adapter_from_tensors", json.dumps({
            "lora_name": "v", "config_dict": CONFIG, "load_format": "safetensors", "load_inplace": True,
            "shared_memory": {"name": memory.name, "size": len(tensors)}}), "application/json")
        memory.close()
        memory.unlink()


def tpot(streams, begin, end):
    """Mean time of a token in this time, over all streams."""
    tokens = sum(1 for times in streams for at in times if begin <= at < end)
    return len(streams) * (end - begin) / tokens if tokens else None


async def measure(arguments, home):
    data, weights = tensors_in_memory(home)
    server = serving.Server.run([
        arguments.program, "serve", str(home / "model"), "--served-model-name", "base", "--port", "0", "--enable-runtime-lora",
        "--insecure-no-admin-key", "--allowed-adapter-root", str(home), "--state-dir", str(home / "state"), *arguments.flags])
    (home / "adapters").mkdir()
    prng = random.Random(3)
    push(server.port, home, "tar", bytes(data))
    streams = [[] for _ in range(arguments.streams)]
    running = [asyncio.create_task(stream(server.port, "base", [3 + i], 1900, times)) for i, times in enumerate(streams)]
    await until(lambda: all(streams), "all streams run")
    results, quiet, pushing = {way: {"reply": [], "first": []} for way in WAYS}, [], {way: [] for way in WAYS}
    for repetition in range(arguments.repetitions):
        for way in prng.sample((*WAYS, "quiet"), len(WAYS) + 1):
            begin = time.monotonic()
            if way == "quiet":
                await asyncio.sleep(arguments.pause)
                quiet.append(tpot(streams, begin, time.monotonic()))
                continue
            struct.pack_into("<I", data, weights, 0x3c003c00 + repetition * len(WAYS) + WAYS.index(way))
            tensors = bytes(data)
            begin = time.monotonic()
            await asyncio.to_thread(push, server.port, home, way, tensors)
            replied, first = time.monotonic(), []
            await stream(server.port, "v", [9], 1, first)
            results[way]["reply"].append(replied - begin)
            results[way]["first"].append(first[0] - begin)
            await asyncio.sleep(max(0, begin + arguments.pause - time.monotonic()))
            pushing[way].append(tpot(streams, begin, time.monotonic()))
        if any(task.done() for task in running):
            sys.exit("a stream has ended: ask for fewer repetitions, or a shorter pause")
        print(f"{repetition + 1} of {arguments.repetitions}", file=sys.stderr)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    server.wait_idle()
    server.stop()
    return {"ways": results, "tpot_quiet": quiet, "tpot": pushing, "bytes": len(data)}


def page(arguments, found, raw):
    lines = ["# Versions pushed while streams run", "[All results](README.md)", "",
             f"`lab/bench/version_pushes.py`: a model of TinyLlama's shape (1.1 billion parameters in bf16), "
             f"{arguments.streams} streams of the base model, versions of rank {RANK} on all linear layers "
             f"({found['bytes'] / 2**20:.0f} MiB), {arguments.repetitions} of each way. `resident` asks a version that is there."
             + (f" Further flags: `{' '.join(arguments.flags)}`." if arguments.flags else ""),
             "", "| way | to the reply, median | to the first token, median | at most | TPOT of the streams, over that of quiet times |",
             "|---|---|---|---|---|"]
    quiet = statistics.median(found["tpot_quiet"])
    for way in WAYS:
        reply, first = found["ways"][way]["reply"], found["ways"][way]["first"]
        lines.append(f"| {way} | {1000 * statistics.median(reply):.0f} ms | {1000 * statistics.median(first):.0f} ms | "
                     f"{1000 * max(first):.0f} ms | {statistics.median(found['tpot'][way]) / quiet:.3f} |")
    return "\n".join([*lines, "", f"TPOT in quiet times: {1000 * quiet:.0f} ms.", "", raw, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/results"))
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--pause", type=float, default=2, help="seconds from one push to the next")
    parser.add_argument("--flags", nargs="*", default=[], help="further flags of serve")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        write_model(home / "model")
        found = asyncio.run(measure(arguments, home))
    raw = write_raw_data(arguments.out / "version_pushes.json", found)
    (arguments.out / "version_pushes.md").write_text(page(arguments, found, raw))
    print(page(arguments, found, raw))


if __name__ == "__main__":
    main()
