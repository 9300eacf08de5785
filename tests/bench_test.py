#!/usr/bin/env python3
"""`loramux bench` against `loramux serve` on the demo, and against servers that misbehave. Standard library only.

Measured times are compared with nothing, except where the server of the test sets a lower bound.

Usage: bench_test.py PATH_OF_LORAMUX
"""
import json
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

import adapter_files
import serving
from serving import DEMO, PATIENCE, Server


def bench(*flags, timeout=PATIENCE):
    """(exit status, standard output, standard error)"""
    done = subprocess.run([serving.LORAMUX, "bench", *map(str, flags)], capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()


class BesideHeads(Folder):
    def test_adapters_with_a_head_for_classes_are_not_asked_for_text(self):
        for name in ("reverse", "upper", "toxicity"):
            shutil.copytree(DEMO / "adapters" / ("reverse" if name == "toxicity" else name), self.path / "adapters" / name)
        adapter_files.add_head(self.path / "adapters/toxicity", [[0.1] * 192] * 2)
        server = Server(adapter_dir=self.path / "adapters")

        def cards():
            return {card["id"]: card.get("capabilities") for card in server.json("GET", "/v1/models")[1]["data"]}
        expected = {"demo": None, "reverse": None, "upper": None, "toxicity": ["classify"]}
        for state in ("offered", "loaded"):
            self.assertEqual(cards(), expected, state)
            code, out, err = bench("--url", f"http://127.0.0.1:{server.port}", "--adapters-from-server", "--num-requests", 12,
                                   "--concurrency", 4, "--input-tokens", 10, "--output-tokens", 2, "--warmup", "--json",
                                   self.path / "run.json")
            self.assertEqual(code, 0, (out, err))
            asked = {a["name"] for a in json.loads((self.path / "run.json").read_text())["adapters"]}
            self.assertLessEqual(asked, {"reverse", "upper", "demo"})
            self.assertEqual(server.json("POST", "/classify", {"model": "toxicity", "input": "x"})[0], 200)
        server.stop()


class AgainstTheDemo(Folder):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def run_bench(self, *flags, status=0):
        """The result's JSON."""
        code, out, err = bench("--url", self.url, "--json", self.path / "run.json", *flags)
        self.assertEqual(code, status, (out, err))
        self.stdout, self.stderr = out, err
        return json.loads((self.path / "run.json").read_text())

    def test_every_answer_of_every_adapter_is_checked(self):
        # Only questions that the adapter answers right.
        tasks = self.path / "tasks"
        tasks.mkdir()
        for name in ("base", "reverse", "upper", "rot13", "json"):
            lines = (DEMO / "eval" / f"{name}.jsonl").read_text().splitlines()[:20]
            (tasks / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        run = self.run_bench("--tasks", tasks, "--concurrency", 8, "--num-requests", 60)
        requests = run["summary"]["requests"]
        self.assertEqual(requests, {"total": 60, "succeeded": 60, "failed": 0, "checked": 60, "wrong_answers": 0})
        self.assertEqual({a["name"] for a in run["adapters"]}, {"demo", "reverse", "upper", "rot13", "json"})
        self.assertLessEqual(run["summary"]["peak_in_flight"], 8)
        # With the expected answers of another task, every answer counts as wrong.
        (tasks / "reverse.jsonl").write_text((tasks / "upper.jsonl").read_text())
        run = self.run_bench("--tasks", tasks, "--adapters", "reverse", "--concurrency", 4, "--num-requests", 10, status=3)
        self.assertEqual(run["summary"]["failures"], {"wrong_answer": 10})
        self.assertIn("10 of 10 requests failed", self.stderr)
        self.assertIn("expected '", run["failure_examples"][0]["detail"])

    def test_open_loop(self):
        html = self.path / "run.html"
        run = self.run_bench("--rate", 40, "--num-requests", 60, "--adapters-from-server", "--adapter-distribution", "zipf",
                             "--base-share", 0.2, "--input-tokens", 100, "--output-tokens", "uniform:4:8", "--seed", 3,
                             "--slo-ttft", 3600_000, "--slo-tpot", 3600_000, "--json-requests", "--warmup", "--html", html)
        for key in ("schema", "started_unix_s", "duration_s", "interrupted", "configuration", "summary", "adapters",
                    "failure_examples", "curves", "series", "samples", "requests", "warnings"):
            self.assertIn(key, run)
        summary = run["summary"]
        for key in ("requests", "failures", "tokens", "throughput", "goodput", "latency", "peak_in_flight", "scheduling_lag_ms"):
            self.assertIn(key, summary)
        for what in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
            latency = summary["latency"][what]
            self.assertGreater(latency["count"], 0)
            self.assertLessEqual(latency["p50"], latency["p90"])
            self.assertLessEqual(latency["p90"], latency["p99"])
        self.assertEqual(summary["goodput"]["share"], 1)
        self.assertEqual(sum(a["requests"]["total"] for a in run["adapters"]), 60)
        self.assertGreater(len(run["adapters"]), 4)
        self.assertEqual(len(run["requests"]), 60)
        for request in run["requests"]:
            self.assertGreaterEqual(request["sent_ms"], request["scheduled_ms"])
            self.assertEqual(request["output_tokens"], request["requested_output_tokens"])
            self.assertAlmostEqual(request["input_tokens"], 100, delta=40)   # bench chooses words, and a token is a byte
        # The arrivals follow from the seed, however fast the answers came.
        again = self.run_bench("--rate", 40, "--num-requests", 60, "--input-tokens", 10, "--output-tokens", 1, "--seed", 3,
                               "--json-requests")
        self.assertEqual([r["scheduled_ms"] for r in run["requests"]], [r["scheduled_ms"] for r in again["requests"]])
        text = html.read_text()
        self.assertNotRegex(text, r"""(src|href)\s*=|url\(|@import|https?://(?!127\.0\.0\.1)""")
        self.assertGreaterEqual(text.count("<svg"), 6)

    def test_a_wrong_model_name_is_counted_by_kind(self):
        run = self.run_bench("--adapters", "unknown,reverse", "--adapter-distribution", "distinct", "--num-requests", 10,
                             "--output-tokens", 2, status=3)
        self.assertEqual(run["summary"]["failures"], {"http_404": 5})
        self.assertIn("The model `unknown` does not exist.", self.stdout)
        self.assertIn("5 of 10 requests failed", self.stderr)

    def test_turns_send_the_whole_dialogue(self):
        run = self.run_bench("--turns", 3, "--num-requests", 4, "--concurrency", 2, "--input-tokens", 30, "--output-tokens", 5,
                             "--json-requests", "--think-time", 0.01)
        self.assertEqual(len(run["requests"]), 12)
        for session in range(4):
            tokens = [r["input_tokens"] for r in sorted(run["requests"], key=lambda r: r["turn"]) if r["session"] == session]
            self.assertEqual(len(tokens), 3)
            self.assertGreater(tokens[1], tokens[0] + 15)
            self.assertGreater(tokens[2], tokens[1] + 15)

    def test_completions_and_whole_answers(self):
        run = self.run_bench("--endpoint", "completions", "--num-requests", 6, "--output-tokens", 4, "--input-tokens", 20)
        self.assertEqual(run["summary"]["tokens"]["output"], 24)
        run = self.run_bench("--no-stream", "--num-requests", 6, "--output-tokens", 4, "--input-tokens", 20)
        self.assertEqual(run["summary"]["tokens"]["output"], 24)
        self.assertEqual(run["summary"]["latency"]["ttft_ms"]["count"], 0)
        self.assertEqual(run["summary"]["latency"]["e2e_ms"]["count"], 6)

    def test_traces(self):
        trace = self.path / "azure.csv"
        trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "".join(
            f"2023-11-16 18:15:{46 + i}.6805900,{200 + i},{10 + i}\r\n" for i in range(6)))
        run = self.run_bench("--trace", trace, "--time-scale", 0.01, "--length-scale", 0.5, "--json-requests")
        self.assertEqual([r["output_tokens"] for r in run["requests"]], [5, 6, 6, 7, 7, 8])
        self.assertEqual([r["scheduled_ms"] for r in run["requests"]], [0, 10, 20, 30, 40, 50])
        clients = self.path / "clients"
        clients.mkdir()
        (clients / "chunk-0-trace.csv").write_text("0,1,1,Gamma,1,1\n")
        (clients / "chunk-1-trace.csv").write_text("0,9,2,Weibull,0.6,0.1\n")
        run = self.run_bench("--trace", clients, "--rate", 100, "--num-requests", 50, "--adapters", "upper,reverse",
                             "--adapter-distribution", "trace", "--input-tokens", 10, "--output-tokens", 2)
        counts = {a["name"]: a["requests"]["total"] for a in run["adapters"]}
        self.assertGreater(counts["upper"], counts["reverse"])   # the busiest client is the first adapter
        trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n")
        code, _, err = bench("--url", self.url, "--trace", trace)
        self.assertEqual(code, 2)
        self.assertIn("azure.csv, line 2", err)

    def test_two_runs_side_by_side(self):
        runs = {name: self.run_bench("--num-requests", 8, "--input-tokens", 10, "--output-tokens", tokens)
                for name, tokens in (("a", 4), ("b", 24))}
        # The latencies of `b` are set: measured ones could be in any order on a busy machine.
        runs["b"]["summary"]["latency"]["e2e_ms"] = {
            key: 3 * value for key, value in runs["a"]["summary"]["latency"]["e2e_ms"].items()}
        for name, run in runs.items():
            (self.path / f"{name}.json").write_text(json.dumps(run))
        code, out, err = bench("--compare", self.path / "a.json", self.path / "b.json", "--html", self.path / "both.html")
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"end to end P50 .* x  WORSE")
        self.assertIn('output_tokens: "4" -> "24"', out)
        self.assertIn("both.html", out)
        self.assertNotRegex((self.path / "both.html").read_text(), r"(src|href)\s*=")
        code, out, err = bench("--from", self.path / "a.json", "--html", self.path / "again.html")
        self.assertEqual(code, 0, err)
        self.assertIn("TTFT", out)
        code, _, err = bench("--compare", self.path / "a.json", self.path / "both.html")
        self.assertEqual(code, 1)
        self.assertIn("expected a result of `loramux bench --json`", err)


