#!/usr/bin/env python3
"""Hostile clients in turn, and an honest one beside each. Standard library only.

Usage: hostile_neighbour_test.py PATH_OF_LORAMUX [--timed] [--before OLDER_LORAMUX] [--markdown FILE] [--only PART_OF_NAME]
                                 [unittest arguments]

Four neighbourhoods: a server with an API key for each client; a server without keys, to which clients are addresses; a
keyless server behind a router that checks the keys; loads of adapters from a store that drips. The hostile client has a
key and an address of its own, and repeats its attack until the honest client is done.

The honest client must get the right answers, and the memory of the server must not grow. While an honest request waits for
its first token, the servers may do little: the median of the processor's time that they spend meanwhile is bounded. That is
what a request waits for, and no busy machine changes it.

`--timed` measures instead what the honest client waits, in turns without and beside the attack, so that what else runs on
the machine falls on both: the P99 of its TTFT beside the attack may be 1.5 times that without, and 20 ms. Where that does
not hold, more turns follow, and all of them count. `--before` implies `--timed`, measures an older program too, and demands
nothing of it. `--markdown` puts the figures in a table between the two marks in FILE.
"""
import atexit
import contextlib
import copy
import dataclasses
import http.client
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import re
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
import unittest

import serving
from remote_adapters_test import RemoteServer, Store
from serving import PATIENCE, Server, questions, wait_for

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HOSTILE, HONEST = "sk-hostile-0123456789", "sk-honest-0123456789"
HOSTILE_ADDRESS = "127.0.0.9"
BESIDE, MOST_BESIDE = 10, 50   # honest requests beside each attack: they go on until the attack was made once
TIMED = 25         # with --timed, in each turn
TURNS, MOST_TURNS = 4, 12
LONGEST_TURN = 20  # seconds: an older program may answer little
MOST_WORK = 0.1    # seconds of the processor, the median for one honest request; a quiet one costs about 0.005
POOL = "32MiB"     # of each tier: soon resident as a whole
MEMORY_FACTOR = 1.2
MEMORY_SLACK = 16 << 20   # bytes beyond the factor, after an attack: the demo's server is so small that this matters
PEAK_SLACK = 128 << 20    # bytes beyond the factor, during an attack: bodies of 16 MiB are received before they are read
BODY = 16_000_000         # bytes: hardly less than --max-body-size


def memory(server, field="VmRSS"):
    """Bytes of the server that are resident now (VmRSS), or at the peak since `forget_peak` (VmHWM)."""
    for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} of the server")


def forget_peak(server):
    pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5", encoding="utf-8")


