#!/usr/bin/env python3
"""Instructor, unmodified, against the program. tests/clients/install.sh installs it; this file runs itself again with the
Python that has it. (It has one of its own, because Instructor wants another `jiter` than the newest client of OpenAI.)

Usage: instructor_test.py PATH_OF_LORAMUX
"""
import asyncio
import unittest
from typing import Literal

import serving
from serving import TOOLS_TEMPLATE, Server

BOB = [{"role": "user", "content": "name=bob age=7"}]   # the adapter "json" answers with an object of both


class Instructor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--tool-call-parser", "hermes",
                            "--chat-template", TOOLS_TEMPLATE)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def client(self, mode, kind=None):
        client = (kind or openai.OpenAI)(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="unused", max_retries=0,
                                         timeout=serving.PATIENCE)
        return instructor.from_openai(client, mode=mode)

    def asked(self, **more):
        return {"model": "json", "messages": BOB, "temperature": 0, "max_tokens": 800, "max_retries": 0, **more}

    def test_modes(self):
        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            age: int = pydantic.Field(ge=0, le=120)
            kind: Literal["human", "animal"] = "human"

        mode = instructor.Mode
        bob = {"name": "bob", "age": 7, "kind": "human"}
        for mode, expected in ((mode.TOOLS, None), (mode.TOOLS_STRICT, None), (mode.JSON, bob), (mode.JSON_SCHEMA, bob)):
            asked = self.asked(response_model=Person)
            parsed, raw = self.client(mode).create_with_completion(**asked)
            self.assertIsInstance(parsed, Person, mode)
            self.assertEqual(parsed.model_dump(), expected or parsed.model_dump(), mode)
            self.assertEqual((raw.model, raw.choices[0].finish_reason), ("json", "stop"), mode)
            self.assertEqual(raw.usage.total_tokens, raw.usage.prompt_tokens + raw.usage.completion_tokens)
            streamed = list(self.client(mode).create_partial(**asked))
            self.assertEqual(streamed[-1].model_dump(), parsed.model_dump(), mode)
            again = asyncio.run(self.client(mode, openai.AsyncOpenAI).create(**asked))
            self.assertEqual(again.model_dump(), parsed.model_dump(), mode)

    def test_errors(self):
        with self.assertRaises(InstructorRetryException) as unknown:
            self.client(instructor.Mode.JSON).create(**self.asked(response_model=bool, model="unknown"))
        self.assertIn("404", str(unknown.exception))


if __name__ == "__main__":
    serving.use_clients("instructor")
    import instructor
    import openai
    import pydantic
    from instructor.core.exceptions import InstructorRetryException
    serving.run_tests()
