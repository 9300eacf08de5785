#!/usr/bin/env python3
"""A soak of the real server: adapters are loaded, reloaded and unloaded under load, clients vanish in mid-stream, weight
files are damaged, the disk of the journal fills up, and the process is killed and started again. Every answer must be the
one that the adapter gave alone; what was acknowledged must survive; memory must not grow. Standard library only.

Usage: soak_test.py PATH_OF_LORAMUX [--seconds N] [unittest arguments]     (600 for the long form)
"""
import collections
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import serving
from serving import DEMO, Server, questions

SECONDS = 25
NAMES = ["blue", "green", "red"]         # that operators load, reload and unload
CLIENTS = 8
GROWTH_ALLOWED = 1.10                    # of resident memory, from the mark to the end


class Truth:
    """What one name may stand for now: a set of tasks (None: not loaded), two of them while an operation is under way."""

    def __init__(self):
        self.lock = threading.Lock()
        self.history = [frozenset([None])]

    def change(self, states):
        with self.lock:
            self.history.append(frozenset(states))

    def now(self):
        with self.lock:
            return self.history[-1]

    def mark(self):
        with self.lock:
            return len(self.history) - 1

    def since(self, mark):
        with self.lock:
            return frozenset(itertools.chain.from_iterable(self.history[mark:]))


