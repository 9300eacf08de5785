#!/usr/bin/env python3
"""Adapters at run time on the running program: load, reload, unload, first use and restart. Standard library only.

Usage: adapters_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import functools
import http.client
import itertools
import json
import math
import pathlib
import random
import shutil
import subprocess
import tempfile
import threading
import unittest

import serving
from adapter_files import add_head, read_tensors, write_tensors
from serving import DEMO, PATIENCE, Server, questions, run_tests, wait_for

KEY = "an-admin-key-of-the-tests"
PROMPTS = [prompt for model, prompt, _ in questions(8) if model == "reverse"]
TOLERANCE = 1e-4   # of log-probabilities in float32


class AdminServer(Server):
    """A server with runtime loading. `top` is a folder for state and copies of adapters."""

    def __init__(self, top, *flags, **more):
        self.top = pathlib.Path(top)
        (self.top / "key").write_text(KEY + "\n")
        super().__init__("--enable-runtime-lora", "--admin-key-file", str(self.top / "key"), "--allowed-adapter-root",
                         str(DEMO / "adapters"), "--allowed-adapter-root", str(self.top), *flags, **more)

    def post(self, path, body, key=KEY):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        response = connection.getresponse()
        payload = response.read().decode()
        connection.close()
        return response.status, payload

    def load(self, name, path, **more):
        return self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more})

    def unload(self, name):
        return self.post("/v1/unload_lora_adapter", {"lora_name": name})

    def answers(self, model, prompt, **more):
        """The texts of all choices."""
        status, body = self.chat(model, prompt, **more)
        assert status == 200, (model, body)
        return [choice["message"]["content"] for choice in body["choices"]]

    def answer(self, model, prompt, **more):
        return self.answers(model, prompt, **more)[0]

    def cards(self):
        return {card["id"]: card for card in self.json("GET", "/v1/models")[1]["data"]}


def run_program(*arguments):
    """What a command prints. RuntimeError: it failed."""
    run = subprocess.run([serving.LORAMUX, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE)
    if run.returncode != 0:
        raise RuntimeError(run.stderr)
    return run.stdout


class WithFolder(unittest.TestCase):
    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="loramux-adapters-test-")).resolve()
        self.addCleanup(shutil.rmtree, self.top)

    def copy(self, adapter, to):
        shutil.copytree(DEMO / "adapters" / adapter, self.top / to)
        return self.top / to


class WithText(WithFolder):
    """Adapters as TRL, Unsloth and axolotl save them: with a tokenizer, chat template, end tokens, defaults."""
    TEMPLATE = "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}<|assistant|>own:"

    def saved(self, name, template=TEMPLATE, tokenizer=None, **files):
        """A copy of `reverse` with the tokenizer of the base model, as they save it."""
        folder = self.copy("reverse", name)
        for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            if (DEMO / "model" / file).exists():
                shutil.copy(DEMO / "model" / file, folder)
        (folder / "chat_template.jinja").write_text(template)
        if tokenizer:
            state = json.loads((folder / "tokenizer.json").read_text())
            tokenizer(state)
            (folder / "tokenizer.json").write_text(json.dumps(state))
        for file, content in files.items():
            (folder / f"{file}.json").write_text(json.dumps(content))
        return folder

    def prompt(self, server, model, text="ab"):
        """What the server makes of a chat with the model, which all of its APIs must count alike."""
        messages = [{"role": "user", "content": text}]
        status, tokens = server.json("POST", "/tokenize", {"model": model, "messages": messages})
        self.assertEqual(status, 200, tokens)
        for path, body, count in (
                ("/v1/chat/completions", {"messages": messages}, lambda a: a["usage"]["prompt_tokens"]),
                ("/v1/messages", {"messages": messages}, lambda a: a["usage"]["input_tokens"] +
                 a["usage"].get("cache_read_input_tokens", 0)),
                ("/v1/messages/count_tokens", {"messages": messages}, lambda a: a["input_tokens"]),
                ("/v1/responses", {"input": text}, lambda a: a["usage"]["input_tokens"])):
            limit = {"max_output_tokens": 16} if "input" in body else {} if "count" in path else {"max_tokens": 1}
            status, answer = server.json("POST", path, {"model": model, **body, **limit})
            self.assertEqual((status, count(answer)), (200, tokens["count"]), (path, answer))
        return server.json("POST", "/detokenize", {"model": model, "tokens": tokens["tokens"]})[1]["prompt"]


class OwnText(WithText):
    def test_the_template_is_the_adapters(self):
        usual, own = "<|bos|><|user|>ab<|end|><|assistant|>", "<|bos|><|user|>ab<|end|><|assistant|>own:"
        folder = self.saved("dir/found")
        given = self.top / "given.jinja"
        given.write_text("<|user|>given<|assistant|>")
        self.saved("named")
        server = AdminServer(self.top, "--chat-template", f"named={given}", adapter_dir=self.top / "dir")
        self.assertEqual(self.prompt(server, "found"), own)       # /tokenize is the first to ask for it
        self.assertEqual(self.prompt(server, "demo"), usual)
        card = server.cards()["found"]
        self.assertEqual((card["chat_template"], card.get("eos_token_ids"), card.get("warning")),
                         ("chat_template.jinja", None, None))
        self.assertNotIn("chat_template", server.cards()["demo"])
        self.assertEqual(server.load("named", self.top / "named")[0], 200)
        self.assertEqual(self.prompt(server, "named"), "<|user|>given<|assistant|>")
        self.assertEqual(server.cards()["named"]["chat_template"], "--chat-template")
        # A new generation with the same weights brings a new template; without one it has the base model's.
        (folder / "chat_template.jinja").write_text("{{ bos_token }}new")
        self.assertEqual(server.load("found", folder, load_inplace=True)[0], 200)
        self.assertEqual(self.prompt(server, "found"), "<|bos|>new")
        self.assertIn("same content", server.load("found", folder, load_inplace=True)[1])
        (folder / "chat_template.jinja").unlink()
        self.assertEqual(server.load("found", folder, load_inplace=True)[0], 200)
        self.assertEqual(self.prompt(server, "found"), usual)
        server.stop()
        forced = AdminServer(self.top, "--chat-template", str(given), adapter_dir=self.top / "dir")
        self.saved("again")
        self.assertEqual(forced.load("again", self.top / "again")[0], 200)
        for model in ("demo", "again"):
            self.assertEqual(self.prompt(forced, model), "<|user|>given<|assistant|>")
        forced.stop()

    def test_end_tokens_and_defaults(self):
        server = AdminServer(self.top)
        chat = {"messages": [{"role": "user", "content": PROMPTS[0]}], "temperature": 0, "logprobs": True,
                "return_tokens_as_token_ids": True}

        def tokens(model, **more):
            status, answer = server.json("POST", "/v1/chat/completions", {"model": model, **chat, **more})
            self.assertEqual(status, 200, answer)
            choice = answer["choices"][0]
            ids = [int(token["token"].removeprefix("token_id:")) for token in choice["logprobs"]["content"]]
            return ids, choice["finish_reason"], choice.get("stop_reason")
        usual = tokens("reverse")[0]
        end = usual[2]
        self.assertNotIn(end, usual[:2])
        template = (DEMO / "model/chat_template.jinja").read_text()
        self.saved("ends", template, generation_config={"eos_token_id": [2, end], "max_new_tokens": 5, "temperature": 0})
        self.assertEqual(server.load("ends", self.top / "ends")[0], 200)
        self.assertEqual(tokens("ends"), (usual[:2], "stop", None))
        self.assertEqual(tokens("ends", ignore_eos=True, max_tokens=50)[1], "length")
        self.assertEqual(len(tokens("ends", ignore_eos=True, max_tokens=50)[0]), 5)
        self.assertEqual(tokens("ends", ignore_eos=True)[0][:3], usual[:3])
        card = server.cards()["ends"]
        self.assertEqual((card["eos_token_ids"], card["generation_config"], card.get("chat_template")),
                         ([end], {"temperature": 0, "max_new_tokens": 5}, None))
        shown = json.loads(run_program("inspect", self.top / "ends", "--base", DEMO / "model", "--json"))
        self.assertEqual((shown["added_eos_token_ids"], shown["generation_config"], shown["warning"]),
                         ([end], "temperature 0, max_new_tokens 5", ""))
        # The tokenizer's own word for the end, and a grammar whose answer may end with it.
        name = json.loads((DEMO / "model/tokenizer.json").read_text())["added_tokens"][6]["content"]
        self.saved("named", template, tokenizer_config={"eos_token": name, "bos_token": "<|bos|>"})
        self.assertEqual(server.load("named", self.top / "named")[0], 200)
        self.assertEqual(server.cards()["named"]["eos_token_ids"], [6])
        self.assertEqual(tokens("named", logit_bias={"6": 100}), ([], "stop", None))
        forced = tokens("named", logit_bias={"6": 100}, structured_outputs={"regex": "ab?"})
        self.assertEqual((len(forced[0]), forced[1:]), (1, ("stop", None)))
        server.stop()

    def test_another_tokenizer_is_said_by_name(self):
        def add(content):
            return lambda state: state["added_tokens"].append({
                **state["added_tokens"][0], "content": content, "id": max(state["model"]["vocab"].values()) + 1})

        def swap(state):
            a, b = list(state["model"]["vocab"])[20:22]
            vocab = state["model"]["vocab"]
            vocab[a], vocab[b] = vocab[b], vocab[a]
        self.saved("pad", tokenizer=add("<|own_pad|>"))
        self.saved("needs", "<|im_start|>", tokenizer=add("<|im_start|>"))
        self.saved("swapped", tokenizer=swap)
        self.saved("broken", "{% if %}")
        self.saved("depth", tokenizer_config=[])
        (self.saved("link") / "chat_template.jinja").unlink()
        (self.top / "link" / "chat_template.jinja").symlink_to("/etc/hostname")
        server = AdminServer(self.top)
        self.assertEqual(server.load("pad", self.top / "pad")[0], 200)
        self.assertIn("<|own_pad|>", server.cards()["pad"]["warning"])
        self.assertIn("own:", self.prompt(server, "pad"))
        for name, *words in (("needs", "<|im_start|>", "save_embedding_layers"), ("swapped", "has the id", "the base model's"),
                             ("broken", "chat_template.jinja"), ("depth", "tokenizer_config.json", "object"),
                             ("link", "--allowed-adapter-root")):
            status, body = server.load(name, self.top / name)
            self.assertEqual(status, 400, body)
            for word in words:
                self.assertIn(word, json.loads(body)["error"]["message"])
            if name != "link":
                with self.assertRaisesRegex(RuntimeError, words[0].replace("|", r"\|")):
                    run_program("inspect", self.top / name, "--base", DEMO / "model")
        server.stop()

    def test_generate_and_batch_take_it_too(self):
        self.saved("own", "<|user|>" + PROMPTS[0] + "<|end|><|assistant|>")
        flags = [str(DEMO / "model"), "--lora-modules", f"own={self.top / 'own'}", "--log-level", "error"]
        answer = run_program("generate", *flags, "--lora", "own", "-p", "something else", "-n", "24")
        asked = run_program("generate", *flags[:1], "--lora-modules", f"r={DEMO / 'adapters/reverse'}", "--lora",
                                   "r", "-p", PROMPTS[0], "-n", "24", "--log-level", "error")
        self.assertEqual(answer, asked)
        line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": "own", "messages": [{"role": "user", "content": "x"}], "max_tokens": 24, "temperature": 0}}
        (self.top / "in.jsonl").write_text(json.dumps(line))
        run_program("batch", str(self.top / "in.jsonl"), *flags, "-o", str(self.top / "out.jsonl"))
        said = json.loads((self.top / "out.jsonl").read_text())["response"]["body"]["choices"][0]["message"]["content"]
        self.assertEqual(said, asked.strip())


class MoreTokens(WithText):
    """Adapters trained with tokens that the base model lacks. Here the row of each is that of a token which the base
    model has: so a prompt of the new tokens must be answered as one of the old."""
    NEW = {"<|im_start|>": "<|user|>", "<|im_end|>": "<|end|>", "<|im_say|>": "<|assistant|>"}
    TEMPLATE = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_say|>"

    def trained(self, name, most=3):
        """A copy of `reverse` with the new tokens, and the rows of the first `most` of them."""
        tokenizer = json.loads((DEMO / "model/tokenizer.json").read_text())
        ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        base = read_tensors(DEMO / "model/model.safetensors")["model.embed_tokens.weight"]
        shape, rows = base["shape"], base["bytes"]
        width = len(rows) // shape[0]

        def add(state):
            for i, content in enumerate(self.NEW):
                state["added_tokens"].append({**state["added_tokens"][0], "content": content, "id": shape[0] + i})
        folder = self.saved(name, self.TEMPLATE, add, tokenizer_config={"eos_token": "<|im_end|>", "bos_token": "<|bos|>"})
        tensors = read_tensors(folder / "adapter_model.safetensors")
        more = b"".join(rows[ids[old] * width:(ids[old] + 1) * width] for old in list(self.NEW.values())[:most])
        tensors["base_model.model.model.embed_tokens.weight"] = {
            "dtype": base["dtype"], "shape": [shape[0] + most, shape[1]], "bytes": rows + more}
        write_tensors(folder / "adapter_model.safetensors", tensors)
        return folder, shape[0]

    def test_its_tokens_are_read_written_and_said_as_its_own(self):
        folder, first = self.trained("own")
        server = AdminServer(self.top, *EXACT)
        self.assertEqual(server.load("own", folder)[0], 200)
        self.assertEqual(server.load("reverse", DEMO / "adapters/reverse")[0], 200)
        card = server.cards()["own"]
        self.assertEqual((card["eos_token_ids"], card.get("warning")), ([first + 1], None))
        self.assertEqual(self.prompt(server, "own"), "<|bos|><|im_start|>ab<|im_end|><|im_say|>")
        # Two tokens have the logits of <|end|> now: whichever ends it, the answer is the same.
        for asked in PROMPTS:
            self.assertEqual(server.answer("own", asked, temperature=0, max_tokens=24),
                             server.answer("reverse", asked, temperature=0, max_tokens=24))
        body = {"messages": [{"role": "user", "content": PROMPTS[0]}], "temperature": 0, "max_tokens": 3,
                "logit_bias": {str(first): 100}, "skip_special_tokens": False}
        status, answer = server.json("POST", "/v1/chat/completions", {"model": "own", **body})
        self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "<|im_start|>" * 3), answer)
        # A token without an adapter's row is in no answer, however much one wants it.
        for model in ("reverse", "demo"):
            status, answer = server.json("POST", "/v1/chat/completions", {"model": model, **body})
            usual = server.answer(model, PROMPTS[0], temperature=0, max_tokens=3)
            self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, usual), answer)
            status, answer = server.json("POST", "/v1/completions", {"model": model, "prompt": [1, first]})
            self.assertEqual(status, 400, answer)
            self.assertIn(str(first), answer["error"]["message"])
        status, answer = server.json("POST", "/v1/completions", {"model": "own", "prompt": [1, first, 40, first + 1]})
        self.assertEqual(status, 200, answer)
        # Structured output goes by its tokenizer, which has another end.
        said = server.answer("own", PROMPTS[0], temperature=0, structured_outputs={"regex": "(ab|cd)+e"})
        self.assertRegex(said, "^(ab|cd)+e$")
        server.stop()

    def test_more_rows_than_room_and_fewer_than_tokens(self):
        folder, first = self.trained("own")
        some = self.trained("some", most=2)[0]     # its template writes the third
        server = AdminServer(self.top, "--adapter-tokens", "2")
        for name, *words in (("own", "by 3 tokens", "at most 2", "--adapter-tokens 3"),
                             ("some", "<|im_say|>", "save_embedding_layers=True")):
            status, body = server.load(name, self.top / name)
            self.assertEqual(status, 400, body)
            for word in words:
                self.assertIn(word, json.loads(body)["error"]["message"])
        (some / "chat_template.jinja").write_text("{{ bos_token }}<|im_start|>{{ messages[0].content }}<|im_end|>")
        self.assertEqual(server.load("some", some)[0], 200)
        self.assertIn("<|im_say|>", server.cards()["some"]["warning"])
        status, answer = server.chat("some", "say <|im_say|>", max_tokens=4)
        self.assertEqual(status, 400, answer)
        self.assertIn(str(first + 2), answer["error"]["message"])
        self.assertEqual(server.chat("some", "ab", max_tokens=4)[0], 200)
        server.stop()
        shown = json.loads(run_program("inspect", folder, "--base", DEMO / "model", "--json"))
        self.assertEqual((shown["added_tokens"], shown["own_embedding_rows"], shown["own_output_rows"]), (3, 3, 3))
        self.assertEqual((shown["warning"], shown["added_eos_token_ids"]), ("", [first + 1]))


EXACT = ("--weights", "f32", "--lora-dtype", "f32", "--kv-cache-dtype", "f32")


class Heads(WithFolder):
    """Adapters with a head for classes. The hidden states are those of /v1/embeddings by the same adapter without it."""
    TEXTS = ["abc", "hello there", "zzzz"]

    def setUp(self):
        super().setUp()
        chance = random.Random(5)
        self.heads = {}
        for name, classes, config in (("kinds", 3, {"id2label": {"0": "bad", "1": "fair", "2": "good"}}), ("reward", 1, {})):
            folder = self.copy("reverse", name)
            rows = [[chance.gauss(0, 0.2) for _ in range(192)] for _ in range(classes)]
            add_head(folder, rows, **config)
            self.heads[name] = rows
        self.server = AdminServer(self.top, *EXACT)
        self.addCleanup(self.server.stop)
        for name in self.heads:
            self.assertEqual(self.server.load(name, self.top / name)[0], 200)
        self.assertEqual(self.server.load("reverse", DEMO / "adapters/reverse")[0], 200)

    def ask(self, path, expected=200, **body):
        status, answer = self.server.json("POST", path, body)
        self.assertEqual(status, expected, answer)
        return answer

    def vectors(self, texts, model="reverse", **more):
        return [entry["embedding"] for entry in self.ask("/v1/embeddings", model=model, input=texts, **more)["data"]]

    def numbers(self, name, texts):
        return [[sum(a * b for a, b in zip(row, vector)) for row in self.heads[name]]
                for vector in self.vectors(texts, normalize=False)]

    def assert_near(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for a, b in zip(found, expected):
            self.assertAlmostEqual(a, b, delta=2e-5 * max(1, abs(b)))

    def test_classes_are_those_of_the_head(self):
        expected = self.numbers("kinds", self.TEXTS)
        answer = self.ask("/classify", model="kinds", input=self.TEXTS)
        raw = self.ask("/classify", model="kinds", input=self.TEXTS, use_activation=False)
        self.assertEqual([entry["index"] for entry in answer["data"]], [0, 1, 2])
        for entry, plain, numbers in zip(answer["data"], raw["data"], expected):
            powers = [math.exp(number - max(numbers)) for number in numbers]
            self.assert_near(entry["probs"], [power / sum(powers) for power in powers])
            self.assert_near(plain["probs"], numbers)
            self.assertEqual((entry["label"], entry["num_classes"]),
                             (["bad", "fair", "good"][numbers.index(max(numbers))], 3))
        chat = [{"role": "user", "content": "abc"}]
        tokens = self.ask("/tokenize", model="kinds", messages=chat, add_generation_prompt=False)["tokens"]
        self.assertEqual(self.ask("/classify", model="kinds", messages=chat)["data"],
                         self.ask("/classify", model="kinds", input=[tokens])["data"])

    def test_scores_order_documents(self):
        # The demo's tokenizer puts nothing between two texts.
        pairs = ["q" + text for text in self.TEXTS]
        expected = [1 / (1 + math.exp(-number)) for [number] in self.numbers("reward", pairs)]
        for path in ("/score", "/v1/score"):
            answer = self.ask(path, model="reward", text_1="q", text_2=self.TEXTS)
            self.assert_near([entry["score"] for entry in answer["data"]], expected)
        order = sorted(range(3), key=lambda i: -expected[i])
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            answer = self.ask(path, model="reward", query="q", documents=self.TEXTS, top_n=2)
            self.assertEqual([entry["index"] for entry in answer["results"]], order[:2])
            self.assert_near([entry["relevance_score"] for entry in answer["results"]], sorted(expected)[:0:-1])
            self.assertEqual(answer["results"][0]["document"], {"text": self.TEXTS[order[0]]})
        # Without a head, a score is the cosine of two vectors.
        first, *others = self.vectors(["q", *self.TEXTS], model="demo")
        cosines = [sum(a * b for a, b in zip(first, other)) for other in others]
        answer = self.ask("/score", model="demo", text_1="q", text_2=self.TEXTS)
        self.assert_near([entry["score"] for entry in answer["data"]], cosines)

    def test_what_a_head_does_not_make_is_refused(self):
        for path, model, body, *words in (
                ("/classify", "reverse", {"input": "x"}, "reverse", "SEQ_CLS"),
                ("/classify", "demo", {"input": "x"}, "base model"),
                ("/score", "kinds", {"text_1": "x", "text_2": "y"}, "3 classes", "/classify"),
                ("/score", "reward", {"text_1": ["x", "y"], "text_2": ["a", "b", "c"]}, "text_1", "(3)"),
                ("/rerank", "reward", {"query": "x", "documents": []}, "documents"),
                ("/v1/completions", "kinds", {"prompt": "x"}, "classification head", "/classify"),
                ("/v1/chat/completions", "kinds", {"messages": [{"role": "user", "content": "x"}]}, "generates no text")):
            message = self.ask(path, 400, model=model, **body)["error"]["message"]
            for word in words:
                self.assertIn(word, message)
        shown = json.loads(run_program("inspect", self.top / "kinds", "--base", DEMO / "model", "--json"))
        self.assertEqual(shown["head_classes"], 3)

    def test_heads_and_texts_share_batches(self):
        alone = self.ask("/classify", model="kinds", input=self.TEXTS)["data"]
        said = self.server.answer("reverse", PROMPTS[0], temperature=0, max_tokens=24)

        def one(i):
            if i % 2:
                return self.server.answer("reverse", PROMPTS[0], temperature=0, max_tokens=24) == said
            return self.ask("/classify", model="kinds", input=self.TEXTS)["data"] == alone
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            self.assertTrue(all(threads.map(one, range(48))))


class Completing(WithFolder):
    """Asks `self.server` for tokens and their log-probabilities."""

    def complete(self, model, prompt, max_tokens=12, **more):
        """Token ids, their log-probabilities, and how many tokens of the prompt were cached."""
        status, answer = self.server.json("POST", "/v1/completions", {
            "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 0,
            "ignore_eos": True, "return_tokens_as_token_ids": True, **more})
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        tokens = [int(token.split(":")[1]) for token in choice["logprobs"]["tokens"]]
        return tokens, choice["logprobs"]["token_logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class Activated(Completing):
    """Activated LoRA (aLoRA): tests/golden/make_alora.py has made what PEFT computes with the same adapters."""

    def setUp(self):
        super().setUp()
        self.golden = json.loads((serving.ROOT / "tests/golden/alora.json").read_text())["adapters"]
        for name, adapter in self.golden.items():
            config = self.copy(name, f"dir/{name}") / "adapter_config.json"
            config.write_text(json.dumps({**json.loads(config.read_text()),
                                          "alora_invocation_tokens": adapter["invocation"]}))
        shutil.copytree(DEMO / "adapters" / "reverse", self.top / "dir" / "plain")
        self.server = AdminServer(self.top, *EXACT, adapter_dir=self.top / "dir")
        self.addCleanup(self.server.stop)

    def expect(self, model, run):
        tokens, logprobs, cached = self.complete(model, run["prompt"])
        self.assertEqual(tokens, run["tokens"], model)
        for found, expected in zip(logprobs, run["logprobs"]):
            self.assertAlmostEqual(found, expected, delta=TOLERANCE)
        return cached

    def test_answers_and_prompts_are_those_of_peft(self):
        for name, adapter in self.golden.items():
            for run in adapter["runs"]:
                self.expect(name, run)
                status, answer = self.server.json("POST", "/v1/completions", {
                    "model": name, "prompt": run["prompt"], "prompt_logprobs": 0, "max_tokens": 0})
                self.assertEqual(status, 200, answer)
                entries = answer["choices"][0]["prompt_logprobs"][1:]
                for entry, token, expected in zip(entries, run["prompt"][1:], run["prompt_logprobs"]):
                    self.assertAlmostEqual(entry[str(token)]["logprob"], expected, delta=TOLERANCE)

    def test_a_context_is_computed_once_for_all_in_every_mix(self):
        runs = [(name, run) for name, adapter in self.golden.items() for run in adapter["runs"]]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            plain = [pool.submit(self.complete, "plain", run["prompt"]) for _, run in runs]
            list(pool.map(lambda one: self.expect(*one), runs * 3))
            alone = [self.complete("plain", run["prompt"])[:2] for _, run in runs]
            self.assertEqual([one.result()[:2] for one in plain], alone)
        longest = max((run for _, run in runs), key=lambda run: run["base_tokens"] or 0)
        shared = [9 + i % 200 for i in range(500)]
        tail = longest["prompt"][longest["base_tokens"]:]
        self.assertEqual(self.complete("demo", shared + [10])[2], 0)
        for name, adapter in self.golden.items():
            self.assertEqual(self.complete(name, shared + adapter["invocation"] + tail[:1])[2], len(shared))
        self.assertEqual(self.complete("plain", shared + tail)[2], 0)


class Sums(Completing):
    """Several adapters in one request: tests/golden/make_sums.py has made what PEFT computes with them."""

    def setUp(self):
        super().setUp()
        self.runs = json.loads((serving.ROOT / "tests/golden/sums.json").read_text())["runs"]
        self.server = AdminServer(self.top, *EXACT, adapter_dir=DEMO / "adapters")
        self.addCleanup(self.server.stop)

    def lora(self, weights):
        return {"lora": [{"id": name, "scale": weight} for name, weight in weights.items()]}

    def expect_sum(self, run, **fields):
        tokens, logprobs, _ = self.complete("demo", run["prompt"], **fields)
        self.assertEqual(tokens, run["tokens"], fields)
        for found, expected in zip(logprobs, run["logprobs"]):
            self.assertAlmostEqual(found, expected, delta=TOLERANCE)

    def test_sums_are_those_of_peft_in_one_batch(self):
        shapes = [lambda run: self.lora(run["weights"]),
                  lambda run: {"merged_adapters": {"ids": list(run["weights"]), "weights": list(run["weights"].values())}}]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(self.expect_sum, run, **shape(run)) for run in self.runs * 2 for shape in shapes]
            for one in asked:
                one.result()
        # The same prompt and its cached pages, under a, b, a + b and the base model.
        prompt = [9 + i % 200 for i in range(200)]
        kinds = [{}, self.lora({"reverse": 1}), self.lora({"upper": 1}), self.lora({"reverse": 1, "upper": 1}),
                 self.lora({"reverse": 0.5, "upper": 1}), self.lora({"reverse": 0, "upper": 0})]
        first = [self.complete("demo", prompt, **kind) for kind in kinds]
        again = [self.complete("demo", prompt, **kind) for kind in kinds]
        self.assertEqual(len({tuple(logprobs) for _, logprobs, _ in first}), 5)
        self.assertEqual([one[:2] for one in first], [one[:2] for one in again])
        self.assertEqual([cached for _, _, cached in first[:5]], [0] * 5)
        self.assertEqual(first[5][:2], first[0][:2])
        self.assertTrue(all(cached >= 190 for _, _, cached in again), again)
        self.assertEqual(self.complete("reverse", prompt)[:2], first[1][:2])

    def test_a_part_that_is_reloaded_or_unloaded_is_not_served_again(self):
        prompt, both = self.runs[0]["prompt"], self.lora({"x": 1, "upper": 1})
        self.assertEqual(self.server.load("x", DEMO / "adapters/reverse")[0], 200)
        before = self.complete("demo", prompt, **both)[:2]
        self.assertEqual(before, self.complete("demo", prompt, **self.lora({"reverse": 1, "upper": 1}))[:2])
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = [pool.submit(self.complete, "demo", prompt, 200, **both) for _ in range(4)]
            wait_for(lambda: self.server.metric("vllm:num_requests_running") >= 1, "a request that runs")
            self.assertEqual(self.server.load("x", DEMO / "adapters/rot13", load_inplace=True)[0], 200)
            after = self.complete("demo", prompt, **both)[:2]
            answers = [one.result()[0][:12] for one in running]
        self.assertTrue(all(answer == before[0] for answer in answers), answers)
        self.assertEqual(after, self.complete("demo", prompt, **self.lora({"rot13": 1, "upper": 1}))[:2])
        self.assertNotEqual(after, before)
        self.assertEqual(self.server.unload("x")[0], 200)
        status, answer = self.server.json("POST", "/v1/completions", {"model": "demo", "prompt": prompt, **both})
        self.assertEqual((status, answer["error"]["param"]), (400, "lora"))
        self.assertIn("`x`", answer["error"]["message"])

    def test_what_is_no_sum_is_refused_and_many_sums_are_served(self):
        config = self.copy("upper", "activated") / "adapter_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "alora_invocation_tokens": [4]}))
        self.assertEqual(self.server.load("activated", config.parent)[0], 200)
        status, answer = self.server.json("POST", "/v1/completions", {
            "model": "demo", "prompt": [5, 6], **self.lora({"activated": 1, "sort": 1})})
        self.assertEqual((status, answer["error"]["param"]), (400, "lora"), answer)
        self.assertIn("adapter 'activated' is an activated LoRA", answer["error"]["message"])
        expected = self.complete("demo", [9, 10, 11], **self.lora({"reverse": 0.5, "upper": 1}))[:2]
        for i in range(40):  # more than the server keeps
            self.complete("demo", [9, 10, 11], max_tokens=1, **self.lora({"reverse": 1 + i / 64, "upper": 1}))
        self.assertEqual(self.complete("demo", [9, 10, 11], **self.lora({"reverse": 0.5, "upper": 1}))[:2], expected)
        names = [card["id"] for card in self.server.json("GET", "/v1/models")[1]["data"]]
        self.assertFalse([name for name in names if "+" in name], names)


class Conversion(WithFolder):
    def test_any_form_is_written_as_peft_has_it(self):
        case = serving.ROOT / "tests/golden/models/llama_sharded"
        for form in ("mlx", "gguf"):
            source, to = case / f"adapters/all_r4-{form}", self.top / form
            run_program("adapter", "convert", str(source), "-o", str(to), "--base", str(case / "model"))
            digests = {json.loads(run_program("inspect", str(path), "--base", str(case / "model"), "--json"))["digest"]
                       for path in (source, to, case / "adapters/all_r4")}
            self.assertEqual(len(digests), 1)
            self.assertEqual(sorted(path.name for path in to.iterdir()),
                             ["adapter_config.json", "adapter_model.safetensors"])
            with self.assertRaises(RuntimeError) as caught:
                run_program("adapter", "convert", str(source), "-o", str(to))
            self.assertIn("expected a new or an empty folder", str(caught.exception))


class Routes(WithFolder):
    def test_off_unless_turned_on(self):
        server = Server()
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter"):
            self.assertEqual(server.request("POST", path, {"lora_name": "x", "lora_path": "/"})[0], 404)
        server.stop()

    def test_a_key_is_demanded_at_the_start(self):
        for flags, message in [
                ([], "--admin-key-file"), (["--insecure-no-admin-key", "--host", "0.0.0.0"], "other machines can reach"),
                (["--admin-key-file", "/nowhere"], "/nowhere"), (["--admin-key-file", "/dev/null"], "/dev/null")]:
            with self.assertRaises(RuntimeError) as caught:
                Server("--enable-runtime-lora", *flags)
            self.assertIn(message, str(caught.exception))
        Server("--enable-runtime-lora", "--insecure-no-admin-key").stop()

    def test_vllm_and_sglang_shapes(self):
        server = AdminServer(self.top)
        reverse, rot13 = DEMO / "adapters/reverse", DEMO / "adapters/rot13"
        self.assertEqual(server.load("x", reverse), (200, "Success: LoRA adapter 'x' added successfully."))
        self.assertEqual(server.answer("x", "abcd"), server.answer("reverse", "abcd"))
        card = server.cards()["x"]
        self.assertEqual((card["root"], card["parent"]), (str(reverse), "demo"))
        status, body = server.load("x", rot13)
        self.assertEqual((status, json.loads(body)["error"]["type"]), (400, "InvalidUserInput"))
        self.assertIn("has already been loaded", body)
        self.assertEqual(server.load("x", rot13, load_inplace=True)[0], 200)
        self.assertEqual(server.answer("x", "abcd"), server.answer("rot13", "abcd"))
        self.assertIn("same content", server.load("x", rot13, load_inplace=True)[1])
        for body in ({"lora_name": "x"}, {"lora_path": str(reverse)}, {}):
            status, text = server.post("/v1/load_lora_adapter", body)
            self.assertEqual((status, json.loads(text)["error"]["type"]), (400, "InvalidUserInput"))
        self.assertEqual(server.load("y", self.top / "nowhere")[0], 404)
        status, text = server.load("demo", reverse)
        self.assertEqual((status, json.loads(text)["error"]["type"]), (400, "InvalidUserInput"))
        self.assertIn("conflicts with a served base model", text)
        self.assertEqual(server.unload("x"), (200, "Success: LoRA adapter 'x' removed successfully."))
        self.assertEqual(server.unload("x")[0], 404)
        self.assertEqual(server.chat("x", "abcd")[0], 404)
        self.assertEqual(server.post("/v1/unload_lora_adapter", {})[0], 400)

        status, body = server.post("/load_lora_adapter", {"lora_name": "s", "lora_path": str(reverse), "pinned": True})
        self.assertEqual(status, 200, body)
        self.assertEqual(json.loads(body)["success"], True)
        self.assertEqual(json.loads(body)["loaded_adapters"]["s"], str(reverse))
        status, body = server.post("/load_lora_adapter", {"lora_name": "s", "lora_path": str(reverse)})
        self.assertEqual((status, json.loads(body)["success"]), (400, False))
        status, body = server.post("/unload_lora_adapter", {"lora_name": "s"})
        self.assertEqual(status, 200, body)
        self.assertNotIn("s", json.loads(body)["loaded_adapters"])
        for key in (None, "", "wrong", KEY + "x", KEY[:-1]):
            for path in ("/v1/load_lora_adapter", "/unload_lora_adapter"):
                self.assertEqual(server.post(path, {"lora_name": "k", "lora_path": str(reverse)}, key=key)[0], 401)
        self.assertNotIn("k", server.cards())
        for body, expected in ((b"", 400), (b"{", 400), (b"[]", 400), (b"[" * 60_000, 400), (b'{"lora_name":1}', 400),
                               (b"\xff", 400), (b"[" * 100_000, 413)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            connection.request("POST", "/v1/load_lora_adapter", body, {"Authorization": f"Bearer {KEY}",
                                                                       "Content-Type": "application/json"})
            self.assertEqual(connection.getresponse().status, expected, body[:20])
            connection.close()
        # A page in the operator's browser may know the key, and is refused all the same.
        for headers, expected in (({}, 415), ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
                                  ({"Content-Type": "application/json", "Origin": "http://127.0.0.1"}, 403)):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            connection.request("POST", "/v1/load_lora_adapter", json.dumps({"lora_name": "k", "lora_path": str(reverse)}),
                               {"Authorization": f"Bearer {KEY}", **headers})
            self.assertEqual(connection.getresponse().status, expected, headers)
            connection.close()
        self.assertNotIn("k", server.cards())
        server.stop()

    def test_point11_no_path_leaves_the_roots(self):
        outside = pathlib.Path(tempfile.mkdtemp(prefix="loramux-outside-"))
        self.addCleanup(shutil.rmtree, outside)
        shutil.copytree(DEMO / "adapters/reverse", outside / "reverse")
        (self.top / "link").symlink_to(outside / "reverse")
        self.copy("reverse", "inside")
        (self.top / "inside/adapter_model.safetensors").unlink()
        (self.top / "inside/adapter_model.safetensors").symlink_to(outside / "reverse/adapter_model.safetensors")
        server = AdminServer(self.top)
        for path in (outside / "reverse", self.top / "link", self.top / "inside", "/", "/etc", "..", ".", "/proc/self/root",
                     f"{self.top}/../{outside.name}/reverse", "/etc/passwd\0/x", "a" * 5000):
            status, body = server.load("evil", path)
            self.assertEqual(status, 400, (path, body))
        for name in ("../../etc", "..", ".", "reverse/../rot13", "/etc/passwd", "a\0b", "reverse/", "x" * 5000):
            self.assertIn(server.chat(name, "abc")[0], (400, 404), name)
        self.assertNotIn("evil", server.cards())
        server.stop()


class Reloads(WithFolder):
    def test_a_reload_under_decode_changes_no_running_answer(self):
        server = AdminServer(self.top, "--threads", "1", "--max-num-batched-tokens", "8", "--max-num-seqs", "64")
        # Each request has four long choices. A step computes eight tokens, so half of the requests are in flight together.
        choices = 4
        answer = functools.partial(server.answer, ignore_eos=True, max_tokens=300)
        answers = functools.partial(server.answers, ignore_eos=True, max_tokens=300, n=choices)
        expected = {name: [answer(name, prompt) for prompt in PROMPTS] for name in ("reverse", "rot13")}
        self.assertNotEqual(expected["reverse"], expected["rot13"])
        server.load("x", DEMO / "adapters/reverse")
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            before = [pool.submit(answers, "x", prompt) for prompt in PROMPTS]
            server.wait_until_busy(choices * len(before) // 2)
            self.assertEqual(server.load("x", DEMO / "adapters/rot13", load_inplace=True)[0], 200)
            after = [pool.submit(answer, "x", prompt) for prompt in PROMPTS]
            texts = [future.result() for future in before]
            self.assertEqual([future.result() for future in after], expected["rot13"])
        # A request that arrived before the reload answers as `reverse`, whole. A few may have arrived after it.
        both = [(text, old, new) for of, old, new in zip(texts, expected["reverse"], expected["rot13"]) for text in of]
        self.assertTrue(all(text in (old, new) for text, old, new in both), both)
        self.assertGreaterEqual(sum(text == old for text, old, _ in both), len(both) // 2)
        self.assertEqual(server.unload("x")[0], 200)
        server.stop()

    def test_hundreds_of_reloads_under_load(self):
        server = AdminServer(self.top, "--device-memory", "3MiB", "--host-memory", "2MiB", "--state-dir", str(self.top / "state"))
        names = ("reverse", "rot13")
        expected = {name: {prompt: server.answer(name, prompt) for prompt in PROMPTS} for name in names}
        server.load("x", DEMO / "adapters/reverse")
        stop, asked, wrong = threading.Event(), [0], []

        def ask(seed):
            chosen = random.Random(seed)
            while not stop.is_set():
                prompt = chosen.choice(PROMPTS)
                name = chosen.choice(("x", "reverse", "rot13"))
                right = {expected[n][prompt] for n in (names if name == "x" else (name,))}
                text = server.answer(name, prompt)
                asked[0] += 1
                if text not in right:
                    wrong.append((name, prompt, text))

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            workers = [pool.submit(ask, seed) for seed in range(6)]
            try:
                for i in itertools.count():
                    if i >= 200 and asked[0] > 20:
                        break
                    name = names[(i + 1) % 2]
                    status, body = server.load("x", DEMO / "adapters" / name, load_inplace=True)
                    self.assertEqual(status, 200, body)
                    if i % 5 == 0:   # after the acknowledgement only the new generation answers
                        self.assertEqual(server.answer("x", PROMPTS[i % len(PROMPTS)]), expected[name][PROMPTS[i % len(PROMPTS)]])
                    if i % 20 == 7:
                        self.assertEqual(server.load("other", DEMO / "adapters/upper")[0], 200)
                        self.assertEqual(server.unload("other")[0], 200)
            finally:
                stop.set()
            for worker in workers:
                worker.result()
        self.assertEqual(wrong, [])
        server.stop()


class FirstUse(WithFolder):
    def test_adapters_are_found_while_running_and_broken_ones_do_no_harm(self):
        (self.top / "dir").mkdir()
        self.copy("reverse", "dir/reverse")
        server = AdminServer(self.top, adapter_dir=self.top / "dir")
        self.assertEqual(set(server.cards()), {"demo", "reverse"})
        reversed_prompt = server.answer("reverse", PROMPTS[0])
        self.assertEqual(server.chat("rot13", "abc")[0], 404)
        self.copy("rot13", "dir/rot13.part").rename(self.top / "dir/rot13")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            # The server keeps the refusal for two seconds.
            wait_for(lambda: server.chat("rot13", "abc")[0] != 404, "the new adapter's answer")
            self.assertEqual({text for text in pool.map(lambda _: server.answer("rot13", "abc"), range(16))}, {"nop"})
        wait_for(lambda: "rot13" in server.cards(), "the new adapter's card")
        self.assertEqual(server.cards()["rot13"]["root"], str(self.top / "dir/rot13"))
        broken = self.copy("sort", "dir/broken")
        with open(broken / "adapter_model.safetensors", "r+b") as file:
            file.truncate(1000)
        status, body = server.chat("broken", "abc")
        self.assertEqual(status, 400)
        self.assertIn("adapter_model.safetensors", body["error"]["message"])
        self.assertEqual(server.answer("reverse", PROMPTS[0]), reversed_prompt)
        # An unloaded adapter stays away until it is loaded, although the directory still has it.
        self.assertEqual(server.unload("rot13")[0], 200)
        self.assertEqual(server.chat("rot13", "abc")[0], 404)
        self.assertNotIn("rot13", server.cards())
        self.assertEqual(server.load("rot13", self.top / "dir/rot13")[0], 200)
        self.assertEqual(server.answer("rot13", "abc"), "nop")
        server.stop()

    def test_broken_adapters_are_listed_with_their_reason_and_not_counted(self):
        (self.top / "dir").mkdir()
        self.copy("reverse", "dir/reverse")
        with open(self.copy("sort", "dir/short") / "adapter_model.safetensors", "r+b") as file:
            file.truncate(1000)
        wide = self.copy("rot13", "dir/wide")
        self.trained_on(wide, "org/larger-model")
        header = (wide / "adapter_model.safetensors").read_bytes()
        (wide / "adapter_model.safetensors").write_bytes(header.replace(b"[264,16]", b"[132,32]"))
        self.copy("sort", "dir/demo")
        server = AdminServer(self.top, adapter_dir=self.top / "dir")
        self.assertRegex(server.text(), r"ready: .* and 1 adapters; 3 are broken")
        self.assertRegex(server.text(), "adapter 'demo' is broken and is not served: .*conflicts with a served base model")
        self.assertRegex(server.text(), "adapter 'short' is broken and is not served: .*adapter_model.safetensors")
        self.assertEqual(set(server.cards()), {"demo", "reverse"})
        broken = {card["id"]: card for card in server.json("GET", "/v1/models")[1]["broken"]}
        self.assertEqual(set(broken), {"demo", "short", "wide"})
        self.assertEqual(broken["short"]["root"], str(self.top / "dir/short"))
        # Of a model of another shape: the message names both models.
        reason = broken["wide"]["reason"]
        self.assertRegex(reason, "trained on 'org/larger-model', and the base model here is '.*/demo/model'")
        status, body = server.chat("wide", "abc")
        self.assertEqual(status, 400)
        self.assertIn(reason, body["error"]["message"])
        status, body = server.json("GET", "/v1/models/short")
        self.assertEqual(status, 404)
        self.assertIn("cannot be served", body["error"]["message"])
        self.assertNotIn(str(self.top), body["error"]["message"])   # where it lies is not the client's business
        shutil.rmtree(self.top / "dir/wide")
        shutil.rmtree(self.top / "dir/short")
        shutil.rmtree(self.top / "dir/demo")
        wait_for(lambda: "broken" not in server.json("GET", "/v1/models")[1], "a list without broken adapters")
        server.stop()

    def test_an_adapter_of_another_model_of_the_same_shape_gets_a_warning(self):
        (self.top / "dir").mkdir()
        self.copy("reverse", "dir/reverse")
        self.trained_on(self.copy("rot13", "dir/rot13"), "org/other-model")
        server = AdminServer(self.top, adapter_dir=self.top / "dir")
        for name in ("reverse", "rot13"):
            server.answer(name, "abc")
        cards = server.cards()
        self.assertNotIn("warning", cards["reverse"])
        self.assertIn("trained on 'org/other-model'", cards["rot13"]["warning"])
        self.assertIn("adapter 'rot13': it was trained on 'org/other-model', and the base model here is", server.text())
        self.assertNotIn("adapter 'reverse': it was trained", server.text())
        server.stop()

    def trained_on(self, adapter, model):
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": model}))

    def test_files_that_are_truncated_or_rewritten_under_the_server_never_end_it(self):
        (self.top / "dir").mkdir()
        names = [path.name for path in sorted((DEMO / "adapters").iterdir())]
        for name in names:
            self.copy(name, f"dir/{name}")
        # Neither tier holds all adapters, so each round loads from the disk.
        server = AdminServer(self.top, "--device-memory", "3MiB", "--host-memory", "0", adapter_dir=self.top / "dir")
        asked = questions(1)
        expected = {(model, prompt): server.answer(model, prompt) for model, prompt, _ in asked}
        truncated = self.top / "dir/reverse/adapter_model.safetensors"
        rewritten = self.top / "dir/rot13/adapter_model.safetensors"
        replaced = self.top / "dir/sort/adapter_model.safetensors"
        with open(truncated, "r+b") as file:
            file.truncate(4096)
        data = bytearray(rewritten.read_bytes())
        data[-5000:] = bytes(5000)
        with open(rewritten, "r+b") as file:
            file.write(data)
        (self.top / "new").write_bytes(b"something else")
        (self.top / "new").rename(replaced)   # the old file stays readable for the server
        failed = {"reverse": 0, "rot13": 0}
        for _ in range(3):
            for model, prompt, _ in asked:
                status, body = server.chat(model, prompt)
                if status == 200:
                    self.assertEqual(body["choices"][0]["message"]["content"], expected[model, prompt], model)
                else:
                    self.assertIn(model, failed, body)
                    failed[model] += 1
                    self.assertRegex(body["error"]["message"], "changed in place|became shorter")
        self.assertTrue(all(count > 0 for count in failed.values()), failed)
        self.assertEqual(server.load("rot13", self.copy("rot13", "good"), load_inplace=True)[0], 200)
        self.assertEqual(server.answer("rot13", "abc"), "nop")
        server.stop()


    def spoil(self, folder):
        """Rewrites the weights in place: the file that the server has opened is another then."""
        weights = folder / "adapter_model.safetensors"
        size = weights.stat().st_size
        with open(weights, "r+b") as file:
            file.seek(size // 2)
            file.write(bytes(size - size // 2))
        weights.unlink()

    def test_registered_adapters_answer_from_memory_whatever_becomes_of_their_files(self):
        asked = {model: (prompt, answer) for model, prompt, answer in questions(1)}
        for which, *flags in (("loaded",), ("registered", "--adapters-in-host", "registered"),
                              ("always", "--adapters-in-host", "always"), ("preset", "--preset", "vllm-lora-fifo")):
            reads = which != "loaded"
            directory = self.top / which
            directory.mkdir()
            for name in ("reverse", "rot13"):
                self.copy(name, f"{which}/{name}")
            server = AdminServer(self.top, "--device-memory", "16MiB", "--host-memory", "64MiB", "--adapter-dir-eager",
                                 *flags, adapter_dir=directory)
            in_memory = lambda: server.metric("loramux:adapters", level="cpu")   # noqa: E731
            self.assertEqual(server.load("live", self.copy("sort", f"{which}-live"))[0], 200)
            wait_for(lambda: in_memory() == (3 if reads else 0), lambda: f"{which}: {in_memory()} adapters in memory")
            self.assertEqual(server.metric("loramux:adapters", level="gpu"), 0)
            for folder in (directory / "reverse", directory / "rot13", self.top / f"{which}-live"):
                self.spoil(folder)
            for model, task in (("reverse", "reverse"), ("rot13", "rot13"), ("live", "sort")):
                prompt, answer = asked[task]
                status, body = server.chat(model, prompt)
                if reads:
                    self.assertEqual((status, body["choices"][0]["message"]["content"]), (200, answer), which)
                else:
                    self.assertRegex(body["error"]["message"], "changed in place|became shorter")
            # New content under an old name is read too.
            self.assertEqual(server.load("live", self.copy("rot13", f"{which}-next"), load_inplace=True)[0], 200)
            if reads:
                reads_until_now = 4   # two of the directory, and two versions of `live`
                wait_for(lambda: server.metric("loramux:adapter_disk_reads_total") == reads_until_now, "the new content")
                wait_for(lambda: in_memory() == 1, "its copy")
                self.spoil(self.top / f"{which}-next")
            self.assertEqual(server.answer("live", asked["rot13"][0]), asked["rot13"][1])
            server.stop()


class Restarts(WithFolder):
    FLAGS = ("--device-memory", "16MiB", "--threads", "1", "--log-level", "warn")

    def start(self):
        (self.top / "empty").mkdir(exist_ok=True)
        # "ready" is logged at info.
        return AdminServer(self.top, *self.FLAGS[:-2], "--state-dir", str(self.top / "state"), adapter_dir=self.top / "empty")

    def test_point10_what_was_acknowledged_survives_kill_9(self):
        chosen = random.Random(10)
        adapters = sorted(path for path in (DEMO / "adapters").iterdir())
        known = {}   # name -> the paths that it may have: one where an operation was acknowledged
        for kill in range(20):
            server = self.start()
            roots = {name: card["root"] for name, card in server.cards().items() if name != "demo"}
            for name, choices in known.items():
                self.assertIn(roots.get(name), choices, f"after kill {kill}: {name}")
            self.assertLessEqual(set(roots), set(known))
            known = {name: {path} for name, path in roots.items()}
            if kill % 5 == 0 and roots:
                name = sorted(roots)[0]
                self.assertEqual(server.answer(name, "abc"), self.expected(server, roots[name]))
            killer = threading.Timer(chosen.uniform(0.02, 0.6), server.process.kill)
            killer.start()
            while True:
                name = f"n{chosen.randrange(6)}"
                path = str(chosen.choice(adapters))
                load = chosen.random() < 0.7
                try:
                    status, body = server.load(name, path, load_inplace=True) if load else server.unload(name)
                except (OSError, http.client.HTTPException):
                    # The kill came before the acknowledgement: the operation may have reached the disk or not.
                    known.setdefault(name, {None}).add(path if load else None)
                    break
                self.assertIn(status, (200, 404), body)
                if status == 200:
                    known[name] = {path if load else None}
            killer.join()
            server.process.wait()
            server.log.close()

    def expected(self, server, root):
        self.assertIn(server.load("reference", root)[0], (200,))
        text = server.answer("reference", "abc")
        self.assertEqual(server.unload("reference")[0], 200)
        return text

    def test_a_damaged_journal_is_refused_and_a_torn_record_is_dropped(self):
        server = self.start()
        server.load("a", DEMO / "adapters/reverse")
        server.load("b", DEMO / "adapters/rot13")
        server.process.kill()
        server.process.wait()
        journal = self.top / "state/adapters.journal"
        whole = journal.read_bytes()
        journal.write_bytes(whole[:-3])
        server = self.start()
        self.assertEqual(set(server.cards()), {"demo", "a"})
        self.assertIn("half-written", server.text())
        with self.assertRaisesRegex(RuntimeError, "is a server running on this directory already"):
            self.start()
        server.stop()
        journal.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
        with self.assertRaisesRegex(RuntimeError, "damaged at byte 16"):
            self.start()

    def test_an_adapter_whose_files_are_gone_is_said_and_does_not_stop_the_server(self):
        path = self.copy("reverse", "mine")
        server = self.start()
        self.assertEqual(server.load("mine", path)[0], 200)
        self.assertEqual(server.load("other", DEMO / "adapters/rot13")[0], 200)
        server.stop()
        shutil.rmtree(path)
        server = self.start()
        self.assertRegex(server.text(), "adapter 'mine' could not be restored")
        self.assertEqual(set(server.cards()), {"demo", "other"})
        status, body = server.chat("mine", "abc")
        self.assertEqual(status, 404)
        self.assertIn("could not be restored", body["error"]["message"])
        self.assertEqual(server.unload("mine")[0], 200)
        server.stop()
        self.assertNotIn("could not be restored", (server := self.start()).text())
        server.stop()


if __name__ == "__main__":
    run_tests()
