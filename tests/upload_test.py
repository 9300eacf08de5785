#!/usr/bin/env python3
"""Adapters that clients send: their files with PUT /v1/adapters/NAME, as tar or as a form, or their tensors in base64 or in
shared memory. What is uploaded serves, survives kill -9, goes when its last request has ended, and leaves nothing behind.
Standard library only. --pushes N pushes so many versions and prints what they cost.
"""
import base64
import hashlib
import http.client
import io
import json
import pathlib
import re
import struct
import sys
import tarfile
import tempfile
import threading
import time
import unittest
from multiprocessing import shared_memory

import serving
from serving import DEMO, Server, questions, wait_for
from route_test import Router
from trainer_test import Stream

KEY = "the-key-of-the-uploads-0123"
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
PUSHES = 150


def files_of(adapter):
    return {path.name: path.read_bytes() for path in sorted((DEMO / "adapters" / adapter).iterdir())}


def variant(adapter, number):
    """The adapter's files with other content: the metadata of its tensors counts for the digest, and the weights stay."""
    files = files_of(adapter)
    tensors = files["adapter_model.safetensors"]
    size = struct.unpack("<Q", tensors[:8])[0]
    header = json.loads(tensors[8:8 + size])
    name = next(name for name in header if name != "__metadata__")
    begin, _ = header[name]["data_offsets"]
    body = bytearray(tensors[8 + size:])
    struct.pack_into("<I", body, begin, struct.unpack_from("<I", body, begin)[0] ^ (number + 1 & 0x3f))
    return {**files, "adapter_model.safetensors": tensors[:8 + size] + bytes(body)}


def tar_of(files, form="pax", folder="version"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=FORMATS[form]) as archive:
        entry = tarfile.TarInfo(folder)
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime = len(content), 1700000000.25 if form == "pax" else 0
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def form_of(files):
    parts = [b"--the-boundary\r\nContent-Disposition: form-data; name=\"files\"; filename=\"" + name.encode() +
             b"\"\r\nContent-Type: application/octet-stream\r\n\r\n" + content + b"\r\n" for name, content in files.items()]
    return b"".join(parts) + b"--the-boundary--\r\n"


class UploadServer(Server):
    def __init__(self, state, *flags, key=KEY):
        self.state = pathlib.Path(state)
        self.state.parent.mkdir(exist_ok=True)
        self.key_file = self.state.parent / "key"
        self.key_file.write_text(key + "\n", encoding="utf-8")
        super().__init__("--enable-runtime-lora", "--admin-key-file", str(self.key_file), "--state-dir", str(state), *flags)

    def send(self, method, path, body=None, content_type="application/x-tar", key=KEY, **headers):
        """The status, the answer and its headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=serving.PATIENCE)
        connection.request(method, path, body, {"Authorization": f"Bearer {key}", "Content-Type": content_type, **headers})
        response = connection.getresponse()
        payload = response.read()
        connection.close()
        return response.status, json.loads(payload), response.headers

    def put(self, name, files, query="", **headers):
        return self.send("PUT", f"/v1/adapters/{name}{query}", tar_of(files), **headers)

    def folders(self):
        return sorted(path.name for path in (self.state / "uploads").iterdir())

    def wait_for_folders(self, count):
        wait_for(lambda: len(self.folders()) == count, lambda: f"{count} folders, found {self.folders()}")

    def answers(self, model, adapter):
        """Whether `model` answers as the demo's adapter does."""
        prompt, answer = next((p, a) for m, p, a in questions(1) if m == adapter)
        status, chat = self.chat(model, prompt)
        assert status == 200, chat
        return chat["choices"][0]["message"]["content"] == answer, chat


