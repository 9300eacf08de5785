#!/usr/bin/env python3
"""Structured output of the program with the demo model: every field that demands it, the keywords of JSON Schema that are
supported, what is refused by name, hostile grammars, and how it goes together with the other fields. Standard library only;
a `jsonschema` that is installed checks the documents too.

Usage: structured_output_test.py PATH_OF_LORAMUX
"""
import concurrent.futures
import json
import math
import re
import unittest

import serving
from serving import Server

try:
    import jsonschema
except ImportError:
    jsonschema = None

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer",
          "minimum": 0, "maximum": 120}}, "required": ["name", "age"], "additionalProperties": False}
GBNF = 'root ::= "(" root ")" | [a-c] [0-9]{2} # nested\n'
LARK = 'start: "(" start ")" | /[a-c][0-9]{2}/\n'
NESTED = re.compile(r"\(*[a-c][0-9]{2}\)*")


def obj(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **more}


# One schema for each supported keyword, with strings and arrays that end: a small model may go on with them without end.
SHORT = {"type": "string", "maxLength": 5}
SCHEMAS = [
    {"type": "null"}, {"type": "boolean"}, {"type": "integer", "minimum": -5, "maximum": 999},
    {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.25},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 50}, {"type": "integer", "multipleOf": 7, "minimum": 0,
                                                                        "maximum": 999},
    {"type": "string", "minLength": 2, "maxLength": 6}, {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}, {"type": "string", "format": "ipv4"},
    {"enum": ["red", 7, None, {"a": [1]}]}, {"const": {"x": "y", "z": [True]}},
    {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, SHORT], "items": False, "minItems": 2},
    obj({"a": {"type": "boolean"}, "b": SHORT}),
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"const": 2}}, "required": ["b"],
     "additionalProperties": False},
    {"type": "object", "patternProperties": {"^[a-b]{1,2}$": {"type": "boolean"}}, "additionalProperties": False,
     "minProperties": 1, "maxProperties": 2},
    {"anyOf": [obj({"a": {"const": 1}}), {"type": "boolean"}]}, {"oneOf": [obj({"k": {"const": "x"}}), obj({"k": {"const": "y"}})]},
    {"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 20}]},
    {"$defs": {"leaf": {"enum": ["l", "r"]}}, **obj({"one": {"$ref": "#/$defs/leaf"}, "two": {"$ref": "#/$defs/leaf"}})},
    {"$defs": {"list": obj({"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}})}, "$ref": "#/$defs/list"},
    {"title": "T", "description": "d", "$schema": "https://json-schema.org/draft/2020-12/schema", **PERSON},
]
UNSUPPORTED = {"uniqueItems": True, "contains": {"type": "integer"}, "not": {"type": "null"},
               "propertyNames": {"pattern": "a"}, "dependentRequired": {"a": ["b"]}, "unevaluatedProperties": False,
               "dependentSchemas": {"a": {}}}
FORMATS = {"date": r"\d{4}-\d\d-\d\d", "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
           "ipv4": r"\d+\.\d+\.\d+\.\d+"}
TYPES = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}


def has_type(value, name):
    if name in ("integer", "number"):
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        return numeric and (name == "number" or value == int(value))
    return isinstance(value, TYPES[name])


def same(a, b):
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def valid_number(value, schema):
    return (schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)
            and schema.get("exclusiveMinimum", -math.inf) < value < schema.get("exclusiveMaximum", math.inf)
            and ("multipleOf" not in schema or (value / schema["multipleOf"]).is_integer()))


def valid_string(value, schema):
    return (schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf)
            and re.search(schema.get("pattern", ""), value) is not None
            and re.fullmatch(FORMATS.get(schema.get("format"), "(?s:.*)"), value) is not None)


def valid_array(value, schema, root):
    prefix = schema.get("prefixItems", [])
    return (schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf)
            and all(valid(item, part, root) for item, part in zip(value, prefix))
            and all(valid(item, schema.get("items", True), root) for item in value[len(prefix):]))


