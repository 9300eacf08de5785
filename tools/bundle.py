#!/usr/bin/env python3
"""Makes a tarball and a wheel of loramux that run on machines without compilers and without the libraries it was built with.

Usage: tools/bundle.py tarball|wheel [--build build/release] [--output build/package]

Both hold what `cmake --install --component program` installs (the program, stripped, and the demo model) and every shared
library that it needs but those of glibc, below lib/loramux. A search path relative to each file finds them, so the folder
may lie anywhere. The program must be built by ninja; nothing is compiled here. Needs patchelf, readelf and, for the
licences of the libraries (linked_licences.py), dpkg, ninja and cargo. Standard library only.

The wheel has no Python code: `pip install` puts the program into bin/ of the environment, the libraries into lib/loramux
and the demo into share/loramux.
"""
import argparse
import base64
import gzip
import hashlib
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import linked_licences

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = "lib/loramux"
# glibc belongs to the machine: its parts fit only each other and the loader.
GLIBC = re.compile(r"^(ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl|libnss_.*)\.so[.\d]*$")
EPOCH = (1980, 1, 1, 0, 0, 0)   # the same input gives the same archive


def fail(message):
    sys.exit(f"bundle: {message}")


def call(*command, **more):
    try:
        return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, **more).stdout
    except FileNotFoundError:
        fail(f"{command[0]} is not installed; install the package that has it (on Debian: cmake, ninja-build, patchelf, binutils, dpkg)")
    except subprocess.CalledProcessError as error:
        fail(f"`{' '.join(map(str, command))}` ended with {error.returncode}")


def needed_libraries(program):
    """{soname: path} of every library that the loader takes, without those of glibc."""
    libraries = {}
    for line in call("ldd", program).splitlines():
        match = re.match(r"\s*(\S+) => (.*?)( \(0x[0-9a-f]+\))?$", line)
        if not match or GLIBC.match(match.group(1)):
            continue
        if not match.group(2).startswith("/"):
            fail(f"{program} needs {match.group(1)}, which is {match.group(2)}: install it, or build the program again")
        libraries[match.group(1)] = pathlib.Path(match.group(2)).resolve()
    return libraries


def glibc_version(files):
    """The least (major, minor) of glibc that has every symbol which the files take from it."""
    versions = [(2, 17)]   # the oldest that wheels can name
    for file in files:
        for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)\b", call("readelf", "--wide", "--version-info", file)):
            versions.append((int(major), int(minor)))
    return max(versions)


