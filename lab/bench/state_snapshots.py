#!/usr/bin/env python3
"""What snapshots of states save and cost, on a hybrid model: layers of gated DeltaNet beside attention (Qwen 3.5).

    lab/bench/state_snapshots.py build/release/tools/loramux --out docs/results

Makes a bf16 model of random weights (hidden size 512, 8 layers, two of them attention) and starts three servers at once:
one with the default of --state-snapshot-tokens, two with 0. Conversations of about 8,000 tokens return with 64 more; then
prompts that never return are served, eight at a time, on one server right after the other, in memory that they fill. The
two equal servers show what other programs on the machine change. Writes state_snapshots.md. Standard library only.
"""
import argparse
import asyncio
import json
import os
import pathlib
import platform
import random
import statistics
import sys
import tempfile
import textwrap
import time

import cold_starts
from cold_starts import VOCABULARY, serving

HIDDEN, LAYERS, FFN, HEADS, KV_HEADS, HEAD_DIM, STATE_HEADS, STATE_DIM = 512, 8, 1536, 4, 2, 128, 8, 128
CONVERSATION, MORE = 8000, 64                       # tokens of a conversation; of its next turn
STREAMS, REQUESTS, PROMPT, ANSWER = 8, 24, 512, 32  # a load that never returns
OFF = ["--state-snapshot-tokens", "0"]
SERVERS = {"with": [], "without": OFF, "again": OFF}  # "again" shows what two equal servers differ by
TICKS = os.sysconf("SC_CLK_TCK")


def write_model(folder):
    folder.mkdir()
    types = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(LAYERS)]
    states = STATE_HEADS * STATE_DIM
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN],
              "lm_head.weight": [VOCABULARY, HIDDEN]}
    for layer, kind in enumerate(types):
        name = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{name}{norm}.weight"] = [HIDDEN]
        if kind == "full_attention":
            for linear, rows in (("q", 2 * HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                shapes[f"{name}self_attn.{linear}_proj.weight"] = [rows * HEAD_DIM, HIDDEN]
            shapes[f"{name}self_attn.o_proj.weight"] = [HIDDEN, HEADS * HEAD_DIM]
            for norm in "qk":
                shapes[f"{name}self_attn.{norm}_norm.weight"] = [HEAD_DIM]
        else:
            for linear, rows in (("qkv", 3 * states), ("z", states), ("a", STATE_HEADS), ("b", STATE_HEADS)):
                shapes[f"{name}linear_attn.in_proj_{linear}.weight"] = [rows, HIDDEN]
            shapes[f"{name}linear_attn.out_proj.weight"] = [HIDDEN, states]
            shapes[f"{name}linear_attn.conv1d.weight"] = [3 * states, 1, 4]
            shapes[f"{name}linear_attn.norm.weight"] = [STATE_DIM]
            for vector in ("A_log", "dt_bias"):
                shapes[f"{name}linear_attn.{vector}"] = [STATE_HEADS]
        shapes[f"{name}mlp.gate_proj.weight"] = shapes[f"{name}mlp.up_proj.weight"] = [FFN, HIDDEN]
        shapes[f"{name}mlp.down_proj.weight"] = [HIDDEN, FFN]
    cold_starts.write_safetensors(folder / "model.safetensors", shapes, random.Random(1))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "layer_types": types, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "intermediate_size": FFN, "vocab_size": VOCABULARY, "max_position_embeddings": 16384,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": STATE_DIM, "linear_value_head_dim": STATE_DIM,
        "linear_num_key_heads": STATE_HEADS, "linear_num_value_heads": STATE_HEADS, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
        "dtype": "bfloat16"}))
    cold_starts.write_tokenizer(folder)


def processor_seconds(server):
    fields = pathlib.Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def ttft(server, prompt):
    times, begin = [], time.monotonic()
    await cold_starts.stream(server.port, "base", prompt, 1, times)
    return times[0] - begin


async def load(server, prng):
    """Seconds of the clock and of processors that a load takes."""
    prompts = [cold_starts.words(PROMPT, prng) for _ in range(REQUESTS)]
    begin, used = time.monotonic(), processor_seconds(server)

    async def one():
        while prompts:
            await cold_starts.stream(server.port, "base", prompts.pop(), ANSWER, [])

    await asyncio.gather(*(one() for _ in range(STREAMS)))
    return time.monotonic() - begin, processor_seconds(server) - used


