#!/usr/bin/env python3
"""Vercel's AI SDK, unmodified, against the program: starts the server and runs ai_sdk_test.mjs with Node.
tests/clients/install.sh installs it. Standard library only.

Usage: ai_sdk_test.py PATH_OF_LORAMUX
"""
import sys
import unittest

import serving
from serving import CLIENTS, DOUBLE_21, TOOLS_TEMPLATE, Server


class AiSdk(unittest.TestCase):
    def test_sdk(self):
        server = Server("--device-memory", "64MiB", "--host-memory", "32MiB", "--tool-call-parser", "llama3_json",
                        "--chat-template", TOOLS_TEMPLATE)
        self.assertEqual(serving.run_node_tests("ai_sdk_test.mjs", server, DOUBLE_21), 23)


if __name__ == "__main__":
    if not (CLIENTS / "node_modules/ai").exists():
        sys.exit(f"{CLIENTS}/node_modules/ai is missing: run tests/clients/install.sh")
    serving.run_tests()
