#!/usr/bin/env python3
"""The loramux program over HTTP and on the command line. Standard library only.

Usage: program_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import json
import math
import os
import pathlib
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import serving
from serving import DEMO, ROOT, Server, questions


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_models(self):
        status, models = self.server.json("GET", "/v1/models")
        self.assertEqual(status, 200)
        cards = {card["id"]: card for card in models["data"]}
        self.assertIsNone(cards["demo"]["parent"])
        for path in (DEMO / "adapters").iterdir():
            self.assertEqual(cards[path.name]["parent"], "demo")
            self.assertEqual(cards[path.name]["object"], "model")
            self.assertEqual(cards[path.name]["root"], str(path))

    def test_stream_and_whole_answer_agree(self):
        for model, prompt, _ in questions(1):
            status, whole = self.server.chat(model, prompt)
            self.assertEqual(status, 200, whole)
            self.assertEqual(whole["model"], model)
            self.assertEqual(whole["object"], "chat.completion")
            choice = whole["choices"][0]
            events = self.server.stream("/v1/chat/completions", {
                "model": model, "messages": [{"role": "user", "content": [{"type": "text", "text": prompt}]}],
                "temperature": 0, "max_completion_tokens": 100, "stream_options": {"include_usage": True}})
            self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual(events[-1]["choices"], [])
            self.assertEqual(events[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
            text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
            self.assertEqual(text, choice["message"]["content"])
            finishes = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
            self.assertEqual(finishes, [choice["finish_reason"]])

    def test_completions(self):
        body = {"model": "demo", "prompt": ["<|bos|><|user|>abc<|end|><|assistant|>", "xyz"], "temperature": 0,
                "max_tokens": 5, "n": 2, "logprobs": 2, "ignore_eos": True}
        status, answer = self.server.json("POST", "/v1/completions", body)
        self.assertEqual(status, 200, answer)
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
        self.assertEqual(answer["choices"][0]["text"], answer["choices"][1]["text"])
        self.assertEqual(len(answer["choices"][0]["logprobs"]["tokens"]), 5)
        self.assertEqual(answer["usage"]["completion_tokens"], 20)

    def test_stop_strings_and_length(self):
        _, whole = self.server.chat("demo", "hello")
        self.assertEqual(whole["choices"][0]["message"]["content"], "hello")
        _, cut = self.server.chat("demo", "hello", stop=["ll"])
        self.assertEqual(cut["choices"][0]["message"]["content"], "he")
        self.assertEqual(cut["choices"][0]["finish_reason"], "stop")
        _, short = self.server.chat("demo", "hello", max_tokens=2)
        self.assertEqual(short["choices"][0]["message"]["content"], "he")
        self.assertEqual(short["choices"][0]["finish_reason"], "length")

    def test_unicode_is_never_cut(self):
        for event in self.server.stream("/v1/chat/completions", {
                "model": "demo", "messages": [{"role": "user", "content": "né 日本"}], "temperature": 0}):
            for choice in event["choices"]:
                self.assertNotIn("\ufffd", choice["delta"].get("content") or "")

    def test_a_seed_decides(self):
        more = {"temperature": 1.5, "seed": 7, "ignore_eos": True, "max_tokens": 20}
        first = self.server.chat("demo", "hello", **more)[1]["choices"][0]["message"]["content"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            again = list(pool.map(lambda i: self.server.chat("demo" if i % 2 else "reverse", "hello", **more), range(16)))
        same = {a["choices"][0]["message"]["content"] for s, a in again[1::2]}
        self.assertEqual(same, {first})

    def test_errors_name_what_is_wrong(self):
        good = {"model": "demo", "messages": [{"role": "user", "content": "x"}]}
        for change, status, param in [
                ({"model": "unknown"}, 404, "model"), ({"temperature": "hot"}, 400, "temperature"),
                ({"messages": []}, 400, "messages"), ({"n": 0}, 400, "n"), ({"top_p": 2}, 400, "top_p"),
                ({"max_tokens": 10**6}, 400, "max_tokens"), ({"logit_bias": {"x": 1}}, 400, "logit_bias")]:
            code, answer = self.server.json("POST", "/v1/chat/completions", {**good, **change})
            self.assertEqual(code, status, (change, answer))
            self.assertEqual(answer["error"]["code"], status)
            self.assertTrue((answer["error"]["param"] or "").startswith(param), (change, answer))
        code, answer = self.server.json("POST", "/v1/chat/completions", {**good, "model": "unknown"})
        self.assertEqual(answer["error"]["message"], "The model `unknown` does not exist.")
        self.assertEqual(answer["error"]["type"], "NotFoundError")
        for body in (b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"model":' * 10_000):
            self.assertEqual(self.server.request("POST", "/v1/chat/completions", body)[0], 400, body[:20])
        self.assertEqual(self.server.request("GET", "/nowhere")[0], 404)
        self.assertEqual(self.server.request("GET", "/v1/completions")[0], 405)
        self.assertEqual(self.server.chat("demo", "still there")[0], 200)

    def test_clients_that_vanish_free_their_place(self):
        server = Server("--threads", "1", "--max-num-batched-tokens", "20")
        body = json.dumps({"model": "reverse", "messages": [{"role": "user", "content": "abcdef"}],
                           "stream": True, "ignore_eos": True, "max_tokens": 900}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        sockets = []
        for _ in range(20):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=serving.PATIENCE)
            client.sendall(head + body)
            sockets.append(client)
        server.wait_until_busy(20)
        for client in sockets[::2]:
            client.recv(100)   # some leave in mid-stream, some before the first byte
        for client in sockets:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
        server.wait_idle()
        self.assertEqual(server.chat("demo", "abc")[1]["choices"][0]["message"]["content"], "abc")
        served = re.search(r"served 21 requests, (\d+) tokens", server.stop())
        self.assertIsNotNone(served)
        self.assertLess(int(served.group(1)), 20 * 900)   # not all were served to the end

    def test_garbage_on_the_wire(self):
        for garbage in (b"\0" * 1000, b"GET", b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"\r\n" * 1000,
                        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=serving.PATIENCE) as client:
                client.sendall(garbage)
        self.assertEqual(self.server.request("GET", "/health")[0], 200)


class Load(unittest.TestCase):
    def test_200_at_once_in_little_memory(self):
        """All adapters and the base model at the same time. The memory forces evictions and preemptions all the time."""
        asked = questions(20)
        self.assertGreaterEqual(len(asked), 200)
        roomy = Server("--device-memory", "256MiB")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            alone = list(pool.map(lambda q: roomy.chat(q[0], q[1]), asked))
        roomy.stop()
        tight = Server("--device-memory", "3MiB", "--host-memory", "2MiB", "--max-num-batched-tokens", "96",
                       "--prefill-chunk", "32")
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            together = list(pool.map(lambda q: tight.chat(q[0], q[1]), asked))
        log = tight.stop()
        right = 0
        for question, (status_alone, before), (status, after) in zip(asked, alone, together):
            self.assertEqual((status_alone, status), (200, 200), (question, before, after))
            text = after["choices"][0]["message"]["content"]
            self.assertEqual(text, before["choices"][0]["message"]["content"], question)
            right += text == question[2]
        print(f"{right} of {len(asked)} right; {log.splitlines()[-1]}", file=sys.stderr)
        self.assertGreaterEqual(right, 0.95 * len(asked))
        self.assertRegex(log, r"[1-9]\d* evictions")

    def test_sigterm_drains(self):
        server = Server("--drain-timeout", "3000")   # 7,200 tokens take long with sanitizers on a busy machine
        answers = []
        thread = threading.Thread(target=lambda: answers.append(
            server.chat("demo", "hello there", ignore_eos=True, max_tokens=900, n=8)))
        thread.start()
        server.wait_until_busy(8)        # they come with one request, so all are seen before the first ends
        server.stop(timeout=3000)
        thread.join()
        self.assertEqual(answers[0][0], 200, answers)
        self.assertEqual(answers[0][1]["usage"]["completion_tokens"], 8 * 900)


class CommandLine(unittest.TestCase):
    def run_program(self, *arguments, status=0):
        done = subprocess.run([serving.LORAMUX, *arguments], capture_output=True, text=True, timeout=serving.PATIENCE)
        self.assertEqual(done.returncode, status, (arguments, done.stdout, done.stderr))
        return done

    def test_generate(self):
        model, prompt, answer = next(q for q in questions(1) if q[0] == "reverse")
        done = self.run_program("generate", str(DEMO / "model"), "--adapter-dir", str(DEMO / "adapters"), "--lora",
                                model, "-p", prompt)
        self.assertEqual(done.stdout.strip(), answer)
        self.assertIn("tokens/s", done.stderr)
        done = self.run_program("generate", str(DEMO / "model"), "-p", "abc", "--lora", "unknown", status=1)
        self.assertIn("`unknown` does not exist", done.stderr)

    def test_inspect(self):
        model = json.loads(self.run_program("inspect", str(DEMO / "model"), "--json").stdout)
        self.assertTrue(model)
        adapter = json.loads(self.run_program("inspect", str(DEMO / "adapters/reverse"), "--base", str(DEMO / "model"),
                                              "--json").stdout)
        self.assertTrue(adapter)
        self.assertIn("q_proj", self.run_program("inspect", str(DEMO / "adapters/reverse")).stdout)
        self.run_program("inspect", "/nowhere", status=1)

    def test_inspect_counts_parameters_of_quantised_models(self):
        path = ROOT / "tests/golden/models/gpt_oss_mxfp4/model"
        with open(path / "model.safetensors", "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        stored = {name: math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        # Two codes lie in a byte of the blocks; scales are no parameters.
        wanted = sum(2 * count if name.endswith("_blocks") else count
                     for name, count in stored.items() if not name.endswith("_scales"))
        report = json.loads(self.run_program("inspect", str(path), "--json").stdout)
        self.assertEqual(report["parameters"], wanted)
        self.assertLess(report["weight_bytes"], 4 * wanted)

    def test_inspect_says_what_a_model_takes_of_a_gpu(self):
        report = json.loads(self.run_program("inspect", str(DEMO / "model"), "--devices", "--json").stdout)
        stored, q8, q4 = (report["device"][name] for name in ("stored", "q8", "q4"))
        self.assertEqual([fit["format"] for fit in (stored, q8, q4)], ["bf16", "q8", "q4"])
        self.assertLess(q8["weight_bytes"], 0.6 * stored["weight_bytes"])
        self.assertLess(q4["weight_bytes"], q8["weight_bytes"])
        self.assertGreater(q4["activation_bytes"], 0)
        self.assertIn("emulated", report)
        refused = json.loads(self.run_program("inspect", str(ROOT / "tests/golden/models/gemma4/model"), "--json").stdout)
        self.assertRegex(refused["device"], "does not compute models of family")

    def test_inspect_says_what_else_a_folder_holds(self):
        with tempfile.TemporaryDirectory() as folder:
            top = pathlib.Path(folder)
            (top / "run/checkpoint-100").mkdir(parents=True)
            (top / "run/checkpoint-100/adapter_config.json").write_text("{}")
            (top / "mlx").mkdir()
            (top / "mlx/adapters.safetensors").write_text("")
            shutil.copytree(DEMO / "model", top / "mlx_model")
            config = json.loads((DEMO / "model/config.json").read_text())
            config["quantization"] = {"group_size": 64, "bits": 4, "mode": "affine"}
            (top / "mlx_model/config.json").write_text(json.dumps(config))
            for path, words in [("run", "such as checkpoint-100, the last"), ("mlx", "is of mlx-lm"),
                                ("mlx_model", "mlx_lm.convert --dequantize")]:
                self.assertIn(words, self.run_program("inspect", str(top / path), status=1).stderr)

    def test_inspect_devices(self):
        devices = json.loads(self.run_program("inspect", "--devices", "--json").stdout)
        self.assertEqual(devices["cpu"]["processors"], os.cpu_count())
        self.assertGreater(devices["cpu"]["memory_bytes"], 0)
        self.assertIn("emulated", devices)
        if "cuda:0" in devices:
            self.assertGreater(devices["cuda:0"]["memory_bytes"], 0)
        else:
            self.assertRegex(devices["cuda"]["problem"], "GPU")
        self.assertIn("none: " if "cuda" in devices else "cuda 0", self.run_program("inspect", "--devices").stdout)
        self.assertIn("--devices", self.run_program("inspect", status=1).stderr)

    def test_inspect_refuses_absurd_shapes_within_little_memory(self):
        if "asan" in serving.LORAMUX or "tsan" in serving.LORAMUX:
            self.skipTest("sanitizers reserve more address space than this allows")
        wide, size = 2**35, 4 * 8 * 2**35
        module = "base_model.model.model.layers.0.self_attn.q_proj."
        header = json.dumps({module + "lora_A.weight": {"dtype": "F32", "shape": [8, wide], "data_offsets": [0, size]},
                             module + "lora_B.weight": {"dtype": "F32", "shape": [8, 8], "data_offsets": [size, size + 256]}})
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "adapter_config.json").write_text(json.dumps(
                {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}))
            for length in (0, size + 256):   # a file without the data, and one with holes
                with open(path / "adapter_model.safetensors", "wb") as file:
                    file.write(len(header).to_bytes(8, "little") + header.encode())
                    file.truncate(8 + len(header) + length)
                limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
                done = subprocess.run([serving.LORAMUX, "inspect", folder], capture_output=True, text=True, preexec_fn=limit,
                                      timeout=serving.PATIENCE)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, r"^loramux inspect: .*adapter_model.safetensors")

    def test_a_limit_of_open_files_that_is_too_low_is_told_at_the_start(self):
        for arguments in (["serve", str(DEMO / "model")], ["route", "--servers", "127.0.0.1:1"]):
            limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))
            done = subprocess.run([serving.LORAMUX, *arguments, "--port", "0"], capture_output=True, text=True,
                                  preexec_fn=limit, timeout=serving.PATIENCE)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, r"may open 10 files: expected at least \d+; raise the limit \(ulimit -n")

    def test_help_teaches(self):
        for command in ("serve", "generate", "inspect"):
            self.assertIn("--", self.run_program(command, "--help").stdout)
        self.assertIn("Examples", self.run_program("--help").stdout)

    def test_bad_flags_and_files_are_named(self):
        model = str(DEMO / "model")
        for status, arguments, words in [
                (2, ["--device-memory", "lots"], "--device-memory"), (2, ["--cache", "magic"], "lru, gdsf"),
                (2, ["--adapter-prefetch", "magic"], "none or histogram"), (2, ["--eviction", "magic"], "s-lora, vllm"),
                (2, ["--lora-modules", "x"], "name=path"), (2, ["--page-tokens", "7"], "--page-tokens"),
                (1, ["--lora-modules", "x=/nowhere"], "/nowhere"), (1, ["--adapter-dir", "/nowhere"], "/nowhere"),
                (1, ["--host", "300.1.1.1"], "300.1.1.1"), (1, ["--device-memory", "1"], "device memory"),
                (2, ["--device-memory", "1000TiB"], "--device-memory: expected at most"),
                (2, ["--host-memory", "1000TiB"], "--host-memory: expected at most"),
                (2, ["--max-model-len", "1025"], "expected at most 1024, the model's own length")]:
            done = self.run_program("serve", model, "--port", "0", *arguments, status=status)
            self.assertIn(words, done.stderr, arguments)
        self.run_program("serve", "/nowhere", status=1)

    def test_broken_model_directories_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder) / "model"
            shutil.copytree(DEMO / "model", broken)
            weights = broken / "model.safetensors"
            data = weights.read_bytes()
            weights.write_bytes(data[:len(data) // 2])
            done = self.run_program("serve", str(broken), "--port", "0", status=1)
            self.assertIn("model.safetensors", done.stderr)
            weights.write_bytes(data)
            for name, content in [("tokenizer.json", b"{}"), ("config.json", b"[]")]:
                good = (broken / name).read_bytes()
                (broken / name).write_bytes(content)
                done = self.run_program("serve", str(broken), "--port", "0", status=1)
                self.assertIn(name, done.stderr)
                (broken / name).write_bytes(good)


if __name__ == "__main__":
    serving.run_tests()
