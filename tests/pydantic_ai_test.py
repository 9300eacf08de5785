#!/usr/bin/env python3
"""Pydantic AI, unmodified, against the program. tests/clients/install.sh installs it; this file runs itself again with the
Python that has it.

Usage: pydantic_ai_test.py PATH_OF_LORAMUX
"""
import asyncio
import unittest
from typing import Literal

import serving
from serving import TOOLS_TEMPLATE, Server, questions

# Pydantic AI takes the ends off what looks like a special token, so this is no call of Llama's. The base model repeats it.
CALL = "<function=now></function>"
BOB = "name=bob age=7"   # the adapter "json" answers with an object of both


class PydanticAi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--tool-call-parser", "qwen3_coder",
                            "--chat-template", TOOLS_TEMPLATE)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def agent(self, name, **more):
        provider = openai_provider.OpenAIProvider(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="unused")
        return pydantic_ai.Agent(openai_models.OpenAIChatModel(name, provider=provider), retries=0,
                                 model_settings={"temperature": 0, "max_tokens": 900, "timeout": serving.PATIENCE}, **more)

    def streamed(self, agent, prompt):
        """The output of a streamed run, and the text of its pieces, if it has text."""
        async def run():
            async with agent.run_stream(prompt) as result:
                pieces = [piece async for piece in result.stream_output(debounce_by=None)]
                return await result.get_output(), pieces
        return asyncio.run(run())

    def test_text(self):
        for name, prompt, expected in questions(1):
            result = self.agent(name).run_sync(prompt)
            self.assertEqual(result.output, expected, (name, prompt))
            self.assertEqual((result.response.model_name, result.response.finish_reason), (name, "stop"))
            self.assertGreater(result.usage.input_tokens, 0)
            self.assertGreater(result.usage.output_tokens, 0)
            output, pieces = self.streamed(self.agent(name), prompt)
            self.assertEqual((output, pieces[-1]), (expected, expected))

    def test_a_conversation(self):
        agent = self.agent("upper", instructions="be loud")
        first = agent.run_sync("hello")
        second = agent.run_sync("hello", message_history=first.all_messages())
        self.assertEqual(len(second.all_messages()), 4)
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)

    def test_output_types(self):
        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            age: int = pydantic.Field(ge=0, le=120)

        bob = Person(name="bob", age=7)
        for kind, expected in ((pydantic_ai.NativeOutput, bob), (pydantic_ai.ToolOutput, None),
                               (lambda person: pydantic_ai.PromptedOutput(person, template=False), bob)):
            agent = self.agent("json", output_type=kind(Person))
            output = agent.run_sync(BOB).output
            self.assertIsInstance(output, Person)
            self.assertEqual(output, expected or output)
            streamed, pieces = self.streamed(agent, BOB)
            self.assertEqual((streamed, pieces[-1]), (output, output))

    def test_one_of_several_types(self):
        class Yes(pydantic.BaseModel):
            sure: bool

        class No(pydantic.BaseModel):
            reason: str = pydantic.Field(max_length=5)

        for kind in (pydantic_ai.NativeOutput([Yes, No]), [Yes, No]):
            self.assertIsInstance(self.agent("demo", output_type=kind).run_sync("x").output, (Yes, No))

    def test_tools(self):
        calls = []
        agent = self.agent("demo")

        @agent.tool_plain
        def now() -> str:
            """The time of the day."""
            calls.append("now")
            return "noon"

        result = agent.run_sync(CALL)
        self.assertEqual((calls, result.output, result.usage.requests), (["now"], "noon", 2))
        output, _ = self.streamed(agent, CALL)
        self.assertEqual((calls, output), (["now", "now"], "noon"))

    def test_a_tool_that_must_be_called(self):
        class Heat(pydantic.BaseModel):
            unit: Literal["C", "F"]
            on: bool

        def heat(unit: Literal["C", "F"], on: bool) -> Heat:
            """Turns the heating on or off."""
            return Heat(unit=unit, on=on)

        agent = self.agent("demo", output_type=[heat])
        output = agent.run_sync("x").output
        self.assertIsInstance(output, Heat)
        self.assertEqual(self.streamed(agent, "x")[0], output)

    def test_errors(self):
        with self.assertRaises(pydantic_ai.ModelHTTPError) as unknown:
            self.agent("unknown").run_sync("x")
        self.assertEqual(unknown.exception.status_code, 404)


if __name__ == "__main__":
    serving.use_clients("python")
    import pydantic
    import pydantic_ai
    from pydantic_ai.models import openai as openai_models
    from pydantic_ai.providers import openai as openai_provider
    serving.run_tests()
