#!/usr/bin/env python3
"""What a server tells routers, with the real program: snapshots by long poll, the order of a drain, keys, the digest of an
adapter, and which refusals may be sent elsewhere. Standard library only.

Usage: fleet_server_test.py PATH_OF_LORAMUX
"""
import base64
import http.client
import json
import pathlib
import signal
import tempfile
import threading
import time
import unittest

import serving
from serving import PATIENCE, Server

SNAPSHOT = "/internal/snapshot"
KEY, CLIENT_KEY = "fleet-key-0123456789", "client-key-0123456789"


class Client:
    """One connection, which stays open."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.connection.connect()

    def __del__(self):
        self.connection.close()

    def call(self, method, path, body=None, **headers):
        """(status, headers with lower-case names, body)"""
        data = None if body is None else json.dumps(body)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, data, {"Content-Type": "application/json", **headers})
        response = self.connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()

    def poll(self, query="", **headers):
        status, headers, body = self.call("GET", SNAPSHOT + query, **headers)
        assert status == 200, (status, body)
        assert int(headers["x-loramux-snapshot-age-ms"]) < 5000, headers
        return json.loads(body)

    def complete(self, model="reverse", prompt="hello", max_tokens=4, **headers):
        return self.call("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": max_tokens}, **headers)


def after(snapshot, wait_ms=30000):
    return f"?after={snapshot['version']}&instance={snapshot['instance']}&wait_ms={wait_ms}"


def poll_until(client, snapshot, wanted):
    """The first snapshot after this one that is as wanted. Versions ascend on the way."""
    end = time.monotonic() + PATIENCE
    while not wanted(snapshot) and time.monotonic() < end:
        newer = client.poll(after(snapshot))
        assert newer["version"] > snapshot["version"], (snapshot, newer)
        assert {**newer, "version": 0} != {**snapshot, "version": 0}, newer
        snapshot = newer
    assert wanted(snapshot), snapshot
    return snapshot


def blocks(snapshot):
    data = base64.b64decode(snapshot["prefixes"])
    return [data[i:i + 4] for i in range(0, len(data), 4)]


def listed(snapshot, name):
    return next((adapter for adapter in snapshot["adapters"] if adapter["name"] == name), None)


class Fleet(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.process.kill)

    def test_a_poll_wakes_when_the_server_changes(self):
        router, client = Client(self.server), Client(self.server)
        first = router.poll()
        self.assertEqual(first["base_model"], "demo")
        self.assertFalse(first["draining"])
        idle = router.poll(after(first, 300))
        self.assertEqual(idle, first)   # nothing changed: no new version
        woken = []
        poller = threading.Thread(target=lambda: woken.append((router.poll(after(first)), time.monotonic())))
        poller.start()
        time.sleep(0.3)
        self.assertFalse(woken)
        begun = time.monotonic()
        status, headers, body = client.complete("count", max_tokens=8)   # no other test loads this adapter
        self.assertEqual(status, 200, body)
        poller.join(PATIENCE)
        snapshot, at = woken[0]
        self.assertGreater(snapshot["version"], first["version"])
        self.assertLess(at - begun, 20)   # not after the 30 s that it would have waited in vain
        ready = poll_until(router, snapshot, lambda state: state["running"] == 0 and (
            listed(state, "count") or {}).get("place") == "device")
        adapter = listed(ready, "count")
        self.assertEqual(adapter["digest"], headers["x-loramux-adapter-digest"])
        self.assertEqual(len(adapter["digest"]), 64)
        self.assertGreater(adapter["rank"], 0)
        self.assertGreater(adapter["bytes"], 0)
        self.assertEqual(adapter["running"] + adapter["waiting"], 0)

    def test_prompts_that_were_computed_are_listed_by_their_blocks(self):
        router, client = Client(self.server), Client(self.server)
        first = router.poll()
        before = blocks(first)
        status, _, body = client.complete(prompt="one two three " * 40, max_tokens=1)   # 560 bytes: two blocks
        self.assertEqual(status, 200, body)
        ready = poll_until(router, first, lambda state: len(blocks(state)) > len(before))
        self.assertEqual(len(blocks(ready)), len(before) + 2)

    def test_a_digest_can_be_required(self):
        client = Client(self.server)
        status, headers, _ = client.complete()
        self.assertEqual(status, 200)
        digest = headers["x-loramux-adapter-digest"]
        self.assertEqual(client.complete(x_loramux_require_digest=digest)[0], 200)
        for model in ("reverse", "demo", "no such adapter"):
            status, headers, body = client.complete(model, x_loramux_require_digest="00" * 32)
            self.assertEqual((status, headers.get("x-loramux-not-started")), (503, "1"), body)
        status, headers, _ = client.complete("no such adapter")
        self.assertEqual((status, headers.get("x-loramux-not-started")), (404, None))
        self.assertNotIn("x-loramux-adapter-digest", client.complete("demo")[1])

    def test_the_load_is_in_a_header_on_request(self):
        client = Client(self.server)
        self.assertNotIn("endpoint-load-metrics", client.complete()[1])
        text = client.complete(endpoint_load_metrics_format="TEXT")[1]["endpoint-load-metrics"]
        self.assertRegex(text, r"^TEXT application_utilization=[0-9.e-]+, mem_utilization=[0-9.e-]+, named_metrics\.")
        report = json.loads(client.complete(endpoint_load_metrics_format="JSON")[1]["endpoint-load-metrics"][5:])
        self.assertLessEqual(report["named_metrics"]["kv_cache_usage_perc"], 1)
        self.assertGreaterEqual(report["application_utilization"], 0)

    def test_adapter_slots_are_in_the_metrics(self):
        client = Client(self.server)
        client.complete()
        page = client.call("GET", "/metrics")[2].decode()
        values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
                  if line.startswith(("vllm:max_gpu_lora_adapters{", "vllm:num_gpu_loaded_lora_adapters{"))}
        self.assertGreaterEqual(values["vllm:num_gpu_loaded_lora_adapters"], 1)
        self.assertGreaterEqual(values["vllm:max_gpu_lora_adapters"], values["vllm:num_gpu_loaded_lora_adapters"])

    def test_without_a_profile_there_is_none(self):
        status, _, body = Client(self.server).call("GET", "/internal/profile")
        self.assertEqual(status, 404)
        self.assertIn(b"--profile FILE", body)


class Keys(unittest.TestCase):
    def test_routers_need_the_fleet_key(self):
        with tempfile.TemporaryDirectory() as folder:
            key = pathlib.Path(folder) / "key"
            key.write_text(KEY + "\n")
            for flags, statuses in (((), (403, 403, 403)), (("--fleet-key-file", str(key)), (401, 401, 200))):
                server = Server("--api-key", CLIENT_KEY, *flags)
                self.addCleanup(server.process.kill)
                for authorization, expected in zip(("", f"Bearer {CLIENT_KEY}", f"Bearer {KEY}"), statuses):
                    headers = {"Authorization": authorization} if authorization else {}
                    status, _, body = Client(server).call("GET", SNAPSHOT, **headers)
                    self.assertEqual(status, expected, body)
                    if status == 403:
                        self.assertIn(b"--fleet-key-file", body)
                server.stop()


class Drain(unittest.TestCase):
    def test_routers_hear_of_the_drain_before_health_turns(self):
        server = Server("--drain-notice", "3600")
        self.addCleanup(server.process.kill)
        router, probe, client = (Client(server) for _ in range(3))
        first = router.poll()
        server.process.send_signal(signal.SIGTERM)
        last = poll_until(router, first, lambda state: state["draining"])
        self.assertEqual(probe.call("GET", "/health")[0], 200)
        self.assertEqual(client.complete()[0], 200)   # what routers sent before they knew is still served
        self.assertEqual(Client(server).complete()[0], 200)   # on a new connection too
        poll_until(router, last, lambda state: listed(state, "reverse"))   # and polls go on
        server.process.send_signal(signal.SIGTERM)   # the second signal waits for nothing
        self.assertEqual(server.process.wait(PATIENCE), 128 + signal.SIGTERM)

    def test_after_the_notice_nothing_is_begun(self):
        server = Server("--drain-notice", "0.5")
        self.addCleanup(server.process.kill)
        router, late, busy = (Client(server) for _ in range(3))
        first = router.poll()
        self.assertEqual(late.call("GET", "/health")[0], 200)
        running = []
        long = threading.Thread(target=lambda: running.append(busy.complete("demo", max_tokens=60)))
        long.start()
        poll_until(router, first, lambda state: state["running"] > 0 or running)
        server.process.send_signal(signal.SIGTERM)
        draining = poll_until(router, first, lambda state: state["draining"])
        try:   # ends with the notice, not after an hour
            self.assertTrue(router.poll(after(draining))["draining"])
        except (ConnectionError, http.client.HTTPException):
            pass
        try:
            while True:
                status, headers, body = late.complete(max_tokens=1)
                if status != 200:
                    self.assertEqual((status, headers.get("x-loramux-not-started")), (503, "1"), body)
                    break
        except (ConnectionError, http.client.HTTPException):
            pass   # the server has ended already
        long.join(PATIENCE)
        self.assertEqual(running[0][0], 200)
        self.assertNotIn("x-loramux-not-started", running[0][1])
        self.assertEqual(server.process.wait(PATIENCE), 0)

    def test_without_a_router_nothing_is_waited_for(self):
        server = Server("--drain-notice", "3600")
        self.addCleanup(server.process.kill)
        server.stop()


if __name__ == "__main__":
    serving.run_tests()
