#!/usr/bin/env python3
"""A soak of the real server: adapters are loaded, uploaded, reloaded, pinned and unloaded under load, clients vanish in mid-stream,
weight files are damaged, the disk of the journal fills up, the disks of journal and weights err (disk_faults.c), and the
process is killed and started again; no upload is left over. Every answer must be the one that the adapter gave alone. Acknowledged operations must
survive. A refusal must name its reason, and the reason must hold. Memory must not grow. Standard library only.

Usage: soak_test.py PATH_OF_LORAMUX --disk-faults LIBRARY [--seconds N] [unittest arguments]   (600 for the long form)
"""
import collections
import contextlib
import hashlib
import http.client
import io
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest

import serving
from serving import DEMO, PATIENCE, Server, questions, wait_for

SECONDS = 25.0                           # at least; longer where a slow machine needs it for MIN_ANSWERS and coverage
DISK_FAULTS = None                       # path of the library
NAMES = ["blue", "green", "red"]         # operators load, reload, pin and unload these
CLIENTS = 8
PROMPTS = 6
MIN_ANSWERS = 50                         # before memory is first measured, and again until the end
GROWTH_ALLOWED = 1.10                    # of resident memory, from the first measurement to the last
EIO, ENOSPC = "Input/output error", "No space left on device"
# Refusals for want of memory: of requests beside pins, and of pins beside requests.
NO_ROOM = ["device memory holds at most", "was pinned in the memory"]
NOT_PINNED = ["pages would stay free for requests", "cannot be pinned now"]

# The state of a loaded name: its task, and whether it is pinned. None stands for a name that is not loaded.
Loaded = collections.namedtuple("Loaded", "task pinned")


def weights_digest(folder):
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def sanitized():
    return "asan" in serving.LORAMUX or "tsan" in serving.LORAMUX


