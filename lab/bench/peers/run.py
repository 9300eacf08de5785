#!/usr/bin/env python3
"""loramux beside llama.cpp on one machine: the same shapes, prompts, adapters and load generator, in turn.

    lab/bench/peers/make_models.py FOLDER --llama-quantize PATH      # once
    lab/bench/peers/run.py FOLDER --loramux build/release/tools/loramux --llama-server PATH --output results.json

Every repetition starts each server, runs all loads on it, and stops it; so a slow minute of the machine hits all alike.
With --pairs, loramux and the peer of as many bits run at once, and each load runs on one right after the other, so that
a slow second hits both. This watches what other programs take of the processors, too; and --page writes a page of mixtures
of experts, or of hybrid models:

    lab/bench/peers/make_models.py FOLDER --llama-quantize PATH --shapes mixtral,qwen3-moe
    lab/bench/peers/run.py FOLDER --loramux build/release/tools/loramux --llama-server PATH --shapes mixtral,qwen3-moe \
        --pairs --formats q8,q4 --peers Q8_0,Q4_K_M --loads "one stream;16 streams;16 adapters;experts" \
        --page docs/results
    (hybrid models: --shapes qwen3.5 --loads "one stream;16 streams;16 adapters;prefill 512")

Prints medians with their ranges, and the ratios. llama.cpp is not part of loramux: build it from its repository.
"""
import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request

QUIET = 0.1  # processors that other programs keep busy on a quiet machine
FORMATS = {"bf16": "auto", "q8": "q8", "q4": "q4", "panels": None}  # None: the folder q4 of make_models.py --panels
GGUFS = {"F16": "f16", "Q8_0": "q8_0", "Q4_K_M": "q4_k_m"}
# name: (streams, prompt tokens, generated tokens, adapters)
LOADS = {
    "one stream": (1, 16, 64, "none"),
    "one stream, rank 8": (1, 16, 64, "one"),
    "prefill 512": (1, 512, 1, "none"),
    "prefill 2048": (1, 2048, 1, "none"),
    "16 streams": (16, 16, 64, "none"),
    "16 streams, 16 of experts": (16, 16, 64, "experts"),
    "16 streams, one adapter": (16, 16, 64, "one"),
    "16 streams, 16 adapters": (16, 16, 64, "all"),
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server process; `answers(port)` says when it is ready."""

    def __init__(self, command, health, **environment):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(part) for part in command(self.port)], stdout=self.log, stderr=self.log,
                                        env={**os.environ, **environment})
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

    def seconds(self):
        """Of processors, so far."""
        fields = open(f"/proc/{self.process.pid}/stat").read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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
    """Sends a request; returns the times of its events, and the last one."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    times, last = [], b"data: {}"
    with urllib.request.urlopen(request, timeout=1800) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
                last = line
    return times, json.loads(last.removeprefix(b"data: "))


class Loramux:
    def __init__(self, program, folder, weights, threads):
        self.program, self.folder, self.weights, self.threads = program, folder, weights, threads

    def start(self):
        modules = [f"{a.name}={a}" for kind in ("adapters", "expert_adapters") if (self.folder / kind).exists()
                   for a in sorted((self.folder / kind).iterdir())]
        model = self.folder / "hf" if self.weights else self.folder / "q4"
        return Server(lambda port: [self.program, "serve", model, "--port", port, "--weights",
                                    self.weights or "auto", "--served-model-name", "hf",
                                    "--threads", self.threads, "--device", "cpu", "--lora-modules", *modules],
                      "/health")

    def request(self, port, prompt, tokens, adapter):
        times, last = stream(f"http://127.0.0.1:{port}/v1/completions",
                             {"model": adapter or "hf", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True,
                              "stream": True, "stream_options": {"include_usage": True}, "temperature": 0})
        return times, last["usage"]["completion_tokens"]

    def serves(self, adapters):
        return adapters != "experts" or (self.folder / "expert_adapters").exists()


class LlamaCpp:
    def __init__(self, program, folder, gguf, threads, passive):
        self.program, self.folder, self.gguf, self.threads = program, folder, gguf, threads
        self.environment = {"OMP_WAIT_POLICY": "passive"} if passive else {}

    def start(self):
        adapters = sorted((self.folder / "adapters").iterdir(), key=lambda a: int(a.name[1:]))
        loras = [part for a in adapters for part in ("--lora", a / "adapter.gguf")]
        return Server(lambda port: [self.program, "-m", self.folder / f"{self.gguf}.gguf", "--port", port, "-t",
                                    self.threads, "-c", 16 * 2304, "-np", 16, "--lora-init-without-apply", *loras],
                      "/health", **self.environment)

    def request(self, port, prompt, tokens, adapter):
        body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "stream": True, "temperature": 0,
                "cache_prompt": False}
        # Without the field, and with an empty list, the server applies all adapters at once.
        body["lora"] = [{"id": 0, "scale": 0.0} if adapter is None else {"id": int(adapter[1:]), "scale": 1.0}]
        times, last = stream(f"http://127.0.0.1:{port}/completion", body)
        return times, last["tokens_predicted"]

    def serves(self, adapters):
        return adapters != "experts"


