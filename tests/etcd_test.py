#!/usr/bin/env python3
"""Servers that share a catalogue of adapters in a real etcd of three members, while members and servers die.

Usage: etcd_test.py PATH_OF_LORAMUX
"""
import atexit
import base64
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import serving
from adapters_test import AdminServer
from serving import DEMO, run_tests, wait_for

REVERSE, ROT13 = DEMO / "adapters/reverse", DEMO / "adapters/rot13"
# With these, the leader's death costs about a second.
TIMING = ["--heartbeat-interval", "100", "--election-timeout", "1000"]


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Etcd:
    """A cluster of three members, each a process that can be killed and started again."""

    def __init__(self, top):
        self.top = pathlib.Path(top)
        ports = free_ports(6)
        self.clients, self.peers = ports[:3], ports[3:]
        self.processes = [None] * 3
        for member in range(3):
            self.start(member)
        atexit.register(self.stop)
        wait_for(lambda: self.leader() is not None, "a leader of etcd")

    def urls(self):
        return ",".join(f"http://127.0.0.1:{port}" for port in self.clients)

    def start(self, member):
        peer = [f"http://127.0.0.1:{port}" for port in self.peers]
        client = f"http://127.0.0.1:{self.clients[member]}"
        with open(self.top / f"etcd{member}.log", "ab") as log:
            self.processes[member] = subprocess.Popen(
                ["etcd", "--name", f"m{member}", "--data-dir", str(self.top / f"etcd{member}"), "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer[member], "--initial-advertise-peer-urls",
                 peer[member], "--initial-cluster", ",".join(f"m{i}={url}" for i, url in enumerate(peer)), *TIMING],
                stdout=log, stderr=log)

    def kill(self, member):
        self.processes[member].kill()
        self.processes[member].wait()
        self.processes[member] = None

    def stop(self):
        for member, process in enumerate(self.processes):
            if process is not None:
                self.kill(member)

    def ask(self, member, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.clients[member]}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def alive(self):
        return [member for member, process in enumerate(self.processes) if process is not None]

    def leader(self):
        """The index of the leader, None if there is none."""
        for member in self.alive():
            try:
                status = self.ask(member, "/v3/maintenance/status", {})
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                continue
            if status.get("leader", "0") == status["header"]["member_id"]:
                return member
        return None

    def put(self, key, value):
        """Writes a key below /loramux/v1/, as an operator's own tool may."""
        encode = lambda text: base64.b64encode(text.encode()).decode()
        self.ask(self.alive()[0], "/v3/kv/put", {"key": encode("/loramux/v1/" + key), "value": encode(json.dumps(value))})

    def keys(self, prefix):
        """What stands below a prefix of /loramux/v1/, as a dictionary; None if etcd does not answer now."""
        start = "/loramux/v1/" + prefix
        encode = lambda text: base64.b64encode(text.encode()).decode()
        body = {"key": encode(start), "range_end": encode(start[:-1] + chr(ord(start[-1]) + 1)), "serializable": True}
        try:
            found = self.ask(self.alive()[0], "/v3/kv/range", body)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None
        decode = lambda text: base64.b64decode(text).decode()
        return {decode(item["key"])[len(start):]: json.loads(decode(item["value"])) for item in found.get("kvs", [])}


