#!/usr/bin/env python3
"""`loramux top` against a real server, in a pseudo-terminal and into a pipe. Standard library only.

Usage: top_test.py PATH_OF_LORAMUX
"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import unittest

import serving
from serving import Server, wait_for

PLAIN = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LORAMUX_URL")}


class Terminal:
    """A command in a pseudo-terminal of a given size."""

    def __init__(self, columns, rows, *command, **environment):
        self.parent, child = pty.openpty()
        self.before = termios.tcgetattr(child)
        self.child = child
        self.resize(columns, rows)
        self.process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, start_new_session=True,
                                        env={**PLAIN, **environment},
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.output = ""

    def resize(self, columns, rows):
        fcntl.ioctl(self.child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        while select.select([self.parent], [], [], 0)[0]:
            try:
                self.output += os.read(self.parent, 65536).decode(errors="replace")
            except OSError:
                break
        return self.output

    def frames(self):
        """The frames so far that are whole, each a list of lines without escape sequences."""
        return [[re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in frame.split("\r\n")]
                for frame in self.read().split("\x1b[H")[1:] if frame.rstrip().endswith("\x1b[J")]

    def press(self, key):
        os.write(self.parent, key.encode())

    def wait_for_frame(self, condition, what):
        seen = len(self.frames())
        return wait_for(lambda: next((frame for frame in self.frames()[max(0, seen - 1):] if condition(frame)), None), what)

    def end(self):
        def ended():
            self.read()
            return self.process.poll() is not None
        wait_for(ended, "the end of the command")
        self.read()
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.parent)
        os.close(self.child)


class Top(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB")
        cls.url = f"http://127.0.0.1:{cls.server.port}"
        for adapter in ("reverse", "upper", "upper"):
            assert cls.server.chat(adapter, "hello")[0] == 200

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def once(self, *flags, **more):
        return subprocess.run([serving.LORAMUX, "top", self.url, "--once", "--interval", "0.2", *flags], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=serving.PATIENCE, env=PLAIN, **more)

    def start(self, columns=100, rows=30, interval="0.2", **environment):
        terminal = Terminal(columns, rows, serving.LORAMUX, "top", self.url, "--interval", interval, **environment)
        self.addCleanup(terminal.close)
        return terminal

    def test_one_frame_into_a_pipe(self):
        done = self.once()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotIn("\x1b", done.stdout)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], rf"^loramux top  {re.escape(self.url)}  demo  up \d")
        for begin in ("sequences ", "tokens ", "TTFT ", "device ", "host ", "adapters ", "ADAPTER "):
            self.assertTrue(any(line.startswith(begin) for line in lines), begin)
        rank = json.loads((serving.DEMO / "adapters/upper/adapter_config.json").read_text(encoding="utf-8"))["r"]
        rows = {line.split()[0]: line.split() for line in lines[lines.index(next(l for l in lines if l.startswith("ADAPTER"))) + 1:]}
        self.assertEqual(rows["upper"][1:3], ["device", str(rank)])
        self.assertEqual(rows["upper"][6], "2")     # requests
        self.assertEqual(rows["reverse"][6], "1")
        self.assertNotIn("TTFT       half -", done.stdout)

    def test_tokens_per_second_while_it_works(self):
        stop = threading.Event()

        def ask():
            while not stop.is_set():
                self.server.chat("reverse", "abcdefgh")
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            wait_for(lambda: re.search(r"tokens +[1-9]", self.once().stdout), "tokens per second")
        finally:
            stop.set()
            thread.join()

    def test_keys_sort_and_end(self):
        terminal = self.start()
        terminal.press("n")

        def names(frame):
            begin = next((i for i, line in enumerate(frame) if line.startswith("ADAPTER")), None)
            return [line.split()[0] for line in frame[begin + 1:-1] if line] if begin is not None else []
        by_name = terminal.wait_for_frame(lambda frame: names(frame) and names(frame) == sorted(names(frame)), "by name")
        self.assertIn("q quit", by_name[-1])
        terminal.press("u")
        terminal.wait_for_frame(lambda frame: names(frame)[:1] == ["upper"], "the adapter with most requests first")
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)
        self.assertEqual(termios.tcgetattr(terminal.child)[3], terminal.before[3], "the terminal was not restored")
        self.assertTrue(terminal.output.endswith("\x1b[?1049l"))

    def test_frames_follow_the_window(self):
        terminal = self.start(columns=50, rows=12)
        frame = terminal.wait_for_frame(lambda frame: len(frame) == 12, "twelve lines")
        self.assertLessEqual(max(map(len, frame)), 50)
        terminal.resize(110, 20)
        os.kill(terminal.process.pid, signal.SIGWINCH)
        terminal.wait_for_frame(lambda frame: max(map(len, frame)) > 50, "wider lines")
        os.kill(terminal.process.pid, signal.SIGTERM)
        self.assertEqual(terminal.end(), 0)
        self.assertTrue(terminal.output.endswith("\x1b[?1049l"))

    def test_colors_unless_no_color(self):
        for environment, color in (({}, True), ({"NO_COLOR": "1"}, False)):
            terminal = self.start(**environment)
            terminal.wait_for_frame(lambda frame: len(frame) > 8, "a frame")
            terminal.press("q")
            self.assertEqual(terminal.end(), 0)
            self.assertEqual("\x1b[1m" in terminal.output, color, environment)

    def test_a_server_that_goes_leaves_its_last_figures(self):
        server = Server("--device-memory", "32MiB", "--host-memory", "0")
        terminal = Terminal(100, 30, serving.LORAMUX, "top", f"http://127.0.0.1:{server.port}", "--interval", "0.2")
        self.addCleanup(terminal.close)
        terminal.wait_for_frame(lambda frame: "q quit" in frame[-1], "a frame")
        server.stop()
        frame = terminal.wait_for_frame(lambda frame: "/metrics" in frame[-1], "the reason")
        self.assertTrue(any(line.startswith("device") for line in frame))
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)

    def test_errors_say_what_to_do(self):
        nowhere = subprocess.run([serving.LORAMUX, "top", "http://127.0.0.1:1", "--once"], text=True, env=PLAIN,
                                 stderr=subprocess.PIPE, timeout=serving.PATIENCE)
        self.assertEqual(nowhere.returncode, 1)
        self.assertIn("Is the server running there (--url)?", nowhere.stderr)
        pipe = subprocess.run([serving.LORAMUX, "top", self.url], text=True, env=PLAIN, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=serving.PATIENCE)
        self.assertEqual(pipe.returncode, 2)
        self.assertIn("--once", pipe.stderr)
        wrong = subprocess.run([serving.LORAMUX, "top", "localhost", "--once"], text=True, env=PLAIN,
                               stderr=subprocess.PIPE, timeout=serving.PATIENCE)
        self.assertEqual(wrong.returncode, 2)


if __name__ == "__main__":
    serving.run_tests()
