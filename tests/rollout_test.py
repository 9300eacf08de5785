#!/usr/bin/env python3
"""Log-probabilities of rollouts: mixed batches of several adapters, sampled in every way, through /inference/v1/generate, in
each --logprobs-mode, before and after a reload of an adapter, in answers of more than 200 tokens.

Usage: rollout_test.py PATH_OF_LORAMUX [--transformers [--markdown FILE]]
  --transformers   also compares with transformers and PEFT in float32 (tests/clients/install.sh all)
  --markdown FILE  writes what that finds into FILE, between its marks
Without it, standard library only: each mode's numbers are computed again from the log-probabilities of the whole vocabulary.
"""
import concurrent.futures
import json
import math
import pathlib
import sys
import tempfile
import unittest

import serving
from serving import DEMO, Server

MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
IN_FLOATS = ("--weights", "f32", "--embedding-weights", "f32", "--kv-cache-dtype", "f32", "--lora-dtype", "f32")
LONG = 220   # tokens of the long answers
LISTED = list(range(0, 264, 3))
MASKED = -9999.0
# How a request samples; one of each kind that the sampler has, and all at once.
WAYS = [{}, {"temperature": 0}, {"temperature": 0.7}, {"temperature": 1.3, "top_k": 12}, {"top_p": 0.8}, {"min_p": 0.1},
        {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
        {"presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": {"112": 2.5, "113": -100}, "top_p": 0.95},
        {"temperature": 0, "frequency_penalty": 0.4}, {"repetition_penalty": 1.2, "presence_penalty": -0.2, "top_k": 40}]
ADAPTERS = ("demo", "upper", "reverse", "count", "live")
EXACT = 2e-5   # of a log-probability
# By how much a log-probability may differ from that of transformers and PEFT in float32: the most, and the mean. In float32,
# one in 1,000 may differ by more than EXACT, because transformers itself is up to 2.5e-5 from float64 in so many tokens.
IN_FLOAT32 = 4e-5, 2e-6
BOUNDS = {"f32": IN_FLOAT32, "bf16, the rest f32": IN_FLOAT32, "bf16": (0.25, 0.005), "q8": (2.0, 0.03)}
ASK_TRANSFORMERS, MARKDOWN = False, None


def rollouts():
    """(model, prompt ids, sampling parameters) of a mixed batch: each adapter in each way, every third answer long."""
    asked = []
    for i, model in enumerate(ADAPTERS):
        for j, way in enumerate(WAYS):
            prompt = [1] + [ord(letter) + 8 for letter in f"{model} {j} rolls out"][:5 + 3 * j]
            more = {"max_tokens": LONG, "ignore_eos": True} if (i + j) % 3 == 0 else {"max_tokens": 24}
            asked.append((model, prompt, {**way, **more, "seed": 100 * i + j}))
    return asked


def generate(server, model, prompt, params, **more):
    status, answer = server.json("POST", "/inference/v1/generate", {
        "model": model, "token_ids": prompt, "sampling_params": {"logprobs": 0, **params, **more}})
    assert status == 200, answer
    choice = answer["choices"][0]
    content = choice["logprobs"]["content"]
    assert [entry["token_id"] for entry in content] == choice["token_ids"]
    assert answer["usage"]["completion_tokens"] == len(content)
    return content


def all_at_once(server, asked, **more):
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda one: generate(server, *one, **more), asked))


def ids_of(content):
    return [entry["token_id"] for entry in content]


def told(content):
    return [entry["logprob"] for entry in content]


def load_live(server, adapter):
    status, text = server.request("POST", "/v1/load_lora_adapter", {
        "lora_name": "live", "lora_path": str(DEMO / "adapters" / adapter), "load_inplace": True})
    assert status == 200, text


def rescored(server, model, prompt, ids):
    """The log-probabilities of the whole vocabulary at each place of an answer."""
    status, answer = server.json("POST", "/v1/completions", {
        "model": model, "prompt": prompt + ids, "max_tokens": 0, "prompt_logprobs": -1})
    assert status == 200, answer
    rows = answer["choices"][0]["prompt_logprobs"][len(prompt):]
    return [[row[str(token)]["logprob"] for token in range(264)] for row in rows]


def adjusted(row, params, prompt, before):
    """The logits after biases and penalties."""
    row = list(row)
    for token, bias in params.get("logit_bias", {}).items():
        row[int(token)] += bias
    for token in {*prompt, *before}:
        penalty = params.get("repetition_penalty", 1)
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token in set(before):
        row[token] -= params.get("frequency_penalty", 0) * before.count(token) + params.get("presence_penalty", 0)
    return row


