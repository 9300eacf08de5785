# Sourced by each finding: the packages in a temporary folder, which is removed at the end, and a form for its output.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# packages NAME==VERSION...: installs them, and says which versions run. Everything that they bring along is taken as the
# index has it; what matters for the finding is pinned.
packages() {
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check "$@"
  printf 'versions: %s\n' "$*"
}

# check: runs the Python program on stdin in $work. It has `seen(WHAT, VALUE, EXPECTED)`, which prints what was seen, and
# `accepted(SCHEMA, TEXT)`, which asks llguidance. The finding fails if one value is not the expected one: the behaviour has changed.
check() {
  cat >"$work/seen.py" <<'PY'
import atexit, os

changed = []


def seen(what, value, expected):
    print(f"{what}: {value!r}")
    if value != expected:
        changed.append(f"{what}: expected {expected!r}")


def accepted(schema, text):
    """Whether llguidance's grammar of the schema accepts the text. For findings that install llguidance."""
    import json
    from llguidance import LLMatcher, LLTokenizer
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
    assert not matcher.get_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def end():
    for line in changed:
        print("CHANGED", line, flush=True)
    if changed:
        os._exit(1)


atexit.register(end)
PY
  { printf 'from seen import accepted, seen\n'; cat; } >"$work/finding.py"
  (cd "$work" && TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$work/venv/bin/python" finding.py)
}
