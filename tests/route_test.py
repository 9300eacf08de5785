#!/usr/bin/env python3
"""`loramux route` in front of three real servers that are killed, stopped and drained under load. Standard library only.

Whatever happens to the servers, three things hold, and `Load.check` checks them in the logs of clients and servers:
- at most one server executes a request;
- an answer is complete, or the client is told that it is not: by an error event, or by a status;
- a request fails only if its server died or was cut off while it may have worked on it.

Usage: route_test.py PATH_OF_LORAMUX
"""
import http.client
import json
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest

import serving
from serving import DEMO, PATIENCE, Server, questions, run_tests, wait_for

KEY = "an-admin-key-of-the-tests"
QUESTIONS = questions(6)
# Servers are small: three of them and a router share a machine with other tests.
SMALL = ("--threads", "1", "--http-threads", "1", "--drain-timeout", "60")


class RoutedServer(Server):
    """`loramux serve` on the demo, on a port that it keeps when it starts again."""

    def __init__(self, *flags, port=0):
        self.flags = flags
        self.start([serving.LORAMUX, "serve", str(DEMO / "model"), "--served-model-name", "demo", "--adapter-dir",
                    str(DEMO / "adapters"), "--port", str(port), *SMALL, *flags])

    @property
    def name(self):
        return f"127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def again(self):
        """The same server, started again on the same port."""
        return RoutedServer(*self.flags, port=self.port)

    def executed(self):
        """The ids of the requests that it logged and that it did not refuse before it began."""
        return re.findall(r"request(?: cut off)? method=POST path=/v1/\S+ status=(?!503)\d+ .*?request_id=(\S+)", self.text())


class Router(Server):
    """`loramux route` on a free port."""

    def __init__(self, servers, *flags):
        self.start([serving.LORAMUX, "route", "--servers", ",".join(servers), "--port", "0", *flags])

    def states(self):
        return {server["name"]: server["state"] for server in self.json("GET", "/health")[1]["servers"]}

    def wait_for_states(self, **wanted):
        """`wanted`: how many servers are in a state."""
        def found():
            states = list(self.states().values())
            return all(states.count(state) == count for state, count in wanted.items())
        wait_for(found, lambda: f"expected {wanted}, found {self.json('GET', '/health')[1]}")


class Answer:
    def __init__(self, request_id):
        self.request_id = request_id
        self.status, self.server, self.text, self.fault = None, None, "", None

    def ok(self):
        return self.status == 200 and self.fault is None


def ask(port, request_id, model, prompt, stream, max_tokens=60):
    """Asks, and returns the Answer; `fault` says what is wrong with it. A truncated answer raises."""
    answer = Answer(request_id)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": max_tokens,
            "stream": stream}
    connection.request("POST", "/v1/chat/completions", json.dumps(body),
                       {"Content-Type": "application/json", "X-Request-Id": request_id})
    response = connection.getresponse()
    answer.status, answer.server = response.status, response.getheader("x-loramux-server")
    payload = response.read().decode()   # raises if the answer is cut off
    connection.close()
    if answer.status != 200:
        answer.fault = payload
    elif not stream:
        answer.text = json.loads(payload)["choices"][0]["message"]["content"]
    else:
        assert payload.endswith("data: [DONE]\n\n"), payload[-200:]
        for event in payload.split("\n\n")[:-2]:
            data = json.loads(event.removeprefix("data: "))
            if "error" in data:
                answer.fault = data["error"]["message"]
            else:
                answer.text += data["choices"][0]["delta"].get("content") or ""
    return answer


