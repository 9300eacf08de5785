#!/usr/bin/env python3
"""The effect of a flood of requests on another tenant, measured on the real server in wall-clock time.

    lab/bench/fairness.py build/release/tools/loramux

Starts `loramux serve` on the demo for each policy (none, vtc). Tenant B sends short streamed chats at a steady rate. In
the baseline, tenant A sends as many of the same kind; in the flood, A sends 20 times as many, with long outputs. Prints
P50 and P99 of B's time to first token, and the factor by which the flood raises them. Standard library only.
"""
import argparse
import asyncio
import json
import pathlib
import random
import resource
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests"))
import serving


async def chat(port, tenant, max_tokens, number, times, deadline):
    """Sends one streamed chat and appends its time to first token, in seconds, to `times`."""
    body = json.dumps({"model": "demo", "stream": True, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0,
                       "messages": [{"role": "user", "content": f"tell me about the number {number}"}]}).encode()
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"x-gateway-inference-fairness-id: " + tenant.encode() +
                     b"\r\nConnection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
        status = await reader.readline()
        assert b" 200 " in status, status
        seen = b""
        while b'"content":"' not in seen.replace(b'"content":""', b""):
            data = await reader.read(65536)
            assert data, seen
            seen += data
        times.append(time.monotonic() - start)
        while await asyncio.wait_for(reader.read(65536), max(0.01, deadline - time.monotonic())):
            pass
    except asyncio.TimeoutError:
        pass   # the flood is cut off at the end
    finally:
        writer.close()


async def send(port, tenant, rate, max_tokens, seconds, seed, times, grace):
    """Sends Poisson arrivals for `seconds`, then waits up to `grace` more seconds for the answers."""
    prng = random.Random(seed)
    begin = time.monotonic()
    at, tasks = 0.0, []
    while (at := at + prng.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0, begin + at - time.monotonic()))
        tasks.append(asyncio.create_task(chat(port, tenant, max_tokens, len(tasks), times, begin + seconds + grace)))
    if grace == 0:
        for task in tasks:
            task.cancel()
    failed = [r for r in await asyncio.gather(*tasks, return_exceptions=True)
              if isinstance(r, Exception) and not isinstance(r, asyncio.CancelledError)]
    return len(tasks), failed


async def scenario(port, rate_a, tokens_a, rate_b, seconds):
    times_b = []
    a = asyncio.create_task(send(port, "a", rate_a, tokens_a, seconds + 2, 1, [], 0))
    sent, failed = await send(port, "b", rate_b, 8, seconds, 2, times_b, 120)
    await a
    if failed:
        raise failed[0]
    return sorted(times_b), sent


def percentile(ordered, q):
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loramux")
    parser.add_argument("--rate", type=float, default=25, help="B's requests a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--max-num-seqs", default="16")
    parser.add_argument("--flood-tokens", type=int, default=100)
    options = parser.parse_args()
    serving.LORAMUX = options.loramux
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)   # the flood's connections
    print("| policy | requests of B | baseline P50 | P99 | flood P50 | P99 | P99 rises |\n|---|---|---|---|---|---|---|")
    for policy in ("none", "vtc"):
        results = []
        for factor, tokens in ((1, 8), (20, options.flood_tokens)):
            server = serving.Server("--fairness", policy, "--max-num-seqs", options.max_num_seqs, "--log-level", "info",
                                    "--max-connections", "32768", "--max-queued-requests", "0",
                                    "--trust-fairness-header")
            try:
                times, sent = asyncio.run(scenario(server.port, options.rate * factor, tokens, options.rate, options.seconds))
            finally:
                server.stop()
            assert len(times) == sent, (len(times), sent)
            results.append(times)
        base, flood = results
        print(f"| {policy} | {len(base)} | {percentile(base, .5):.0f} ms | {percentile(base, .99):.0f} ms | "
              f"{percentile(flood, .5):.0f} ms | {percentile(flood, .99):.0f} ms | "
              f"{percentile(flood, .99) / percentile(base, .99):.1f} times |", flush=True)


if __name__ == "__main__":
    main()
