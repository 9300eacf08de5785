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
# Tools whose arguments are short, whatever a model without sense chooses.
SMALL = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "on": {"type": "boolean"}},
    "required": ["unit", "on"], "additionalProperties": False}}} for name in ("heat", "cool")]
# Options of the library that compiles schemas: it would ignore `not`, which it does not serve.
OPTIONS = [{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "not": {"required": ["a"]}, "x-guidance": {"lenient": True}}}}]


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
            if model == "tools":
                continue   # it calls (demo_adapters_test.py)
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

    # ---- The model is made to write a text, or a call ----

    def said(self, text, **more):
        """The choice of an answer that is `text`, and the deltas of its stream."""
        forced = {"structured_outputs": {"choice": [text]}, "tools": TOOLS, "max_tokens": 300, **more}
        status, answer = self.server.chat("demo", "x", **forced)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0], self.deltas(self.server, "demo", "x", **forced)

    def test_a_call(self):
        choice, deltas = self.said('<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>')
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None))
        call, = choice["message"]["tool_calls"]
        self.assertRegex(call["id"], "^chatcmpl-tool-[0-9a-f]{32}$")
        self.assertEqual(call["function"], {"name": "weather", "arguments": '{"city": "Bern"}'})
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        self.assertEqual((calls[0]["index"], calls[0]["type"], calls[0]["function"]["name"]), (0, "function", "weather"))
        self.assertEqual("".join(call["function"]["arguments"] for call in calls), '{"city": "Bern"}')
        self.assertEqual(self.joined(deltas, "content"), "")

    def test_the_arguments_come_in_pieces(self):
        """They are long: events that are ready before the server writes are one event, so short ones may be one piece."""
        arguments = json.dumps({"city": "Bern, " * 120})
        call = '<tool_call>\n{"name": "weather", "arguments": ' + arguments + '}\n</tool_call>'
        _, deltas = self.said(call, max_tokens=900)
        pieces = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta]
        self.assertEqual("".join(pieces), arguments)
        self.assertGreater(len(pieces), 3)

    def test_a_text_that_is_no_call(self):
        text = '<tool_call>{"name": weather}</tool_call>'
        choice, deltas = self.said(text)
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("stop", text))
        self.assertEqual(self.joined(deltas, "content"), text)

    def test_a_call_is_required(self):
        for model in ("demo", "json"):   # one writes calls as Hermes does, the other as Llama
            for more in ({"parallel_tool_calls": False}, {"stop": None, "max_tokens": 200}):
                body = {"tools": SMALL, "tool_choice": "required", **more}
                status, answer = self.server.chat(model, "name=bob age=7", **body)
                self.assertEqual(status, 200, answer)
                choice = answer["choices"][0]
                if choice["finish_reason"] == "length":
                    continue   # the model calls without end
                self.assertEqual(choice["finish_reason"], "tool_calls", answer)
                for call in choice["message"]["tool_calls"]:
                    self.check_small(call["function"])

    def test_a_call_ends_although_the_model_wants_white_space(self):
        spaces = {str(8 + ord(" ")): 100}   # the token of a byte is 8 more
        choice = {"type": "function", "function": {"name": "cool"}}
        for model in ("demo", "json"):
            for tool_choice in ("required", choice):
                status, answer = self.server.chat(model, "x", tools=SMALL, tool_choice=tool_choice, parallel_tool_calls=False,
                                                  logit_bias=spaces, max_tokens=700)
                self.assertEqual(status, 200, answer)
                call, = answer["choices"][0]["message"]["tool_calls"]
                self.check_small(call["function"])
                self.assertIn(" " * 40, call["function"]["arguments"])
                self.assertNotIn(" " * 41, call["function"]["arguments"])

    def check_small(self, function):
        self.assertIn(function["name"], ("heat", "cool"))
        arguments = json.loads(function["arguments"])
        self.assertEqual(set(arguments), {"unit", "on"})
        self.assertIn(arguments["unit"], ("C", "F"))
        self.assertIsInstance(arguments["on"], bool)

    def test_a_named_call(self):
        choice = {"type": "function", "function": {"name": "cool"}}
        for server in (self.server, self.thinking):   # the second knows no form of calls
            status, answer = server.chat("demo", "x", tools=SMALL, tool_choice=choice)
            self.assertEqual(status, 200, answer)
            call, = answer["choices"][0]["message"]["tool_calls"]
            self.assertEqual((answer["choices"][0]["finish_reason"], call["function"]["name"]), ("stop", "cool"))
            self.check_small(call["function"])
            deltas = self.deltas(server, "demo", "x", tools=SMALL, tool_choice=choice)
            arguments = "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta)
            self.assertEqual(arguments, call["function"]["arguments"])

    def test_tool_choice_errors(self):
        for more, found in (({"tool_choice": "required"}, "`tools`"), ({"tool_choice": "sometimes", "tools": SMALL}, "required"),
                            ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": SMALL}, "found \"x\""),
                            ({"tool_choice": "required", "tools": SMALL, "guided_regex": "a"}, "guided_regex"),
                            ({"tool_choice": "required", "tools": OPTIONS}, "x-guidance")):
            status, answer = self.server.chat("demo", "x", **more)
            self.assertEqual((status, answer["error"]["param"]), (400, "tool_choice"), answer)
            self.assertIn(found, answer["error"]["message"])

    def test_an_unknown_parser_is_refused_at_the_start(self):
        for flags in (["--tool-call-parser", "hermse"], ["--tool-call-parser", "json=hermse"], ["--reasoning-parser", "r1"]):
            run = subprocess.run([serving.LORAMUX, "serve", str(DEMO / "model"), "--port", "0", *flags], capture_output=True,
                                 text=True, timeout=serving.PATIENCE)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn(f"{flags[0]}: expected auto, none, ", run.stderr)
            self.assertIn(f'found "{flags[1].removeprefix("json=")}"', run.stderr)


if __name__ == "__main__":
    serving.run_tests()