class Client:
    """One connection."""

    def __init__(self, server, key, address="127.0.0.1"):
        self.key = key
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE, source_address=(address, 0))

    def post(self, path, body, headers=()):
        """(status, body) of the response; (0, b"") if the server closed the connection instead."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            self.connection.request("POST", path, data, {"Authorization": f"Bearer {self.key}",
                                                         "Content-Type": "application/json", **dict(headers)})
        except ConnectionError:
            pass   # the server refused before it had read everything; its answer can still be read
        try:
            response = self.connection.getresponse()
            return response.status, response.read()
        except (ConnectionError, http.client.HTTPException):
            self.connection.close()
            return 0, b""

    def close(self):
        self.connection.close()


def hostile(server, address=HOSTILE_ADDRESS):
    return Client(server, HOSTILE, address)


def hostile_socket(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE, source_address=(HOSTILE_ADDRESS, 0))


def head(path=CHAT, length=0, more=""):
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {HOSTILE}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n{more}\r\n").encode()


def chat(content, **more):
    return json.dumps({"model": "demo", "messages": [{"role": "user", "content": content}], **more}).encode()


def words(size):
    return ("four " * (size // 5 + 1))[:size]


# ---- The attacks: each is one round. It returns the statuses that it got, which ATTACKS checks. ----

def posts(path, body, connections=1):
    """A round that sends one body on some connections at once. The body is made once."""
    made = []

    def attack(server):
        if not made:
            made.append(body() if callable(body) else body)
        return at_once(server, path, made * connections)
    return attack


def at_once(server, path, bodies, headers=(), addresses=(HOSTILE_ADDRESS,)):
    statuses = []

    def send(body, address):
        client = hostile(server, address)
        with contextlib.closing(client):
            statuses.append(client.post(path, body, headers)[0])
    threads = [threading.Thread(target=send, args=(body, address))
               for body, address in zip(bodies, itertools.cycle(addresses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def many_sequences(server):
    """Five requests of eight prompts with n = 128 and a thousand tokens each."""
    body = {"model": "demo", "prompt": ["abc"] * 8, "n": 128, "max_tokens": 1000, "ignore_eos": True}
    return at_once(server, COMPLETIONS, [json.dumps(body).encode()] * 5)


def many_small_requests(server):
    """As many sequences as one key may have, in requests that are small enough."""
    held = []
    body = chat("abc", n=128, max_tokens=900, ignore_eos=True, stream=True)
    for _ in range(12):
        client = hostile_socket(server)
        client.sendall(head(length=len(body)) + body)
        held.append(client)
    statuses = [int(client.recv(64).split()[1]) for client in held[-2:]]   # beyond --key-concurrency
    time.sleep(0.5)
    for client in held:
        client.close()
    return statuses


def invented_tenants(server):
    """Forty-eight connections, each with tenants of its own in the fairness header."""
    bodies = [chat("abcdef", max_tokens=100, ignore_eos=True)] * 48
    return at_once(server, CHAT, bodies, {"x-gateway-inference-fairness-id": f"invented-{time.monotonic_ns()}"}.items())


def unfinished_bodies(server):
    held = []
    for _ in range(64):
        client = hostile_socket(server)
        with contextlib.suppress(ConnectionError):
            client.sendall(head(length=BODY) + b" " * 100_000)
        held.append(client)
    time.sleep(0.5)
    for client in held:
        client.close()
    return []


def idle_connections(server):
    held = [hostile_socket(server) for _ in range(300)]
    time.sleep(0.5)
    for client in held:
        client.close()
    return []


def vanishing_clients(server):
    body = chat("abcdef", n=8, max_tokens=900, ignore_eos=True, stream=True)
    for _ in range(20):
        with hostile_socket(server) as client:
            client.sendall(head(length=len(body)) + body)
    return []


def clients_that_never_read(server):
    body = chat("abcdef", n=32, max_tokens=900, ignore_eos=True, stream=True, logprobs=True, top_logprobs=20)
    held = []
    for _ in range(4):
        client = hostile_socket(server)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(head(length=len(body)) + body)
        held.append(client)
    time.sleep(1)
    for client in held:
        client.close()
    return []


def malformed_http(server):
    """Bytes that are no request, and requests of two kinds at once."""
    statuses = []
    for data in (b"\x00" * 1000, b"GET / HTTP/9.9\r\n\r\n", head(length=5, more="Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
                 head(length=5, more="Transfer-Encoding: gzip\r\n") + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
                 b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", head(more="X: y\r\n" * 5000)):
        with hostile_socket(server) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
                statuses.append(int(client.recv(64).split()[1]))
    return statuses


def unknown_models(server):
    client = hostile(server)
    with contextlib.closing(client):
        return [client.post(CHAT, {"model": f"../../{i}/{time.monotonic_ns()}", "messages": [{"role": "user", "content": "x"}]})[0]
                for i in range(50)]


def long_answer(server):
    body = {"model": "demo", "prompt": "abc", "n": 128, "logprobs": 20, "max_tokens": 200, "ignore_eos": True}
    return at_once(server, COMPLETIONS, [json.dumps(body).encode()])


def fill_pool(server):
    """The page pool becomes resident as it is used, and stays so. Later memory is that of requests."""
    body = {"model": "demo", "prompt": "abc", "n": 128, "max_tokens": 400, "ignore_eos": True}
    assert at_once(server, COMPLETIONS, [json.dumps(body).encode()]) == [200]


def costly_sampling(server):
    body = {"model": "demo", "prompt": "abc", "n": 8, "max_tokens": 200, "ignore_eos": True, "presence_penalty": 1,
            "logit_bias": {str(i): 1 for i in range(200)}, "stop": [("ab" * 2048)[:4000 + i] for i in range(16)]}
    return at_once(server, COMPLETIONS, [json.dumps(body).encode()] * 4)


def quadratic_message():
    text = "a" * 250_000
    return json.dumps({"model": "demo", "add_generation_prompt": False, "continue_final_message": True, "messages": [
        {"role": "user", "content": text + text}, {"role": "assistant", "content": text + "b"}]}).encode()


def many_values():
    return b'{"model":"demo","messages":[{"role":"user","content":"x"}],"metadata":[' + b"0," * 7_000_000 + b"0]}"


# Schemas of which none was seen before: what is refused is remembered.
numbers = itertools.count(time.monotonic_ns())


def constrained(schema):
    return json.dumps({"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}).encode()


def many_patterns():
    """Under 1 KB: a string that must match fifteen patterns."""
    texts = [f".*{chr(97 + i)}{chr(98 + i)}.*" for i in range(15)]
    return constrained({"type": "object", "properties": {f"p{next(numbers)}": {
        "allOf": [{"type": "string", "pattern": text} for text in texts]}}})


def many_ranges():
    """A schema of 22 KB, within all limits, that takes a tenth of a second to compile."""
    ranges = [{"type": "integer", "minimum": i, "maximum": 1000 * i + 99} for i in range(400)]
    return constrained({"type": "object", "properties": {f"p{next(numbers)}": {"anyOf": ranges}}})


def schemas(make, addresses=(HOSTILE_ADDRESS,)):
    return lambda server: at_once(server, CHAT, [make() for _ in range(4)], addresses=addresses)


def reset_requests(server):
    """Sixty requests with costly schemas, whose connections are reset at once."""
    for _ in range(60):
        body = many_ranges()
        with hostile_socket(server) as client:
            client.sendall(head(length=len(body)) + body)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return []


def repeated_keys():
    return b'{"model":"demo",' + b'"metadata":0,' * (BODY // 13) + b'"prompt":"x"}'


def many_ids():
    return b'{"model":"demo","prompt":[' + b"70," * 1_000_000 + b"70]}"


@dataclasses.dataclass
class Attack:
    name: str
    round: object
    expected: tuple   # statuses that may come


ATTACKS = [
    Attack("/v1/completions with a prompt of 16 MB", posts(COMPLETIONS, lambda: json.dumps({"model": "demo", "prompt": words(BODY)}).encode(), 2), (400,)),
    Attack("a chat message of 16 MB", posts(CHAT, lambda: chat(words(BODY))), (413,)),
    Attack("a chat message of one word of 16 MB", posts(CHAT, lambda: chat("a" * BODY)), (413,)),
    Attack("a chat message of one word of 1 MB", posts(CHAT, lambda: chat("a" * 1_000_000), 4), (400,)),
    Attack("/tokenize of 16 MB", posts("/tokenize", lambda: json.dumps({"prompt": words(BODY)}).encode()), (413,)),
    Attack("/tokenize of 64 KB with strings, four at once", posts("/tokenize", lambda: json.dumps({"prompt": words(64_000), "return_token_strs": True}).encode(), 4), (200,)),
    Attack("/detokenize of 3 million ids", posts("/detokenize", lambda: b'{"tokens":[' + b"70,70," * 1_500_000 + b"70]}"), (413,)),
    Attack("continue_final_message with 0.25 MB that almost matches", posts(CHAT, quadratic_message), (400,)),
    Attack("400,000 messages", posts(CHAT, lambda: json.dumps({"model": "demo", "messages": [{"role": "user", "content": ""}] * 400_000}).encode()), (413,)),
    Attack("30,000 messages", posts(CHAT, lambda: json.dumps({"model": "demo", "messages": [{"role": "user", "content": ""}] * 30_000}).encode(), 4), (400,)),
    Attack("7 million JSON values", posts(COMPLETIONS, many_values), (400,)),
    Attack("5 requests of 8 prompts x n = 128, 1,000 tokens", many_sequences, (400,)),
    Attack("12 streams of n = 128, 900 tokens", many_small_requests, (429,)),
    Attack("48 connections with invented tenants", invented_tenants, (200, 503)),
    Attack("n = 128 with 20 log-probabilities, 200 tokens", long_answer, (200,)),
    Attack("64 unfinished bodies of one address", unfinished_bodies, ()),
    Attack("300 idle connections of one address", idle_connections, ()),
    Attack("20 clients that vanish at once", vanishing_clients, ()),
    Attack("clients that never read", clients_that_never_read, ()),
    Attack("malformed HTTP", malformed_http, (400, 414, 431, 505)),
    Attack("50 unknown models", unknown_models, (404,)),
    Attack("logit_bias, penalties and 16 long stop strings", costly_sampling, (200,)),
    Attack("schemas of many patterns, four at once", schemas(many_patterns), (400,)),
    Attack("schemas that take long, four at once", schemas(many_ranges), (200,)),
    Attack("60 requests that are reset at once", reset_requests, ()),
]
FOUR_ADDRESSES = [f"127.0.0.{i}" for i in range(9, 13)]
KEYLESS_ATTACKS = [
    Attack("schemas of many patterns from four addresses", schemas(many_patterns, FOUR_ADDRESSES), (400,)),
    Attack("schemas that take long from four addresses", schemas(many_ranges, FOUR_ADDRESSES), (200,)),
]
ROUTED_ATTACKS = [
    Attack("schemas of many patterns through the router", schemas(many_patterns), (400, 429)),
    Attack("schemas that take long through the router", schemas(many_ranges), (200, 429)),
    Attack("16 MB of repeated keys through the router, four at once", posts(COMPLETIONS, repeated_keys, 4), (400, 429)),
    Attack("a million token ids through the router, four at once", posts(COMPLETIONS, many_ids, 4), (400, 429)),
]


@contextlib.contextmanager
def beside_process(attack, server):
    """Repeats the attack in a process of its own until the block ends. Gives a function that is true once the attack was
    made, and a list that has all statuses when the block has ended."""
    fork = multiprocessing.get_context("fork")
    done, made, results = fork.Event(), fork.Event(), fork.SimpleQueue()

    def repeat():
        found = []
        while not found or not done.is_set():
            found.append(attack.round(server))
            made.set()
        results.put(sorted({status for statuses in found for status in statuses}))
    process = fork.Process(target=repeat)
    process.start()
    statuses = []
    try:
        yield lambda: made.is_set() or not process.is_alive(), statuses
    finally:
        done.set()
        wait_for(lambda: not results.empty() or not process.is_alive(), f"the end of {attack.name}")
        if not results.empty():
            statuses.extend(results.get())
        process.join()
    assert process.exitcode == 0, f"{attack.name}: its process ended with {process.exitcode}"


def work(server):
    """Seconds that the processors have spent on the server, and on the router before it."""
    return sum(time.clock_gettime(~process.pid << 3 | 2) for process in server.processes)   # as clock_getcpuclockid(3) says


def percentile99(values):
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


class Honest:
    """Asks the demo's questions, one after the other, each on a connection that stays open."""

    def __init__(self, server, test):
        self.server = server
        self.client = Client(server, HONEST)
        self.test = test
        self.questions = questions(3)
        self.asked = 0

    def ask(self):
        """(TTFT of one request, work of the servers meanwhile), in seconds."""
        model, prompt, answer = self.questions[self.asked % len(self.questions)]
        self.asked += 1
        body = json.loads(chat(prompt, temperature=0, max_tokens=100, stream=True))
        body["model"] = model
        connection = self.client.connection
        start, before = time.monotonic(), work(self.server)
        connection.request("POST", CHAT, json.dumps(body), {"Authorization": f"Bearer {HONEST}",
                                                            "Content-Type": "application/json"})
        response = connection.getresponse()
        first = response.readline()
        found = time.monotonic() - start, work(self.server) - before
        text = first + response.read()
        self.test.assertEqual(response.status, 200, text)
        events = [json.loads(line[6:]) for line in text.decode().split("\n\n") if line and line != "data: [DONE]"]
        said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
        self.test.assertEqual(said, answer, (model, prompt))
        return found

    def ask_many(self, count, enough=lambda: True):
        """What `ask` gives for `count` requests, less if they take too long, and for more until `enough` is true."""
        found, end = [], time.monotonic() + LONGEST_TURN
        while len(found) < count and (not found or time.monotonic() < end) or len(found) < MOST_BESIDE and not enough():
            found.append(self.ask())
        return found