async def measure(servers, conversations, loads, prng):
    first, back, hits = ({name: [] for name in ("with", "without")} for _ in range(3))
    for _ in range(conversations):
        prompt = cold_starts.words(CONVERSATION, prng)
        for name in first:
            server = servers[name]
            first[name].append(await ttft(server, prompt))
            before = server.metric("vllm:prefix_cache_hits_total")
            back[name].append(await ttft(server, prompt + cold_starts.words(MORE, prng)))
            await asyncio.sleep(cold_starts.STALE)
            hits[name].append(server.metric("vllm:prefix_cache_hits_total") - before)
    seconds = {name: [] for name in servers}
    for server in [*servers.values()] * 4:
        await load(server, prng)  # all memory was written once from here on
    for i in range(loads):
        for name in sorted(servers, reverse=bool(i % 2)):
            seconds[name].append(await load(servers[name], prng))
    return first, back, hits, seconds


def page(first, back, hits, seconds, counts, states, before):
    def ratios(name, j):
        pairs = list(zip(seconds[name], seconds["without"]))
        each = [a[j] / b[j] for a, b in pairs]
        return f"{sum(a[j] for a, _ in pairs) / sum(b[j] for _, b in pairs):.3f} ({min(each):.3f}-{max(each):.3f})"

    def shown(values, digits=3):
        return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"

    text = (f"Made by `lab/bench/state_snapshots.py`, whose head has the command: a hybrid model of random weights in bf16 "
            f"(hidden size {HIDDEN}, {LAYERS} layers, every fourth of them attention), {platform.machine()} with two cores "
            f"(load average at the start: {before:.1f}). Three servers at once, one with snapshots of states (the default of "
            "`--state-snapshot-tokens`), two without. Medians, with their ranges. The server's words on the states: "
            f"{states}.")
    cost = (f"{REQUESTS} requests of {PROMPT} random tokens and {ANSWER} of answer, {STREAMS} at a time, on one server "
            "right after the other; both tiers are full of history, so each snapshot evicts another and is copied. Time with snapshots over "
            f"time without, {len(seconds['with'])} times: the ratio of the sums, and the range of the single ones. "
            f"{counts['snapshots']:,.0f} snapshots were taken in all. The last column compares the two equal servers.")
    rows = [f"| {what} | {shown(values['with'])} | {shown(values['without'])} |"
            for what, values in (("first turn", first), ("next turn", back))]
    return "\n".join(
        ["# Snapshots of states", "", textwrap.fill(text, 120, break_on_hyphens=False), "",
         "## A conversation that returns", "",
         textwrap.fill(f"TTFT in seconds of {CONVERSATION:,} tokens, and of the same with {MORE} more. The next turn found "
                       f"{statistics.median(hits['with']):,.0f} tokens in the cache with snapshots, "
                       f"{statistics.median(hits['without']):,.0f} without.", 120), "",
         "| | with snapshots | without |", "|---|---|---|", *rows, "",
         "## Prompts that never return", "", textwrap.fill(cost, 120, break_on_hyphens=False), "",
         "| seconds of | with / without | without / without |", "|---|---|---|",
         *(f"| {what} | {ratios('with', j)} | {ratios('again', j)} |"
           for j, what in enumerate(("the clock", "processors"))), ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--conversations", type=int, default=3)
    parser.add_argument("--loads", type=int, default=6)
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        write_model(home / "model")
        servers = {name: serving.Server.run([args.program, "serve", str(home / "model"), "--served-model-name", "base",
                                             "--port", "0", "--device-memory", "96MiB", "--host-memory", "64MiB", *flags])
                   for name, flags in SERVERS.items()}
        found = asyncio.run(measure(servers, args.conversations, args.loads, random.Random(1)))
        counts = {"snapshots": servers["with"].metric("loramux:state_snapshots_total")}
        log = servers["with"].stop()
        for name in ("without", "again"):
            servers[name].stop()
    states = log.partition("linear attention: ")[2].partition(";")[0]
    text = page(*found, counts, states, before)
    (args.out / "state_snapshots.md").write_text(text)
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
