#!/usr/bin/env python3
"""Spans of requests, sent by OTLP over HTTP. Standard library only.

Usage: otlp_test.py PATH_OF_LORAMUX

The receiver here reads the JSON encoding as the protocol's specification has it. Where `tests/clients/install.sh all` has
built it, the spans also go through a real OpenTelemetry Collector (tests/clients/otelcol).
"""
import http.server
import json
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import serving
from serving import Server, wait_for

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
COLLECTOR = serving.CLIENTS / "otelcol/otelcol"
SMALL = ("--device-memory", "64MiB", "--host-memory", "32MiB")


def value_of(value):
    (kind, content), = value.items()
    return {"stringValue": str, "intValue": int, "doubleValue": float, "boolValue": bool}[kind](content)


def attributes_of(thing):
    return {attribute["key"]: value_of(attribute["value"]) for attribute in thing.get("attributes", [])}


def spans_of(body):
    """The spans of an ExportTraceServiceRequest in JSON, each with its service."""
    spans = []
    for resource in body["resourceSpans"]:
        service = attributes_of(resource["resource"])["service.name"]
        for scope in resource["scopeSpans"]:
            spans += [{**span, "service": service, "attributes": attributes_of(span)} for span in scope["spans"]]
    return spans


class Receiver:
    """An OTLP receiver that answers with `status`, or not at all while `hang` is set."""

    def __init__(self):
        self.spans, self.headers, self.status, self.hang, self.posts = [], {}, 200, threading.Event(), 0
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.posts += 1
                receiver.headers = dict(self.headers)
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                while receiver.hang.is_set():
                    time.sleep(0.01)
                if receiver.status == 200:
                    receiver.spans += spans_of(body)
                try:
                    self.send_response(receiver.status)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"{}")
                except OSError:
                    pass   # the server has given up

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.hang.clear()
        self.server.shutdown()
        self.server.server_close()


def ask(server, model="reverse", flags="01", trace=TRACE, **more):
    """One request in a trace. Returns the response's status and traceparent."""
    connection = serving.http.client.HTTPConnection("127.0.0.1", server.port, timeout=serving.PATIENCE)
    headers = {"Content-Type": "application/json"}
    if trace:
        headers["traceparent"] = f"00-{trace}-{PARENT}-{flags}"
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "temperature": 0, **more}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, response.getheader("traceparent")