class Upload(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = UploadServer(pathlib.Path(cls.folder.name) / "state", "--max-upload-size", "4MiB")

    @classmethod
    def tearDownClass(cls):
        cls.server.wait_idle()
        cls.server.stop()
        cls.folder.cleanup()

    def tearDown(self):
        for card in self.server.json("GET", "/v1/models")[1]["data"]:
            if "/uploads/" in (card["root"] or ""):
                self.assertEqual(self.server.send("DELETE", f"/v1/adapters/{card['id']}")[0], 200)
        self.server.wait_for_folders(0)

    def check(self, model, adapter):
        right, chat = self.server.answers(model, adapter)
        self.assertTrue(right, chat)
        return chat

    def test_each_form_of_upload_serves(self):
        for form in FORMATS:
            status, answer, headers = self.server.send("PUT", f"/v1/adapters/{form}", tar_of(files_of("reverse"), form))
            self.assertEqual((status, answer["outcome"]), (201, "loaded"), answer)
            self.assertEqual(headers["X-Loramux-Adapter-Digest"], answer["digest"])
            self.check(form, "reverse")
        status, answer, _ = self.server.send("PUT", "/v1/adapters/a%20form", form_of(files_of("rot13")),
                                             "multipart/form-data; boundary=the-boundary")
        self.assertEqual((status, answer["name"]), (201, "a form"), answer)
        self.check("a form", "rot13")
        self.server.wait_for_folders(4)
        self.assertEqual(self.server.send("DELETE", "/v1/adapters/a%20form")[0], 200)
        self.assertEqual(self.server.send("DELETE", "/v1/adapters/a%20form")[0], 404)

    def test_tensors_in_a_text_and_in_shared_memory(self):
        files = files_of("upper")
        tensors = files["adapter_model.safetensors"]
        body = {"lora_name": "t", "config_dict": json.loads(files["adapter_config.json"]), "load_format": "safetensors"}

        def send(**more):
            return self.server.send("POST", "/load_lora_adapter_from_tensors", json.dumps({**body, **more}),
                                    "application/json")
        status, answer, headers = send(serialized_tensors=base64.b64encode(tensors).decode())
        self.assertEqual((status, answer["success"]), (200, True), answer)
        digest = headers["X-Loramux-Adapter-Digest"]
        self.check("t", "upper")
        self.assertEqual(send(serialized_tensors="AAAA")[0], 400)   # the name is taken
        memory = shared_memory.SharedMemory(create=True, size=len(tensors))
        try:
            memory.buf[:len(tensors)] = tensors
            place = {"name": memory.name, "size": len(tensors)}
            status, answer, headers = send(lora_name="m", shared_memory=place)
            self.assertEqual((status, answer["success"]), (200, True), answer)
            self.assertEqual(headers["X-Loramux-Adapter-Digest"], digest)
            self.check("m", "upper")
            for wrong in ({**place, "size": 1 << 21}, {**place, "name": "nothing-here"}, {**place, "name": "../etc"},
                          {**place, "name": ""}):
                status, answer, _ = send(lora_name="n", shared_memory=wrong)
                self.assertEqual(status, 400)
                self.assertIn("shared_memory: expected", answer["error_message"])
            self.assertEqual(send(lora_name="n", shared_memory={**place, "size": 100})[0], 400)   # cut off
        finally:
            memory.close()
            memory.unlink()
        for more, named in (({"serialized_tensors": "gASV", "load_format": None}, "load_format"),
                            ({"serialized_tensors": "gASV", "load_format": "flattened_bucket"}, "load_format"),
                            ({"serialized_tensors": "gASV", "added_tokens_config": {"a": 1}}, "added_tokens_config"),
                            ({"serialized_tensors": "not base64"}, "base64"), ({}, "serialized_tensors")):
            status, answer, _ = send(lora_name="n", **more)
            self.assertEqual((status, answer["success"]), (400, False), answer)
            self.assertIn(named, answer["error_message"])
        status, answer, _ = self.server.send("POST", "/load_lora_adapter_from_tensors", json.dumps(body), "text/plain")
        self.assertEqual(status, 415, answer)
        self.server.wait_for_folders(2)

    def test_a_version_goes_with_its_last_request(self):
        self.assertEqual(self.server.put("v", files_of("reverse"))[0], 201)
        alone = self.server.json("POST", "/v1/completions", {"model": "v", "prompt": [5, 6, 7], "max_tokens": 900,
                                                             "ignore_eos": True, "temperature": 0,
                                                             "return_token_ids": True})[1]["choices"][0]["token_ids"]
        stream = Stream(self.server, model="v").wait_for(10)
        self.assertEqual(self.server.put("v", files_of("reverse"))[1]["outcome"], "unchanged")
        self.server.wait_for_folders(1)
        status, answer, _ = self.server.put("v", files_of("upper"))
        self.assertEqual((status, answer["outcome"]), (200, "reloaded"), answer)
        self.check("v", "upper")
        self.assertEqual(stream.end(), (alone, "length"))
        self.server.wait_for_folders(1)
        self.check("v", "upper")
        self.assertEqual(self.server.put("v", files_of("upper"), **{"If-None-Match": "*"})[0], 400)

    def test_answers_tell_their_version_and_a_name_may_pin_it(self):
        first = self.server.put("w", files_of("reverse"))[1]
        second = self.server.put("x", files_of("upper"))[1]
        self.assertRegex(first["weight_version"], r"^\d+:" + first["digest"] + "$")
        body = {"messages": [{"role": "user", "content": "abc"}], "temperature": 0, "max_tokens": 8}
        for model in ("w", "w@" + first["digest"], "demo:w@" + first["digest"]):
            status, chat, headers = self.server.send("POST", "/v1/chat/completions", json.dumps({**body, "model": model}),
                                                     "application/json")
            self.assertEqual((status, chat["model"], chat["weight_version"]), (200, "w", first["weight_version"]), chat)
            self.assertEqual(headers["X-Loramux-Weight-Version"], first["weight_version"])
        for path, more in (("/v1/chat/completions", body), ("/v1/completions", {"prompt": "abc", "max_tokens": 8})):
            events = self.server.stream(path, {**more, "model": "w"})
            self.assertEqual([event.get("weight_version") for event in events],
                             [first["weight_version"]] + [None] * (len(events) - 1))
        self.assertNotIn("weight_version", self.server.json("POST", "/v1/chat/completions", {**body, "model": "demo"})[1])
        status, error = self.server.json("POST", "/v1/chat/completions", {**body, "model": "w@" + second["digest"]})
        self.assertEqual(status, 404, error)
        self.assertIn(f"expected the digest {second['digest']}, found {first['digest']}", error["error"]["message"])
        status, error = self.server.json("POST", "/tokenize", {"model": "w@" + second["digest"], "prompt": "a"})
        self.assertEqual(status, 404, error)
        vectors = self.server.json("POST", "/v1/embeddings", {"model": "w", "input": "abc"})[1]
        self.assertEqual(vectors["weight_version"], first["weight_version"])

    def test_what_is_refused_leaves_nothing(self):
        good = files_of("reverse")
        bad = {**good, "adapter_config.json": b"{"}
        cases = [("PUT", "/v1/adapters/n", tar_of(bad), "application/x-tar", 400, "adapter_config.json"),
                 ("PUT", "/v1/adapters/n", tar_of({"adapter_config.json": good["adapter_config.json"]}), "", 400,
                  "n/adapter_model.safetensors: cannot open"),
                 ("PUT", "/v1/adapters/n", b"{}", "application/json", 400, "Content-Type: expected application/x-tar"),
                 ("PUT", "/v1/adapters/n", tar_of(good)[:4000], "application/x-tar", 400, "cut off"),
                 ("PUT", "/v1/adapters/n", b"", "application/x-tar", 400, "found none"),
                 ("PUT", "/v1/adapters/demo", tar_of(good), "application/x-tar", 400, "demo"),
                 ("PUT", "/v1/adapters/a,b", tar_of(good), "application/x-tar", 400, "commas"),
                 ("PUT", "/v1/adapters/n?lora_digest=12", tar_of(good), "application/x-tar", 400, "lora_digest"),
                 ("PUT", "/v1/adapters/n?lora_digest=" + "0" * 64, tar_of(good), "application/x-tar", 400, "digest")]
        for method, path, body, kind, expected, text in cases:
            status, answer, _ = self.server.send(method, path, body, kind)
            self.assertEqual(status, expected, (path, answer))
            self.assertIn(text, answer["error"]["message"])
            self.server.wait_for_folders(0)   # the reply comes a moment before
        self.assertEqual(self.server.put("n", {**good, "large": bytes(5 << 20)})[0], 413)
        self.server.wait_for_folders(0)
        # The key is asked for before the body is.
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=serving.PATIENCE)
        connection.putrequest("PUT", "/v1/adapters/n")
        connection.putheader("Content-Length", str(3 << 20))
        connection.endheaders()
        self.assertEqual(connection.getresponse().status, 401)
        connection.close()
        # A client that leaves amid its upload.
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=serving.PATIENCE)
        connection.putrequest("PUT", "/v1/adapters/n")
        for name, value in (("Content-Length", str(3 << 20)), ("Authorization", f"Bearer {KEY}")):
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(tar_of(good)[:3000])
        wait_for(lambda: len(self.server.folders()) == 1, lambda: "the upload to begin")
        connection.close()
        self.server.wait_for_folders(0)
        self.assertEqual(self.server.put("n", good)[0], 201)

    def test_only_so_many_arrive_at_a_time(self):
        good, open_ones = files_of("reverse"), []
        for _ in range(8):
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=serving.PATIENCE)
            connection.putrequest("PUT", "/v1/adapters/n")
            for name, value in (("Content-Length", str(3 << 20)), ("Authorization", f"Bearer {KEY}")):
                connection.putheader(name, value)
            connection.endheaders()
            open_ones.append(connection)
        self.server.wait_for_folders(8)
        status, answer, _ = self.server.put("n", good)
        self.assertEqual(status, 503, answer)
        self.assertIn("too many uploads", answer["error"]["message"])
        for connection in open_ones:
            connection.close()
        self.server.wait_for_folders(0)
        self.assertEqual(self.server.put("n", good)[0], 201)

    def test_sagemakers_routes(self):
        self.assertEqual(self.server.put("source", files_of("swap"))[0], 201)
        root = next(card["root"] for card in self.server.json("GET", "/v1/models")[1]["data"] if card["id"] == "source")
        body = json.dumps({"name": "s", "src": root, "preload": True})
        self.assertEqual(self.server.send("POST", "/adapters", body, "application/json", key="wrong")[0], 401)
        status, answer, _ = self.server.send("POST", "/adapters", body, "application/json")
        self.assertEqual(status, 200, answer)
        self.check("s", "swap")
        status, answer, _ = self.server.send("POST", "/adapters", json.dumps({"name": "s"}), "application/json")
        self.assertEqual(status, 400, answer)
        # Two names share the folder, which goes with the second.
        self.assertEqual(self.server.send("DELETE", "/v1/adapters/source")[0], 200)
        self.assertEqual(len(self.server.folders()), 1)
        self.check("s", "swap")
        self.assertEqual(self.server.send("DELETE", "/adapters/s")[0], 200)
        self.assertEqual(self.server.send("DELETE", "/adapters/s")[0], 404)


