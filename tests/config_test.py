#!/usr/bin/env python3
"""`loramux serve --config FILE`: the flags from a TOML file. Usage: config_test.py PATH_OF_LORAMUX"""
import json
import pathlib
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO


class Config(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = pathlib.Path(self.folder.name) / "serve.toml"

    def tearDown(self):
        self.folder.cleanup()

    def refused(self, text, *flags, file=None):
        """The program's message about a file that it refuses."""
        self.file.write_text(text, encoding="utf-8")
        run = subprocess.run([serving.LORAMUX, "serve", "--config", str(file or self.file), *flags], timeout=serving.PATIENCE,
                             stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
        self.assertEqual(run.returncode, 2, run.stdout)   # 1 would be an error of a server that has started
        return run.stdout

    def test_every_flag_may_stand_in_the_file(self):
        """Among them are the positional model, and a repeated flag as name=path and as JSON with # and , in a string."""
        module = json.dumps({"name": "b#c", "path": str(DEMO / "adapters" / "upper")})
        self.file.write_text(f'''# a comment
model = "{DEMO / "model"}"
served-model-name = ["demo", "other"]
lora-modules = [
  "a={DEMO / "adapters" / "reverse"}",   # a comment within a list
  \'{module}\',
]
device-memory = "64MiB"
host-memory = "0"
drain-timeout = 2.5
port = 1
''', encoding="utf-8")
        # The command line wins over the port in the file.
        server = serving.Server.run([serving.LORAMUX, "serve", "--config", str(self.file), "--port", "0"])
        try:
            models = [card["id"] for card in server.json("GET", "/v1/models")[1]["data"]]
            self.assertEqual(sorted(models), ["a", "b#c", "demo", "other"])
            self.assertNotEqual(server.port, 1)
            answer = server.chat("a", "hello")[1]["choices"][0]["message"]["content"]
            self.assertEqual(answer, "olleh")
        finally:
            log = server.stop()
        self.assertIn("up to 2.5 s", log)

    def test_errors_name_the_file_the_line_and_what_was_expected(self):
        for text, expected in [
                ('model = "x"\nprot = 8000\n', [":2: unknown key 'prot'", "loramux serve --help-all", "Did you mean port?"]),
                ('\nport = 70000\n', [":2: ", "--port", "70000"]),
                ('http-threads = "many"\n', [":1: ", "--http-threads", "many"]),
                ('port = [1, 2]\n', [":1: port: expected one value, found a list of 2"]),
                ('port = 1979-05-27\n', [":1: port: expected a string, a number"]),
                ('model = "x"\n[serve]\nport = 1\n', [":2: [serve]: expected keys without tables"]),
                ('port = \n', [":1: not TOML"]),
                ('port = 1\nport = 2\n', [":2: not TOML"]),
                ('config = "other.toml"\n', [":1: unknown key 'config'"]),
                ('\x00\xff', ["not TOML"]), ('a' * 100_000, ["not TOML"]), ('port = ' + '[' * 10_000, [":1: ", "nested"]),
                ('port = 1\n' + 'a.' * 200_000 + 'a = 1', [":2: ", "nested more than 32 deep"]),
                ('[' + 'a.' * 200_000 + 'a]\n', [":1: ", "nested"]), ('[[' + 'a . ' * 200_000 + 'a]]\n', [":1: ", "nested"]),
                ('"a"."b"' + '."a"' * 200_000 + ' = 1', [":1: ", "nested"]),
                ('x = """\n"\n"""\ny = ' + '{a=' * 100_000, [":4: ", "nested"]),
                ('# much text\n' * 100_000, ["at most 1048576 bytes"]),
                ('model = "' + 'a.' * 100 + '"\nport = 1\nport = 2\n', [":3: not TOML"])]:   # dots within a text
            said = self.refused(text, str(DEMO / "model"))
            for part in expected:
                self.assertIn(part, said, text[:80])
            self.assertIn(str(self.file), said)

    def test_a_file_that_is_missing_or_not_a_file(self):
        for path in (self.file.parent / "nowhere.toml", self.file.parent):
            self.assertIn(f"--config: cannot read '{path}'", self.refused("", file=path))

    def test_a_file_without_a_model(self):
        self.assertIn("model is required", self.refused("port = 8000\n"))


if __name__ == "__main__":
    serving.run_tests()
