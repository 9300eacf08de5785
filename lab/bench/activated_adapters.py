#!/usr/bin/env python3
"""TTFT of many adapters over one long context: activated LoRA (aLoRA) beside the same weights as plain LoRA.

    lab/bench/activated_adapters.py build/release/tools/loramux --out docs/results

Makes a bf16 model of random weights (hidden size 768, 12 layers) and adapters of rank 16 on q, k, v and o; each stands in
two folders, once with `alora_invocation_tokens`. In each repetition a new context of 4,096 tokens is asked about with one
adapter after another, first all of one kind, then all of the other; the prompt ends with two tokens of invocation and six of
a question. Writes activated_adapters.md. Standard library only.
"""
import argparse
import asyncio
import json
import pathlib
import platform
import random
import shutil
import statistics
import sys
import tempfile
import textwrap
import time

import cold_starts
from cold_starts import serving

CONTEXT, INVOCATION, ADAPTERS, RANK = 4096, [11, 12], 8, 16


def make(home):
    cold_starts.POSITIONS = 2 * CONTEXT
    cold_starts.write_model(home / "model")
    (home / "adapters").mkdir()
    for i in range(ADAPTERS):
        plain, activated = home / "adapters" / f"plain{i}", home / "adapters" / f"activated{i}"
        cold_starts.write_adapter(plain, RANK, seed=100 + i)
        shutil.copytree(plain, activated)
        config = json.loads((plain / "adapter_config.json").read_text())
        (activated / "adapter_config.json").write_text(json.dumps({**config, "alora_invocation_tokens": INVOCATION}))


async def ttft(port, model, prompt):
    times, begin = [], time.monotonic()
    await cold_starts.stream(port, model, prompt, 1, times)
    return times[0] - begin


async def measure(port, repetitions, prng):
    """TTFT in seconds by kind and place in the row of adapters."""
    found = {kind: [[] for _ in range(ADAPTERS)] for kind in ("plain", "activated")}
    for i in range(ADAPTERS):   # all adapters are on the device before
        for kind in found:
            await ttft(port, f"{kind}{i}", [5])
    for _ in range(repetitions):
        for kind in prng.sample(sorted(found), 2):
            context = cold_starts.words(CONTEXT, prng)
            for i in range(ADAPTERS):
                prompt = [t for t in context if t not in INVOCATION] + INVOCATION + cold_starts.words(6, prng)
                found[kind][i].append(await ttft(port, f"{kind}{i}", prompt))
    return found


def page(found, repetitions):
    rows = []
    for name, places in (("first", [0]), ("second", [1]), ("third to last", range(2, ADAPTERS))):
        plain, activated = (statistics.median(t for i in places for t in found[kind][i]) for kind in ("plain", "activated"))
        rows.append(f"| {name} | {plain * 1e3:,.1f} | {activated * 1e3:,.1f} | {plain / activated:.1f} |")
    text = (f"Made by `lab/bench/activated_adapters.py`: {ADAPTERS} adapters of rank {RANK} answer about one context of {CONTEXT:,} "
            "tokens, one after another, as activated LoRA ([what that is](../guide/adapters.md#activated-lora)) and as plain "
            "LoRA with the same weights. Model of random weights in bf16 (hidden size 768, 12 layers), "
            f"{platform.machine()} with two cores, medians of {repetitions} contexts. TTFT in milliseconds.")
    return "\n".join(["# Many adapters over one context", "", textwrap.fill(text, 120, break_on_hyphens=False), "",
                      "| adapter | plain LoRA | activated LoRA | plain / activated |", "|---|---|---|---|", *rows, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        make(home)
        server = serving.Server.run([args.program, "serve", str(home / "model"), "--port", "0", "--adapter-dir",
                                     str(home / "adapters"), "--device-memory", "4GiB"])
        found = asyncio.run(measure(server.port, args.repetitions, random.Random(1)))
        server.stop()
    text = page(found, args.repetitions)
    (args.out / "activated_adapters.md").write_text(text)
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