class Alone(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.state = pathlib.Path(folder.name) / "state"

    def test_what_was_acknowledged_survives_a_kill(self):
        """The client pushes one version after the other until the server is gone. Then the last version that it knows of
        serves, or the next, whose answer did not arrive."""
        for kill in range(4):
            server = UploadServer(self.state)
            acknowledged, sent = [None], [None]

            def push():
                number = 100 * kill
                while True:
                    number += 1
                    try:
                        files = variant("reverse", number)
                        sent[0] = hashlib.sha256(files["adapter_model.safetensors"]).hexdigest()
                        status, answer, _ = server.put("v", files)
                        assert status in (200, 201), answer
                        acknowledged[0] = (answer["digest"], sent[0])
                    except (OSError, http.client.HTTPException):
                        return
            pusher = threading.Thread(target=push)
            pusher.start()
            wait_for(lambda: acknowledged[0] is not None, lambda: "a push")
            time.sleep(0.05 * kill)
            server.process.kill()
            server.process.wait()
            server.log.close()
            pusher.join()
            server = UploadServer(self.state)
            status, chat, headers = server.send("POST", "/v1/completions",
                                                json.dumps({"model": "v", "prompt": "a", "max_tokens": 2}),
                                                "application/json")
            self.assertEqual(status, 200, chat)
            root = next(card["root"] for card in server.json("GET", "/v1/models")[1]["data"] if card["id"] == "v")
            found = hashlib.sha256((pathlib.Path(root) / "adapter_model.safetensors").read_bytes()).hexdigest()
            if headers["X-Loramux-Adapter-Digest"] != acknowledged[0][0]:
                self.assertEqual(found, sent[0])
            server.wait_for_folders(1)   # what the kill left is gone
            self.assertEqual(server.send("DELETE", "/v1/adapters/v")[0], 200)
            server.wait_for_folders(0)
            server.stop()

    def test_through_a_router(self):
        """It passes uploads on to all servers, and a name with a digest to one that has it."""
        servers = [UploadServer(self.state.parent / str(number) / "state") for number in range(2)]
        router = Router([f"127.0.0.1:{server.port}" for server in servers], "--admin-key-file", str(servers[0].key_file))
        send = UploadServer.send
        self.assertEqual(send(router, "PUT", "/v1/adapters/v", tar_of(files_of("reverse")), key="wrong")[0], 401)
        status, answer, _ = send(router, "PUT", "/v1/adapters/v", tar_of(files_of("reverse")))
        self.assertTrue(answer["ok"], answer)
        digests = {told["answer"]["digest"] for told in answer["servers"]}
        self.assertEqual(len(digests), 1)
        old = digests.pop()
        for server in servers:
            self.assertTrue(server.answers("v", "reverse")[0])
        new = servers[1].put("v", files_of("upper"))[1]["digest"]
        self.assertTrue(servers[1].answers("v", "upper")[0])   # snapshots list what was used
        for digest in (old, new):
            def asked(digest=digest):
                status, chat, headers = send(router, "POST", "/v1/chat/completions", json.dumps({
                    "model": "v@" + digest, "messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}),
                    "application/json")
                return status, headers["X-Loramux-Adapter-Digest"], chat
            # The router learns from snapshots what a server has.
            wait_for(lambda: all(asked()[:2] == (200, digest) for _ in range(6)), lambda: f"{digest}, found {asked()}")
        self.assertIn(asked("0" * 64)[0], (404, 503))   # 503: a server that does not list the adapter might have had it
        self.assertTrue(send(router, "DELETE", "/v1/adapters/v")[1]["ok"])
        for server in servers:
            server.wait_for_folders(0)
        router.stop()
        for server in servers:
            server.stop()

    def test_what_cannot_be_restored_is_kept(self):
        server = UploadServer(self.state)
        self.assertEqual(server.put("v", files_of("reverse"))[0], 201)
        server.stop()
        (self.state / "uploads" / "of-people").mkdir()
        [folder] = [path for path in (self.state / "uploads").iterdir() if path.name != "of-people"]
        tensors = folder / "adapter_model.safetensors"
        tensors.rename(self.state / "aside")
        server = UploadServer(self.state)
        self.assertIn(server.chat("v", "abc")[0], (404, 503))
        server.stop()
        (self.state / "aside").rename(tensors)
        server = UploadServer(self.state)
        self.assertTrue(server.answers("v", "reverse")[0])
        self.assertEqual(server.send("DELETE", "/v1/adapters/v")[0], 200)
        wait_for(lambda: server.folders() == ["of-people"], lambda: f"one folder, found {server.folders()}")
        server.stop()

    def test_a_server_without_a_state_directory_keeps_none(self):
        server = Server("--enable-runtime-lora", "--insecure-no-admin-key", "--allowed-adapter-root", str(DEMO))
        for method, path, body in (("PUT", "/v1/adapters/n", tar_of(files_of("swap"))),
                                   ("POST", "/load_lora_adapter_from_tensors", b"{}")):
            status, payload = server.request(method, path, body)
            self.assertEqual(status, 400, payload)
            self.assertIn(b"--state-dir", payload)
        server.stop()

    def test_many_versions_leave_nothing(self):
        """So many that a leak of one page, file, series or record of each would be seen."""
        server = UploadServer(self.state)

        def held():
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
            series = [line for line in server.request("GET", "/metrics")[1].splitlines() if not line.startswith(b"#")]
            return {"memory": int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) // 1024,
                    "files": len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir())), "series": len(series),
                    "pages": server.metric("loramux:adapter_usage_perc"),
                    "journal": (self.state / "adapters.journal").stat().st_size}

        def push(count, first):
            times = []
            for number in range(first, first + count):
                packed = tar_of(variant("reverse", number))
                start = time.monotonic()
                status, answer, _ = server.send("PUT", "/v1/adapters/v", packed)
                self.assertIn(status, (200, 201), answer)
                chat = server.json("POST", "/v1/completions", {"model": "v@" + answer["digest"], "prompt": "a",
                                                               "max_tokens": 1})[1]
                times.append(time.monotonic() - start)
                self.assertEqual(chat["weight_version"], answer["weight_version"])
            return sorted(times)
        background = [Stream(server, model="v", max_tokens=2000) for _ in range(2)]
        push(30, 0)
        for stream in background:
            stream.end()
        server.wait_for_folders(1)
        before = held()
        times = push(PUSHES, 30)
        server.wait_for_folders(1)
        after = held()
        print(f"{PUSHES} versions: {before} before, {after} after; push to first token "
              f"{1000 * times[len(times) // 2]:.1f} ms at the median, {1000 * times[-1]:.1f} at most")
        self.assertLessEqual(after["files"], before["files"] + 4)
        self.assertLessEqual(after["series"], before["series"] + 4)
        self.assertEqual(after["pages"], before["pages"])
        self.assertLess(after["journal"], 64 * 1024)
        self.assertLess(after["memory"], before["memory"] + 24)
        server.stop()


if __name__ == "__main__":
    if "--pushes" in sys.argv:
        at = sys.argv.index("--pushes")
        PUSHES = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    serving.run_tests()
