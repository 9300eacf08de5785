#!/usr/bin/env python3
"""The Helm chart and the LoraAdapter CRD: every flag in the templates is one that the program has; where `helm` is installed,
the templates are rendered for several fleets, refused values are refused, and, where `kubernetes-validate` is installed too,
each object is checked against Kubernetes' own schemas. Standard library and PyYAML, if it is there.

Usage: kubernetes_chart_test.py PATH_OF_LORAMUX
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import serving
from serving import ROOT, run_tests

CHART = ROOT / "deploy/kubernetes/loramux"
HELM = shutil.which("helm") or (lambda path: str(path) if path.exists() else None)(pathlib.Path.home() / "go/bin/helm")
VALIDATE = shutil.which("kubernetes-validate") or (
    lambda path: str(path) if path.exists() else None)(serving.CLIENTS / "kubernetes/bin/kubernetes-validate")
MODEL = ["--set", "model.name=Qwen/Qwen3-0.6B"]
FLEETS = {
    "least": MODEL,
    "all": [*MODEL, "--set", "controller.enabled=true", "--set", "etcd.urls={http://a:2379,http://b:2379}", "--set",
            "inferencePool.enabled=true", "--set", "fleetKeySecret=fleet", "--set", "router.apiKeysSecret=keys", "--set",
            "model.hfTokenSecret=hf", "--set", "model.existingClaim=models", "--set", "adapters.s3Secret=s3", "--set",
            "adapters.s3Region=eu-west-1", "--set", "adapters.s3EndpointUrl=https://s3.example.com", "--set",
            "adapters.allowedSources={s3://bucket/adapters,hf://org}", "--set", "servers.deviceMemory=20GiB", "--set",
            "model.servedName=base", "--set-json", 'networkPolicy.clients=[{"namespaceSelector":{"matchLabels":{"a":"b"}}}]',
            "--set-json", 'networkPolicy.scrapers=[{"podSelector":{"matchLabels":{"app":"prometheus"}}}]', "--set-json",
            'servers.resources={"limits":{"nvidia.com/gpu":1}}'],
}
REFUSED = [([], "model"), ([*MODEL, "--set", "servers.replica=2"], "replica"),
           ([*MODEL, "--set", "servers.replicas=0"], "replicas"),
           ([*MODEL, "--set", "adapters.allowedSources={/data}"], "allowedSources"),
           ([*MODEL, "--set", "controller.enabled=true"], "etcd.urls")]


class Chart(unittest.TestCase):
    def test_the_flags_are_flags_of_the_program(self):
        reference = subprocess.run([serving.LORAMUX, "reference", "markdown"], check=True, capture_output=True, text=True).stdout
        commands = {}
        for part in re.split(r"^## ", reference, flags=re.MULTILINE):
            commands[part.split("\n", 1)[0].strip("` ").removeprefix("loramux ")] = part
        seen = 0
        for path in sorted((CHART / "templates").glob("*.yaml")):
            command = None
            for line in path.read_text().splitlines():
                match = re.search(r"command: \[/usr/bin/loramux, (\w+)\]", line)
                command = match.group(1) if match else command
                flag = re.match(r"\s+- (--[a-z-]+)", line)
                if flag:
                    seen += 1
                    self.assertIn(f"`{flag.group(1)}`", commands[command], f"{path.name}: `loramux {command}` has no such flag")
        self.assertGreater(seen, 20)

    def test_the_schema_knows_all_values(self):
        schema = json.loads((CHART / "values.schema.json").read_text())
        known = set(schema["properties"])
        given = set(re.findall(r"^(\w+):", (CHART / "values.yaml").read_text(), re.MULTILINE))
        self.assertEqual(given - known, set())
        self.assertEqual(known - given, {"global"})

    @unittest.skipUnless(HELM, "helm is not installed")
    def test_templates(self):
        for name, values in FLEETS.items():
            rendered = subprocess.run([HELM, "template", "fleet", str(CHART), *values], capture_output=True, text=True)
            self.assertEqual(rendered.returncode, 0, rendered.stderr)
            for kind in ("StatefulSet", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
                self.assertIn(f"kind: {kind}\n", rendered.stdout)
            self.assertEqual("kind: InferencePool" in rendered.stdout, name == "all")
            self.validate(rendered.stdout)
        for values, word in REFUSED:
            rendered = subprocess.run([HELM, "template", "fleet", str(CHART), *values], capture_output=True, text=True)
            self.assertNotEqual(rendered.returncode, 0, values)
            self.assertIn(word, rendered.stderr)

    def validate(self, text):
        """Against the schemas of Kubernetes; those of the InferencePool are not among them."""
        if VALIDATE is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            for number, part in enumerate(text.split("\n---\n")):
                if "kind:" not in part or "kind: InferencePool" in part:
                    continue
                path = pathlib.Path(folder) / f"{number}.yaml"
                path.write_text(part)
                checked = subprocess.run([VALIDATE, "--strict", str(path)], capture_output=True, text=True, env={**os.environ})
                self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr + part)

    @unittest.skipUnless(VALIDATE, "kubernetes-validate is not installed (tests/clients/install.sh all)")
    def test_the_definition_of_lora_adapters(self):
        checked = subprocess.run([VALIDATE, "--strict", str(CHART / "crds/loraadapters.loramux.io.yaml")], capture_output=True,
                                 text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    run_tests()