@unittest.skipUnless(shutil.which("etcd"), "SKIPPED: there is no program etcd; tools/setup.sh test installs it")
class Fleet(unittest.TestCase):
    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="loramux-etcd-test-")).resolve()
        self.addCleanup(shutil.rmtree, self.top)
        self.etcd = Etcd(self.top)
        self.addCleanup(self.etcd.stop)

    def server(self, name, *flags):
        return AdminServer(self.top, "--etcd", self.etcd.urls(), "--server-id", name, "--drain-timeout", "2", *flags)

    def router(self):
        return AdminServer.run([serving.LORAMUX, "route", "--etcd", self.etcd.urls(), "--port", "0", "--drain-notice", "0"])

    def wait_served(self, server, adapter, like=None):
        """Until the server serves the adapter, with the answers of `like`."""
        wait_for(lambda: server.chat(adapter, "abcd")[0] == 200, f"{adapter} is served")
        if like:
            wait_for(lambda: server.answer(adapter, "abcd") == server.answer(like, "abcd"), f"{adapter} is {like}")

    def wait_gone(self, server, adapter):
        wait_for(lambda: server.chat(adapter, "abcd")[0] == 404, f"{adapter} is gone")

    def wait_members(self, *names):
        wait_for(lambda: self.etcd.keys("servers/") is not None and set(self.etcd.keys("servers/")) == set(names),
                 lambda: f"the members {names}; found {self.etcd.keys('servers/')}")

    def test_the_catalogue_reaches_every_server_and_survives(self):
        router = self.router()
        self.assertEqual(router.chat("reverse", "abcd")[0], 503)   # no server has registered yet
        one, two = self.server("one"), self.server("two")
        self.wait_members("one", "two")
        self.wait_served(router, "reverse")
        self.assertEqual(self.etcd.keys("servers/")["one"]["address"], f"127.0.0.1:{one.port}")
        self.assertEqual(self.etcd.keys("servers/")["one"]["model"], "demo")

        self.assertEqual(one.load("x", REVERSE)[0], 200)
        self.wait_served(two, "x", "reverse")
        entry = self.etcd.keys("adapters/")["x"]
        self.assertEqual((entry["source"], len(entry["digest"])), (str(REVERSE), 64))
        status = wait_for(lambda: (self.etcd.keys("status/") or {}).get("two/x"), "the status of two")
        self.assertEqual((status["state"], status["generation"], status["digest"]),
                         ("loaded", entry["generation"], entry["digest"]))
        self.assertEqual(two.load("x", ROT13)[0], 400)   # loaded already
        self.assertEqual(two.load("x", ROT13, load_inplace=True)[0], 200)
        self.wait_served(one, "x", "rot13")

        # A new server, and one that was restarted, have it as soon as they are ready.
        three = self.server("three")
        self.assertEqual(three.chat("x", "abcd")[0], 200)
        one.stop()
        self.wait_members("two", "three")   # withdrawn, long before the lease ends
        one = self.server("one")
        self.assertEqual(one.answer("x", "abcd"), three.answer("rot13", "abcd"))

        # A router asks one server, and all have the adapter when it answers.
        status, body = router.load("y", REVERSE)
        self.assertEqual((status, len(json.loads(body)["servers"])), (200, 1), body)
        for server in (one, two, three):
            self.assertEqual(server.answer("y", "abcd"), server.answer("reverse", "abcd"))
        self.assertEqual(router.chat("y", "abcd")[0], 200)
        self.assertEqual(router.unload("y")[0], 200)
        for server in (one, two, three, router):
            self.wait_gone(server, "y")

        # A bad adapter is refused, and reaches no server.
        self.assertEqual(one.load("bad", self.top / "nowhere")[0], 404)
        self.assertEqual(set(self.etcd.keys("adapters/")), {"x"})
        # Names of the directory are each server's own; the catalogue's go away everywhere.
        self.assertEqual(three.unload("x")[0], 200)
        for server in (one, two, three):
            self.wait_gone(server, "x")
            self.assertEqual(server.chat("reverse", "abcd")[0], 200)
        self.assertEqual(three.unload("x")[0], 404)

        # What another tool writes is followed too: first a wrong digest, then the right source.
        self.etcd.put("adapters/w", {"source": str(REVERSE), "digest": "0" * 64})
        failed = wait_for(lambda: self.etcd.keys("status/").get("one/w"), "the status of one")
        self.assertEqual(failed["state"], "failed")
        self.assertIn("digest 000", failed["error"])
        self.assertEqual(one.chat("w", "abcd")[0], 404)
        self.etcd.put("adapters/w", {"source": str(REVERSE), "pinned": True})
        for server in (one, two, three):
            self.wait_served(server, "w", "reverse")
        # An entry that cannot be read changes nothing.
        self.etcd.put("adapters/w", {"source": 7})
        wait_for(lambda: "entry of adapter 'w' cannot be read" in one.text(), "the log")
        self.assertEqual(one.chat("w", "abcd")[0], 200)

        # A server that dies is a member until its lease ends.
        two.process.kill()
        two.process.wait()
        self.assertIn("two", self.etcd.keys("servers/"))
        began = time.monotonic()
        self.wait_members("one", "three")
        self.assertGreater(time.monotonic() - began, 3)   # it renewed its lease of 10 s every 3.3 s
        self.assertEqual(router.chat("reverse", "abcd")[0], 200)
        for server in (router, one, three):
            server.stop()

    def test_without_a_quorum_nothing_changes(self):
        one, two = self.server("one"), self.server("two")
        self.wait_members("one", "two")
        router = self.router()
        self.assertEqual(one.load("x", REVERSE)[0], 200)
        self.wait_served(two, "x")

        leader = self.etcd.leader()
        self.etcd.kill(leader)
        # A load may be refused while a new leader is elected; then it succeeds.
        wait_for(lambda: one.load("y", ROT13)[0] == 200, "a load with two of three members")
        self.wait_served(two, "y", "rot13")

        survivor = self.etcd.alive()[0]
        self.etcd.kill(self.etcd.alive()[1])
        for operation in (lambda: one.load("z", REVERSE), lambda: one.unload("x"),
                          lambda: two.load("x", ROT13, load_inplace=True), lambda: router.load("z", REVERSE)):
            status, body = operation()
            self.assertEqual(status, 503, body)
            self.assertIn("etcd", body)
            self.assertIn("nothing was changed", body)
        for server in (one, two, router):
            self.assertEqual(server.answer("x", "abcd"), server.answer("reverse", "abcd"))
            self.assertEqual(server.chat("y", "abcd")[0], 200)
            self.assertEqual(server.chat("z", "abcd")[0], 404)
        # A new server reads what the last member knows.
        three = self.server("three")
        self.assertEqual(three.chat("y", "abcd")[0], 200)

        # etcd as a whole is gone: everything stays.
        self.etcd.kill(survivor)
        for server in (one, two, three, router):
            for adapter in ("x", "y"):
                self.assertEqual(server.chat(adapter, "abcd")[0], 200)
        self.assertEqual(one.load("z", REVERSE)[0], 503)

        # It comes back: the members register again, changes are possible, and reach all servers.
        for member in range(3):
            self.etcd.start(member)
        wait_for(lambda: one.load("z", REVERSE)[0] == 200, "a load after etcd came back")
        self.wait_served(two, "z")
        self.wait_served(three, "z")
        self.wait_members("one", "two", "three")

        # A server that stands still beyond its lease registers again.
        two.process.send_signal(signal.SIGSTOP)
        self.wait_members("one", "three")
        two.process.send_signal(signal.SIGCONT)
        self.wait_members("one", "two", "three")
        self.assertEqual(two.chat("x", "abcd")[0], 200)

        # etcd loses its data: servers keep what they have.
        self.etcd.stop()
        for member in range(3):
            shutil.rmtree(self.top / f"etcd{member}")
            self.etcd.start(member)
        self.wait_members("one", "two", "three")
        wait_for(lambda: "lost the catalogue's entry of adapter 'x'" in one.text(), "the log")
        for server in (one, two, three, router):
            self.assertEqual(server.chat("x", "abcd")[0], 200)
        self.assertEqual(two.load("x", ROT13, load_inplace=True)[0], 200)
        self.wait_served(one, "x", "rot13")
        router.stop()
        for server in (one, two, three):
            self.assertEqual(server.stop().count("unloaded"), 0)


