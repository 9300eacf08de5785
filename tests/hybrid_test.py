#!/usr/bin/env python3
"""A small model with recurrent layers over HTTP: two adapters at once, with memory for few requests.

Usage: hybrid_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO, PATIENCE, ROOT, Server

MODELS = ROOT / "tests/golden/models"
# These adapters were made for another model of the same shape.
ADAPTERS = {"all": "all_r4", "z": "regex_r4"}
ASKED = [(name, start, length) for start, length in ((9, 3), (40, 50), (100, 20)) for name in ("base", "all", "z")]


class Hybrid(unittest.TestCase):
    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="loramux-hybrid-test-"))
        self.addCleanup(shutil.rmtree, self.top)
        shutil.copytree(MODELS / "qwen3_5_old/model", self.top / "model")
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(DEMO / "model" / file, self.top / "model")
        for name, folder in ADAPTERS.items():
            shutil.copytree(MODELS / "qwen3_5_vl/adapters" / folder, self.top / "adapters" / name)

    def command(self, *flags):
        return [serving.LORAMUX, "serve", str(self.top / "model"), "--served-model-name", "base", "--adapter-dir",
                str(self.top / "adapters"), "--port", "0", *flags]

    def answer(self, server, name, start, length):
        status, body = server.json("POST", "/v1/completions", {
            "model": name, "prompt": list(range(start, start + length)), "max_tokens": 90, "temperature": 0,
            "ignore_eos": True, "logprobs": 1})
        self.assertEqual(status, 200, body)
        self.assertEqual(body["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0), 0)
        choice = body["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def test_requests_together_answer_as_alone(self):
        server = Server.run(self.command())
        alone = [self.answer(server, *asked) for asked in ASKED]
        self.assertEqual([self.answer(server, *asked) for asked in ASKED], alone)
        self.assertEqual(len({text for text, _ in alone}), len(ASKED))
        self.assertRegex(server.stop(), "linear attention: a sequence's states take .* and no prefix is cached")
        server = Server.run(self.command("--device-memory", "320KiB", "--max-num-batched-tokens", "24"))
        with concurrent.futures.ThreadPoolExecutor(len(ASKED)) as pool:
            together = list(pool.map(lambda asked: self.answer(server, *asked), ASKED * 2))
        self.assertEqual(together, alone * 2)
        self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)
        server.stop()

    def test_nothing_is_drafted(self):
        server = Server.run(self.command("--speculate", "ngram"))
        for asked in ASKED:
            self.answer(server, *asked)
        self.assertEqual(server.metric("vllm:spec_decode_num_drafts_total"), 0)
        body = {"model": "base", "prompt": [5, 6], "max_tokens": 1, "speculate": True}
        self.assertEqual(server.json("POST", "/v1/completions", body)[0], 400)
        self.assertIn("--speculate: this model has recurrent layers", server.stop())

    def test_what_does_not_serve_it_says_so(self):
        for command, message in [(["quantize", self.top / "model", "-o", self.top / "q"], "linear attention"),
                                 (["simulate", "--model", self.top / "model"], "linear attention")]:
            run = subprocess.run([serving.LORAMUX, *map(str, command)], capture_output=True, text=True, timeout=PATIENCE)
            self.assertNotEqual(run.returncode, 0, run.stdout)
            self.assertIn(message, run.stderr)


if __name__ == "__main__":
    serving.run_tests()