class OneAnswer:
    """A server that answers every request with the same bytes and closes. `requests` has the bytes of each request."""

    def __init__(self, answer, tls=None):
        self.tls = tls
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.requests = []
        self.answer = answer
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.handle, args=(client,), daemon=True).start()

    def handle(self, client):
        try:
            self.exchange(self.tls.wrap_socket(client, server_side=True) if self.tls else client)
        except OSError:
            client.close()   # the client went away

    def exchange(self, client):
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(65536)
        length = int((re.search(rb"Content-Length: (\d+)", data) or [0, 0])[1])
        while len(data.split(b"\r\n\r\n", 1)[1]) < length:
            data += client.recv(65536)
        self.requests.append(data)
        if self.answer is None:   # never
            client.recv(1)
        else:
            client.sendall(self.answer)
        client.close()


def stream(*events):
    body = b"".join(b"data: " + e + b"\n\n" for e in events)
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body) + body


CHUNK = b'{"choices":[{"delta":{"content":"x"},"finish_reason":null}]}'


class Held(OneAnswer):
    """Answers no request until `count` of them have come."""

    def __init__(self, answer, count):
        self.all_here = threading.Barrier(count)
        super().__init__(answer)

    def handle(self, client):
        data = client.recv(65536)
        self.all_here.wait(timeout=PATIENCE)
        self.requests.append(data)
        client.sendall(self.answer)
        client.close()


