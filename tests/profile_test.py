#!/usr/bin/env python3
"""`loramux profile` on the demo model, with a budget too small for good figures: the file is complete, of the documented
form, and plausible. No figure has a bound that a slow or busy machine could exceed. Standard library only.

Usage: profile_test.py PATH_OF_LORAMUX
"""
import csv
import json
import math
import pathlib
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO

SMALL = ["--quick", "--points", "40", "--seconds", "1", "--engine-seconds", "1", "--threads", "2", "--device-memory", "96MiB",
         "--max-num-batched-tokens", "64", "--max-num-seqs", "12", "--max-model-len", "256"]


# Of which the whole path takes seconds where the CPU plays a GPU.
TINY = ["--quick", "--points", "24", "--seconds", "1", "--engine-seconds", "1", "--threads", "2", "--device-memory", "16MiB",
        "--host-memory", "8MiB", "--max-num-batched-tokens", "32", "--max-num-seqs", "4", "--max-model-len", "64"]


def profile(*arguments, model=DEMO / "model"):
    return subprocess.run([serving.LORAMUX, "profile", str(model), *map(str, arguments)], capture_output=True, text=True, timeout=1800)


class Profile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check_file(self, path, ranks, targets):
        text = path.read_text()
        data = json.loads(text)
        self.assertEqual((data["format"], data["version"]), ("loramux-performance-profile", 5))
        self.assertEqual(data["device_kind"], "cpu")
        self.assertEqual(data["adapters"], {"ranks": ranks, "targets": targets})
        self.assertEqual(data["model"]["hidden_size"], 192)
        self.assertEqual(data["model"]["page_tokens"], 16)
        self.assertEqual(data["threads"], 2)
        self.assertEqual(data["largest_step"], {"batch_tokens": 64, "sequences": 12, "positions": 256})
        for shape in ("mbgmv", "bgmv"):
            seconds = data[shape]["seconds"]
            self.assertTrue(all(math.isfinite(value) and value >= 0 for value in seconds.values()), seconds)
            self.assertGreater(sum(seconds.values()), 0)
            self.assertGreater(data[shape]["held_out"]["points"], 0)
            self.assertEqual(data[shape]["held_out"]["points"] + data[shape]["fitted"]["points"], 40)
        engine = data["mbgmv"]["engine"]
        self.assertGreater(engine["held_out"]["points"], 0)
        self.assertEqual(engine["held_out"]["points"], engine["held_out_linear"]["points"])
        self.assertTrue(engine["decode_factors"])
        for table in ("decode_factors", "prefill_factors", "mixed_factors"):
            tokens = [at[0] for at in engine[table]]
            self.assertEqual(tokens, sorted(set(tokens)))
            self.assertTrue(all(factor > 0 for _, factor in engine[table]), engine)
        self.assertEqual(data["bgmv"]["engine"]["decode_factors"], [])   # the engine ran with the other variant
        self.assertGreater(data["requests_per_second"], 0)
        times = [at for at, _ in data["pace"]["changes"]]
        self.assertTrue(times)
        self.assertEqual(times, sorted(set(times)))
        self.assertLess(times[-1], data["pace"]["period_seconds"])
        self.assertTrue(all(factor > 0 and math.isfinite(factor) for _, factor in data["pace"]["changes"]), data["pace"])
        self.assertGreater(data["between_steps_seconds"], 0)
        for link in data["links"].values():
            self.assertGreater(link["bytes_per_second"], 0)
            self.assertGreater(link["fitted"]["points"], 0)
        return data

    def test_adapters_that_are_given(self):
        output, table = self.folder / "profile.json", self.folder / "steps.csv"
        run = profile(*SMALL, "--lora-modules", f"a={DEMO}/adapters/reverse", f"b={DEMO}/adapters/upper", "-o", output,
                      "--measurements", table)
        self.assertEqual(run.returncode, 0, run.stderr)
        ranks = sorted(json.loads((DEMO / "adapters" / name / "adapter_config.json").read_text())["r"]
                       for name in ("reverse", "upper"))
        data = self.check_file(output, ranks, "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")
        self.assertRegex(data["model"]["digest"], "^[0-9a-f]{32}$")
        self.assertIn("steps held out", run.stdout)
        self.assertIn("the engine's steps, with factors", run.stdout)
        with open(table) as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 80)   # 40 points, both shapes
        self.assertTrue(all(float(row["seconds"]) > 0 for row in rows))
        self.assertTrue(any(int(row["held_out"]) for row in rows))
        self.assertEqual([row["held_out"] for row in rows[:40]], [row["held_out"] for row in rows[40:]])

    def test_random_adapters_and_weights(self):
        model = self.folder / "shape"
        model.mkdir()
        (model / "config.json").write_text((DEMO / "model/config.json").read_text())
        scratch = self.folder / "scratch"
        scratch.mkdir()
        output = self.folder / "profile.json"
        run = profile(*SMALL, "--random-weights", "--ranks", "4,16", "--random-adapters", "5", "--lora-targets",
                      "q_proj,down_proj", "--scratch", scratch, "-o", output, model=model)
        self.assertEqual(run.returncode, 0, run.stderr)
        data = self.check_file(output, [4, 4, 4, 16, 16], "q_proj,down_proj")
        self.assertEqual(data["model"]["digest"], "random")
        self.assertEqual(list(scratch.iterdir()), [])
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["profile.json", "scratch", "shape"])

    def test_the_emulated_device(self):
        output, table = self.folder / "profile.json", self.folder / "steps.csv"
        run = profile(*TINY, "--device", "emulated", "--ranks", "4,16", "--random-adapters", "3", "-o", output, "--measurements",
                      table)
        self.assertEqual(run.returncode, 0, run.stderr)
        data = json.loads(output.read_text())
        self.assertEqual((data["device_kind"], data["threads"]), ("emulated", 2))
        self.assertRegex(data["device"], "^emulated on .*, 2 threads$")
        self.assertIn(f"on {data['device']}; 3 adapters", run.stdout)
        self.assertEqual(data["adapters"]["ranks"], [4, 4, 16])
        with open(table) as file:
            rows = list(csv.DictReader(file))
        mbgmv, bgmv = rows[:24], rows[24:]
        self.assertEqual([row["seconds"] for row in mbgmv], [row["seconds"] for row in bgmv])   # one set of LoRA kernels
        self.assertTrue(any(int(row["adapter_tokens"]) for row in mbgmv))
        # The device's work is in the times: a row passes 6 layers of this model, each launch some hundred fibers.
        for row in mbgmv:
            tokens = int(row["prefill_tokens"]) + int(row["decode_sequences"])
            self.assertGreater(float(row["seconds"]), 1e-4 + 1e-5 * tokens, row)
        for shape in ("mbgmv", "bgmv"):
            self.assertEqual(data[shape]["held_out"]["points"] + data[shape]["fitted"]["points"], 24)
            self.assertGreater(sum(data[shape]["seconds"].values()), 1e-4)
        self.assertGreater(data["mbgmv"]["engine"]["held_out"]["points"], 0)
        for link in data["links"].values():
            self.assertGreater(link["fitted"]["points"], 0)

    def test_a_missing_gpu(self):
        if pathlib.Path("/dev/nvidiactl").exists():
            self.skipTest("this machine has a GPU")
        output = self.folder / "profile.json"
        run = profile(*TINY, "--device", "cuda", "-o", output)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, r"--device cuda: this machine has no NVIDIA GPU.*--device cpu")
        self.assertFalse(output.exists())

    def test_what_cannot_be(self):
        output = self.folder / "profile.json"
        for arguments, expected in [
                (["-o", self.folder / "no/such/folder/profile.json"], "no/such/folder"),
                (["-o", output, "--lora-targets", "lm_head"], "--lora-targets"),
                (["-o", output, "--scratch", "/no/such/folder"], "--scratch"),
                (["-o", output, "--device-memory", "1MiB"], "--device-memory"),
                (["-o", output, "--ranks", "0"], "--ranks"),
                (["-o", output, "--lora-modules", "a=/no/such/adapter"], "/no/such/adapter")]:
            run = profile(*arguments)
            self.assertNotEqual(run.returncode, 0, arguments)
            self.assertIn(expected, run.stderr)
            self.assertEqual(list(self.folder.iterdir()), [])   # no partial file


if __name__ == "__main__":
    serving.run_tests()
