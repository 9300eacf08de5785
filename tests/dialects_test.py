#!/usr/bin/env python3
"""The clients of other APIs, unmodified, against the program: OpenAI's Responses API, Anthropic's messages, and Text
Generation Inference. tests/clients/install.sh installs them; this file runs itself again with the Python that has them.

Usage: dialects_test.py PATH_OF_LORAMUX
"""
import json
import unittest

import serving
from serving import Server, questions

GREEDY = {"temperature": 0}   # the newest client has no argument for it
PROMPT = "<|bos|><|user|>%s<|end|><|assistant|>"   # as the demo's template writes it


class Dialects(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--sse-keepalive", "0.001",
                            "--tool-call-parser", "hermes")
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


# The demo model calls no tools by itself: tool_choice makes it.
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Bern"]}}, "required": ["city"],
           "additionalProperties": False}


class OpenAiResponses(Dialects):
    def setUp(self):
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="unused", max_retries=0, timeout=300)
        self.addCleanup(self.client.close)

    def test_each_adapter_answers(self):
        for model, prompt, expected in questions(1):
            answer = self.client.responses.create(model=model, input=prompt, temperature=0, max_output_tokens=100,
                                                  metadata={"k": "v"}, store=False)
            self.assertEqual(answer.output_text, expected, (model, prompt))
            self.assertEqual((answer.status, answer.model, answer.metadata), ("completed", model, {"k": "v"}))
            self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)

    def test_items_and_logprobs(self):
        answer = self.client.responses.create(
            model="upper", temperature=0, max_output_tokens=2, include=["message.output_text.logprobs"], top_logprobs=2,
            input=[{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}])
        self.assertEqual((answer.output_text, answer.status), ("HE", "incomplete"))
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")
        logprobs = answer.output[0].content[0].logprobs
        self.assertEqual("".join(token.token for token in logprobs), "HE")
        self.assertEqual(len(logprobs[0].top_logprobs), 2)

    def test_stream(self):
        events = list(self.client.responses.create(model="upper", input="hello", temperature=0, stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        types = [event.type for event in events]
        self.assertEqual(types[:4], ["response.created", "response.in_progress", "response.output_item.added",
                                     "response.content_part.added"])
        self.assertEqual(types[-1], "response.completed")
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"), "HELLO")
        self.assertEqual(events[-1].response.output_text, "HELLO")

    def test_stream_helper(self):
        with self.client.responses.stream(model="reverse", input="hello", temperature=0) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            self.assertEqual((text, stream.get_final_response().output_text), ("olleh", "olleh"))

    def test_structured_output(self):
        schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
                  "additionalProperties": False}
        answer = self.client.responses.create(
            model="json", input="hello", temperature=0, max_output_tokens=200,
            text={"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}})
        self.assertIn(json.loads(answer.output_text)["a"], ("x", "y"))

    def test_tools(self):
        more = {"tools": [{"type": "function", "name": "weather", "parameters": WEATHER}], "tool_choice": "required",
                "temperature": 0, "max_output_tokens": 200}
        call = self.client.responses.create(model="demo", input="x", **more).output[0]
        self.assertEqual((call.type, call.name, json.loads(call.arguments)), ("function_call", "weather", {"city": "Bern"}))
        events = list(self.client.responses.create(model="demo", input="x", stream=True, **more))
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        self.assertEqual("".join(pieces), call.arguments)
        self.assertEqual(events[-1].response.output[0].arguments, call.arguments)
        # The result reaches the chat template, which here knows no tools.
        with self.assertRaisesRegex(openai.BadRequestError, "Unknown role: tool"):
            self.client.responses.create(model="demo", input=[
                {"role": "user", "content": "x"}, call.model_dump(exclude_none=True),
                {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}])

    def test_refusals(self):
        for more in ({"previous_response_id": "resp_1"}, {"background": True}, {"conversation": "c"},
                     {"truncation": "auto"}):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.client.responses.create(model="demo", input="x", **more)
            self.assertIn(next(iter(more)), refused.exception.param)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(model="unknown", input="x")

    def test_tools_that_are_no_functions_are_left_out(self):
        raw = self.client.responses.with_raw_response.create(model="demo", input="x", tools=[{"type": "web_search"}])
        self.assertEqual(raw.headers["X-Loramux-Left-Out-Tools"], "web_search")
        self.assertEqual(raw.parse().output[0].type, "message")


class Anthropic(Dialects):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=self.url, api_key="unused", max_retries=0, timeout=300)
        self.addCleanup(self.client.close)

    def ask(self, model, prompt, **more):
        return self.client.messages.create(model=model, max_tokens=100, extra_body=GREEDY,
                                           messages=[{"role": "user", "content": prompt}], **more)

    def test_tools(self):
        more = {"model": "demo", "max_tokens": 200, "extra_body": GREEDY, "tool_choice": {"type": "any"},
                "tools": [{"name": "weather", "input_schema": WEATHER}], "messages": [{"role": "user", "content": "x"}]}
        answer = self.client.messages.create(**more)
        block = answer.content[0]
        self.assertEqual((answer.stop_reason, block.type, block.name, block.input),
                         ("tool_use", "tool_use", "weather", {"city": "Bern"}))
        with self.client.messages.stream(**more) as stream:
            streamed = stream.get_final_message()
        self.assertEqual((streamed.stop_reason, streamed.content[0].input), ("tool_use", {"city": "Bern"}))
        # The result reaches the chat template, which here knows no tools.
        with self.assertRaisesRegex(anthropic.BadRequestError, "Unknown role: tool"):
            self.client.messages.create(model="demo", max_tokens=5, messages=[
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": block.id, "name": "weather", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}]}])

    def test_each_adapter_answers(self):
        for model, prompt, expected in questions(1):
            answer = self.ask(model, prompt)
            self.assertEqual(answer.content[0].text, expected, (model, prompt))
            self.assertEqual((answer.type, answer.role, answer.model), ("message", "assistant", model))
            self.assertEqual((answer.stop_reason, answer.stop_sequence), ("end_turn", None))
            self.assertGreater(answer.usage.output_tokens, 0)

    def test_counts_are_those_of_the_answer(self):
        messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
        count = self.client.messages.count_tokens(model="upper", messages=messages).input_tokens
        usage = self.client.messages.create(model="upper", max_tokens=5, messages=messages).usage
        self.assertEqual(count, usage.input_tokens + usage.cache_read_input_tokens)

    def test_ends(self):
        answer = self.ask("upper", "hello", stop_sequences=["L"])
        self.assertEqual((answer.content[0].text, answer.stop_reason, answer.stop_sequence), ("HE", "stop_sequence", "L"))
        cut = self.client.messages.create(model="upper", max_tokens=2, extra_body=GREEDY,
                                          messages=[{"role": "user", "content": "hello"}])
        self.assertEqual((cut.content[0].text, cut.stop_reason), ("HE", "max_tokens"))

    def test_an_answer_that_the_client_began(self):
        answer = self.client.messages.create(model="upper", max_tokens=20, extra_body=GREEDY, messages=[
            {"role": "user", "content": "hello"}, {"role": "assistant", "content": "HEL"}])
        self.assertEqual(answer.content[0].text, "LO")

    def test_stream(self):
        with self.client.messages.stream(model="reverse", max_tokens=50, extra_body=GREEDY,
                                         messages=[{"role": "user", "content": "hello"}]) as stream:
            self.assertEqual("".join(stream.text_stream), "olleh")
            final = stream.get_final_message()
        self.assertEqual((final.content[0].text, final.stop_reason), ("olleh", "end_turn"))
        self.assertGreater(final.usage.output_tokens, 0)
        events = list(self.client.messages.create(model="reverse", max_tokens=50, extra_body=GREEDY, stream=True,
                                                  messages=[{"role": "user", "content": "hello"}]))
        types = [event.type for event in events if event.type not in ("content_block_delta", "ping")]
        self.assertEqual(types, ["message_start", "content_block_start", "content_block_stop", "message_delta",
                                 "message_stop"])

    def test_errors_have_their_classes(self):
        with self.assertRaises(anthropic.NotFoundError) as unknown:
            self.ask("unknown", "x")
        self.assertEqual(unknown.exception.body["error"]["type"], "not_found_error")
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
        with self.assertRaises(anthropic.BadRequestError) as refused:
            self.ask("demo", [image])
        self.assertIn("messages[0].content[0].type", refused.exception.body["error"]["message"])

    def test_leaving_a_stream_frees_the_request(self):
        stream = self.client.messages.create(model="count", max_tokens=900, stream=True, extra_body={"ignore_eos": True},
                                             messages=[{"role": "user", "content": "hello"}])
        next(iter(stream))
        stream.close()
        self.server.wait_idle()


class TextGenerationInference(Dialects):
    def setUp(self):
        self.client = huggingface_hub.InferenceClient(self.url)

    def test_text(self):
        for model, prompt, expected in questions(1):
            more = {} if model == "demo" else {"adapter_id": model}
            self.assertEqual(self.client.text_generation(PROMPT % prompt, max_new_tokens=100, **more), expected)

    def test_details(self):
        answer = self.client.text_generation(PROMPT % "hello", adapter_id="upper", max_new_tokens=50, details=True)
        self.assertEqual((answer.generated_text, answer.details.finish_reason), ("HELLO", "eos_token"))
        self.assertEqual("".join(token.text for token in answer.details.tokens if not token.special), "HELLO")
        self.assertEqual(answer.details.generated_tokens, len(answer.details.tokens))
        whole = self.client.text_generation(PROMPT % "hello", adapter_id="upper", max_new_tokens=2, return_full_text=True)
        self.assertEqual(whole, PROMPT % "hello" + "HE")

    def test_stream(self):
        answers = list(self.client.text_generation(PROMPT % "hello", adapter_id="reverse", max_new_tokens=50, stream=True,
                                                   details=True))
        self.assertEqual("".join(a.token.text for a in answers if not a.token.special), "olleh")
        self.assertEqual(answers[-1].generated_text, "olleh")
        self.assertEqual(answers[-1].details.finish_reason, "eos_token")
        self.assertEqual([a.index for a in answers], list(range(1, len(answers) + 1)))

    def test_prompt_tokens_and_alternatives(self):
        prompt = PROMPT % "hello"
        plain = self.client.text_generation(prompt, adapter_id="upper", max_new_tokens=4)
        answer = self.client.text_generation(prompt, adapter_id="upper", max_new_tokens=4, details=True,
                                             decoder_input_details=True, top_n_tokens=3)
        self.assertEqual(answer.generated_text, plain)
        ids = self.server.json("POST", "/tokenize", {"prompt": prompt})[1]["tokens"]
        self.assertEqual([token.id for token in answer.details.prefill], ids)
        self.assertIsNone(answer.details.prefill[0].logprob)
        self.assertTrue(all(token.logprob <= 0 for token in answer.details.prefill[1:]))
        self.assertEqual("".join(token.text for token in answer.details.tokens), plain)
        for token, top in zip(answer.details.tokens, answer.details.top_tokens):
            self.assertEqual((token.id, token.logprob, 3), (top[0]["id"], top[0]["logprob"], len(top)))
        streamed = list(self.client.text_generation(prompt, adapter_id="upper", max_new_tokens=4, details=True, stream=True,
                                                    top_n_tokens=3))
        self.assertEqual([event.top_tokens for event in streamed], answer.details.top_tokens)
        cut = self.client.text_generation(prompt, max_new_tokens=1, details=True, decoder_input_details=True, truncate=4)
        self.assertEqual([token.id for token in cut.details.prefill], ids[-4:])

    def test_grammar(self):
        answer = self.client.text_generation(PROMPT % "hello", adapter_id="upper", max_new_tokens=50,
                                             grammar={"type": "regex", "value": "[0-9]{3}"})
        self.assertRegex(answer, "^[0-9]{3}$")

    def test_sampling(self):
        def sample(**more):
            return self.client.text_generation(PROMPT % "hello", max_new_tokens=12, **more)
        self.assertEqual(sample(do_sample=True, temperature=2.0, seed=5), sample(do_sample=True, temperature=2.0, seed=5))
        self.assertEqual(sample(), sample())
        status, body = self.server.json("POST", "/generate", {"inputs": PROMPT % "hello", "parameters": {
            "best_of": 3, "do_sample": True, "temperature": 2.0, "max_new_tokens": 8, "details": True}})
        self.assertEqual((status, len(body["details"]["best_of_sequences"])), (200, 2))

    def test_errors(self):
        with self.assertRaises(huggingface_hub.errors.ValidationError):
            self.client.text_generation(PROMPT % "x", watermark=True)
        status, body = self.server.json("POST", "/generate", {"inputs": "x", "parameters": {"adapter_id": "unknown"}})
        self.assertEqual((status, body["error_type"]), (400, "validation"))

    def test_info(self):
        info = self.server.json("GET", "/info")[1]
        self.assertEqual(info["max_total_tokens"], info["max_input_tokens"] + 1)


if __name__ == "__main__":
    serving.use_clients("python")
    import anthropic
    import huggingface_hub
    import openai
    serving.run_tests()
