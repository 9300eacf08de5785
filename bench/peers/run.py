#!/usr/bin/env python3
"""loramux beside llama.cpp on one machine: the same shapes, prompts, adapters and load generator, in turn.

    bench/peers/make_models.py FOLDER --llama-quantize PATH      # once
    bench/peers/run.py FOLDER --loramux build/release/tools/loramux --llama-server PATH --output results.json

Every repetition starts each server, runs all loads on it, and stops it; so a slow minute of the machine hits all alike.
Prints medians with their ranges, and the ratios. llama.cpp is not part of loramux: build it from its repository.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

FORMATS = {"bf16": "auto", "q8": "q8", "q4": "q4", "panels": None}  # None: the folder q4 of make_models.py --panels
GGUFS = {"F16": "f16", "Q8_0": "q8_0", "Q4_K_M": "q4_k_m"}
# name: (streams, prompt tokens, generated tokens, adapters)
LOADS = {
    "one stream": (1, 16, 64, "none"),
    "one stream, rank 8": (1, 16, 64, "one"),
    "prefill 512": (1, 512, 1, "none"),
    "prefill 2048": (1, 2048, 1, "none"),
    "16 streams": (16, 16, 64, "none"),
    "16 streams, one adapter": (16, 16, 64, "one"),
    "16 streams, 16 adapters": (16, 16, 64, "all"),
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process; `answers(port)` says when it is ready."""

    def __init__(self, command, health):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(part) for part in command(self.port)], stdout=self.log, stderr=self.log)
        for _ in range(1200):
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"a server ended: {self.log.read()[-2000:].decode(errors='replace')}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{health}", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.25)
        sys.exit("a server did not start within five minutes")

    def resident_bytes(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        return 0

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def stream(url, body):
    """Sends a request; returns the times of the first and the last event with text, and how many there were."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    times = []
    with urllib.request.urlopen(request, timeout=1800) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    return times


class Loramux:
    def __init__(self, program, folder, weights, threads):
        self.program, self.folder, self.weights, self.threads = program, folder, weights, threads

    def start(self):
        modules = [f"{a.name}={a}" for a in sorted((self.folder / "adapters").iterdir())]
        model = self.folder / "hf" if self.weights else self.folder / "q4"
        return Server(lambda port: [self.program, "serve", model, "--port", port, "--weights",
                                    self.weights or "auto", "--served-model-name", "hf",
                                    "--threads", self.threads, "--device", "cpu", "--lora-modules", *modules],
                      "/health")

    def request(self, port, prompt, tokens, adapter):
        return stream(f"http://127.0.0.1:{port}/v1/completions",
                      {"model": "hf" if adapter is None else f"a{adapter}", "prompt": prompt, "max_tokens": tokens,
                       "ignore_eos": True, "stream": True, "temperature": 0})


class LlamaCpp:
    def __init__(self, program, folder, gguf, threads):
        self.program, self.folder, self.gguf, self.threads = program, folder, gguf, threads

    def start(self):
        adapters = sorted((self.folder / "adapters").iterdir(), key=lambda a: int(a.name[1:]))
        loras = [part for a in adapters for part in ("--lora", a / "adapter.gguf")]
        return Server(lambda port: [self.program, "-m", self.folder / f"{self.gguf}.gguf", "--port", port, "-t",
                                    self.threads, "-c", 16 * 2304, "-np", 16, "--lora-init-without-apply", *loras],
                      "/health")

    def request(self, port, prompt, tokens, adapter):
        body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "stream": True, "temperature": 0,
                "cache_prompt": False}
        # Without the field, the server applies all adapters at once.
        body["lora"] = [] if adapter is None else [{"id": adapter, "scale": 1.0}]
        return stream(f"http://127.0.0.1:{port}/completion", body)


def measure(system, server, load, vocabulary, rng):
    """Tokens a second: of the prompt if one token is generated, of a lone stream's decode, or of all streams together."""
    streams, prompt, tokens, adapters = LOADS[load]
    prompts = [[rng.randrange(300, vocabulary) for _ in range(prompt)] for _ in range(streams)]
    chosen = [None if adapters == "none" else i if adapters == "all" else 0 for i in range(streams)]
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        results = list(pool.map(lambda p, a: system.request(server.port, p, tokens, a), prompts, chosen))
    end = max(times[-1] for times in results)
    first = results[0]
    if tokens == 1:
        return prompt / (first[0] - begin)
    if streams == 1:
        return (tokens - 1) / (first[-1] - first[0])
    return streams * tokens / (end - begin)


def systems_of(args, folder):
    systems = {}
    for name in args.formats.split(","):
        systems[f"loramux {name}"] = Loramux(args.loramux, folder, FORMATS[name], args.threads)
    if args.llama_server:
        for name in args.peers.split(","):
            systems[f"llama.cpp {name}"] = LlamaCpp(args.llama_server, folder, GGUFS[name], args.threads)
    return systems


def run_shape(args, folder):
    config = next(folder / name / "config.json" for name in ("hf", "q4") if (folder / name / "config.json").exists())
    vocabulary = json.loads(config.read_text())["vocab_size"]
    loads = [load for load in LOADS if not args.loads or any(part in load for part in args.loads.split(";"))]
    figures, memory = {}, {}
    for repetition in range(args.repetitions):
        for name, system in systems_of(args, folder).items():
            server = system.start()
            rng = random.Random(repetition)
            measure(system, server, "one stream", vocabulary, rng)  # warms up
            for load in loads:
                value = measure(system, server, load, vocabulary, rng)
                figures.setdefault(load, {}).setdefault(name, []).append(value)
                print(f"{folder.name:5} {name:18} {load:26} {value:8.1f} tokens/s", flush=True)
            memory[name] = server.resident_bytes()
            server.stop()
    return {"tokens_per_second": figures, "resident_bytes": memory}


def cell(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def table(result):
    names = list(next(iter(result["tokens_per_second"].values())))
    lines = ["| tokens/s | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for load, by_system in result["tokens_per_second"].items():
        lines.append(f"| {load} | " + " | ".join(cell(by_system[name]) for name in names) + " |")
    resident = [f"{result['resident_bytes'][name] / 2**20:.0f} MiB" for name in names]
    return "\n".join([*lines, "| resident memory | " + " | ".join(resident) + " |"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--loramux", type=pathlib.Path, required=True)
    parser.add_argument("--llama-server", type=pathlib.Path)
    parser.add_argument("--shapes", default="160m,1.1b")
    parser.add_argument("--formats", default="bf16,q8,q4")
    parser.add_argument("--peers", default="F16,Q8_0,Q4_K_M")
    parser.add_argument("--loads", help="only loads whose name contains one of these, separated by semicolons")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    results = {name: run_shape(args, args.folder / name) for name in args.shapes.split(",")}
    for name, result in results.items():
        print(f"\n{name}\n{table(result)}")
    if args.output:
        args.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
