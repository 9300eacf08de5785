#!/usr/bin/env bash
# SkyRL: its client of inference servers cannot be imported by Python 3.11, the oldest that the package names.
#
# Versions    skyrl 0.3.0, pydantic 2.14.1, aiohttp 3.13.2, on Python 3.11
# Behaviour   The package says Requires-Python >=3.11. Importing the client raises PydanticUserError there: a model of its module
#             has a field of a typing.TypedDict, which pydantic takes from Python 3.12 on only.
# Why         A trainer's environment on 3.11 installs without a complaint and fails at its first import, in another library's words.
# What to do  Run it on Python 3.12, or put typing_extensions' TypedDict in typing's place before the import
# Seen        on 3.11 the import raises PydanticUserError (code typed-dict-version), and succeeds with the other TypedDict; on a later
#             Python nothing is to be seen, which the script says
source "$(dirname "$0")/common.sh"
packages pydantic==2.14.1 aiohttp==3.13.2
"$work/venv/bin/pip" install --quiet --no-deps --disable-pip-version-check skyrl==0.3.0   # the client needs no more
check <<'EOF2'
import importlib
import importlib.metadata
import sys
import typing

import typing_extensions

CLIENT = "skyrl.backends.skyrl_train.inference_servers.remote_inference_client"


def outcome():
    for name in [name for name in sys.modules if name.startswith("skyrl")]:
        del sys.modules[name]
    try:
        return f"has a client: {hasattr(importlib.import_module(CLIENT), 'RemoteInferenceClient')}"
    except Exception as error:
        return f"{type(error).__name__}, {getattr(error, 'code', None)}"


seen("Requires-Python", importlib.metadata.metadata("skyrl")["Requires-Python"], ">=3.11")
if sys.version_info >= (3, 12):
    print("this Python is later than 3.11: nothing to see")
else:
    seen("import", outcome(), "PydanticUserError, typed-dict-version")
    typing.TypedDict = typing_extensions.TypedDict
    seen("import with the TypedDict of typing_extensions", outcome(), "has a client: True")
EOF2
