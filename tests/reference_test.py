#!/usr/bin/env python3
"""The flag reference, the manual page and the shell completions, as the program prints them. Standard library only.

Usage: reference_test.py PATH_OF_LORAMUX
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import serving
from serving import ROOT

COMMANDS = ["serve", "generate", "inspect", "profile", "bench", "simulate", "reference"]


def printed(*arguments):
    return subprocess.run([serving.LORAMUX, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


class Reference(unittest.TestCase):
    maxDiff = None

    def test_the_page_is_what_the_program_says(self):
        page = (ROOT / "docs/reference/flags.md").read_text(encoding="utf-8")
        self.assertEqual(printed("reference", "markdown"), page, "stale: run `make docs`")

    def test_the_page_has_every_flag_of_the_help(self):
        page = printed("reference", "markdown")
        for command in COMMANDS:
            lines = re.findall(r"^  (-.*)$", printed(command, "--help-all"), re.MULTILINE)
            flags = {flag for line in lines for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", line)} - {"--help", "--help-all", "--config"}
            self.assertTrue(flags or command == "reference")
            for flag in flags:
                self.assertIn(f"`{flag}`", page, command)

    def test_every_flag_has_a_help_text_and_a_unit(self):
        own = re.sub(r"(?s)\n### serve: Flags of other servers.*?(?=\n##)", "", printed("reference", "markdown"))
        for line in own.split("\n"):
            if line.startswith("| `"):
                _, value, default, meaning = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:5]]
                self.assertTrue(value and default and len(meaning) > 8, line)

    def test_every_text_of_the_help_is_plain(self):
        for command in COMMANDS:
            self.assertNotRegex(printed(command, "--help"), r"(?i)\b(nobody|whoever|everybody|somebody|he|his|him)\b")

    def test_the_manual_page_has_no_errors(self):
        with tempfile.NamedTemporaryFile("w", suffix=".1") as page:
            page.write(printed("reference", "man"))
            page.flush()
            if shutil.which("man"):
                run = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page.name], text=True,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
                self.assertEqual(run.stderr, "")

    def test_bash_completes_commands_flags_and_choices(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "loramux.bash"
            script.write_text(printed("reference", "bash"))

            def complete(*words):
                command = (f"source {script}; COMP_WORDS=(loramux {' '.join(words)}); COMP_CWORD={len(words)}; _loramux; "
                           "printf '%s\\n' \"${COMPREPLY[@]}\"")
                run = subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True, timeout=60)
                return run.stdout.split()
            self.assertEqual(complete("ser"), ["serve"])
            self.assertIn("--device-memory", complete("serve", "--dev"))
            self.assertEqual(complete("serve", "--log-format", "j"), ["json"])

    def test_an_environment_variable_sets_a_flag_of_serve(self):
        server = serving.Server.run([serving.LORAMUX, "serve", str(serving.DEMO / "model"), "--device-memory", "64MiB",
                                     "--host-memory", "0"],
                                    env={**os.environ, "LORAMUX_SERVED_MODEL_NAME": "from-the-environment", "LORAMUX_PORT": "0"})
        try:
            names = [card["id"] for card in server.json("GET", "/v1/models")[1]["data"]]
            self.assertEqual(names, ["from-the-environment"])
        finally:
            server.stop()


if __name__ == "__main__":
    serving.run_tests()