class Spans(unittest.TestCase):
    def setUp(self):
        self.receiver = Receiver()
        self.addCleanup(self.receiver.close)

    def server(self, *flags, url=None):
        server = Server(*SMALL, "--otlp-endpoint", url or self.receiver.url, *flags)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        return server

    def wait_for_spans(self, count):
        wait_for(lambda: len(self.receiver.spans) >= count, lambda: f"{count} spans, found {self.receiver.spans}")
        return self.receiver.spans

    def check_request(self, spans, parent, trace):
        """The spans of one request to the adapter `reverse` that was not on the device."""
        by_name = {span["name"]: span for span in spans}
        self.assertEqual(sorted(by_name), ["POST /v1/chat/completions", "decode", "load", "prefill", "queue"])
        self.assertEqual(len({span["spanId"] for span in spans}), 5)
        request = by_name["POST /v1/chat/completions"]
        self.assertEqual(request["kind"], 2)
        self.assertEqual(request.get("parentSpanId", ""), parent)
        for span in spans:
            self.assertEqual(span["traceId"], trace)
            self.assertRegex(span["spanId"], r"^[0-9a-f]{16}$")
            if span is not request:
                self.assertEqual(span["parentSpanId"], request["spanId"])
                self.assertGreaterEqual(int(span["startTimeUnixNano"]), int(request["startTimeUnixNano"]))
                self.assertLessEqual(int(span["endTimeUnixNano"]), int(request["endTimeUnixNano"]))
            self.assertLessEqual(int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
            self.assertLess(abs(int(span["endTimeUnixNano"]) / 1e9 - time.time()), 3600)
        self.assertEqual(by_name["queue"]["endTimeUnixNano"], by_name["prefill"]["startTimeUnixNano"])
        self.assertEqual(by_name["prefill"]["endTimeUnixNano"], by_name["decode"]["startTimeUnixNano"])
        facts = request["attributes"]
        self.assertEqual((facts["loramux.adapter"], facts["http.response.status_code"]), ("reverse", 200))
        self.assertGreater(facts["gen_ai.usage.input_tokens"], 3)
        self.assertGreater(facts["gen_ai.usage.output_tokens"], 3)
        first = (int(by_name["prefill"]["endTimeUnixNano"]) - int(request["startTimeUnixNano"])) / 1e9
        self.assertAlmostEqual(facts["gen_ai.server.time_to_first_token"], first, places=6)
        self.assertEqual(by_name["decode"]["attributes"]["gen_ai.response.finish_reasons"], "stop")
        return request

    def test_a_request_in_its_clients_trace(self):
        server = self.server("--otlp-service-name", "lora-test", "--otlp-headers", "x-key=secret%20value, x-other=1")
        status, traceparent = ask(server)
        self.assertEqual(status, 200)
        spans = self.wait_for_spans(5)
        request = self.check_request(spans, PARENT, TRACE)
        self.assertEqual(traceparent, f"00-{TRACE}-{request['spanId']}-01")
        self.assertEqual({span["service"] for span in spans}, {"lora-test"})
        self.assertEqual(self.receiver.headers["x-key"], "secret value")
        self.assertEqual(self.receiver.headers["x-other"], "1")
        wait_for(lambda: server.metric("loramux:otlp_spans_total", outcome="sent") == 5, "the metric")
        self.assertNotIn("secret", pathlib.Path(f"/proc/{server.process.pid}/cmdline").read_text(encoding="utf-8"))

    def test_the_sampled_flag_and_requests_without_a_trace(self):
        server = self.server("--otlp-sample", "0")
        ask(server, flags="00")
        ask(server, trace=None)
        ask(server)
        self.wait_for_spans(4)
        server.stop()
        self.assertEqual({span["traceId"] for span in self.receiver.spans}, {TRACE})
        self.assertEqual(sum(span["kind"] == 2 for span in self.receiver.spans), 1)

    def test_requests_without_a_trace_get_one(self):
        server = self.server()
        ask(server, trace=None)
        spans = self.wait_for_spans(5)
        self.check_request(spans, "", spans[0]["traceId"])
        ask(server, model="nothing", trace=None)
        refused = self.wait_for_spans(6)[5]
        self.assertEqual(refused["attributes"]["http.response.status_code"], 404)
        self.assertNotEqual(refused["traceId"], spans[0]["traceId"])

    def test_the_end_sends_what_is_left(self):
        server = self.server()
        for _ in range(3):
            ask(server)
        server.stop()
        self.assertEqual(sum(span["kind"] == 2 for span in self.receiver.spans), 3)

    def test_a_collector_that_is_gone_or_hangs_harms_nothing(self):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        gone = self.server(url=f"http://127.0.0.1:{port}")
        for _ in range(3):
            self.assertEqual(ask(gone)[0], 200)
        wait_for(lambda: "does not take spans" in gone.text(), "a warning")
        text = gone.stop()
        self.assertEqual(text.count("does not take spans"), 1)
        self.receiver.hang.set()
        hangs = self.server()
        for _ in range(3):
            self.assertEqual(ask(hangs)[0], 200)
        wait_for(lambda: self.receiver.posts > 0, "an export")
        hangs.process.send_signal(signal.SIGTERM)
        hangs.process.wait(timeout=60)   # 3 s of flushing, and what a busy machine adds
        self.assertEqual(hangs.process.returncode, 0)
        hangs.log.close()

    def test_wrong_flags(self):
        for flags, message in ((("--otlp-endpoint", "collector:4318"), "--otlp-endpoint"),
                               (("--otlp-endpoint", self.receiver.url, "--otlp-headers", "se cret"), "--otlp-headers"),
                               (("--otlp-endpoint", self.receiver.url, "--otlp-headers", "x=se cret%0d%0ay:1"), "--otlp-headers")):
            done = subprocess.run([serving.LORAMUX, "serve", str(serving.DEMO / "model"), "--port", "0", *flags], text=True,
                                  stderr=subprocess.PIPE, timeout=serving.PATIENCE)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)
            self.assertNotIn("se cret", done.stderr)

    @unittest.skipUnless(COLLECTOR.exists(), "SKIPPED: tests/clients/install.sh all builds the collector")
    def test_a_real_collector(self):
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
            free.close()
            out, config = pathlib.Path(folder) / "spans.json", pathlib.Path(folder) / "config.yaml"
            config.write_text(
                f"receivers: {{otlp: {{protocols: {{http: {{endpoint: '127.0.0.1:{port}'}}}}}}}}\n"
                f"exporters: {{file: {{path: '{out}', flush_interval: 100ms}}}}\n"
                "service: {telemetry: {metrics: {level: none}}, pipelines: {traces: {receivers: [otlp], exporters: [file]}}}\n",
                encoding="utf-8")
            collector = subprocess.Popen([COLLECTOR, config], stderr=subprocess.DEVNULL)
            try:
                server = self.server(url=f"http://127.0.0.1:{port}")
                status, traceparent = ask(server)
                self.assertEqual(status, 200)

                def received():
                    self.assertIsNone(collector.poll(), "the collector has ended")
                    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
                    return [span for line in lines for span in spans_of(json.loads(line))]
                wait_for(lambda: len(received()) >= 5, "spans in the collector's file")
                request = self.check_request(received(), PARENT, TRACE)
                self.assertEqual(re.split("-", traceparent)[2], request["spanId"])
                server.stop()
            finally:
                collector.terminate()
                collector.wait(timeout=60)


if __name__ == "__main__":
    serving.run_tests()
