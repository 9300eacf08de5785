#!/usr/bin/env python3
"""A small run of the benchmark behind docs/results/cache_scenarios.md: its page, its figures and its plots.

Usage: cache_scenarios_test.py CACHE_SCENARIOS
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROFILE = ROOT / "src/costs/testdata/corpus/performance_profile/version_4.json"
PROGRAM = None
REGIMES = ["lru", "vllm", "s-lora"]


def run(folder, *arguments):
    return subprocess.run([PROGRAM, "--demo", str(ROOT / "demo"), "--output", str(folder), *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1800)


class CacheScenarios(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.result = run(cls.path, "--scenarios", "chat,translate", "--memory", "70", "--regimes", ",".join(REGIMES),
                         "--adapters", "33", "--rate", "70", "--seconds", "2", "--repetitions", "1", "--pairs", "1")
        cls.json = json.loads((cls.path / "cache_scenarios.json").read_text()) if cls.result.returncode == 0 else None

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def cell(self, scenario, regime):
        return next(c for c in self.json["cells"] if (c["scenario"], c["regime"]) == (scenario, regime))["runs"][0]

    def setUp(self):
        self.assertEqual(self.result.returncode, 0, self.result.stderr)

    def test_every_answer_is_right_and_timed(self):
        self.assertEqual(len(self.json["cells"]), 2 * len(REGIMES))
        for cell in self.json["cells"]:
            for figures in cell["runs"]:
                self.assertEqual(figures["wrong_answers"] + figures["failed"], 0, cell)
                self.assertGreater(figures["requests"], 10)
                self.assertGreater(figures["ttft_mean_ms"], 0)
                self.assertGreaterEqual(figures["ttft_p99_ms"], figures["ttft_p50_ms"])
                self.assertGreater(figures["tpot_mean_ms"], 0)
                self.assertGreater(figures["device_adapter_bytes"] + figures["device_free_bytes"], 0)
                self.assertLessEqual(figures["device_invalid_history_bytes"], figures["device_history_bytes"])

    def test_regimes_differ_as_they_must(self):
        for scenario in ("chat", "translate"):
            self.assertGreater(self.cell(scenario, "lru")["prefix_hit_device"], 0.05)
            self.assertEqual(self.cell(scenario, "lru")["invalid_history"], 0)   # lru keeps the dependency
            self.assertEqual(self.cell(scenario, "s-lora")["prefix_hit_device"], 0)   # s-lora keeps no history
            self.assertEqual(self.cell(scenario, "s-lora")["kv_device_to_host_bytes"], 0)
            self.assertGreater(self.cell(scenario, "s-lora")["adapters_host_to_device_bytes"], 0)
        self.assertGreater(self.cell("translate", "vllm")["invalid_history"], 0)
        self.assertGreater(self.cell("chat", "lru")["adapters_disk_to_host_bytes"], 0)

    def test_the_page_has_a_row_for_every_cell_and_its_plots_exist(self):
        page = (self.path / "cache_scenarios.md").read_text()
        for regime in REGIMES:
            self.assertEqual(page.count(f"\n| `{regime}` |"), 2)
        self.assertIn("0 of all answers were wrong or missing", page)
        for scenario in ("chat", "translate"):
            for plot in ("ttft", "memory"):
                name = f"cache_scenarios_{scenario}_{plot}.svg"
                self.assertIn(f"({name})", page)
                svg = xml.etree.ElementTree.parse(self.path / name).getroot()
                shapes = "circle" if plot == "ttft" else "polygon"
                self.assertGreaterEqual(len(list(svg.iter("{http://www.w3.org/2000/svg}" + shapes))), len(REGIMES))

    def test_ours_runs_beside_the_best_other(self):
        page = (self.path / "cache_scenarios.md").read_text()
        self.assertEqual([d["scenario"] for d in self.json["duels"]], ["chat", "translate"])
        for duel in self.json["duels"]:
            means = {regime: self.cell(duel["scenario"], regime)["ttft_mean_ms"] for regime in REGIMES}
            self.assertEqual(duel["other"], min(means, key=means.get))
            ours, other = (duel[key][0]["ttft_geometric_mean_ms"] for key in ("our_runs", "other_runs"))
            row = next(line for line in page.splitlines() if line.startswith(f"| {duel['scenario']} | 70 % |"))
            self.assertIn(f"`{duel['other']}` | {ours / other:.3f} (", row)
            self.assertLessEqual(ours, duel["our_runs"][0]["ttft_mean_ms"])

    def simulate(self, folder, profile, *arguments):
        done = run(folder, "--scenarios", "translate", "--memory", "60", "--regimes", "loramux,lru,s-lora", "--adapters", "22", "--rate", "60",
                   "--seconds", "2", "--repetitions", "0", "--simulated", "3", "--profile", str(profile), *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads((pathlib.Path(folder) / "cache_scenarios.json").read_text())

    def test_virtual_time_is_exact_and_chooses_the_regime_that_ours_is_compared_with(self):
        with tempfile.TemporaryDirectory() as folder:
            figures = self.simulate(folder, PROFILE, "--pairs", "1")
            runs = {cell["regime"]: cell["runs"] for cell in figures["simulated"]}
            self.assertEqual({regime: len(of) for regime, of in runs.items()}, {"loramux": 3, "lru": 3, "s-lora": 3})
            for of in runs.values():
                for figure in of:
                    self.assertGreater(figure["end_to_end_mean_ms"], figure["ttft_mean_ms"])
                    self.assertGreaterEqual(figure["ttft_mean_ms"], figure["ttft_geometric_mean_ms"])
            for ours, lru, slora in zip(runs["loramux"], runs["lru"], runs["s-lora"]):
                self.assertEqual(slora["tokens_computed"], 1)   # s-lora keeps no history
                self.assertLess(ours["tokens_computed"], 0.95)
                self.assertGreater(slora["ttft_mean_ms"], lru["ttft_mean_ms"])
            self.assertEqual([duel["other"] for duel in figures["duels"]], ["lru"])
            logs = [math.log(a["ttft_mean_ms"] / b["ttft_mean_ms"]) for a, b in zip(runs["loramux"], runs["lru"])]
            page = (pathlib.Path(folder) / "cache_scenarios.md").read_text()
            row = next(line for line in page.splitlines() if line.startswith("| translate | 60 % |") and "±" in line)
            self.assertEqual(row.split("|")[4].split(), [f"{math.exp(sum(logs) / 3):.3f}", "±", row.split("|")[4].split()[2], "(`lru`)"])
            self.assertFalse(list(pathlib.Path(folder).glob("*.svg")))   # plots show real runs only
            self.assertEqual(self.simulate(folder, PROFILE)["simulated"], figures["simulated"])

    def test_all_regimes_may_be_given_one_share_for_adapters(self):
        with tempfile.TemporaryDirectory() as folder:
            free, bound = ({cell["regime"]: cell["runs"] for cell in self.simulate(folder, PROFILE, "--adapter-share", share)["simulated"]}
                           for share in ("0", "0.25"))
            for regime in ("loramux", "lru"):   # s-lora keeps less than that in any case
                self.assertEqual(len(bound[regime]), 3)
                self.assertNotEqual(free[regime], bound[regime])

    def test_virtual_time_is_that_of_the_profile(self):
        profile = json.loads(PROFILE.read_text())
        with tempfile.TemporaryDirectory() as folder:
            slow = pathlib.Path(folder) / "slow.json"
            profile["links"]["host_to_device"]["latency_seconds"] += 0.02
            slow.write_text(json.dumps(profile))
            fast = self.simulate(folder, PROFILE)["simulated"]
            for a, b in zip(fast, self.simulate(folder, slow)["simulated"]):
                for before, after in zip(a["runs"], b["runs"]):
                    self.assertGreater(after["ttft_mean_ms"], before["ttft_mean_ms"] + 1)
            none = run(folder, "--simulated", "3")
            self.assertNotEqual(none.returncode, 0)
            self.assertIn("--profile", none.stderr + none.stdout)

    def test_a_scenario_that_cannot_run_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            none = run(folder, "--scenarios", "agent", "--dialogs", "no/such/file")
            self.assertEqual(none.returncode, 1)
            self.assertIn("no/such/file", none.stderr)
            tiny = run(folder, "--scenarios", "translate", "--memory", "1", "--regimes", "lru", "--adapters", "11", "--rate", "20",
                       "--seconds", "1", "--repetitions", "1")
            self.assertEqual(tiny.returncode, 1)
            self.assertIn("--device-memory", tiny.stderr)
            self.assertIn("could not run", (pathlib.Path(folder) / "cache_scenarios.md").read_text())


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
