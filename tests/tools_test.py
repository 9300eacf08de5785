#!/usr/bin/env python3
"""Tools and reasoning against the program with the demo model. Standard library only. (src/server/tool_calls_test.cc has the
answers of models that call tools, from a scripted engine.)

Usage: tools_test.py PATH_OF_LORAMUX
"""
import json
import subprocess
import unittest

import serving
from serving import DEMO, Server, questions

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--tool-call-parser", "hermes",
                            "--tool-call-parser", "json=llama3_json")
        cls.thinking = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--reasoning-parser", "qwen3")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.thinking.stop()

    def message(self, server, model, prompt, **more):
        status, answer = server.chat(model, prompt, **more)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["message"]

    def deltas(self, server, model, prompt, **more):
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 100, **more}
        return [event["choices"][0]["delta"] for event in server.stream(CHAT, body)]

    def joined(self, deltas, field):
        return "".join(delta.get(field) or "" for delta in deltas)

    def test_answers_that_call_nothing_are_content(self):
        for model, prompt, _ in questions(2):
            plain = self.message(self.server, model, prompt)
            self.assertEqual(self.message(self.server, model, prompt, tools=TOOLS), plain)
            deltas = self.deltas(self.server, model, prompt, tools=TOOLS)
            self.assertEqual(self.joined(deltas, "content"), plain["content"])
            self.assertFalse(any("tool_calls" in delta for delta in deltas))

    def test_json_that_is_no_call_is_content(self):
        plain = self.message(self.server, "json", "name=bob age=7")
        self.assertEqual(json.loads(plain["content"]), {"name": "bob", "age": 7})   # begins as Llama's calls do
        self.assertEqual(self.message(self.server, "json", "name=bob age=7", tools=TOOLS), plain)
        deltas = self.deltas(self.server, "json", "name=bob age=7", tools=TOOLS)
        self.assertEqual(self.joined(deltas, "content"), plain["content"])

    def test_reasoning(self):
        prompt = "<think>Hm.</think>Yes."   # the base repeats it
        plain = self.message(self.server, "demo", prompt)["content"]
        self.assertTrue(plain.startswith("<think>"), plain)
        thought, content = plain.removeprefix("<think>").split("</think>", 1)
        message = self.message(self.thinking, "demo", prompt)
        self.assertEqual((message["reasoning"], message["reasoning_content"], message["content"]),
                         (thought, thought, content))
        deltas = self.deltas(self.thinking, "demo", prompt)
        self.assertEqual((self.joined(deltas, "reasoning"), self.joined(deltas, "content")), (thought, content))
        self.assertNotIn("reasoning", self.message(self.thinking, "demo", prompt, include_reasoning=False))

    def test_an_unknown_parser_is_refused_at_the_start(self):
        for flags in (["--tool-call-parser", "hermse"], ["--tool-call-parser", "json=hermse"], ["--reasoning-parser", "r1"]):
            run = subprocess.run([serving.LORAMUX, "serve", str(DEMO / "model"), "--port", "0", *flags], capture_output=True,
                                 text=True, timeout=serving.PATIENCE)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(f"{flags[0]}: expected auto, none, ", run.stderr)
            self.assertIn(f'found "{flags[1].removeprefix("json=")}"', run.stderr)


if __name__ == "__main__":
    serving.run_tests()
