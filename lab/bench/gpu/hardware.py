#!/usr/bin/env python3
"""The results of hardware.sh: collects them on the machine with the GPU, and makes the page of them.

Usage: hardware.py find-cublas
       hardware.py collect WORK COMMIT_FILE HARDWARE_JSON
       hardware.py page HARDWARE_JSON PAGE
"""
import datetime
import hashlib
import importlib.util
import json
import pathlib
import sys


def find_cublas():
    """The cuBLAS of a Python package, if there is one."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations if spec else []):
        for path in sorted(pathlib.Path(place).glob("*/lib/libcublasLt.so.13")):
            return str(path)
    return ""


def collect(work, commit_file, target):
    steps = []
    for line in (work / "steps.txt").read_text().splitlines():
        kind, name, status, seconds = line.rsplit(" ", 3)
        steps.append({"kind": kind, "name": name, "status": status, "seconds": int(seconds)})
    bench, profile, handoff = work / "bench.json", work / "profile.json", work / "handoff.json"
    target.write_text(json.dumps({
        "date": datetime.date.today().isoformat(),
        "commit": commit_file.read_text().strip(),
        "gpu": (work / "gpu.txt").read_text().strip(),
        "steps": steps,
        "bench": json.loads(bench.read_text()) if bench.exists() else None,
        "profile": json.loads(profile.read_text()) if profile.exists() else None,
        "handoff": json.loads(handoff.read_text()) if handoff.exists() else None,
    }, indent=1) + "\n")
    passed = sum(step["status"] == "0" for step in steps)
    print(f"hardware: {passed} of {len(steps)} steps passed; results in {target}", file=sys.stderr)
    return 0 if steps and passed == len(steps) else 1


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def share(value):
    return f"{100 * value:.0f} %"


def memory_section(bench):
    yield "## Memory, launches and transfers\n"
    rows = [(row["what"] + (f", {row['blocks']} blocks" if "blocks" in row else ""), f"{row['gb_per_s']:,.0f} GB/s")
            for row in bench.get("memory", [])]
    rows += [(f"a launch without work, {row['what']}", f"{row['us']:.2f} µs") for row in bench.get("launches", [])]
    yield table(("what", "value"), rows)
    yield "Copies between pinned memory of the host and the GPU, piece after piece:\n"
    yield table(("piece", "to the GPU", "to the host"),
                [(f"{row['piece_kib']:,} KiB", f"{row['to_device_gb_per_s']:.1f} GB/s", f"{row['to_host_gb_per_s']:.1f} GB/s")
                 for row in bench.get("transfers", []) if "piece_kib" in row])


def lora_section(bench):
    yield "## The batched LoRA product\n"
    yield "Rows of A and B lie in pages in random order. Shares are of the read ceiling, by the bytes of A or of B.\n"
    yield table(("layers", "in", "out", "adapters", "sum of ranks", "tokens each", "shrink", "share", "expand", "share"),
                [(row["layers"], row["in"], row["out"], row["adapters"], row["rank_sum"], row["tokens_each"],
                  f"{row['shrink_us']:.1f} µs", share(row["shrink_of_ceiling"]), f"{row['expand_us']:.1f} µs",
                  share(row["expand_of_ceiling"])) for row in bench.get("lora", [])])
    if "skinny" not in bench:
        return
    yield "The base model's product and the shrink of its input, as two launches and as one. Shares are by the bytes of both.\n"
    yield table(("layers", "in", "out", "rows", "sum of ranks", "two launches", "share", "one launch", "share"),
                [(row["layers"], row["in"], row["out"], row["rows"], row["rank_sum"], f"{row['apart_us']:.1f} µs",
                  share(row["apart_of_ceiling"]), f"{row['together_us']:.1f} µs", share(row["together_of_ceiling"]))
                 for row in bench["skinny"]])


def attention_section(bench):
    yield "## Attention\n"
    yield "One row of each sequence; 32 query heads of 128. Shares are of the read ceiling, by the bytes of keys and values.\n"
    yield table(("tokens of a page", "key/value heads", "context", "sequences", "time", "share"),
                [(row["page_tokens"], row["kv_heads"], row["context"], row["sequences"], f"{row['us']:.1f} µs",
                  share(row["of_ceiling"])) for row in bench.get("decode_attention", [])])
    yield "A whole prompt:\n"
    yield table(("key/value heads", "tokens", "time", "TFLOP/s"),
                [(row["kv_heads"], row["context"], f"{row['us']:,.0f} µs", f"{row['tflop_per_s']:.0f}")
                 for row in bench.get("prefill_attention", [])])


def dense_section(bench):
    yield "## Dense products\n"
    yield ("By cuBLASLt, bf16. *As alone*: whether row 0 has the same bits as in a product of one row, which "
           "batch-invariant products must have.\n")
    yield table(("products", "layer", "n", "k", "rows", "time", "weights", "TFLOP/s", "as alone"),
                [(row["products"], row["layer"], row["n"], row["k"], row["rows"], f"{row['us']:.1f} µs",
                  f"{row['weights_gb_per_s']:,.0f} GB/s", f"{row['tflop_per_s']:.0f}",
                  "yes" if row["row_0_as_alone"] else "no") for row in bench.get("dense", [])])


def model_section(bench):
    yield "## A model of 7B\n"
    yield ("The shape of Llama-2-7B with random weights; adapters of q, k, v and o with ranks of 8 to 128, one for each "
           "sequence. Steps of one token each are replayed from a graph; *launched*: launch by launch. Shares are of the read ceiling, by the bytes of weights, adapters, keys and values.\n")
    yield table(("sequences", "tokens each", "context", "adapters", "step", "launched", "calls of the host",
                 "tokens/s", "share"),
                [(row["sequences"], row["tokens_each"], row["context"], row["adapters"], f"{row['ms']:.2f} ms",
                  f"{row['eager_ms']:.2f} ms", f"{row['host_calls']} / {row['eager_host_calls']}",
                  f"{row['tokens_per_s']:,.0f}", share(row["of_ceiling"])) for row in bench.get("model", [])])

# Bits of a weight with its scales; instructions for a weight of a lane, from the machine code (sm_90, bf16, up to 8 rows):
# all of the loop over k, the ends of units included, divided by the weights of one pass.
FORMS = {"q8": (8.5, 300 / 32), "q4": (5, 308 / 32), "int4, groups of 128": (4.25, 308 / 32)}
# What an H200 issues at most: 132 multiprocessors, 4 warps in each cycle, 1.98 GHz.
LANES_PER_US = 132 * 4 * 32 * 1980


def quantised_section(bench):
    if "quantised" not in bench:
        return
    yield "## Quantised weights\n"
    yield ("The product of packed weights, and of weights that are widened first. Shares are of the read ceiling, by the "
           "packed bytes.\n")
    yield table(("layers", "format", "group", "rows", "packed", "share", "widened"),
                [(row["layers"], row["format"], row["group"], row["rows"], f"{row['packed_us']:.1f} µs",
                  share(row["packed_of_ceiling"]), f"{row['widened_us']:.1f} µs") for row in bench["quantised"]])


def predicted_section(bench):
    """Not measured: the bytes of quantised weights at the bandwidth that the same product of floats reached."""
    floats = {row["layers"]: row for row in bench.get("skinny", []) if row["rows"] == 1}
    streams = [row for row in bench.get("model", []) if (row["sequences"], row["tokens_each"], row["adapters"]) == (1, 1, 0)]
    if not floats or not streams:
        return
    yield "## Quantised weights, predicted\n"
    points = [(2e-6 * row["in"] * row["out"], row["together_us"]) for row in floats.values()]
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    start = mean_y - slope * mean_x
    yield (f"**Nothing here was measured.** In bf16 a product of one row took {start:.1f} µs and its bytes at "
           f"{1e3 / slope:,.0f} GB/s (a line through the products of one launch); the times of quantised weights are "
           "predicted by it. The second figure is the time of the instructions, if every cycle issues one: widening costs "
           "more of them than the memory hides, so **these kernels are bound by instructions**. *Step*: one sequence of 7B "
           "without adapters at a context of 512, by the larger figure; all but the products of its layers is as measured "
           "in bf16.\n")
    rows = []
    totals = dict.fromkeys(FORMS, 0.0)
    for layer, row in floats.items():
        weights = row["in"] * row["out"]
        times = {form: (start + slope * weights * bits / 8e6, start + weights * instructions / LANES_PER_US)
                 for form, (bits, instructions) in FORMS.items()}
        totals = {form: total + max(times[form]) for form, total in totals.items()}
        rows.append((layer, f"{row['together_us']:.1f} µs", *("{:.1f} / {:.1f} µs".format(*pair) for pair in times.values())))
    products = sum(row["together_us"] for row in floats.values())
    steps = [streams[0]["ms"]] + [streams[0]["ms"] + (total - products) * 32e-3 for total in totals.values()]
    rows.append(("step", *(f"{ms:.2f} ms" for ms in steps)))
    rows.append(("tokens/s", *(f"{1e3 / ms:.0f}" for ms in steps)))
    yield table(("one row", "bf16, measured", *FORMS), rows)


def handoff_section(handoff):
    if not handoff:
        return
    yield "## The hand-off to the processor\n"
    yield ("A step's dense products with the weights of one layer, and the LoRA of one adapter: resident, computed by the "
           "processor in stream order (`sync_free`), or with the host waiting for the GPU and for its worker "
           "(`explicit`). The model of width 64 has next to no work: its time is the hand-off's.\n")
    yield table(("width", "rows", "rank", "way", "step", "added for a layer", "launches", "waits of the host"),
                [(row["hidden"], row["rows"], row["rank"], row["way"], f"{row['step_ms']:.2f} ms",
                  f"{row['added_us_per_layer']:.1f} µs", row["launches"], row["host_waits"]) for row in handoff["cases"]])


def profile_section(profile):
    if not profile:
        return
    yield "## The performance model\n"
    yield (f"`loramux profile --device cuda` on a shape of 1.1B with random weights, {len(profile['adapters']['ranks'])} adapters. "
           f"Repetitions of a step differ by {100 * profile['repeat_error']:.1f} %; the engine takes "
           f"{1e6 * profile['between_steps_seconds']:.0f} µs between steps and sustained {profile['requests_per_second']:.0f} "
           "requests/s.\n")
    fitted = profile["mbgmv"]
    rows = [(what, fitted[key]) for what, key in (("all", "held_out"), ("prefill", "held_out_prefill"), ("decode", "held_out_decode"),
                                                  ("mixed", "held_out_mixed"))]
    rows.append(("of the engine, with factors", fitted["engine"]["held_out"]))
    yield table(("steps held out", "points", "R2", "mean error", "P90 error"),
                [(what, quality["points"], f"{quality['r2']:.4f}", f"{100 * quality['mean_error']:.1f} %",
                  f"{100 * quality['p90_error']:.1f} %") for what, quality in rows])
    yield table(("link", "latency", "bandwidth"),
                [(name.replace("_", " "), f"{1e6 * link['latency_seconds']:.0f} µs", f"{link['bytes_per_second'] / 1e9:.1f} GB/s")
                 for name, link in profile["links"].items()])


def tests_section(steps):
    yield "## Tests on the GPU\n"
    said = {"0": "passed", "skipped": "no time left", "124": "out of time"}
    yield table(("what", "name", "result", "seconds"),
                [(step["kind"], step["name"], said.get(step["status"], f"**failed** ({step['status']})"), step["seconds"])
                 for step in steps])


INTRODUCTION = """# Kernels on a GPU

