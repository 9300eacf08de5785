"""What the end-to-end tests share: the demo's questions and `loramux serve` as a process. Standard library only.

No test depends on how fast the machine is. A test waits for a condition, with PATIENCE as the limit. Load that must be in
flight is in flight by construction: it lasts until the test ends it.
"""
import atexit
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEMO = ROOT / "demo"
CLIENTS = ROOT / "build/clients"   # where tests/clients/install.sh installs the clients of others
# The demo's own template knows no calls of tools, and the demo's models mind long system prompts. This one leaves system
# prompts out and writes the result of a tool as words of the user. The base model repeats what it was told last: asked for
# DOUBLE_21 it calls the tool `double`, and then says its result.
TOOLS_TEMPLATE = """{{- bos_token -}}
{%- for message in messages if message['role'] != 'system' -%}
{{- '<|' + {'tool': 'user'}.get(message['role'], message['role']) + '|>' + (message['content'] or '') + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""
DOUBLE_21 = "<|python_tag|>double.call(number=21)"   # what --tool-call-parser llama3_json reads as a call
LORAMUX = None   # path of the program, set by run_tests
PATIENCE = 300   # seconds: the limit of every wait, generous so that a slow or busy machine does not reach it


def run_tests():
    """The main of every test file: FILE PATH_OF_LORAMUX [unittest arguments]."""
    global LORAMUX
    LORAMUX = sys.argv.pop(1)
    unittest.main(module="__main__", verbosity=2)


def use_clients(name):
    """Runs the test file again with the Python of build/clients/NAME, if this is not it. Call it before the clients are
    imported."""
    home = CLIENTS / name
    if not (home / "bin/python").exists():
        sys.exit(f"{home} is missing: run tests/clients/install.sh")
    if pathlib.Path(sys.prefix).resolve() != home.resolve():
        # Some clients leave their sockets to the garbage collector.
        os.execv(home / "bin/python", [str(home / "bin/python"), "-W", "ignore::ResourceWarning", *sys.argv])


def run_node_tests(file, server, *arguments):
    """Runs the tests of tests/FILE with Node, with the port of the server, a question for each model and `arguments`. Returns
    how many passed. All must pass and leave the server idle, which this stops."""
    asked = [{"model": model, "prompt": prompt, "answer": answer} for model, prompt, answer in questions(1)]
    run = subprocess.run(["node", "--test-reporter=tap", str(ROOT / "tests" / file), str(server.port), json.dumps(asked),
                          *arguments], cwd=CLIENTS, timeout=1800, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(run.stdout)
    assert run.returncode == 0, f"node ended with {run.returncode}"
    server.wait_idle()
    server.stop()
    return int(re.search(r"^# pass (\d+)$", run.stdout, re.MULTILINE).group(1))


def wait_for(condition, what, seconds=PATIENCE):
    """Asks `condition` every 20 ms until its result is true, and returns that. `what` names it in the error."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.02)


def questions(per_task):
    """Returns (model, prompt, answer) triples with the tasks interleaved. The base model is called "demo"."""
    tasks = [[("demo" if path.stem == "base" else path.stem, s["prompt"], s["answer"])
              for s in map(json.loads, path.read_text(encoding="utf-8").splitlines()[:per_task])]
             for path in sorted((DEMO / "eval").glob("*.jsonl"))]
    return [question for group in zip(*tasks) for question in group]


def with_preloaded(program, library):
    """The environment in which `program` finds the functions of `library` before those of the system. The runtimes of the
    sanitizers that the program was built with insist on being the first, so they stand before the library."""
    linked = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    runtimes = re.findall(r"=> (\S*/lib[at]san\.so\S*)", linked)
    return {**os.environ, "LD_PRELOAD": ":".join([*runtimes, str(library)])}


class Server:
    """`loramux serve` on the demo, on a free port, until `stop`."""
    READY = r"ready: https?://[\d.]+:(\d+)"   # what it says when it serves, with its port

    def __init__(self, *flags, adapter_dir=DEMO / "adapters"):
        self.start([LORAMUX, "serve", str(DEMO / "model"), "--served-model-name", "demo", "--adapter-dir",
                    str(adapter_dir), "--port", "0", *flags])

    @classmethod
    def run(cls, command, **more):
        """A server with a command line of its own; `more` goes to Popen."""
        server = cls.__new__(cls)
        server.start(command, **more)
        return server

    def start(self, command, **more):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stderr=self.log, **more)
        atexit.register(self.process.kill)   # a failed test stops nothing, and ctest waits for each process with its pipe
        deadline = time.monotonic() + PATIENCE
        self.port = None
        while self.port is None:
            match = re.search(self.READY, self.text())
            if match:
                self.port = int(match.group(1))
            elif self.process.poll() is not None or time.monotonic() > deadline:
                text = self.text()
                self.log.close()
                raise RuntimeError(f"the server did not start ({self.process.poll()}):\n{text}")
            else:
                time.sleep(0.02)

    def text(self):
        # pread, because the server writes at the same file offset.
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")

    def stop(self, timeout=PATIENCE):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=timeout)
        if status != 0:
            raise RuntimeError(f"the server ended with {status}:\n{self.text()}")
        text = self.text()
        self.log.close()
        return text

    def request(self, method, path, body=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json", **dict(headers)})
        response = connection.getresponse()
        payload = response.read()
        connection.close()
        return response.status, payload

    def json(self, method, path, body=None, headers=()):
        status, payload = self.request(method, path, body, *([headers] if headers else []))
        try:
            return status, json.loads(payload)
        except ValueError:
            raise AssertionError(f"{method} {path}: {status} without JSON: {payload[:300]!r}") from None

    def chat(self, model, prompt, **more):
        return self.json("POST", "/v1/chat/completions",
                         {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0,
                          "max_tokens": 100, **more})

    def stream(self, path, body):
        """The events of a stream, without [DONE] (which must be the last)."""
        status, payload = self.request("POST", path, {**body, "stream": True})
        assert status == 200, payload
        lines = [line for line in payload.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines), lines
        assert lines[-1] == "data: [DONE]", lines[-1]
        return [json.loads(line[len("data: "):]) for line in lines[:-1]]

    def metric(self, name, **labels):
        """The sum of a metric's series that have these labels; None if there are none."""
        values = []
        for line in self.request("GET", "/metrics")[1].decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series.split("{")[0] == name and all(f'{key}="{wanted}"' in series for key, wanted in labels.items()):
                values.append(float(value))
        return sum(values) if values else None

    def requests_now(self):
        """The requests that run or wait now."""
        health = self.json("GET", "/health")[1]
        return health.get("running", 0) + health.get("waiting", 0)

    def wait_until_busy(self, requests):
        wait_for(lambda: self.requests_now() >= requests, lambda: f"expected {requests} requests, found {self.requests_now()}")

    def wait_idle(self):
        wait_for(lambda: self.requests_now() == 0, lambda: f"an idle server, found {self.requests_now()} requests")


class Blocker:
    """Holds the only seat of a server (--max-num-seqs 1) until `release`. It asks for so many sequences, one after the other,
    that no test sees their end. Their priority is the highest, so every other request waits."""
    SEQUENCES = 100

    def __init__(self, server, model="demo"):
        self.server = server
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "n": self.SEQUENCES, "max_tokens": 800,
                "ignore_eos": True, "priority": -10}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        server.wait_until_busy(self.SEQUENCES)

    def release(self):
        """Hangs up, which cancels the sequences."""
        self.connection.close()