class SmallDisk:
    """A file system of its own for the journal, that can be filled; where mounting is not allowed, a plain folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "loramux-soak", str(folder)],
                              capture_output=True, text=True)
        self.mounted = done.returncode == 0
        if not self.mounted:
            print(f"soak: the disk is not filled, mounting one is not allowed: {done.stderr.strip()}", file=sys.stderr)

    def fill(self):
        if self.mounted:
            with open(self.folder / "ballast", "wb", buffering=0) as ballast:
                for size in (1 << 16, 1):   # to the last byte
                    try:
                        while ballast.write(b"x" * size) == size:
                            pass
                    except OSError:
                        pass

    def relieve(self):
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)


class Soak(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="loramux-soak-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.disk = SmallDisk(self.folder / "state")
        self.addCleanup(self.disk.close)
        self.tasks = sorted(path.name for path in (DEMO / "adapters").iterdir())
        # Weights that get damaged, in a folder of their own.
        self.fragile = self.folder / "adapters" / "fragile"
        shutil.copytree(DEMO / "adapters" / "upper", self.fragile)
        with socket.socket() as probe:   # the same port after each restart
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.seed = random.SystemRandom().randrange(1 << 32)
        print(f"soak: {SECONDS} s, seed {self.seed}", file=sys.stderr)
        self.truth = {name: Truth() for name in NAMES}
        self.restarts = 0
        self.up = threading.Event()      # clients wait while the server is down
        self.gate = threading.Condition()
        self.operating = 0               # operations under way, guarded by the gate
        self.damaging = threading.Lock() # while the disk or the weights are not as they should be
        self.stop = threading.Event()
        self.count = collections.Counter()
        self.failures = []
        self.threads = []

    # ---- The server ----

    def start(self):
        self.server = Server.run(self.command())

    def command(self):
        return [serving.LORAMUX, "serve", str(DEMO / "model"), "--served-model-name", "demo", "--port", str(self.port),
                "--lora-modules", *(f"{task}={DEMO / 'adapters' / task}" for task in self.tasks),
                f"fragile={self.fragile}", "--device-memory", "4MiB", "--host-memory", "2MiB", "--enable-runtime-lora",
                "--insecure-no-admin-key", "--allowed-adapter-root", str(DEMO / "adapters"), "--state-dir",
                str(self.disk.folder)]

    def kill_and_restart(self):
        with self.damaging:
            self.check_alive()
            with self.gate:
                self.up.clear()
                self.restarts += 1
            self.server.process.send_signal(signal.SIGKILL)
            self.server.process.wait()
            self.server.log.close()
            with self.gate:              # none may reach the next process unseen
                self.gate.wait_for(lambda: self.operating == 0)
            self.start()
            self.check_registry()
        self.up.set()

    def check_alive(self):
        if self.server.process.poll() is not None:
            self.fail_later(f"the server ended by itself with {self.server.process.returncode}: {self.server.text()[-3000:]}")

    def check_registry(self):
        """What was acknowledged is there; an operation that was cut off took place or did not."""
        roots = {card["id"]: card["root"] for card in self.server.json("GET", "/v1/models")[1]["data"]}
        for name, truth in self.truth.items():
            found = pathlib.Path(roots[name]).name if name in roots else None
            if found not in truth.now():
                self.fail_later(f"after restart {self.restarts}: '{name}' is {found}, acknowledged was "
                                f"{sorted(map(str, truth.now()))}")
            truth.change([found])

    def fail_later(self, message):
        self.failures.append(message)

    # ---- Those who use it ----

    def ask(self, model, prompt, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0,
                    "max_tokens": 60, **more}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if more.get("stream"):
                response.read(random.randrange(1, 400) if response.status == 200 else None)   # and is gone
                return response.status, None
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def make_oracle(self):
        """Every adapter's answer to every prompt, alone."""
        self.prompts = [prompt for _, prompt, _ in questions(1)][:6]
        self.oracle = {}
        for task, prompt in itertools.product(self.tasks, self.prompts):
            status, answer = self.ask(task, prompt)
            self.assertEqual(status, 200, answer)
            self.oracle[task, prompt] = answer["choices"][0]["message"]["content"]
        different = len({tuple(self.oracle[task, p] for p in self.prompts) for task in self.tasks})
        self.assertEqual(different, len(self.tasks), "adapters must be told apart by their answers")

    def judge(self, model, prompt, allowed, status, answer):
        if status == 200:
            text = answer["choices"][0]["message"]["content"]
            if not any(task is not None and self.oracle[task, prompt] == text for task in allowed):
                self.fail_later(f"{model}: '{prompt}' -> '{text}', which is none of {sorted(map(str, allowed))}")
            self.count["answers"] += 1
        elif status == 404 and None in allowed:
            self.count["not loaded"] += 1
        elif model == "fragile" and status in (400, 500, 503):
            self.count["damaged weights refused"] += 1
        else:
            self.fail_later(f"{model}: status {status}, {answer}; allowed {sorted(map(str, allowed))}")

    def client(self, seed):
        chance = random.Random(seed)
        while not self.stop.is_set():
            self.up.wait()
            model = chance.choice(self.tasks + NAMES * 4 + ["fragile"] * 2)
            prompt = chance.choice(self.prompts)
            truth = self.truth.get(model)
            mark, restarts = truth.mark() if truth else 0, self.restarts
            try:
                if chance.random() < 0.15:
                    status, _ = self.ask(model, prompt, stream=True, max_tokens=200, ignore_eos=True)
                    missing = status == 404 and truth and None in truth.since(mark)
                    if status != 200 and not missing and model != "fragile":
                        self.fail_later(f"{model}: a stream began with status {status}")
                    self.count["vanished"] += status == 200
                    continue
                status, answer = self.ask(model, prompt)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if restarts == self.restarts:
                    self.fail_later(f"{model}: {error!r} without a restart")
                self.count["cut off by a kill"] += 1
                time.sleep(0.02)
                continue
            fixed = "upper" if model == "fragile" else model
            self.judge(model, prompt, truth.since(mark) if truth else [fixed], status, answer)

    def operate(self, name, seed):
        """Loads, reloads and unloads one name."""
        chance = random.Random(seed)
        while not self.stop.is_set():
            time.sleep(chance.uniform(0, 0.15))
            self.up.wait()
            with self.gate:
                if not self.up.is_set():
                    continue
                self.operating += 1
            try:
                self.operate_once(name, chance)
            finally:
                with self.gate:
                    self.operating -= 1
                    self.gate.notify_all()

    def operate_once(self, name, chance):
        truth, restarts = self.truth[name], self.restarts
        (current,) = truth.now()
        wanted = chance.choice([task for task in self.tasks if task != current] + ([None] * 4 if current else []))
        truth.change([current, wanted])
        try:
            status, reply = self.change(name, current, wanted)
        except (OSError, http.client.HTTPException) as error:
            if restarts == self.restarts:
                self.fail_later(f"operation on {name}: {error!r} without a restart")
            return                       # after a kill check_registry finds out what became of it
        if status == 200:
            truth.change([wanted])
            self.count["operations"] += 1
        elif status in (500, 503, 507) and self.disk.mounted:
            truth.change([current])      # the journal could not be written: nothing has changed
            self.count["operations refused"] += 1
        else:
            self.fail_later(f"{name}: {current} -> {wanted}: {status} {reply}")

    def change(self, name, current, wanted):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            path, body = "/v1/unload_lora_adapter", {"lora_name": name}
            if wanted is not None:
                path = "/v1/load_lora_adapter"
                body |= {"lora_path": str(DEMO / "adapters" / wanted), "load_inplace": current is not None}
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def damage(self, seed):
        """Fills the disk for a while; truncates weights under the server, and mends them."""
        chance = random.Random(seed)
        weights = self.fragile / "adapter_model.safetensors"
        whole = weights.read_bytes()
        while not self.stop.wait(chance.uniform(0.3, 1.5)):
            with self.damaging:
                if chance.random() < 0.5:
                    self.disk.fill()
                    self.stop.wait(chance.uniform(0.1, 0.5))
                    self.disk.relieve()
                    self.count["disk filled"] += 1
                else:
                    os.truncate(weights, chance.randrange(len(whole)))
                    self.stop.wait(chance.uniform(0.1, 0.5))
                    weights.write_bytes(whole)
                    self.count["weights damaged"] += 1

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024

    def run_threads(self):
        jobs = [(self.client, (self.seed + i,)) for i in range(CLIENTS)]
        jobs += [(self.operate, (name, self.seed + 100 + i)) for i, name in enumerate(NAMES)]
        jobs.append((self.damage, (self.seed + 200,)))
        self.threads = [threading.Thread(target=self.guard, args=job, daemon=True) for job in jobs]
        for thread in self.threads:
            thread.start()

    def guard(self, job, arguments):
        try:
            job(*arguments)
        except Exception as error:   # a defect of this test must not pass as silence
            self.fail_later(f"{job.__name__}: {error!r}")

    def test_soak(self):
        self.start()
        self.up.set()
        self.make_oracle()
        chance = random.Random(self.seed + 300)
        begin = time.monotonic()
        self.run_threads()
        while time.monotonic() - begin < SECONDS * 0.4 and not self.failures:
            time.sleep(chance.uniform(0.5, 3.0))
            self.kill_and_restart()
        # The last process is not killed: its memory is watched. A minute, or a third of what is left, to settle.
        left = begin + SECONDS - time.monotonic()
        time.sleep(max(0.0, min(60.0, left / 3)))
        settled = self.resident_bytes()
        while time.monotonic() - begin < SECONDS and not self.failures:
            time.sleep(0.2)
        grown = self.resident_bytes() / settled
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=300)
        self.assertFalse(any(thread.is_alive() for thread in self.threads), "a request or an operation hangs")
        print(f"soak: {dict(self.count)}, {self.restarts} kills, resident memory {settled / 2**20:.1f} MiB x {grown:.3f}",
              file=sys.stderr)
        self.check_alive()
        self.server.wait_idle()
        for prompt in self.prompts:      # the weights are whole again, and so are the answers
            status, answer = self.ask("fragile", prompt)
            self.judge("upper", prompt, ["upper"], status, answer)
        log = self.server.stop()         # checks pages, residency and schedule, and exits with 0
        self.assertEqual(self.failures[:5], [], f"{len(self.failures)} failures")
        self.assertRegex("\n".join(log.splitlines()[-5:]), r"KV pages in use: 0\b")
        self.assertGreater(self.restarts, 2)
        for kind in ("answers", "not loaded", "vanished", "operations", "weights damaged"):
            self.assertGreater(self.count[kind], 0, kind)
        if "asan" not in serving.LORAMUX and "tsan" not in serving.LORAMUX:   # their allocators keep what was freed
            self.assertLess(grown, GROWTH_ALLOWED)


if __name__ == "__main__":
    if "--seconds" in sys.argv:
        at = sys.argv.index("--seconds")
        SECONDS = float(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    serving.run_tests()
