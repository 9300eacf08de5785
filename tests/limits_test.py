#!/usr/bin/env python3
"""Limits that the server sets to clients: keys, quotas, TLS, slow and malformed requests, shutdown. Standard library only.

Usage: limits_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import hashlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import ssl
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO, PATIENCE, Server, questions, wait_for

CHAT = "/v1/chat/completions"


def chat_body(model="demo", prompt="hello", **more):
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 20, **more}


def long_body(model="demo", **more):
    """A stream of 900 tokens, or until it is cancelled. With `n` there are as many sequences."""
    return chat_body(model, "abcdef", max_tokens=900, ignore_eos=True, stream=True, **more)


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def raw(server, data):
    """All that the server sends in answer to these bytes, until it closes."""
    with connect(server) as client:
        try:
            client.sendall(data)
        except ConnectionError:
            pass   # it had enough before the last byte; its answer can still be read
        return read_to_end(client)


def read_to_end(client):
    text = b""
    while True:
        try:
            more = client.recv(65536)
        except ConnectionError:
            return text
        if not more:
            return text
        text += more


def post(body, path=CHAT, headers=""):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{headers}\r\n").encode() + data


def answer_of(client):
    """(status, body) of the next response on a socket, however many pieces it comes in."""
    response = http.client.HTTPResponse(client)
    response.begin()
    return response.status, response.read()


def open_stream(server, body):
    """A connection on which the answer has begun."""
    client = connect(server)
    client.sendall(post(body))
    text = client.recv(65536)
    assert b" 200 " in text, text
    return client


def request(server, method, path, body=None, key=None, connection=None):
    """(status, headers, parsed body)"""
    mine = connection or http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    mine.request(method, path, json.dumps(body) if body is not None else None, headers)
    response = mine.getresponse()
    payload = response.read()
    if connection is None:
        mine.close()
    return response.status, response.headers, json.loads(payload) if payload else None


def reload(server):
    """Sends SIGHUP and waits until the server has read its files."""
    count = server.text().count("read again")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.text().count("read again") > count, "files read again")


class ApiKeys(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = pathlib.Path(self.folder.name) / "keys.json"
        self.addCleanup(self.folder.cleanup)

    def write(self, *keys):
        self.file.write_text(json.dumps({"keys": list(keys)}), encoding="utf-8")

    def test_keys_their_models_and_sighup(self):
        reader = "sk-reader-0123456789"
        everything = "sk-everything-0123456789"
        self.write({"name": "reader", "key": reader, "models": ["reverse", "up*"]},
                   {"name": "all", "key_sha256": hashlib.sha256(everything.encode()).hexdigest(), "models": ["*"]})
        server = Server("--api-key-file", str(self.file))
        self.addCleanup(server.process.kill)
        for key in (None, "sk-wrong-0123456789", reader[:-1], reader + "x"):
            status, headers, answer = request(server, "POST", CHAT, chat_body("reverse"), key)
            self.assertEqual(status, 401)
            self.assertEqual(headers["WWW-Authenticate"], 'Bearer realm="loramux"')
            self.assertEqual(answer["error"]["type"], "AuthenticationError")
            self.assertEqual(answer["error"]["code"], 401)
            self.assertEqual(request(server, "GET", "/v1/models", key=key)[0], 401)
        for path in ("/health", "/ping", "/version"):
            self.assertEqual(request(server, "GET", path)[0], 200, path)
        status, _, answer = request(server, "POST", CHAT, chat_body("reverse", "abc"), reader)
        self.assertEqual((status, answer["choices"][0]["finish_reason"]), (200, "stop"))
        # A model that the key may not use looks like one that does not exist.
        hidden = request(server, "POST", CHAT, chat_body("rot13"), reader)
        unknown = request(server, "POST", CHAT, chat_body("unknown"), reader)
        self.assertEqual((hidden[0], unknown[0]), (404, 404))
        self.assertEqual(hidden[2]["error"]["message"].replace("rot13", "unknown"), unknown[2]["error"]["message"])
        self.assertEqual(request(server, "GET", "/v1/models/demo", key=reader)[0], 404)
        listed = {card["id"] for card in request(server, "GET", "/v1/models", key=reader)[2]["data"]}
        self.assertTrue(listed and all(name == "reverse" or name.startswith("up") for name in listed), listed)
        every = {card["id"] for card in request(server, "GET", "/v1/models", key=everything)[2]["data"]}
        self.assertEqual(every, {model for model, _, _ in questions(1)})

        self.write({"name": "all", "key": everything, "models": ["*"]})
        self.assertEqual(request(server, "GET", "/v1/models", key=reader)[0], 200)   # not before the signal
        reload(server)
        self.assertEqual(request(server, "GET", "/v1/models", key=reader)[0], 401)
        self.assertEqual(request(server, "GET", "/v1/models", key=everything)[0], 200)
        self.file.write_text('{"keys": [{"name": "broken", "key": "sk-secret-0123456789"}]}', encoding="utf-8")
        reload(server)
        self.assertIn("API keys could not be read again, so the old ones stay in use", server.text())
        self.assertIn("keys[0].models", server.text())
        self.assertEqual(request(server, "GET", "/v1/models", key=everything)[0], 200)
        self.assertNotIn("sk-", server.stop())   # no key is ever logged

    def test_a_body_without_a_key_is_not_read(self):
        self.write({"name": "a", "key": "sk-0123456789abcdef", "models": ["*"]})
        server = Server("--api-key-file", str(self.file))
        answer = raw(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
        self.assertIn(b"HTTP/1.1 401", answer)
        server.stop()

    def test_a_bad_file_is_refused_at_the_start(self):
        self.file.write_text("{", encoding="utf-8")
        with self.assertRaisesRegex(RuntimeError, "API keys in .*keys.json"):
            Server("--api-key-file", str(self.file))


class Quotas(unittest.TestCase):
    def test_rate_concurrency_and_queue_give_429_with_retry_after(self):
        with tempfile.TemporaryDirectory() as folder:
            limits = pathlib.Path(folder) / "limits.json"
            limits.write_text(json.dumps({"adapters": {
                "reverse": {"requests_per_second": 0.001, "burst": 2}, "upper*": {"concurrency": 64}}}), encoding="utf-8")
            server = Server("--limits-file", str(limits), "--max-queued-requests", "130")
            for _ in range(2):
                self.assertEqual(request(server, "POST", CHAT, chat_body("reverse"))[0], 200)
            status, headers, answer = request(server, "POST", CHAT, chat_body("reverse"))
            self.assertEqual(status, 429)
            self.assertTrue(500 <= int(headers["Retry-After"]) <= 1000, headers["Retry-After"])
            self.assertEqual(answer["error"]["type"], "RateLimitError")
            self.assertEqual(answer["error"]["code"], 429)
            self.assertIn("reverse", answer["error"]["message"])
            self.assertEqual(request(server, "POST", CHAT, chat_body("demo"))[0], 200)   # other models are not affected

            busy = open_stream(server, long_body("upper", n=64))   # 57,600 tokens: it ends when the client leaves
            status, headers, answer = request(server, "POST", CHAT, chat_body("upper"))
            self.assertEqual((status, headers["Retry-After"]), (429, "1"))
            status, _, answer = request(server, "POST", CHAT, chat_body("upper", n=65))
            self.assertEqual((status, answer["error"]["param"]), (400, "n"))             # could never be admitted
            busy.close()
            wait_for(lambda: request(server, "POST", CHAT, chat_body("upper"))[0] == 200, "a free place")

            body = {"model": "demo", "prompt": ["abc"] * 131, "max_tokens": 1}
            status, _, answer = request(server, "POST", "/v1/completions", body)          # more than the queue holds
            self.assertEqual(status, 400)
            self.assertIn("at most 130", answer["error"]["message"])
            limits.write_text(json.dumps({"adapters": {"reverse": {"requests_per_second": 0}}}), encoding="utf-8")
            reload(server)
            self.assertEqual(request(server, "POST", CHAT, chat_body("reverse"))[0], 200)
            server.stop()


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.certificates = [cls.make(f"{i}") for i in range(2)]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def make(cls, name):
        cert, key = (str(pathlib.Path(cls.folder.name) / f"{name}.{kind}") for kind in ("crt", "key"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                        "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                        "-keyout", key, "-out", cert], check=True, capture_output=True)
        return cert, key

    def connect(self, server, cert, **more):
        context = ssl.create_default_context(cafile=cert)
        context.set_alpn_protocols(["h2", "http/1.1"])
        for name, value in more.items():
            setattr(context, name, value)
        return context.wrap_socket(connect(server), server_hostname="localhost")

    def test_tls(self):
        (cert, key), (other_cert, other_key) = self.certificates
        used = [str(pathlib.Path(self.folder.name) / name) for name in ("used.crt", "used.key")]
        for source, target in zip((cert, key), used):
            pathlib.Path(target).write_bytes(pathlib.Path(source).read_bytes())
        server = Server("--tls-cert", used[0], "--tls-key", used[1])
        self.addCleanup(server.process.kill)
        with self.connect(server, cert) as client:
            self.assertEqual(client.version(), "TLSv1.3")
            self.assertEqual(client.selected_alpn_protocol(), "http/1.1")
            client.sendall(post(chat_body("demo", "abc")))
            self.assertIn(b'"abc"', answer_of(client)[1])
            client.sendall(post(chat_body("demo", "abc", stream=True), headers="Connection: close\r\n"))
            answer = read_to_end(client)
            self.assertIn(b"data: [DONE]", answer)
        with self.connect(server, cert, maximum_version=ssl.TLSVersion.TLSv1_2) as client:
            self.assertEqual(client.version(), "TLSv1.2")
            self.assertRegex(client.cipher()[0], "ECDHE.*(GCM|CHACHA20)")
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.connect(server, cert, minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
        # A large body, over many records.
        with self.connect(server, cert) as client:
            client.sendall(post(chat_body("demo", "x" * 500_000)))
            self.assertEqual(answer_of(client)[0], 400)
        # A client that speaks no TLS.
        self.assertNotIn(b"HTTP/1.1 200", raw(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
        # A client that leaves in mid-stream frees its place.
        client = self.connect(server, cert)
        client.sendall(post(long_body()))
        client.recv(1000)
        client.close()
        with self.connect(server, cert) as probe:
            def idle():
                probe.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                return b'"running":0,"waiting":0' in answer_of(probe)[1]
            wait_for(idle, "the abandoned request's end")
        # At SIGHUP the server takes new files for new connections. It refuses wrong files.
        for source, target in zip((other_cert, other_key), used):
            pathlib.Path(target).write_bytes(pathlib.Path(source).read_bytes())
        reload(server)
        with self.connect(server, other_cert) as client:
            self.assertEqual(client.version(), "TLSv1.3")
        with self.assertRaises(ssl.SSLError):
            self.connect(server, cert)
        pathlib.Path(used[1]).write_bytes(pathlib.Path(key).read_bytes())
        reload(server)
        self.assertIn("certificate and key could not be read again", server.text())
        with self.connect(server, other_cert) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(answer_of(client)[0], 200)
        server.stop()

    def test_a_client_that_begins_no_handshake_is_closed(self):
        cert, key = self.certificates[0]
        server = Server("--tls-cert", cert, "--tls-key", key, "--header-timeout", "1")
        self.assertEqual(raw(server, b""), b"")
        server.stop()

    def test_wrong_files_are_refused_at_the_start(self):
        (cert, key), (_, other_key) = self.certificates
        locked = str(pathlib.Path(self.folder.name) / "locked.key")
        subprocess.run(["openssl", "pkey", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked], check=True,
                       capture_output=True)
        for flags, expected in [(("--tls-cert", cert), "expected both"),
                                (("--tls-cert", cert, "--tls-key", other_key), "1.key"),
                                (("--tls-cert", key, "--tls-key", key), "certificate"),
                                (("--tls-cert", cert, "--tls-key", locked), "passphrase"),
                                (("--tls-cert", "/nowhere.crt", "--tls-key", key), "/nowhere.crt")]:
            with self.assertRaisesRegex(RuntimeError, expected):
                Server(*flags)


class SlowClients(unittest.TestCase):
    """Each server has one short timeout. The others are 20 s and more, so that none of them comes first."""

    def serve(self, *flags):
        self.server = Server(*flags)
        self.addCleanup(self.server.stop)

    def drip(self, head, piece):
        """Sends a piece every 50 ms until the server answers. Returns the answer."""
        with connect(self.server) as client:
            client.sendall(head)
            client.settimeout(0.05)

            def answer():
                try:
                    client.sendall(piece)
                except (TimeoutError, ConnectionError):
                    pass   # the answer can still be read
                try:
                    return client.recv(65536) or b"closed"
                except TimeoutError:
                    return None
                except ConnectionError:
                    return b"closed"
            return wait_for(answer, "an answer")

    def test_slowloris_header(self):
        self.serve("--header-timeout", "1")
        self.assertIn(b"HTTP/1.1 408", self.drip(b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n"))

    def test_slowloris_body(self):
        self.serve("--body-timeout", "1", "--min-body-rate", "100000")
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
        self.assertIn(b"HTTP/1.1 408", self.drip(head, b"{"))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.assertIn(b"HTTP/1.1 408", self.drip(head, b"1\r\n{\r\n"))

    def test_endless_chunk_extension(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;"
        self.serve()
        answer = raw(self.server, head + b"x" * 200_000)
        self.assertIn(b"HTTP/1.1 4", answer)

    def test_idle_connections_are_closed(self):
        self.serve("--idle-timeout", "1")
        self.assertEqual(raw(self.server, b""), b"")

    def test_a_reader_that_stops_is_cut_off(self):
        self.serve("--write-timeout", "1")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", self.server.port))
            body = chat_body("demo", "abcdef", max_tokens=900, ignore_eos=True, stream=True, n=64, logprobs=True,
                             top_logprobs=20)
            client.sendall(post(body))
            aborted = lambda: self.server.metric("vllm:request_success_total", finished_reason="abort")
            wait_for(lambda: (aborted() or 0) > 0, "the end of the request")
            self.server.wait_idle()
        self.assertEqual(request(self.server, "GET", "/health")[0], 200)


class LongTexts(unittest.TestCase):
    """Texts that no prompt of the model can have are refused by their size; /tokenize has a limit of its own."""

    def test_each_route(self):
        server = Server("--max-tokenize-bytes", "1000")
        self.addCleanup(server.process.kill)

        def message(path, body, status):
            code, _, answer = request(server, "POST", path, body)
            self.assertEqual(code, status, answer)
            return answer["error"]["message"]
        self.assertIn("expected at most 1134592 bytes", message(CHAT, chat_body(prompt="x" * 1_200_000), 413))
        self.assertIn("strings of at most 86016 characters, found one of 100000. This model's maximum context length is 1024 "
                      "tokens", message(CHAT, chat_body(prompt="x" * 100_000), 400))
        for path, body in ((CHAT, chat_body(prompt="x" * 20_000)),
                           ("/v1/completions", {"model": "demo", "prompt": ["a", "x" * 20_000]})):
            self.assertIn("so a prompt has at most 14336 bytes. However, you sent 20", message(path, body, 400))
        self.assertIn("maximum context length is 1024 tokens",
                      message("/v1/completions", {"model": "demo", "prompt": "xy" * 1000}, 400))
        self.assertIn("maximum context length is 1024 tokens. However, you sent 1025",
                      message("/v1/completions", {"model": "demo", "prompt": [70] * 1025}, 400))
        status, _, answer = request(server, "POST", "/tokenize", {"prompt": "x" * 1000})
        self.assertEqual((status, answer["count"] > 500), (200, True))
        self.assertIn("at most 1000 bytes of text (--max-tokenize-bytes), found 1001",
                      message("/tokenize", {"prompt": "x" * 1001}, 400))
        self.assertIn("--max-tokenize-bytes", message("/tokenize", {"prompt": "x" * 7000}, 400))
        message("/tokenize", {"prompt": "x" * 1_100_000}, 413)
        self.assertIn("`tokens`", message("/detokenize", {"tokens": [70] * 1001}, 400))
        server.stop()


class Limits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-header-fields", "50", "--max-target-bytes", "1000", "--max-header-bytes", "16384",
                            "--max-body-size", "2MiB", "--max-connections-per-address", "300")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def error(self, body, status, param, path=CHAT):
        code, _, answer = request(self.server, "POST", path, body)
        self.assertEqual(code, status, answer)
        self.assertTrue((answer["error"]["param"] or "").startswith(param), answer)
        self.assertRegex(answer["error"]["message"], "expected|does not exist|maximum context length")
        self.assertLess(len(answer["error"]["message"]), 1000)
        return answer["error"]["message"]

    def test_every_field_is_bounded(self):
        huge = 10**400
        for field, value in [
                ("n", 129), ("n", huge), ("n", -1), ("n", 1.5), ("max_tokens", 0), ("max_tokens", huge), ("min_tokens", 2**40),
                ("top_logprobs", 21), ("temperature", 1e308), ("temperature", -1), ("top_p", 2), ("top_k", 2**40),
                ("repetition_penalty", 0), ("presence_penalty", 3), ("seed", 2**64), ("stop", ["x"] * 17), ("stop", "x" * 5000),
                ("stop", [""]), ("stop_token_ids", [1] * 2000), ("stop_token_ids", [-1]), ("stop_token_ids", [10**9]),
                ("logit_bias", {"999999999": 1}), ("logit_bias", {"1": 1e9}),
                ("logit_bias", {str(i): 1 for i in range(2000)})]:
            body = json.dumps(chat_body(logprobs=True, **{field: value} if field != "max_tokens" else {}))
            if field == "max_tokens":
                body = json.dumps({**chat_body(logprobs=True), "max_tokens": value})
            status, payload = self.server.request("POST", CHAT, body.encode())
            answer = json.loads(payload)
            self.assertEqual(status, 400, (field, answer))
            if value != huge:   # a number beyond double is refused by the JSON reader, with its place
                self.assertIn(field.split(".")[0], answer["error"]["param"] or "", answer)
            self.assertIn("expected", answer["error"]["message"])
        self.error({"model": "demo", "prompt": ["x"] * 1000, "n": 2}, 400, "", "/v1/completions")
        self.error({"model": "demo", "prompt": "x", "logprobs": 100}, 400, "logprobs", "/v1/completions")
        self.error({"model": "demo", "prompt": [1] * 5000}, 400, "", "/v1/completions")
        self.error({"model": "demo", "prompt": "x " * 100_000}, 400, "", "/v1/completions")
        self.error(chat_body(prompt="x " * 100_000), 400, "")
        self.error(chat_body("x" * 50_000), 404, "model")
        self.error(chat_body("x" * 100_000), 400, "")   # longer than any prompt of this model in JSON

    def test_deep_and_wide_json(self):
        for body in (b"[" * 1_000_000, b'{"a":' * 200_000, b'{"model":"demo","messages":' + b"[" * 100 + b"]" * 100 + b"}",
                     b'{"a":1e999}', b"-", b'"' + b"x" * 1_000_000, b"{" + b'"a":1,' * 100_000 + b'"a":1}',
                     b'{"prompt":[' + b"[],"  * 600_000 + b"[]]}", b'{"model":"demo","prompt":"\\ud800"}', b"\0" * 100_000):
            status, payload = self.server.request("POST", "/v1/completions", body)
            self.assertEqual(status, 400, body[:30])
            self.assertLess(len(payload), 1000)
        status, payload = self.server.request("POST", "/v1/completions", b'{"a":"' + b"x" * (2 << 20) + b'"}')
        self.assertEqual(status, 413)
        self.assertIn(b"at most 2097152 bytes", payload)

    def test_header_floods(self):
        many = "".join(f"X-{i}: y\r\n" for i in range(51))
        answer = raw(self.server, f"GET /health HTTP/1.1\r\nHost: x\r\n{many}\r\n".encode())
        self.assertIn(b"HTTP/1.1 431", answer)
        self.assertIn(b"expected at most 50, found 52", answer)
        answer = raw(self.server, b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertIn(b"HTTP/1.1 414", answer)
        self.assertIn(b"expected at most 1000 bytes, found 2001", answer)
        answer = raw(self.server, b"GET /health HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n")
        self.assertIn(b"HTTP/1.1 431", answer)
        self.assertIn(b"at most 16384 bytes", answer)

    def test_pipelining(self):
        one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = raw(self.server, one * 500 + post(chat_body("demo", "abc")) + last)
        self.assertEqual(answer.count(b"HTTP/1.1 200"), 502)
        self.assertIn(b'"abc"', answer)
        # The server bounds the requests that it holds behind a slow one, and answers all of them.
        answer = raw(self.server, post(chat_body("demo", "abc")) + one * 5000 + last)
        self.assertEqual(answer.count(b"HTTP/1.1 200"), 5002)

    def test_connections_per_address(self):
        clients = [connect(self.server) for _ in range(302)]
        answers = [read_to_end(client) for client in clients[-2:]]
        for client in clients:
            client.close()
        self.assertTrue(all(b"HTTP/1.1 503" in answer and b"from one address" in answer for answer in answers), answers)
        wait_for(lambda: self.server_answers(), "room for a connection")

    def server_answers(self):
        try:
            return request(self.server, "GET", "/health")[0] == 200
        except (http.client.HTTPException, ConnectionError):
            return False


class Shutdown(unittest.TestCase):
    def test_sigterm_says_what_it_dropped(self):
        # The streams have 225,000 tokens. They last much longer than the drain timeout, which leaves the test time to look.
        server = Server("--drain-timeout", "4", "--threads", "1")
        streams = [open_stream(server, long_body(model, n=50)) for model in ("reverse", "demo", "demo", "reverse")]
        whole = connect(server)
        whole.sendall(post({**long_body("upper", n=50), "stream": False}))
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        probe = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        for connection in (kept, probe):
            self.assertEqual(request(server, "GET", "/health", connection=connection)[0], 200)
        # The streams are read at once: on a fast machine the answers would fill what the server holds for a slow client.
        readers = concurrent.futures.ThreadPoolExecutor(len(streams))
        self.addCleanup(readers.shutdown)
        answers = [readers.submit(read_to_end, client) for client in streams]
        server.wait_until_busy(250)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "no new requests" in server.text(), "the signal's effect")
        wait_for(lambda: self.refuses_connections(server), "the end of listening")
        status, headers, answer = request(server, "POST", CHAT, chat_body(), connection=kept)
        self.assertEqual((status, headers["Connection"]), (503, "close"))
        self.assertIn("shutting down", answer["error"]["message"])
        self.assertEqual(request(server, "GET", "/health", connection=probe)[0], 503)
        for answer in (waited.result() for waited in answers):
            self.assertIn(b'data: {"error":', answer[-500:])
            self.assertIn(b"shutting down", answer[-500:])
            self.assertTrue(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), answer[-200:])
        answer = read_to_end(whole)
        self.assertIn(b"HTTP/1.1 503", answer)
        self.assertEqual(server.process.wait(timeout=PATIENCE), 0)
        text = server.text()
        # On a busy machine the last look at /health may count as running.
        self.assertRegex(text, r"5 requests were running; 0 ended in time, 5 were dropped|"
                               r"6 requests were running; 1 ended in time, 5 were dropped")
        dropped = re.findall(r"dropped at shutdown: (chatcmpl-\w+) of (\w+)", text)
        self.assertEqual(sorted(model for _, model in dropped), ["demo", "demo", "reverse", "reverse", "upper"])
        self.assertEqual(len({request_id for request_id, _ in dropped}), 5)

    def refuses_connections(self, server):
        try:
            connect(server).close()
        except OSError:
            return True
        return False

    def test_what_ends_in_time_is_not_dropped(self):
        server = Server("--drain-timeout", "3000")
        streams = [open_stream(server, long_body(model)) for model in ("reverse", "demo")]
        server.process.send_signal(signal.SIGTERM)
        for client in streams:
            answer = read_to_end(client)
            self.assertIn(b'"finish_reason":"length"', answer)
            self.assertNotIn(b'"error"', answer)
        self.assertEqual(server.process.wait(timeout=PATIENCE), 0)
        self.assertIn("2 requests were running; 2 ended in time, 0 were dropped", server.text())


class LimitsOfTheSystem(unittest.TestCase):
    """What the system allows the process (ulimit) ends at most what needs more of it."""

    def start(self, *flags):
        server = Server("--device-memory", "32MiB", "--host-memory", "32MiB", *flags)
        self.addCleanup(server.process.kill)
        return server

    def test_files_that_may_not_grow(self):
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder) / "record"
            server = self.start("--record", str(record))
            most = max(record.stat().st_size, len(server.text())) + 4096
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
            sizes = lambda: {record.stat().st_size, os.fstat(server.log.fileno()).st_size}   # the log is a file too
            asked = 0
            while sizes() != {most}:
                self.assertEqual(server.request("POST", CHAT, chat_body(max_tokens=50, ignore_eos=True))[0], 200)
                asked += 1
                self.assertLess(asked, 500, sizes())
            self.assertEqual(server.request("POST", CHAT, chat_body())[0], 200)
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(timeout=PATIENCE), 0)

    def test_memory_that_ends_while_grammars_are_compiled(self):
        if "asan" in serving.LORAMUX or "tsan" in serving.LORAMUX:
            self.skipTest("sanitizers reserve more address space than this allows")
        server = self.start()
        self.assertEqual(server.request("POST", CHAT, chat_body())[0], 200)
        ranges = [{"type": "integer", "minimum": i, "maximum": 1000 * i + 99} for i in range(30)]

        def ask(name):
            schema = {"type": "object", "properties": {name: {"anyOf": ranges}}}
            return server.request("POST", CHAT, chat_body(max_tokens=5, response_format={
                "type": "json_schema", "json_schema": {"name": "s", "schema": schema}}))
        process = server.process.pid
        size = int(re.search(r"VmSize:\s*(\d+)", pathlib.Path(f"/proc/{process}/status").read_text(encoding="utf-8")).group(1))
        no_limit = resource.RLIM_INFINITY
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            for more in (64, 200, 320):   # MiB: threads, their stacks, or what they allocate
                resource.prlimit(process, resource.RLIMIT_AS, ((size << 10) + (more << 20), no_limit))
                for status, body in clients.map(ask, [f"p{more}_{i}" for i in range(8)]):
                    self.assertIn(status, (200, 503), body)
        resource.prlimit(process, resource.RLIMIT_AS, (no_limit, no_limit))
        self.assertEqual(ask("at_last")[0], 200)
        server.stop()


if __name__ == "__main__":
    serving.run_tests()
