#!/usr/bin/env python3
"""Adapters from an object store and from a model hub on the running program. The store is played by this test, faults
included; `tests/clients/install.sh all` installs a real one (SeaweedFS), and then the last class runs too. Standard library
only.

Usage: remote_adapters_test.py PATH_OF_LORAMUX
"""
import base64
import hashlib
import hmac
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest
import urllib.parse

import gguf_test
import serving
from adapters_test import AdminServer, WithFolder
from hub_test import Hub
from serving import DEMO, PATIENCE, Server, run_tests, wait_for

KEY_ID, SECRET, REGION = "a-key-id-of-the-test", "a-secret-key-of-the-test", "eu-test-1"
WEED = serving.CLIENTS / "seaweedfs/bin/weed"


def signature(method, path, headers, secret, date, scope, signed):
    """The signature that Amazon's version 4 demands of a request without content and query."""
    canonical = "\n".join([method, path, "", *(f"{name}:{' '.join(headers[name].split())}" for name in signed), "",
                           ";".join(signed), hashlib.sha256(b"").hexdigest()])
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in [*scope.split("/"), text]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


class StoreHandler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD of objects, with ranges and If-Match, for signed requests. `self.server.store` says what goes wrong."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        store = self.server.store
        store.seen.append((self.command, self.path, dict(self.headers)))
        if not self.is_signed():
            return self.answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        data = store.objects.get(urllib.parse.unquote(self.path))
        if data is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        etag = '"%s"' % hashlib.md5(data).hexdigest()
        if self.headers.get("If-Match", etag) != etag:
            return self.answer(412, b"")
        begin = 0
        if self.headers.get("Range"):
            begin = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"]).group(1))
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", etag)
        self.send_header("x-amz-checksum-sha256", base64.b64encode(hashlib.sha256(data).digest()).decode())
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if self.command == "HEAD":
            return
        middle = begin + (len(data) - begin) // 2
        store.send(self, data[begin:middle])
        self.wfile.flush()
        if self.path.endswith("safetensors"):
            with store.held:
                store.halfway += 1
                store.held.notify_all()
                store.held.wait_for(lambda: not store.hold or not (store.hold is True or self.path.startswith(store.hold)))
        store.send(self, data[middle:])

    do_HEAD = do_GET

    def is_signed(self):
        match = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\S+), ?SignedHeaders=(\S+), ?Signature=(\w+)",
                             self.headers.get("Authorization", ""))
        if match is None or match.group(1) != KEY_ID or match.group(2).split("/")[1:] != [REGION, "s3", "aws4_request"]:
            return False
        headers = {name.lower(): value for name, value in self.headers.items()}
        return match.group(4) == signature(self.command, self.path, headers, SECRET, headers["x-amz-date"], match.group(2),
                                           match.group(3).split(";"))

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Store:
    """An S3 store on this machine. `hold`: it stops in the middle of weights until `release`; True, or below which path."""

    def __init__(self):
        self.objects, self.seen, self.hold, self.halfway = {}, [], False, 0
        self.held = threading.Condition()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StoreHandler)
        self.server.store, self.server.daemon_threads = self, True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_port}",
                            "AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION,
                            "NO_PROXY": "*", "no_proxy": "*"}
        self.environment.pop("AWS_SESSION_TOKEN", None)

    def put(self, prefix, adapter, bucket="bucket"):
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            self.objects[f"/{bucket}/{prefix}/{name}"] = (DEMO / "adapters" / adapter / name).read_bytes()

    def send(self, handler, data):
        handler.wfile.write(data)

    def weights(self):
        return [headers for method, path, headers in self.seen if method == "GET" and path.endswith("safetensors")]

    def release(self):
        with self.held:
            self.hold = False
            self.held.notify_all()

    def close(self):
        self.release()
        self.server.shutdown()
        self.server.server_close()


