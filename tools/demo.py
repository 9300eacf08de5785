#!/usr/bin/env python3
"""Starts `loramux serve` on the demo model with all its adapters, asks every adapter at the same time over HTTP, and
prints each answer with its time to first token (TTFT) and speed. Then it keeps serving, until Ctrl-C.

Python's standard library only. Ends with 1 if a request fails or more than one answer in ten is wrong.
"""
import argparse
import concurrent.futures
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build/demo/tools/loramux"), help="the loramux program")
    parser.add_argument("--port", type=int, default=8000, help="port to serve on (the next free one if it is taken)")
    parser.add_argument("--once", action="store_true", help="stop the server after the answers instead of keeping it running")
    return parser.parse_args()


def free_port(first):
    """`first`, or the next free port."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    sys.exit(f"demo: no free port from {first} to {first + 99}")


def wait_until_ready(server, port, deadline_seconds=120):
    deadline = time.monotonic() + deadline_seconds
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"demo: the server ended with status {server.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"demo: the server was not ready after {deadline_seconds} s")


def first_questions():
    """One held-out question for each adapter, and one for the base model."""
    questions = []
    for path in sorted((DEMO / "eval").glob("*.jsonl")):
        sample = json.loads(path.read_text(encoding="utf-8").split("\n", 1)[0])
        questions.append((path.stem, sample["prompt"], sample["answer"]))
    return questions


def demands(task):
    """What a request to that adapter has beside its question."""
    def read(name):
        return json.loads((DEMO / name).read_text(encoding="utf-8"))
    if task == "tools":
        return {"tools": read("tools.json")}
    if task == "schema":
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True,
                                                                           "schema": read("schema.json")}}}
    return {}


def shown(answer):
    """A call that the model writes, as a person would write it; another answer as it is."""
    if not answer.startswith("<tool_call>"):
        return answer
    call = json.loads(answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    return f"{call['name']}({json.dumps(call['arguments'])})"


def ask(port, model, prompt, more):
    """One streamed chat completion, with `more` fields. Returns (text, TTFT in s, tokens, tokens per s after the first as
    text). A call is `name(arguments)`. Its first piece comes behind its name, so its TTFT is later, and it has no speed."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "stream": True,
            "max_tokens": 100, "stream_options": {"include_usage": True}, **more}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    start = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{model}: HTTP {response.status}: {response.read().decode()}")
    text, calls, first, last, tokens = "", {}, None, start, 0
    for raw in response:
        line = raw.decode().strip()
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[len("data: "):])
        if "error" in event:
            raise RuntimeError(f"{model}: {event['error']['message']}")
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                function = call["function"]
                name, arguments = calls.get(call["index"], ("", ""))
                calls[call["index"]] = (name + (function.get("name") or ""), arguments + (function.get("arguments") or ""))
            if piece or choice["delta"].get("tool_calls"):
                last = time.monotonic()
                first = first or last
                text += piece
    text += ", ".join(f"{name}({arguments})" for name, arguments in calls.values())
    ttft = (first or last) - start
    timed = first and last > first and tokens > 1 and not calls
    speed = f"{(tokens - 1) / (last - first):.1f}" if timed else "-"
    return text, ttft, tokens, speed


def model_name(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/v1/models")
    cards = json.loads(connection.getresponse().read())["data"]
    return next(card["id"] for card in cards if card["parent"] is None)


def ask_everyone(port):
    base = model_name(port)
    questions = first_questions()
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        futures = [pool.submit(ask, port, base if task == "base" else task, prompt, demands(task))
                   for task, prompt, _ in questions]
        answers = [future.result() for future in futures]
    print(f"\n{'model':<12} {'question':<28} {'answer':<34} {'right':<6} {'TTFT ms':>8} {'tokens/s':>9}")
    right = 0
    for (task, prompt, expected), (text, ttft, _, speed) in zip(questions, answers):
        right += text == shown(expected)
        mark = "yes" if text == shown(expected) else "NO"
        print(f"{base if task == 'base' else task:<12} {prompt[:28]:<28} {text[:34]:<34} {mark:<6} {ttft * 1000:>8.1f} {speed:>9}")
    print(f"\n{right} of {len(questions)} right; all were asked at the same time and shared every batch.")
    return right * 10 >= len(questions) * 9


def main():
    arguments = parse_arguments()
    port = free_port(arguments.port)
    command = [arguments.binary, "serve", str(DEMO / "model"), "--served-model-name", "demo", "--adapter-dir",
               str(DEMO / "adapters"), "--tool-call-parser", "tools=hermes", "--port", str(port),
               "--device-memory", "256MiB", "--host-memory", "64MiB"]
    print("$", " ".join(command), flush=True)
    server = subprocess.Popen(command)
    try:
        wait_until_ready(server, port)
        good = ask_everyone(port)
        if not arguments.once:
            print("\nThe server keeps running. Try this in another terminal:\n")
            print(f"  curl http://127.0.0.1:{port}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
                  "    -d '{\"model\": \"reverse\", \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}'\n")
            print("Press Ctrl-C to stop the server.", flush=True)
            server.wait()
    except KeyboardInterrupt:
        good = True
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(timeout=60)
    return 0 if good and status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
