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
except ModuleNotFoundError:   # the distribution's package is pure Python, so another Python can use it
    sys.path.append("/usr/lib/python3/dist-packages")
    from prometheus_client.parser import text_string_to_metric_families

import serving
from serving import DEMO, PATIENCE, ROOT, Server, questions, wait_for


def scrape(server):
    """{name of sample: [(labels, value)]} by the official parser. Families without samples have an empty list."""
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
    """The names that queries use."""
    return set(samples)


def call(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
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

    def scrape_until(self, condition):
        """The first page that meets the condition, and the number of pages that were read before it."""
        pages = []

        def met():
            pages.append(scrape(self.server))
            return condition(pages[-1], len(pages) - 1)
        wait_for(met, "a page with the expected values")
        return pages[-1], len(pages) - 1

    def calm_page(self):
        """A page after the last one of which only its own response was counted: earlier requests are counted in full."""
        responses = lambda page: total(page, "loramux:http_responses_total")
        last = [scrape(self.server)]

        def calm():
            before, last[0] = last[0], scrape(self.server)
            return responses(last[0]) == responses(before) + 1
        wait_for(calm, "two pages in a row without other responses between them")
        return last[0]

    def test_values_agree_with_the_requests(self):
        before = self.calm_page()
        asked = questions(2)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda q: self.server.chat(q[0], q[1]), asked))
        self.assertTrue(all(status == 200 for status, _ in answers))
        usages = [answer["usage"] for _, answer in answers]
        # A response may be counted a moment after its client has read it. `before` and every later page are responses too.
        since = lambda page, name, **labels: total(page, name, **labels) - total(before, name, **labels)
        after, _ = self.scrape_until(
            lambda page, scrapes: since(page, "vllm:request_success_total") == len(asked) and
            since(page, "loramux:http_responses_total", code="200") == len(asked) + 1 + scrapes)
        delta = lambda name, **labels: since(after, name, **labels)
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

    def test_residency_is_seen(self):
        adapters = sorted(path.name for path in (DEMO / "adapters").iterdir())
        for name in adapters[:3]:
            self.assertEqual(self.server.chat(name, "x", max_tokens=1)[0], 200)
        self.server.wait_idle()
        ready_on = lambda page: page["vllm:lora_requests_info"][0][0]["running_lora_adapters"].split(",")

        def up_to_date(page, _):   # the engine's figures on a page may be of a moment before
            return (set(adapters[:3]) <= set(ready_on(page)) and
                    page["vllm:lora_requests_info"][0][0]["waiting_lora_adapters"] == "" and
                    total(page, "vllm:num_gpu_loaded_lora_adapters") == len(ready_on(page)))
        samples, _ = self.scrape_until(up_to_date)
        self.assertEqual(len(samples["vllm:lora_requests_info"]), 1)
        labels, value = samples["vllm:lora_requests_info"][0]
        ready = ready_on(samples)
        self.assertGreaterEqual(int(labels["max_lora"]), len(ready))
        self.assertLess(abs(value - time.time()), 3600)
        self.assertEqual(total(samples, "vllm:lora_adapter_loaded"), len(adapters))
        self.assertEqual(total(samples, "vllm:lora_adapter_loaded", level="gpu"), len(ready))
        self.assertLessEqual(len({have["adapter_name"] for have, _ in samples["vllm:lora_adapter_loaded"]}), 6)
        self.assertGreaterEqual(total(samples, "vllm:lora_adapter_load_seconds_count"), 3)
        self.assertEqual(total(samples, "vllm:cache_config_info", block_size="16"), 1)

    def test_gauges_while_busy(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "n": 100, "max_tokens": 800,
                "ignore_eos": True}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))   # runs until this test hangs up
        self.scrape_until(lambda page, _: total(page, "vllm:num_requests_running") > 0 and
                          total(page, "vllm:kv_cache_usage_perc") > 0)
        connection.close()
        self.scrape_until(lambda page, _: total(page, "vllm:request_success_total", finished_reason="abort") > 0)
        self.server.wait_idle()

    def test_grammars(self):
        """What is kept for constrained output is told apart from what grows."""
        def numbers():
            samples = scrape(self.server)
            return [total(samples, "loramux:grammars_kept"), total(samples, "loramux:grammar_uses_total", outcome="compiled"),
                    total(samples, "loramux:grammar_uses_total", outcome="kept")], total(samples, "loramux:grammars_kept_bytes")
        (kept, compiled, used), bytes_before = numbers()
        schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {
            "only_here": {"type": "integer"}}}}}
        for _ in range(2):
            self.assertEqual(self.server.chat("demo", "x", response_format=schema, max_tokens=3)[0], 200)
        counts, bytes_after = numbers()
        self.assertEqual(counts, [kept + 1, compiled + 1, used + 1])
        self.assertGreater(bytes_after, bytes_before + 1000)

    def test_process(self):
        samples = scrape(self.server)
        self.assertGreater(total(samples, "process_resident_memory_bytes"), 10e6)
        self.assertLess(abs(total(samples, "process_start_time_seconds") - time.time()), 3600)
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
        status, found, _ = call(self.server, "POST", "/v1/completions", {"model": "unknown", "prompt": "x"},
                                {"X-Request-Id": "bad id", "traceparent": "00-zz"})
        self.assertEqual(status, 404)
        self.assertRegex(found["x-request-id"], "^[0-9a-f]{32}$")
        self.assertNotIn("traceparent", found)
        lines = self.access_lines(lambda line: line.get("span_id") == span)
        self.assertEqual(lines[0]["request_id"], "trace-me.1")
        self.assertEqual(lines[0]["trace_id"], trace)

    def access_lines(self, condition):
        def found():
            # The last line may be a part of one that is being written.
            whole = self.server.text().rpartition("\n")[0].splitlines()
            lines = [json.loads(line) for line in whole if line.startswith('{"time"')]
            return [line for line in lines if "path" in line and condition(line)]
        return wait_for(found, "a line of the access log")

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
        log = self.server.text().rpartition("\n")[0]
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