class RemoteServer(AdminServer):
    """A server with runtime loading and an empty cache in `top`."""

    def __init__(self, top, environment, *flags):
        self.environment = environment
        flags = ("--adapter-cache-dir", str(pathlib.Path(top) / "cache"), *flags)
        if "--allowed-adapter-sources" not in flags:
            flags += ("--allowed-adapter-sources", "s3://bucket/team,hf://demo-org")
        super().__init__(top, *flags)

    def start(self, command, **more):
        super().start(command, env=self.environment, **more)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Remote(WithFolder):
    def setUp(self):
        super().setUp()
        self.store = Store()
        self.addCleanup(self.store.close)
        self.store.put("team/reverse", "reverse")
        self.store.put("team/upper", "upper")

    def serve(self, *flags):
        return RemoteServer(self.top, self.store.environment, *flags)

    def assert_reverses(self, server, model):
        self.assertEqual(server.answer(model, "abcd"), "dcba")

    def test_named_by_flags_and_after_that_the_store_may_be_gone(self):
        arguments = ("--lora-modules", "mine=s3://bucket/private/reverse", "also=s3://bucket/team/upper")
        self.store.put("private/reverse", "reverse")
        server = self.serve(*arguments)
        self.assert_reverses(server, "mine")
        self.assertEqual(server.answer("also", "abcd"), server.answer("upper", "abcd"))
        self.assertEqual(server.cards()["mine"]["root"], "s3://bucket/private/reverse")
        server.stop()
        self.store.objects.clear()
        server = self.serve(*arguments)
        self.assert_reverses(server, "mine")
        self.assertIn("what the cache has of it is used", server.stop())

    def test_a_flag_that_names_nothing_refuses_the_start(self):
        for source, message in (("s3://bucket/nowhere", "found no such object"), ("s3://bucket/../x", "no empty part"),
                                ("gs://bucket/x", "s3://BUCKET/PREFIX")):
            with self.assertRaises(RuntimeError) as caught:
                self.serve("--lora-modules", f"x={source}")
            self.assertIn(source, str(caught.exception))
            self.assertIn(message, str(caught.exception))
            self.assertNotIn(SECRET, str(caught.exception))

    def test_loaded_reloaded_and_unloaded_by_the_administrator(self):
        server = self.serve("--state-dir", str(self.top / "state"))
        source = "s3://bucket/team/reverse"
        self.assertEqual(server.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": source}, key="wrong")[0], 401)
        self.assertEqual(server.load("x", source), (200, "Success: LoRA adapter 'x' added successfully."))
        self.assert_reverses(server, "x")
        self.assertIn("same content", server.load("x", source + "/", load_inplace=True)[1])
        self.assertEqual(len(self.store.weights()), 1)
        self.store.put("team/reverse", "upper")   # a new version of the same source
        self.assertEqual(server.load("x", source, load_inplace=True)[0], 200)
        self.assertEqual(server.answer("x", "abcd"), server.answer("upper", "abcd"))
        for path, message in (("s3://bucket/team-x/reverse", "--allowed-adapter-sources"),
                              ("s3://other/reverse", "--allowed-adapter-sources"), ("s3://bucket/team/../x", "found something"),
                              ("s3://bucket/team/nowhere", "found no such object")):
            status, body = server.load("y", path)
            self.assertIn(status, (400, 404), body)
            self.assertIn(message, body)
        status, body = server.load("y", source, lora_digest="0" * 64)
        self.assertEqual(status, 400)
        self.assertIn("expected content with digest 0000", body)
        self.assertEqual(server.unload("x")[0], 200)
        self.assertEqual(server.chat("x", "abcd")[0], 404)
        server.stop()

    def test_a_request_names_a_source(self):
        flags = ("--state-dir", str(self.top / "state"), "--sources-on-request")
        server = self.serve(*flags)
        base = next(name for name, card in server.cards().items() if card["parent"] is None)
        self.store.hold = True
        source = "s3://bucket/team/reverse"
        status, body = server.chat(f"{base}|{source}", "abcd")
        self.assertEqual(status, 429, body)
        self.assertIn("is being fetched", body["error"]["message"])
        self.assert_reverses(server, "reverse")
        self.store.release()
        wait_for(lambda: server.chat(source, "abcd")[0] == 200, "the adapter to be fetched")
        for name in (source, f"{base}|{source}", f"{base}:{source}"):
            self.assert_reverses(server, name)
        self.assert_reverses(server, f"{base}|reverse")
        self.assertEqual(len(self.store.weights()), 1)
        self.assertEqual(server.cards()[source]["root"], source)
        for name, code, message in (("s3://bucket/team/nowhere", 404, "found no such object"),
                                    ("s3://other/reverse", 400, "--allowed-adapter-sources"),
                                    (source + "/", 400, "without a slash"),   # keys permit names as they are
                                    ("s3://bucket/team/../x", 400, "no empty part"), ("gs://bucket/x", 400, "s3://BUCKET")):
            answer = wait_for(lambda: [a for a in [server.chat(f"{base}|{name}", "abcd")] if a[0] != 429], name)[0]
            self.assertIn(answer[0], (code, 400), answer)
            self.assertIn(message, answer[1]["error"]["message"])
        self.assertEqual(server.load(source + "/", source)[0], 400)
        self.assertEqual(server.unload(source + "/")[0], 404)
        self.assertEqual(server.unload(source)[0], 200)
        self.assertEqual(server.chat(source, "abcd")[0], 404)
        server.kill()
        server = self.serve(*flags)
        self.assertEqual(server.chat(source, "abcd")[0], 404)   # unloaded is unloaded
        self.assertEqual(server.load(source, source)[0], 200)
        self.assert_reverses(server, source)
        server.stop()
        server = self.serve()
        self.assertEqual(server.chat(source, "abcd")[0], 404)   # only where the operator says so
        server.stop()

    def test_slow_buckets_hold_up_no_other(self):
        slow = ["slow-a", "slow-b", "slow-c"]
        buckets = ",".join(f"s3://{bucket}" for bucket in [*slow, "other"])
        server = self.serve("--sources-on-request", "--allowed-adapter-sources", buckets)
        self.store.put("x", "reverse", bucket="other")
        self.store.hold = "/slow-"
        for bucket in slow:
            for i in range(40):   # more than may wait at a time
                self.store.put(f"{i}", "reverse", bucket=bucket)
                status, body = server.chat(f"s3://{bucket}/{i}", "abcd")
                self.assertEqual(status, 429)
                waits = "waits for others" if i >= 32 else "is being fetched"
                self.assertIn(waits, body["error"]["message"])
        wait_for(lambda: self.store.halfway >= 12, "four downloads of each in their middle")
        wait_for(lambda: server.chat("s3://other/x", "abcd")[0] == 200, "the adapter of the other bucket")
        self.assertEqual(self.store.halfway, 13)
        self.store.release()
        for bucket in slow:
            for i in (0, 31, 39):
                wait_for(lambda: server.chat(f"s3://{bucket}/{i}", "abcd")[0] == 200, f"number {i} of {bucket}")
        server.stop()

    def test_no_source_is_allowed_unless_it_is_named(self):
        server = self.serve("--allowed-adapter-sources", "s3://elsewhere")
        status, body = server.load("x", "s3://bucket/team/reverse")
        self.assertEqual(status, 400)
        self.assertIn("--allowed-adapter-sources", body)
        self.assertEqual(self.store.seen, [])
        server.stop()

    def test_restarts_with_and_without_the_cache_and_the_store(self):
        flags = ("--state-dir", str(self.top / "state"))
        server = self.serve(*flags)
        self.assertEqual(server.load("x", "s3://bucket/team/reverse")[0], 200)
        self.assertEqual(server.load("y", "s3://bucket/team/upper")[0], 200)
        server.kill()
        objects, self.store.objects = self.store.objects, {}
        self.store.seen.clear()
        server = self.serve(*flags)   # the cache has it, so the store is not asked
        self.assert_reverses(server, "x")
        self.assertEqual(self.store.seen, [])
        server.kill()

        shutil.rmtree(self.top / "cache")
        self.store.objects, self.store.hold = objects, True
        self.store.put("team/upper", "rot13")   # no longer what was loaded
        server = self.serve(*flags)   # it starts before the downloads have ended
        status, body = server.chat("x", "abcd")
        self.assertEqual(status, 503, body)
        self.assert_reverses(server, "reverse")   # others are served meanwhile
        self.store.release()
        wait_for(lambda: server.chat("x", "abcd")[0] == 200, "the adapter to be downloaded again")
        self.assert_reverses(server, "x")
        wait_for(lambda: server.chat("y", "abcd")[0] == 404, "the changed adapter to be refused")
        self.assertIn("expected content with digest", server.chat("y", "abcd")[1]["error"]["message"])
        server.stop()

    def test_a_killed_download_goes_on(self):
        server = self.serve()
        self.store.hold = True
        threading.Thread(target=self.try_to_load, args=(server,), daemon=True).start()
        partial = wait_for(lambda: list(self.top.glob("cache/partial/*/adapter_model.safetensors.part")), "the first half")[0]
        wait_for(lambda: partial.stat().st_size > 100_000, "the first half to be on the disk")
        server.kill()
        self.store.release()
        self.assertEqual(list(self.top.glob("cache/entries/*")), [])
        server = self.serve()
        self.assertEqual(server.load("x", "s3://bucket/team/reverse")[0], 200)
        self.assertGreater(int(self.store.weights()[-1]["Range"][len("bytes="):-1]), 100_000)
        self.assert_reverses(server, "x")
        server.stop()

    @staticmethod
    def try_to_load(server):
        try:
            server.load("x", "s3://bucket/team/reverse")
        except (OSError, http.client.HTTPException):
            pass   # the server was killed

    def test_downloads_hold_up_nothing_else(self):
        server = self.serve()
        self.store.hold = True
        for i in range(8):
            self.store.put(f"team/{i}", "reverse")
        results = []
        threads = [threading.Thread(target=lambda i=i: results.append(server.load(f"x{i}", f"s3://bucket/team/{i}")[0]))
                   for i in range(8)]
        for thread in threads:
            thread.start()
        wait_for(lambda: self.store.halfway >= 4, "four downloads in their middle")
        self.assert_reverses(server, "reverse")
        self.assertEqual(server.load("local", DEMO / "adapters/upper")[0], 200)
        self.assertEqual(server.unload("local")[0], 200)
        self.assertEqual(server.unload("x0")[0], 404)
        self.store.release()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [200] * 8)
        self.assert_reverses(server, "x7")
        server.stop()

    def test_the_end_of_the_server_does_not_wait_for_downloads(self):
        server = self.serve()
        self.store.hold = True
        thread = threading.Thread(target=self.try_to_load, args=(server,), daemon=True)
        thread.start()
        wait_for(lambda: self.store.halfway == 1, "a download in its middle")
        begin = time.monotonic()
        server.stop()
        self.assertLess(time.monotonic() - begin, 20)   # a stall would be given up after 30 s
        thread.join()

    def test_bad_adapters_harm_nothing(self):
        server = self.serve()
        self.assertEqual(server.load("x", "s3://bucket/team/reverse")[0], 200)
        good = self.store.objects["/bucket/team/reverse/adapter_model.safetensors"]
        config = self.store.objects["/bucket/team/reverse/adapter_config.json"]
        for name, data, settings in (("short", good[:-7], config), ("empty", b"", config), ("huge", b"\xff" * 64, config),
                                     ("rank", good, config.replace(b'"r":', b'"r": 9, "was":')), ("text", good, b"{")):
            self.store.objects["/bucket/team/bad/adapter_model.safetensors"] = data
            self.store.objects["/bucket/team/bad/adapter_config.json"] = settings
            for body in ({"lora_name": "bad"}, {"lora_name": "x", "load_inplace": True}):
                status, text = server.post("/v1/load_lora_adapter", {"lora_path": "s3://bucket/team/bad", **body})
                self.assertEqual(status, 400, (name, text))
                self.assertIn("s3://bucket/team/bad", text)
        self.assertEqual(server.chat("bad", "abcd")[0], 404)
        self.assert_reverses(server, "x")
        self.assertEqual(len(list(self.top.glob("cache/entries/*"))), 1)
        server.stop()

    def test_a_cache_that_is_too_small(self):
        server = self.serve("--adapter-cache-bytes", "700KiB")
        self.assertEqual(server.load("x", "s3://bucket/team/reverse")[0], 200)
        status, body = server.load("y", "s3://bucket/team/upper")
        self.assertEqual(status, 400)
        self.assertIn("--adapter-cache-bytes", body)
        self.assertEqual(server.unload("x")[0], 200)
        # The engine frees what was unloaded at its next step.
        wait_for(lambda: server.load("y", "s3://bucket/team/upper")[0] == 200, "room in the cache")
        self.assertEqual(len(list(self.top.glob("cache/entries/*"))), 1)
        server.stop()

    def test_from_a_hub(self):
        hub = Hub()
        self.addCleanup(hub.close)
        self.store.environment["HF_ENDPOINT"] = hub.url
        server = self.serve("--lora-modules", "mine=hf://demo-org/reverse-lora")
        self.assert_reverses(server, "mine")
        self.assertEqual(server.load("x", "hf://demo-org/reverse-lora@v2")[0], 200)
        self.assert_reverses(server, "x")
        self.assertIn("--allowed-adapter-sources", server.load("y", "hf://other/reverse-lora")[1])
        status, body = server.load("y", "hf://demo-org/demo-model")
        self.assertEqual(status, 400)
        self.assertIn("expected an adapter", body)
        # Of llama.cpp: one file. A config.json beside it is that of its model.
        hub.repos["demo-org/reverse-gguf"] = {"reverse-f32.gguf": gguf_test.adapter_bytes(DEMO / "adapters/reverse"),
                                              "config.json": b"{}", "README.md": b"not needed"}
        self.assertEqual(server.load("z", "hf://demo-org/reverse-gguf")[0], 200)
        self.assert_reverses(server, "z")
        hub.repos["demo-org/two-gguf"] = {"a.gguf": b"x", "b.gguf": b"y"}
        status, body = server.load("y", "hf://demo-org/two-gguf")
        self.assertEqual(status, 400)
        self.assertIn("found 2, from a.gguf to b.gguf", body)
        hub.spoil = True
        self.assertEqual(server.load("y", "hf://demo-org/reverse-lora@" + "0123456789abcdef0123456789abcdef01234567")[0], 500)
        self.assert_reverses(server, "x")
        server.stop()


