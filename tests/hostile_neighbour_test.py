#!/usr/bin/env python3
"""Hostile clients in turn, and an honest one beside each. Standard library only.

Usage: hostile_neighbour_test.py PATH_OF_LORAMUX [--markdown FILE] [--only PART_OF_NAME] [--pause SECONDS] [unittest arguments]

Four neighbourhoods: a server with an API key for each client; a server without keys, to which clients are addresses; a
keyless server behind a router that checks the keys; loads of adapters from a store that drips. The hostile client has a
key and an address of its own, and repeats its attack until the honest client is done. The honest client must get the right
answers, and must not wait long: its TTFT may be 1.5 times what it is without the attack, plus PAUSE seconds, so that a
machine that stands still for a moment does not fail the test (`--pause 0.02` on a quiet machine). The memory of the server
must not grow. The router's part runs with `--routed`. `--markdown` writes the figures of the run as a table. `--unchecked` demands nothing of times, memory and
statuses: for the figures of an older program.
"""
import contextlib
import copy
import dataclasses
import http.client
import itertools
import json
import multiprocessing
import pathlib
import socket
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
PAUSE = 3          # seconds
QUIET = 30         # honest requests without an attack, before all attacks
BESIDE = 20        # honest requests beside each attack, at least: they go on until the attack was made once
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
    """Under 1 KB: a string that must match eleven patterns."""
    texts = [f".*{chr(97 + i)}{chr(98 + i)}.*" for i in range(11)]
    return constrained({"type": "object", "properties": {f"p{next(numbers)}": {
        "allOf": [{"type": "string", "pattern": text} for text in texts]}}})


