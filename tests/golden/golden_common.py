"""Helpers shared by the scripts that make the golden fixtures."""

import hashlib
import json
import os
import pathlib
import shutil

# Nothing is fetched: every model is made here. Set before transformers is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

HERE = pathlib.Path(__file__).resolve().parent


def stable_seed(*parts):
    """A 32-bit seed that depends on the parts only (not on Python's hash seed)."""
    text = "/".join(str(p) for p in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def write_json(path, value):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def fresh_dir(path):
    path = pathlib.Path(path)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def tidy_adapter_config(config, base_name):
    """Makes a saved adapter_config.json the same on every run and free of local paths."""
    config["base_model_name_or_path"] = base_name
    for key in ("target_modules", "target_parameters", "exclude_modules", "modules_to_save"):
        if isinstance(config.get(key), list):
            config[key] = sorted(config[key])
    return config


def versions():
    import peft
    import safetensors
    import torch
    import transformers

    return {
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "peft": peft.__version__,
        "safetensors": safetensors.__version__,
    }