@dataclasses.dataclass
class Figures:
    """What the honest client waited for its first token, without and beside an attack, in seconds."""
    quiet: list = dataclasses.field(default_factory=list)
    beside: list = dataclasses.field(default_factory=list)
    work: list = dataclasses.field(default_factory=list)   # of the servers, for each request beside the attack
    memory: int = 0   # after the attack, without the grammars that the server keeps (at most 256 MiB)
    peak: int = 0

    def allowed(self):
        return 1.5 * percentile99(self.quiet) + 0.02

    def holds(self):
        return percentile99(self.beside) <= self.allowed()

    def cells(self):
        """For a table: with --timed the P99 without and beside the attack, what is allowed, the requests of both; else work
        and memory."""
        if timed:
            waits = percentile99(self.quiet), percentile99(self.beside), self.allowed()
            return [*(f"{value * 1000:.1f}" for value in waits), f"{len(self.quiet)}, {len(self.beside)}"]
        return [f"{statistics.median(self.work) * 1000:.1f}" if self.work else "",
                *(f"{value / 1e6:.0f}" if value else "" for value in (self.memory, self.peak))]


SIZES = ("--max-num-seqs", "8", "--device-memory", POOL, "--host-memory", POOL)
options = {"markdown": None, "only": "", "before": None}   # of the command line
timed = False
table = []