What the kernels of the CUDA backend reach on real hardware, beside what its memory reaches in the same run. How they are
built, which needs no GPU, is on the page of the [compiled kernels](../design/gpu-kernels.md).

Commands: `lab/bench/gpu/hardware.sh pack`, then on the machine with the GPU `build/gpu_hardware/hardware.sh run RESULTS`,
then `lab/bench/gpu/hardware.sh page RESULTS/hardware.json`. Every case compares results with sums in double before it is
timed. Times are medians of nine.
"""


def page(source, target):
    raw = source.read_bytes()
    results = json.loads(raw)
    bench = results["bench"] or {}
    parts = [INTRODUCTION,
             f"\nRaw data: SHA-256 `{hashlib.sha256(raw).hexdigest()}`, made at commit `{results['commit'][:12]}`.\n"
             f"\n{results['gpu']}; {results['date']}. "
             f"The read ceiling is {bench.get('read_ceiling_gb_per_s', 0):,.0f} GB/s.\n"]
    sections = (memory_section, lora_section, attention_section, dense_section, model_section, predicted_section,
                quantised_section)
    for section in sections:
        parts += [f"\n{text}" for text in section(bench)]
    parts += [f"\n{text}" for text in handoff_section(results.get("handoff"))]
    parts += [f"\n{text}" for text in profile_section(results.get("profile"))]
    parts += [f"\n{text}" for text in tests_section(results["steps"])]
    target.write_text("".join(parts))
    return 0


def main():
    command, *arguments = sys.argv[1:] or [""]
    paths = [pathlib.Path(argument) for argument in arguments]
    if command == "find-cublas":
        print(find_cublas())
        return 0
    if command == "collect":
        return collect(*paths)
    if command == "page":
        return page(*paths)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
