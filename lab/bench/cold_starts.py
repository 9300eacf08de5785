#!/usr/bin/env python3
"""What a request with a cold adapter waits, and what its neighbours notice, by `--cold-start`, on the real server.

    lab/bench/cold_starts.py build/release/tools/loramux --out build/results

Makes a bf16 model of random weights (hidden size 768, 12 layers, vocabulary of 32,000) and adapters on q, k, v and o, and
starts one server for each policy: wait, assist, auto. Each measured request finds its adapter on the device (resident), in
the host tier (host) or only on disk (disk), and the metrics of the server prove it: a request that found it elsewhere ends
the run. Two other requests decode meanwhile. Policies and places alternate within a repetition, in random order. Writes
cold_starts.json and cold_starts.md. Standard library only. `--quick`: one repetition of few cases.
"""
import argparse
import asyncio
import datetime
import json
import math
import os
import pathlib
import random
import statistics
import struct
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import serving
from raw_data import write_raw_data

POLICIES = ("wait", "assist", "auto")
PLACES = ("resident", "host", "disk")
FOUND = {"resident": "gpu", "host": "cpu", "disk": "disk"}   # the label of the metrics
HIDDEN, LAYERS, HEADS, FFN, VOCABULARY, POSITIONS = 768, 12, 12, 2048, 32000, 2048
TOKENS = 8                                                   # of a measured answer
NEIGHBOUR_RANK, NEIGHBOUR_PROMPT = 16, 16
STALE = 0.15                                                 # seconds; metrics are up to 0.1 s old
LIMIT = 1.03                                                 # TTFT of a host-resident cold adapter over a resident one


# ---- The model and its adapters

SIGNS = bytes(0xBC if i & 1 else 0x3C for i in range(256))   # high bytes of bf16: values of about 0.01, of either sign


def random_bf16(count, prng):
    values = bytearray(2 * count)
    values[0::2] = prng.randbytes(count)
    values[1::2] = prng.randbytes(count).translate(SIGNS)
    return values