def valid_object(value, schema, root):
    def member(name, item):
        parts = [part for known, part in schema.get("properties", {}).items() if known == name]
        parts += [part for pattern, part in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
        return all(valid(item, part, root) for part in parts or [schema.get("additionalProperties", True)])
    return (all(name in value for name in schema.get("required", ()))
            and schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", math.inf)
            and all(member(name, item) for name, item in value.items()))


def valid(value, schema, root):
    """Whether a document is one that the schema describes, for the keywords of SCHEMAS."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].split("/")[1:]:
            target = target[part]
        if not valid(value, target, root):
            return False
    types = schema.get("type", [])
    of_type = {str: valid_string, list: lambda v, s: valid_array(v, s, root), dict: lambda v, s: valid_object(v, s, root),
               int: valid_number, float: valid_number}.get(type(value), lambda v, s: True)
    return ((not types or any(has_type(value, name) for name in ([types] if isinstance(types, str) else types)))
            and ("enum" not in schema or any(same(value, one) for one in schema["enum"]))
            and ("const" not in schema or same(value, schema["const"]))
            and all(valid(value, part, root) for part in schema.get("allOf", ()))
            and ("anyOf" not in schema or any(valid(value, part, root) for part in schema["anyOf"]))
            and ("oneOf" not in schema or sum(valid(value, part, root) for part in schema["oneOf"]) == 1)
            and of_type(value, schema))


def json_schema(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


class StructuredOutput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--device-memory", "64MiB", "--host-memory", "32MiB")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def post(self, path, body, status=200):
        code, answer = self.server.json("POST", path, body)
        self.assertEqual(code, status, (answer, body))
        return answer

    def chat(self, status=200, model="demo", prompt="hello", **more):
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 600, "seed": 1, **more}
        return self.post(CHAT, body, status)

    def texts(self, **more):
        """The texts of all choices, each of which must have stopped by itself."""
        answer = self.chat(**more)
        self.assertEqual({choice["finish_reason"] for choice in answer["choices"]}, {"stop"}, answer)
        return [choice["message"]["content"] for choice in answer["choices"]]

    def refused(self, field, *parts, **more):
        error = self.chat(status=400, **more)["error"]
        self.assertEqual((error["param"], error["type"]), (field, "BadRequestError"), error)
        for part in parts:
            self.assertIn(part, error["message"])

    def assert_valid(self, text, schema):
        document = json.loads(text)
        self.assertTrue(valid(document, schema, schema), (text, schema))
        if jsonschema is not None:
            jsonschema.Draft202012Validator(schema).validate(document)

    # ---- What is served ----

    def test_the_validator_of_this_file_rejects(self):
        for document, schema in ((1, {"type": "string"}), ([1], {"type": "array", "minItems": 2}), ({"a": 1}, obj({})),
                                 ("abc", {"type": "string", "maxLength": 2}), ({}, obj({"a": True})), (5, {"multipleOf": 2}),
                                 ({"b": 1}, {"oneOf": [True, True]}), (1, {"enum": [True]})):
            self.assertFalse(valid(document, schema, schema), (document, schema))

    def test_each_keyword(self):
        for schema in SCHEMAS:
            for text in self.texts(response_format=json_schema(schema, strict=True), n=3):
                self.assert_valid(text, schema)

    def test_each_field(self):
        for more in ({"response_format": json_schema(PERSON)}, {"response_format": {"type": "json_object", "schema": PERSON}},
                     {"structured_outputs": {"json": PERSON}}, {"structured_outputs": {"json": json.dumps(PERSON)}},
                     {"guided_json": PERSON}, {"guided_json": json.dumps(PERSON)}, {"json_schema": PERSON}):
            self.assert_valid(self.texts(**more)[0], PERSON)
        for more in ({"structured_outputs": {"regex": "[a-c]{2}|x/y"}}, {"guided_regex": "[a-c]{2}|x/y"}):
            self.assertRegex(self.texts(**more)[0], r"\A([a-c]{2}|x/y)\Z")
        words = ['say "yes"', "no\n", "mäh|(be)"]
        for more in ({"structured_outputs": {"choice": words}}, {"guided_choice": words}):
            self.assertLessEqual(set(self.texts(n=4, **more)), set(words))
        for grammar in (LARK, GBNF):
            for more in ({"structured_outputs": {"grammar": grammar}}, {"guided_grammar": grammar}, {"grammar": grammar}):
                self.assertRegex(self.texts(logit_bias=self.no_brackets(), **more)[0], NESTED)

    def no_brackets(self):
        """Makes a text short that may nest without end."""
        tokens = self.post("/tokenize", {"model": "demo", "prompt": "(", "add_special_tokens": False})["tokens"]
        return {str(tokens[-1]): -5}

    def test_completions_and_streams(self):
        body = {"model": "demo", "prompt": ["a", "b"], "max_tokens": 600, "seed": 3, "guided_json": PERSON}
        for choice in self.post(TEXT, body)["choices"]:
            self.assert_valid(choice["text"], PERSON)
        whole = self.texts(response_format=json_schema(PERSON))[0]
        status, events = self.server.request("POST", CHAT, {
            "model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 600, "seed": 1,
            "stream": True, "response_format": json_schema(PERSON)})
        self.assertEqual(status, 200)
        pieces = [json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in events.decode().splitlines()
                  if line.startswith("data: {")]
        self.assertEqual("".join(pieces), whole)

    def test_json_mode_of_the_adapter_that_writes_json(self):
        for compact in (False, True):
            more = {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}} if compact else \
                {"response_format": {"type": "json_object"}}
            text = self.texts(model="json", prompt="name: ann, age: 5", temperature=0, **more)[0]
            self.assertIsInstance(json.loads(text), dict)
            if compact:
                self.assertEqual(text, json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False))

    def test_text_is_free(self):
        free = self.chat(temperature=0)["choices"][0]["message"]
        for more in ({"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"grammar": ""}):
            self.assertEqual(self.chat(temperature=0, **more)["choices"][0]["message"], free)

    # ---- Together with other fields ----

    def test_the_end_of_the_grammar_is_the_end(self):
        for more in ({"ignore_eos": True}, {"min_tokens": 50}, {"ignore_eos": True, "min_tokens": 50}):
            for text in self.texts(guided_choice=["yes", "no"], n=3, **more):
                self.assertIn(text, ("yes", "no"))
        longer = self.texts(guided_regex="a{1,40}", ignore_eos=True)[0]   # goes on as long as it may
        self.assertEqual(longer, "a" * 40)
        self.assertGreaterEqual(len(self.texts(guided_regex="a{1,40}", min_tokens=10)[0]), 10)
        self.assertEqual(self.chat(guided_regex="a{30}", max_tokens=7)["choices"][0]["finish_reason"], "length")
        self.assertEqual(self.texts(guided_regex="ab+c", stop=["b"])[0], "a")

    def test_logprobs_are_of_what_is_allowed(self):
        answer = self.chat(guided_choice=["yes", "no"], logprobs=True, top_logprobs=4, temperature=0)
        first = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        self.assertEqual({one["token"] for one in first[:2]}, {"y", "n"})
        self.assertAlmostEqual(sum(math.exp(one["logprob"]) for one in first[:2]), 1, places=4)
        self.assertEqual({one["logprob"] for one in first[2:]}, {-9999.0})

    def test_the_same_answer_alone_and_in_a_batch(self):
        def ask(seed):
            return self.texts(response_format=json_schema(PERSON), seed=seed, prompt=f"who {seed}", n=2)
        alone = [ask(seed) for seed in range(6)]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            free = [pool.submit(self.chat, model="reverse", prompt=f"text {i}", max_tokens=60) for i in range(6)]
            together = list(pool.map(ask, range(6)))
            for future in free:
                future.result()
        self.assertEqual(together, alone)

    # ---- What is refused ----

    def test_unsupported_keywords_are_refused_by_name(self):
        for keyword, value in UNSUPPORTED.items():
            self.refused("response_format", keyword, response_format=json_schema({"type": "object", keyword: value}))
            self.refused("guided_json", keyword, guided_json=obj({"deep": {keyword: value}}))
        self.refused("guided_json", "if", guided_json={"if": {"type": "string"}, "then": {"maxLength": 3}})
        self.refused("guided_json", "example.com", guided_json={"$ref": "https://example.com/s.json"})
        self.refused("guided_json", "x-guidance", guided_json={"x-guidance": {"lenient": True}})

    def test_wrong_demands_are_refused_by_name(self):
        self.refused("response_format", "json_schema", response_format={"type": "json_schema"})
        self.refused("response_format", "expected the type", response_format={"type": "structural_tag"})
        self.refused("response_format", "strict", response_format=json_schema({}, strict="yes"))
        self.refused("structured_outputs", "structural_tag", structured_outputs={"structural_tag": "{}"})
        self.refused("structured_outputs", "whitespace_pattern", structured_outputs={"json": {}, "whitespace_pattern": " "})
        self.refused("guided_regex", "`guided_json`", guided_json={}, guided_regex="a")
        self.refused("structured_outputs", "expected one demand", structured_outputs={"regex": "a", "choice": ["b"]})
        self.refused("guided_choice", "array", guided_choice=[""])
        self.refused("guided_json", "JSON", guided_json="{")
        self.refused("guided_regex", "regex", guided_regex="a(?=b)")
        self.refused("grammar", "line 1", grammar="root ::= <[1]>")
        self.refused("grammar", "'word' is not defined", grammar="root ::= word")

    def test_hostile_grammars_end_with_an_error(self):
        deep = {"type": "integer"}
        for _ in range(50):
            deep = {"type": "array", "items": deep}
        names = [f"p{i}" for i in range(1500)]
        cases = [("guided_json", {"enum": [f"a long value {i}" for i in range(20000)]}), ("guided_json", {"$ref": "#"}),
                 ("guided_json", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
                 ("guided_json", {"allOf": [{"anyOf": [obj({f"a{i}": True}), obj({f"b{i}": True})]} for i in range(30)]}),
                 ("guided_regex", "a?" * 3000), ("guided_regex", "(" * 300 + "a" + ")" * 300),
                 ("guided_grammar", "start: start\n"),
                 ("guided_grammar", "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(60)) + 'T60: "a"\n'),
                 ("grammar", "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60 ::= "a"\n'),
                 ("guided_json", {"type": "object", "properties": dict.fromkeys(names, {"type": "integer"})})]
        for field, value in cases:
            answer = self.chat(status=400, max_tokens=200, **{field: value})
            self.assertLess(len(answer["error"]["message"]), 1000)
        for field, value in (("guided_json", deep), ("guided_regex", "((a{0,100}){0,100}){0,100}"),
                             ("guided_json", {"type": "array", "items": {"const": 1}, "minItems": 10**9}),
                             ("guided_json", {"type": "string", "minLength": 10**9})):
            self.chat(max_tokens=30, **{field: value})   # lazy: it takes no more than what is generated
        self.assertEqual(self.texts(guided_choice=["still here"]), ["still here"])


if __name__ == "__main__":
    serving.run_tests()
