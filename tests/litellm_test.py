#!/usr/bin/env python3
"""LiteLLM, unmodified, against the program: its proxy in front of the server, asked by the clients of OpenAI and Anthropic,
and its own `completion`. tests/clients/install.sh installs it; this file runs itself again with the Python that has it.

Usage: litellm_test.py PATH_OF_LORAMUX
"""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import serving
from serving import DOUBLE_21, TOOLS_TEMPLATE, Server, questions

KEY = "the-key-of-the-server"
PROXY_KEY = "sk-the-key-of-the-proxy"   # the proxy wants the "sk-"
BOB = "name=bob age=7"   # the adapter "json" answers with an object of both
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": False}
DOUBLE = {"type": "object", "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["number"], "additionalProperties": False}
UNEQUAL = ("id", "created", "cached_tokens")   # fields that differ between two answers to one question


def user(text):
    return [{"role": "user", "content": text}]


def plain(answer):
    """An answer of a client as JSON, without what differs from answer to answer and without empty fields: the proxy names
    some fields that the server leaves out, and the other way round. It puts fields that are not OpenAI's into a box."""
    def filled(value):
        if isinstance(value, dict):
            pairs = [(key, filled(item)) for key, item in {**value, **(value.get("provider_specific_fields") or {})}.items()
                     if key not in (*UNEQUAL, "provider_specific_fields")]
            return {key: item for key, item in pairs if item not in (None, {}, [])}
        return [filled(item) for item in value] if isinstance(value, list) else value
    return filled(answer.model_dump())


class Proxy(Server):
    """`litellm` with a configuration, on a free port, until `stop`."""
    READY = r"Uvicorn running on http://[\d.]+:(\d+)"

    def __init__(self, folder, models):
        config = pathlib.Path(folder) / "config.yaml"
        config.write_text(json.dumps({   # JSON is YAML
            "model_list": models, "general_settings": {"master_key": PROXY_KEY},
            "litellm_settings": {"num_retries": 0, "request_timeout": serving.PATIENCE},
            "router_settings": {"num_retries": 0, "disable_cooldowns": True}}), encoding="utf-8")
        self.start([str(pathlib.Path(sys.prefix) / "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", "0"],
                   stdout=subprocess.DEVNULL, cwd=folder)


class LiteLlm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--tool-call-parser", "llama3_json",
                            "--chat-template", TOOLS_TEMPLATE, "--api-key", KEY)
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


class ThroughTheProxy(LiteLlm):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        openai_api = {"api_base": cls.url + "/v1", "api_key": KEY}
        names = [name for name, _, _ in questions(1)] + ["gone"]
        models = [(name, {"model": f"openai/{name}", **openai_api}) for name in names]
        models += [("locked", {"model": "openai/upper", **openai_api, "api_key": "another-key"}),
                   ("upper-of-vllm", {"model": "hosted_vllm/upper", **openai_api}),
                   ("upper-of-anthropic", {"model": "anthropic/upper", "api_base": cls.url, "api_key": KEY})]
        cls.folder = tempfile.TemporaryDirectory()
        cls.proxy = Proxy(cls.folder.name, [{"model_name": name, "litellm_params": params} for name, params in models])

    @classmethod
    def tearDownClass(cls):
        cls.proxy.process.kill()
        cls.proxy.process.wait()
        cls.proxy.log.close()
        cls.folder.cleanup()
        super().tearDownClass()

    def setUp(self):
        self.proxied = self.client(self.proxy, PROXY_KEY)
        self.direct = self.client(self.server, KEY)

    def client(self, server, key, kind=None):
        more = {"base_url": f"http://127.0.0.1:{server.port}" + ("" if kind else "/v1"), "api_key": key}
        client = (kind or openai.OpenAI)(max_retries=0, timeout=serving.PATIENCE, **more)
        self.addCleanup(client.close)
        return client

    def chat(self, model, prompt, **more):
        """The proxy's answer, which must be the server's."""
        asked = {"model": model, "messages": user(prompt) if isinstance(prompt, str) else prompt, "temperature": 0,
                 "max_tokens": 400, **more}
        proxied, direct = (client.chat.completions.create(**asked) for client in (self.proxied, self.direct))
        self.assertEqual(plain(proxied), plain(direct))
        return proxied

    def streamed(self, **asked):
        """The content, the arguments of the call, the reason of the end and the usage of the proxy's stream."""
        text, arguments, reason, usage = "", "", None, None
        for piece in self.proxied.chat.completions.create(stream=True, stream_options={"include_usage": True}, temperature=0,
                                                          max_tokens=400, **asked):
            usage = piece.usage or usage
            for choice in piece.choices:
                text += choice.delta.content or ""
                arguments += "".join(call.function.arguments or "" for call in choice.delta.tool_calls or ())
                reason = choice.finish_reason or reason
        return text, arguments, reason, usage

    def test_each_adapter_answers(self):
        for model, prompt, expected in questions(1):
            answer = self.chat(model, prompt)
            self.assertEqual((answer.choices[0].message.content, answer.model), (expected, model))
            text, _, reason, usage = self.streamed(model=model, messages=user(prompt))
            self.assertEqual((text, reason), (expected, "stop"))
            self.assertEqual((usage.prompt_tokens, usage.completion_tokens),
                             (answer.usage.prompt_tokens, answer.usage.completion_tokens))

    def test_other_providers(self):
        for model in ("upper-of-vllm", "upper-of-anthropic"):
            answer = self.proxied.chat.completions.create(model=model, messages=user("hello"), temperature=0, max_tokens=50)
            self.assertEqual((answer.choices[0].message.content, answer.choices[0].finish_reason), ("HELLO", "stop"))
            self.assertEqual(self.streamed(model=model, messages=user("hello"))[:3], ("HELLO", "", "stop"))

    def test_fields(self):
        answer = self.chat("upper", "hello", logprobs=True, top_logprobs=2, n=2, seed=1)
        self.assertEqual([len(choice.logprobs.content[0].top_logprobs) for choice in answer.choices], [2, 2])
        self.assertEqual(self.chat("upper", "hello", stop=["L"]).choices[0].message.content, "HE")
        self.assertEqual(self.chat("upper", "hello", logit_bias={"0": 1}, max_tokens=2).choices[0].finish_reason, "length")
        # A field of vLLM, which LiteLLM does not know.
        answer = self.chat("upper", "hello", extra_body={"structured_outputs": {"choice": ["left", "right"]}})
        self.assertIn(answer.choices[0].message.content, ("left", "right"))

    def test_structured_output(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        answer = self.chat("json", BOB, response_format=form)
        self.assertEqual(json.loads(answer.choices[0].message.content), {"name": "bob", "age": 7})
        self.assertEqual(self.streamed(model="json", messages=user(BOB), response_format=form)[0],
                         answer.choices[0].message.content)
        # The base model writes no JSON by itself.
        self.assertEqual(set(json.loads(self.chat("demo", "who?", response_format=form).choices[0].message.content)),
                         {"name", "age"})

    def test_tools(self):
        tools = [{"type": "function", "function": {"name": "double", "parameters": DOUBLE}}]
        message = self.chat("demo", DOUBLE_21, tools=tools).choices[0].message
        call, = message.tool_calls
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("double", {"number": 21}))
        _, arguments, reason, _ = self.streamed(model="demo", messages=user(DOUBLE_21), tools=tools)
        self.assertEqual((json.loads(arguments), reason), ({"number": 21}, "tool_calls"))
        result = {"role": "tool", "tool_call_id": call.id, "content": "42"}
        last = self.chat("demo", [*user(DOUBLE_21), message.model_dump(exclude_none=True), result], tools=tools)
        self.assertEqual(last.choices[0].message.content, "42")
        must = self.chat("demo", "x", tools=tools, tool_choice="required").choices[0].message
        self.assertEqual(must.tool_calls[0].function.name, "double")

    def test_completions_and_responses(self):
        asked = {"model": "upper", "prompt": "<|bos|><|user|>hello<|end|><|assistant|>", "temperature": 0, "max_tokens": 50}
        proxied, direct = (client.completions.create(**asked) for client in (self.proxied, self.direct))
        self.assertEqual((proxied.choices[0].text, proxied.usage.total_tokens), ("HELLO", direct.usage.total_tokens))
        pieces = self.proxied.completions.create(stream=True, **asked)
        self.assertEqual("".join(choice.text or "" for piece in pieces for choice in piece.choices), "HELLO")
        asked = {"model": "upper", "input": "hello", "temperature": 0}
        self.assertEqual(self.proxied.responses.create(**asked).output_text, "HELLO")
        events = list(self.proxied.responses.create(stream=True, **asked))
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"), "HELLO")
        self.assertEqual(events[-1].response.output_text, "HELLO")

    def test_embeddings(self):
        vectors = {}
        for model in ("demo", "upper"):
            asked = {"model": model, "input": ["hello", "world"]}
            proxied, direct = (client.embeddings.create(**asked) for client in (self.proxied, self.direct))
            vectors[model] = [one.embedding for one in proxied.data]
            self.assertEqual(vectors[model], [one.embedding for one in direct.data])
            self.assertEqual(proxied.usage.prompt_tokens, direct.usage.prompt_tokens)
        self.assertNotEqual(vectors["demo"], vectors["upper"])

    def tokens(self, usage):
        """Those of the prompt, cached or not, and those of the answer."""
        return usage.input_tokens + (usage.cache_read_input_tokens or 0), usage.output_tokens

    def test_messages(self):
        tools = [{"name": "double", "input_schema": DOUBLE}]
        direct = self.client(self.server, KEY, anthropic.Anthropic)
        proxied = self.client(self.proxy, PROXY_KEY, anthropic.Anthropic)
        asked = {"max_tokens": 400, "messages": user("hello"), "extra_body": {"temperature": 0}}
        expected = direct.messages.create(model="upper", **asked)
        self.assertEqual(expected.content[0].text, "HELLO")
        for model in ("upper", "upper-of-vllm", "upper-of-anthropic"):
            answer = proxied.messages.create(model=model, **asked)
            self.assertEqual((answer.content[0].text, answer.stop_reason), (expected.content[0].text, expected.stop_reason))
            self.assertEqual(self.tokens(answer.usage), self.tokens(expected.usage))
            with proxied.messages.stream(model=model, **asked) as stream:
                self.assertEqual("".join(stream.text_stream), "HELLO")
            call = proxied.messages.create(model=model, tools=tools, tool_choice={"type": "any"}, **asked).content[0]
            self.assertEqual((call.type, call.name, list(call.input)), ("tool_use", "double", ["number"]))

    def test_errors_and_keys(self):
        def refused(kind, client, model="upper", **more):
            for stream in (False, True):
                with self.assertRaises(kind) as error:
                    list(client.chat.completions.create(model=model, messages=user("x"), stream=stream, **more))
            return error.exception

        self.assertIn("The model `gone` does not exist", refused(openai.NotFoundError, self.proxied, "gone").message)
        self.assertIn("Invalid model name", refused(openai.BadRequestError, self.proxied, "not-configured").message)
        self.assertIn("top_p", refused(openai.BadRequestError, self.proxied, top_p=7).message)
        self.assertIn("Incorrect API key", refused(openai.AuthenticationError, self.proxied, "locked").message)
        # The server does not know the proxy's key, so it is the configured key that reaches the server.
        refused(openai.AuthenticationError, self.client(self.server, PROXY_KEY))


class Completion(LiteLlm):
    def asked(self, model, prompt, **more):
        base = self.url if model.startswith("anthropic/") else self.url + "/v1"
        return {"model": model, "messages": user(prompt), "temperature": 0, "max_tokens": 400, "api_base": base, "api_key": KEY,
                "num_retries": 0, "timeout": serving.PATIENCE, **more}

    def test_each_adapter_answers(self):
        for name, prompt, expected in questions(1):
            for provider in ("openai", "hosted_vllm", "anthropic"):
                asked = self.asked(f"{provider}/{name}", prompt)
                answer = litellm.completion(**asked)
                self.assertEqual((answer.choices[0].message.content, answer.choices[0].finish_reason), (expected, "stop"),
                                 (provider, name))
                self.assertGreater(answer.usage.completion_tokens, 0)
                streamed = litellm.stream_chunk_builder(list(litellm.completion(stream=True, **asked)))
                self.assertEqual(streamed.choices[0].message.content, expected, (provider, name))
            again = asyncio.run(litellm.acompletion(**self.asked(f"openai/{name}", prompt)))
            self.assertEqual(again.choices[0].message.content, expected)

    def test_structured_output(self):
        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            age: int = pydantic.Field(ge=0, le=120)

        for provider in ("openai", "hosted_vllm"):
            answer = litellm.completion(**self.asked(f"{provider}/json", BOB, response_format=Person))
            self.assertEqual(Person.model_validate_json(answer.choices[0].message.content), Person(name="bob", age=7))

    def test_tools(self):
        tools = [{"type": "function", "function": {"name": "double", "parameters": DOUBLE}}]
        for provider in ("openai", "hosted_vllm", "anthropic"):
            asked = self.asked(f"{provider}/demo", DOUBLE_21, tools=tools)
            call, = litellm.completion(**asked).choices[0].message.tool_calls
            self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("double", {"number": 21}), provider)
            streamed = litellm.stream_chunk_builder(list(litellm.completion(stream=True, **asked)))
            call, = streamed.choices[0].message.tool_calls
            self.assertEqual(json.loads(call.function.arguments), {"number": 21}, provider)

    def test_embedding(self):
        answer = litellm.embedding(model="openai/upper", input=["hello"], api_base=self.url + "/v1", api_key=KEY)
        self.assertGreater(len(answer.data[0]["embedding"]), 0)

    def test_errors(self):
        with self.assertRaises(litellm.NotFoundError):
            litellm.completion(**self.asked("openai/gone", "x"))
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(**self.asked("openai/upper", "x", api_key="another-key"))
        with self.assertRaises(litellm.BadRequestError):
            litellm.completion(**self.asked("openai/upper", "x", top_p=7))


if __name__ == "__main__":
    serving.use_clients("litellm")
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"   # it has a table of prices, and fetches no newer one
    import anthropic
    import litellm
    import openai
    import pydantic
    litellm.suppress_debug_info = True
    serving.run_tests()
