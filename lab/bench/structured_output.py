#!/usr/bin/env python3
"""What structured output costs: throughput of concurrent answers with and without a JSON schema, and the first use of a
schema. It starts a server of its own and alternates the two loads, so that whatever else the machine does meets both. The CPU
time of the server shows the cost where the machine is busy. Standard library only.

Usage: structured_output.py PATH_OF_LORAMUX [--model DIR] [--streams 16] [--tokens 200] [--rounds 5]
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ITEM = {"type": "object", "properties": {"id": {"type": "integer", "minimum": 0}, "name": {"type": "string"},
                                         "kind": {"enum": ["alpha", "beta", "gamma"]}, "ok": {"type": "boolean"}},
        "required": ["id", "name", "kind", "ok"], "additionalProperties": False}
ENDLESS = {"type": "array", "items": ITEM, "minItems": 100_000}   # so that every answer has `--tokens` tokens


def large_schema(number, kilobytes=10):
    """A schema of that size; each number gives another one."""
    properties = {}
    while len(json.dumps(properties)) < kilobytes * 1024 - 200:
        properties[f"part_{number}_{len(properties)}"] = {**ITEM, "description": "one part of a document"}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class Server:
    def __init__(self, program, model):
        self.process = subprocess.Popen([program, "serve", model, "--served-model-name", "m", "--port", "0"],
                                        stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "ready: http://" in line:
                self.port = int(line.split("http://")[1].split(" ")[0].rsplit(":", 1)[1])
                break
        else:
            raise SystemExit("the server did not start")

    def ask(self, seed, tokens, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"model": "m", "prompt": "begin", "max_tokens": tokens, "seed": seed, "ignore_eos": True, **more}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if answer["usage"]["completion_tokens"] != tokens:
            raise SystemExit(f"expected {tokens} tokens, found {answer}")

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, streams, tokens, **more):
        """(tokens per second, microseconds of CPU a token) of that many answers at the same time."""
        cpu, began = self.cpu_seconds(), time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            list(pool.map(lambda seed: self.ask(seed, tokens, **more), range(streams)))
        count = streams * tokens
        return count / (time.monotonic() - began), (self.cpu_seconds() - cpu) / count * 1e6

    def first_use(self, number):
        """Milliseconds that an answer of one token takes longer with a new schema."""
        def timed(**more):
            began = time.monotonic()
            self.ask(1, 1, **more)
            return (time.monotonic() - began) * 1e3
        plain = timed()
        return timed(guided_json=large_schema(number)) - plain


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--model", default=str(ROOT / "demo/model"))
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    server = Server(options.program, options.model)
    server.load(options.streams, options.tokens)
    server.load(options.streams, options.tokens, guided_json=ENDLESS)
    rounds = [(server.load(options.streams, options.tokens),
               server.load(options.streams, options.tokens, guided_json=ENDLESS)) for _ in range(options.rounds)]
    free, constrained = ([statistics.median(one[kind][value] for one in rounds) for value in (0, 1)] for kind in (0, 1))
    first = sorted(server.first_use(number) for number in range(20))
    server.process.terminate()
    server.process.wait()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; {options.streams} streams, medians of "
          f"{options.rounds} rounds")
    print(f"free:        {free[0]:8.0f} tokens/s  {free[1]:6.1f} us of CPU a token")
    print(f"constrained: {constrained[0]:8.0f} tokens/s  {constrained[1]:6.1f} us of CPU a token")
    print(f"ratio: throughput {constrained[0] / free[0]:.3f}, CPU {free[1] / constrained[1]:.3f}; by round "
          f"{', '.join(f'{c[0] / f[0]:.2f}' for f, c in rounds)}")
    print(f"first use of a schema of {len(json.dumps(large_schema(0))) / 1024:.1f} KB: median {first[10]:.1f} ms, "
          f"most {first[-1]:.1f} ms more than without")


if __name__ == "__main__":
    main()
