#!/usr/bin/env python3
"""`loramux batch` on the demo: answers, errors, exit status, and a run that was killed and goes on.

Usage: batch_test.py PATH_OF_LORAMUX
"""
import json
import pathlib
import signal
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO, PATIENCE, questions, wait_for


def chat(model, prompt, **more):
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 100, **more}


class Batch(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.input = pathlib.Path(directory.name) / "in.jsonl"
        self.output = pathlib.Path(directory.name) / "out.jsonl"

    def write(self, items):
        self.input.write_text("".join(
            json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"
            for custom_id, url, body in items), encoding="utf-8")

    def command(self, *flags):
        return [serving.LORAMUX, "batch", str(self.input), "-o", str(self.output), str(DEMO / "model"),
                "--served-model-name", "demo", "--adapter-dir", str(DEMO / "adapters"), "--device-memory", "64MiB", *flags]

    def run_batch(self, *flags):
        return subprocess.run(self.command(*flags), capture_output=True, text=True, timeout=PATIENCE, check=False)

    def answers(self):
        lines = [json.loads(line) for line in self.output.read_text(encoding="utf-8").splitlines()]
        answers = {line["custom_id"] or line["id"]: line for line in lines}
        self.assertEqual(len(answers), len(lines))
        return answers

    def test_every_api(self):
        items = [(f"q{i}", "/v1/chat/completions", chat(model, prompt)) for i, (model, prompt, _) in enumerate(questions(1))]
        items += [("r", "/v1/responses", {"model": "upper", "input": "hello", "temperature": 0}),
                  ("m", "/v1/messages", chat("upper", "hello")),
                  ("g", "/generate", {"inputs": "<|bos|><|user|>hello<|end|><|assistant|>",
                                      "parameters": {"adapter_id": "upper"}}),
                  ("e", "/v1/embeddings", {"model": "upper", "input": ["hello", "world"]}),
                  ("t", "/tokenize", {"prompt": "hello"})]
        self.write(items)
        run = self.run_batch()
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn(f"{len(items)} lines", run.stderr)
        answers = self.answers()
        for i, (_, _, expected) in enumerate(questions(1)):
            response = answers[f"q{i}"]["response"]
            self.assertEqual(response["status_code"], 200)
            self.assertEqual(response["body"]["choices"][0]["message"]["content"], expected)
        self.assertEqual(answers["r"]["response"]["body"]["output"][0]["content"][0]["text"], "HELLO")
        self.assertEqual(answers["m"]["response"]["body"]["content"][0]["text"], "HELLO")
        self.assertEqual(answers["g"]["response"]["body"]["generated_text"], "HELLO")
        self.assertEqual([len(one["embedding"]) for one in answers["e"]["response"]["body"]["data"]],
                         [json.loads((DEMO / "model/config.json").read_text())["hidden_size"]] * 2)
        self.assertGreater(answers["t"]["response"]["body"]["count"], 0)

    def test_template_and_tokenizer_of_the_operator(self):
        template = self.input.with_name("template.jinja")
        template.write_text("<|bos|><|user|>hello<|end|><|assistant|>", encoding="utf-8")
        self.write([("a", "/v1/chat/completions", chat("upper", "another text"))])
        run = self.run_batch("--chat-template", str(template))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.answers()["a"]["response"]["body"]["choices"][0]["message"]["content"], "HELLO")
        run = self.run_batch("--tokenizer", str(self.input.parent))
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("tokenizer", run.stderr)

    def test_errors_are_lines_and_a_status(self):
        self.write([("bad", "/v1/chat/completions", chat("unknown", "x")), ("url", "/v1/nothing", {}),
                    ("good", "/v1/chat/completions", chat("upper", "hello"))])
        run = self.run_batch()
        self.assertEqual(run.returncode, 3, run.stderr)
        answers = self.answers()
        self.assertEqual(answers["bad"]["response"]["status_code"], 404)
        self.assertEqual(answers["url"]["error"]["code"], "invalid_url")
        self.assertEqual(answers["good"]["response"]["body"]["choices"][0]["message"]["content"], "HELLO")
        self.assertEqual(self.run_batch().returncode, 3)   # nothing is asked again, and the errors still count

    def test_files_that_cannot_be_used(self):
        self.write([("a", "/tokenize", {"prompt": "x"})])
        self.output.write_text("not a batch\n", encoding="utf-8")
        run = self.run_batch()
        self.assertEqual(run.returncode, 1)
        self.assertIn("no output of a batch", run.stderr)
        self.assertEqual(self.output.read_text(encoding="utf-8"), "not a batch\n")
        self.output = self.input
        self.assertIn("another file", self.run_batch().stderr)
        self.output = pathlib.Path("/dev/full")   # reading it never ends
        run = self.run_batch()
        self.assertEqual(run.returncode, 1)
        self.assertIn("/dev/full: cannot be written: No space left on device", run.stderr)
        self.output = pathlib.Path("/dev/null")
        self.assertEqual(self.run_batch().returncode, 0)

    def test_a_killed_run_goes_on(self):
        # Long enough that the kill comes between two lines. Where it came is checked below.
        items = [(f"c{i}", "/v1/chat/completions", chat("count", "hello", max_tokens=100, ignore_eos=True, min_tokens=100))
                 for i in range(200)]
        self.write(items)
        process = subprocess.Popen(self.command("--concurrency", "2"), stderr=subprocess.DEVNULL)
        wait_for(lambda: self.output.exists() and self.output.read_bytes().count(b"\n") >= 2, "two lines of output")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        before = self.output.read_bytes()
        whole = before.count(b"\n")
        self.assertLess(whole, len(items))
        with self.output.open("ab") as file:   # as if the kill had come within a line
            file.write(b'{"id":"batch_req_')
        self.write(items[:whole + 4])
        run = self.run_batch()
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(self.output.read_bytes().startswith(before[:before.rfind(b"\n") + 1]))
        self.assertGreaterEqual(len(self.answers()), whole + 4)


if __name__ == "__main__":
    serving.run_tests()