class Truth:
    """The states that one name may be in: one, or two while an operation is under way."""

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
    """A small file system for the journal, which can be filled. Where mounting is not allowed, a plain folder."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "loramux-soak", str(folder)],
                              capture_output=True, text=True)
        self.mounted = done.returncode == 0
        if not self.mounted:
            print(f"soak: the full disk is simulated, because mounting one is not allowed: {done.stderr.strip()}", file=sys.stderr)

    def fill(self):
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


class DiskFaults:
    """The rules of disk_faults.c and its log."""

    def __init__(self, folder):
        self.control, self.log = folder / "faults", folder / "faults.log"
        self.log.touch()

    def environment(self):
        return {**serving.with_preloaded(serving.LORAMUX, DISK_FAULTS), "LORAMUX_DISK_FAULTS": str(self.control),
                "LORAMUX_DISK_FAULTS_LOG": str(self.log)}

    def begin(self, rules):
        """`rules`: (kind, probability, folder)."""
        new = self.control.with_suffix(".new")
        new.write_text("".join(f"{kind} {probability:.4f} {folder}\n" for kind, probability, folder in rules))
        new.rename(self.control)

    def end(self):
        self.control.unlink(missing_ok=True)

    def injected(self, folder):
        """How many of each kind hit a file below `folder`."""
        with open(self.log) as lines:
            return collections.Counter(kind for kind, path in (line.split(" ", 1) for line in lines)
                                       if path.startswith(str(folder)))


class Troubles:
    """The times at which something was wrong with the disks, and the kinds of trouble."""

    def __init__(self):
        self.lock = threading.Lock()
        self.windows = []                # [kinds, begin, end or None]

    @contextlib.contextmanager
    def of(self, *kinds):
        with self.lock:
            window = [kinds, time.monotonic(), None]
            self.windows.append(window)
        try:
            yield
        finally:
            with self.lock:
                window[2] = time.monotonic()

    def since(self, begin):
        """The kinds that have not ended before `begin`."""
        with self.lock:
            return {kind for kinds, _, end in self.windows if end is None or end > begin for kind in kinds}


class Soak(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="loramux-soak-")).resolve()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.disk = SmallDisk(self.folder / "state")
        self.addCleanup(self.disk.close)
        self.server = None
        self.addCleanup(self.kill)       # the server of a failed test would keep the disk busy
        self.tasks = sorted(path.name for path in (DEMO / "adapters").iterdir())
        self.task_of = {weights_digest(DEMO / "adapters" / task): task for task in self.tasks}
        # Copies, so that disk errors hit these files only. `fragile` gets damaged.
        self.weights = self.folder / "adapters"
        for copy in ("fixed", "loaded"):
            shutil.copytree(DEMO / "adapters", self.weights / copy)
        self.fragile = self.weights / "fragile"
        shutil.copytree(DEMO / "adapters" / "upper", self.fragile)
        with socket.socket() as probe:   # the same port after each restart
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.seed = random.SystemRandom().randrange(1 << 32)
        print(f"soak: {SECONDS} s, seed {self.seed}", file=sys.stderr)
        self.faults = DiskFaults(self.folder)
        self.troubles = Troubles()
        self.truth = {name: Truth() for name in NAMES}
        self.restarts = 0
        self.up = threading.Event()      # clients wait while the server is down
        self.gate = threading.Condition()
        self.operating = 0               # operations under way, guarded by the gate
        self.damaging = threading.Lock() # held while something is wrong with the disks or the weights
        self.stop = threading.Event()
        self.count = collections.Counter()
        self.failures = []
        self.threads = []

    # ---- The server ----

    def start(self):
        self.server = Server.run(self.command(), env=self.faults.environment())

    def command(self):
        return [serving.LORAMUX, "serve", str(DEMO / "model"), "--served-model-name", "demo", "--port", str(self.port),
                "--lora-modules", *(f"{task}={self.weights / 'fixed' / task}" for task in self.tasks),
                f"fragile={self.fragile}", "--device-memory", "4MiB", "--host-memory", "2MiB", "--enable-runtime-lora",
                "--insecure-no-admin-key", "--allowed-adapter-root", str(self.weights / "loaded"), "--state-dir",
                str(self.disk.folder)]

    def kill(self):
        if self.server is not None:
            self.server.process.kill()   # SIGKILL; nothing if it has ended
            self.server.process.wait()

    def kill_and_restart(self, kind, chance):
        """`kind` is the trouble during the kill (None: none). By chance it lasts until the server has started again."""
        with self.damaging, contextlib.ExitStack() as trouble:
            self.check_alive()
            if kind is not None:
                trouble.enter_context(kind(chance))
                time.sleep(chance.uniform(0, 0.3))
            with self.gate:
                self.up.clear()
                self.restarts += 1
            self.kill()
            self.server.log.close()
            with self.gate:              # no operation may reach the next process unseen
                self.gate.wait_for(lambda: self.operating == 0)
            if kind is None or (kind != self.disk_errors_at_the_start and chance.random() < 0.5):
                trouble.close()
                self.start()
            else:
                self.start_in_trouble(trouble)
            trouble.close()
            self.check_registry()
        self.up.set()

    def start_in_trouble(self, trouble):
        """The server starts, or says why it does not."""
        try:
            self.start()
            self.count["started in trouble"] += 1
        except RuntimeError as error:
            if EIO not in str(error) or "did not start (1)" not in str(error):
                self.fail_later(f"the server refused to start without naming the injected fault: {error}")
            self.count["refused to start in trouble"] += 1
            trouble.close()
            self.start()

    def check_alive(self):
        if self.server.process.poll() is not None:
            self.fail_later(f"the server ended by itself with {self.server.process.returncode}: {self.server.text()[-3000:]}")

    def check_registry(self):
        """Each name is in an acknowledged state. An operation that a kill cut off may have taken place or not."""
        for name, truth in self.truth.items():
            found = self.state_of(name, truth.now())
            if found not in truth.now():
                self.fail_later(f"after restart {self.restarts}: '{name}' is {found}, expected an acknowledged state: "
                                f"{sorted(map(str, truth.now()))}")
            truth.change([found])
            self.count["found after a restart"] += found is not None
            self.count["found pinned after a restart"] += found is not None and found.pinned

    def state_of(self, name, expected):
        """The state of a name by the server. A request for an adapter that could not be read at the start makes the server
        try again. Metrics may be of a moment before."""
        deadline = time.monotonic() + PATIENCE
        while True:
            roots = {card["id"]: card["root"] for card in self.server.json("GET", "/v1/models")[1]["data"]}
            found = Loaded(self.task_at(pathlib.Path(roots[name])), self.is_pinned(name)) if name in roots else None
            if found is not None and (found in expected or time.monotonic() > deadline):
                return found
            # A name that is not listed is unloaded, or its files could not be read: only an answer tells.
            status, answer = self.ask(name, self.prompts[0])
            self.count["asked for again after a restart"] += status == 503
            if status not in (200, 404) and not (status == 503 and EIO in json.dumps(answer)):
                self.fail_later(f"'{name}' after a restart: {status} {answer}")
            if found is None and (status == 404 or time.monotonic() > deadline):
                return found
            time.sleep(0.05)

    def task_at(self, root):
        """What was uploaded lies in a folder that the server has named. It may be gone by now."""
        if self.disk.folder not in root.parents:
            return root.name
        with contextlib.suppress(FileNotFoundError):
            return self.task_of[weights_digest(root)]
        return "gone"

    def check_uploads(self):
        """A folder for each name that was uploaded last, and no other."""
        roots = {card["root"] for card in self.server.json("GET", "/v1/models")[1]["data"]}
        uploads = self.disk.folder / "uploads"
        kept = {str(folder) for folder in uploads.iterdir()} if uploads.exists() else set()
        if kept != {root for root in roots if self.disk.folder in pathlib.Path(root).parents}:
            self.fail_later(f"uploads {sorted(kept)} are kept beside the names at {sorted(roots)}")

    def is_pinned(self, name):
        page = self.server.request("GET", "/metrics")[1].decode()
        series = re.findall(r"^vllm:lora_adapter_loaded\{([^}]*)\} (\S+)$", page, re.MULTILINE)
        mine = [labels for labels, value in series if f'adapter_name="{name}"' in labels and float(value) > 0]
        pinned = [labels for labels in mine if 'pinned="true"' in labels]
        if any('level="gpu"' not in labels for labels in pinned):
            self.fail_later(f"pinned, but not on the device: {pinned}")
        return bool(pinned)

    def fail_later(self, message):
        self.failures.append(message)

    # ---- Clients ----

    def ask(self, model, prompt, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0,
                    "max_tokens": 60, **more}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if more.get("stream") and response.status == 200:
                response.read(random.randrange(1, 400))   # then the client leaves
                return response.status, None
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def make_oracle(self):
        """Every adapter's answer to prompts that tell all adapters apart, each prompt alone in the server."""
        self.prompts, self.oracle = [], {}
        for prompt in (prompt for _, prompt, _ in questions(2)):
            answers = {}
            for model in [*self.tasks, "demo"]:
                status, answer = self.ask(model, prompt)
                self.assertEqual(status, 200, answer)
                answers[model] = answer["choices"][0]["message"]["content"]
            if len(set(answers.values())) == len(answers):
                self.prompts.append(prompt)
                self.oracle |= {(model, prompt): text for model, text in answers.items()}
            if len(self.prompts) == PROMPTS:
                return
        self.fail("not enough of the prompts tell the adapters apart")

    def client(self, seed):
        chance = random.Random(seed)
        while not self.stop.is_set():
            model = chance.choice(self.tasks + NAMES * 4 + ["fragile"] * 2 + ["demo"])
            self.ask_and_judge(model, chance.choice(self.prompts), stream=chance.random() < 0.15)

    def ask_and_judge(self, model, prompt, stream=False, may_be_late=True):
        restarts = self.restarts         # before the wait, because a kill may follow right after it
        self.up.wait()
        more = {"stream": True, "max_tokens": 200, "ignore_eos": True} if stream else {}
        begin, marks = time.monotonic(), {name: self.truth[name].mark() for name in NAMES}
        try:
            status, answer = self.ask(model, prompt, **more)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if restarts == self.restarts:
                self.fail_later(f"{model}: {error!r} without a restart")
            self.count["cut off by a kill"] += 1
            time.sleep(0.02)
            return
        since = {name: self.truth[name].since(mark) for name, mark in marks.items()}
        if status == 200 and stream:
            self.count["vanished"] += 1
        elif status == 200:
            self.judge_answer(model, prompt, since, answer)
        else:
            self.judge_refusal(model, prompt, since, begin, status, json.dumps(answer), may_be_late)

    def judge_answer(self, model, prompt, since, answer):
        text = answer["choices"][0]["message"]["content"]
        allowed = since[model] if model in since else [Loaded("upper" if model == "fragile" else model, False)]
        if not any(state is not None and self.oracle[state.task, prompt] == text for state in allowed):
            self.fail_later(f"{model}: '{prompt}' -> '{text}', which is none of {sorted(map(str, allowed))}")
        self.count["answers"] += 1

    def judge_refusal(self, model, prompt, since, begin, status, text, may_be_late):
        troubles = self.troubles.since(begin)
        reason = self.reason_of_refusal(model, since, troubles, status, text)
        if reason is not None:
            self.count[reason] += 1
        elif may_be_late and self.reason_of_refusal(model, since, self.troubles.since(begin - PATIENCE), status, text):
            # It joined a load that a trouble had failed before, whose end the engine had not seen. By now it has, so the
            # same request must not fail again.
            self.count["late refusals"] += 1
            self.ask_and_judge(model, prompt, may_be_late=False)
        else:
            self.fail_later(f"{model}: status {status}, {text}; {sorted(troubles)}, {since.get(model)}")

    def reason_of_refusal(self, model, since, troubles, status, text):
        """None: there is no reason for it."""
        pins = any(state is not None and state.pinned for states in since.values() for state in states)
        if status == 404 and None in since.get(model, []):
            return "not loaded"
        if status == 500 and EIO in text and "weights" in troubles and model != "demo":
            return "weights not read"
        if status in (400, 500) and model == "fragile" and "fragile" in troubles:
            return "damaged weights refused"
        if status in (400, 503) and pins and any(reason in text for reason in NO_ROOM):
            return "no room beside pins"
        return None

    # ---- Operators ----

    def operate(self, name, seed):
        """Loads, reloads, pins and unloads one name."""
        chance = random.Random(seed)
        while not self.stop.is_set():
            time.sleep(chance.uniform(0, 0.15))
            self.up.wait()
            with self.gate:
                if not self.up.is_set():
                    continue
                self.operating += 1
                restarts = self.restarts
            try:
                self.operate_once(name, chance, restarts)
            finally:
                with self.gate:
                    self.operating -= 1
                    self.gate.notify_all()

    def operate_once(self, name, chance, restarts, again=None):
        """`again`: the state that an operation of before wanted, as a tuple of one."""
        truth, begin = self.truth[name], time.monotonic()
        (current,) = truth.now()
        wanted = self.choose(current, chance) if again is None else again[0]
        truth.change([current, wanted])
        try:
            status, reply = self.change(name, current, wanted, chance.choice(["", "/v1"]))
        except (OSError, http.client.HTTPException) as error:
            if restarts == self.restarts:
                self.fail_later(f"operation on {name}: {error!r} without a restart")
            return                       # after the kill check_registry finds out whether it took place
        if status == 200:
            truth.change([wanted])
            self.count["operations"] += 1
            self.count["pinned"] += wanted is not None and wanted.pinned
            self.count["unpinned"] += current is not None and current.pinned and not (wanted is not None and wanted.pinned)
        else:
            truth.change([current])
            what = f"{name}: {current} -> {wanted}"
            if self.is_late(wanted, begin, status, reply, again):
                self.count["late refusals"] += 1
                self.operate_once(name, chance, restarts, again=(wanted,))
            else:
                self.judge_operation(what, wanted, begin, status, reply)

    def choose(self, current, chance):
        if current is not None and chance.random() < 0.25:
            return None
        if current is not None and chance.random() < 0.25:
            return Loaded(current.task, not current.pinned)   # the same weights
        return Loaded(chance.choice([task for task in self.tasks if current is None or task != current.task]),
                      chance.random() < 0.3)

    def judge_operation(self, what, wanted, begin, status, reply):
        """A refused operation has changed nothing, and there was a reason for the refusal."""
        troubles = self.troubles.since(begin)
        reason = self.reason_of_failure(wanted, troubles, status, reply)
        if reason is None:
            self.fail_later(f"{what}: {status} {reply}; {sorted(troubles)}")
        else:
            self.count[reason] += 1

    def is_late(self, wanted, begin, status, reply, again):
        """The operation pins, and joined a load that a trouble had failed before: see judge_refusal."""
        return (again is None and self.reason_of_failure(wanted, self.troubles.since(begin), status, reply) is None and
                self.reason_of_failure(wanted, self.troubles.since(begin - PATIENCE), status, reply) is not None)

    def reason_of_failure(self, wanted, troubles, status, reply):
        """None: there is no reason for it."""
        if status == 500 and ENOSPC in reply and "full" in troubles:
            return "operations refused by the full disk"
        if status == 500 and EIO in reply and ("weights" in troubles or "journal" in troubles):
            return "operations refused by disk errors"
        if status in (400, 503) and wanted is not None and wanted.pinned and any(reason in reply for reason in NOT_PINNED):
            return "pins refused"
        return None

    def change(self, name, current, wanted, prefix):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            path, body = f"{prefix}/unload_lora_adapter", {"lora_name": name}
            if wanted is not None and random.random() < 0.4:
                with io.BytesIO() as packed:
                    with tarfile.open(fileobj=packed, mode="w") as archive:
                        archive.add(DEMO / "adapters" / wanted.task, wanted.task)
                    connection.request("PUT", f"/v1/adapters/{name}?pinned={str(wanted.pinned).lower()}", packed.getvalue(),
                                       {"Content-Type": "application/x-tar"})
                response = connection.getresponse()
                self.count["uploads"] += response.status in (200, 201)
                return 200 if response.status < 300 else response.status, response.read().decode()
            if wanted is not None:
                path = f"{prefix}/load_lora_adapter"
                body |= {"lora_path": str(self.weights / "loaded" / wanted.task), "load_inplace": current is not None,
                         "pinned": wanted.pinned}
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    # ---- Troubles ----

    def damage(self, seed):
        """Causes one trouble after another, each for a while."""
        chance = random.Random(seed)
        while True:
            kinds = [self.full_disk, self.disk_errors, self.weight_errors, self.short_transfers, self.damaged_weights]
            for kind in chance.sample(kinds, len(kinds)):
                if self.stop.wait(chance.uniform(0.2, 1.0)):
                    return
                with self.damaging, kind(chance):
                    self.stop.wait(chance.uniform(0.1, 0.5))

    @contextlib.contextmanager
    def full_disk(self, chance):
        self.count["disk filled"] += 1
        with self.troubles.of("full"):
            if self.disk.mounted:
                self.disk.fill()
            else:
                self.faults.begin([("full", 1, self.disk.folder)])
            try:
                yield
            finally:
                self.disk.relieve()
                self.faults.end()

    @contextlib.contextmanager
    def rules(self, chance, kinds, **folders):
        """Below each folder at least one of `kinds` fails, more or less often. The names of the folders are the troubles."""
        rules = [(kind, chance.uniform(0.1, 1), folder) for folder in folders.values()
                 for kind in chance.sample(kinds, chance.randint(1, len(kinds)))]
        with self.troubles.of(*folders):
            self.faults.begin(rules)
            try:
                yield
            finally:
                self.faults.end()

    def disk_errors(self, chance):
        self.count["disk errors of the journal"] += 1
        return self.rules(chance, ["open", "write", "short_write", "sync"], journal=self.disk.folder)

    def weight_errors(self, chance):
        self.count["disk errors of the weights"] += 1
        return self.rules(chance, ["open", "read", "short_read"], weights=self.weights)

    def disk_errors_at_the_start(self, chance):
        """Hits loaded adapters only: without the adapters of its flags the server does not start."""
        self.count["disk errors at the start"] += 1
        folders = {"weights": self.weights / "loaded"}
        if chance.random() < 0.3:
            folders["journal"] = self.disk.folder
        return self.rules(chance, ["open", "read", "short_read"], **folders)

    def short_transfers(self, chance):
        """These are no errors, so they must have no effect."""
        self.count["short transfers"] += 1
        return self.rules(chance, ["short_read", "short_write"], no_trouble=self.folder)

    @contextlib.contextmanager
    def damaged_weights(self, chance):
        self.count["weights damaged"] += 1
        weights = self.fragile / "adapter_model.safetensors"
        whole = weights.read_bytes()
        with self.troubles.of("fragile"):
            os.truncate(weights, chance.randrange(len(whole)))
            try:
                yield
            finally:
                weights.write_bytes(whole)

    # ---- The soak ----

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
        except Exception as error:   # a defect of this test must not go unnoticed
            self.fail_later(f"{job.__name__}: {error!r}")

    def kill_for(self, seconds):
        chance = random.Random(self.seed + 300)
        end = time.monotonic() + seconds
        kinds = [None, self.full_disk, self.disk_errors, self.disk_errors_at_the_start, self.disk_errors_at_the_start]
        chance.shuffle(kinds)
        for kind in itertools.cycle(kinds):
            done = self.restarts >= len(kinds) and self.count["found after a restart"] > 0
            if self.failures or (time.monotonic() > end and done) or time.monotonic() > end + PATIENCE:
                return
            time.sleep(chance.uniform(0.5, 2.0))
            self.kill_and_restart(kind, chance)

    def watch_memory_for(self, seconds):
        """Resident bytes each second of a process that is not killed. It settles first: for a minute, or for a third of
        the time, and for MIN_ANSWERS answers."""
        end = time.monotonic() + seconds
        self.wait_for_answers()
        time.sleep(max(0.0, end - time.monotonic() - max(seconds - 60.0, seconds * 2 / 3)))
        resident = [self.resident_bytes()]
        wanted = self.count["answers"] + MIN_ANSWERS
        enough = lambda: self.count["answers"] >= wanted and not self.missing_coverage()
        while not self.failures and (time.monotonic() < end or (not enough() and time.monotonic() < end + PATIENCE)):
            time.sleep(1)
            resident.append(self.resident_bytes())
        return resident

    def wait_for_answers(self):
        wanted = self.count["answers"] + MIN_ANSWERS
        wait_for(lambda: self.failures or self.count["answers"] >= wanted, f"{MIN_ANSWERS} answers")

    def join_threads(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=2 * PATIENCE)   # longer than a request may take
        self.assertFalse(any(thread.is_alive() for thread in self.threads), "a request or an operation hangs")

    def check_calm(self):
        """Without troubles every name answers as it should and is in its state."""
        self.server.wait_idle()
        self.check_registry()
        for model, prompt in itertools.product([*NAMES, "fragile", *self.tasks], self.prompts):
            self.ask_and_judge(model, prompt)

    def test_soak(self):
        self.start()
        self.up.set()
        self.make_oracle()
        self.run_threads()
        self.kill_for(SECONDS * 0.4)
        resident = self.watch_memory_for(SECONDS * 0.6)
        self.join_threads()
        self.check_alive()
        self.report(resident)
        self.assertEqual(self.failures[:5], [], f"{len(self.failures)} failures")
        self.check_calm()
        log = self.server.stop()         # checks pages, residency and schedule, and exits with 0
        self.assertRegex("\n".join(log.splitlines()[-5:]), r"KV pages in use: 0\b")
        self.start()
        self.check_registry()
        self.check_uploads()
        self.server.stop()
        self.assertEqual(self.failures[:5], [], f"{len(self.failures)} failures")
        self.assertEqual(self.missing_coverage(), [])
        if not sanitized():              # the allocators of sanitizers keep freed memory
            self.assertLess(resident[-1] / resident[0], GROWTH_ALLOWED)

    def missing_coverage(self):
        """What should happen in a soak and did not yet. In the short form chance decides about the rare cases, so that only
        the frequent ones count."""
        long_form = SECONDS >= 300
        kinds = ["answers", "operations", "uploads", "found after a restart"]
        if long_form:
            kinds += ["not loaded", "vanished", "pinned", "unpinned", "weights damaged", "weights not read", "disk filled",
                      "operations refused by disk errors"]
        missing = [kind for kind in kinds if self.count[kind] == 0]
        if self.count["started in trouble"] + self.count["refused to start in trouble"] == 0:
            missing.append("a start in trouble")
        for folder, kinds in [(self.weights, ["open", "read", "short_read"]),
                              (self.disk.folder, ["write", "short_write", "sync"])]:
            injected = self.faults.injected(folder)
            missing += [f"{kind} below {folder}" for kind in kinds if long_form and injected[kind] == 0]
            if sum(injected.values()) == 0:
                missing.append(f"a fault below {folder}")
        return missing

    def report(self, resident):
        print(f"soak: {dict(sorted(self.count.items()))}, {self.restarts} kills", file=sys.stderr)
        for name, folder in [("journal", self.disk.folder), ("weights", self.weights)]:
            print(f"soak: faults below the {name}: {dict(sorted(self.faults.injected(folder).items()))}", file=sys.stderr)
        print(f"soak: resident memory {resident[0] / 2**20:.1f} MiB, {len(resident) - 1} s later x "
              f"{resident[-1] / resident[0]:.3f}, at most x {max(resident) / resident[0]:.3f}; on the way: "
              f"{' '.join(f'{r / 2**20:.1f}' for r in resident[::max(1, len(resident) // 10)])}", file=sys.stderr)


def take_option(name):
    if name not in sys.argv:
        return None
    at = sys.argv.index(name)
    value = sys.argv[at + 1]
    del sys.argv[at:at + 2]
    return value


if __name__ == "__main__":
    DISK_FAULTS = take_option("--disk-faults")
    SECONDS = float(take_option("--seconds") or SECONDS)
    if DISK_FAULTS is None:
        sys.exit(__doc__)
    serving.run_tests()