def write_safetensors(path, shapes, prng):
    """`shapes`: tensor name to shape. One-dimensional tensors are norms, and all ones."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            file.write(random_bf16(math.prod(shape), prng) if len(shape) > 1 else b"\x80\x3f" * shape[0])


def write_model(folder):
    folder.mkdir()
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "model.norm.weight": [HIDDEN],
              "lm_head.weight": [VOCABULARY, HIDDEN]}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{name}{norm}.weight"] = [HIDDEN]
        for linear in "qkvo":
            shapes[f"{name}self_attn.{linear}_proj.weight"] = [HIDDEN, HIDDEN]
        shapes[f"{name}mlp.gate_proj.weight"] = shapes[f"{name}mlp.up_proj.weight"] = [FFN, HIDDEN]
        shapes[f"{name}mlp.down_proj.weight"] = [HIDDEN, FFN]
    write_safetensors(folder / "model.safetensors", shapes, random.Random(1))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HIDDEN // HEADS, "intermediate_size": FFN,
        "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16"}))
    write_tokenizer(folder)


def write_tokenizer(folder):
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    special = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True} for i, text in enumerate(("<unk>", "<s>", "</s>"))]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}}))


def write_adapter(folder, rank, seed):
    folder.mkdir()
    shapes = {}
    for layer in range(LAYERS):
        for linear in "qkvo":
            name = f"base_model.model.model.layers.{layer}.self_attn.{linear}_proj."
            shapes[name + "lora_A.weight"], shapes[name + "lora_B.weight"] = [rank, HIDDEN], [HIDDEN, rank]
    write_safetensors(folder / "adapter_model.safetensors", shapes, random.Random(seed))
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [f"{linear}_proj" for linear in "qkvo"]}))


# ---- The servers

class Server:
    """One server of a policy. The regime `s-lora` takes an adapter off the device as soon as no request wants it, unless an
    operator pinned it; so a pin and its end decide the place of an adapter."""

    def __init__(self, program, home, policy, flags):
        self.home = home
        self.server = serving.Server.run([
            program, "serve", str(home / "model"), "--served-model-name", "base", "--port", "0", "--cold-start", policy,
            "--cache", "s-lora", "--device-memory", "384MiB", "--host-memory", "256MiB", "--enable-runtime-lora",
            "--insecure-no-admin-key", "--allowed-adapter-root", str(home), *flags])
        self.port = self.server.port

    def load(self, name, pinned=False):
        self.operate("load", {"lora_name": name, "lora_path": str(self.home / name), "load_inplace": True,
                              "pinned": pinned})

    def operate(self, verb, body):
        status, text = self.server.request("POST", f"/v1/{verb}_lora_adapter", body)
        if status != 200:
            sys.exit(f"{verb} of {body} answered {status}: {text!r}")

    def level(self, name):
        return next((level for level in ("gpu", "cpu", "disk")
                     if self.server.metric("vllm:lora_adapter_loaded", adapter_name=name, level=level)), None)

    def counts(self):
        """What proves how a request found its adapter and began."""
        page = {}
        for line in self.server.request("GET", "/metrics")[1].decode().splitlines():
            series, _, value = line.rpartition(" ")
            page[series] = value
        found = [int(float(page[f'loramux:adapter_lookups_total{{found="{place}"}}'])) for place in ("gpu", "cpu", "disk")]
        begins = [int(float(page[f'loramux:adapter_cold_begins_total{{from="{place}"}}'])) for place in ("cpu", "disk")]
        return found, begins, int(float(page["loramux:adapter_disk_reads_total"]))


async def stream(port, model, prompt, tokens, times):
    """Sends a streamed completion and appends the time of each token that has a text to `times`: a chunk of a busy server may
    hold several."""
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0,
                       "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            sys.exit(f"{model}: {head!r} {await reader.read()!r}")
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                text = json.loads(line[len(b"data: "):])["choices"][0]["text"]
                times += [time.monotonic()] * len(text.split())
    finally:
        writer.close()


def words(count, prng):
    return [prng.randrange(3, VOCABULARY) for _ in range(count)]


async def until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within 60 s: {what}")
        await asyncio.sleep(0.005)


async def put(server, name, place):
    """Brings the adapter to the place. The page cache of the system forgets its file as far as the system allows."""
    if place == "resident":
        server.load(name, pinned=True)
    elif place == "host":
        server.load(name, pinned=True)
        await until(lambda: server.level(name) == "gpu", f"{name} on the device")
        server.load(name, pinned=False)
        await stream(server.port, "base", [5], 1, [])   # a plan in which no request wants it
    else:
        server.operate("unload", {"lora_name": name})
        server.load(name)
        file = os.open(server.home / name / "adapter_model.safetensors", os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    await asyncio.sleep(STALE)
    await until(lambda: server.level(name) == FOUND[place], f"{name} at {place}")


def gaps(times, begin, end):
    """(sum, number) of the times between tokens of a neighbour from the last one before `begin` to the last before `end`."""
    before = [t for t in times if t <= begin][-1:]
    inside = [t for t in times if begin < t <= end]
    return (inside[-1] - before[0], len(inside)) if before and inside else (0.0, 0)


async def measure(server, name, place, prompt_tokens, neighbours, prng):
    """TTFT and the neighbours' TPOT in seconds of one request, and whether it began before its adapter was on the device."""
    await put(server, name, place)
    await asyncio.sleep(STALE)
    found, begins, reads = server.counts()
    times, begin = [], time.monotonic()
    await stream(server.port, name, words(prompt_tokens, prng), TOKENS, times)
    end = times[-1]
    ttft = times[0] - begin
    await asyncio.sleep(STALE)
    await until(lambda: server.level(name) in ("gpu", "cpu"), f"the end of the load of {name}")
    found_now, begins_now, reads_now = server.counts()
    expected = [int(FOUND[place] == tier) for tier in ("gpu", "cpu", "disk")]
    seen = [now - then for now, then in zip(found_now, found)]
    if seen != expected or reads_now - reads != (place == "disk"):
        sys.exit(f"{name} at {place}: lookups {seen}, expected {expected}; {reads_now - reads} disk reads")
    sums = [gaps(one, begin, end) for one in neighbours]
    count = sum(number for _, number in sums)
    tpot = sum(seconds for seconds, _ in sums) / count if count else None
    return {"ttft": ttft, "tpot": tpot, "begins": [now - then for now, then in zip(begins_now, begins)]}