class Dripping(OneAnswer):
    """Sends a chunked stream of three events, 0.1 s apart."""

    def exchange(self, client):
        client.recv(65536)
        client.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in (CHUNK, CHUNK, CHUNK, b"[DONE]"):
            event = b"data: " + event + b"\n\n"
            time.sleep(0.1)
            client.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        client.sendall(b"0\r\n\r\n")
        client.close()


class OverTls(Folder):
    def test_the_certificate_is_checked(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", self.path / "key.pem", "-out",
                        self.path / "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                       check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path / "cert.pem", self.path / "key.pem")
        server = OneAnswer(stream(CHUNK, b"[DONE]"), context)
        tasks = self.path / "tasks"
        tasks.mkdir()
        (tasks / "base.jsonl").write_text('{"prompt": "q", "answer": "x"}\n')
        flags = ("--url", server.url.replace("http://127.0.0.1", "https://localhost"), "--model", "m", "--tasks", tasks,
                 "--num-requests", 3, "--concurrency", 1)
        code, out, err = bench(*flags, "--insecure")
        self.assertEqual(code, 0, (out, err))
        self.assertEqual(len(server.requests), 3)
        code, out, err = bench(*flags)
        self.assertEqual(code, 3, (out, err))
        self.assertIn("certificate verify failed", out)
        self.assertEqual(len(server.requests), 3)   # a server without a valid certificate gets no request
        server.socket.close()


class AgainstServersThatMisbehave(Folder):
    def failures(self, answer, *flags):
        tasks = self.path / "tasks"
        tasks.mkdir(exist_ok=True)
        (tasks / "base.jsonl").write_text('{"prompt": "q", "answer": "x"}\n')
        server = OneAnswer(answer)
        code, out, err = bench("--url", server.url, "--model", "m", "--tasks", tasks, "--num-requests", 2, "--concurrency", 1,
                               "--json", self.path / "run.json", *flags)
        server.socket.close()
        run = json.loads((self.path / "run.json").read_text())
        self.assertEqual(code, 3 if run["summary"]["failures"] else 0, (out, err))
        self.sent = server.requests
        return run["summary"]["failures"]

    def test_every_failure_has_its_kind(self):
        self.assertEqual(self.failures(stream(CHUNK, b"[DONE]")), {})
        self.assertEqual(self.failures(stream(CHUNK)), {"cut_off": 2})
        self.assertEqual(self.failures(stream(CHUNK, b"[DONE]")[:-12]), {"cut_off": 2})
        self.assertEqual(self.failures(b""), {"cut_off": 2})
        self.assertEqual(self.failures(stream(b"{", b"[DONE]")), {"malformed": 2})
        self.assertEqual(self.failures(b"SSH-2.0-OpenSSH\r\n\r\n"), {"malformed": 2})
        self.assertEqual(self.failures(stream(CHUNK, b'{"error":{"message":"x"}}', b"[DONE]")), {"stream_error": 2})
        self.assertEqual(self.failures(stream(CHUNK, CHUNK, b"[DONE]")), {"wrong_answer": 2})
        self.assertEqual(self.failures(b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n"), {"http_429": 2})
        self.assertEqual(self.failures(None, "--timeout", 0.2), {"timeout": 2})

    def test_hostile_answers_are_failures_of_requests(self):
        ok = b"HTTP/1.1 200 OK\r\n"
        self.assertEqual(self.failures(ok + b"Content-Length: 1000000000000000\r\n\r\ndata: x"), {"cut_off": 2})
        self.assertEqual(self.failures(ok + b"X-A: b\r\n" * 100000 + b"\r\n"), {"malformed": 2})
        chunk_line = b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * 1_000_000
        self.assertEqual(self.failures(ok + chunk_line), {"malformed": 2})
        deep = b'{"error":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        self.assertEqual(self.failures(stream(deep, b"[DONE]")), {"malformed": 2})
        self.assertEqual(self.failures(stream(CHUNK + b"\0x", b"[DONE]")), {"malformed": 2})
        self.assertEqual(self.failures(stream(b'{"error":{"message":"\xff"}}', b"[DONE]")), {"malformed": 2})
        self.assertEqual(self.failures(ok + b"\r\n" + b"x" * (17 << 20)), {"malformed": 2})

    def test_times_are_those_of_the_bytes(self):
        server = Dripping(b"")
        tasks = self.path / "tasks"
        tasks.mkdir()
        (tasks / "base.jsonl").write_text('{"prompt": "q", "answer": "xxx"}\n')

        def measured():
            code, out, err = bench("--url", server.url, "--model", "m", "--tasks", tasks, "--num-requests", 1,
                                   "--json", self.path / "run.json")
            self.assertEqual(code, 0, (out, err))
            latency = json.loads((self.path / "run.json").read_text())["summary"]["latency"]
            # Nothing can arrive before it was sent.
            self.assertGreaterEqual(latency["ttft_ms"]["p50"], 99)
            self.assertGreaterEqual(latency["e2e_ms"]["p50"], 399)
            self.assertEqual(latency["itl_ms"]["count"], 2)
            return latency
        # Where the machine holds up the client, several events arrive together: then once more.
        serving.wait_for(lambda: measured()["tpot_ms"]["p50"] > 20, "events that arrive one by one")
        server.socket.close()

    def test_key_and_headers_are_sent_and_not_kept(self):
        (self.path / "key").write_text("secret-key\n")
        self.failures(stream(CHUNK, b"[DONE]"), "--api-key-file", self.path / "key", "--header", "X-Tenant: secret-tenant")
        self.assertIn(b"\r\nAuthorization: Bearer secret-key\r\n", self.sent[0])
        self.assertIn(b"\r\nX-Tenant: secret-tenant\r\n", self.sent[0])
        self.assertNotIn("secret", (self.path / "run.json").read_text())

    def test_no_server(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        code, _, err = bench("--url", f"http://127.0.0.1:{port}")
        self.assertEqual(code, 1)
        self.assertIn("Connection refused", err)

    def test_slow_answers_do_not_slow_an_open_loop(self):
        tasks = self.path / "tasks"
        tasks.mkdir()
        (tasks / "base.jsonl").write_text('{"prompt": "q", "answer": "x"}\n')
        server = Held(stream(CHUNK, b"[DONE]"), 40)   # the first answer comes after the last request
        code, out, err = bench("--url", server.url, "--model", "m", "--tasks", tasks, "--rate", 50, "--num-requests", 40,
                               "--timeout", PATIENCE, "--json", self.path / "run.json", timeout=2 * PATIENCE)
        server.socket.close()
        self.assertEqual(code, 0, (out, err))
        summary = json.loads((self.path / "run.json").read_text())["summary"]
        self.assertEqual(summary["failures"], {})
        self.assertEqual(summary["peak_in_flight"], 40)

    def test_flags_that_do_not_go_together(self):
        for flags, words in ((("--rate", 1, "--concurrency", 2), "open loop"), (("--time-scale", 2), "need --trace"),
                             (("--input-tokens", "many"), "uniform:LOW:HIGH"), (("--adapter-distribution", "x"), "distinct"),
                             (("--url", "ftp://x"), "--url"), (("--header", "novalue"), "--header")):
            code, _, err = bench(*flags)
            self.assertEqual(code, 2, flags)
            self.assertIn(words, err)


if __name__ == "__main__":
    serving.run_tests()
