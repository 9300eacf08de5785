#!/usr/bin/env python3
"""What trainers ask of a server between two versions of an adapter: token ids instead of texts, pauses, what the server is.
It records all of that, and the replay of the recording makes the same plans. Standard library only.
"""
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

import serving
from serving import DEMO, Server, questions, wait_for

LONG = {"model": "demo", "prompt": [5, 6, 7], "max_tokens": 900, "ignore_eos": True, "temperature": 0}
IDS = {**LONG, "return_token_ids": True}
LOADS = ("--enable-runtime-lora", "--allowed-adapter-root", str(DEMO))
KEY = "the-key-of-the-trainer-0123"
ATTEMPTS = 50


def in_time(attempt):
    """What `attempt` returns, once that is true. The demo's model writes thousands of tokens a second, so what a test sends
    into a running request may reach the server after its end: `attempt` returns None then, and is made again."""
    for _ in range(ATTEMPTS):
        if result := attempt():
            return result
    raise AssertionError(f"the request had ended in each of {ATTEMPTS} attempts")


class Stream:
    """A streamed completion, read on a thread of its own."""

    def __init__(self, server, **more):
        self.ids, self.logprobs, self.versions, self.finish = [], [], [], None
        self.thread = threading.Thread(target=self.read, args=(server, {**IDS, **more}))
        self.thread.start()

    def read(self, server, body):
        connection = serving.http.client.HTTPConnection("127.0.0.1", server.port, timeout=serving.PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}),
                           {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    self.logprobs += (choice.get("logprobs") or {}).get("token_logprobs", [])
                    self.ids += choice["token_ids"]
                    self.versions += choice.get("weight_versions", [])
                    self.finish = choice["finish_reason"]
        connection.close()

    def wait_for(self, tokens):
        wait_for(lambda: len(self.ids) >= tokens, lambda: f"{tokens} tokens, found {len(self.ids)}")
        return self

    def end(self):
        self.thread.join()
        return self.ids, self.finish


class Trainer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = pathlib.Path(cls.folder.name) / "recording"
        cls.server = Server("--record", str(cls.file), *LOADS, "--insecure-no-admin-key", "--schedule", "mlq",
                            "--device-memory", "8MiB")
        cls.alone = cls.server.json("POST", "/v1/completions", IDS)[1]["choices"][0]["token_ids"]

    @classmethod
    def tearDownClass(cls):
        cls.server.wait_idle()
        cls.server.stop()
        done = subprocess.run([serving.LORAMUX, "simulate", "--replay", str(cls.file), "--check-every", "50"],
                              capture_output=True, text=True, timeout=1800)
        cls.folder.cleanup()
        assert done.returncode == 0 and "all equal" in done.stdout, done.stdout + done.stderr

    def tearDown(self):
        self.post("/resume")

    def hold(self):
        """A request that a pause holds amid its tokens."""
        def attempt():
            running = Stream(self.server).wait_for(20)
            self.assertEqual(self.post("/pause?mode=keep"), (200, {"status": "paused"}))
            time.sleep(0.2)   # for the step in flight
            return running if running.finish is None else self.post("/resume") and None
        return in_time(attempt)

    def post(self, path, body=None):
        status, payload = self.server.request("POST", path, body)
        return status, json.loads(payload)

    def test_what_the_server_is(self):
        config = self.server.json("GET", "/server_info?config_format=json")[1]["vllm_config"]
        self.assertEqual(config["parallel_config"]["data_parallel_size"], 1)
        self.assertGreaterEqual(config["lora_config"]["max_lora_rank"], 128)
        self.assertGreater(config["lora_config"]["max_loras"], 1000)
        self.assertEqual(config["model_config"]["logprobs_mode"], "raw_logprobs")
        self.assertRegex(config["model_config"]["dtype"], r"^torch\.(float32|bfloat16|float16)$")
        self.assertEqual(self.server.json("GET", "/get_world_size")[1], {"world_size": 1})

    def test_ids_continue_an_answer_exactly(self):
        """A rollout that is cut anywhere goes on with the same tokens when its ids are sent back."""
        for model, prompt, _ in questions(1):
            body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 60,
                    "return_token_ids": True, "logprobs": True}
            status, chat = self.server.json("POST", "/v1/chat/completions", body)
            self.assertEqual(status, 200, chat)
            prompt_ids, choice = chat["prompt_token_ids"], chat["choices"][0]
            ids = choice["token_ids"]
            self.assertEqual(len(prompt_ids), chat["usage"]["prompt_tokens"])
            self.assertEqual(len(ids), len(choice["logprobs"]["content"]))
            said = ids[:-1] if choice["finish_reason"] == "stop" else ids
            text = self.server.json("POST", "/detokenize", {"model": model, "tokens": said})[1]["prompt"]
            self.assertEqual(text.strip(), choice["message"]["content"].strip())
            for cut in range(0, len(ids), max(1, len(ids) // 3)):
                status, rest = self.server.json("POST", "/v1/completions", {
                    "model": model, "prompt": prompt_ids + ids[:cut], "temperature": 0, "max_tokens": 60 - cut, "logprobs": 0,
                    "return_token_ids": True, "seed": 2 ** 63 - 1})
                self.assertEqual(status, 200, rest)
                answer = rest["choices"][0]
                self.assertEqual(answer["token_ids"], ids[cut:])
                self.assertEqual(answer["prompt_token_ids"], prompt_ids + ids[:cut])
                self.assertEqual(len(answer["logprobs"]["token_logprobs"]), len(ids) - cut)

    def test_a_pause_keeps_what_runs(self):
        running = self.hold()
        self.assertEqual(self.server.json("GET", "/is_paused")[1], {"is_paused": True})
        before = len(running.ids)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            new = pool.submit(self.server.json, "POST", "/v1/completions", {**IDS, "max_tokens": 3})
            status, text = self.server.request("POST", "/v1/load_lora_adapter",
                                               {"lora_name": "fresh", "lora_path": str(DEMO / "adapters/upper")})
            self.assertEqual(status, 200, text)
            status, refusal = self.server.json("POST", "/v1/load_lora_adapter", {
                "lora_name": "pinned", "lora_path": str(DEMO / "adapters/upper"), "pinned": True})
            self.assertEqual(status, 503, refusal)
            wait_for(lambda: self.server.metric("loramux:held_requests") == 1, "a request that is held")
            self.assertFalse(new.done())
            self.assertEqual(len(running.ids), before)
            self.assertEqual(self.post("/resume"), (200, {"status": "resumed"}))
            self.assertEqual(new.result()[1]["choices"][0]["token_ids"], self.alone[:3])
        self.assertEqual(running.end(), (self.alone, "length"))
        status, answer = self.server.json("POST", "/v1/completions", {**LONG, "model": "fresh", "max_tokens": 2})
        self.assertEqual(status, 200, answer)
        self.assertEqual(self.server.json("GET", "/is_paused")[1], {"is_paused": False})

    def test_a_pause_waits_for_what_runs(self):
        running = Stream(self.server).wait_for(20)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            pause = pool.submit(self.post, "/pause?mode=wait")
            wait_for(lambda: self.server.json("GET", "/is_paused")[1]["is_paused"], "the pause")
            new = pool.submit(self.server.json, "POST", "/v1/completions", {**IDS, "max_tokens": 3})
            self.assertEqual(pause.result(), (200, {"status": "paused"}))
            self.assertEqual(running.end(), (self.alone, "length"))
            time.sleep(0.2)
            self.assertFalse(new.done())
            self.post("/resume")
            self.assertEqual(new.result()[1]["choices"][0]["token_ids"], self.alone[:3])

    def test_a_pause_aborts_what_runs(self):
        def attempt():
            with concurrent.futures.ThreadPoolExecutor() as pool:
                message = pool.submit(self.server.json, "POST", "/v1/messages", {
                    "model": "demo", "messages": [{"role": "user", "content": "x " * 40}], "max_tokens": 500})
                whole = pool.submit(self.server.json, "POST", "/v1/completions", {**IDS, "n": 2})
                running = Stream(self.server).wait_for(1)
                self.assertEqual(self.post("/pause"), (200, {"status": "paused"}))
                choices = whole.result()[1]["choices"] + [{"token_ids": running.end()[0], "finish_reason": running.finish}]
                for choice in choices:
                    self.assertEqual(choice["token_ids"], self.alone[:len(choice["token_ids"])])
                reasons = [choice["finish_reason"] for choice in choices]
                if self.post("/resume") and message.result()[0] == 200 or reasons != ["abort"] * 3:
                    return None
                return message.result()
        status, answer = in_time(attempt)
        self.assertEqual(status, 503, answer)   # this API has no word for it
        self.assertEqual(self.server.requests_now(), 0)

    def test_requests_are_aborted_without_a_pause(self):
        def attempt():
            running = Stream(self.server).wait_for(20)
            status, answer = self.post("/abort_requests", {})
            self.assertEqual((status, answer["status"]), (200, "aborted"))
            return running.end()[1] == "abort"
        in_time(attempt)
        again = Stream(self.server, max_tokens=5)
        self.assertEqual(again.end(), (self.alone[:5], "length"))
        status, answer = self.post("/abort_requests", {"request_ids": ["cmpl-1"]})
        self.assertEqual((status, answer["error"]["param"]), (400, "request_ids"))

    def test_the_cache_is_dropped(self):
        def cached(server=self.server):
            answer = server.json("POST", "/v1/completions", {**LONG, "prompt": list(range(5, 85)), "max_tokens": 2})[1]
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        cached()
        for method, path in (("POST", "/reset_prefix_cache"), ("POST", "/reset_prefix_cache?reset_running_requests=false"),
                             ("POST", "/flush_cache")):
            self.assertGreater(cached(), 0)
            status, answer = self.server.json(method, path)
            self.assertEqual((status, answer["status"]), (200, "reset"))
            self.assertGreater(answer["pages"], 0)
            self.assertEqual(cached(), 0)
        self.assertEqual(self.server.request("GET", "/flush_cache")[0], 405)   # any page of a browser can send that
        for query, body in (("?reset_running_requests=true", None), ("", {"reset_running_requests": True})):
            status, answer = self.post("/reset_prefix_cache" + query, body)
            self.assertEqual((status, answer["error"]["param"]), (400, "reset_running_requests"))
        self.assertGreater(cached(), 0)

    def test_a_client_that_leaves_a_pause_leaves_nothing(self):
        self.post("/pause?mode=keep")
        connection = serving.http.client.HTTPConnection("127.0.0.1", self.server.port)
        connection.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
        wait_for(lambda: self.server.metric("loramux:held_requests") == 1, "a request that is held")
        connection.close()
        wait_for(lambda: self.server.metric("loramux:held_requests") == 0, "its end, before the pause ends")
        self.post("/resume")
        self.server.wait_idle()

    def test_modes_and_keys(self):
        status, answer = self.post("/pause?mode=sleep")
        self.assertEqual((status, answer["error"]["param"]), (400, "mode"))
        self.assertEqual(self.server.json("GET", "/is_paused")[1], {"is_paused": False})
        server = Server(*LOADS, "--admin-key-file", self.key_file(KEY))
        with_key = {"Authorization": f"Bearer {KEY}"}
        for path in ("/pause", "/resume", "/abort_requests", "/reset_prefix_cache", "/flush_cache"):
            self.assertEqual(server.request("POST", path)[0], 401)
            self.assertEqual(server.request("POST", path, None, with_key)[0], 200)
            self.assertEqual(server.request("POST", path, None, {**with_key, "Origin": "https://evil.example"})[0], 403)
        # A server that is told to end lets what it held end too.
        server.request("POST", "/pause?mode=keep", None, with_key)
        left = Stream(server)
        time.sleep(0.2)
        server.process.terminate()
        left.thread.join(serving.PATIENCE)
        self.assertEqual(server.process.wait(serving.PATIENCE), 0)

    def test_a_router_pauses_all_its_servers(self):
        flags = ("--admin-key-file", self.key_file(KEY))
        servers = [Server(*LOADS, *flags), Server(*LOADS, *flags)]
        router = Server.run([serving.LORAMUX, "route", "--servers", ",".join(f"127.0.0.1:{s.port}" for s in servers), "--port",
                             "0", *flags])
        with_key = {"Authorization": f"Bearer {KEY}"}
        wait_for(lambda: router.request("GET", "/server_info")[0] == 200, "a server behind the router")
        self.assertIn("vllm_config", router.json("GET", "/server_info?config_format=json")[1])
        self.assertEqual(router.request("POST", "/pause?mode=keep")[0], 401)
        for path, paused in (("/pause?mode=keep", True), ("/resume", False)):
            status, answer = router.json("POST", path, None, with_key)
            self.assertEqual((status, answer["ok"], len(answer["servers"])), (200, True, 2), answer)
            self.assertEqual([server.json("GET", "/is_paused")[1]["is_paused"] for server in servers], [paused, paused])
        for server in (router, *servers):
            server.stop()

    def key_file(self, key):
        path = pathlib.Path(self.folder.name) / "admin.key"
        path.write_text(key + "\n", encoding="utf-8")
        path.chmod(0o600)
        return str(path)


class OnReload(unittest.TestCase):
    """What becomes of requests whose adapter is loaded anew under its name. The name is `policy`; the demo's adapters
    `piglatin` and `count` are its versions, so that each can be asked alone. Behind any tokens of the one the other soon says
    something else."""
    OLD, NEW = "piglatin", "count"

    def start(self, mode, *flags):
        server = Server("--on-reload", mode, *LOADS, "--insecure-no-admin-key", *flags)
        self.addCleanup(lambda: server.process.poll() is None and server.stop())
        info = server.json("GET", "/server_info?config_format=json")[1]["vllm_config"]
        self.assertEqual(info["lora_config"]["on_reload"], mode)
        self.load(server, self.OLD)
        return server

    def load(self, server, weights):
        status, text = server.request("POST", "/v1/load_lora_adapter", {
            "lora_name": "policy", "lora_path": str(DEMO / "adapters" / weights), "load_inplace": True})
        self.assertEqual(status, 200, text)

    def ids_of(self, server, model, prompt=(), **more):
        status, answer = server.json("POST", "/v1/completions", {**IDS, "model": model, "prompt": LONG["prompt"] + list(prompt),
                                                                 **more})
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["token_ids"]

    def digest_of(self, server):
        answer = server.json("POST", "/v1/completions", {**IDS, "model": "policy", "max_tokens": 1})[1]
        return answer["weight_version"].split(":")[1]

    def reload_while_it_streams(self, server, told=lambda running: running.versions, **more):
        """A stream whose adapter is loaded anew amid its tokens, and that has ended. `told` is true where the answer tells so."""
        def attempt():
            self.load(server, self.OLD)
            running = Stream(server, model="policy", **more).wait_for(20)
            self.load(server, self.NEW)
            running.end()
            return running if told(running) else None
        return in_time(attempt)

    def switch_of(self, server, ids):
        """Where the tokens cease to be those of the old version. From there on they are those of the new one."""
        old = self.ids_of(server, self.OLD)
        switch = next(at for at, (token, other) in enumerate(zip(ids, old)) if token != other)
        self.assertEqual(ids[switch:], self.ids_of(server, self.NEW, ids[:switch], max_tokens=len(ids) - switch))
        return switch

    def test_finish(self):
        server = self.start("finish")
        running = self.reload_while_it_streams(server, told=lambda running: True)
        self.assertEqual(running.end(), (self.ids_of(server, self.OLD), "length"))
        self.assertEqual(self.ids_of(server, "policy"), self.ids_of(server, self.NEW))

    def test_abort(self):
        server = self.start("abort")
        aside = Stream(server, model=self.OLD)
        ids, finish = self.reload_while_it_streams(server, told=lambda running: running.finish == "abort").end()
        old = self.ids_of(server, self.OLD)
        self.assertEqual((finish, ids), ("abort", old[:len(ids)]))
        self.assertLess(len(ids), len(old))
        self.assertEqual(aside.end(), (old, "length"))
        self.assertEqual(self.ids_of(server, "policy"), self.ids_of(server, self.NEW))
        self.assertEqual(server.metric("loramux:reloaded_requests_total", outcome="aborted"), 1)

    def test_continue(self):
        with tempfile.TemporaryDirectory() as folder:
            recording = pathlib.Path(folder) / "recording"
            server = self.start("continue", "--record", str(recording), "--device-memory", "8MiB")
            self.continue_everything(server)
            server.wait_idle()
            server.stop()
            done = subprocess.run([serving.LORAMUX, "simulate", "--replay", str(recording), "--check-every", "50"],
                                  capture_output=True, text=True, timeout=1800)
            self.assertTrue(done.returncode == 0 and "all equal" in done.stdout, done.stdout + done.stderr)

    def continue_everything(self, server):
        digest = self.digest_of(server)
        pinned = Stream(server, model=f"policy@{digest}")
        running = self.reload_while_it_streams(server)
        ids, finish = running.end()
        self.assertEqual(pinned.end(), (self.ids_of(server, self.OLD), "length"))
        self.assertEqual((len(ids), finish), (LONG["max_tokens"], "length"))
        [change] = running.versions   # the answer says where: both versions may have agreed on some tokens more
        self.assertTrue(20 <= change["from"] <= self.switch_of(server, ids), change)
        self.assertEqual(ids[change["from"]:], self.ids_of(server, self.NEW, ids[:change["from"]],
                                                           max_tokens=len(ids) - change["from"]))
        self.assertRegex(change["weight_version"], r"^\d+:[0-9a-f]{64}$")
        self.assertEqual(server.metric("loramux:reloaded_requests_total", outcome="moved"), 1)
        self.reload_in_a_pause(server)
        self.sample_on_both(server)

    def reload_in_a_pause(self, server):
        """As trainers do: everything is held meanwhile, what comes too."""
        def attempt():
            self.load(server, self.OLD)
            running = Stream(server, model="policy").wait_for(20)
            self.assertEqual(server.request("POST", "/pause?mode=keep")[0], 200)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                held = pool.submit(self.ids_of, server, "policy", max_tokens=8)
                wait_for(lambda: server.metric("loramux:held_requests") == 1, "a request that is held")
                time.sleep(0.2)   # for the step in flight
                before = len(running.ids)
                self.load(server, self.NEW)
                self.assertEqual(server.request("POST", "/resume")[0], 200)
                self.assertEqual(held.result(), self.ids_of(server, self.NEW, max_tokens=8))
            return (before, running.end()[0]) if before < LONG["max_tokens"] - 100 else None
        before, ids = in_time(attempt)
        self.assertEqual(len(ids), LONG["max_tokens"])
        self.assertGreaterEqual(self.switch_of(server, ids), before)
        self.assertEqual(ids[before:], self.ids_of(server, self.NEW, ids[:before], max_tokens=len(ids) - before))

    def sample_on_both(self, server):
        """Draws and penalties go on: each token's log-probability is what its version says of it there."""
        draws = {"temperature": 1.0, "seed": 11, "logprobs": 0, "frequency_penalty": 0.3}
        old = self.ids_of(server, self.OLD, **draws)
        running = self.reload_while_it_streams(server, **draws)
        ids = running.end()[0]
        self.assertEqual(len(ids), LONG["max_tokens"])
        said = {model: self.logprobs_of(server, model, ids) for model in (self.OLD, self.NEW)}
        switch = next(at for at, (found, other) in enumerate(zip(running.logprobs, said[self.OLD])) if found != other)
        self.assertGreaterEqual(switch, 20)
        self.assertEqual(ids[:switch], old[:switch])
        self.assertEqual(running.logprobs[switch:], said[self.NEW][switch:])

    def logprobs_of(self, server, model, ids):
        status, answer = server.json("POST", "/v1/completions", {"model": model, "prompt": LONG["prompt"] + ids, "max_tokens": 1,
                                                                 "prompt_logprobs": 0})
        self.assertEqual(status, 200, answer)
        scores = answer["choices"][0]["prompt_logprobs"][len(LONG["prompt"]):]
        return [score[str(token)]["logprob"] for score, token in zip(scores, ids)]

    def test_a_version_that_cannot_go_on(self):
        """The new version brings texts of its own: the request began with others."""
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "copy"
            shutil.copytree(DEMO / "adapters" / self.NEW, copy)
            (copy / "generation_config.json").write_text('{"temperature": 0.5}', encoding="utf-8")
            server = self.start("continue", "--allowed-adapter-root", folder)
            def attempt():
                self.load(server, self.OLD)
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    answer = pool.submit(server.json, "POST", "/v1/completions", {**IDS, "model": "policy"})
                    wait_for(lambda: answer.done() or server.requests_now() == 1, "a request that runs")
                    self.load(server, copy)
                    return answer.result() if answer.result()[0] != 200 else None
            status, error = in_time(attempt)
        self.assertEqual(status, 503, error)
        self.assertIn("tokenizer, chat template or generation config", error["error"]["message"])
        self.assertEqual(server.metric("loramux:reloaded_requests_total", outcome="failed"), 1)


if __name__ == "__main__":
    serving.run_tests()
