#!/usr/bin/env python3
"""1,000 open streams in one process, what one costs, and what readers that stop may hold. Standard library only.

Usage: streams_test.py PATH_OF_LORAMUX
"""
import json
import re
import resource
import selectors
import socket
import time
import unittest

import serving
from serving import Server

STREAMS = 1000
MAX_BYTES_PER_STREAM = 64_000


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) * 1024


def open_stream(server, prompt, receive_bytes=0, **more):
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "stream": True,
                       "ignore_eos": True, "max_tokens": 900, **more}).encode()
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(120)
    client.connect(("127.0.0.1", server.port))
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return client


def wait_for_first_bytes(clients, seconds=240):
    """All answers have begun. Reads no more than their beginnings."""
    waiting = selectors.DefaultSelector()
    for client in clients:
        waiting.register(client, selectors.EVENT_READ)
    deadline = time.monotonic() + seconds
    while waiting.get_map():
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(waiting.get_map())} of {len(clients)} streams have not begun")
        for key, _ in waiting.select(timeout=1):
            beginning = key.fileobj.recv(1000)
            assert beginning.startswith(b"HTTP/1.1 200"), beginning
            waiting.unregister(key.fileobj)
    waiting.close()


def close(clients):
    for client in clients:
        client.close()


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def test_memory_of_1000_open_streams(self):
        server = Server("--max-num-seqs", "1100", "--max-num-batched-tokens", "1200", "--device-memory", "64MiB",
                        "--write-timeout", "600")
        self.addCleanup(server.process.kill)
        warm = [open_stream(server, "warm up", max_tokens=60) for _ in range(STREAMS // 2)]   # pages, threads' heaps
        wait_for_first_bytes(warm)
        close(warm)
        server.wait_idle(seconds=120)
        before = resident_bytes(server)
        streams = [open_stream(server, "hello") for _ in range(STREAMS)]
        wait_for_first_bytes(streams)
        each = (resident_bytes(server) - before) / STREAMS
        print(f"{STREAMS} open streams: {each / 1000:.1f} KB of resident memory each", flush=True)
        close(streams)
        server.wait_idle(seconds=120)
        self.assertLess(each, MAX_BYTES_PER_STREAM)
        self.assertEqual(server.chat("demo", "abc")[1]["choices"][0]["message"]["content"], "abc")
        server.stop()

    def test_readers_that_stop_hold_little(self):
        """Many streams whose clients read nothing: memory stays within the documented bound, and far below it."""
        server = Server("--max-num-seqs", "300", "--device-memory", "64MiB", "--write-timeout", "600")
        self.addCleanup(server.process.kill)
        warm = [open_stream(server, "warm up", max_tokens=100) for _ in range(200)]
        wait_for_first_bytes(warm)
        close(warm)
        server.wait_idle(seconds=120)
        before = resident_bytes(server)
        clients = [open_stream(server, "abcdef", receive_bytes=2048, logprobs=True, top_logprobs=10, max_tokens=400)
                   for _ in range(200)]
        server.wait_until_busy(200)
        server.wait_idle(seconds=240)   # the engine has made all tokens, whether they are read or not
        each = (resident_bytes(server) - before) / len(clients)
        print(f"{len(clients)} readers that stopped: {each / 1000:.1f} KB of resident memory each", flush=True)
        close(clients)
        self.assertLess(each, 2_500_000)
        server.wait_idle()
        server.stop()


if __name__ == "__main__":
    serving.run_tests()
