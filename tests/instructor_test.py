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

    def person(self):
        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            age: int = pydantic.Field(ge=0, le=120)
            kind: Literal["human", "animal"] = "human"
        return Person

    def asked(self, person, **more):
        return {"model": "json", "messages": BOB, "temperature": 0, "max_tokens": 800, "max_retries": 0,
                "response_model": person, **more}

    def test_modes(self):
        person = self.person()
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
            client = self.client(mode)
            parsed, raw = client.create_with_completion(**self.asked(person))
            self.assertIn(raw.choices[0].finish_reason, ('stop', 'tool_calls'), mode)
            self.assertIsInstance(parsed, person, mode)
            streamed = list(client.create_partial(**self.asked(person)))
            self.assertEqual(streamed[-1].model_dump(), parsed.model_dump(), mode)
            again = asyncio.run(self.client(mode, openai.AsyncOpenAI).create(**self.asked(person)))
            self.assertEqual(again.model_dump(), parsed.model_dump(), mode)


if __name__ == "__main__":
    serving.use_clients("instructor")
    import instructor
    import openai
    import pydantic
    serving.run_tests()