def copy_licence(library, folder):
    """The licence of the library, from the Debian package that has the file."""
    for path in (library, pathlib.Path("/usr") / library.relative_to("/"), pathlib.Path("/", *library.parts[2:])):
        owner = subprocess.run(["dpkg-query", "-S", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if owner.returncode == 0:
            package = owner.stdout.split(":")[0]
            shutil.copyfile(f"/usr/share/doc/{package}/copyright", folder / f"{package}.txt")
            return
    fail(f"no Debian package owns {library}: its licence is not known, and a copy of it needs one")


def copy_linked_licences(build, folder):
    try:
        linked_licences.copy_all(build, "tools/loramux", ROOT / "src/text/bindings/Cargo.toml", folder)
    except linked_licences.Unknown as error:
        fail(f"{error}; a copy of the program needs it")
    except FileNotFoundError as error:
        fail(f"the licences of what is linked: {error.filename} is not installed or has no file of it")
    except subprocess.CalledProcessError as error:
        fail(f"the licences of what is linked: `{' '.join(error.cmd[:4])} ...` ended with {error.returncode}; expected a build "
             "by ninja and the crates that it was built with")


def stage(build, folder):
    """Fills the folder with bin/, lib/ and share/, and returns (version, glibc version)."""
    program = build / "tools/loramux"
    if not program.exists():
        fail(f"expected the program at {program}, found nothing there: run `make build`, or give --build DIR")
    call("cmake", "--install", build, "--component", "program", "--prefix", folder, "--strip")
    installed = folder / "bin/loramux"
    libraries, licences = folder / LIBRARIES, folder / "share/loramux/licenses"
    libraries.mkdir(parents=True)
    licences.mkdir(parents=True)
    shutil.copyfile(ROOT / "LICENSE", licences / "loramux.txt")
    for name, path in sorted(needed_libraries(program).items()):
        copy = libraries / name
        shutil.copyfile(path, copy)
        copy.chmod(0o644)
        call("patchelf", "--set-rpath", "$ORIGIN", copy)
        copy_licence(path, licences)
    copy_linked_licences(build, licences)
    call("patchelf", "--set-rpath", f"$ORIGIN/../{LIBRARIES}", installed)
    return call(program, "--version").strip(), glibc_version([installed, *libraries.iterdir()])


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def make_tarball(build, output):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        version, _ = stage(build, folder)
        name = f"loramux-{version}-linux-{platform.machine()}"
        for page in ("README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copyfile(ROOT / page, folder / page)
        reference = build / "tools/reference"
        for source, place in (("loramux.1.gz", "share/man/man1/loramux.1.gz"),
                              ("loramux.bash", "share/bash-completion/completions/loramux"),
                              ("_loramux", "share/zsh/site-functions/_loramux"),
                              ("loramux.fish", "share/fish/vendor_completions.d/loramux.fish")):
            if (reference / source).exists():
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(reference / source, folder / place)
        path = output / f"{name}.tar.gz"
        with gzip.GzipFile(path, "wb", compresslevel=6, mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
            for file in files_below(folder):
                entry = archive.gettarinfo(file, f"{name}/{file.relative_to(folder)}")
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = "root"
                entry.mode = 0o755 if file.parent.name == "bin" else 0o644
                with file.open("rb") as content:
                    archive.addfile(entry, content)
    return path


def metadata(version):
    readme = (ROOT / "docs/guide/first-server.md").read_text(encoding="utf-8")
    return (f"Metadata-Version: 2.1\nName: loramux\nVersion: {version}\n"
            "Summary: One base language model, hundreds of LoRA adapters, one OpenAI-compatible server\n"
            "License: Apache-2.0\nKeywords: llm,lora,inference,server,openai\n"
            "Classifier: Operating System :: POSIX :: Linux\nRequires-Python: >=3.7\n"
            f"Description-Content-Type: text/markdown\n\n{readme}")


class Wheel:
    """A wheel that is being written, with its list of files and their digests."""

    def __init__(self, path, dist_info):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6)
        self.record, self.dist_info = [], dist_info

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, EPOCH)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self):
        name = f"{self.dist_info}/RECORD"
        self.archive.writestr(zipfile.ZipInfo(name, EPOCH), "\n".join([*self.record, f"{name},,"]) + "\n")
        self.archive.close()


def make_wheel(build, output):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        version, (major, minor) = stage(build, folder)
        tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
        path = output / f"loramux-{version}-{tag}.whl"
        wheel = Wheel(path, f"loramux-{version}.dist-info")
        for file in files_below(folder):
            name = file.relative_to(folder)
            if name.parts[0] == "bin":
                wheel.add(f"loramux-{version}.data/scripts/{name.name}", file.read_bytes(), 0o755)
            elif name.parts[:3] == ("share", "loramux", "licenses"):
                wheel.add(f"{wheel.dist_info}/licenses/{name.name}", file.read_bytes())
            else:
                wheel.add(f"loramux-{version}.data/data/{name}", file.read_bytes())
        wheel.add(f"{wheel.dist_info}/METADATA", metadata(version).encode())
        wheel.add(f"{wheel.dist_info}/WHEEL",
                  f"Wheel-Version: 1.0\nGenerator: tools/bundle.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
        wheel.close()
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tarball", "wheel"))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="a build directory with the program")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/package", help="the folder of the result")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    make = make_tarball if arguments.what == "tarball" else make_wheel
    path = make(arguments.build.resolve(), arguments.output.resolve())
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