def add_row(name, now, before):
    """Adds a row to the table, and prints it."""
    if not table:
        older = "before: quiet, ms | before: beside, ms | " if options["before"] else ""
        now_cells = ("quiet, ms | beside, ms | allowed, ms | requests" if timed else
                     "work, ms | memory after it, MB | at the peak, MB")
        table.extend([f"| attack | {older}{now_cells} |", "|---|" + "---|" * ((older + now_cells).count("|") + 1)])
        print("\n".join(table), file=sys.stderr, flush=True)
    older = (before.cells()[:2] if before else ["", ""]) if options["before"] else []
    table.append(f"| {name} | {' | '.join([*older, *now.cells()])} |")
    print(table[-1], file=sys.stderr, flush=True)


def write_table():
    """Between the two marks of the file of the command line, which is made if there is none."""
    marks = "<!-- hostile_neighbour_test.py -->", "<!-- end of its table -->"
    path = pathlib.Path(options["markdown"])
    text = path.read_text(encoding="utf-8") if path.exists() else "\n".join(marks) + "\n"
    processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    machine = (f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores ({processor.group(1) if processor else 'unknown'}), "
               f"load of the last quarter of an hour {os.getloadavg()[2]:.1f}")
    head, rest = text.split(marks[0])
    made = "\n".join([head + marks[0], machine + ".", "", *table, marks[1]])
    path.write_text(made + rest.split(marks[1])[1], encoding="utf-8")


