#!/usr/bin/env python3
"""Agents on a hybrid model beside one with attention in every layer, simulated: 200 adapters, prompts that grow by what
tools answer.

    lab/bench/hybrid_agents.py build/release/tools/loramux --out docs/results [--seeds 3] [--requests 3000]

The hybrid is `--model qwen3.5-9b` (states in 24 of 32 layers); the other model has the same sizes and attention in all 32.
Each turn of a session sends all that was said. Writes hybrid_agents.md; the same arguments give the same figures. Standard
library only.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import textwrap

ATTENTION = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 32,
             "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 12288,
             "vocab_size": 248320, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
             "torch_dtype": "bfloat16", "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}
LOAD = ["--device", "a100-80", "--host-memory", "64", "--adapters", "200", "--ranks", "16", "--turns", "15",
        "--think-seconds", "4", "--input-mean", "2000", "--output-mean", "150", "--max-input", "100000", "--slo", "2",
        "--preset", "loramux"]
SYSTEMS = (("attention in all layers", "attention", []),
           ("hybrid", "qwen3.5-9b", []),
           ("hybrid, snapshots begin at each 512 tokens", "qwen3.5-9b", ["--state-snapshot-tokens", "512"]),
           ("hybrid, at each 8192", "qwen3.5-9b", ["--state-snapshot-tokens", "8192"]),
           ("hybrid without snapshots", "qwen3.5-9b", ["--state-snapshot-tokens", "0"]))


def simulate(program, home, system, rate, seed, requests):
    _, model, flags = system
    model = str(home / model) if model == "attention" else model
    out = home / f"{SYSTEMS.index(system)}_{rate}_{seed}.json"
    done = subprocess.run([program, "simulate", "--model", model, *LOAD, "--requests", str(requests), "--rate", str(rate),
                           "--seed", str(seed), "--json", str(out), *flags], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    found = json.loads(out.read_text())
    [figures], page = found["presets"], found["page_bytes"]
    points = figures["over_time"][len(figures["over_time"]) // 4:]   # memory has filled
    mean = {key: statistics.mean(point[key] for point in points) for key in ("running", "running_kv_pages", "history_pages")}
    return {"ttft": figures["ttft_ms"]["mean"], "p99": figures["ttft_ms"]["p99"], "tpot": figures["tpot_ms"]["mean"],
            "found": 100 * figures["prefix_hit_share"], "running": mean["running"],
            "of_running": mean["running_kv_pages"] * page / 2 ** 30, "history": mean["history_pages"] * page / 2 ** 30,
            "moved": figures["moved_gb"]["to_device"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1, 2])
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        home = pathlib.Path(folder)
        (home / "attention").mkdir()
        (home / "attention/config.json").write_text(json.dumps(ATTENTION))
        cells = {(rate, system[0]): [pool.submit(simulate, args.program, home, system, rate, seed, args.requests)
                                     for seed in range(1, args.seeds + 1)] for rate in args.rates for system in SYSTEMS}
        for (rate, name), futures in cells.items():
            runs = [future.result() for future in futures]
            print(rate, name, runs[0], file=sys.stderr)

            def shown(key, digits=0):
                values = [run[key] for run in runs]
                return (f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
                        if len(runs) > 1 else f"{values[0]:,.{digits}f}")

            rows.append(f"| {rate:g} | {name} | {shown('ttft')} | {shown('p99')} | {shown('tpot', 1)} | {shown('found', 1)} | "
                        f"{shown('running', 1)} | {shown('of_running', 1)} | {shown('history', 1)} | {shown('moved')} |")
    text = (f"Simulated by `lab/bench/hybrid_agents.py`, whose head has the command, with `loramux simulate "
            f"{' '.join(LOAD)} --requests {args.requests}`: 200 adapters of rank 16, sessions of 15 turns on average whose "
            "prompts grow by 2,000 tokens a turn, 4 s apart. Both models have the same sizes; the hybrid has gated DeltaNet in "
            "24 of its 32 layers. One GPU's published rates, so the figures compare the two, and predict neither. "
            f"{'Medians, with their ranges, of ' + str(args.seeds) + ' seeds.' if args.seeds > 1 else 'One seed.'} "
            "Memory: means over the run without its first quarter.")
    head = ("requests/s", "model", "TTFT, mean (ms)", "P99", "TPOT (ms)", "prompt tokens found (%)", "running",
            "their keys, values, states (GiB)", "history (GiB)", "to the device (GB)")
    (args.out / "hybrid_agents.md").write_text("\n".join(
        ["# Agents on a hybrid model", "", textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False), "",
         f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows, ""]))


if __name__ == "__main__":
    main()