def wait_until_quiet(server, patience):
    """Returns when other programs keep less than a tenth of a processor busy for two seconds, or after `patience`."""
    end = time.monotonic() + patience
    while time.monotonic() < end and watched(server, lambda: time.sleep(2))[2] >= QUIET:
        pass


def adapters_of(load):
    """The adapter of each stream."""
    streams, _, _, adapters = LOADS[load]
    kind = "e" if adapters == "experts" else "a"
    return [None if adapters == "none" else f"{kind}{0 if adapters == 'one' else i}" for i in range(streams)]


def ask(system, server, load, vocabulary, rng, tokens):
    """Runs a load, with answers of `tokens`. Returns when it began, and the times of the events of each stream."""
    streams, prompt, *_ = LOADS[load]
    prompts = [[rng.randrange(300, vocabulary) for _ in range(prompt)] for _ in range(streams)]
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        results = list(pool.map(lambda p, a: system.request(server.port, p, tokens, a), prompts, adapters_of(load)))
    for _, generated in results:
        if generated != tokens:
            sys.exit(f"{load}: expected {tokens} tokens, a server generated {generated}")
    return begin, [times for times, _ in results]


def measure(system, server, load, vocabulary, rng):
    """Tokens a second: of the prompt if one token is generated, of a lone stream's decode, or of all streams."""
    streams, prompt, tokens, _ = LOADS[load]
    begin, results = ask(system, server, load, vocabulary, rng, tokens)
    first = results[0]
    if tokens == 1:
        return prompt / (first[0] - begin)
    if streams == 1:
        return (tokens - 1) / (first[-1] - first[0])
    return streams * tokens / (max(times[-1] for times in results) - begin)


