#!/usr/bin/env python3
"""The demo's adapters `tools`, which calls functions, and `schema`, which writes JSON by a schema, over the chat API: whole and
streamed, free and constrained; and demo/constraints.py, which measures how often they are right, with the Python of
tests/clients/install.sh. Standard library otherwise.

Usage: demo_adapters_test.py PATH_OF_LORAMUX
"""
import json
import subprocess
import unittest

from serving import CLIENTS, DEMO, PATIENCE, Server, questions, run_tests

CHAT = "/v1/chat/completions"
TOOLS = json.loads((DEMO / "tools.json").read_text(encoding="utf-8"))
SCHEMA = json.loads((DEMO / "schema.json").read_text(encoding="utf-8"))
TYPED = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}}
ASKED = {"schema": 10, "tools": 20}   # so many first held-out questions, of which they get all right


def of(adapter):
    """The first held-out (prompt, answer) pairs of an adapter."""
    return [(prompt, answer) for model, prompt, answer in questions(ASKED[adapter]) if model == adapter]


def call_of(answer):
    """(name, arguments) of a right answer, None if it is no call."""
    if not answer.startswith("<tool_call>"):
        return None
    call = json.loads(answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    return call["name"], call["arguments"]


class DemoAdapters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--tool-call-parser", "tools=hermes")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def choice(self, model, prompt, **more):
        status, answer = self.server.chat(model, prompt, **more)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]

    def streamed(self, model, prompt, **more):
        """(content, {index: [name, arguments]}, finish reason) of a stream."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 100, **more}
        content, calls, finish = "", {}, None
        for event in self.server.stream(CHAT, body):
            choice = event["choices"][0]
            content += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls", []):
                call = calls.setdefault(piece["index"], ["", ""])
                call[0] += piece["function"].get("name") or ""
                call[1] += piece["function"].get("arguments") or ""
            finish = choice["finish_reason"] or finish
        return content, calls, finish

    def check_call(self, prompt, expected, finish, **more):
        """The answer is that call and nothing else, streamed as whole."""
        choice = self.choice("tools", prompt, **more)
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), (finish, None), prompt)
        function = choice["message"]["tool_calls"][0]["function"]
        self.assertEqual(len(choice["message"]["tool_calls"]), 1)
        self.assertEqual((function["name"], json.loads(function["arguments"])), expected, prompt)
        self.assertEqual(self.streamed("tools", prompt, **more), ("", {0: [function["name"], function["arguments"]]}, finish))

    def test_questions_of_both_kinds_are_asked(self):
        calls = [call_of(answer) for _, answer in of("tools")]
        self.assertEqual({call[0] for call in calls if call}, {tool["function"]["name"] for tool in TOOLS})
        self.assertIn(None, calls)

    def test_the_model_calls_the_right_function(self):
        for prompt, answer in of("tools"):
            expected = call_of(answer)
            if expected is not None:
                self.check_call(prompt, expected, "tool_calls", tools=TOOLS)
                self.check_call(prompt, expected, "tool_calls", tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
                named = {"type": "function", "function": {"name": expected[0]}}
                self.check_call(prompt, expected, "stop", tools=TOOLS, tool_choice=named)   # as OpenAI finishes it

    def test_the_model_answers_with_words_where_no_function_fits(self):
        for prompt, answer in of("tools"):
            if call_of(answer) is None:
                choice = self.choice("tools", prompt, tools=TOOLS)
                self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("stop", answer))
                self.assertNotIn("tool_calls", choice["message"])
                self.assertEqual(self.streamed("tools", prompt, tools=TOOLS), (answer, {}, "stop"))

    def test_a_call_is_text_without_tools(self):
        prompt, answer = next(pair for pair in of("tools") if call_of(pair[1]))
        self.assertEqual(self.choice("tools", prompt)["message"]["content"], answer)
        self.assertEqual(self.choice("tools", prompt, tools=TOOLS, tool_choice="none")["message"]["content"], answer)

    def test_the_model_writes_a_document_of_the_schema(self):
        for prompt, answer in of("schema"):
            for more in ({}, TYPED):
                choice = self.choice("schema", prompt, **more)
                self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("stop", answer), prompt)
                self.assertEqual(self.streamed("schema", prompt, **more), (answer, {}, "stop"))

    def test_the_schema_holds_where_the_model_would_break_it(self):
        """At a high temperature the free answers break the schema, and the constrained ones do not."""
        prompt = of("schema")[0][0]
        free, typed = ([self.choice("schema", prompt, temperature=3, seed=seed, max_tokens=600, **more) for seed in range(8)]
                       for more in ({}, TYPED))
        self.assertFalse(all(self.valid(choice) for choice in free), free)
        for choice in typed:
            self.assertTrue(self.valid(choice) or choice["finish_reason"] == "length", choice)
        self.assertTrue(any(self.valid(choice) for choice in typed), typed)

    def test_the_measurement(self):
        run = subprocess.run([CLIENTS / "python/bin/python", DEMO / "constraints.py", "--url", f"http://127.0.0.1:{self.server.port}",
                              "--samples", "24", "--temperatures", "0", "3"], text=True, capture_output=True, timeout=PATIENCE)
        self.assertEqual(run.returncode, 0, run.stderr)
        rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in run.stdout.splitlines()[2:]]
        valid = {(model, request, temperature): share for model, request, temperature, _, _, share in rows}
        exact = {(model, request, temperature): share for model, request, temperature, _, share, _ in rows}
        self.assertEqual({exact["tools", request, "0"] for request in ("auto", "required", "function named")}, {"100.0%"}, run.stdout)
        self.assertEqual(valid["schema", "json_schema", "0"], "100.0%", run.stdout)
        self.assertEqual((exact["demo", "auto", "0"], exact["schema", "free", "3"]), ("0.0%", "0.0%"), run.stdout)

    def valid(self, choice):
        """Whether the answer is a document of SCHEMA. Written out, since the standard library has no validator."""
        try:
            person = json.loads(choice["message"]["content"])
        except ValueError:
            return False
        return (isinstance(person, dict) and list(person) == ["name", "age", "country", "likes"]
                and isinstance(person["age"], int) and 0 <= person["age"] <= 120
                and person["country"] in SCHEMA["properties"]["country"]["enum"]
                and isinstance(person["likes"], list) and 1 <= len(person["likes"]) <= 3
                and all(isinstance(word, str) and word.isalpha() for word in [person["name"], *person["likes"]]))


if __name__ == "__main__":
    run_tests()