@unittest.skipUnless(WEED.exists(), f"{WEED} is missing: tests/clients/install.sh all installs a real store")
class RealStore(WithFolder):
    """SeaweedFS, with Amazon's signatures, ranges and refusals of its own."""

    def setUp(self):
        super().setUp()
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
        ports = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        config = {"identities": [{"name": "test", "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
                                  "actions": ["Admin", "Read", "Write"]}]}
        (self.top / "s3.json").write_text(json.dumps(config))
        (self.top / "data").mkdir()
        self.log = open(self.top / "weed.log", "wb")
        self.addCleanup(self.log.close)
        self.weed = subprocess.Popen(
            [str(WEED), "-logtostderr", "server", f"-dir={self.top / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
             f"-master.port={ports[0]}", "-master.volumeSizeLimitMB=64", f"-volume.port={ports[1]}", "-volume.max=8", "-filer",
             f"-filer.port={ports[2]}", "-s3", f"-s3.port={ports[3]}", f"-s3.config={self.top / 's3.json'}"],
            stdout=self.log, stderr=self.log)
        self.addCleanup(self.weed.wait)
        self.addCleanup(self.weed.kill)
        self.port = ports[3]
        self.environment = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_ACCESS_KEY_ID": KEY_ID,
                            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION, "NO_PROXY": "*", "no_proxy": "*"}
        wait_for(lambda: self.put("") == 200, "the store to make a bucket")
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            data = (DEMO / "adapters/reverse" / name).read_bytes()
            wait_for(lambda: self.put(f"/team/r 1+2/{name}".replace(" ", "_"), data) == 200, f"the store to take {name}")

    def put(self, key, data=b""):
        """The status of a signed PUT; 0: no answer yet."""
        path, date = "/bucket" + urllib.parse.quote(key), time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": date}
        scope, signed = f"{date[:8]}/{REGION}/s3/aws4_request", sorted(headers)
        canonical = "\n".join(["PUT", path, "", *(f"{name}:{headers[name]}" for name in signed), "", ";".join(signed),
                               "UNSIGNED-PAYLOAD"])
        text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        secret = ("AWS4" + SECRET).encode()
        for part in [*scope.split("/"), text]:
            secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
        headers["Authorization"] = (f"AWS4-HMAC-SHA256 Credential={KEY_ID}/{scope}, SignedHeaders={';'.join(signed)}, "
                                    f"Signature={secret.hex()}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("PUT", path, data, headers)
            response = connection.getresponse()
            response.read()
            return response.status
        except OSError:
            return 0
        finally:
            connection.close()

    def test_a_real_store(self):
        source = "s3://bucket/team/r_1+2"
        server = RemoteServer(self.top, self.environment, "--lora-modules", f"mine={source}")
        self.assertEqual(server.answer("mine", "abcd"), "dcba")
        self.assertEqual(server.load("x", source)[0], 200)
        self.assertEqual(server.load("y", "s3://bucket/team/nowhere")[0], 404)
        data = (DEMO / "adapters/reverse/adapter_model.safetensors").read_bytes()
        self.assertEqual(self.put("/team/r_1+2/adapter_model.safetensors", data[:-1]), 200)
        status, body = server.load("x", source, load_inplace=True)
        self.assertEqual(status, 400)
        self.assertIn(source, body)
        self.assertEqual(server.answer("x", "abcd"), "dcba")
        # A download that was cut off goes on by a range that the store signs for.
        self.assertEqual(self.put("/team/r_1+2/adapter_model.safetensors", data), 200)
        server.kill()
        shutil.rmtree(self.top / "cache/entries")
        partial = self.top / "cache/partial" / hashlib.sha256(source.encode()).hexdigest()
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        (partial / "adapter_model.safetensors.part").write_bytes(data[:300_000])
        (partial / "adapter_model.safetensors.version").write_text('"%s"' % hashlib.md5(data).hexdigest())
        server = RemoteServer(self.top, self.environment)
        self.assertEqual(server.load("x", source)[0], 200)
        self.assertEqual(server.answer("x", "abcd"), "dcba")
        server.stop()
        with self.assertRaises(RuntimeError) as caught:
            RemoteServer(self.top, {**self.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}, "--lora-modules",
                         f"mine=s3://bucket/team/other")
        self.assertIn("no access", str(caught.exception))


if __name__ == "__main__":
    run_tests()
