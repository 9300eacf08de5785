"""`loramux serve --record` and `loramux simulate --replay`, as an operator uses them. tests/replay_test.cc replays whole runs in
little memory, under several regimes. Standard library only."""
import concurrent.futures
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

import serving
from serving import Server, questions

SECRET = "xylophone quicksand"   # words of a prompt


def replay(path, *flags):
    return subprocess.run([serving.LORAMUX, "simulate", "--replay", str(path), *flags], capture_output=True, text=True,
                          errors="replace", timeout=1800)


def hang_up(port, model):
    """A client that leaves in the middle of its answer."""
    body = json.dumps({"model": model, "prompt": SECRET, "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
                           + str(len(body)).encode() + b"\r\n\r\n" + body)
        connection.recv(1000)


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = pathlib.Path(cls.folder.name) / "recording"
        server = Server("--record", str(cls.file), "--cache", "loramux", "--schedule", "mlq", "--device-memory", "4MiB",
                        "--host-memory", "4MiB", "--adapter-prefetch", "histogram")
        asked = questions(4)
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            statuses = list(clients.map(lambda q: server.chat(q[0], q[1])[0], asked + asked))
        assert statuses == [200] * len(statuses), statuses
        for _ in range(3):
            hang_up(server.port, asked[0][0])
        server.chat("demo", SECRET)
        server.wait_idle()
        cls.log = server.stop()
        cls.requests = len(asked) * 2 + 4

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_all_plans_are_equal(self):
        self.assertRegex(self.log, r"recorded \d+ steps in ")
        self.assertEqual(self.file.stat().st_mode & 0o777, 0o600)
        done = replay(self.file, "--check-every", "50", "--json", str(self.file) + ".json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        match = re.search(r"plans: (\d+) compared, all equal", done.stdout)
        self.assertTrue(match, done.stdout)
        self.assertGreater(int(match.group(1)), 50)
        self.assertIn(f"{self.requests} requests: ", done.stdout)
        self.assertIn("TTFT", done.stdout)
        run = json.loads(pathlib.Path(str(self.file) + ".json").read_text())["presets"][0]
        self.assertGreaterEqual(run["requests"]["finished"], self.requests - 4)

    def test_it_holds_no_prompts_and_no_names(self):
        data = self.file.read_bytes()
        steps = data[data.index(b"LORAMUXH"):]   # after the options, which are words
        names = [adapter.name for adapter in (serving.DEMO / "adapters").iterdir() if adapter.is_dir() and len(adapter.name) > 4]
        self.assertGreater(len(names), 3)
        self.assertEqual([word for word in [SECRET, *names] if word.encode() in steps], [])

    def test_what_is_cut_off_or_damaged_is_refused(self):
        data = self.file.read_bytes()
        other = pathlib.Path(self.folder.name) / "other"
        other.write_bytes(data[:-20])
        done = replay(other)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--replay-truncated", done.stderr)
        done = replay(other, "--replay-truncated")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("the recording is truncated", done.stdout)
        middle = len(data) // 2
        for damaged, words in ((data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1:], "checksum"), (b"", "another file"),
                               (b"{}" * 100, "another file"), (data + b"x", "at byte")):
            other.write_bytes(damaged)
            done = replay(other)
            self.assertIn(done.returncode, (1, 2))
            self.assertIn(words, done.stderr)

    def test_the_run_before_is_kept(self):
        other = pathlib.Path(self.folder.name) / "again"
        other.write_bytes(b"of a server that crashed")
        Server("--record", str(other)).stop()
        self.assertEqual((other.parent / "again.old").read_bytes(), b"of a server that crashed")
        done = replay(other)   # of a server without requests
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_file_that_cannot_be_made_is_refused_at_the_start(self):
        with self.assertRaises(RuntimeError) as caught:
            Server("--record", "/nonexistent/recording")
        self.assertIn("--record: /nonexistent/recording", str(caught.exception))


if __name__ == "__main__":
    serving.run_tests()