class Flags(unittest.TestCase):
    def test_flags_that_make_no_sense(self):
        with tempfile.TemporaryDirectory() as top:
            for flags, message in [(["--etcd", "127.0.0.1:2379"], "--etcd: expected http://"),
                                   (["--server-id", "x"], "--etcd"),
                                   (["--etcd", "http://127.0.0.1:1", "--server-id", "a/b"], "--server-id: expected"),
                                   (["--etcd", "http://127.0.0.1:1", "--advertise", "a/b"], "--advertise"),
                                   (["--etcd", "http://127.0.0.1:1", "--host", "0.0.0.0"], "--advertise")]:
                with self.assertRaises(RuntimeError) as caught:
                    AdminServer(top, *flags)
                self.assertIn(message, str(caught.exception))

    def test_a_server_starts_while_etcd_is_away(self):
        with tempfile.TemporaryDirectory() as top:
            server = AdminServer(top, "--etcd", f"http://127.0.0.1:{free_ports(1)[0]}")
            self.assertEqual(server.chat("reverse", "abcd")[0], 200)
            status, body = server.load("x", REVERSE)
            self.assertEqual(status, 503, body)
            text = server.stop()
            self.assertIn("cannot be followed", text)
            self.assertIn("is not registered", text)


if __name__ == "__main__":
    run_tests()
