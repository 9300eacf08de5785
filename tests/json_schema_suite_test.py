#!/usr/bin/env python3
"""The published tests of JSON Schema (json_schema_suite/) against the program with the demo model: whatever is generated from
a schema is valid, and what is not served is refused by name. A `jsonschema` of tests/clients/install.sh judges; this file runs
itself again with the Python that has it. (src/text/grammar/json_schema_suite_test.cc has the documents of the suite.)

Usage: json_schema_suite_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import json
import re
import sys
import unittest

import serving
from serving import ROOT, Server

SUITE = ROOT / "tests/json_schema_suite/draft2020-12"
CLASSES = re.compile(r"\\\\[dDpsSwW]")   # what means something else, or nothing, in Python's regular expressions


def schemas():
    """(name, schema) of every group of tests."""
    return [(f"{path.relative_to(SUITE)}: {group['description']}", group["schema"])
            for path in sorted(SUITE.rglob("*.json")) for group in json.loads(path.read_text(encoding="utf-8"))]


def words(schema):
    """The keywords of a schema, and the places to which it refers. Names of properties count too."""
    if isinstance(schema, list):
        return {word for one in schema for word in words(one)}
    if isinstance(schema, dict):
        return {*schema, *words(list(schema.values())), *([schema["$ref"]] if isinstance(schema.get("$ref"), str) else [])}
    return set()


def read(schema):
    """The schema as the server reads it: several branches of oneOf may match."""
    if isinstance(schema, list):
        return [read(one) for one in schema]
    if isinstance(schema, dict):
        return {"anyOf" if word == "oneOf" else word: read(value) for word, value in schema.items()}
    return schema


class JsonSchemaSuite(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def answers(self, **more):
        """(name, schema, status, answer) of every schema."""
        def ask(one):
            name, schema = one
            return name, schema, *self.server.chat("demo", "hello", **{"max_tokens": 150, "n": 8, "seed": 1,
                                                                      "structured_outputs": {"json": schema}, **more})
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            return list(pool.map(ask, schemas()))

    def test_what_is_generated_is_valid(self):
        documents, served = 0, set()
        for temperature in (1, 2):   # at 2, the model has no preference left
            for name, schema, status, answer in self.answers(temperature=temperature):
                if status != 200 or CLASSES.search(json.dumps(schema)):
                    continue
                validator = jsonschema.Draft202012Validator(read(schema))
                for choice in answer["choices"]:
                    if choice["finish_reason"] == "length":
                        continue
                    self.assertEqual(choice["finish_reason"], "stop", answer)
                    document = json.loads(choice["message"]["content"])
                    self.assertTrue(validator.is_valid(document), (name, schema, document))
                    documents += 1
                    served.add(name)
        print(f"{documents} documents of {len(served)} schemas", file=sys.stderr)
        self.assertGreater(len(served), 150)

    def test_what_is_not_served_is_refused_by_name(self):
        for name, schema, status, answer in self.answers(max_tokens=1, n=1):
            if status == 200:
                continue
            self.assertEqual((status, answer["error"]["param"]), (400, "structured_outputs"), name)
            message = answer["error"]["message"]
            nothing = "schema is false" in message or schema in (True, False)   # nothing can match, or there is no keyword
            self.assertTrue(nothing or any(word in message for word in words(schema)), (name, schema, message))


if __name__ == "__main__":
    serving.use_clients("python")
    import jsonschema
    serving.run_tests()
