#!/usr/bin/env python3
"""The command line of `loramux serve`: flags of other servers, keys, early errors, what the log says. Standard library
only.

Usage: serve_command_test.py PATH_OF_LORAMUX
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

import serving
from serving import DEMO, Server

MODEL = str(DEMO / "model")
KEY = "a-secret-key-of-the-test"
MEMORY = ["--device-memory", "64MiB", "--host-memory", "0"]


def run(*arguments, **environment):
    """The outcome of a command that ends by itself."""
    return subprocess.run([serving.LORAMUX, *arguments], capture_output=True, text=True, timeout=serving.PATIENCE,
                          env={**os.environ, **environment})


def serve(*arguments, **environment):
    return Server.run([serving.LORAMUX, "serve", *arguments, "--port", "0"], env={**os.environ, **environment})


def status_with(server, key, path="/v1/models"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=serving.PATIENCE)
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
    return connection.getresponse().status


class Help(unittest.TestCase):
    def test_help_fits_two_screens(self):
        lines = run("serve", "--help").stdout.splitlines()
        self.assertLessEqual(len(lines), 50)
        self.assertLessEqual(max(map(len, lines)), 80)
        text = "\n".join(lines)
        for flag in ("--adapter-dir", "--lora-modules", "--port", "--api-key", "--device-memory", "Examples:", "--help-all"):
            self.assertIn(flag, text)

    def test_help_all_has_every_flag_of_the_reference(self):
        text = run("serve", "--help-all").stdout
        page = run("reference").stdout.split("## loramux generate")[0].split("Flags of other servers")[0]
        flags = re.findall(r"^\| `(--[\w-]+)`", page, re.MULTILINE)
        self.assertGreater(len(flags), 60)
        for flag in flags:
            self.assertIn(flag, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

    def test_no_model_is_an_error_that_says_how(self):
        done = run("serve")
        self.assertEqual(done.returncode, 2)
        self.assertIn("needs a model", done.stderr)


class OtherServers(unittest.TestCase):
    def test_a_command_line_of_vllm(self):
        server = serve("--model", MODEL, "--served-model-name", "base", "second", "--enable-lora", "--lora-modules",
                       f"r={DEMO / 'adapters/reverse'}", json.dumps({"name": "u", "path": str(DEMO / "adapters/upper")}),
                       "--max-loras", "4", "--max-lora-rank", "64", "--max-cpu-loras", "8", "--dtype", "auto",
                       "--gpu-memory-utilization", "0.9", "--max_num_seqs", "8", "--max-num-batched-tokens", "256",
                       "--enable-prefix-caching", "--tensor-parallel-size", "1", "--disable-log-requests",
                       "--enforce-eager", "--swap-space", "4", "--trust-remote-code", "--host", "127.0.0.1",
                       "--uvicorn-log-level", "info", "--enable-auto-tool-choice", "--disable-log-stats", "--disable-fastapi-docs",
                       "--allowed-origins", '["http://a.example"]', "--api-key", KEY, "another-secret-key", *MEMORY)
        try:
            self.assertEqual(status_with(server, ""), 401)
            self.assertEqual(status_with(server, "wrong"), 401)
            for key in (KEY, "another-secret-key"):
                self.assertEqual(status_with(server, key), 200)
            self.assertEqual(status_with(server, "", "/health"), 200)
            self.assertEqual(status_with(server, KEY, "/docs"), 404)
            command = pathlib.Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
            self.assertNotIn(KEY.encode(), command)
            self.assertNotIn(b"another-secret-key", command)
        finally:
            log = server.stop()
        self.assertNotIn(KEY, log)
        self.assertIn("--gpu-memory-utilization (a flag of vLLM): memory is given in bytes", log)
        self.assertIn("--swap-space (a flag of vLLM)", log)
        self.assertIn("--max-cpu-loras: no effect: adapters in memory are bounded by their bytes", log)
        for quiet in ("--enable-lora", "--tensor-parallel-size", "--enforce-eager"):   # they ask for what is so
            self.assertNotIn(f"{quiet} (a flag", log)

    def test_command_lines_of_others(self):
        server = serve("--model-path", MODEL, "--lora-paths", f"r={DEMO / 'adapters/reverse'}", "--context-length", "64",
                       "-tp", "1", "--max-running-requests", "4", "--disable-radix-cache", "--lora-strict-loading",
                       "--enable-lora-overlap-loading", "--lora-eviction-policy", "fifo", "--max-lora-chunk-size", "32",
                       "--lora-drain-wait-threshold", "2.5", "--lora-use-virtual-experts", "--lora-target-modules", "all",
                       "--max-lora-cls-labels", "8", "--specialize-active-lora", "--enable-mixed-moe-lora-format",
                       "--enable-moe-shared-loras", "--lora-extra-vocab-size", "8", *MEMORY)
        try:
            cards = {card["id"]: card for card in server.json("GET", "/v1/models")[1]["data"]}
            self.assertIn("r", cards)
            self.assertEqual(cards["r"]["max_model_len"], 64)
        finally:
            log = server.stop()
        self.assertIn("--lora-drain-wait-threshold (a flag of SGLang): --age-bound SECONDS", log)
        self.assertIn("--max-lora-cls-labels (a flag of vLLM): an adapter's head says", log)
        self.assertIn("--lora-target-modules (a flag of vLLM, SGLang)", log)
        for quiet in ("--lora-strict-loading", "--enable-lora-overlap-loading", "--specialize-active-lora"):
            self.assertNotIn(f"{quiet} (a flag", log)
        server = serve("--model-id", MODEL, "--hostname", "127.0.0.1", "--max-total-tokens", "64", *MEMORY)
        server.stop()

    def test_what_is_not_served_is_refused_with_what_to_use(self):
        for arguments, words in [
                (["--quantization", "fp8"], "--weights q8"), (["--tensor-parallel-size", "2"], "mpirun -n 2"),
                (["--lora", "x.gguf"], "--lora-modules NAME=DIR"),
                (["--lora-paths", '{"lora_name": "a", "lora_path": "/a", "pinned": true}'], "/v1/load_lora_adapter"),
                (["--lora-modules", '{"name": "a", "path": "/a", "rank": 8}'], "found 'rank'"),
                (["--ssl-ca-certs", "x"], "--api-key"), (["--tokenizer-mode", "mistral"], "Hugging Face"),
                (["--speculative-config", "{}"], "draft"),
                (["--speculative-config", '{"method": "ngram", "quantization": "fp8"}'], "found quantization"),
                (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 99}'], "1 to 64, found 99"),
                (["--speculate", "ngram", "--draft-ngram-min", "9"], "at most --draft-ngram-max"),
                (["--speculate", "ngram", "--device", "emulated"], "--speculate: expected none on a GPU"),
                (["--speculate", "eagle"], "none or ngram"), (["--dtype", "int8"], "--dtype"),
                (["--kv-cache-dtype", "fp8"], "auto, f32, bf16, f16 or int8"),
                (["--lora-dtype", "fp4"], "auto, f32, bf16, f16, int8 or fp8"),
                (["--kv-dtype", "int8", "--device", "emulated"], "int8 is for the CPU")]:
            done = run("serve", MODEL, "--port", "0", *arguments)
            self.assertEqual(done.returncode, 2, (arguments, done.stderr))
            self.assertIn(words, done.stderr)

    def test_a_dtype_that_the_weights_do_not_have(self):
        stored = json.loads(run("inspect", MODEL, "--json").stdout)["dtypes"]
        other = "float16" if "F16" not in stored and "f16" not in stored else "bfloat16"
        done = run("serve", MODEL, "--port", "0", "--dtype", other)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("keep this type", done.stderr)

    def test_mistyped_flags_and_commands(self):
        for arguments, words in [
                (["serve", MODEL, "--max-lora"], "Did you mean --max-loras?"), (["serve", "--prot", "1"], "--port?"),
                (["serv", MODEL], "Did you mean serve?"), (["generate", MODEL, "--promt", "x"], "--prompt?")]:
            done = run(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)


class Configuration(unittest.TestCase):
    def test_the_key_in_the_environment(self):
        server = serve(MODEL, *MEMORY, LORAMUX_API_KEY=KEY, LORAMUX_MAX_NUM_SEQ="3", LORAMUX_SERVICE_HOST="10.1.1.1")
        try:
            self.assertEqual((status_with(server, ""), status_with(server, KEY)), (401, 200))
        finally:
            log = server.stop()
        self.assertNotIn(KEY, log)
        self.assertIn("LORAMUX_MAX_NUM_SEQ sets no flag. Did you mean LORAMUX_MAX_NUM_SEQS?", log)
        self.assertNotIn("LORAMUX_SERVICE_HOST", log)

    def test_keys_and_a_file_of_keys_exclude_each_other(self):
        with tempfile.NamedTemporaryFile() as file:
            done = run("serve", MODEL, "--api-key", KEY, "--api-key-file", file.name)
        self.assertEqual(done.returncode, 2)
        self.assertNotIn(KEY, done.stderr)

    def test_a_short_key_is_a_warning_and_a_wrong_one_an_error(self):
        server = serve(MODEL, "--api-key", "short", *MEMORY)
        log = server.stop()
        self.assertIn("key 1 has 5 characters, which can be guessed", log)
        done = run("serve", MODEL, "--port", "0", "--api-key", "with blank")
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_a_chat_template_of_its_own(self):
        template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "mine.jinja"
            file.write_text(template)
            counts = []
            for flags in ([], ["--chat-template", template], ["--chat-template", str(file)]):
                server = serve(MODEL, "--served-model-name", "demo", *MEMORY, *flags)
                counts.append(server.chat("demo", "abc", max_tokens=1)[1]["usage"]["prompt_tokens"])
                server.stop()
        self.assertGreater(counts[0], counts[1])
        self.assertEqual(counts[1], counts[2])

    def test_a_tokenizer_from_another_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            bare = pathlib.Path(folder) / "bare"
            shutil.copytree(MODEL, bare)
            (bare / "tokenizer.json").unlink()
            server = serve(str(bare), "--tokenizer", MODEL, "--served-model-name", "demo", *MEMORY)
            self.assertEqual(server.chat("demo", "hello")[1]["choices"][0]["message"]["content"], "hello")
            server.stop()


class WithoutEffect(unittest.TestCase):
    """A flag that changes nothing beside the others is accepted, and said at the start."""

    IDLE = {"--admin-key-file": MODEL, "--adapter-dir-eager": None, "--key-concurrency": "3", "--tenant-weight": "a=2",
            "--prefix-sharing": "tenant", "--adapter-burst": "5", "--record-limit": "1MiB", "--otlp-sample": "0.5",
            "--allowed-adapter-sources": "hf://org", "--revision": "v1", "--batch-window": "9",
            "--draft-tokens": "4"}

    def test_each_is_named_once_with_what_to_use(self):
        flags = [word for flag, value in self.IDLE.items() for word in ([flag] if value is None else [flag, value])]
        log = serve(MODEL, *flags, "--device", "emulated", "--cache", "lru", *MEMORY, LORAMUX_MAX_CPU_LORAS="4",
                    OTEL_SERVICE_NAME="of the machine").stop()
        for flag in (*self.IDLE, "--max-cpu-loras"):
            self.assertEqual(len(re.findall(rf"{flag}(,[^:]*)?: no effect: ", log)), 1, (flag, log))
        self.assertEqual(len(re.findall(": no effect: ", log)), len(self.IDLE) + 1)   # nothing by another's variable

    def test_flags_that_count_are_not(self):
        with tempfile.TemporaryDirectory() as folder:
            key = pathlib.Path(folder) / "key"
            key.write_text("an-administrators-key\n")
            log = serve(MODEL, "--enable-runtime-lora", "--admin-key-file", str(key), "--allowed-adapter-root", folder,
                        "--api-key", KEY, "--key-concurrency", "3", "--prefix-sharing", "tenant", "--tenant-weight", "a=2",
                        "--adapter-rate", "9", "--adapter-burst", "5", "--record", f"{folder}/r", "--record-limit", "1MiB",
                        "--device", "cpu", "--lora-variant", "bgmv", "--max-cpu-loras", "0", *MEMORY).stop()
        self.assertNotIn(": no effect: ", log)


class EarlyErrors(unittest.TestCase):
    """Errors that need no weights are found before the weights are read: here these are missing."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = pathlib.Path(self.folder.name) / "model"
        shutil.copytree(MODEL, self.model)
        (self.model / "model.safetensors").unlink()

    def tearDown(self):
        self.folder.cleanup()

    def fails_with(self, words, *arguments, status=1):
        done = run("serve", str(self.model), *arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertNotIn("safetensors", done.stderr)

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.fails_with(f"cannot listen on 127.0.0.1:{port}: Address already in use", "--port", str(port))

    def test_parsers_that_do_not_exist(self):
        for flag in ("--tool-call-parser", "--reasoning-parser"):
            self.fails_with(f'{flag}: expected auto, none, ', "--port", "0", flag, "hermse")

    def test_files_that_are_missing_or_wrong(self):
        self.fails_with("nowhere.jinja", "--port", "0", "--chat-template", "nowhere.jinja")
        self.fails_with("chat-template", "--port", "0", "--chat-template", "{% broken")
        self.fails_with("nowhere.pem", "--port", "0", "--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem")
        keys = pathlib.Path(self.folder.name) / "keys.json"
        keys.write_text("{")
        self.fails_with("keys.json", "--port", "0", "--api-key-file", str(keys))
        (self.model / "tokenizer.json").unlink()
        self.fails_with("tokenizer.json", "--port", "0")


class Devices(unittest.TestCase):
    def test_a_gpu_that_is_missing_is_named_before_the_weights_are_read(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a GPU")
        done = run("serve", "no/such/folder", "--device", "cuda", "--port", "0")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"--device cuda: .*(GPU|driver|libloramux_cuda)")
        self.assertNotIn("no/such/folder", done.stderr)
        done = run("serve", MODEL, "--device", "tpu", "--port", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("cuda", done.stderr)

    def test_auto_takes_the_cpu_where_there_is_no_gpu(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has a GPU")
        log = serve(MODEL, *MEMORY).stop()
        self.assertIn("computing on the CPU (--device auto): ", log)
        log = serve(MODEL, "--device", "cpu", *MEMORY).stop()
        self.assertNotIn("--device auto", log)

    def test_the_emulated_device_answers_for_every_adapter(self):
        server = Server("--device", "emulated", "--device-memory", "16MiB", "--host-memory", "8MiB")
        for model, prompt, answer in serving.questions(1):
            status, body = server.chat(model, prompt)
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["message"]["content"], answer, (model, prompt))
        server.wait_idle()
        log = server.stop()
        self.assertIn("computing on emulated: ", log)
        self.assertIn("all memory is accounted for", log)

    def test_the_emulated_device_keeps_quantised_weights(self):
        server = Server("--device", "emulated", "--device-memory", "16MiB", "--host-memory", "8MiB", "--weights", "q8")
        for model, prompt, answer in serving.questions(1)[:6]:
            status, body = server.chat(model, prompt)
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"][0]["message"]["content"], answer, (model, prompt))
        server.wait_idle()
        log = server.stop()
        self.assertRegex(log, "q8")
        self.assertNotIn("quantised matrices become", log)
        self.assertIn("all memory is accounted for", log)

    def test_the_processor_computes_adapters_that_are_on_their_way_to_the_emulated_device(self):
        # An adapter leaves the device with its last request, so it is cold each time: on disk, then in the host tier.
        server = Server("--device", "emulated", "--device-memory", "16MiB", "--host-memory", "64MiB", "--cache", "s-lora",
                        "--cold-start", "assist", "--assist-cores", "1")
        asked = [question for question in serving.questions(1) if question[0] != "demo"][:5]
        for _ in range(2):
            for model, prompt, answer in asked:
                status, body = server.chat(model, prompt)
                self.assertEqual(status, 200, body)
                self.assertEqual(body["choices"][0]["message"]["content"], answer, (model, prompt))
        self.assertEqual(server.metric("loramux:adapter_cold_starts_total"), 10)
        self.assertGreaterEqual(server.metric("loramux:adapter_cold_begins_total", **{"from": "cpu"}), 5)
        server.wait_idle()
        self.assertIn("all memory is accounted for", server.stop())


class Log(unittest.TestCase):
    def test_the_table_and_its_curl_command(self):
        server = serve(MODEL, "--served-model-name", "demo", "--adapter-dir", str(DEMO / "adapters"), *MEMORY,
                       LORAMUX_API_KEY=KEY)
        serving.wait_for(lambda: "  try " in server.text(), "the table")
        text = server.text()
        for line in (r"  model     demo \(llama, \w+, up to \d+ tokens\)", r"  memory    weights [\d.]+ [KM]iB; pool of KV cache and adapters 6[\d.]+ MiB",
                     r"  adapters  1\d served", rf"  address   http://127\.0\.0\.1:{server.port}"):
            self.assertRegex(text, line)
        command = re.search(r"^  try +(curl .*)$", text, re.MULTILINE).group(1)
        self.assertNotIn(KEY, command)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=serving.PATIENCE,
                              env={**os.environ, "LORAMUX_API_KEY": KEY})
        self.assertIn('"object":"chat.completion"', done.stdout.replace(" ", ""), done.stderr)
        log = server.stop()
        self.assertIn("no requests were running", log)

    def test_json_stays_json(self):
        server = serve(MODEL, "--log-format", "json", "--stats-interval", "0.05", "--swap-space", "4", *MEMORY)
        server.json("POST", "/v1/completions", {"model": "model", "prompt": "abc", "max_tokens": 200, "ignore_eos": True})
        records = [json.loads(line) for line in server.stop().splitlines()]
        ready = next(record for record in records if record["message"].startswith("ready: "))
        self.assertEqual(ready["url"], f"http://127.0.0.1:{server.port}")
        self.assertGreater(ready["weight_bytes"], 0)
        self.assertTrue(any("--swap-space" in record["message"] and record["level"] == "warning" for record in records))

    def test_throughput_while_busy_and_silence_while_idle(self):
        server = serve(MODEL, "--served-model-name", "demo", "--stats-interval", "0.2", "--max-num-seqs", "2", *MEMORY)
        blocker = serving.Blocker(server)
        line = (r"throughput prompt_tokens_per_s=[\d.]+ generation_tokens_per_s=[1-9][\d.]* running=2 waiting=\d+ "
                r"kv_percent=[\d.]+ cached_prefix_percent=[\d.]+ adapter_percent=0\.0 adapters_on_device=0 adapters_active=0 "
                r"adapter_loads_per_s=0\.0 cold_starts_per_s=0\.0")
        serving.wait_for(lambda: re.search(line, server.text()), lambda: server.text())
        blocker.release()
        server.wait_idle()
        lines = lambda: server.text().count("throughput ")
        time.sleep(1)    # the line of the interval in which the last request ended
        before = lines()
        time.sleep(1)
        self.assertEqual(lines(), before)
        server.stop()


if __name__ == "__main__":
    serving.run_tests()