def many_ranges():
    """A schema of 40 KB, within all limits, that takes a quarter of a second to compile."""
    ranges = [{"type": "integer", "minimum": i, "maximum": 1000 * i + 99} for i in range(800)]
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
    Attack("schemas that take long, four at once", schemas(many_ranges), (200, 400)),
    Attack("60 requests that are reset at once", reset_requests, ()),
]
FOUR_ADDRESSES = [f"127.0.0.{i}" for i in range(9, 13)]
KEYLESS_ATTACKS = [
    Attack("schemas of many patterns from four addresses", schemas(many_patterns, FOUR_ADDRESSES), (400,)),
    Attack("schemas that take long from four addresses", schemas(many_ranges, FOUR_ADDRESSES), (200, 400)),
]
ROUTED_ATTACKS = [
    Attack("schemas of many patterns through the router", schemas(many_patterns), (400, 429)),
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


def percentile99(values):
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


class Honest:
    """Asks the demo's questions, one after the other, each on a connection that stays open."""

    def __init__(self, server, test):
        self.client = Client(server, HONEST)
        self.test = test
        self.questions = questions(3)
        self.asked = 0

    def ask(self):
        """The TTFT of one request, in seconds."""
        model, prompt, answer = self.questions[self.asked % len(self.questions)]
        self.asked += 1
        body = json.loads(chat(prompt, temperature=0, max_tokens=100, stream=True))
        body["model"] = model
        connection = self.client.connection
        start = time.monotonic()
        connection.request("POST", CHAT, json.dumps(body), {"Authorization": f"Bearer {HONEST}",
                                                            "Content-Type": "application/json"})
        response = connection.getresponse()
        first = response.readline()
        ttft = time.monotonic() - start
        text = first + response.read()
        self.test.assertEqual(response.status, 200, text)
        events = [json.loads(line[6:]) for line in text.decode().split("\n\n") if line and line != "data: [DONE]"]
        said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
        self.test.assertEqual(said, answer, (model, prompt))
        return ttft

    def ask_many(self, count, enough=lambda: True):
        """The P99 of the TTFT of `count` requests, and of as many more as are asked until `enough` is true."""
        found = []
        while len(found) < count or not enough():
            found.append(self.ask())
        return percentile99(found)


SIZES = ("--max-num-seqs", "8", "--device-memory", POOL, "--host-memory", POOL)
options = {"markdown": None, "only": "", "pause": str(PAUSE)}   # of the command line
checked = True
routed = False


def keep(table):
    """Adds rows to the file of the command line."""
    if options["markdown"]:
        with pathlib.Path(options["markdown"]).open("a", encoding="utf-8") as file:
            file.write("\n".join(table) + "\n\n")


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
        self.server = self.start()
        self.addCleanup(self.server.process.kill)

    def start(self):
        return Server("--api-key-file", str(self.keys), *SIZES)

    def test_each_attack(self):
        wanted = [attack for attack in self.attacks if options["only"] in attack.name]
        if not wanted:
            self.skipTest("no attack has this name")
        honest = Honest(self.server, self)
        self.addCleanup(honest.client.close)
        fill_pool(self.server)
        honest.ask_many(QUIET)
        quiet = honest.ask_many(QUIET)
        quiet_memory = memory(self.server)
        rows, table = [], [
            "| attack | P99 of the honest client's TTFT, ms | times the quiet value | memory after it, MB | at the peak, MB |",
            "|---|---|---|---|---|", f"| none | {quiet * 1000:.0f} | 1 | {quiet_memory / 1e6:.0f} | |"]
        print("\n".join(table), file=sys.stderr, flush=True)
        for attack in wanted:
            with self.subTest(attack=attack.name):
                rows.append(self.beside(attack, Honest(self.server, self)))
                table.append(self.row(*rows[-1], quiet))
                print(table[-1], file=sys.stderr, flush=True)
        keep(table)
        for attack, ttft, after, peak in rows if checked else ():
            with self.subTest(attack=attack.name):
                self.assertLess(ttft, 1.5 * quiet + float(options["pause"]), "seconds of TTFT")
                self.assertLess(after, quiet_memory * MEMORY_FACTOR + MEMORY_SLACK, "bytes after the attack")
                self.assertLess(peak, quiet_memory * MEMORY_FACTOR + PEAK_SLACK, "bytes at the peak")
        self.server.stop()

    def beside(self, attack, honest):
        """Runs the attack beside the honest client. (attack, P99 of the TTFT, memory after it, at the peak)"""
        forget_peak(self.server)
        with beside_process(attack, self.server) as (made, statuses):
            ttft = honest.ask_many(BESIDE, made)
        honest.client.close()
        if attack.expected and checked:
            self.assertTrue(statuses)
            self.assertLessEqual(set(statuses), set(attack.expected))
        self.server.wait_idle()
        peak = memory(self.server, "VmHWM")
        return attack, ttft, memory(self.server), peak

    @staticmethod
    def row(attack, ttft, after, peak, quiet):
        return (f"| {attack.name} | {ttft * 1000:.0f} | {ttft / quiet:.1f} | {after / 1e6:.0f} | "
                f"{peak / 1e6:.0f} |")


class KeylessNeighbour(HostileNeighbour):
    """Clients are addresses."""
    attacks = KEYLESS_ATTACKS

    def start(self):
        return Server(*SIZES)


class RoutedNeighbour(HostileNeighbour):
    """A router checks the keys and tells the server whose request each one is."""
    attacks = ROUTED_ATTACKS

    def setUp(self):
        if not routed:
            self.skipTest("without --routed")
        super().setUp()

    def start(self):
        fleet_key = self.folder / "fleet.key"
        fleet_key.write_text("the-key-of-this-fleet-0123456789\n", encoding="utf-8")
        fleet_key.chmod(0o600)
        server = Server("--fleet-key-file", str(fleet_key), *SIZES)
        self.router = Server.run([serving.LORAMUX, "route", "--servers", f"127.0.0.1:{server.port}", "--port", "0",
                                  "--api-key-file", str(self.keys), "--fleet-key-file", str(fleet_key)])
        self.addCleanup(self.router.process.kill)
        server.wait_idle = copy.copy(server).wait_idle   # asks the server itself
        server.port = self.router.port
        wait_for(lambda: self.first_answer(server) == 200, "an answer through the router")
        return server

    @staticmethod
    def first_answer(server):
        client = Client(server, HONEST)
        with contextlib.closing(client):
            return client.post(CHAT, chat("x", max_tokens=1))[0]

    def test_no_key_shares_the_prefixes_of_another(self):
        if not checked:
            return
        prompt = chat("four " * 180, max_tokens=1)

        def cached(key):
            client = Client(self.server, key)
            with contextlib.closing(client):
                status, body = client.post(CHAT, prompt)
            self.assertEqual(status, 200, body)
            return (json.loads(body)["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.assertEqual(cached(HONEST), 0)
        self.assertEqual(cached(HOSTILE), 0)
        self.assertGreater(cached(HONEST), 100)


class DrippingStore(Store):
    """A store that sends the weights of s3://drip at 1.4 KB a second."""
    drips = 0   # downloads that drip, or did

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
        return None


class DrippingSource(unittest.TestCase):
    """Eight loads from a source that drips, and an honest load from another source."""

    def test_a_source_that_drips_holds_up_no_other(self):
        if options["only"] not in "a source that drips":
            self.skipTest("no attack has this name")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        store = DrippingStore()
        self.addCleanup(store.close)
        large = bytes(20 << 20)
        for i in range(8):
            store.put_in("drip", f"d{i}", "reverse")
            store.objects[f"/drip/d{i}/adapter_model.safetensors"] = large
        for i in range(4):
            store.put_in("good", f"g{i}", "upper")
        server = RemoteServer(pathlib.Path(folder.name), store.environment, "--allowed-adapter-sources", "s3://drip,s3://good")
        self.addCleanup(server.process.kill)

        def load(name, source):
            start = time.monotonic()
            self.assertEqual(server.load(name, source)[0], 200)
            return time.monotonic() - start

        def drip(number):
            with contextlib.suppress(ConnectionError, http.client.HTTPException, TimeoutError):   # the server is killed
                server.load(f"d{number}", f"s3://drip/d{number}")
        quiet = max(load(f"q{i}", f"s3://good/g{i}") for i in range(2))
        for i in range(8):
            threading.Thread(target=drip, args=(i,), daemon=True).start()
        wait_for(lambda: store.drips >= 4, "downloads that drip")
        beside = max(load(f"b{i}", f"s3://good/g{i}") for i in range(2, 4))
        keep(["| attack | load from another source, ms |", "|---|---|", f"| none | {quiet * 1000:.0f} |",
              f"| eight loads from a source that drips | {beside * 1000:.0f} |"])
        if checked:
            self.assertLess(beside, 1.5 * quiet + float(options["pause"]))


if __name__ == "__main__":
    if "--unchecked" in sys.argv:
        sys.argv.remove("--unchecked")
        checked = False
    if "--routed" in sys.argv:
        sys.argv.remove("--routed")
        routed = True
    for option in list(options):
        if f"--{option}" in sys.argv:
            at = sys.argv.index(f"--{option}")
            options[option] = sys.argv[at + 1]
            del sys.argv[at:at + 2]
    serving.run_tests()
