#!/usr/bin/env python3
"""Models and adapters by name: from the cache, and from a hub that this test plays, faults included. Standard library only.

Usage: hub_test.py PATH_OF_LORAMUX
"""
import hashlib
import http.server
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest

import serving
from serving import DEMO, Server

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_a-secret-token-of-the-test"
LARGE = 50_000   # bytes, from which on a file is kept as on git-lfs, at the other host


def digest(data):
    if len(data) >= LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """The part of the Hub's API that loramux asks for. `self.server.hub` says what goes wrong."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        hub = self.server.hub
        hub.seen.append((self.server.name, self.path, dict(self.headers)))
        listing = re.fullmatch(r"/api/models/([\w./-]+)/revision/([\w.-]+)\?blobs=true", self.path)
        if hub.status:
            return self.answer(hub.status, b"no")
        if hub.needs_token and self.server.name == "hub" and self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, b"who?")
        if listing:
            return self.list_files(listing.group(1), listing.group(2))
        file = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/%s/([\w.-]+)" % COMMIT, self.path)
        if file is None or file.group(2) not in hub.repos.get(file.group(1), {}):
            return self.answer(404, b"nothing")
        data = hub.repos[file.group(1)][file.group(2)]
        if self.server.name == "hub" and len(data) >= LARGE:
            return self.answer(302, b"", [("Location", f"http://localhost:{hub.store.server_port}{self.path}")])
        return self.send(data)

    def list_files(self, repo, revision):
        hub = self.server.hub
        if repo not in hub.repos or revision not in ("main", "v2", COMMIT):
            return self.answer(404, b"nothing")
        files = []
        for name, data in hub.repos[repo].items():
            entry = {"rfilename": name, "size": len(data) + hub.wrong_size, "blobId": digest(data)}
            if len(data) >= LARGE:
                entry["lfs"] = {"size": len(data) + hub.wrong_size, "sha256": digest(data)}
            files.append(entry)
        self.answer(200, json.dumps({"sha": COMMIT, "siblings": files}).encode())

    def send(self, data):
        hub = self.server.hub
        if hub.spoil and len(data) >= LARGE:
            data = data[:-1] + bytes([data[-1] ^ 1])
        begin = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and hub.ranges:
            begin = int(asked.group(1))
            hub.resumed += 1
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", f'"{digest(data)}"')
        self.end_headers()
        end = len(data)
        if hub.cuts > 0 and len(data) >= LARGE:
            hub.cuts -= 1
            end = begin + (len(data) - begin) // 2
            self.close_connection = True
        self.wfile.write(data[begin:end])

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Hub:
    """A hub on 127.0.0.1 and its store of large files on localhost: another host to a client."""

    def __init__(self):
        self.repos, self.seen = {}, []
        self.status = self.wrong_size = self.cuts = self.resumed = 0
        self.needs_token = self.spoil = False
        self.ranges = True
        self.hub, self.store = (http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
        for server, name in ((self.hub, "hub"), (self.store, "store")):
            server.hub, server.name, server.daemon_threads = self, name, True
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.add("demo-org/demo-model", DEMO / "model")
        self.add("demo-org/reverse-lora", DEMO / "adapters" / "reverse")
        self.repos["demo-org/demo-model"]["pytorch_model.bin"] = b"x" * LARGE
        self.repos["demo-org/demo-model"]["README.md"] = b"not needed"

    def add(self, name, folder):
        self.repos[name] = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.hub.server_port}"

    def close(self):
        for server in (self.hub, self.store):
            server.shutdown()
            server.server_close()


class Named(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.home = pathlib.Path(self.folder.name) / "hf"
        self.cache = self.home / "hub" / "models--demo-org--demo-model"
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.environment = {**{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
                            "HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url, "NO_PROXY": "*", "no_proxy": "*"}

    def serve(self, *arguments, **more):
        return Server.run([serving.LORAMUX, "serve", *arguments, "--port", "0", "--device-memory", "64MiB", "--host-memory",
                           "0"], env={**self.environment, **more})

    def fails(self, *arguments, status=1, **more):
        done = subprocess.run([serving.LORAMUX, "serve", *arguments, "--port", "0"], capture_output=True, text=True,
                              timeout=serving.PATIENCE, env={**self.environment, **more})
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertNotIn(TOKEN, done.stdout + done.stderr)
        return done.stderr

    def partials(self):
        return [path for path in self.home.rglob("*.incomplete")]

    def test_a_model_and_an_adapter_are_downloaded_served_and_kept(self):
        server = self.serve("demo-org/demo-model", "--lora-modules", "mine=demo-org/reverse-lora", "demo-org/reverse-lora")
        try:
            cards = {card["id"]: card for card in server.json("GET", "/v1/models")[1]["data"]}
            self.assertEqual(set(cards), {"demo-org/demo-model", "demo-model", "mine", "reverse-lora"})
            for model in ("mine", "reverse-lora"):
                self.assertEqual(server.chat(model, "hello")[1]["choices"][0]["message"]["content"], "olleh")
            self.assertEqual(server.chat("demo-org/demo-model", "hello")[1]["choices"][0]["message"]["content"], "hello")
        finally:
            server.stop()
        asked = [path for _, path, _ in self.hub.seen]
        self.assertFalse([path for path in asked if path.endswith((".bin", ".md"))])
        self.assertEqual((self.cache / "refs" / "main").read_text(), COMMIT)
        link = self.cache / "snapshots" / COMMIT / "model.safetensors"
        self.assertEqual(os.readlink(link), f"../../blobs/{digest((DEMO / 'model/model.safetensors').read_bytes())}")
        self.assertEqual(self.partials(), [])
        # From now on the hub is not asked, even where it is not forbidden.
        self.hub.seen.clear()
        self.serve("demo-org/demo-model").stop()
        self.serve("--model", "demo-org/demo-model", "--offline", HF_ENDPOINT="http://127.0.0.1:1").stop()
        self.assertEqual(self.hub.seen, [])

    def test_the_cache_that_other_programs_filled(self):
        """As huggingface_hub leaves it, in HF_HUB_CACHE."""
        cache = pathlib.Path(self.folder.name) / "theirs"
        repo = cache / "models--demo-org--demo-model"
        snapshot = repo / "snapshots" / COMMIT
        for folder in (repo / "blobs", repo / "refs", snapshot):
            folder.mkdir(parents=True)
        (repo / "refs" / "main").write_text(COMMIT)
        for name, data in self.hub.repos["demo-org/demo-model"].items():
            (repo / "blobs" / digest(data)).write_bytes(data)
            (snapshot / name).symlink_to(f"../../blobs/{digest(data)}")
        self.serve("demo-org/demo-model", HF_HUB_CACHE=str(cache), HF_HUB_OFFLINE="1").stop()
        self.assertEqual(self.hub.seen, [])

    def test_offline_without_the_files(self):
        self.assertIn("leave out --offline", self.fails("demo-org/demo-model", "--offline"))
        self.assertIn("leave out --offline", self.fails("demo-org/demo-model", HF_HUB_OFFLINE="1"))
        self.assertEqual(self.hub.seen, [])

    def test_a_cut_download_is_resumed(self):
        self.hub.cuts = 3
        self.serve("demo-org/demo-model").stop()
        self.assertGreaterEqual(self.hub.resumed, 3)

    def test_a_download_that_was_given_up_is_resumed_by_the_next_start(self):
        data = self.hub.repos["demo-org/demo-model"]["model.safetensors"]
        (self.cache / "blobs").mkdir(parents=True)
        (self.cache / "blobs" / (digest(data) + ".incomplete")).write_bytes(data[:1000])
        self.serve("demo-org/demo-model").stop()
        self.assertEqual(self.hub.resumed, 1)
        ranges = [headers["Range"] for _, path, headers in self.hub.seen if "Range" in headers]
        self.assertIn("bytes=1000-", ranges)

    def test_a_store_that_cannot_resume(self):
        """The file is begun again."""
        data = self.hub.repos["demo-org/demo-model"]["model.safetensors"]
        (self.cache / "blobs").mkdir(parents=True)
        (self.cache / "blobs" / (digest(data) + ".incomplete")).write_bytes(data[:1000])
        self.hub.ranges = False
        self.serve("demo-org/demo-model").stop()
        self.assertEqual(self.hub.resumed, 0)

    def test_content_that_is_not_what_was_announced(self):
        self.hub.spoil = True
        self.assertIn("model.safetensors did not arrive as the hub announced it", self.fails("demo-org/demo-model"))
        self.assertEqual(self.partials(), [])
        self.assertFalse((self.cache / "refs").exists())
        self.hub.spoil = False
        self.serve("demo-org/demo-model").stop()

    def test_sizes_that_are_wrong(self):
        for wrong in (-1, 1):
            self.hub.wrong_size = wrong
            said = self.fails("demo-org/demo-model")
            self.assertRegex(said, "did not arrive as the hub announced it|ends too early|416")
        self.assertFalse((self.cache / "refs").exists())

    def test_the_token_goes_to_the_hub_and_to_no_other_host(self):
        self.hub.needs_token = True
        self.assertIn("HF_TOKEN", self.fails("demo-org/demo-model"))
        self.hub.seen.clear()
        server = self.serve("demo-org/demo-model", HF_TOKEN=TOKEN)
        self.assertNotIn(TOKEN, server.stop())
        hosts = {name: [headers for host, _, headers in self.hub.seen if host == name] for name in ("hub", "store")}
        self.assertTrue(all(headers.get("Authorization") == f"Bearer {TOKEN}" for headers in hosts["hub"]))
        self.assertTrue(hosts["store"])
        self.assertFalse([headers for headers in hosts["store"] if "Authorization" in headers])

    def test_the_token_of_a_login(self):
        self.hub.needs_token = True
        self.home.mkdir()
        (self.home / "token").write_text(TOKEN + "\n")
        self.serve("demo-org/demo-model").stop()

    def test_what_the_hub_does_not_have(self):
        self.assertIn("there is no such model or revision 'main'", self.fails("demo-org/nowhere"))
        self.assertIn("revision 'v9'", self.fails("demo-org/demo-model", "--revision", "v9"))
        self.assertIn("expected a folder, or a model as ORG/NAME", self.fails("/nowhere"))
        self.hub.repos["demo-org/pickle"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
        self.assertIn("no *.safetensors", self.fails("demo-org/pickle"))
        for status, words in ((403, "no access"), (429, "too many requests"), (500, "status 500")):
            self.hub.status = status
            self.assertIn(words, self.fails("demo-org/demo-model"))
        self.assertIn("expected http://", self.fails("demo-org/demo-model", "--hf-endpoint", "ftp://x", status=2))
        self.fails("demo-org/demo-model", HF_ENDPOINT="http://127.0.0.1:1")

    def test_a_revision(self):
        self.serve("demo-org/demo-model@v2").stop()
        self.assertEqual((self.cache / "refs" / "v2").read_text(), COMMIT)
        self.assertTrue(any("/revision/v2?" in path for _, path, _ in self.hub.seen))


if __name__ == "__main__":
    serving.run_tests()
