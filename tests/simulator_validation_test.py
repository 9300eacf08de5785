#!/usr/bin/env python3
"""A small run of the program behind docs/results/simulator_validation.md: its page, its figures, and runs in parts. The test
does not compare measured with simulated times, because they agree on a quiet machine only.

Usage: simulator_validation_test.py SIMULATOR_VALIDATION
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = None
SHORT = ["--saturation", "40", "--adapters", "6", "--input-mean", "24", "--output-mean", "8", "--profile-seconds", "1"]
SMALL = [*SHORT, "--seconds", "2.5"]


def run(folder, *arguments):
    return subprocess.run([PROGRAM, "--demo", str(ROOT / "demo"), "--output", str(folder), *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1800)


class SimulatorValidation(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def report(self):
        xml.etree.ElementTree.parse(self.path / "simulator_validation.svg")
        return json.loads((self.path / "simulator_validation.json").read_text())

    def test_in_parts(self):
        runs = ["--runs", str(self.path / "runs.jsonl")]
        first = run(self.path, *SMALL, *runs, "--repetitions", "1", "--loads", "50", "--presets", "fifo,s-lora", "--steps", str(self.path / "s"))
        self.assertIn(first.returncode, (0, 2), first.stderr)
        self.assertEqual(len(self.report()["runs"]), 2)
        second = run(self.path, *SMALL, *runs, "--repetitions", "1", "--loads", "80,50", "--presets", "fifo")
        self.assertIn(second.returncode, (0, 2), second.stderr)
        again = run(self.path, *SMALL, *runs, "--repetitions", "0")
        self.assertEqual(again.returncode, second.returncode, again.stderr)
        data = self.report()
        self.assertEqual([(cell["preset"], cell["load_percent"]) for cell in data["cells"]],
                         [("fifo", 50), ("s-lora", 50), ("fifo", 80)])
        self.assertEqual(len(data["runs"]), 4)
        for one in data["runs"]:
            self.assertGreater(one["fitted_steps"], 0)   # a slow machine makes few
            self.assertEqual(one["saturation"], 40)
            for side in ("real", "simulated", "even", "beside", "linear", "once"):
                self.assertTrue(all(value > 0 for value in one[side].values()), one)
        page = (self.path / "simulator_validation.md").read_text()
        self.assertEqual(page.count("| 50 % | `s-lora` |"), 3)
        steps = (self.path / "s.fifo.50.0.steps.csv").read_text().splitlines()
        requests = (self.path / "s.fifo.50.0.requests.csv").read_text().splitlines()
        self.assertGreater(len(steps), 1)   # one is the header
        self.assertEqual(len(requests) - 1, next(r for r in data["runs"] if r["preset"] == "fifo")["requests"])

    def test_refuses(self):
        for arguments, message in ((["--presets", "nonsense"], "preset: expected one of"), (["--repetitions", "0"], "expected at least one run"),
                                   (["--runs", "/dev/full", "--repetitions", "1"], "/dev/full")):
            result = run(self.path, *SMALL, "--loads", "50", *arguments)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn(message, result.stderr)
        result = run(self.path, *SHORT, "--loads", "50", "--presets", "fifo", "--seconds", "0.1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--seconds", result.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
