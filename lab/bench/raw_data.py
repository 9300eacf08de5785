"""Raw data of a measurement, and what its page says of it. The data itself is not kept in the repository."""
import hashlib
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def raw_data_line(raw):
    """The line of a page whose raw data are these bytes, with the commit of the checkout."""
    commit = subprocess.run(["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.strip()
    return f"Raw data: SHA-256 `{hashlib.sha256(raw).hexdigest()}`, made at commit `{commit}`."


def write_raw_data(path, data):
    """Writes `data` as JSON, and returns the line of its page."""
    raw = (json.dumps(data, indent=1) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return raw_data_line(raw)