@contextlib.contextmanager
def program(path):
    """In the block, tests start the program at `path`."""
    current, serving.LORAMUX = serving.LORAMUX, path
    try:
        yield
    finally:
        serving.LORAMUX = current


class HostileNeighbour(unittest.TestCase):
    """Each client has an API key."""
    attacks = ATTACKS

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.keys = self.folder / "keys.json"
        self.keys.write_text(json.dumps({"keys": [{"name": name, "key": key, "models": ["*"]}
                                                  for name, key in (("hostile", HOSTILE), ("honest", HONEST))]}),
                             encoding="utf-8")

    def start(self):
        return self.alone("--api-key-file", str(self.keys))

    def alone(self, *flags):
        server = Server(*flags, *SIZES)
        self.addCleanup(server.process.kill)
        server.processes = [server.process]
        server.itself = copy.copy(server)   # also behind a router
        return server

    def test_each_attack(self):
        wanted = [attack for attack in self.attacks if options["only"] in attack.name]
        if not wanted:
            self.skipTest("no attack has this name")
        before = {}
        if options["before"]:
            with program(options["before"]):
                older = self.warm_server()
            for attack in wanted:
                before[attack.name] = self.measure(older, attack, turns=1, most_turns=1)
            older.process.kill()
        server = self.warm_server()
        quiet_memory = memory(server)
        for attack in wanted:
            with self.subTest(attack=attack.name):
                figures = self.measure(server, attack, *((TURNS, MOST_TURNS) if timed else (1, 1)), attack.expected)
                add_row(attack.name, figures, before.get(attack.name))
                if timed:
                    self.assertLessEqual(percentile99(figures.beside), figures.allowed(), "seconds of TTFT")
                    continue
                self.assertLess(statistics.median(figures.work), MOST_WORK, "seconds of the processor")
                self.assertLess(figures.memory, quiet_memory * MEMORY_FACTOR + MEMORY_SLACK, "bytes after the attack")
                self.assertLess(figures.peak, quiet_memory * MEMORY_FACTOR + PEAK_SLACK, "bytes at the peak")
        server.stop()

    def warm_server(self):
        server = self.start()
        fill_pool(server)
        honest = Honest(server, self)
        honest.ask_many(TIMED)
        honest.client.close()
        return server

    def measure(self, server, attack, turns, most_turns, expected=()):
        """Turns without and beside the attack, whose statuses must be `expected` if there are any."""
        figures, honest = Figures(), Honest(server, self)
        forget_peak(server)
        for turn in range(1, most_turns + 1):
            if timed:
                figures.quiet += [ttft for ttft, _ in honest.ask_many(TIMED)]
            with beside_process(attack, server) as (made, statuses):
                found = honest.ask_many(TIMED if timed else BESIDE, made)
            figures.beside += [ttft for ttft, _ in found]
            figures.work += [spent for _, spent in found]
            if expected:
                self.assertTrue(statuses)
                self.assertLessEqual(set(statuses), set(expected))
            server.wait_idle()
            if turn >= turns and timed and figures.holds():
                break
        honest.client.close()
        kept = server.itself.metric("loramux:grammars_kept_bytes") or 0
        figures.memory, figures.peak = memory(server) - kept, memory(server, "VmHWM")
        return figures


