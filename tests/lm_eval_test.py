#!/usr/bin/env python3
"""lm-eval (lm-evaluation-harness), unmodified: with an adapter of the server as model it gives the scores and the
log-likelihoods that it gives with transformers and PEFT. `tests/clients/install.sh all` installs it; this file runs itself
again with the Python that has it.

Usage: lm_eval_test.py PATH_OF_LORAMUX
"""
import json
import os
import pathlib
import tempfile
import unittest

import serving
from serving import DEMO, Server

ADAPTERS = ("base", "sort", "piglatin", "upper")   # lm-eval asks the base model as "demo"
DOCUMENTS = 25      # of each task
TOLERANCE = 1e-3    # of one log-likelihood, which sums up to some dozen tokens; both sides compute in float32
PROMPT = "<|bos|><|user|>{{prompt}}<|end|><|assistant|>"   # as the demo's template writes it

# YAML is a superset of JSON. The documents have a prompt, four possible answers and which of them is right.
TASKS = {
    # What of four answers is most likely: the server tells the log-probabilities of the prompt.
    "demo_choice": {"output_type": "multiple_choice", "doc_to_text": "{{prompt}}", "doc_to_choice": "{{choices}}",
                    "doc_to_target": "right", "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
    # How likely is the answer, and is it the greedy one?
    "demo_likelihood": {"output_type": "loglikelihood", "doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}",
                        "target_delimiter": "", "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}]},
    # How likely is a whole text?
    "demo_rolling": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": PROMPT + "{{answer}}<|end|>",
                     "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
    "demo_generate": {"output_type": "generate_until", "doc_to_text": "{{prompt}}", "doc_to_target": "{{answer}}",
                      "target_delimiter": "", "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 80},
                      "metric_list": [{"metric": "exact_match"}]},
}


def samples(name):
    lines = (DEMO / f"eval/{name}.jsonl").read_text(encoding="utf-8").splitlines()[:DOCUMENTS]
    return [json.loads(line) for line in lines]


def write_tasks(folder, adapter):
    """Writes the tasks about an adapter and their documents."""
    documents = []
    own = samples(adapter)
    for place, sample in enumerate(own):
        answer, other = sample["answer"], own[(place + 1) % len(own)]["answer"]
        choices = [sample["prompt"], answer, answer[:1] + answer[2:3] + answer[1:2] + answer[3:], other]
        right = place % 4
        choices.insert(right, choices.pop(1))
        documents.append({**sample, "choices": choices, "right": right})
    data = folder / f"{adapter}.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    for name, task in TASKS.items():
        source = {"task": f"{name}_{adapter}", "dataset_path": "json", "test_split": "test",
                  "dataset_kwargs": {"data_files": {"test": str(data)}}}
        (folder / f"{name}_{adapter}.yaml").write_text(json.dumps({**source, **task}), encoding="utf-8")


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Keys, values and adapters in float32 as on the other side: what remains is the order of additions.
        cls.server = Server("--device-memory", "128MiB", "--host-memory", "64MiB", "--kv-cache-dtype", "f32", "--lora-dtype", "f32")
        cls.tasks = lm_eval.tasks.TaskManager(include_path=str(FOLDER), include_defaults=False)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def evaluate(self, adapter, kinds, model, arguments, **more):
        """The results and the samples of the tasks about `adapter`, by kind."""
        results = lm_eval.simple_evaluate(
            model=model, model_args=arguments, tasks=[f"demo_{kind}_{adapter}" for kind in kinds], task_manager=self.tasks,
            log_samples=True, bootstrap_iters=0, **more)
        return {kind: (results["results"][f"demo_{kind}_{adapter}"], results["samples"][f"demo_{kind}_{adapter}"])
                for kind in kinds}

    def by_transformers(self, adapter, kinds, **more):
        arguments = {"pretrained": str(DEMO / "model"), "dtype": "float32", "device": "cpu"}
        if adapter != "base":
            arguments["peft"] = str(DEMO / "adapters" / adapter)
        return self.evaluate(adapter, kinds, "hf", arguments, batch_size=8, **more)

    def by_server(self, adapter, kinds, model="local-completions", path="completions", of=None, **more):
        chat = {} if model == "local-chat-completions" else {"tokenizer": str(DEMO / "model"), "tokenizer_backend": "huggingface"}
        arguments = {"model": "demo" if adapter == "base" else of or adapter, "num_concurrent": 4, "max_retries": 1,
                     "base_url": f"http://127.0.0.1:{self.server.port}/v1/{path}", **chat, **more.pop("arguments", {})}
        return self.evaluate(adapter, kinds, model, arguments, **more)

    def assert_same(self, found, expected):
        for kind, (results, samples) in expected.items():
            for name, value in results.items():
                if isinstance(value, float):   # scores, and not the names of the task
                    self.assertAlmostEqual(found[kind][0][name] / (value or 1), value / (value or 1), delta=TOLERANCE, msg=name)
            self.assertEqual(len(samples), DOCUMENTS)
            for one, other in zip(found[kind][1], samples, strict=True):
                self.assertEqual(one["doc"], other["doc"])
                self.assert_same_answers(one["filtered_resps"], other["filtered_resps"], kind)

    def assert_same_answers(self, found, expected, kind):
        if kind == "generate":
            return self.assertEqual(found, expected)
        for one, other in zip(found, expected, strict=True):
            one, other = (pair if isinstance(pair, (tuple, list)) else (pair,) for pair in (one, other))
            self.assertLess(abs(one[0] - other[0]), TOLERANCE, kind)
            self.assertEqual(one[1:], other[1:], kind)   # whether it is the greedy answer

    def test_scores_and_likelihoods(self):
        kinds = ("choice", "likelihood", "generate")
        for adapter in ADAPTERS:
            expected = self.by_transformers(adapter, kinds, apply_chat_template=True)
            self.assert_same(self.by_server(adapter, kinds, apply_chat_template=True), expected)
            chat = self.by_server(adapter, ["generate"], "local-chat-completions", "chat/completions", apply_chat_template=True)
            self.assert_same(chat, {"generate": expected["generate"]})

    def test_whole_texts(self):
        for adapter in ADAPTERS:
            expected = self.by_transformers(adapter, ["rolling"])
            self.assert_same(self.by_server(adapter, ["rolling"]), expected)

    def test_the_tokenizer_of_the_server(self):
        remote = {"tokenizer": None, "tokenizer_backend": "remote"}
        expected = self.by_server("sort", ["rolling"])
        self.assert_same(self.by_server("sort", ["rolling"], arguments=remote), expected)

    def test_another_adapter_is_another_model(self):
        expected = self.by_transformers("sort", ["choice"], apply_chat_template=True)
        other = self.by_server("sort", ["choice"], of="upper", apply_chat_template=True)
        with self.assertRaises(AssertionError):
            self.assert_same(other, expected)
        self.assertGreater(expected["choice"][0]["acc,none"], other["choice"][0]["acc,none"])


if __name__ == "__main__":
    serving.use_clients("lm-eval")
    with tempfile.TemporaryDirectory() as name:
        FOLDER = pathlib.Path(name)
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=str(FOLDER / "cache"), TOKENIZERS_PARALLELISM="false")
        import lm_eval
        import lm_eval.tasks
        for adapter in ADAPTERS:
            write_tasks(FOLDER, adapter)
        serving.run_tests()
