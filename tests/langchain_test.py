#!/usr/bin/env python3
"""LangChain's chat model of OpenAI, unmodified, against the program. tests/clients/install.sh installs it; this file runs
itself again with the Python that has it.

Usage: langchain_test.py PATH_OF_LORAMUX
"""
import asyncio
import unittest
from typing import Literal

import serving
from serving import DOUBLE_21, TOOLS_TEMPLATE, Server, questions

BOB = "name=bob age=7"   # the adapter "json" answers with an object of both


def added(pieces):
    """A stream's message: the sum of its pieces."""
    return sum(pieces[1:], pieces[0])


class LangChain(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--tool-call-parser", "llama3_json",
                            "--chat-template", TOOLS_TEMPLATE)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def model(self, name, **more):
        return langchain_openai.ChatOpenAI(model=name, base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="unused",
                                           max_retries=0, timeout=serving.PATIENCE, temperature=0, max_tokens=400, **more)

    def test_invoke_and_stream(self):
        for name, prompt, expected in questions(1):
            model = self.model(name)
            whole = model.invoke(prompt)
            self.assertEqual(whole.content, expected, (name, prompt))
            about = whole.response_metadata
            self.assertEqual((about["finish_reason"], about["model_name"]), ("stop", name))
            usage = whole.usage_metadata
            self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])
            streamed = added(list(model.stream(prompt, stream_usage=True)))
            self.assertEqual(streamed.content, whole.content)
            self.assertEqual(streamed.response_metadata["finish_reason"], "stop")
            for field in ("input_tokens", "output_tokens", "total_tokens"):
                self.assertEqual(streamed.usage_metadata[field], usage[field])

    def test_a_conversation_with_its_log_probabilities(self):
        messages = [("system", "s"), ("human", "hello"), ("ai", "hello"), ("human", "hello")]
        answer = self.model("upper", logprobs=True, top_logprobs=2).invoke(messages)
        tokens = answer.response_metadata["logprobs"]["content"]
        self.assertEqual("".join(token["token"] for token in tokens if token["token"] != "<|end|>"), answer.content)
        self.assertEqual({len(token["top_logprobs"]) for token in tokens}, {2})

    def test_batches(self):
        prompts = ["hello", "world", "duxe"]
        model = self.model("reverse")
        expected = [prompt[::-1] for prompt in prompts]
        self.assertEqual([answer.content for answer in model.batch(prompts)], expected)
        self.assertEqual([answer.content for answer in asyncio.run(model.abatch(prompts))], expected)

    def test_structured_output(self):
        class Person(pydantic.BaseModel):
            """A person."""
            name: str = pydantic.Field(max_length=8)
            age: int = pydantic.Field(ge=0, le=120)

        for method in ("json_schema", "function_calling", "json_mode"):
            model = self.model("json").with_structured_output(Person, method=method, include_raw=True)
            answer = model.invoke(BOB)
            self.assertIsNone(answer["parsing_error"], method)
            self.assertIsInstance(answer["parsed"], Person, method)
            if method != "function_calling":
                self.assertEqual(answer["parsed"], Person(name="bob", age=7), method)
            streamed = {key: value for piece in model.stream(BOB) for key, value in piece.items()}
            self.assertEqual(streamed["parsed"], answer["parsed"], method)
        strict = self.model("demo").with_structured_output(Person, method="function_calling", strict=True)
        self.assertIsInstance(strict.invoke("who?"), Person)

    def test_tools(self):
        @langchain_core.tools.tool
        def double(number: int) -> int:
            """Doubles a number."""
            return 2 * number

        model = self.model("demo").bind_tools([double])
        answer = model.invoke(DOUBLE_21)
        call, = answer.tool_calls
        self.assertEqual((call["name"], call["args"], answer.content), ("double", {"number": 21}, ""))
        self.assertEqual(answer.response_metadata["finish_reason"], "tool_calls")
        last = model.invoke([("human", DOUBLE_21), answer, double.invoke(call)])
        self.assertEqual((last.content, last.tool_calls), ("42", []))
        streamed = added(list(model.stream(DOUBLE_21)))
        self.assertEqual((streamed.tool_calls[0]["name"], streamed.tool_calls[0]["args"]), ("double", {"number": 21}))

    def test_tools_that_must_be_called(self):
        @langchain_core.tools.tool
        def heat(unit: Literal["C", "F"], on: bool) -> str:
            """Turns the heating on or off."""
            return f"{unit} {on}"

        for choice, strict in (("heat", None), ("any", None), ("heat", True)):
            model = self.model("demo").bind_tools([heat], tool_choice=choice, strict=strict, parallel_tool_calls=False)
            answer = model.invoke("x")
            call, = answer.tool_calls
            self.assertEqual((call["name"], set(call["args"])), ("heat", {"unit", "on"}))
            self.assertRegex(heat.invoke(call["args"]), "^[CF] (True|False)$")
            streamed, = added(list(model.stream("x"))).tool_calls
            self.assertEqual(streamed["args"], call["args"])

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError):
            self.model("unknown").invoke("x")
        with self.assertRaises(openai.BadRequestError):
            list(self.model("demo", top_p=7).stream("x"))


if __name__ == "__main__":
    serving.use_clients("python")
    import langchain_core.tools
    import langchain_openai
    import openai
    import pydantic
    serving.run_tests()
