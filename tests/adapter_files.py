"""Reads and changes the files of adapters in tests. Standard library only."""
import json
import pathlib
import struct


def read_tensors(path):
    """The tensors of a safetensors file: {"dtype", "shape", "bytes"} by name."""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: {"dtype": about["dtype"], "shape": about["shape"],
                   "bytes": data[8 + size:][slice(*about["data_offsets"])]} for name, about in header.items()}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        end = at + len(tensor["bytes"])
        header[name] = {"dtype": tensor["dtype"], "shape": tensor["shape"], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t["bytes"] for t in tensors.values()))


def add_head(folder, rows, **config):
    """Gives the adapter a head for classes, as PEFT saves it for SEQ_CLS. `rows` are those of its matrix; `config` goes into
    the config.json beside it."""
    tensors = read_tensors(folder / "adapter_model.safetensors")
    values = [value for row in rows for value in row]
    tensors["base_model.model.score.weight"] = {
        "dtype": "F32", "shape": [len(rows), len(rows[0])], "bytes": struct.pack(f"<{len(values)}f", *values)}
    write_tensors(folder / "adapter_model.safetensors", tensors)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "task_type": "SEQ_CLS"}))
    (folder / "config.json").write_text(json.dumps(config))