def machine_seconds():
    """Of processors: busy so far, with what the host took from this machine."""
    user, nice, system, _, _, irq, softirq, steal = map(int, open("/proc/stat").readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def watched(server, run):
    """What `run` returns, the processors' seconds that `server` used, and how many processors programs other than it
    and this one kept busy."""
    def now():
        own = os.times()
        return time.perf_counter(), server.seconds(), machine_seconds() - own.user - own.system
    begin = now()
    value = run()
    passed, of_server, of_all = (end - start for start, end in zip(begin, now()))
    return value, of_server, max(0.0, (of_all - of_server) / passed)


def systems_of(args, folder):
    systems = {}
    for name in args.formats.split(","):
        systems[f"loramux {name}"] = Loramux(args.loramux, folder, FORMATS[name], args.threads)
    if args.llama_server:
        for name in args.peers.split(","):
            systems[f"llama.cpp {name}"] = LlamaCpp(args.llama_server, folder, GGUFS[name], args.threads, args.passive)
    return systems


def vocabulary_of(folder):
    config = next(folder / name / "config.json" for name in ("hf", "q4") if (folder / name / "config.json").exists())
    return json.loads(config.read_text())["vocab_size"]


def loads_of(args):
    parts = args.loads.split(";") if args.loads else [""]
    return [load for load in LOADS if any(load == part or part not in LOADS and part in load for part in parts)]


def show(folder, name, load, value):
    print(f"{folder.name:9} {name:18} {load:30} {value:8.1f} tokens/s", flush=True)


def run_shape(args, folder, save):
    vocabulary, figures, memory = vocabulary_of(folder), {}, {}
    for repetition in range(args.repetitions):
        for name, system in systems_of(args, folder).items():
            server = system.start()
            rng = random.Random(repetition)
            measure(system, server, "one stream", vocabulary, rng)  # warms up
            for load in loads_of(args):
                if system.serves(LOADS[load][3]):
                    value = measure(system, server, load, vocabulary, rng)
                    figures.setdefault(load, {}).setdefault(name, []).append(value)
                    show(folder, name, load, value)
            memory[name] = server.resident_bytes()
            server.stop()
        save({"tokens_per_second": figures, "resident_bytes": memory})


def run_pairs(args, folder, save):
    """As run_shape, but both servers of a pair run at once. They take turns at being the first with a load."""
    vocabulary, memory = vocabulary_of(folder), {}
    figures, by_time, others = {}, {}, {}
    systems = systems_of(args, folder)
    pairs = list(zip(args.formats.split(","), args.peers.split(",")))
    for pair in pairs:
        names = [f"loramux {pair[0]}", f"llama.cpp {pair[1]}"]
        servers = {name: systems[name].start() for name in names}
        for name in names:  # warms up, and loads adapters
            for load in loads_of(args):
                if systems[name].serves(LOADS[load][3]):
                    ask(systems[name], servers[name], load, vocabulary, random.Random(-1), 2)
        for repetition in range(args.repetitions):
            for load in loads_of(args):
                wait_until_quiet(servers[names[0]], args.patience)
                for name in names if repetition % 2 == 0 else names[::-1]:
                    if not systems[name].serves(LOADS[load][3]):
                        continue
                    run = (systems[name], servers[name], load, vocabulary, random.Random(f"{repetition} {load}"))
                    value, seconds, busy = watched(servers[name], lambda: measure(*run))
                    streams, prompt, tokens, _ = LOADS[load]
                    made = streams * (tokens if tokens > 1 else prompt)
                    for kept, figure in ((figures, value), (by_time, made / seconds), (others, busy)):
                        kept.setdefault(load, {}).setdefault(name, []).append(figure)
                    show(folder, name, load, value)
        for name in names:
            memory[name] = servers[name].resident_bytes()
            servers[name].stop()
        save({"tokens_per_second": figures, "tokens_per_processor_second": by_time, "others_busy": others,
              "resident_bytes": memory, "pairs": pairs[:pairs.index(pair) + 1]})


def cell(values, digits=1):
    if not values:
        return "-"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(result):
    names = list(next(iter(result["tokens_per_second"].values())))
    lines = ["| tokens/s | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for load, by_system in result["tokens_per_second"].items():
        lines.append(f"| {load} | " + " | ".join(cell(by_system.get(name)) for name in names) + " |")
    resident = [f"{result['resident_bytes'][name] / 2**20:.0f} MiB" for name in names]
    return "\n".join([*lines, "| resident memory | " + " | ".join(resident) + " |"])


# (what, the load, the load or the system it is compared with, the least ratio)
HYBRID_TARGETS = [
    ("one stream, times llama.cpp", "one stream", None, 1.2),
    ("16 streams, times llama.cpp", "16 streams", None, 2.0),
]
EXPERT_TARGETS = [
    ("one stream, times llama.cpp", "one stream", None, 1.2),
    ("16 streams, times llama.cpp", "16 streams", None, 1.5),
    ("16 streams with 16 different adapters of attention, times llama.cpp", "16 streams, 16 adapters", None, 4.0),
    ("16 different adapters of experts, share of none", "16 streams, 16 of experts", "16 streams", 0.5),
]


KINDS = ("tokens_per_second", "tokens_per_processor_second")


def ratios(figures, pair, load, other_load=None):
    """Of neighbours in time: loramux over the peer, or over itself under another load."""
    ours = f"loramux {pair[0]}"
    below = figures.get(other_load or load, {}).get(ours if other_load else f"llama.cpp {pair[1]}", [])
    return [a / b for a, b in zip(figures.get(load, {}).get(ours, []), below)]


def pairs_table(result, kind):
    heads = [f"{ours} | {theirs} | ratio" for ours, theirs in result["pairs"]]
    lines = [f"| {kind.replace('_', ' ')} | " + " | ".join(heads) + " |", "|---" * (3 * len(heads) + 1) + "|"]
    for load, by_system in result[kind].items():
        cells = []
        for ours, theirs in result["pairs"]:
            cells += [cell(by_system.get(f"loramux {ours}")), cell(by_system.get(f"llama.cpp {theirs}")),
                      cell(ratios(result[kind], (ours, theirs), load), 2)]
        lines.append(f"| {load} | " + " | ".join(cells) + " |")
    if kind != "tokens_per_second":
        return "\n".join(lines)
    memory = [f"{result['resident_bytes'][f'{kind} {name}'] / 2**20:.0f} MiB" + (" | " if kind == "llama.cpp" else "")
              for pair in result["pairs"] for kind, name in zip(("loramux", "llama.cpp"), pair)]
    return "\n".join([*lines, "| resident memory | " + " | ".join(memory) + "|"])


def targets_table(results, kind, targets):
    columns = [(name, pair) for name, result in results.items() for pair in result["pairs"]]
    heads = [f"{name}, {pair[0]}" for name, pair in columns]
    lines = ["| target | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for what, load, other_load, least in targets:
        cells = []
        for name, pair in columns:
            found = ratios(results[name][kind], pair, load, other_load)
            text = cell(found, 2)
            cells.append(text if not found or statistics.median(found) >= least else f"**{text}**")
        lines.append(f"| {what}: at least {least:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def files_of(args, name):
    """The configuration of a shape, and the sizes of its files."""
    folder = args.folder / name
    return (json.loads((folder / "hf" / "config.json").read_text()),
            {file: (folder / file).stat().st_size for file in ("hf/model.safetensors", "q8_0.gguf", "q4_k_m.gguf")})


def expert_models(args, results):
    lines = ["| shape | parameters | of which a token takes | layers | experts of a layer, taken "
             "| matrices of an expert | files: q8_0, q4_k_m |", "|---" * 7 + "|"]
    for name in results:
        config, size = files_of(args, name)
        hidden, ffn = config["hidden_size"], config.get("moe_intermediate_size", config["intermediate_size"])
        experts, taken = config.get("num_experts", config.get("num_local_experts")), config["num_experts_per_tok"]
        parameters, layers = size["hf/model.safetensors"] / 2, config["num_hidden_layers"]
        active = parameters - hidden * config["vocab_size"] - layers * (experts - taken) * 3 * hidden * ffn
        lines.append(f"| {name} | {parameters / 1e9:.2f}B | {active / 1e9:.2f}B | {layers} | {experts}, {taken} "
                     f"| {hidden} x {ffn} | {size['q8_0.gguf'] / 1e9:.2f} GB, {size['q4_k_m.gguf'] / 1e9:.2f} GB |")
    return "\n".join(lines)


def hybrid_models(args, results):
    lines = ["| shape | parameters | layers | of which attention | heads of states, elements of one "
             "| files: q8_0, q4_k_m |", "|---" * 6 + "|"]
    for name in results:
        config, size = files_of(args, name)
        lines.append(f"| {name} | {size['hf/model.safetensors'] / 2e9:.2f}B | {config['num_hidden_layers']} "
                     f"| {config['layer_types'].count('full_attention')} | {config['linear_num_value_heads']}, "
                     f"{config['linear_key_head_dim']} x {config['linear_value_head_dim']} "
                     f"| {size['q8_0.gguf'] / 1e9:.2f} GB, {size['q4_k_m.gguf'] / 1e9:.2f} GB |")
    return "\n".join(lines)


# By whether the models are hybrids: the page's title, its file, what its models are, and what is asked of them.
PAGES = {
    False: ("Mixtures of experts, beside llama.cpp", "experts_beside_llama_cpp.md", expert_models, EXPERT_TARGETS,
            "Adapters of attention have ranks 8 to 128 on q, k, v and o. Those of experts have ranks 8 to 32 on all matrices "
            "of all experts; llama.cpp has none."),
    True: ("Hybrid models, beside llama.cpp", "hybrid_beside_llama_cpp.md", hybrid_models, HYBRID_TARGETS,
           "Adapters have ranks 8 to 128 on q, k, v and o of the attention layers; the others are gated DeltaNet (Qwen 3.5)."),
}


def page_of(args):
    hybrid = {"layer_types" in files_of(args, name)[0] for name in args.shapes.split(",")}
    if len(hybrid) > 1:
        sys.exit("--page: expected mixtures of experts or hybrid models, found both")
    return PAGES[hybrid.pop()]


def machine():
    flags = re.search(r"^flags\s*:(.*)$", open("/proc/cpuinfo").read(), re.M)
    known = {"avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx2": "AVX2"}
    vectors = next((text for flag, text in known.items() if flags and flag in flags[1].split()), "no AVX2")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores with {vectors}, {memory:.0f} GiB of memory"


def wrap(text):
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False, break_long_words=False)


def page(args, results, load_average):
    def first_line(program):
        ran = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        return (ran.stdout or ran.stderr).strip().split("\n")[0]

    title, _, models_table, targets, adapters = page_of(args)
    busy = [value for result in results.values() for by_system in result["others_busy"].values()
            for values in by_system.values() for value in values]
    quiet = statistics.median(busy) < QUIET
    state = "The machine was quiet:" if quiet else "**Measured on a busy machine:**"
    passive = ", with OMP_WAIT_POLICY=passive: its threads spin otherwise" if args.passive else ""
    tables = "\n\n".join(f"### {name}\n" + "\n\n".join(pairs_table(result, kind) for kind in KINDS)
                         for name, result in results.items())
    how = wrap(f"""Made by `lab/bench/peers/run.py` on {time.strftime("%Y-%m-%d")}; its head has the commands. Random
        weights, the same values for both programs. {args.threads} threads each, on a machine of {machine()}.""")
    loads = wrap(f"""Prompts have 16 tokens and answers {args.tokens}. Both servers of a pair run at once. Every load
        runs on one and right after it on the other, {args.repetitions} times; ratios are those of such neighbours.
        Medians, with their ranges. {adapters}""")
    others = wrap(f"""{state} other programs kept {cell(busy, 2)} processors busy during the loads. The load average,
        with what was measured, was {load_average[0]:.1f} at first and {load_average[1]:.1f} at the end.""")
    return f"""# {title}
{how}

- loramux {first_line(args.loramux)}
- llama.cpp {args.peer_version or first_line(args.llama_server).removeprefix("version: ")}{passive}

{loads}

{others}

{models_table(args, results)}

## Targets
In seconds of the clock. Bold: missed.

{targets_table(results, KINDS[0], targets)}

In seconds of processors that the server used, which other programs change less:

{targets_table(results, KINDS[1], targets)}

## Figures
Prompts count in the processors' seconds, and not in the time of one stream.

{tables}
"""


def write_page(path, text):
    """Keeps what people wrote about the results."""
    kept = ""
    if path.exists() and "\n## What it shows\n" in path.read_text():
        kept = "\n## What it shows\n" + path.read_text().partition("\n## What it shows\n")[2]
    path.write_text(text + kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--loramux", type=pathlib.Path, required=True)
    parser.add_argument("--llama-server", type=pathlib.Path)
    parser.add_argument("--shapes", default="160m,1.1b")
    parser.add_argument("--formats", default="bf16,q8,q4")
    parser.add_argument("--peers", default="F16,Q8_0,Q4_K_M")
    parser.add_argument("--loads", help="names of loads, or parts of names, separated by semicolons")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer (64)")
    parser.add_argument("--passive", action="store_true",
                        help="sets OMP_WAIT_POLICY=passive for llama.cpp: faster where others use the processors")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--pairs", action="store_true",
                        help="run the first of --formats beside the first of --peers, and so on")
    parser.add_argument("--patience", type=float, default=0,
                        help="with --pairs: seconds that each load waits at most until other programs are quiet")
    parser.add_argument("--page", type=pathlib.Path, help="with --pairs: the folder of the page")
    parser.add_argument("--peer-version", help="what the page says llama.cpp is")
    args = parser.parse_args()
    if args.pairs and not args.llama_server or args.page and not args.pairs:
        parser.error("--pairs needs --llama-server, and --page needs --pairs")
    for load, (streams, prompt, tokens, adapters) in LOADS.items():
        LOADS[load] = (streams, prompt, min(tokens, args.tokens), adapters)
    run, before, results = run_pairs if args.pairs else run_shape, os.getloadavg()[0], {}

    def save(name, result):
        results[name] = result
        if args.output:
            args.output.write_text(json.dumps(results, indent=1) + "\n")

    for name in args.shapes.split(","):
        run(args, args.folder / name, functools.partial(save, name))
    for name, result in results.items():
        print(f"\n{name}\n{table(result)}")
    if args.page:
        write_page(args.page / page_of(args)[1], page(args, results, (before, os.getloadavg()[0])))


if __name__ == "__main__":
    main()
