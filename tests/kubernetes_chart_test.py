#!/usr/bin/env python3
"""The Helm chart, the LoraAdapter CRD and KServe's objects: every flag in them is one that the program has; where `helm` is
installed, the templates are rendered for several fleets, refused values are refused, and, where `kubernetes-validate` is
installed too, each object is checked against Kubernetes' own schemas. Where KServe's SDK is installed, its objects are
checked against the schema there. Standard library; PyYAML comes with the SDK.

Usage: kubernetes_chart_test.py PATH_OF_LORAMUX
"""
import ast
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError:
    yaml = None

import serving
from serving import ROOT, run_tests

CHART = ROOT / "deploy/kubernetes/loramux"
HELM = shutil.which("helm") or (lambda path: str(path) if path.exists() else None)(pathlib.Path.home() / "go/bin/helm")
VALIDATE = shutil.which("kubernetes-validate") or (
    lambda path: str(path) if path.exists() else None)(serving.CLIENTS / "kubernetes/bin/kubernetes-validate")
KSERVE = ROOT / "deploy/kubernetes/kserve"
KSERVE_SDK = serving.CLIENTS / "kserve"   # its files; nothing of it is imported
MODEL = ["--set", "model.name=Qwen/Qwen3-0.6B"]
FLEETS = {
    "least": MODEL,
    "all": [*MODEL, "--set", "controller.enabled=true", "--set", "etcd.urls={http://a:2379,http://b:2379}", "--set",
            "inferencePool.enabled=true", "--set", "inferencePool.targetPorts={8000,8001}", "--set", "fleetKeySecret=fleet", "--set", "router.apiKeysSecret=keys", "--set",
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


@functools.cache
def kserve_fields(name):
    """The fields of a type of KServe by their JSON names, with their types; None for types of Kubernetes."""
    path = KSERVE_SDK / "kserve/models" / (re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower() + ".py")
    if not path.exists():
        return None
    tables = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.walk(ast.parse(path.read_text()))
              if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("openapi_types", "attribute_map")}
    return {tables["attribute_map"][field]: kind for field, kind in tables["openapi_types"].items()}


def kserve_faults(value, kind, where):
    """What of the value is not as the type of KServe says."""
    plain = {"str": str, "int": int, "bool": bool, "object": object}
    if kind in plain:
        right = isinstance(value, plain[kind]) and (kind == "bool" or not isinstance(value, bool) or kind == "object")
        return [] if right else [f"{where}: expected {kind}, found {value!r}"]
    many = re.fullmatch(r"(list\[|dict\(str, )(.+)[\])]", kind)
    if many:
        entries = enumerate(value) if isinstance(value, list) else value.items()
        return [fault for key, entry in entries for fault in kserve_faults(entry, many[2], f"{where}.{key}")]
    fields = kserve_fields(kind)
    if fields is None:
        return []   # a type of Kubernetes, which kubernetes-validate knows
    return [fault for key, entry in value.items() for fault in (
        kserve_faults(entry, fields[key], f"{where}.{key}") if key in fields else [f"{where}: {kind} has no field {key}"])]


class KServe(unittest.TestCase):
    """The ServingRuntime and its InferenceService."""

    def test_the_flags_are_flags_of_the_program(self):
        reference = subprocess.run([serving.LORAMUX, "reference", "markdown"], check=True, capture_output=True, text=True).stdout
        serve = reference.split("## loramux serve")[1].split("## loramux demo")[0]
        flags = [flag for path in sorted(KSERVE.glob("*.yaml")) for flag in re.findall(r"- (--[a-z-]+)", path.read_text())]
        self.assertGreater(len(flags), 8)
        for flag in flags:
            self.assertIn(f"`{flag}`", serve)

    @unittest.skipUnless(KSERVE_SDK.exists(), "KServe's SDK is not installed (tests/clients/install.sh all)")
    def test_the_objects_are_as_kserve_says(self):
        sys.path.append(str(KSERVE_SDK))
        import yaml
        runtime = yaml.safe_load((KSERVE / "serving-runtime.yaml").read_text())
        service = yaml.safe_load((KSERVE / "inference-service.yaml").read_text())
        self.assertEqual(kserve_faults(runtime, "V1alpha1ServingRuntime", "runtime"), [])
        self.assertEqual(kserve_faults(service, "V1beta1InferenceService", "service"), [])
        model = service["spec"]["predictor"]["model"]
        self.assertEqual(model["runtime"], runtime["metadata"]["name"])
        self.assertIn(model["modelFormat"]["name"], [form["name"] for form in runtime["spec"]["supportedModelFormats"]])
        wrong = json.loads(json.dumps(service).replace("storageUri", "storageURI").replace('"minReplicas": 1', '"minReplicas": "1"'))
        self.assertEqual(kserve_faults(wrong, "V1beta1InferenceService", "service"), [
            "service.spec.predictor.minReplicas: expected int, found '1'",
            "service.spec.predictor.model: V1beta1ModelSpec has no field storageURI"])
        # What is of Kubernetes: the containers as KServe puts them in a pod.
        container = runtime["spec"]["containers"][0]
        container.update({key: model[key] for key in ("env", "resources")}, args=container["args"] + model["args"])
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"},
               "spec": {"containers": [container], "volumes": runtime["spec"]["volumes"]}}
        if VALIDATE is not None:
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                json.dump(pod, file)
                file.flush()
                checked = subprocess.run([VALIDATE, "--strict", file.name], capture_output=True, text=True)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


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

    @unittest.skipUnless(yaml, "PyYAML is not installed")
    def test_the_objects_of_llm_d(self):
        """Against the fields that the definitions of llm-d's router have (v1alpha2)."""
        pool, objective, rewrite = yaml.safe_load_all((ROOT / "deploy/kubernetes/llm-d.yaml").read_text())
        self.assertEqual([(o["apiVersion"], o["kind"]) for o in (pool, objective, rewrite)],
                         [("inference.networking.k8s.io/v1", "InferencePool"), ("llm-d.ai/v1alpha2", "InferenceObjective"),
                          ("llm-d.ai/v1alpha2", "InferenceModelRewrite")])
        self.assertLessEqual(set(pool["spec"]), {"selector", "targetPorts", "appProtocol", "endpointPickerRef"})
        self.assertTrue(all(1 <= port["number"] <= 65535 for port in pool["spec"]["targetPorts"]))
        self.assertEqual(set(objective["spec"]), {"priority", "poolRef"})
        self.assertEqual(set(rewrite["spec"]), {"poolRef", "rules"})
        for rule in rewrite["spec"]["rules"]:
            self.assertEqual([set(match["model"]) for match in rule["matches"]], [{"type", "value"}])
            self.assertEqual({field for target in rule["targets"] for field in target}, {"modelRewrite", "weight"})
        for object in (objective, rewrite):
            self.assertEqual(object["spec"]["poolRef"], {"group": "inference.networking.k8s.io", "kind": pool["kind"],
                                                         "name": pool["metadata"]["name"]})
        labels = (CHART / "templates/_helpers.tpl").read_text()
        for label in pool["spec"]["selector"]["matchLabels"]:
            self.assertIn(label, labels)

    @unittest.skipUnless(HELM, "helm is not installed")
    def test_templates(self):
        for name, values in FLEETS.items():
            rendered = subprocess.run([HELM, "template", "fleet", str(CHART), *values], capture_output=True, text=True)
            self.assertEqual(rendered.returncode, 0, rendered.stderr)
            for kind in ("StatefulSet", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
                self.assertIn(f"kind: {kind}\n", rendered.stdout)
            self.assertEqual("kind: InferencePool" in rendered.stdout, name == "all")
            if name == "all":
                self.assertIn("    - number: 8000\n    - number: 8001\n", rendered.stdout)
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
