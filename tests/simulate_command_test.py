#!/usr/bin/env python3
"""`loramux simulate` as its users meet it: the table, the files that it writes, its errors. Standard library only.

Usage: simulate_command_test.py PATH_OF_LORAMUX
"""
import html.parser
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

LORAMUX = ""


def simulate(*arguments):
    return subprocess.run([LORAMUX, "simulate", *arguments], capture_output=True, text=True, timeout=300)


def write_trace(path):
    rows = [f"2023-11-16 18:{15 + i // 60}:{i % 60:02}.5000000,{40 + 37 * i % 500},{3 + 11 * i % 60}" for i in range(120)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "\r\n".join(rows) + "\r\n")


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.counts, self.loads = {}, []

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [value for name, value in attributes if name in ("src", "href")]


class Simulate(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        write_trace(self.path / "trace.csv")
        self.load = ["--trace", str(self.path / "trace.csv"), "--rate", "4", "--adapters", "10", "--seed", "3"]

    def tearDown(self):
        self.folder.cleanup()

    def test_a_trace_under_two_presets(self):
        done = simulate(*self.load, "--preset", "chameleon,s-lora", "--json", str(self.path / "a.json"), "--html",
                        str(self.path / "a.html"), "--find-load", "--check-every", "50")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertTrue(any(line.startswith("chameleon ") for line in lines), done.stdout)
        self.assertIn("sustained/s", done.stdout)
        report = json.loads((self.path / "a.json").read_text())
        self.assertEqual([run["preset"] for run in report["presets"]], ["chameleon", "s-lora"])
        for run in report["presets"]:
            self.assertEqual(run["requests"]["finished"], 120)
            self.assertEqual(run["ttft_ms"]["count"], 120)
            self.assertLessEqual(run["ttft_ms"]["p50"], run["ttft_ms"]["p99"])
            self.assertGreater(run["sustained"]["requests_per_s"], 0)
            pages = {sum(s[k] for k in ("free_pages", "running_kv_pages", "history_pages", "adapter_pages")) for s in run["over_time"]}
            self.assertEqual(pages, {report["device_pages"]})
        cached, discarded = report["presets"]
        self.assertLess(cached["adapters"]["loads"], discarded["adapters"]["loads"])
        page = (self.path / "a.html").read_text()
        tags = Tags()
        tags.feed(page)
        self.assertGreaterEqual(tags.counts["svg"], 7)
        self.assertEqual(tags.loads, [])   # of one piece
        self.assertNotIn("nan", page.lower().replace("finance", ""))

    def test_the_same_seed_writes_the_same_bytes(self):
        for name in ("a", "b"):
            self.assertEqual(simulate(*self.load, "--json", str(self.path / name)).returncode, 0)
        drop = lambda name: [line for line in (self.path / name).read_text().splitlines() if '"command"' not in line]
        self.assertEqual(drop("a"), drop("b"))
        self.assertEqual(simulate(*self.load[:-1], "4", "--json", str(self.path / "c")).returncode, 0)
        self.assertNotEqual(drop("a"), drop("c"))

    def test_a_model_and_adapters_of_ones_own(self):
        demo = pathlib.Path(__file__).resolve().parent.parent / "demo"
        done = simulate("--model", str(demo / "model"), "--adapter-dir", str(demo / "adapters"), "--rate", "50", "--requests", "60",
                        "--lora-targets", "q,v", "--host-link", "2.5", "--preset", "loramux")
        self.assertEqual(done.returncode, 0, done.stderr)
        adapters = len(list((demo / "adapters").glob("*/adapter_config.json")))
        self.assertIn(f"{adapters} adapters", done.stdout)

    def test_presets_are_explained(self):
        done = simulate("--list-presets")
        self.assertEqual(done.returncode, 0)
        for name in ("loramux", "s-lora", "chameleon-nocache", "fastlibra-wol", "vllm-lora-batch32"):
            self.assertIn(name, done.stdout)

    def test_errors_say_what_to_do(self):
        for arguments, words in ((["--rate", "1", "--preset", "orca"], "chameleon-nosched"),
                                 (["--rate", "1", "--device", "tpu"], "a100-80"),
                                 (["--rate", "1", "--model", "gpt"], "llama-70b"),
                                 (["--rate", "1", "--device", "a10", "--model", "llama-70b"], "--gpus"),
                                 (["--rate", "1", "--schedule", "lifo"], "mlq-static"),
                                 (["--rate", "1", "--adapter-dir", str(self.path)], "adapter_config.json"),
                                 (["--requests", "10"], "requests per second"),
                                 (["--rate", "1", "--trace", "/no/such"], "/no/such")):
            done = simulate(*arguments)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertIn(words, done.stderr, arguments)


if __name__ == "__main__":
    LORAMUX = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
