#!/usr/bin/env python3
"""`mpirun -n 2 loramux serve --tensor-parallel-size 2`: the answers of one process, and what happens when a process is killed
or stopped. Needs mpirun and the plugin libloramux_mpi.so beside the program.

Usage: group_test.py PATH_OF_LORAMUX
       GROUP_ROUNDS=50 group_test.py PATH_OF_LORAMUX   # so many processes are killed or stopped
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import serving

# As root in a container, more processes than cores; a process that dies does not end the others before they have said so
# (then mpirun's own status says nothing).
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--enable-recovery", "--mca",
          "odls_base_sigkill_timeout", "5"]


def serve_command(ranks, adapters, *flags, model=serving.DEMO / "model"):
    return [serving.LORAMUX, "serve", str(model), "--served-model-name", "demo", "--adapter-dir", str(adapters), "--port", "0",
            "--tensor-parallel-size", str(ranks), "--threads", "1", *flags]


class Group(serving.Server):
    """A server of several processes."""

    def __init__(self, ranks, adapters, *flags):
        self.start([*MPIRUN, "-n", str(ranks), *serve_command(ranks, adapters, *flags)])
        self.pids = self.find_ranks(ranks)

    def find_ranks(self, ranks):
        """The process of each rank."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) != self.process.pid:
                    continue
                environment = dict(part.split("=", 1) for part in (entry / "environ").read_text().split("\0") if "=" in part)
                found[int(environment["OMPI_COMM_WORLD_RANK"])] = int(entry.name)
            except (OSError, KeyError):
                continue
        assert sorted(found) == list(range(ranks)), found
        return [found[rank] for rank in range(ranks)]

    def stop(self, timeout=serving.PATIENCE):
        os.kill(self.pids[0], signal.SIGTERM)
        status = self.process.wait(timeout=timeout)
        assert status == 0, f"ended with {status}:\n{self.text()}"
        return self.text()

    def gone(self):
        """Whether no process of a rank is left."""
        return not any(pathlib.Path(f"/proc/{pid}").exists() and
                       " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in self.pids)


def essence(answer):
    """What of an answer must not differ."""
    status, body = answer
    assert status == 200, body
    choice = body["choices"][0]
    return choice["message"]["content"], choice["finish_reason"], choice["logprobs"]


class GroupTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.adapters = pathlib.Path(cls.folder.name) / "adapters"
        shutil.copytree(serving.DEMO / "adapters", cls.adapters)
        for copy, of in (("upper-2", "upper"), ("reverse-2", "reverse")):   # sixteen in all
            shutil.copytree(serving.DEMO / "adapters" / of, cls.adapters / copy)
        cls.questions = serving.questions(3)
        cls.questions += [(f"{model}-2", prompt, answer) for model, prompt, answer in cls.questions
                          if model in ("upper", "reverse")]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def ask_all(self, server):
        """All questions at once, then again: the second time the prompts come from the prefix cache."""
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return [list(pool.map(lambda q: essence(server.chat(q[0], q[1], logprobs=True, top_logprobs=3)), self.questions))
                    for _ in range(2)]

    def test_answers_of_one_process(self):
        # Room for a few adapters and sequences, so that adapters and pages move between the tiers.
        flags = ["--device-memory", "3MiB", "--host-memory", "6MiB"]
        one = serving.Server("--threads", "1", *flags, adapter_dir=self.adapters)
        expected = self.ask_all(one)
        one.stop()
        group = Group(2, self.adapters, *flags)
        found = self.ask_all(group)
        self.assertEqual(found, expected)
        self.assertGreater(group.metric("vllm:lora_adapter_load_seconds_count") or 0, 16)
        text = group.stop()
        group.log.close()
        self.assertIn("all memory is accounted for", text)
        serving.wait_for(group.gone, "the end of all ranks")

    def lose(self, rank, how, busy):
        """Starts a group, takes `rank` away, and returns how the group ended and the answers of the requests that ran."""
        group = Group(2, self.adapters, "--group-timeout", "2", "--drain-timeout", "5")
        answers = []

        def ask(prompt):
            try:
                answers.append(group.json("POST", "/v1/completions", {
                    "model": "demo", "prompt": prompt, "max_tokens": 900, "ignore_eos": True}))
            except OSError as error:
                answers.append(error)
        threads = [threading.Thread(target=ask, args=(f"number {i}",)) for i in range(4 if busy else 0)]
        for thread in threads:
            thread.start()
        if busy:
            group.wait_until_busy(2)
        os.kill(group.pids[rank], how)
        began = time.monotonic()
        try:
            if rank == 0:
                serving.wait_for(lambda: not alive(group.pids[1]), "the end of rank 1", 60)
            else:
                serving.wait_for(lambda: not alive(group.pids[0]), "the end of rank 0", 60)
        finally:
            for pid in group.pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        seconds = time.monotonic() - began
        group.process.wait(timeout=60)
        for thread in threads:
            thread.join(timeout=60)
        text = group.text()
        group.log.close()
        return answers, seconds, text

    def check_lost(self, how, busy):
        answers, seconds, text = self.lose(1, how, busy)
        self.assertIn("loramux serve: rank 1 of 2 is lost", text)
        for answer in answers:
            self.assertIsInstance(answer, tuple, f"{answer}\n{text}")
            self.assertIn("rank 1 of 2 is lost", json.dumps(answer[1]))
        self.assertLess(seconds, 60)
        return text

    def test_a_killed_rank_is_named(self):
        for busy in (True, False):
            with self.subTest(busy=busy):
                self.check_lost(signal.SIGKILL, busy)

    def test_a_stopped_rank_is_named(self):
        for busy in (True, False):
            with self.subTest(busy=busy):
                self.check_lost(signal.SIGSTOP, busy)

    def test_ranks_end_when_rank_0_does(self):
        for how in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(how=how):
                text = self.lose(0, how, busy=True)[-1]
                self.assertIn("loramux serve: rank 0 of 2 is lost", text)

    @unittest.skipUnless(os.environ.get("GROUP_ROUNDS"), "GROUP_ROUNDS says how many")
    def test_rounds(self):
        for i in range(int(os.environ["GROUP_ROUNDS"])):
            with self.subTest(round=i):
                how = (signal.SIGKILL, signal.SIGSTOP)[i % 2]
                if i % 5 == 4:
                    self.lose(0, how, busy=True)
                else:
                    self.check_lost(how, busy=i % 3 != 2)

    def fails(self, *commands):
        """What a group that cannot start says."""
        command = list(MPIRUN)
        for i, (processes, serve) in enumerate(commands):
            command += [":"] * (i > 0) + ["-n", str(processes), *serve]
        run = subprocess.run(command, timeout=serving.PATIENCE, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return run.stdout

    def test_a_group_that_cannot_start_says_why(self):
        self.assertIn("expected to be started with mpirun -n 2 loramux serve ..., found 1 process",
                      self.fails((1, serve_command(2, self.adapters))))
        self.assertIn("expected one of 1, 2, 6", self.fails((4, serve_command(4, self.adapters))))
        self.assertIn("rank 1 of 2 differs in --weights: rank 0 has auto, found q8",
                      self.fails((1, serve_command(2, self.adapters)), (1, serve_command(2, self.adapters, "--weights", "q8"))))
        other = pathlib.Path(self.folder.name) / "other"
        shutil.copytree(serving.DEMO / "model", other)
        weights = other / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        self.assertIn("rank 1 of 2 differs in the model",
                      self.fails((1, serve_command(2, self.adapters)), (1, serve_command(2, self.adapters, model=other))))


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


if __name__ == "__main__":
    if shutil.which("mpirun") is None or not (pathlib.Path(sys.argv[1]).parent / "libloramux_mpi.so").exists():
        print("SKIPPED: needs mpirun and libloramux_mpi.so (tools/setup.sh mpi)")
        sys.exit(0)
    serving.run_tests()
