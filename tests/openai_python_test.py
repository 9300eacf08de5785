#!/usr/bin/env python3
"""The official OpenAI Python client, unmodified, against the program. tests/clients/install.sh installs the client; this
file runs itself again with the Python that has it.

Usage: openai_python_test.py PATH_OF_LORAMUX
"""
import array
import asyncio
import concurrent.futures
import enum
import unittest
from typing import Optional

import serving
from serving import Server, questions



def client_for(server, kind, **options):
    return kind(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0, timeout=300, **options)


def ask(prompt):
    return [{"role": "user", "content": prompt}]


class OpenAiPython(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--sse-keepalive", "0.001",
                            "--tool-call-parser", "hermes")
        cls.client = client_for(cls.server, openai.OpenAI)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.stop()

    def answer(self, model, prompt, **more):
        return self.client.chat.completions.create(model=model, messages=ask(prompt), temperature=0, max_tokens=100,
                                                   **more)

    def test_models(self):
        models = {model.id: model for model in self.client.models.list()}
        self.assertEqual(set(models), {model for model, _, _ in questions(1)})
        self.assertEqual(self.client.models.retrieve("reverse").id, "reverse")
        self.assertEqual(models["reverse"].object, "model")

    def test_embeddings(self):
        texts = ["hello", "the quick brown fox", "hello"]
        def embed(model, given, **more):
            answer = self.client.embeddings.create(model=model, input=given, **more)
            self.assertEqual((answer.object, answer.model), ("list", model))
            self.assertEqual([one.index for one in answer.data], list(range(len(answer.data))))
            self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens)
            return [array.array("f", one.embedding) for one in answer.data]
        as_floats = embed("demo", texts, encoding_format="float")
        self.assertEqual(embed("demo", texts), as_floats)   # the client asks for base64
        self.assertEqual(as_floats[0], as_floats[2])
        self.assertNotEqual(as_floats[0], as_floats[1])
        for vector in as_floats:
            self.assertAlmostEqual(sum(value * value for value in vector), 1, places=5)
        self.assertEqual(embed("demo", texts[1], encoding_format="float"), [as_floats[1]])
        self.assertEqual(embed("demo", texts[1], dimensions=len(as_floats[1])), [as_floats[1]])
        of_adapters = [embed(model, "hello")[0] for model in ("demo", "upper", "reverse")]
        self.assertEqual(len({vector.tobytes() for vector in of_adapters}), 3)
        with self.assertRaisesRegex(openai.BadRequestError, "dimensions"):
            embed("demo", "hello", dimensions=3)
        with self.assertRaisesRegex(openai.NotFoundError, "unknown"):
            embed("unknown", "hello")

    def test_embeddings_of_token_ids(self):
        def embed(given, **more):
            return [one.embedding for one in
                    self.client.embeddings.create(model="upper", input=given, extra_body=more).data]
        ids = [3, 60, 61, 62]
        one_by_one = [embed(ids)[0], embed(ids[:2])[0]]
        self.assertEqual(embed([ids, ids[:2]]), one_by_one)
        self.assertEqual(embed(ids, truncate_prompt_tokens=2), one_by_one[1:])
        with self.assertRaisesRegex(openai.BadRequestError, "input"):
            embed([])
        with self.assertRaisesRegex(openai.BadRequestError, r"context length .* tokens. However, you sent 100000"):
            embed([5] * 100000)

    def test_the_operator_chooses_the_pooling(self):
        server = Server("--device-memory", "64MiB", "--pooling", "mean")
        self.addCleanup(server.stop)
        mean = client_for(server, openai.OpenAI)
        self.addCleanup(mean.close)
        def embed(client, given):
            return client.embeddings.create(model="upper", input=given, extra_body={"normalize": False}).data[0].embedding
        self.assertEqual(embed(mean, [60]), embed(self.client, [60]))   # of one token
        ids = [60, 61, 62, 63]
        hidden = [embed(self.client, ids[:length]) for length in range(1, len(ids) + 1)]
        for value, column in zip(embed(mean, ids), zip(*hidden)):
            self.assertAlmostEqual(value, sum(column) / len(ids), places=5)

    def test_embeddings_beside_chats_are_the_same_bits(self):
        texts = [prompt for _, prompt, _ in questions(2)]
        def embed(given):
            return [one.embedding for one in self.client.embeddings.create(model="upper", input=given).data]
        alone = [embed(text)[0] for text in texts]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            chats = [pool.submit(self.answer, model, prompt) for model, prompt, _ in questions(2)]
            together = embed(texts)
            for chat, question in zip(chats, questions(2)):
                self.assertEqual(chat.result().choices[0].message.content, self.expected(*question))
        self.assertEqual(together, alone)

    def test_chat_answers_with_each_adapter(self):
        for model, prompt, expected in questions(1):
            answer = self.answer(model, prompt)
            self.assertEqual(answer.choices[0].message.content, expected, (model, prompt))
            self.assertEqual((answer.model, answer.object), (model, "chat.completion"))
            self.assertEqual(answer.choices[0].message.role, "assistant")
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            self.assertIsNone(answer.choices[0].message.refusal)
            self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
            self.assertIn(answer.usage.prompt_tokens_details.cached_tokens, range(answer.usage.prompt_tokens))

    def test_content_parts_and_fields_that_are_accepted(self):
        answer = self.client.chat.completions.create(
            model="reverse", messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}], temperature=0,
            max_completion_tokens=50, user="u", metadata={"k": "v"}, store=False, service_tier="auto",
            parallel_tool_calls=True, response_format={"type": "text"}, tool_choice="none", stop=None, logit_bias=None,
            extra_body={"top_k": 1, "min_p": 0.0, "no_such_field": {"x": [1]}})
        self.assertEqual(answer.choices[0].message.content, "olleh")

    def test_stream_with_usage(self):
        for model, prompt, expected in questions(1):
            stream = self.answer(model, prompt, stream=True, stream_options={"include_usage": True})
            chunks = list(stream)
            self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            self.assertEqual(text, expected, (model, prompt))
            self.assertEqual(chunks[-1].choices, [])
            self.assertGreater(chunks[-1].usage.completion_tokens, 0)
            self.assertTrue(all(chunk.usage is None for chunk in chunks[:-1]))
            self.assertEqual({chunk.model for chunk in chunks}, {model})
            self.assertEqual(chunks[-2].choices[0].finish_reason, "stop")

    def test_stream_helper(self):
        with self.client.chat.completions.stream(model="upper", messages=ask("hello"), temperature=0) as stream:
            events = list(stream)
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.content, "HELLO")
        self.assertEqual("".join(event.delta for event in events if event.type == "content.delta"), "HELLO")

    def test_completions(self):
        prompt = "<|bos|><|user|>%s<|end|><|assistant|>"
        answer = self.client.completions.create(model="reverse", prompt=[prompt % "duxe", prompt % "hello"], n=2,
                                                temperature=0, max_tokens=20, logprobs=2,
                                                extra_body={"add_special_tokens": False})
        self.assertEqual([c.text for c in answer.choices], ["exud", "exud", "olleh", "olleh"])
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        first = answer.choices[0]
        self.assertEqual(first.finish_reason, "stop")
        self.assertEqual("".join(first.logprobs.tokens)[:4], "exud")
        self.assertEqual(len(first.logprobs.token_logprobs), len(first.logprobs.text_offset))
        texts = ["", ""]
        for chunk in self.client.completions.create(model="reverse", prompt=[prompt % "duxe", prompt % "hello"],
                                                    temperature=0, max_tokens=20, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        self.assertEqual(texts, ["exud", "olleh"])

    def test_choices_and_seed(self):
        def sample(seed):
            answer = self.client.chat.completions.create(model="demo", messages=ask("hello"), temperature=2, n=3,
                                                         seed=seed, max_tokens=12, extra_body={"ignore_eos": True})
            return [choice.message.content for choice in answer.choices]
        self.assertEqual(sample(5), sample(5))
        self.assertGreater(len(set(sample(5) + sample(6))), 1)

    def test_logprobs_and_stop(self):
        choice = self.answer("upper", "hello", logprobs=True, top_logprobs=3, stop=["L"]).choices[0]
        self.assertEqual(choice.message.content, "HE")
        self.assertEqual(choice.finish_reason, "stop")
        for token in choice.logprobs.content:
            self.assertEqual(bytes(token.bytes).decode(), token.token)
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].logprob, token.logprob)   # temperature 0 takes the likeliest

    def test_length(self):
        choice = self.answer("upper", "hello", max_completion_tokens=2).choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), ("HE", "length"))

    def test_errors_have_their_classes(self):
        with self.assertRaises(openai.NotFoundError) as unknown:
            self.answer("unknown", "x")
        self.assertEqual(unknown.exception.param, "model")
        self.assertEqual(unknown.exception.body["message"], "The model `unknown` does not exist.")
        self.assertEqual((unknown.exception.status_code, unknown.exception.type), (404, "NotFoundError"))
        self.assertEqual(str(unknown.exception.code), "404")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("unknown")
        with self.assertRaises(openai.BadRequestError) as hot:
            self.answer("demo", "x", top_p=7)
        self.assertEqual((hot.exception.param, hot.exception.status_code), ("top_p", 400))
        with self.assertRaises(openai.BadRequestError) as refused:
            self.answer("demo", "x", extra_body={"bad_words": ["x"]})
        self.assertIn("support", refused.exception.body["message"])
        with self.assertRaises(openai.NotFoundError):
            self.client.moderations.create(model="demo", input="x")
        with self.assertRaises(openai.NotFoundError):
            self.answer("unknown", "x", stream=True)

    def test_parsed_output(self):
        class Colour(enum.Enum):
            RED = "red"
            BLUE = "blue"

        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            age: int = pydantic.Field(ge=0, le=120)
            favourite: Colour
            nick: Optional[str] = pydantic.Field(max_length=4)
            scores: list[bool] = pydantic.Field(max_length=2)

        answer = self.client.chat.completions.parse(model="demo", messages=ask("who?"), response_format=Person, seed=1,
                                                    max_tokens=800)
        self.assertIsInstance(answer.choices[0].message.parsed, Person)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        with self.client.chat.completions.stream(model="demo", messages=ask("who?"), response_format=Person, seed=1,
                                                 max_tokens=800) as stream:
            streamed = stream.get_final_completion()
        self.assertEqual(streamed.choices[0].message.parsed, answer.choices[0].message.parsed)

    def test_tools(self):
        class Weather(pydantic.BaseModel):
            city: str
        call = '<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>'
        more = {"tools": [openai.pydantic_function_tool(Weather, name="weather")],
                "extra_body": {"structured_outputs": {"choice": [call]}}}
        choice = self.answer("demo", "x", **more).choices[0]
        self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
        self.assertEqual(choice.message.tool_calls[0].function.name, "weather")
        parsed = self.client.chat.completions.parse(model="demo", messages=ask("x"), max_tokens=100, **more)
        self.assertEqual(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, Weather(city="Bern"))
        with self.client.chat.completions.stream(model="demo", messages=ask("x"), max_tokens=100, **more) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion().choices[0]
        self.assertIn("tool_calls.function.arguments.delta", kinds)
        self.assertEqual(final.finish_reason, "tool_calls")
        self.assertEqual(final.message.tool_calls[0].function.parsed_arguments, Weather(city="Bern"))

    def test_raw_response(self):
        raw = self.client.chat.completions.with_raw_response.create(model="swap", messages=ask("hello"), max_tokens=5)
        self.assertEqual(raw.status_code, 200)
        self.assertEqual(raw.headers["content-type"], "application/json")
        self.assertEqual(raw.parse().model, "swap")
        with self.client.chat.completions.with_streaming_response.create(
                model="swap", messages=ask("hello"), max_tokens=5, stream=True) as streamed:
            self.assertTrue(streamed.headers["content-type"].startswith("text/event-stream"))
            self.assertTrue(any(line == "data: [DONE]" for line in streamed.iter_lines()))

    def test_leaving_a_stream_frees_the_request(self):
        stream = self.client.chat.completions.create(model="count", messages=ask("hello"), stream=True, max_tokens=900,
                                                     extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.server.wait_idle()

    def test_a_timeout_frees_the_request(self):
        hurried = self.client.with_options(timeout=0.3)
        with self.assertRaises(openai.APITimeoutError):
            hurried.chat.completions.create(model="count", messages=ask("hello"), max_tokens=900, n=128, temperature=1,
                                            extra_body={"ignore_eos": True})
        self.server.wait_idle()

    def test_many_adapters_at_once(self):
        async def one(client, model, prompt, stream):
            answer = await client.chat.completions.create(model=model, messages=ask(prompt), temperature=0,
                                                          max_tokens=100, stream=stream)
            if not stream:
                return answer.choices[0].message.content
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

        async def everything():
            client = client_for(self.server, openai.AsyncOpenAI)
            answers = await asyncio.gather(*(one(client, model, prompt, i % 2 == 0)
                                             for i, (model, prompt, _) in enumerate(questions(4))))
            await client.close()
            return answers
        expected = [self.expected(*question) for question in questions(4)]
        self.assertEqual(asyncio.run(everything()), expected)

    def expected(self, model, prompt, answer):
        """The answer that the server gives to this question alone. The demo's adapters are not right every time."""
        return self.server.chat(model, prompt)[1]["choices"][0]["message"]["content"]


if __name__ == "__main__":
    serving.use_clients("python")
    import openai
    import pydantic
    serving.run_tests()