class Load:
    """Clients that ask until `stop`. `servers` grows with each start of a server, and their logs are read at the end."""

    def __init__(self, router, servers, clients=6):
        self.router, self.servers = router, list(servers)
        self.answers, self.errors = [], []
        self.lock, self.stopping = threading.Lock(), False
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, client):
        number = 0
        try:
            while not self.stopping:
                model, prompt, _ = QUESTIONS[(client * 7 + number) % len(QUESTIONS)]
                answer = ask(self.router.port, f"{id(self)}-{client}-{number}", model, prompt, stream=number % 2 == 0)
                number += 1
                with self.lock:
                    self.answers.append(answer)
        except Exception as error:   # pylint: disable=broad-except
            with self.lock:
                self.errors.append(repr(error))

    def wait(self, more):
        """Waits for so many more answers."""
        wanted = len(self.answers) + more
        wait_for(lambda: len(self.answers) >= wanted or self.errors, f"{more} more answers")
        assert not self.errors, self.errors

    def wait_ok(self, servers, each):
        """Waits until each of the servers has given so many more good answers."""
        begin = len(self.answers)

        def enough():
            new = [answer.server for answer in self.answers[begin:] if answer.ok()]
            return self.errors or all(new.count(server.name) >= each for server in servers)
        wait_for(enough, f"{each} answers of each server")
        assert not self.errors, self.errors

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join(PATIENCE)
        assert not self.errors, self.errors

    def executions(self):
        """The names of the servers that logged a request, by its id."""
        executions = {}
        for server in self.servers:
            for request_id in server.executed():
                executions.setdefault(request_id, []).append(server.name)
        return executions

    def check(self, killed=None):
        """Checks what always holds, and returns the answers that failed. The last lines of a killed server's log may be
        missing."""
        asked = {answer.request_id: answer for answer in self.answers}
        assert len(asked) == len(self.answers)
        # A server logs a request after it has sent the answer.
        logged = [answer.request_id for answer in self.answers if answer.ok() and answer.server != killed]
        wait_for(lambda: all(request_id in self.executions() for request_id in logged), "a log line of every answer")
        executions = self.executions()
        for request_id, answer in asked.items():
            names = executions.get(request_id, [])
            assert len(names) <= 1, (request_id, names)
            assert names in ([], [answer.server]), (request_id, names, answer.server, answer.fault)
        return [answer for answer in self.answers if not answer.ok()]


