"""The licences of what is linked into the program: libraries of headers, static libraries, and the Rust crates of its text
part. tools/bundle.py puts them beside those of the shared libraries. Standard library only.

Sources: what ninja knows of the program's objects (the headers that they include, the archives that they are linked with),
the Debian packages that own these files, and what cargo knows of the crates.
"""
import json
import pathlib
import re
import shutil
import subprocess

# Parts of the compiler and of glibc; the licences of both except what is compiled with them.
COMPILER = re.compile(r"^(libc6.*|libc-dev.*|linux-libc-dev.*|libcrypt-dev.*|(lib)?(gcc|stdc\+\+|clang|llvm|gomp|omp)-.*|gcc|g\+\+|clang.*)$")
LICENCE_FILE = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)


class Unknown(Exception):
    """A licence that was not found; the text says of what."""


def call(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def linked_files(build, program):
    """The headers and archives outside of the build that are part of the program."""
    inputs = call("ninja", "-C", build, "-t", "inputs", program).splitlines()
    # The text part's archive is within the tree; its crates have licences of their own.
    files = {line for line in inputs if line.startswith("/usr/") and line.endswith(".a")}
    objects = [line for line in inputs if line.endswith(".o")]
    for line in call("ninja", "-C", build, "-t", "deps", *objects).splitlines():
        path = line.strip()
        if line.startswith(" ") and path.startswith("/usr/"):
            files.add(path)
    return sorted(str(pathlib.Path(path).resolve()) for path in files)


def owners(files):
    """The Debian packages that own the files, without the compiler's."""
    packages, asked = set(), list(files)
    for at in range(0, len(asked), 500):
        part = asked[at:at + 500]
        found = subprocess.run(["dpkg-query", "-S", *part], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        known = {}
        for line in found.splitlines():
            names, _, path = line.rpartition(": ")
            known[path] = names.split(",")[0].split(":")[0]
        for path in part:
            if path not in known:
                raise Unknown(f"no Debian package owns {path}, which is part of the program: its licence is not known")
            packages.add(known[path])
    return sorted(package for package in packages if not COMPILER.match(package))


def crates(manifest):
    """(name, version, licence expression, folder) of every crate of the program's text part."""
    host = re.search(r"^host: (\S+)$", call("cargo", "-vV"), re.MULTILINE).group(1)
    data = json.loads(call("cargo", "metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host,
                           "--manifest-path", manifest))
    own = set(data["workspace_members"])
    return sorted((one["name"], one["version"], one["license"] or "", pathlib.Path(one["manifest_path"]).parent)
                  for one in data["packages"] if one["id"] not in own)


def copy_crate(crate, folder):
    """A file with the crate's licence expression and the texts that it comes with."""
    name, version, expression, source = crate
    texts = [path for path in sorted(source.iterdir()) if path.is_file() and LICENCE_FILE.match(path.name)]
    if not expression and not texts:
        raise Unknown(f"the crate {name} {version} names no licence and has no file of it in {source}")
    parts = [f"{name} {version}: {expression or 'see below'}\n"]
    parts += [f"\n---- {path.name}\n{path.read_text(encoding='utf-8', errors='replace')}" for path in texts]
    (folder / f"crate-{name}-{version}.txt").write_text("".join(parts), encoding="utf-8")


def copy_all(build, program, manifest, folder):
    """Writes a file for each library and crate into the folder. Raises Unknown, or CalledProcessError of a tool."""
    for package in owners(linked_files(build, program)):
        shutil.copyfile(f"/usr/share/doc/{package}/copyright", folder / f"{package}.txt")
    for crate in crates(manifest):
        copy_crate(crate, folder)
