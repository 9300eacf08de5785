#!/usr/bin/env python3
"""`loramux simulate` on the command line: its table, the files that it writes, its errors. Standard library only.

Usage: simulate_command_test.py PATH_OF_LORAMUX
"""
import html.parser
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

LORAMUX = ""
DEMO = pathlib.Path(__file__).resolve().parent.parent / "demo"


def simulate(*arguments):
    return subprocess.run([LORAMUX, "simulate", *arguments], capture_output=True, text=True, errors="replace",
                          timeout=1800)


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
        self.assertEqual(tags.loads, [])   # the page loads nothing
        self.assertNotIn("nan", page.lower().replace("finance", ""))

    def test_a_fleet_and_its_size(self):
        fleet = ["--device", "a10", "--requests", "200", "--trace", str(self.path / "trace.csv"), "--rate", "40", "--adapters", "30",
                 "--seed", "3", "--adapters-on-disk", "--slo", "1"]
        files = ["--json", str(self.path / "f.json"), "--html", str(self.path / "f.html")]
        done = simulate(*fleet, "--servers", "2", "--find-servers", "--share", "0.9", "--policy", "loramux,random", *files)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("adapters that", done.stdout)
        report = json.loads((self.path / "f.json").read_text())
        self.assertEqual([run["policy"] for run in report["policies"]], ["loramux", "random"])
        for run in report["policies"]:
            self.assertEqual(run["size"]["servers"], len(run["servers"]))
            self.assertGreaterEqual(run["attained"]["share"], 0.9)
            self.assertEqual(sum(adapter["requests"] for adapter in run["adapters"]), 200)
            fewer = [probe for probe in run["size"]["probes"] if probe["servers"] == run["size"]["servers"] - 1]
            self.assertTrue(run["size"]["servers"] == 1 or fewer[0]["attained"] < 0.9)
        tags = Tags()
        tags.feed((self.path / "f.html").read_text())
        self.assertGreaterEqual(tags.counts["svg"], 7)
        self.assertEqual(tags.loads, [])
        done = simulate(*fleet, "--servers", "5", "--fail", "crash@1+1:0,drain@2:1", "--drift", "2", "--routers", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        for arguments, text in ((["--servers", "2", "--policy", "nonsense"], "nonsense"), (["--routers", "2"], "--servers"),
                                (["--servers", "2", "--fail", "crash@1:7"], "below 2"),
                                (["--servers", "2", "--preset", "loramux,vllm"], "expected one with")):
            refused = simulate(*fleet, *arguments)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(text, refused.stderr)

    def test_how_many_machines_an_own_trace_needs(self):
        rows = [f"{i / 40},{100 + 37 * i % 500},{3 + 11 * i % 60},{('sql', 'law', '')[i % 3]}" for i in range(300)]
        own = self.path / "own.csv"
        own.write_text("\n".join(["arrival,prompt_tokens,output_tokens,adapter", *rows]) + "\n")
        ask = ["--trace", str(own), "--device", "l4", "--model", "llama-3-8b", "--find-servers"]
        done = simulate(*ask, "--gpus", "1,2", "--preset", "loramux,vllm", "--json", str(self.path / "m.json"), "--html",
                        str(self.path / "m.html"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout.splitlines()[0], r"^This trace needs [0-9]+ of L4 24 GB.* with preset (loramux|vllm)\.$")
        self.assertIn("99 % of requests with TTFT within 2 s, TPOT within 100 ms (the default)", done.stdout.replace("2.00 s", "2 s"))
        self.assertIn("2 adapters", done.stdout)
        report = json.loads((self.path / "m.json").read_text())
        self.assertEqual(report["answer"], done.stdout.splitlines()[0])
        self.assertEqual(len(report["machines"]), 4)
        best = report["machines"][0]
        self.assertEqual(best["known"], "exact")
        self.assertEqual(best["gpus"], best["servers"] * best["gpus_per_server"])
        self.assertGreaterEqual(report["policies"][0]["attained"]["share"], 0.99)
        self.assertIn(report["answer"], (self.path / "m.html").read_text())
        own.write_text("arrival,prompt_tokens,output_tokens\n1,2,3\n2,many,3\n")
        refused = simulate(*ask)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("own.csv, line 3, column 2 (prompt_tokens): expected a whole number", refused.stderr)

    def test_the_same_seed_writes_the_same_bytes(self):
        for name in ("a", "b"):
            self.assertEqual(simulate(*self.load, "--json", str(self.path / name)).returncode, 0)
        drop = lambda name: [line for line in (self.path / name).read_text().splitlines() if '"command"' not in line]
        self.assertEqual(drop("a"), drop("b"))
        self.assertEqual(simulate(*self.load[:-1], "4", "--json", str(self.path / "c")).returncode, 0)
        self.assertNotEqual(drop("a"), drop("c"))

    def test_too_little_memory_is_said_and_is_no_crash(self):
        if "asan" in LORAMUX or "tsan" in LORAMUX:
            self.skipTest("sanitizers reserve more address space than this allows")
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
        done = subprocess.run([LORAMUX, "simulate", "--requests", "50000000", "--rate", "10"], capture_output=True, text=True,
                              preexec_fn=limit, timeout=1800)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("loramux: not enough memory", done.stderr)

    def test_another_model_and_other_adapters(self):
        done = simulate("--model", str(DEMO / "model"), "--adapter-dir", str(DEMO / "adapters"), "--rate", "50", "--requests", "60",
                        "--lora-targets", "q,v", "--host-link", "2.5", "--preset", "loramux")
        self.assertEqual(done.returncode, 0, done.stderr)
        adapters = len(list((DEMO / "adapters").glob("*/adapter_config.json")))
        self.assertIn(f"{adapters} adapters", done.stdout)

    def profile_of(self, factor, **model):
        """A profile of the demo model's shape. A step takes `factor` x 10 ms, and links move 1 GB/s."""
        demo = {"name": "demo", "digest": "random", "hidden_size": 192, "num_layers": 6, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32,
                "intermediate_size": 512, "vocab_size": 264, "dtype": "BF16", "kv_dtype": "BF16", "page_tokens": 16} | model
        quality = {"points": 10, "r2": 0.9, "mean_error": 0.1, "p90_error": 0.2}
        terms = ["per_prefill_token", "per_prefill_sequence", "per_decode_sequence", "per_prefill_attention", "per_prefill_context",
                 "per_decode_context", "per_token_tile", "per_adapter", "per_adapter_token", "dense_floor", "floor"]
        def fitted(*own):
            return {"seconds": dict.fromkeys([*terms, *own], 0) | {"step": 0.009 * factor}, "token_tile": 0} | dict.fromkeys(
                ["fitted", "held_out", "held_out_prefill", "held_out_decode", "held_out_mixed", "caraserve_decode"], quality)
        link = {"latency_seconds": 0, "bytes_per_second": 1e9, "fitted": quality}
        path = self.path / f"profile-{factor}.json"
        path.write_text(json.dumps({
            "format": "loramux-performance-profile", "version": 1, "device": "a test's", "threads": 2, "unix_seconds": 1,
            "model": demo, "adapters": {"ranks": [8], "targets": "q_proj"},
            "largest_step": {"batch_tokens": 512, "sequences": 64, "positions": 1024}, "repeat_error": 0,
            "mbgmv": fitted("per_adapter_token_rank", "per_rank"), "bgmv": fitted("per_padded_rank", "per_padded_adapter"),
            "between_steps_seconds": 0.001 * factor,
            "links": {"disk": link, "host_to_device": link, "device_to_host": link}}))
        return str(path)

    def test_a_measured_profile_sets_the_times(self):
        for factor in (1, 3):
            done = simulate("--model", str(DEMO / "model"), "--profile", self.profile_of(factor), "--rate", "0.5", "--requests", "40",
                            "--input-mean", "50", "--output-mean", "8", "--adapters", "2", "--ranks", "8", "--preset", "loramux",
                            "--json", str(self.path / "a.json"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("a test's", done.stdout)
            report = json.loads((self.path / "a.json").read_text())
            self.assertAlmostEqual(report["presets"][0]["tpot_ms"]["p50"], 10 * factor, delta=0.01)

    def test_a_machine_with_a_changing_pace(self):
        arguments = ["--model", str(DEMO / "model"), "--profile", self.profile_of(1), "--rate", "0.5", "--requests", "40", "--input-mean",
                     "50", "--output-mean", "8", "--adapters", "2", "--ranks", "8", "--preset", "loramux", "--pace",
                     str(self.path / "pace.csv"), "--slo", "0"]
        low_load = set()
        for factor in (1, 3):
            (self.path / "pace.csv").write_text(f"seconds,factor\n0,{factor}\n")
            done = simulate(*arguments, "--json", str(self.path / "a.json"))
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads((self.path / "a.json").read_text())
            self.assertAlmostEqual(report["presets"][0]["tpot_ms"]["p50"], 9 * factor + 1, delta=0.01)   # 1 ms between steps
            low_load.add(report["low_load_e2e_ms"])
        self.assertEqual(len(low_load), 1)   # the objective follows from the model's own pace
        (self.path / "pace.csv").write_text("seconds,factor\n0,0\n")
        done = simulate(*arguments)
        self.assertEqual(done.returncode, 2)
        self.assertIn("pace.csv:2: expected seconds,factor", done.stderr)

    def test_a_profile_of_a_restless_machine(self):
        """The simulated machine repeats the pace of the profile, unless a flag sets another."""
        path = pathlib.Path(self.profile_of(1))
        profile = json.loads(path.read_text())
        profile |= {"version": 4, "submit_latency_seconds": 0, "requests_per_second": 100,
                    "pace": {"period_seconds": 1e-3, "changes": [[0, 3]]}}
        for shape in ("mbgmv", "bgmv"):
            quality = profile[shape]["held_out"]
            profile[shape]["engine"] = {
                "decode_factors": [], "prefill_factors": [], "mixed_factors": [], "after_prefill_seconds": 0, "after_prefill_decay": 0,
                "after_prefill_per_sequence_seconds": 0, "held_out": quality, "held_out_linear": quality}
        path.write_text(json.dumps(profile))
        (self.path / "pace.csv").write_text("seconds,factor\n0,2\n")
        arguments = ["--model", str(DEMO / "model"), "--profile", str(path), "--rate", "0.5", "--requests", "40", "--input-mean", "50",
                     "--output-mean", "8", "--adapters", "2", "--ranks", "8", "--preset", "loramux"]
        for flags, factor in (([], 3), (["--steady"], 1), (["--pace", str(self.path / "pace.csv")], 2)):
            done = simulate(*arguments, *flags, "--json", str(self.path / "a.json"))
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads((self.path / "a.json").read_text())
            self.assertAlmostEqual(report["presets"][0]["tpot_ms"]["p50"], 9 * factor + 1, delta=0.01)   # 1 ms between steps
        self.assertNotEqual(simulate("--rate", "1", "--steady").returncode, 0)   # there is no profile

    def test_a_profile_of_another_model_is_refused(self):
        other = self.profile_of(1, hidden_size=64)
        self.assertIn("another shape", simulate("--rate", "1", "--model", str(DEMO / "model"), "--profile", other).stderr)
        self.assertIn("one device", simulate("--rate", "1", "--model", str(DEMO / "model"), "--profile", self.profile_of(2), "--gpus",
                                             "2").stderr)
        (self.path / "profile.json").write_text("{}")
        self.assertIn("profile.json", simulate("--rate", "1", "--model", str(DEMO / "model"), "--profile",
                                               str(self.path / "profile.json")).stderr)

    def test_arguments_may_be_any_bytes(self):
        trace = os.fsencode(self.path) + b"/tr\xe4ce.csv"
        (self.path / "trace.csv").rename(os.fsdecode(trace))
        done = simulate("--trace", trace, "--rate", "4", "--adapters", "2", "--json", str(self.path / "a.json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tr\ufffdce", json.loads((self.path / "a.json").read_text())["command"])

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
                                 (["--rate", "1", "--gpus", "1,2"], "--find-servers"),
                                 (["--rate", "1", "--device", "this-cpu"], "loramux profile"),
                                 (["--rate", "1", "--input-cv", "nan"], "--input-cv"),
                                 (["--rate", "1", "--think-seconds", "inf"], "--think-seconds"),
                                 (["--rate", "1", "--model", "x" * 5000], "llama-70b"),
                                 (["--rate", "1", "--trace", "/no/such"], "/no/such")):
            done = simulate(*arguments)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertIn(words, done.stderr, arguments)


if __name__ == "__main__":
    LORAMUX = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