class FleetTest(unittest.TestCase):
    """Three servers and a router, whose servers are replaced by each test that ends one."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.key_file = pathlib.Path(cls.folder.name) / "key"
        cls.key_file.write_text(KEY + "\n")
        flags = ("--enable-runtime-lora", "--admin-key-file", str(cls.key_file), "--allowed-adapter-root",
                 str(DEMO / "adapters"))
        cls.servers = [RoutedServer(*flags) for _ in range(3)]
        cls.router = Router([server.name for server in cls.servers], "--slow-start", "0.5", "--ejection", "1")
        cls.router.wait_for_states(ready=3)

    @classmethod
    def tearDownClass(cls):
        cls.router.stop()
        for server in cls.servers:
            server.stop()
        cls.folder.cleanup()

    def setUp(self):
        self.router.wait_for_states(ready=3)

    def test_answers_are_those_of_the_servers(self):
        for model, prompt, expected in QUESTIONS[:8]:
            for stream in (False, True):
                answer = ask(self.router.port, f"same-{model}-{prompt[:8].encode().hex()}-{stream}", model, prompt, stream)
                direct = ask(self.servers[0].port, "direct", model, prompt, stream)
                self.assertTrue(answer.ok(), answer.fault)
                self.assertEqual(answer.text, direct.text)

    def test_models_and_errors(self):
        listed = [card["id"] for card in self.router.json("GET", "/v1/models")[1]["data"]]
        self.assertEqual(listed, [card["id"] for card in self.servers[0].json("GET", "/v1/models")[1]["data"]])
        status, body = self.router.chat("no-such-model", "x")
        self.assertEqual(status, 404, body)
        self.assertEqual(self.router.request("POST", "/v1/chat/completions", b"{")[0], 400)
        self.assertEqual(self.router.request("GET", "/internal/snapshot")[0], 404)
        page = self.router.request("GET", "/metrics")[1].decode()
        self.assertIn('loramux:router_requests_total{server="' + self.servers[0].name + '",outcome="answered"}', page)

    def test_kill(self):
        load = Load(self.router, self.servers)
        load.wait_ok(self.servers, 2)
        victim = self.servers[2]
        victim.kill()
        load.wait(60)
        self.servers[2] = victim.again()
        load.servers.append(self.servers[2])
        load.wait_ok(self.servers, 2)
        load.stop()
        failed = load.check(killed=victim.name)
        self.assertLessEqual(len(failed), 6, [answer.fault for answer in failed])   # those that were at the victim
        for answer in failed:
            self.assertEqual(answer.server, victim.name)
            self.assertIn("broke off", answer.fault)

    def test_stop_and_go_on(self):
        load = Load(self.router, self.servers)
        load.wait_ok(self.servers, 2)
        victim = self.servers[1]
        victim.process.send_signal(signal.SIGSTOP)
        try:
            self.router.wait_for_states(ready=2, ejected=1)
            others = [self.servers[0], self.servers[2]]
            late = [ask(self.router.port, f"late-{i}", "demo", f"x{i}", stream=False) for i in range(6)]
            self.assertTrue(all(answer.ok() for answer in late))
            self.assertTrue({answer.server for answer in late} <= {server.name for server in others})
        finally:
            victim.process.send_signal(signal.SIGCONT)
        load.wait_ok(self.servers, 2)
        load.stop()
        self.assertEqual([answer.fault for answer in load.check()], [])   # the server answered when it went on

    def test_drain(self):
        load = Load(self.router, self.servers)
        load.wait_ok(self.servers, 2)
        leaving = self.servers[0]
        text = leaving.stop()
        load.wait(30)
        self.servers[0] = leaving.again()
        load.servers.append(self.servers[0])
        load.wait_ok(self.servers, 2)
        load.stop()
        leaving.text = lambda: text   # its log is closed
        self.assertEqual([answer.fault for answer in load.check()], [])

    def test_a_slow_reader(self):
        before = self.router.metric("loramux:router_streams")
        body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 800,
                           "ignore_eos": True, "stream": True, "n": 4}).encode()
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", self.router.port))
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: self.router.metric("loramux:router_streams") > before, "a stream")
        for i in range(10):
            answer = ask(self.router.port, f"beside-{i}", "demo", f"x{i}", stream=True)
            self.assertTrue(answer.ok(), answer.fault)
        slow.close()
        wait_for(lambda: self.router.metric("loramux:router_in_flight") == 0, "the end of the stream")
        for server in self.servers:
            server.wait_idle()   # the router has cancelled it

    def test_adapters_are_loaded_everywhere(self):
        def post(path, body, key=KEY):
            connection = http.client.HTTPConnection("127.0.0.1", self.router.port, timeout=PATIENCE)
            connection.request("POST", path, json.dumps(body),
                               {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
            response = connection.getresponse()
            result = response.status, json.loads(response.read())
            connection.close()
            return result
        adapter = {"lora_name": "fanned", "lora_path": str(DEMO / "adapters/reverse")}
        status, body = post("/v1/load_lora_adapter", adapter, key="another-key-which-is-wrong")
        self.assertEqual(status, 401, body)
        status, body = post("/v1/load_lora_adapter", adapter)
        self.assertEqual(status, 200, body)
        self.assertEqual([server["server"] for server in body["servers"]], sorted(server.name for server in self.servers))
        for server in self.servers:
            self.assertIn("fanned", [card["id"] for card in server.json("GET", "/v1/models")[1]["data"]])
        self.assertIn("fanned", [card["id"] for card in self.router.json("GET", "/v1/models")[1]["data"]])
        self.assertEqual(post(f"/v1/unload_lora_adapter?server={self.servers[0].name}", {"lora_name": "fanned"})[0], 200)
        status, body = post("/v1/unload_lora_adapter", {"lora_name": "fanned"})
        self.assertEqual(status, 200, body)   # the one that had it no longer counts as done
        self.assertNotIn("fanned", [card["id"] for card in self.router.json("GET", "/v1/models")[1]["data"]])

    def test_a_file_of_servers(self):
        listed = pathlib.Path(self.folder.name) / "servers"
        listed.write_text(f"# two\n{self.servers[0].name}\n")
        router = Router([f"file:{listed}"])
        router.wait_for_states(ready=1)
        listed.write_text(f"{self.servers[0].name}\n{self.servers[1].name} # and one more\n")
        router.process.send_signal(signal.SIGHUP)
        router.wait_for_states(ready=2)
        listed.write_text("nonsense\n")
        router.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "the servers stay as they are" in router.text(), "the error in the log")
        router.wait_for_states(ready=2)
        router.stop()


class OfferTest(unittest.TestCase):
    def test_an_adapter_of_one_server_is_asked_for_there(self):
        lonely = ("--lora-modules", f"lonely={DEMO / 'adapters/reverse'}")
        servers = [RoutedServer(), RoutedServer(*lonely), RoutedServer()]
        router = Router([server.name for server in servers])
        router.wait_for_states(ready=3)
        self.assertIn("lonely", [card["id"] for card in router.json("GET", "/v1/models")[1]["data"]])
        answers = [ask(router.port, f"lonely-{i}", "lonely", f"x{i}", stream=False) for i in range(6)]
        self.assertEqual([(answer.status, answer.server, answer.fault) for answer in answers],
                         [(200, servers[1].name, None)] * 6)
        self.assertEqual(router.chat("nowhere", "x")[0], 404)
        servers[1].stop()
        wait_for(lambda: router.chat("lonely", "x")[0] == 503, "503 while no server has it")
        for process in [router, servers[0], servers[2]]:
            process.stop()


class KeysAndTlsTest(unittest.TestCase):
    def test_https_on_both_sides_and_keys_checked_by_the_router(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key, keys = (f"{folder}/{name}" for name in ("tls.crt", "tls.key", "keys.json"))
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                            "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key,
                            "-out", cert], check=True, capture_output=True)
            pathlib.Path(keys).write_text(json.dumps({"keys": [{"name": "a", "key": "secret-of-a-tenant",
                                                                "models": ["demo*"]}]}))
            server = Server(*SMALL, "--tls-cert", cert, "--tls-key", key)
            url = f"https://127.0.0.1:{server.port}"
            router = Router([url], "--servers-ca", cert, "--tls-cert", cert, "--tls-key", key, "--api-key-file", keys)
            context = ssl.create_default_context(cafile=cert)

            def request(method, path, body=None, headers=()):
                connection = http.client.HTTPSConnection("127.0.0.1", router.port, timeout=PATIENCE, context=context)
                connection.request(method, path, json.dumps(body) if body else None,
                                   {"Content-Type": "application/json", **dict(headers)})
                response = connection.getresponse()
                result = response.status, json.loads(response.read())
                connection.close()
                return result
            wait_for(lambda: request("GET", "/health")[0] == 200, lambda: f"a server: {request('GET', '/health')}")
            chat = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
            self.assertEqual(request("POST", "/v1/chat/completions", chat)[0], 401)
            mine = {"Authorization": "Bearer secret-of-a-tenant"}
            status, body = request("POST", "/v1/chat/completions", chat, mine)
            self.assertEqual(status, 200, body)
            for other in ("reverse", "demo:reverse", "demo|reverse"):   # the adapter's name counts, not the base's before it
                self.assertEqual(request("POST", "/v1/chat/completions", {**chat, "model": other}, mine)[0], 404, other)
            self.assertEqual([card["id"] for card in request("GET", "/v1/models", headers=mine)[1]["data"]], ["demo"])
            distrusting = Router([url])   # it does not know the authority
            distrusting.wait_for_states(silent=0, ejected=1)
            distrusting.stop()
            router.stop()
            server.stop()

    def test_servers_without_keys_keep_the_keys_of_their_router_apart(self):
        with tempfile.TemporaryDirectory() as folder:
            keys, fleet = pathlib.Path(folder, "keys.json"), pathlib.Path(folder, "fleet.key")
            keys.write_text(json.dumps({"keys": [
                {"name": name, "key": f"secret-of-{name}-0123", "models": ["*"],
                 "limits": {"requests_per_second": 0.001, "burst": 3} if name == "limited" else {}}
                for name in ("one", "two", "limited")]}))
            fleet.write_text("the-key-of-this-fleet-0123")
            server = Server(*SMALL, "--fleet-key-file", str(fleet))
            router = Router([f"127.0.0.1:{server.port}"], "--api-key-file", str(keys), "--fleet-key-file", str(fleet))
            router.wait_for_states(ready=1)
            prompt = {"model": "demo", "prompt": "a prompt that somebody might guess " * 8, "max_tokens": 1}

            def cached(key, where=router, **headers):
                status, body = where.json("POST", "/v1/completions", prompt, headers={
                    **({"Authorization": f"Bearer secret-of-{key}-0123"} if key else {}), **headers})
                self.assertEqual(status, 200, body)
                return body["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual(cached("one"), 0)
            self.assertGreater(cached("one"), 0)
            self.assertEqual(cached("two"), 0)
            self.assertEqual(cached("two", **{"x-gateway-inference-fairness-id": "key one"}) > 0, True)
            # A client of the server itself shares with none of them, whatever it says.
            self.assertEqual(cached(None, server), 0)
            forged = {"x-loramux-caller": "time=1;key=one;id=;address=;signature=00"}
            self.assertEqual(server.json("POST", "/v1/completions", prompt, headers=forged)[0], 401)
            self.assertEqual([router.json("POST", "/v1/completions", prompt, headers={
                "Authorization": "Bearer secret-of-limited-0123"})[0] for _ in range(4)], [200, 200, 200, 429])
            router.stop()
            careless = Router([f"127.0.0.1:{server.port}"], "--api-key-file", str(keys))
            self.assertIn("--api-key-file without --fleet-key-file", careless.text())
            careless.stop()
            server.stop()

    def test_bad_command_lines(self):
        for flags, message in ((["--servers", "nonsense"], "--servers: expected HOST:PORT"),
                               ([], "--servers: expected either servers"),
                               (["--servers", "a:1", "--policy", "best"], "random"),
                               (["--servers", "file:/no/such/file"], "/no/such/file")):
            run = subprocess.run([serving.LORAMUX, "route", "--port", "0", *flags], capture_output=True, text=True,
                                 timeout=PATIENCE)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(message, run.stderr)


if __name__ == "__main__":
    run_tests()
