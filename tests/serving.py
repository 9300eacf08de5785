"""What the end-to-end tests share: the demo's questions and `loramux serve` as a process. Standard library only."""
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
LORAMUX = None   # path of the program, set by run_tests


def run_tests():
    """The main of every test file: FILE PATH_OF_LORAMUX [unittest arguments]."""
    global LORAMUX
    LORAMUX = sys.argv.pop(1)
    unittest.main(module="__main__", verbosity=2)


def questions(per_task):
    """(model, prompt, answer), tasks interleaved; the base model is called "demo"."""
    tasks = [[("demo" if path.stem == "base" else path.stem, s["prompt"], s["answer"])
              for s in map(json.loads, path.read_text(encoding="utf-8").splitlines()[:per_task])]
             for path in sorted((DEMO / "eval").glob("*.jsonl"))]
    return [question for group in zip(*tasks) for question in group]


def with_preloaded(program, library):
    """The environment in which `program` finds the functions of `library` before the system's; before these, those of the
    sanitizer that it was built with, which insist on being the first."""
    linked = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    runtimes = re.findall(r"=> (\S*/lib[at]san\.so\S*)", linked)
    return {**os.environ, "LD_PRELOAD": ":".join([*runtimes, str(library)])}


class Server:
    """`loramux serve` on the demo, on a free port, until `stop`."""

    def __init__(self, *flags, adapter_dir=DEMO / "adapters"):
        self.start([LORAMUX, "serve", str(DEMO / "model"), "--served-model-name", "demo", "--adapter-dir",
                    str(adapter_dir), "--port", "0", *flags])

    @classmethod
    def run(cls, command, **more):
        """A server by a command line of its own; `more` goes to Popen."""
        server = cls.__new__(cls)
        server.start(command, **more)
        return server

    def start(self, command, **more):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stderr=self.log, **more)
        atexit.register(self.process.kill)   # a failed test stops nothing, and ctest waits for whoever holds its pipe
        deadline = time.monotonic() + 120
        self.port = None
        while self.port is None:
            match = re.search(r"ready: https?://[\d.]+:(\d+)", self.text())
            if match:
                self.port = int(match.group(1))
            elif self.process.poll() is not None or time.monotonic() > deadline:
                text = self.text()
                self.log.close()
                raise RuntimeError(f"the server did not start ({self.process.poll()}):\n{text}")
            else:
                time.sleep(0.05)

    def text(self):
        # Not seek and read: the server writes at the same file offset.
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")

    def stop(self, timeout=60):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=timeout)
        if status != 0:
            raise RuntimeError(f"the server ended with {status}:\n{self.text()}")
        text = self.text()
        self.log.close()
        return text

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        payload = response.read()
        connection.close()
        return response.status, payload

    def json(self, method, path, body=None):
        status, payload = self.request(method, path, body)
        return status, json.loads(payload)

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

    def wait_until_busy(self, requests, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            load = self.json("GET", "/health")[1]
            if load["running"] + load["waiting"] >= requests:
                return
        raise AssertionError(f"expected {requests} requests, found {load}")

    def wait_idle(self, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            load = self.json("GET", "/health")[1]
            if load.get("running", 0) == 0 and load.get("waiting", 0) == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"still busy: {load}")