async def block(server, rank, prompt_tokens, number_of_neighbours, prng):
    """Measures each place once, in random order, beside neighbours that decode."""
    name = f"rank-{rank}"
    neighbours = [[] for _ in range(number_of_neighbours)]
    tasks = [asyncio.create_task(stream(server.port, f"neighbour-{i}", words(NEIGHBOUR_PROMPT, prng),
                                        POSITIONS - NEIGHBOUR_PROMPT - 1, times)) for i, times in enumerate(neighbours)]
    while not all(neighbours):
        await asyncio.sleep(0.005)
    measured = {}
    for place in prng.sample(PLACES, len(PLACES)):
        measured[place] = await measure(server, name, place, prompt_tokens, neighbours, prng)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    while server.server.requests_now():
        await asyncio.sleep(0.005)
    return measured


async def run(options, servers):
    prng = random.Random(7)
    samples, end = {}, time.monotonic() + 60 * options.minutes
    for policy in POLICIES:   # warms up
        await block(servers[policy], options.ranks[0], options.prompts[0], options.neighbours[0], prng)
    for repetition in range(options.repetitions):
        began = time.monotonic()
        if repetition > 0 and began > end:
            break
        for count in options.neighbours:
            for rank in options.ranks:
                for prompt in options.prompts:
                    for policy in prng.sample(POLICIES, len(POLICIES)):
                        measured = await block(servers[policy], rank, prompt, count, prng)
                        samples.setdefault((count, rank, prompt, policy), []).append(measured)
        print(f"repetition {repetition}: {time.monotonic() - began:.0f} s", flush=True)
    return samples


# ---- The figures

def spread(values, scale=1000.0, digits=1):
    ordered = sorted(value * scale for value in values)
    return {key: round(value, digits) for key, value in
            (("median", statistics.median(ordered)), ("least", ordered[0]), ("most", ordered[-1]))}


def rows_of(samples):
    rows = []
    for (neighbours, rank, prompt, policy), blocks in samples.items():
        for place in PLACES:
            seen = [one[place] for one in blocks]
            row = {"neighbours": neighbours, "rank": rank, "prompt": prompt, "policy": policy, "place": place,
                   "ttft_ms": spread([one["ttft"] for one in seen])}
            if place != "resident":
                row["ttft_over_resident"] = spread([one[place]["ttft"] / one["resident"]["ttft"] for one in blocks], 1, 3)
                least = min(one["resident"]["ttft"] for one in blocks)
                row["least_over_least"] = round(min(one["ttft"] for one in seen) / least, 3)
                row["began_from_host"] = sum(one["begins"][0] for one in seen)
                row["began_while_read"] = sum(one["begins"][1] for one in seen)
            tpots = [one["tpot"] for one in seen if one["tpot"] is not None]
            if tpots:
                row["neighbour_tpot_ms"] = spread(tpots, digits=2)
            rows.append(row)
    return rows


def find(rows, **wanted):
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


def text_of(value, digits):
    return f"{value['median']:.{digits}f} ({value['least']:.{digits}f} to {value['most']:.{digits}f})"


