#!/usr/bin/env python3
"""/metrics, logs, request ids and traces of the running server. Needs python3-prometheus-client: the official parser.

Usage: metrics_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import http.client
import json
import re
import sys
import time
import unittest

try:
    from prometheus_client.parser import text_string_to_metric_families
except ModuleNotFoundError:   # not the distribution's Python; its package is pure Python, so any can take it
    sys.path.append("/usr/lib/python3/dist-packages")
    from prometheus_client.parser import text_string_to_metric_families

import serving
from serving import DEMO, ROOT, Server, questions


def scrape(server):
    """{name of sample: [(labels, value)]}, parsed by the official parser; families without samples are there too."""
    status, payload = server.request("GET", "/metrics")
    assert status == 200, payload
    samples = {}
    for family in text_string_to_metric_families(payload.decode()):
        if not family.samples:
            samples[family.name] = []
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def total(samples, name, **labels):
    return sum(value for have, value in samples.get(name, [])
               if all(have.get(key) == wanted for key, wanted in labels.items()))


def exported(samples):
    """Names as queries use them."""
    return set(samples)


def call(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request(method, path, json.dumps(body).encode() if body is not None else None,
                       {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    payload = response.read()
    found = {key.lower(): value for key, value in response.getheaders()}
    connection.close()
    return response.status, found, payload


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--adapter-dir-eager", "--device-memory", "64MiB", "--host-memory", "32MiB", "--log-format", "json", "--log-level",
                            "debug", "--metrics-top-adapters", "5")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def wait_for(self, condition):
        """The first page that meets it; what a client has got may be counted a moment later."""
        deadline = time.monotonic() + 60
        while True:
            samples = scrape(self.server)
            if condition(samples) or time.monotonic() > deadline:
                return samples
            time.sleep(0.05)

    def test_values_agree_with_what_was_asked(self):
        before = scrape(self.server)
        asked = questions(2)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda q: self.server.chat(q[0], q[1]), asked))
        self.assertTrue(all(status == 200 for status, _ in answers))
        usages = [answer["usage"] for _, answer in answers]
        finished = lambda samples: (total(samples, "vllm:request_success_total") -
                                    total(before, "vllm:request_success_total"))
        after = self.wait_for(lambda samples: finished(samples) == len(asked))
        delta = lambda name, **labels: total(after, name, **labels) - total(before, name, **labels)
        self.assertEqual(finished(after), len(asked))
        self.assertEqual(delta("vllm:prompt_tokens_total"), sum(u["prompt_tokens"] for u in usages))
        self.assertEqual(delta("vllm:generation_tokens_total"), sum(u["completion_tokens"] for u in usages))
        self.assertEqual(delta("vllm:request_generation_tokens_sum"), sum(u["completion_tokens"] for u in usages))
        for name in ("vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds",
                     "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds",
                     "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds"):
            self.assertEqual(delta(name + "_count"), len(asked), name)
            self.assertGreaterEqual(delta(name + "_sum"), 0, name)
        self.assertEqual(delta("vllm:inter_token_latency_seconds_count"),
                         sum(u["completion_tokens"] - 1 for u in usages))
        self.assertLessEqual(delta("vllm:request_inference_time_seconds_sum"),
                             delta("vllm:e2e_request_latency_seconds_sum"))
        self.assertEqual(delta("loramux:adapter_requests_total"), len(asked))
        self.assertEqual(delta("loramux:http_responses_total", code="200") - 1, len(asked))   # one is the scrape

    def test_residency_is_seen(self):
        adapters = sorted(path.name for path in (DEMO / "adapters").iterdir())
        for name in adapters[:3]:
            self.assertEqual(self.server.chat(name, "x", max_tokens=1)[0], 200)
        self.server.wait_idle()
        time.sleep(0.2)   # a snapshot is at most 100 ms old
        samples = scrape(self.server)
        self.assertEqual(len(samples["vllm:lora_requests_info"]), 1)
        labels, value = samples["vllm:lora_requests_info"][0]
        ready = labels["running_lora_adapters"].split(",")
        for name in adapters[:3]:
            self.assertIn(name, ready)
        self.assertEqual(labels["waiting_lora_adapters"], "")
        self.assertGreaterEqual(int(labels["max_lora"]), len(ready))
        self.assertLess(abs(value - time.time()), 60)
        self.assertEqual(total(samples, "vllm:num_gpu_loaded_lora_adapters"), len(ready))
        self.assertEqual(total(samples, "vllm:lora_adapter_loaded"), len(adapters))
        self.assertEqual(total(samples, "vllm:lora_adapter_loaded", level="gpu"), len(ready))
        self.assertLessEqual(len({have["adapter_name"] for have, _ in samples["vllm:lora_adapter_loaded"]}), 6)
        self.assertGreaterEqual(total(samples, "vllm:lora_adapter_load_seconds_count"), 3)
        self.assertEqual(total(samples, "vllm:cache_config_info", block_size="16"), 1)

    def test_gauges_while_busy(self):
        def long_one(i):
            return self.server.chat("demo", f"count {i}", max_tokens=400, ignore_eos=True)
        # Again and again: how long one takes, and when this test sees it, is up to the machine.
        deadline, seen, asked = time.monotonic() + 30, False, []
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            while not seen and time.monotonic() < deadline:
                if sum(not future.done() for future in asked) < 4:
                    asked.append(pool.submit(long_one, len(asked)))
                samples = scrape(self.server)
                seen = total(samples, "vllm:num_requests_running") > 0 and total(samples, "vllm:kv_cache_usage_perc") > 0
        self.assertTrue(seen)
        self.assertTrue(all(future.result()[0] == 200 for future in asked))

    def test_process(self):
        samples = scrape(self.server)
        self.assertGreater(total(samples, "process_resident_memory_bytes"), 10e6)
        self.assertLess(abs(total(samples, "process_start_time_seconds") - time.time()), 600)
        self.assertGreater(total(samples, "process_cpu_seconds_total"), 0)

    def test_request_ids_and_traces(self):
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        headers = {"X-Request-Id": "trace-me.1", "traceparent": f"00-{trace}-00f067aa0ba902b7-01", "tracestate": "a=b"}
        body = {"model": "demo", "prompt": "abc", "max_tokens": 3}
        for extra in ({}, {"stream": True}):
            status, found, _ = call(self.server, "POST", "/v1/completions", {**body, **extra}, headers)
            self.assertEqual(status, 200)
            self.assertEqual(found["x-request-id"], "trace-me.1")
            self.assertRegex(found["traceparent"], f"^00-{trace}-[0-9a-f]{{16}}-01$")
            self.assertNotIn("00f067aa0ba902b7", found["traceparent"])
            self.assertEqual(found["tracestate"], "a=b")
        span = found["traceparent"].split("-")[2]
        status, found, _ = call(self.server, "POST", "/v1/completions", {"model": "nobody", "prompt": "x"},
                                {"X-Request-Id": "bad id", "traceparent": "00-zz"})
        self.assertEqual(status, 404)
        self.assertRegex(found["x-request-id"], "^[0-9a-f]{32}$")
        self.assertNotIn("traceparent", found)
        lines = self.access_lines(lambda line: line.get("span_id") == span)
        self.assertEqual(lines[0]["request_id"], "trace-me.1")
        self.assertEqual(lines[0]["trace_id"], trace)

    def access_lines(self, condition):
        deadline = time.monotonic() + 30
        while True:
            lines = [json.loads(line) for line in self.server.text().splitlines() if line.startswith('{"time"')]
            found = [line for line in lines if "path" in line and condition(line)]
            if found or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def test_log_lines(self):
        forged = "/v1/\r\n{\"time\":\"0\",\"level\":\"error\"}\x1b[31m"
        call(self.server, "GET", "/nowhere%0d%0a%7b%22level%22:%22forged%22%7d")
        status, found, payload = call(self.server, "POST", "/v1/chat/completions", {
            "model": "reverse", "messages": [{"role": "user", "content": forged}], "max_tokens": 4, "ignore_eos": True},
            {"X-Request-Id": "log-line"})
        self.assertEqual(status, 200)
        usage = json.loads(payload)["usage"]
        line = self.access_lines(lambda line: line["request_id"] == "log-line")[0]
        self.assertEqual((line["level"], line["method"], line["path"], line["status"]),
                         ("info", "POST", "/v1/chat/completions", 200))
        self.assertEqual((line["adapter"], line["prompt_tokens"], line["completion_tokens"], line["finish"]),
                         ("reverse", usage["prompt_tokens"], usage["completion_tokens"], "length"))
        self.assertGreater(line["bytes"], 100)
        self.assertGreater(line["ms"], 0)
        log = self.server.text()
        started = log.index('{"time"')
        for text in log[started:].splitlines():
            parsed = json.loads(text)   # every line
            self.assertLessEqual({"time", "level", "message"}, set(parsed))
            self.assertNotEqual(parsed["level"], "forged")

    def test_dashboard_and_alerts_use_what_is_exported(self):
        self.assertEqual(self.server.chat("reverse", "abc")[0], 200)
        call(self.server, "GET", "/nowhere")
        names = exported(scrape(self.server))
        dashboard = json.loads((ROOT / "deploy/grafana/loramux.json").read_text())
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        self.assertGreater(len(queries), 15)
        rules = (ROOT / "deploy/prometheus/rules.yml").read_text()
        queries += re.findall(r"expr:\s*(.*)", rules)
        for query in queries:
            used = re.findall(r"\b((?:vllm|loramux):\w+|process_\w+)", query)
            self.assertTrue(used, query)
            for name in used:
                self.assertIn(name, names, query)

    def test_every_series_is_documented(self):
        text = (ROOT / "docs/reference/metrics.md").read_text()
        for name in exported(scrape(self.server)):
            self.assertIn(re.sub(r"_(bucket|sum|count)$", "", name), text)


class TextLog(unittest.TestCase):
    def test_text_lines(self):
        server = Server("--log-level", "debug")
        call(server, "GET", "/nowhere%0aforged", None, {"X-Request-Id": "t1"})
        server.chat("demo", "abc", max_tokens=2)
        log = server.stop()
        self.assertRegex(log, r"debug request method=GET path=/nowhere%0aforged status=404 bytes=\d+ ms=\d+\.\d "
                              r"request_id=t1\n")
        self.assertRegex(log, r"info request method=POST path=/v1/chat/completions status=200 .* adapter=demo "
                              r"prompt_tokens=\d+ completion_tokens=\d+ finish=\w+\n")


if __name__ == "__main__":
    serving.run_tests()
