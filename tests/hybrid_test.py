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
ASKED = [(name, start, length) for start, length in ((9, 3), (40, 50), (100, 20)) for name in ("base", "all", "z")]


class Hybrid:
    """What a model with recurrent layers does."""
    # The adapters were made for another model of the same shape.
    model, of_adapters, adapters = "", "", {}
    little_memory = ""  # for few requests
    tokens = 90  # of an answer
    on_devices = True

    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="loramux-hybrid-test-"))
        self.addCleanup(shutil.rmtree, self.top)
        shutil.copytree(MODELS / self.model / "model", self.top / "model")
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(DEMO / "model" / file, self.top / "model")
        for name, folder in self.adapters.items():
            shutil.copytree(MODELS / self.of_adapters / "adapters" / folder, self.top / "adapters" / name)

    def command(self, *flags):
        return [serving.LORAMUX, "serve", str(self.top / "model"), "--served-model-name", "base", "--adapter-dir",
                str(self.top / "adapters"), "--port", "0", *flags]

    def ask(self, server, name, prompt):
        """The text and its log-probabilities, and the tokens of the prompt that were cached."""
        status, body = server.json("POST", "/v1/completions", {
            "model": name, "prompt": prompt, "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True,
            "logprobs": 1})
        self.assertEqual(status, 200, body)
        cached = body["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
        choice = body["choices"][0]
        return (choice["text"], choice["logprobs"]["token_logprobs"]), cached

    def answer(self, server, name, start, length):
        return self.ask(server, name, list(range(start, start + length)))[0]

    def test_requests_together_answer_as_alone(self):
        server = Server.run(self.command("--state-snapshot-tokens", "0"))
        alone = [self.answer(server, *asked) for asked in ASKED]
        self.assertEqual([self.answer(server, *asked) for asked in ASKED], alone)
        self.assertEqual(len({text for text, _ in alone}), len(ASKED))
        self.assertEqual(server.metric("vllm:prefix_cache_hits_total"), 0)
        self.assertRegex(server.stop(), "linear attention: a sequence's states take .* no prefix is cached")
        server = Server.run(self.command("--device-memory", self.little_memory, "--max-num-batched-tokens", "24",
                                         "--state-snapshot-tokens", "16", "--record", str(self.top / "recording")))
        for _ in range(20):  # until enough of them meet
            with concurrent.futures.ThreadPoolExecutor(len(ASKED)) as pool:
                together = list(pool.map(lambda asked: self.answer(server, *asked), ASKED * 2))
            self.assertEqual(together, alone * 2)
            if server.metric("vllm:num_preemptions_total") > 0:
                break
        self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)
        self.assertEqual([self.answer(server, *asked) for asked in ASKED * 2], alone * 2)
        self.assertGreater(server.metric("vllm:prefix_cache_hits_total"), 0)
        self.assertGreater(server.metric("loramux:state_snapshots_total"), 0)
        server.stop()
        self.replay()

    def test_the_emulated_device_answers_together_as_alone(self):
        self.tokens = 8
        flags = ["--device", "emulated", "--max-num-batched-tokens", "24"]
        if not self.on_devices:
            refused = subprocess.run(self.command(*flags), capture_output=True, text=True, timeout=PATIENCE)
            self.assertNotEqual(refused.returncode, 0)
            self.assertRegex(refused.stderr, "does not compute models of family .* start with --device cpu")
            return
        server = Server.run(self.command(*flags, "--device-memory", "4MiB", "--state-snapshot-tokens", "0"))
        alone = [self.answer(server, *asked) for asked in ASKED]
        self.assertEqual(len({logprobs[0] for _, logprobs in alone}), len(ASKED))
        self.assertRegex(server.stop(), "computing on emulated: ")
        server = Server.run(self.command(*flags, "--device-memory", self.little_memory, "--host-memory", "1MiB",
                                         "--state-snapshot-tokens", "16", "--record", str(self.top / "recording")))
        with concurrent.futures.ThreadPoolExecutor(len(ASKED)) as pool:
            together = list(pool.map(lambda asked: self.answer(server, *asked), ASKED * 2))
        self.assertEqual(together, alone * 2)
        self.assertEqual([self.answer(server, *asked) for asked in ASKED * 2], alone * 2)
        self.assertGreater(server.metric("vllm:prefix_cache_hits_total"), 0)
        self.assertGreater(server.metric("loramux:state_snapshots_total"), 0)
        server.stop()
        self.replay()

    def replay(self):
        """The recording gives the same plans again."""
        replayed = subprocess.run([serving.LORAMUX, "simulate", "--replay", str(self.top / "recording"), "--check-every",
                                   "50"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(replayed.returncode, 0, replayed.stdout + replayed.stderr)
        self.assertRegex(replayed.stdout, r"plans: \d+ compared, all equal")

    def test_conversations_go_on_from_snapshots(self):
        flags = ["--max-num-batched-tokens", "40", "--page-tokens", "16"]
        server = Server.run(self.command(*flags, "--state-snapshot-tokens", "0"))
        first = [token % 90 + 3 for token in range(100, 200)]
        prompts = [first, first + [9] * 40, first[:70] + [7] * 30, first[:70] + [8] * 40]
        asked = [(name, prompt) for name in ("base", *self.adapters) for prompt in prompts]
        alone = [self.ask(server, *each) for each in asked]
        self.assertEqual([cached for _, cached in alone], [0] * len(asked))
        server.stop()
        server = Server.run(self.command(*flags, "--state-snapshot-tokens", "128"))
        self.assertRegex(server.text(), "linear attention: .* snapshot")
        # Where the prompt before ended, and where two parted: each adapter has its own.
        found = [self.ask(server, *each) for each in asked]
        self.assertEqual([cached for _, cached in found], [0, 96, 0, 64] * 3)
        self.assertEqual([answer for answer, _ in found], [answer for answer, _ in alone])
        found = [self.ask(server, *each) for each in asked]
        self.assertEqual([cached for _, cached in found], [96, 128, 96, 96] * 3)
        self.assertEqual([answer for answer, _ in found], [answer for answer, _ in alone])
        self.assertEqual(server.metric("vllm:prefix_cache_hits_total"), 3 * (96 + 64 + 96 + 128 + 96 + 96))
        server.stop()

    def test_nothing_is_drafted(self):
        server = Server.run(self.command("--speculate", "ngram"))
        for asked in ASKED:
            self.answer(server, *asked)
        self.assertEqual(server.metric("vllm:spec_decode_num_drafts_total"), 0)
        body = {"model": "base", "prompt": [5, 6], "max_tokens": 1, "speculate": True}
        self.assertEqual(server.json("POST", "/v1/completions", body)[0], 400)
        self.assertIn("--speculate: this model has recurrent layers", server.stop())

    def test_it_is_written_in_8_bits(self):
        run = subprocess.run([serving.LORAMUX, "quantize", self.top / "model", "-o", self.top / "q"], capture_output=True,
                             text=True, timeout=PATIENCE)
        self.assertEqual(run.returncode, 0, run.stderr)
        run = subprocess.run([serving.LORAMUX, "inspect", self.top / "q"], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_it_is_simulated(self):
        run = subprocess.run([serving.LORAMUX, "simulate", "--model", self.top / "model", "--requests", "50", "--rate", "5",
                              "--input-mean", "30", "--output-mean", "8", "--adapters", "4", "--ranks", "8"],
                             capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(run.returncode, 0, run.stderr)


class GatedDeltaNet(Hybrid, unittest.TestCase):
    model, of_adapters, adapters = "qwen3_5_old", "qwen3_5_vl", {"all": "all_r4", "z": "regex_r4"}
    little_memory = "320KiB"


class DeltaNetWithExperts(Hybrid, unittest.TestCase):
    model, of_adapters, adapters = "qwen3_next_old", "qwen3_next_old", {"all": "all_r4", "z": "out_r3"}
    little_memory = "320KiB"


class Mamba2BesideAttention(Hybrid, unittest.TestCase):
    model, of_adapters, adapters = "falcon_h1_norm_first", "falcon_h1_norm_first", {"all": "in_r4", "z": "down_r2"}
    little_memory = "256KiB"
    on_devices = False


class Mamba2(Hybrid, unittest.TestCase):
    model, of_adapters, adapters = "granite_hybrid_old", "granite_hybrid_nope", {"all": "all_r4", "z": "in_r4"}
    little_memory = "256KiB"


if __name__ == "__main__":
    serving.run_tests()