def table(rows, neighbours, place, key, digits, options):
    lines = [f"| rank | prompt | resident | {' | '.join(POLICIES)} |", "|---|---|---|---|---|---|"]
    for rank in options.ranks:
        for prompt in options.prompts:
            case = {"neighbours": neighbours, "rank": rank, "prompt": prompt}
            resident = find(rows, **case, policy="auto", place="resident")[key]
            cells = [text_of(find(rows, **case, policy=policy, place=place)[key], digits) for policy in POLICIES]
            lines.append(f"| {rank} | {prompt:,} | {text_of(resident, digits)} | {' | '.join(cells)} |")
    return lines


def ratios(rows, neighbours, place, options):
    lines = [f"| rank | prompt | {' | '.join(POLICIES)} |", "|---|---|---|---|---|"]
    for rank in options.ranks:
        for prompt in options.prompts:
            cells = []
            for policy in POLICIES:
                row = find(rows, neighbours=neighbours, rank=rank, prompt=prompt, policy=policy, place=place)
                value = row["ttft_over_resident"]
                cell = f"{text_of(value, 2)}; {row['least_over_least']:.2f}"
                missed = place == "host" and policy != "wait" and value["median"] > LIMIT
                cells.append(f"**{cell}**" if missed else cell)
            lines.append(f"| {rank} | {prompt:,} | {' | '.join(cells)} |")
    return lines


def verdict(rows):
    judged = [row for row in rows if row["place"] == "host" and row["policy"] != "wait"]
    missed = [row for row in judged if row["ttft_over_resident"]["median"] > LIMIT]
    least = sum(row["least_over_least"] <= LIMIT for row in judged)
    text = (f"In {len(judged) - len(missed)} of {len(judged)} cases with `assist` or `auto` the TTFT of an adapter in the "
            f"host tier is within 3 % of that of a resident one (median of the ratios), in {least} of them by the least TTFT")
    if not missed:
        return text + "."
    worst = max(missed, key=lambda row: row["ttft_over_resident"]["median"])
    return (f"{text}; the largest miss is {(worst['ttft_over_resident']['median'] - 1) * 100:.1f} % (rank {worst['rank']}, "
            f"prompt {worst['prompt']:,}, {worst['neighbours']} neighbours, `{worst['policy']}`).")


