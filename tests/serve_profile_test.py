#!/usr/bin/env python3
"""`loramux serve --profile`: a profile of this machine, a server that plans by it, the replay of its recording, and profiles that
are refused. Standard library only.

Usage: serve_profile_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO, Server, questions


class ServeProfile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        cls.profile = cls.path / "profile.json"
        run = subprocess.run([serving.LORAMUX, "profile", str(DEMO / "model"), "--quick", "--points", "20", "--seconds", "1",
                              "--engine-seconds", "1", "--threads", "2", "--device-memory", "96MiB", "--max-num-batched-tokens", "64",
                              "--max-num-seqs", "12", "--max-model-len", "256", "--random-adapters", "4", "-o", str(cls.profile)],
                             capture_output=True, text=True, timeout=1800)
        assert run.returncode == 0, run.stderr

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def serve(self, *flags):
        return Server("--threads", "2", "--schedule", "mlq", "--device-memory", "4MiB", "--host-memory", "4MiB", *flags)

    def step_seconds(self, server):
        text = server.request("GET", "/metrics")[1].decode()
        return float(re.search(r"^loramux:profile_step_seconds(?:{[^}]*})? (\S+)$", text, re.M).group(1))

    def test_answers_are_right_and_plans_go_by_it(self):
        asked = questions(4)
        answers = {}
        for flags in ((), ("--profile", str(self.profile), "--record", str(self.path / "recording"))):
            server = self.serve(*flags)
            with concurrent.futures.ThreadPoolExecutor(8) as clients:
                replies = list(clients.map(lambda q: server.chat(q[0], q[1]), asked + asked))
            self.assertEqual({status for status, _ in replies}, {200})
            answers[bool(flags)] = [reply["choices"][0]["message"]["content"] for _, reply in replies]
            server.wait_idle()
            seconds = self.step_seconds(server)
            log = server.stop()
            if flags:
                shown = float(re.search(r"planning with profile .*profile\.json: .* decodes in ([\d.]+) ms", log).group(1))
                self.assertGreater(seconds, 0)
                self.assertAlmostEqual(seconds * 1000, shown, delta=0.001)
            else:
                self.assertEqual(seconds, 0)
                self.assertNotIn("planning with profile", log)
        self.assertEqual(answers[True], answers[False])
        done = subprocess.run([serving.LORAMUX, "simulate", "--replay", str(self.path / "recording"), "--check-every", "50"],
                              capture_output=True, text=True, timeout=1800)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"plans: \d+ compared, all equal")
        self.assertIn("plans by a profile", done.stdout)

    def refused(self, text):
        other = self.path / "other.json"
        other.write_text(text)
        done = subprocess.run([serving.LORAMUX, "serve", str(DEMO / "model"), "--port", "0", "--profile", str(other)],
                              capture_output=True, text=True, timeout=serving.PATIENCE)
        self.assertIn(done.returncode, (1, 2), done.stderr)   # 2: the file is no fit for the flag
        return done.stderr

    def test_what_is_refused(self):
        data = json.loads(self.profile.read_text())
        data["model"]["hidden_size"] = 64
        self.assertRegex(self.refused(json.dumps(data)), r"--profile: .*other\.json: .*another shape.* hidden_size is 64, not 192")
        data = json.loads(self.profile.read_text())
        data["device_kind"] = "cuda"
        data["device"] = "NVIDIA H100"
        self.assertRegex(self.refused(json.dumps(data)), r"--profile: .*other\.json: measured on the device cuda \(NVIDIA H100\), but "
                         r"this is cpu \(.*\): measure with `loramux profile --device cpu`, or choose --device cuda")
        data = json.loads(self.profile.read_text())
        data["mbgmv"]["engine"]["decode_factors"] = [[1, -1]]
        self.assertRegex(self.refused(json.dumps(data)), r"other\.json: mbgmv\.engine\.decode_factors: ")
        self.assertIn("other.json", self.refused("{}"))

    def test_another_variant_is_told(self):
        for variant, told in (("bgmv", True), ("mbgmv", False)):
            server = Server("--threads", "2", "--lora-variant", variant, "--profile", str(self.profile))
            self.assertEqual("its engine ran with the other --lora-variant" in server.stop(), told, variant)

    def test_other_threads_are_told(self):
        server = Server("--threads", "1", "--profile", str(self.profile))
        self.assertIn("measured with 2 threads, but this server uses 1", server.stop())

    def test_another_processor_is_told(self):
        data = json.loads(self.profile.read_text())
        processor = data["device"]
        data["device"] = "an abacus, 2 threads"
        other = self.path / "abacus.json"
        other.write_text(json.dumps(data))
        for path, told in ((other, True), (self.profile, False)):
            log = Server("--threads", "2", "--profile", str(path)).stop()
            self.assertEqual(f"measured on an abacus, 2 threads, but this server computes on {processor}" in log, told, log)

    def test_the_simulator_reads_it(self):
        done = subprocess.run([serving.LORAMUX, "simulate", "--model", str(DEMO / "model"), "--profile", str(self.profile), "--rate", "20",
                               "--requests", "100", "--input-mean", "30", "--output-mean", "8", "--adapters", "4", "--ranks", "8",
                               "--preset", "loramux,mlq"], capture_output=True, text=True, timeout=serving.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    serving.run_tests()