def drawn(row, params, prompt, before):
    """The logits of what a token is drawn from; -infinity for what cannot be drawn."""
    row = adjusted(row, params, prompt, before)
    temperature = params.get("temperature", 1)
    if temperature == 0:
        return row
    row = [value / temperature for value in row]
    most = max(row)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    kept = [token for token in order if math.exp(row[token] - most) >= params.get("min_p", 0)]
    kept = kept[:params.get("top_k") or len(kept)]
    total, share, place = sum(math.exp(row[token] - most) for token in kept), 0.0, 0
    while place < len(kept) and (place == 0 or params.get("top_p", 1) == 1 or share < params["top_p"] * total):
        share += math.exp(row[kept[place]] - most)
        place += 1
    return [row[token] if token in kept[:place] else -math.inf for token in range(len(row))]


def normalised(row):
    most = max(row)
    total = most + math.log(sum(math.exp(value - most) for value in row))
    return [value - total for value in row]


class EveryMode(unittest.TestCase):
    """Weights in float32, so that every number can be computed again from what the server says of the whole vocabulary."""

    @classmethod
    def setUpClass(cls):
        cls.servers = {mode: Server("--logprobs-mode", mode, *IN_FLOATS, "--enable-runtime-lora", "--insecure-no-admin-key",
                                    "--allowed-adapter-root", str(DEMO)) for mode in MODES}
        for server in cls.servers.values():
            load_live(server, "sort")
        cls.asked = rollouts()
        cls.found = {mode: all_at_once(server, cls.asked, logprob_token_ids=LISTED) for mode, server in cls.servers.items()}

    @classmethod
    def tearDownClass(cls):
        for server in cls.servers.values():
            server.wait_idle()
            server.stop()

    def test_the_server_tells_its_mode(self):
        for mode, server in self.servers.items():
            config = server.json("GET", "/server_info")[1]["vllm_config"]
            self.assertEqual(config["model_config"]["logprobs_mode"], mode)

    def test_the_mode_changes_no_token(self):
        for mode in MODES[1:]:
            self.assertEqual([ids_of(answer) for answer in self.found[mode]],
                             [ids_of(answer) for answer in self.found[MODES[0]]])
        self.assertGreater(sum(len(answer) >= 200 for answer in self.found[MODES[0]]), 10)

    def test_the_batch_changes_no_number(self):
        for mode, server in self.servers.items():
            for one, together in list(zip(self.asked, self.found[mode], strict=True))[::7]:
                self.assertEqual(generate(server, *one, logprob_token_ids=LISTED), together)

    def test_raw_numbers_are_those_of_the_same_tokens_as_a_prompt(self):
        """Bit by bit, by the version that answered."""
        server = self.servers["raw_logprobs"]
        self.check_raw(server, self.asked, self.found["raw_logprobs"])
        before = [answer for (model, *_), answer in zip(self.asked, self.found["raw_logprobs"]) if model == "live"]
        load_live(server, "double")
        try:
            asked = [one for one in self.asked if one[0] in ("live", "upper")]
            after = all_at_once(server, asked)
            self.check_raw(server, asked, after)
            changed = [answer for (model, *_), answer in zip(asked, after) if model == "live"]
            self.assertNotEqual([ids_of(answer) for answer in changed], [ids_of(answer) for answer in before])
        finally:
            load_live(server, "sort")

    def check_raw(self, server, asked, answers):
        for (model, prompt, _), answer in zip(asked, answers, strict=True):
            rows = rescored(server, model, prompt, ids_of(answer))
            self.assertEqual(told(answer), [row[token] for row, token in zip(rows, ids_of(answer), strict=True)])

    def test_processed_numbers_are_those_of_the_draw(self):
        masked = 0
        for place, (model, prompt, params) in enumerate(self.asked):
            logprobs, logits = self.found["processed_logprobs"][place], self.found["processed_logits"][place]
            raw_logits = self.found["raw_logits"][place]
            ids = ids_of(logprobs)
            rows = rescored(self.servers["processed_logprobs"], model, prompt, ids)
            for i, row in enumerate(rows):
                # What a log-probability lacks of the logit.
                shift = raw_logits[i]["logprob"] - row[ids[i]]
                expected = drawn([value + shift for value in row], params, prompt, ids[:i])
                expected_logprobs = normalised(expected)
                self.assertGreater(expected[ids[i]], -math.inf)
                self.assertAlmostEqual(logprobs[i]["logprob"], expected_logprobs[ids[i]], delta=EXACT)
                self.assertAlmostEqual(logits[i]["logprob"], expected[ids[i]], delta=1e-4)
                listed = logprobs[i]["top_logprobs"]
                self.assertEqual([entry["token_id"] for entry in listed],
                                 [ids[i], *(token for token in LISTED if token != ids[i])])
                for entry, logit in zip(listed, logits[i]["top_logprobs"], strict=True):
                    if expected[entry["token_id"]] == -math.inf:
                        self.assertEqual((entry["logprob"], logit["logprob"]), (MASKED, MASKED))
                        masked += 1
                    else:
                        self.assertAlmostEqual(entry["logprob"], expected_logprobs[entry["token_id"]], delta=1e-4)
                        self.assertAlmostEqual(logit["logprob"], expected[entry["token_id"]], delta=1e-3)
        self.assertGreater(masked, 10000)

    def test_raw_logits_differ_from_log_probabilities_by_a_constant(self):
        for logits, logprobs in zip(self.found["raw_logits"], self.found["raw_logprobs"], strict=True):
            for one, other in zip(logits, logprobs, strict=True):
                shifts = [a["logprob"] - b["logprob"] for a, b in zip(one["top_logprobs"], other["top_logprobs"], strict=True)]
                self.assertLess(max(shifts) - min(shifts), 1e-4)
                self.assertNotAlmostEqual(shifts[0], 0, delta=1e-3)

    def test_chats_and_completions_tell_the_same(self):
        server = self.servers["processed_logprobs"]
        model, prompt, params = self.asked[6]
        completion = {"model": model, "prompt": prompt, **params, "logprobs": 2, "logprob_token_ids": [5, 9, 5],
                      "return_tokens_as_token_ids": True, "return_token_ids": True}
        choice = server.json("POST", "/v1/completions", completion)[1]["choices"][0]
        expected = self.found["processed_logprobs"][6]
        self.assertEqual(choice["logprobs"]["token_logprobs"], told(expected))
        for top, entry in zip(choice["logprobs"]["top_logprobs"], expected, strict=True):
            self.assertEqual(set(top), {f"token_id:{token}" for token in (entry["token_id"], 5, 9)})
        chat = {"model": model, "messages": [{"role": "user", "content": "hello"}], "logprobs": True, "seed": 3,
                "max_tokens": 5, "logprob_token_ids": [5, 9], "return_tokens_as_token_ids": True, "top_p": 0.5}
        content = server.json("POST", "/v1/chat/completions", chat)[1]["choices"][0]["logprobs"]["content"]
        for entry in content:
            names = [top["token"] for top in entry["top_logprobs"]]
            self.assertEqual(names, list(dict.fromkeys([entry["token"], "token_id:5", "token_id:9"])))

    def test_logits_do_not_choose_the_best_of_several(self):
        body = {"inputs": "hi", "parameters": {"best_of": 2, "do_sample": True, "max_new_tokens": 3}}
        status, answer = self.servers["raw_logits"].json("POST", "/generate", body)
        self.assertEqual(status, 400, answer)
        self.assertIn("parameters.best_of", answer["error"])
        self.assertEqual(self.servers["processed_logprobs"].json("POST", "/generate", body)[0], 200)

    def test_streams_have_the_same_numbers(self):
        server = self.servers["processed_logprobs"]
        model, prompt, params = self.asked[3]
        connection = serving.http.client.HTTPConnection("127.0.0.1", server.port, timeout=serving.PATIENCE)
        connection.request("POST", "/inference/v1/generate", json.dumps({
            "model": model, "token_ids": prompt, "stream": True, "request_id": "mine", "stream_options": {"include_usage": True},
            "sampling_params": {**params, "logprobs": 0, "logprob_token_ids": LISTED}}), {"Content-Type": "application/json"})
        content, ids, usage = [], [], None
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                self.assertEqual(event["request_id"], "generate-tokens-mine")
                usage = event["usage"]
                for choice in event["choices"]:
                    content += choice["logprobs"]["content"]
                    ids += choice["token_ids"]
        connection.close()
        self.assertEqual((content, ids), (self.found["processed_logprobs"][3], ids_of(content)))
        self.assertEqual(usage["completion_tokens"], len(ids))

    def test_a_router_passes_it_on(self):
        server = self.servers["raw_logprobs"]
        router = Server.run([serving.LORAMUX, "route", "--servers", f"127.0.0.1:{server.port}", "--port", "0"])
        serving.wait_for(lambda: router.request("GET", "/server_info")[0] == 200, "a server behind the router")
        self.assertEqual(generate(router, *self.asked[0], logprob_token_ids=LISTED), self.found["raw_logprobs"][0])
        router.stop()


