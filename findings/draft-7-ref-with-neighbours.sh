#!/usr/bin/env bash
# A draft-07 schema with keywords beside $ref: jsonschema ignores them, as the draft says, and llguidance enforces them.
#
# Versions    llguidance 1.9.1, jsonschema 4.26.0
# Behaviour   Draft 7: "All other properties in a `$ref` object MUST be ignored." From draft 2019-09 on they count.
#             jsonschema follows `$schema`. llguidance reads `$schema`, and applies the later rule to draft-07 as well.
# Why         Schemas of tools name draft-07 more often than any other. With {"$ref": "#/definitions/code", "maxLength": 2}
#             the model cannot write a value that the tool's own validator takes: the answer is cut to fit the grammar.
# What to do  Remove what stands beside $ref in draft-07 schemas before they become a grammar.
# Seen        "abcdef": jsonschema draft-07 valid, draft 2020-12 invalid, llguidance refuses it for both
source "$(dirname "$0")/common.sh"
packages llguidance==1.9.1 jsonschema==4.26.0
check <<'EOF2'
import json
import jsonschema

body = {"definitions": {"code": {"type": "string"}}, "type": "object", "additionalProperties": False,
        "properties": {"c": {"$ref": "#/definitions/code", "maxLength": 2}}}
for draft, valid in [("http://json-schema.org/draft-07/schema#", True), ("https://json-schema.org/draft/2020-12/schema", False)]:
    schema = {"$schema": draft, **body}
    judge = jsonschema.validators.validator_for(schema)(schema)
    for text, expected in [('{"c":"ab"}', (True, True)), ('{"c":"abcdef"}', (valid, False))]:
        seen(f"{draft.split('/')[-2]} {text}: jsonschema, llguidance", (judge.is_valid(json.loads(text)), accepted(schema, text)), expected)
EOF2