class KeylessNeighbour(HostileNeighbour):
    """Clients are addresses."""
    attacks = KEYLESS_ATTACKS

    def start(self):
        return self.alone()


class RoutedNeighbour(HostileNeighbour):
    """A router checks the keys and tells the server whose request each one is."""
    attacks = ROUTED_ATTACKS

    def start(self):
        fleet_key = self.folder / "fleet.key"
        fleet_key.write_text("the-key-of-this-fleet-0123456789\n", encoding="utf-8")
        fleet_key.chmod(0o600)
        server = self.alone("--fleet-key-file", str(fleet_key))
        router = Server.run([serving.LORAMUX, "route", "--servers", f"127.0.0.1:{server.port}", "--port", "0",
                             "--api-key-file", str(self.keys), "--fleet-key-file", str(fleet_key)])
        self.addCleanup(router.process.kill)
        server.wait_idle = server.itself.wait_idle
        server.port = router.port
        server.processes.append(router.process)
        wait_for(lambda: self.first_answer(server) == 200, "an answer through the router")
        return server

    @staticmethod
    def first_answer(server):
        client = Client(server, HONEST)
        with contextlib.closing(client):
            return client.post(CHAT, chat("x", max_tokens=1))[0]

    def test_no_key_shares_the_prefixes_of_another(self):
        server = self.start()
        prompt = chat("four " * 180, max_tokens=1)

        def cached(key):
            client = Client(server, key)
            with contextlib.closing(client):
                status, body = client.post(CHAT, prompt)
            self.assertEqual(status, 200, body)
            return (json.loads(body)["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.assertEqual(cached(HONEST), 0)
        self.assertEqual(cached(HOSTILE), 0)
        self.assertGreater(cached(HONEST), 100)


class DrippingStore(Store):
    """A store that sends the weights of s3://drip at 1.4 KB a second."""

    def __init__(self):
        super().__init__()
        self.drips = 0   # downloads that have begun to drip
        self.ended = 0   # those that were given up

    def put_in(self, bucket, prefix, adapter):
        self.put(prefix, adapter)
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            self.objects[f"/{bucket}/{prefix}/{name}"] = self.objects.pop(f"/bucket/{prefix}/{name}")

    def send(self, handler, data):
        if not handler.path.startswith("/drip/") or not handler.path.endswith("safetensors"):
            return super().send(handler, data)
        self.drips += 1
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(data), 70):
                handler.wfile.write(data[at:at + 70])
                time.sleep(0.05)
        self.ended += 1
        return None


class DrippingSource(unittest.TestCase):
    """Eight loads from a source that drips, and honest loads from another source."""
    NAME = "eight loads from a source that drips: a load from another source"
    LOADS = 10

    def test_a_source_that_drips_holds_up_no_other(self):
        if options["only"] not in self.NAME:
            self.skipTest("no attack has this name")
        before = None
        if options["before"]:
            with program(options["before"]):
                before = self.measure(most_seconds=LONGEST_TURN)
        figures = self.measure(most_seconds=PATIENCE)
        add_row(self.NAME, figures, before)
        if timed:
            self.assertLessEqual(percentile99(figures.beside), figures.allowed(), "seconds of a load")

    def measure(self, most_seconds):
        """A load that takes longer than `most_seconds` counts so much, and is the last."""
        store = DrippingStore()
        self.addCleanup(store.close)
        large = bytes(20 << 20)   # they drip for hours, and are given up after eleven minutes
        for i in range(8):
            store.put_in("drip", f"d{i}", "reverse")
            store.objects[f"/drip/d{i}/adapter_model.safetensors"] = large
        for i in range(2 * self.LOADS):
            store.put_in("good", f"g{i}", "upper")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = RemoteServer(pathlib.Path(folder.name), store.environment, "--allowed-adapter-sources",
                              "s3://drip,s3://good")
        self.addCleanup(server.kill)

        def load(name, source, results):
            with contextlib.suppress(ConnectionError, http.client.HTTPException, TimeoutError):   # the server is killed
                results.append(server.load(name, source)[0])

        def in_thread(*arguments):
            thread = threading.Thread(target=load, args=arguments, daemon=True)
            thread.start()
            return thread

        def timed_load(number):
            results, start = [], time.monotonic()
            in_thread(f"g{number}", f"s3://good/g{number}", results).join(most_seconds)
            self.assertIn(results, ([200], []))
            return time.monotonic() - start
        figures = Figures(quiet=[timed_load(i) for i in range(self.LOADS if timed else 0)])
        for i in range(8):
            in_thread(f"d{i}", f"s3://drip/d{i}", [])
        wait_for(lambda: store.drips >= 4, "downloads that drip")
        for i in range(self.LOADS, 2 * self.LOADS if timed else self.LOADS + 2):
            figures.beside.append(timed_load(i))
            if figures.beside[-1] >= most_seconds:
                break
        if most_seconds == PATIENCE:
            self.assertLess(max(figures.beside), most_seconds, "seconds: the load has not ended")
            self.assertEqual(store.ended, 0, "downloads that dripped had ended before the loads from another source")
        return figures


if __name__ == "__main__":
    if "--timed" in sys.argv:
        sys.argv.remove("--timed")
        timed = True
    for option in list(options):
        if f"--{option}" in sys.argv:
            at = sys.argv.index(f"--{option}")
            options[option] = sys.argv[at + 1]
            del sys.argv[at:at + 2]
    timed = timed or options["before"] is not None
    if options["markdown"]:
        atexit.register(write_table)
    serving.run_tests()