def page(result, raw_data, options):
    rows = result["rows"]
    began = [sum(row.get("began_from_host", 0) for row in rows if row["policy"] == policy) for policy in POLICIES]
    read = [sum(row.get("began_while_read", 0) for row in rows if row["policy"] == policy) for policy in POLICIES]
    lines = ["# Results: cold adapters", "",
             "What a request waits whose adapter is not on the device, by `--cold-start`, and what its neighbours notice. "
             "Measured on the real server over HTTP, on a CPU.", "", f"**{verdict(rows)}**", "",
             "```", result["command"], "```", "", raw_data, "",
             f"Condition: {result['condition']}", "",
             "Each measured request found its adapter where the column says; the server's metrics were read before and after "
             "each one, and the run ends at the first that did not. Cells are medians (least to most). Ratios are those of "
             "requests of the same repetition, server and neighbours; the number behind the semicolon is the ratio of the least "
             "TTFT to the least of a resident adapter, which other work on the machine disturbs least. **Bold** marks a missed "
             "target (a median of at most 1.03). A ratio from few repetitions beside other work does not resolve 3 %: compare "
             "its range, and the ratios of `wait`.", "",
             "Requests that began before their adapter was on the device: " + ", ".join(
                 f"{a} from the host tier and {b} while the file was read with `{policy}`"
                 for policy, a, b in zip(POLICIES, began, read)) + "."]
    for neighbours in options.neighbours:
        beside = f"beside {neighbours} neighbours" if neighbours else "alone"
        for place, what in (("host", "adapter in the host tier"), ("disk", "adapter on disk")):
            lines += ["", f"## TTFT over that of a resident adapter: {what}, {beside}", "",
                      *ratios(rows, neighbours, place, options)]
        for place, what in (("host", "adapter in the host tier"), ("disk", "adapter on disk")):
            lines += ["", f"## TTFT, ms: {what}, {beside}", "", *table(rows, neighbours, place, "ttft_ms", 1, options)]
            if neighbours:
                lines += ["", f"## TPOT of the neighbours, ms: {what}", "",
                          *table(rows, neighbours, place, "neighbour_tpot_ms", 2, options)]
    return "\n".join(lines) + "\n"


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loramux")
    parser.add_argument("--ranks", type=numbers, default=[8, 32, 128])
    parser.add_argument("--prompts", type=numbers, default=[16, 128, 1024])
    parser.add_argument("--neighbours", type=numbers, default=[0, 2], help="requests that decode meanwhile")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--minutes", type=float, default=60, help="no repetition begins after that time")
    parser.add_argument("--work", help="folder for the model; it stays there (default: a temporary one)")
    parser.add_argument("--flags", default="", help="more flags of serve")
    parser.add_argument("--out", default="build/results", help="folder for cold_starts.json and cold_starts.md")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.ranks, options.prompts, options.repetitions = options.ranks[:1], options.prompts[:1], 1
    with tempfile.TemporaryDirectory() as temporary:
        home = pathlib.Path(options.work or temporary).resolve()
        home.mkdir(exist_ok=True)
        if not (home / "model").exists():
            write_model(home / "model")
        for seed, (name, rank) in enumerate([(f"rank-{rank}", rank) for rank in options.ranks] +
                                            [(f"neighbour-{i}", NEIGHBOUR_RANK) for i in range(max(options.neighbours))]):
            if not (home / name).exists():
                write_adapter(home / name, rank, seed)
        program = pathlib.Path(options.loramux).resolve()
        servers = {policy: Server(program, home, policy, options.flags.split()) for policy in POLICIES}
        for server in servers.values():
            for name in sorted(path.name for path in home.iterdir() if path.name != "model"):
                server.load(name, pinned=name.startswith("neighbour"))
        load_before = os.getloadavg()[0]
        try:
            samples = asyncio.run(run(options, servers))
        except (OSError, EOFError, asyncio.IncompleteReadError) as error:
            said = [f"{policy}, status {server.server.process.poll()}:\n{server.server.text()[-2000:]}"
                    for policy, server in servers.items()]
            sys.exit("\n".join([f"a server closed a connection ({error}); their last words:", *said]))
        repetitions = len(next(iter(samples.values())))
        for server in servers.values():
            server.server.stop()
    neighbours = " and ".join("alone" if count == 0 else f"beside {count} requests that decode" for count in options.neighbours)
    result = {
        "what": "TTFT of cold adapters and TPOT of neighbours, by --cold-start", "date": datetime.date.today().isoformat(),
        "command": f"lab/bench/cold_starts.py build/release/tools/loramux --repetitions {repetitions} --neighbours "
                   f"{','.join(str(count) for count in options.neighbours)} --out build/results",
        "condition": f"{os.cpu_count()} cores of a cloud machine shared with other work (load average {load_before:.1f} at the "
                     f"start, {os.getloadavg()[0]:.1f} at the end), {datetime.date.today():%B %Y}. Random bf16 model, hidden "
                     f"size {HIDDEN}, {LAYERS} layers, vocabulary of {VOCABULARY:,}; adapters on q, k, v, o. Each request is "
                     f"measured {neighbours}, {repetitions} times, and gives {TOKENS} tokens. The system was asked to "
                     "forget the adapter's file before each request that reads it.",
        "rows": rows_of(samples)}
    out = pathlib.Path(options.out)
    text = page(result, write_raw_data(out / "cold_starts.json", result), options)
    (out / "cold_starts.md").write_text(text)
    print(verdict(result["rows"]))


if __name__ == "__main__":
    main()