def write_float_base(folder):
    """A base of float32: the demo's model with its weights moved off the 16-bit values."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(str(DEMO / "model"), dtype=torch.float32)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1 + 0.004 * torch.rand_like(weights))
    model.save_pretrained(str(folder))
    AutoTokenizer.from_pretrained(str(DEMO / "model")).save_pretrained(str(folder))


class Reference:
    """transformers and PEFT in float32 on the weights of a folder."""

    def __init__(self, folder):
        self.folder, self.models = str(folder), {}

    def logits(self, content, prompt, ids):
        import torch
        if content not in self.models:
            from peft import PeftModel
            from transformers import AutoModelForCausalLM
            model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
            if content != "demo":
                model = PeftModel.from_pretrained(model, str(DEMO / "adapters" / content))
            self.models[content] = model.eval()
        with torch.no_grad():
            rows = self.models[content](torch.tensor([prompt + ids])).logits[0].double()
        return rows[len(prompt) - 1:-1].tolist()


class Transformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not ASK_TRANSFORMERS:
            raise unittest.SkipTest("the long form asks transformers and PEFT (--transformers)")
        cls.folder = tempfile.TemporaryDirectory()
        cls.floats = pathlib.Path(cls.folder.name) / "base"
        write_float_base(cls.floats)
        cls.lines = {}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        if MARKDOWN is not None:
            head, rest = MARKDOWN.read_text(encoding="utf-8").split("<!-- rollouts -->\n")
            table = ["| base | flags | mode | tokens | largest difference | mean difference | bounds of both |", "|---|---|---|---|---|---|---|",
                     *(line for name in BOUNDS for line in cls.lines[name])]
            MARKDOWN.write_text("\n".join([head + "<!-- rollouts -->", *table, "<!-- end of rollouts -->"]) +
                                rest.split("<!-- end of rollouts -->", 1)[1], encoding="utf-8")

    def compare(self, name, base, *flags):
        reference = Reference(base)
        self.lines[name] = []
        for mode in MODES[:2]:
            server = Server.run([serving.LORAMUX, "serve", str(base), "--served-model-name", "demo", "--adapter-dir",
                                 str(DEMO / "adapters"), "--port", "0", "--logprobs-mode", mode, *flags,
                                 "--enable-runtime-lora", "--insecure-no-admin-key", "--allowed-adapter-root", str(DEMO)])
            differences = []
            for content in ("sort", "double"):   # what `live` is
                load_live(server, content)
                for (model, prompt, params), answer in zip(rollouts(), all_at_once(server, rollouts()), strict=True):
                    ids = ids_of(answer)
                    rows = reference.logits(content if model == "live" else model, prompt, ids)
                    if mode == "processed_logprobs":
                        rows = [drawn(row, params, prompt, ids[:i]) for i, row in enumerate(rows)]
                    expected = [normalised(row)[token] for row, token in zip(rows, ids, strict=True)]
                    differences += [abs(a - b) for a, b in zip(told(answer), expected, strict=True)]
            server.stop()
            inside = [difference for difference in differences if difference < math.inf]
            largest, mean = max(inside), sum(inside) / len(inside)
            beyond = sum(difference > EXACT for difference in differences)
            cut = len(differences) - len(inside)   # the reference's thresholds leave the token out
            print(f"{name} {mode}: {len(differences)} tokens, largest {largest:.2e}, mean {mean:.2e}, {beyond} beyond {EXACT}, "
                  f"{cut} cut", flush=True)
            shown = f"`{' '.join(flags)}`" if flags else "none"
            self.lines[name].append(f"| {name} | {shown} | {mode} | "
                                    f"{len(differences):,} | {largest:.1e} | {mean:.1e} | {BOUNDS[name][0]:g}, {BOUNDS[name][1]:g} |")
            self.assertLessEqual(largest, BOUNDS[name][0])
            self.assertLessEqual(mean, BOUNDS[name][1])
            self.assertLessEqual(cut, len(differences) / (1000 if BOUNDS[name] == IN_FLOAT32 else 50))
            if BOUNDS[name] == IN_FLOAT32:
                self.assertLessEqual(beyond, len(differences) / 1000)

    def test_a_base_in_float32(self):
        self.compare("f32", self.floats, "--kv-cache-dtype", "f32", "--lora-dtype", "f32")

    def test_a_base_in_bf16(self):
        self.compare("bf16", DEMO / "model")

    def test_a_base_in_bf16_beside_float32(self):
        self.compare("bf16, the rest f32", DEMO / "model", "--kv-cache-dtype", "f32", "--lora-dtype", "f32")

    def test_a_base_in_8_bits(self):
        self.compare("q8", DEMO / "model", "--weights", "q8")


if __name__ == "__main__":
    if "--transformers" in sys.argv:
        serving.use_clients("lm-eval")
        sys.argv.remove("--transformers")
        ASK_TRANSFORMERS = True
    if "--markdown" in sys.argv:
        MARKDOWN = pathlib.Path(sys.argv.pop(sys.argv.index("--markdown") + 1))
        sys.argv.remove("--markdown")
    serving.run_tests()
