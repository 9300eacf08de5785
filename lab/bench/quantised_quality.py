#!/usr/bin/env python3
"""What quantised weights cost in quality: one row for each format.

    lab/bench/quantised_quality.py build/release/tools/loramux [--also NAME=MODEL ...] [--output FILE.json]

On the demo model: `loramux quantize` gives perplexity and KL divergence against the original, on held-out questions with
their answers; then a server answers the held-out questions of every adapter, and the share of exact answers is counted.
--also measures a model in another format of the same weights (a folder or a GGUF file). --model measures another model,
without adapters.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "demo"


def questions():
    """(adapter or None, prompt, expected answer) of every held-out question."""
    for path in sorted((DEMO / "eval").glob("*.jsonl")):
        if path.stem in ("schema", "tools"):  # their answers need grammars and tools in the request
            continue
        for line in path.read_text().splitlines():
            row = json.loads(line)
            yield None if path.stem == "base" else path.stem, row["prompt"], row["answer"]


def serve(program, model, weights):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = subprocess.Popen([program, "serve", model, "--adapter-dir", DEMO / "adapters", "--port", str(port), "--weights",
                               weights, "--served-model-name", "base", "--log-level", "error", "--device", "cpu"],
                              stdout=subprocess.DEVNULL)
    for _ in range(400):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return server, port
        except OSError:
            time.sleep(0.05)
    sys.exit("the server did not start")


def answer(port, adapter, prompt, tokens):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": adapter or "base", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens,
            "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())["choices"][0]["message"]["content"]


def exact_share(program, model, weights):
    server, port = serve(program, model, weights)
    try:
        asked = [q for q in questions() if q[0] is not None]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            got = list(pool.map(lambda q: answer(port, q[0], q[1], 96).strip(), asked))
    finally:
        server.terminate()
        server.wait()
    return sum(a == q[2].strip() for a, q in zip(got, asked)) / len(asked), len(asked)


def error_of(program, model, other, text, folder):
    """The command's JSON: of `other` against `model`, or, if it is a format, of the model quantised to it."""
    command = [program, "quantize", model, "--text", text, "--tokens", "8192", "--json"]
    command += ["--weights", other, "--output", folder / other] if other in ("q8", "q4") else ["--compare", other]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, default=DEMO / "model")
    parser.add_argument("--text", type=pathlib.Path, help="instead of the demo's held-out questions")
    parser.add_argument("--also", action="append", default=[], help="NAME=MODEL")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    demo = args.model == DEMO / "model"
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        text = args.text
        if text is None:
            text = folder / "text"
            text.write_text("".join(prompt + " " + expected + "\n" for _, prompt, expected in questions()))
        also = dict(item.split("=", 1) for item in args.also)
        for name in ["as stored", "q8", "q4", *also]:
            row = {"format": name}
            if name != "as stored":
                row |= error_of(args.program, args.model, also.get(name, name), text, folder)
                row.pop("model")
            if demo:
                stored = also.get(name, args.model)
                row["exact"], row["questions"] = exact_share(args.program, stored, name if name in ("q8", "q4") else "auto")
            rows.append(row)
            print(json.dumps(row), flush=True)
    print("| format | memory | perplexity | KL divergence, mean | 99 % below | same likeliest token | exact answers |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        measured = "perplexity_after" in row
        cells = [f"{row['bytes_after'] / 2**20:.2f} MiB", f"{row['perplexity_after']:.4f} "
                 f"({100 * (row['perplexity_after'] / row['perplexity_before'] - 1):+.2f} %)",
                 f"{row['kl_divergence_mean']:.6f}", f"{row['kl_divergence_p99']:.6f}",
                 f"{100 * row['same_top']:.2f} %"] if measured else ["", "", "", "", ""]
        exact = f"{100 * row['exact']:.1f} % of {row['questions']}" if "exact" in row else ""
        print("| " + " | ".join([row["format"], *cells, exact]) + " |")
    if args.output:
        args.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
