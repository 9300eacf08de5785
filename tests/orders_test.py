#!/usr/bin/env python3
"""The order of service: every queue order, every preset, priorities, deadlines and predicted lengths.

Usage: orders_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import http.client
import json
import pathlib
import re
import subprocess
import tempfile
import threading
import time
import unittest

import serving
from serving import DEMO, PATIENCE, Blocker, Server, questions, wait_for

ORDERS = ["fifo", "sjf", "residency", "objective", "mlq", "mlq-static"]
# A request that waits sends its first keep-alive line after 20 ms: it shows that the request is in the queue.
ONE_AT_A_TIME = ["--max-num-seqs", "1", "--fairness", "none", "--sse-keepalive", "0.02"]


class Blocked:
    """The server's only seat is taken while requests are added. Then `order` returns the order of their answers."""

    def __init__(self, server, blocker):
        self.server, self.done, self.lock = server, [], threading.Lock()
        self.pool = concurrent.futures.ThreadPoolExecutor(32)
        self.futures = []
        self.blocker = Blocker(server, blocker)

    def add(self, name, model, prompt, **more):
        """Returns when the request is in the queue, so that requests arrive in the order of the calls."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "ignore_eos": True,
                "max_tokens": 400, "stream": True, **more}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()

        def read():
            # The next answer takes 400 steps more, so this thread notes its own answer long before.
            text = response.read()
            with self.lock:
                self.done.append(name)
            connection.close()
            return text
        self.futures.append(self.pool.submit(read))

    def order(self):
        seen = list(self.done)
        assert not seen, f"{seen} went past the request that holds the seat"
        self.blocker.release()
        for future in self.futures:
            text = future.result()
            assert text.endswith(b"data: [DONE]\n\n") and b'"error"' not in text, text
        self.pool.shutdown()
        return self.done


class Orders(unittest.TestCase):
    def test_every_order_answers_right(self):
        """Greedy answers under load, with priorities, deadlines and little memory: the same as one at a time."""
        asked = questions(4)
        expected = None
        for order in ORDERS:
            server = Server("--schedule", order, "--max-num-seqs", "8", "--device-memory", "6MiB")
            try:
                def ask(i):
                    model, prompt, _ = asked[i]
                    more = {"priority": i % 21 - 10} if i % 3 else {"deadline_ms": 1 + 100 * i}
                    status, body = server.chat(model, prompt, **more)
                    self.assertEqual(status, 200, body)
                    return body["choices"][0]["message"]["content"]
                if expected is None:
                    expected = [ask(i) for i in range(len(asked))]
                    right = sum(said == answer for said, (_, _, answer) in zip(expected, asked))
                    self.assertGreater(right, 0.9 * len(asked))
                with concurrent.futures.ThreadPoolExecutor(24) as pool:
                    said = list(pool.map(ask, 3 * list(range(len(asked)))))   # lanes are made after 100 requests
                self.assertEqual(said, 3 * expected, order)
                server.wait_idle()
                # The page may be of a moment before.
                wait_for(lambda: server.metric("loramux:queue_lane_waiting") == 0, "empty lanes")
                for lane in ("0", "3") if order == "mlq-static" else ("0",):
                    self.assertIsNotNone(server.metric("loramux:queue_lane_waiting", lane=lane), order)
                self.assertIsNotNone(server.metric("loramux:squashed_requests_total"))
                given_up = server.metric("loramux:given_up_requests_total")   # with "objective": depends on the machine
                self.assertGreaterEqual(given_up, 0) if order == "objective" else self.assertEqual(given_up, 0, order)
            finally:
                server.stop()   # pages, pins and queues are compared once more

    def test_every_preset_answers_right(self):
        """Under load, in little memory, with prompts in chunks and whole. The server logs what the preset stands for."""
        refused = subprocess.run([serving.LORAMUX, "serve", str(DEMO / "model"), "--preset", "slora"], timeout=PATIENCE, text=True,
                                 stderr=subprocess.STDOUT, stdout=subprocess.PIPE)
        self.assertNotEqual(refused.returncode, 0)
        presets = re.search(r"preset: expected one of (.*), found 'slora'", refused.stdout).group(1).split(", ")
        self.assertEqual(presets[:3], ["loramux", "loramux-mlq", "s-lora"])
        for assumed in ("cached", "hf-peft"):   # memory for every adapter is an assumption of the simulator
            presets.remove(assumed)
            refused = subprocess.run([serving.LORAMUX, "serve", str(DEMO / "model"), "--preset", assumed], timeout=PATIENCE, text=True,
                                     stderr=subprocess.STDOUT, stdout=subprocess.PIPE)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("simulated only", refused.stdout)
        asked = questions(2)
        ways = {}
        for preset in presets:
            memory = "16MiB" if preset.startswith("vllm") else "6MiB"   # a fifth of it must hold the largest adapter
            server = Server("--preset", preset, "--max-num-seqs", "8", "--device-memory", memory, "--max-model-len", "256")
            try:
                with concurrent.futures.ThreadPoolExecutor(12) as pool:
                    said = list(pool.map(lambda question: server.chat(*question[:2]), asked))
                self.assertEqual({status for status, _ in said}, {200}, preset)
                right = sum(body["choices"][0]["message"]["content"] == answer for (_, body), (_, _, answer) in zip(said, asked))
                self.assertGreater(right, 0.9 * len(asked), preset)
            finally:
                ways[preset] = re.search(r"served by: (.*)", server.stop()).group(1)
        self.assertEqual(ways["loramux"], "--cache loramux, --schedule objective, --fairness vtc, prompts in chunks")
        self.assertEqual(ways["chameleon"], "--cache chameleon, --schedule mlq, --fairness none, prompts whole")
        self.assertEqual(ways["vllm-lora-batch32"], "--cache vllm, --schedule residency, --fairness none, prompts in chunks")

    def test_flags_win_over_the_preset(self):
        for flags, expected in [
                ([], "--cache loramux, --schedule fifo, --fairness vtc, prompts in chunks"),
                (["--preset", "s-lora", "--cache", "gdsf", "--schedule", "sjf", "--fairness", "vtc", "--prefill-chunk", "64"],
                 "--cache gdsf, --schedule sjf, --fairness vtc, prompts in chunks")]:
            server = Server(*flags)
            self.assertEqual(server.chat("demo", "hello")[1]["choices"][0]["message"]["content"], "hello")
            self.assertEqual(re.search(r"served by: (.*)", server.stop()).group(1), expected)

    def test_priorities_and_deadlines(self):
        for order in ("fifo", "sjf", "residency", "mlq-static"):
            server = Server("--schedule", order, *ONE_AT_A_TIME)
            try:
                server.chat("reverse", "stream")   # loads its adapter
                blocked = Blocked(server, "reverse")
                for priority in (7, 0, -3, 3, -9):
                    blocked.add(priority, "reverse", "stream", priority=priority)
                self.assertEqual(blocked.order(), [-9, -3, 0, 3, 7], order)
                blocked = Blocked(server, "reverse")
                blocked.add("no wish", "reverse", "stream")
                blocked.add("a day", "reverse", "stream", deadline_ms=86_400_000)
                blocked.add("at once", "reverse", "stream", deadline_ms=1)
                self.assertEqual(blocked.order(), ["at once", "no wish", "a day"], order)
            finally:
                server.stop()

    def test_the_age_bound_holds(self):
        """A request that has waited longer than the bound goes first, whatever the priorities."""
        server = Server(*ONE_AT_A_TIME, "--age-bound", "0.1")
        try:
            blocked = Blocked(server, "demo")
            blocked.add("old", "demo", "x", priority=10)
            time.sleep(0.15)   # longer than the bound
            blocked.add("new", "demo", "x", priority=-10)
            self.assertEqual(blocked.order(), ["old", "new"])
        finally:
            server.stop()

    def test_shortest_first_from_history_which_outlives_the_server(self):
        """`count` answers with about 20 tokens, `acronym` with 3."""
        asked = {name: [q for q in questions(20) if q[0] == name] for name in ("count", "acronym")}
        with tempfile.TemporaryDirectory() as state:
            flags = ["--schedule", "sjf", "--state-dir", state, *ONE_AT_A_TIME]
            server = Server(*flags)
            try:
                for name in asked:
                    for model, prompt, _ in asked[name]:
                        self.assertEqual(server.chat(model, prompt)[0], 200)
                self.shortest_first(server, asked)
                self.wait_for_predictions(server, 2 * 20 + 5)
                self.assertGreater(server.metric("loramux:length_predictions_total", outcome="right"), 10)
                self.assertGreater(server.metric("loramux:length_prediction_error_tokens_total"), 0)
            finally:
                server.stop()
            server = Server(*flags)
            try:
                self.shortest_first(server, asked)
            finally:
                # The two adapters, and the base model if a sequence of the blocker came to its end.
                self.assertRegex(server.stop(), "restored the output lengths of [23] adapters")
            kept = pathlib.Path(state) / "output_lengths"
            kept.write_bytes(kept.read_bytes()[:-1] + b"?")
            server = Server(*flags)
            self.assertEqual(server.chat("count", "banana")[0], 200)
            self.assertIn("output_lengths: ignored, so output lengths are learned from the start: the checksum does not match", server.stop())

    def test_shortest_first_by_the_proxy_from_the_start(self):
        server = Server("--schedule", "sjf", "--length-predictor", "proxy", "--length-proxy", str(DEMO / "length_proxy"), *ONE_AT_A_TIME)
        try:
            self.shortest_first(server, {name: [q for q in questions(1) if q[0] == name] for name in ("count", "acronym")})
            asked = questions(8)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda question: server.chat(*question[:2]), asked))
            prompts = [[ord(letter) for letter in "abc"], "abc"]   # token ids are decoded for the proxy
            self.assertEqual(server.json("POST", "/v1/completions", {"model": "demo", "prompt": prompts[:1], "max_tokens": 2})[0], 200)
            self.wait_for_predictions(server, 5 + len(asked) + 1)
            self.assertGreater(server.metric("loramux:length_predictions_total", outcome="right"), 0.85 * len(asked))
        finally:
            server.stop()

    def wait_for_predictions(self, server, count):
        """The page may be of a moment before."""
        wait_for(lambda: server.metric("loramux:length_predictions_total") >= count, f"{count} predictions")
        # A sequence of the blocker counts only if it came to its end before the test let go.
        self.assertLess(server.metric("loramux:length_predictions_total"), count + Blocker.SEQUENCES)

    def shortest_first(self, server, asked):
        blocked = Blocked(server, "demo")
        for name in ("count", "count", "acronym", "count", "acronym"):
            blocked.add(name, *asked[name][0][:2])
        self.assertEqual(blocked.order(), ["acronym", "acronym", "count", "count", "count"])

    def test_flags_are_checked(self):
        for flags, expected in [
                (["--schedule", "lifo"], "expected one of fifo, sjf, residency, objective, mlq, mlq-static, found 'lifo'"),
                (["--age-bound", "0"], "--age-bound"),
                (["--ttft-objective", "0"], "--ttft-objective"),
                (["--request-size", "big"], "--request-size: expected product, sum or output, found 'big'"),
                (["--lane-count", "5"], "--lane-count: expected worth-it or least-squares, found '5'"),
                (["--length-predictor", "crystal"], "--length-predictor: expected history, proxy or none, found 'crystal'"),
                (["--length-predictor", "proxy"], "--length-proxy: expected a directory with --length-predictor proxy"),
                (["--length-proxy", str(DEMO / "length_proxy")], "--length-proxy: expected a directory with --length-predictor proxy"),
                (["--length-predictor", "proxy", "--length-proxy", str(DEMO / "model")], "model_type")]:
            run = subprocess.run([serving.LORAMUX, "serve", str(DEMO / "model"), "--port", "0", *flags], timeout=PATIENCE,
                                 stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(expected, run.stdout)

    def test_flags_in_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "serve.toml"
            file.write_text(f'model = {json.dumps(str(DEMO / "model"))}\nport = 0\nserved-model-name = "demo"\npreset = "chameleon"\nschedule = "mlq-static"\n'
                            'age-bound = 5\nrequest-size = "sum"\nlane-count = "least-squares"\nlength-predictor = "none"\n')
            server = Server.run([serving.LORAMUX, "serve", "--config", str(file)])
            try:
                self.assertEqual(server.chat("demo", "hello")[1]["choices"][0]["message"]["content"], "hello")
                server.wait_idle()
                self.assertEqual(server.metric("loramux:length_predictions_total"), 0)
            finally:
                self.assertIn("served by: --cache chameleon, --schedule mlq-static, --fairness none, prompts whole", server.stop())


if __name__ == "__main__":
    serving.run_tests()
