#!/usr/bin/env python3
"""Speculation over HTTP with the demo model: a server with `--speculate ngram` and one without give the same bodies, for
structured output, tool calls, stop strings, log-probabilities, seeds and streams; requests leave it, metrics count it, and
a recording of it replays. Standard library only.

Usage: speculation_http_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import json
import pathlib
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO, Server, questions

CHAT = "/v1/chat/completions"
SCHEMA = {"type": "array", "minItems": 3, "maxItems": 4, "items": {
    "type": "object", "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,8}$"}, "age": {"type": "integer",
                                     "minimum": 0, "maximum": 120}, "kind": {"enum": ["alpha", "beta"]}},
    "required": ["name", "age", "kind"], "additionalProperties": False}}
MEMORY = ["--device-memory", "64MiB", "--host-memory", "32MiB"]


def bodies():
    """Requests of each kind for each model."""
    for number, (model, prompt, _) in enumerate(questions(3)):
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 120, "temperature": 0}
        drawn = {**body, "temperature": 0.9, "seed": number}
        yield body
        yield {**drawn, "logprobs": True, "top_logprobs": 3}
        yield {**drawn, "max_tokens": 250, "response_format": {"type": "json_schema", "json_schema": {"name": "s",
               "schema": SCHEMA}}}
        yield {**body, "max_tokens": 60, "ignore_eos": True, "stop": ["e", "\":\""][number % 2:], "min_tokens": number % 9}
        yield {**drawn, "n": 2, "presence_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"70": -5}}
        yield {**body, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "max_tokens": 40}
        if model in ("tools", "demo"):
            yield {**body, "tools": json.loads((DEMO / "tools.json").read_text())}


def told(server, body):
    """What the server answers, without what differs from request to request."""
    if body.get("stream"):
        events = server.stream(CHAT, body)   # one may have several tokens
        choices = [choice for event in events for choice in event["choices"]]
        return ["".join(choice["delta"].get("content") or "" for choice in choices), choices[-1]["finish_reason"],
                events[-1]["usage"]["completion_tokens"]]
    status, answer = server.json("POST", CHAT, body)
    assert status == 200, answer
    for choice in answer["choices"]:
        for call in choice["message"].get("tool_calls") or []:
            call.pop("id")
    return [answer["choices"], answer["usage"]["completion_tokens"]]


class Speculation(unittest.TestCase):
    def compare(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            recording = pathlib.Path(folder) / "recording"
            plain, server = Server(*MEMORY), Server(*MEMORY, "--record", str(recording), "--speculate", *flags)
            wanted = list(bodies())
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                expected = list(pool.map(lambda body: told(plain, body), wanted))
                found = list(pool.map(lambda body: told(server, body), wanted))   # in batches of different adapters
            for body, one, other in zip(wanted, expected, found):
                self.assertEqual(one, other, body)
            for body, one in list(zip(wanted, expected))[:40]:   # alone, and with answers of before
                self.assertEqual(told(server, body), one, body)
            self.assertEqual(plain.metric("vllm:spec_decode_num_drafts_total"), 0)
            drafted, accepted = (server.metric(f"vllm:spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted"))
            self.assertGreater(accepted, 500)
            self.assertGreater(drafted, accepted)
            before = server.metric("vllm:spec_decode_num_drafts_total")
            self.assertEqual(told(server, {**wanted[0], "speculate": False}), expected[0])
            self.assertEqual(server.metric("vllm:spec_decode_num_drafts_total"), before)
            self.assertEqual(told(server, {**wanted[0], "speculate": True}), expected[0])
            status, answer = plain.json("POST", CHAT, {**wanted[0], "speculate": True})
            self.assertEqual((status, answer["error"]["param"]), (400, "speculate"))
            self.assertIn("--speculate ngram", answer["error"]["message"])
            self.assertEqual(told(plain, {**wanted[0], "speculate": False}), expected[0])
            plain.stop()
            server.stop()
            done = subprocess.run([serving.LORAMUX, "simulate", "--replay", str(recording)], capture_output=True, text=True,
                                  timeout=serving.PATIENCE)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_answers_are_the_same(self):
        self.compare("ngram")

    def test_as_vllm_says_it(self):
        self.compare('{"method": "ngram", "num_speculative_tokens": 16, "prompt_lookup_min": 1, "prompt_lookup_max": 5}')


if __name__ == "__main__":
    serving.run_tests()
