#!/usr/bin/env python3
"""The API beyond the basics of the two completion endpoints: /tokenize and /detokenize, probes, usage in streams, the fields
that are served, accepted or refused, and the shape of every error. Standard library only.

Usage: api_test.py PATH_OF_LORAMUX
"""
import http.client
import json
import pathlib
import shutil
import tempfile
import unittest

import serving
from serving import DEMO, PATIENCE, Blocker, Server, questions

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat_body(model="demo", prompt="hello", **more):
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, **more}


def call(server, method, path, body=None, headers=()):
    """(status, headers with lower-case names, body)"""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request(method, path, body, dict(headers))
    response = connection.getresponse()
    answer = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    connection.close()
    return answer


class GenerationConfig(unittest.TestCase):
    """What generation_config.json says of sampling."""

    def serve(self, config, *flags):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for path in (DEMO / "model").iterdir():
            if path.name != "generation_config.json":
                (pathlib.Path(folder.name) / path.name).symlink_to(path)
        (pathlib.Path(folder.name) / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **config}))
        server = Server.run([serving.LORAMUX, "serve", folder.name, "--served-model-name", "demo", "--adapter-dir",
                             str(DEMO / "adapters"), "--port", "0", *flags])
        self.addCleanup(server.process.kill)
        return server

    def test_it_sets_what_requests_do_not_say(self):
        config = {"temperature": 0.0, "max_new_tokens": 9, "top_k": 5}
        server = self.serve(config)
        self.assertIn("generation_config.json sets what requests do not say: temperature 0, top_k 5, max_new_tokens 9",
                      server.text())

        def texts(server, model, **fields):
            body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "n": 16, "ignore_eos": True, **fields}
            status, answer = server.json("POST", CHAT, body)
            self.assertEqual(status, 200, answer)
            return {choice["message"]["content"] for choice in answer["choices"]}, answer["usage"]["completion_tokens"]
        for model in ("demo", "reverse"):
            self.assertEqual(texts(server, model)[1], 16 * 9)
            self.assertEqual(len(texts(server, model)[0]), 1, model)   # greedy
            self.assertEqual(texts(server, model, max_tokens=20)[1], 16 * 9)
            self.assertGreater(len(texts(server, model, temperature=5, top_k=0)[0]), 1)
        server.stop()
        ignored = self.serve(config, "--generation-config", "none")
        self.assertNotIn("generation_config.json sets", ignored.text())
        self.assertEqual(texts(ignored, "demo", max_tokens=20)[1], 16 * 20)
        ignored.stop()
        other = pathlib.Path(tempfile.mkdtemp()) / "other.json"
        self.addCleanup(shutil.rmtree, other.parent)
        other.write_text('{"max_new_tokens": 3}')
        named = self.serve(config, "--generation-config", str(other))
        self.assertEqual(texts(named, "demo", max_tokens=20)[1], 16 * 3)
        named.stop()

    def test_what_is_wrong_in_it_is_said(self):
        for config, flags, words in (({"temperature": -1}, (), "temperature"),
                                     ({}, ("--generation-config", "/nowhere"), "/nowhere")):
            with self.assertRaisesRegex(RuntimeError, f"--generation-config: .*{words}"):
                self.serve(config, *flags)


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--max-body-size", "1MiB")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def post(self, path, body, status=200):
        code, answer = self.server.json("POST", path, body)
        self.assertEqual(code, status, answer)
        return answer

    # ---- Text and tokens ----

    def test_tokenize_counts_what_a_completion_counts(self):
        for model, text in (("demo", "hello"), ("reverse", "né 日本"), ("upper", "")):
            messages = [{"role": "system", "content": "s"}, {"role": "user", "content": text}]
            tokens = self.post("/tokenize", {"model": model, "messages": messages})
            answer = self.post(CHAT, {"model": model, "messages": messages, "max_tokens": 1})
            self.assertEqual(tokens["count"], answer["usage"]["prompt_tokens"])
            self.assertEqual(len(tokens["tokens"]), tokens["count"])
            again = self.post(TEXT, {"model": model, "prompt": tokens["tokens"], "max_tokens": 1, "temperature": 0})
            self.assertEqual(again["usage"]["prompt_tokens"], tokens["count"])
        self.assertEqual(tokens["max_model_len"], json.loads((DEMO / "model/config.json").read_text())
                         ["max_position_embeddings"])

    def test_tokenizer_info(self):
        status, info = self.server.json("GET", "/tokenizer_info")
        config = json.loads((DEMO / "model/tokenizer_config.json").read_text())
        self.assertEqual(status, 200)
        self.assertEqual({name: info[name] for name in config}, config)
        self.assertEqual(info["chat_template"], (DEMO / "model/chat_template.jinja").read_text())

    def test_detokenize_is_the_way_back(self):
        for text in ("hello", "né 日本 \n", ""):
            tokens = self.post("/tokenize", {"model": "swap", "prompt": text, "return_token_strs": True,
                                             "add_special_tokens": False})
            self.assertEqual(len(tokens["token_strs"]), tokens["count"])
            self.assertEqual(self.post("/detokenize", {"model": "swap", "tokens": tokens["tokens"]}), {"prompt": text})
        rendered = self.post("/detokenize", {"tokens": self.post("/tokenize", chat_body())["tokens"]})["prompt"]
        self.assertEqual(rendered, "<|bos|><|user|>hello<|end|><|assistant|>")
        open_ended = self.post("/tokenize", chat_body(add_generation_prompt=False))
        self.assertEqual(self.post("/detokenize", {"tokens": open_ended["tokens"]})["prompt"],
                         "<|bos|><|user|>hello<|end|>")

    def test_tokenize_errors(self):
        for path, body, status, param in [
                ("/tokenize", {"model": "unknown", "prompt": "x"}, 404, "model"), ("/tokenize", {}, 400, "prompt"),
                ("/tokenize", {"prompt": 1}, 400, "prompt"), ("/tokenize", {"messages": []}, 400, "messages"),
                ("/tokenize", {"messages": [{"role": "alien", "content": "x"}]}, 400, "messages"),
                ("/detokenize", {"tokens": [10**9]}, 400, "tokens[0]"), ("/detokenize", {}, 400, "tokens"),
                ("/detokenize", {"tokens": [1, -1]}, 400, "tokens[1]")]:
            error = self.post(path, body, status)["error"]
            self.assertEqual((error["param"], error["code"]), (param, status), error)

    # ---- Probes ----

    def test_probes(self):
        self.assertEqual(self.server.json("GET", "/health")[1]["status"], "ok")
        for method in ("GET", "POST", "HEAD"):
            self.assertEqual(call(self.server, method, "/ping")[0], 200, method)
        self.assertRegex(self.server.json("GET", "/version")[1]["version"], r"^\d+\.\d+\.\d+")
        for path in ("/health", "/v1/models", "/version", "/v1/models/demo"):
            status, headers, body = call(self.server, "HEAD", path)
            self.assertEqual((status, body), (200, b""))
            self.assertEqual(int(headers["content-length"]), len(call(self.server, "GET", path)[2]))
        # Load generators wait for one token of the base model.
        self.assertEqual(self.post(TEXT, {"model": "demo", "prompt": "x", "max_tokens": 1})["model"], "demo")

    def test_model_cards(self):
        card = self.server.json("GET", "/v1/models/reverse")[1]
        self.assertEqual(set(card), {"id", "object", "created", "owned_by", "root", "parent", "max_model_len",
                                     "permission"})
        self.assertEqual((card["parent"], card["root"]), ("demo", str(DEMO / "adapters/reverse")))
        self.assertEqual(card["permission"][0]["object"], "model_permission")
        base = self.server.json("GET", "/v1/models/demo")[1]
        self.assertEqual((base["parent"], base["root"]), (None, str(DEMO / "model")))
        self.assertEqual(self.server.json("GET", "/v1/models/unknown")[1]["error"]["code"], 404)

    # ---- Streams ----

    def test_usage_in_streams(self):
        def usages(options):
            body = chat_body(prompt="hello", stream_options=options) if options else chat_body(prompt="hello")
            return [event.get("usage", "absent") for event in self.server.stream(CHAT, body)]
        self.assertEqual(set(usages(None)), {"absent"})
        last = usages({"include_usage": True})
        self.assertEqual(set(map(str, last[:-1])), {"None"})
        each = usages({"include_usage": True, "continuous_usage_stats": True})
        counts = [usage["completion_tokens"] for usage in each]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(each[-1], last[-1])
        self.assertEqual(set(each[-1]["prompt_tokens_details"]), {"cached_tokens"})
        self.assertIn(each[-1]["prompt_tokens_details"]["cached_tokens"], range(each[-1]["prompt_tokens"]))   # it was asked before
        self.assertEqual(each[-1]["total_tokens"], each[-1]["prompt_tokens"] + each[-1]["completion_tokens"])

    def test_a_silent_stream_is_kept_alive(self):
        server = Server("--sse-keepalive", "0.001", "--max-num-seqs", "1")
        body = {"model": "demo", "prompt": "x" * 90, "max_tokens": 2, "stream": True, "ignore_eos": True}
        blocker = Blocker(server)   # the stream is silent for as long as this holds the server's only seat
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        connection.request("POST", TEXT, json.dumps(body))
        response = connection.getresponse()
        first = response.readline()
        blocker.release()
        answer = first + response.read()
        connection.close()
        refused, _ = server.request("POST", TEXT, {**body, "model": "unknown"})
        server.stop()
        parts = [part for part in answer.decode().split("\n\n") if part]
        self.assertEqual((response.status, refused), (200, 404))
        self.assertEqual(parts[0], ": keep-alive")
        self.assertTrue(all(part == ": keep-alive" or part.startswith("data: ") for part in parts), parts)
        self.assertEqual(parts[-1], "data: [DONE]")
        for event in self.server.stream(TEXT, body):   # off by default
            self.assertEqual(event["object"], "text_completion")

    # ---- Cross-origin requests ----

    def test_cors_is_off_by_default(self):
        origin = {"Origin": "https://chat.example.com", "Access-Control-Request-Method": "POST"}
        for method, path in (("OPTIONS", CHAT), ("GET", "/v1/models")):
            headers = call(self.server, method, path, None, origin)[1]
            self.assertFalse([name for name in headers if name.startswith("access-control")], headers)

    def test_cors(self):
        server = Server("--allowed-origins", "https://chat.example.com,http://localhost:3000")
        for origin in ("https://chat.example.com", "http://localhost:3000"):
            status, headers, _ = call(server, "OPTIONS", CHAT, None, {
                "Origin": origin, "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, content-type"})
            self.assertEqual(status, 204)
            self.assertEqual(headers["access-control-allow-origin"], origin)
            self.assertIn("POST", headers["access-control-allow-methods"])
            self.assertEqual(headers["access-control-allow-headers"], "authorization, content-type")
            for body, expected in ((chat_body(), 200), (chat_body(stream=True), 200), (chat_body(model="unknown"), 404)):
                status, headers, _ = call(server, "POST", CHAT, json.dumps(body), {"Origin": origin})
                self.assertEqual((status, headers["access-control-allow-origin"]), (expected, origin))
        for origin in ("https://evil.example", "https://chat.example.com.evil.example", "null"):
            for method, path in (("OPTIONS", CHAT), ("GET", "/v1/models")):
                headers = call(server, method, path, None, {"Origin": origin})[1]
                self.assertNotIn("access-control-allow-origin", headers)
                self.assertEqual(headers["vary"], "Origin")
        server.stop()

    # ---- Fields ----

    def test_fields_that_are_accepted(self):
        plain = self.post(CHAT, chat_body())["choices"][0]["message"]
        for more in (
                {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "s"},
                {"parallel_tool_calls": False, "reasoning_effort": "low", "verbosity": "low", "modalities": ["text"]},
                {"tools": [], "tool_choice": "auto", "functions": [], "function_call": "none", "response_format": None},
                {"best_of": 1, "logit_bias": {}, "stop": [], "top_logprobs": None, "stream_options": None},
                {"priority": 0, "request_id": "r", "no_such_field": [{"deep": [1]}], "top_k": -1, "min_p": 0},
                {"temperature": 0, "top_p": None, "n": None, "seed": None, "max_tokens": None, "stream": None,
                 "max_completion_tokens": None, "presence_penalty": None, "frequency_penalty": None, "logprobs": None,
                 "stop_token_ids": None, "ignore_eos": None, "min_tokens": None, "repetition_penalty": None}):
            self.assertEqual(self.post(CHAT, chat_body(**more))["choices"][0]["message"], plain, more)

    def test_fields_that_are_refused_by_name(self):
        for path, field, value in [
                (CHAT, "guided_whitespace_pattern", " "),
                (CHAT, "functions", [{"name": "f"}]), (CHAT, "function_call", {"name": "f"}), (CHAT, "audio", {"x": 1}),
                (CHAT, "bad_words", ["x"]), (CHAT, "structured_outputs", {"structural_tag": "x"}),
                (CHAT, "allowed_token_ids", [1]), (CHAT, "echo", True),
                (CHAT, "use_beam_search", True),
                (CHAT, "chat_template", "{{x}}"), (CHAT, "best_of", 3), (CHAT, "web_search_options", {"a": 1}),
                (CHAT, "ebnf", "root ::= x"), (CHAT, "format", "json"), (CHAT, "num_beams", 4), (CHAT, "mirostat", 2),
                (CHAT, "no_repeat_ngram_size", 3), (CHAT, "modalities", ["text", "audio"]), (TEXT, "mirostat_eta", 1),
                (CHAT, "return_tokens", True), (CHAT, "max_new_tokens", 3), (TEXT, "repeat_penalty", 1.1),
                (TEXT, "suffix", "x"), (TEXT, "best_of", 2), (TEXT, "prompt_embeds", "AA")]:
            body = chat_body() if path == CHAT else {"model": "demo", "prompt": "x"}
            error = self.post(path, {**body, field: value}, 400)["error"]
            self.assertEqual((error["param"], error["type"]), (field, "BadRequestError"), error)
            self.assertIn("support", error["message"])

    def test_a_misspelt_field_is_named(self):
        for body in ({}, {"stream": True}):
            status, headers, answer = call(self.server, "POST", CHAT,
                                           json.dumps({**chat_body(), "temprature": 0, "topK": 3, "own_field": 1, **body}))
            self.assertEqual(status, 200, answer)
            self.assertEqual(headers["x-loramux-unknown-fields"], "temprature;meant=temperature, topK;meant=top_k")
        self.assertIn("unknown field `temprature`", self.server.text())
        self.assertNotIn("x-loramux-unknown-fields", call(self.server, "POST", CHAT, json.dumps(chat_body()))[1])

    def test_an_adapter_is_named_by_the_fields_of_other_servers(self):
        model, prompt, answer = next(question for question in questions(1) if question[0] == "reverse")
        for fields in ({"model": "demo:reverse"}, {"lora_path": "reverse"}, {"lora_path": ["reverse"]}, {"adapter_id": "reverse"},
                       {"lora": [{"id": "reverse", "scale": 1.0}]}, {"merged_adapters": {"ids": ["reverse"], "weights": [1]}},
                       {"model": "reverse", "lora_path": "reverse"}):
            body = self.post(CHAT, {**chat_body(prompt=prompt), "max_tokens": 100, **fields})
            self.assertEqual((body["model"], body["choices"][0]["message"]["content"]), ("reverse", answer), fields)
        for field, value in (("lora_path", "unknown"), ("lora_path", ["reverse", "upper"]), ("adapter_id", "unknown"),
                             ("lora", [{"id": 0, "scale": 1.0}]), ("merged_adapters", {"ids": ["reverse", "none"]})):
            error = self.post(CHAT, {**chat_body(), field: value}, 400)["error"]
            self.assertEqual(error["param"], field, error)
        self.assertEqual(self.post(CHAT, chat_body("upper", lora_path="reverse"), 400)["error"]["param"], "lora_path")
        self.assertEqual(self.post(CHAT, chat_body("demo:unknown"), 404)["error"]["param"], "model")
        self.post("/tokenize", {"model": "demo:reverse", "prompt": "x"})

    def test_echo(self):
        body = {"model": "demo", "prompt": ["ab", "cd"], "echo": True, "max_tokens": 3, "temperature": 0}
        echoed = [choice["text"] for choice in self.post(TEXT, body)["choices"]]
        plain = [choice["text"] for choice in self.post(TEXT, {**body, "echo": False})["choices"]]
        self.assertEqual(echoed, ["ab" + plain[0], "cd" + plain[1]])

    # ---- Log-probabilities of prompts ----

    def forced(self, model, prefix, token):
        """What the model thinks of `token` after `prefix`: the log-probability of a token that a bias forces."""
        answer = self.post(TEXT, {"model": model, "prompt": prefix, "max_tokens": 1, "temperature": 0, "logprobs": 2,
                                  "logit_bias": {str(token): 100}, "ignore_eos": True})
        return answer["choices"][0]["logprobs"]["token_logprobs"][0]

    def test_prompt_logprobs_are_those_of_the_same_tokens_generated(self):
        for model in ("demo", "reverse"):
            ids = self.post("/tokenize", {"model": model, "prompt": "The quick brown fox, né 日本, jumps. " * 4})["tokens"]
            body = {"model": model, "prompt": ids, "prompt_logprobs": 3, "max_tokens": 0}
            answer = self.post(TEXT, body)
            choice = answer["choices"][0]
            self.assertEqual((choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"]),
                             ("", "length", 0))
            entries = choice["prompt_logprobs"]
            self.assertEqual(len(entries), len(ids))
            self.assertIsNone(entries[0])
            for i in range(1, len(ids)):
                entry = entries[i][str(ids[i])]
                self.assertEqual(entry["logprob"], self.forced(model, ids[:i], ids[i]), (model, i))
                self.assertEqual(entry["rank"] == 1, entry["logprob"] == max(e["logprob"] for e in entries[i].values()))
                self.assertIn(len(entries[i]), (3, 4))
            # By now the whole prompt is cached; nothing that was cached changes what is answered.
            again = self.post(TEXT, body)
            self.assertEqual(again["choices"][0]["prompt_logprobs"], entries)
            self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            plain = self.post(TEXT, {"model": model, "prompt": ids, "max_tokens": 1})
            self.assertGreater(plain["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_echo_has_the_log_probabilities_of_the_prompt(self):
        body = {"model": "upper", "prompt": "hello there", "echo": True, "logprobs": 1, "max_tokens": 2, "temperature": 0}
        whole = self.post(TEXT, body)["choices"][0]["logprobs"]
        scored = self.post(TEXT, {**body, "max_tokens": 0})["choices"][0]
        self.assertEqual(scored["text"], "hello there")
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(scored["logprobs"][field], whole[field][:-2], field)
        self.assertEqual((whole["token_logprobs"][0], whole["top_logprobs"][0]), (None, None))
        generated = self.post(TEXT, {**body, "echo": False})["choices"][0]["logprobs"]
        self.assertEqual(whole["token_logprobs"][-2:], generated["token_logprobs"])
        prompt = self.post(TEXT, {**body, "prompt_logprobs": 1})["choices"][0]["prompt_logprobs"]
        self.assertEqual([list(entry.values())[0]["logprob"] for entry in prompt[1:]], whole["token_logprobs"][1:-2])
        events = self.server.stream(TEXT, {**body, "stream": True})
        streamed = [number for event in events for choice in event["choices"]
                    for number in choice["logprobs"]["token_logprobs"]]
        self.assertEqual(streamed, whole["token_logprobs"])

    def test_only_the_end_of_a_prompt_counts(self):
        def tokens(prompt):
            return self.post("/tokenize", {"prompt": prompt})["tokens"]

        def complete(prompt, **more):
            body = {"model": "demo", "prompt": prompt, "max_tokens": 5, "temperature": 0, "logprobs": 0, **more}
            answer = self.post(TEXT, body)
            return answer["choices"][0]["text"], answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens"]
        long, start = "say hello to all of them", tokens("")
        ids = tokens(long)
        cut = start + ids[-6:]   # special tokens at the start stay
        self.assertEqual(complete(long, truncate_prompt_tokens=len(cut)), complete(cut))
        self.assertEqual(complete(ids, truncate_prompt_tokens=6), complete(ids[-6:]))
        self.assertEqual(complete(long, truncate_prompt_tokens=-1), complete(long))
        self.assertEqual(complete(ids * 300, truncate_prompt_tokens=6), complete(ids[-6:]))   # beyond the model's length
        echoed, logprobs, count = complete(long, truncate_prompt_tokens=len(cut), echo=True)
        self.assertEqual((echoed, count), (long[-6:] + complete(cut)[0], len(cut)))
        self.assertEqual(len(logprobs["tokens"]), len(cut) + 5)
        chat = self.post(CHAT, chat_body(prompt="a" * 50, truncate_prompt_tokens=7))
        self.assertEqual(chat["usage"]["prompt_tokens"], 7)
        for wrong in (0, -2, 10**6):
            error = self.post(TEXT, {"model": "demo", "prompt": "x", "truncate_prompt_tokens": wrong}, 400)["error"]
            self.assertEqual(error["param"], "truncate_prompt_tokens")

    def test_tokens_as_ids(self):
        body = {"model": "demo", "prompt": "abc", "max_tokens": 3, "temperature": 0, "logprobs": 2}
        plain, named = (self.post(TEXT, {**body, **more})["choices"][0]["logprobs"]
                        for more in ({}, {"return_tokens_as_token_ids": True}))
        ids = [token["id"] for token in self.post("/generate", {"inputs": "abc", "parameters": {
            "max_new_tokens": 3, "details": True}})["details"]["tokens"]]
        self.assertEqual(named["tokens"], [f"token_id:{token}" for token in ids])
        self.assertEqual(named["text_offset"], plain["text_offset"])
        self.assertEqual([list(top.values()) for top in named["top_logprobs"]],
                         [list(top.values()) for top in plain["top_logprobs"]])
        self.assertTrue(all(name.startswith("token_id:") for top in named["top_logprobs"] for name in top))
        body = chat_body(max_tokens=2, logprobs=True, return_tokens_as_token_ids=True)
        entry = self.post(CHAT, body)["choices"][0]["logprobs"]["content"][0]
        self.assertTrue(entry["token"].startswith("token_id:"))
        self.assertNotIn("token_id", bytes(entry["bytes"]).decode(errors="replace"))

    def test_prompt_logprobs_of_a_chat(self):
        body = chat_body(prompt_logprobs=0, max_tokens=0)
        entries = self.post(CHAT, body)["prompt_logprobs"]
        self.assertEqual(len(entries), self.post("/tokenize", chat_body())["count"])
        self.assertEqual(self.post(CHAT, chat_body(max_tokens=0), 400)["error"]["param"], "max_tokens")
        self.assertEqual(self.post(CHAT, {**body, "stream": True}, 400)["error"]["param"], "prompt_logprobs")

    # ---- Errors ----

    def test_every_error_has_the_same_shape(self):
        good = json.dumps(chat_body())
        cases = [("GET", "/nowhere", None, (), 404), ("POST", "/nowhere", "{}", (), 404), ("GET", CHAT, None, (), 405),
                 ("DELETE", "/v1/models", None, (), 405), ("POST", "/v1/moderations", "{}", (), 404),
                 ("POST", CHAT, b"x" * (2 << 20), (), 413), ("POST", CHAT, good, {"X-Big": "x" * 60_000}, 431),
                 ("POST", CHAT, "", (), 400), ("POST", CHAT, "[]", (), 400), ("POST", TEXT, "{}", (), 400)]
        for method, path, body, headers, status in cases:
            code, answer_headers, answer = call(self.server, method, path, body, headers)
            self.assertEqual(code, status, (method, path, answer))
            self.assertEqual(answer_headers["content-type"], "application/json")
            error = json.loads(answer)["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"})
            self.assertEqual(error["code"], status)
            self.assertEqual(error["type"], "NotFoundError" if status == 404 else "BadRequestError")
            if status == 405:
                self.assertIn("OPTIONS", answer_headers["allow"])


class PrefixCache(unittest.TestCase):
    def cached(self, server, model, prompt, **more):
        status, answer = server.json("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 2,
                                                                 "temperature": 0, **more})
        self.assertEqual(status, 200, answer)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]

    def test_what_an_adapter_has_seen_is_not_computed_again(self):
        prompt = [7] * 40
        server = Server()
        self.addCleanup(server.process.kill)
        first = self.cached(server, "reverse", prompt)
        self.assertEqual(first[0], 0)
        self.assertEqual(self.cached(server, "reverse", prompt), (32, first[1]))       # two full pages of 16
        self.assertEqual(self.cached(server, "reverse", prompt + [8])[0], 32)
        self.assertEqual(self.cached(server, "reverse", [7] * 10 + [8] * 10)[0], 10)   # a part of a page, which is copied
        self.assertEqual(self.cached(server, "reverse", [8] + prompt)[0], 0)
        self.assertEqual(self.cached(server, "rot13", prompt)[0], 0)                   # other weights
        self.assertEqual(self.cached(server, "demo", prompt)[0], 0)
        for salt in ("a", "b"):   # each salt has its own prefixes, and finds none of the others'
            self.assertEqual(self.cached(server, "reverse", prompt, cache_salt=salt), first, salt)
            self.assertEqual(self.cached(server, "reverse", prompt, cache_salt=salt), (32, first[1]), salt)
        self.assertEqual(self.cached(server, "reverse", prompt)[0], 32)
        server.stop()
        off = Server("--no-enable-prefix-caching")
        self.addCleanup(off.process.kill)
        self.assertEqual(self.cached(off, "reverse", prompt), first)
        self.assertEqual(self.cached(off, "reverse", prompt), first)
        off.stop()


if __name__ == "__main__":
    serving.run_tests()
