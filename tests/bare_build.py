#!/usr/bin/env python3
"""`make build` and `make wheel`, the README's ways to one's own model, in a fresh Debian that has none of the tests' packages.

Usage: tests/bare_build.py        (needs root, the network and some minutes; installs debootstrap if it is not there)

The root file system holds a minimal Debian with `make`; all else is what `make build` installs. The program that was
built answers a request of the demo there, and the wheel is made. Then the test libraries are installed one by one, as
other software may have done: with GoogleTest but without GoogleMock the build must end well too. The compiler cache of
this machine serves the build (CCACHE_DIR), so that it costs little where the same compiler has built before.
Standard library only.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIRROR = "http://deb.debian.org/debian"
RELEASE = "bookworm"
# As the installer writes them: only the security updates have a Rust that is new enough.
SOURCES = f"""deb {MIRROR} {RELEASE} main
deb {MIRROR} {RELEASE}-updates main
deb {MIRROR}-security {RELEASE}-security main
"""
MUST_BE_ABSENT = ("libgtest-dev", "libgmock-dev", "googletest", "libbenchmark-dev", "clang-14", "libgrpc++-dev", "etcd-server",
                  "nodejs")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


STARTED = time.monotonic()


def say(text):
    print(f"bare_build: {time.monotonic() - STARTED:.0f} s: {text}", flush=True)


def call(*command, **more):
    """Runs the command; where it fails, prints what it said, and ends."""
    run = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace", timeout=7200, check=False, **more)
    if run.returncode != 0:
        print(run.stdout[-8000:])
        sys.exit(f"bare_build: `{' '.join(map(str, command))}` ended with {run.returncode}; its output is above")
    return run.stdout


class BareRoot:
    """A minimal Debian in a folder, with /proc and the compiler cache of this machine. Its mounts and its processes end with
    the namespaces of this process (`main`)."""

    def __init__(self, path):
        self.path = path
        self.has_cache = False
        call("debootstrap", "--variant=minbase", "--include=make,ca-certificates", RELEASE, self.path, MIRROR)
        (self.path / "etc/apt/sources.list").write_text(SOURCES, encoding="utf-8")
        for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):   # as the network of this machine demands
            if pathlib.Path("/", name).exists():
                shutil.copy(pathlib.Path("/", name), self.path / name)
        self.mount("-t", "proc", "proc", "proc")
        cache = call("ccache", "--get-config", "cache_dir").strip() if shutil.which("ccache") else ""
        if cache and pathlib.Path(cache).is_dir():
            self.mount("--bind", cache, "ccache")
            self.has_cache = True

    def mount(self, *words):
        """The last word is the folder in this root; it is made."""
        target = self.path / words[-1]
        target.mkdir(exist_ok=True)
        call("mount", *words[:-1], target)

    def copy_sources(self):
        """What git tracks here, as it is in the working tree."""
        names = call("git", "ls-files", "-z", cwd=ROOT).split("\0")
        for name in filter(None, names):
            source, target = ROOT / name, self.path / "src" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)

    def inside(self, script):
        environment = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
        if self.has_cache:
            environment["CCACHE_DIR"] = "/ccache"
        return call("chroot", self.path, "sh", "-euc", f"cd /src\n{script}", env=environment)

    def installed(self):
        return set(self.inside("dpkg-query -W -f '${Package}\\n'").split())


def build_in(folder):
    root = BareRoot(pathlib.Path(folder) / "root")
    say("a minimal Debian is there")
    root.copy_sources()
    root.inside("make build")
    found = root.installed() & set(MUST_BE_ABSENT)
    if found:
        sys.exit(f"bare_build: expected a build without the tests' packages, and it installed {', '.join(sorted(found))}")
    version = root.inside("build/release/tools/loramux --version").strip()
    say(f"make build: loramux {version}")
    answer = root.inside("build/release/tools/loramux generate demo/model --adapter-dir demo/adapters --lora reverse -p hello")
    say(f"the adapter `reverse` answers hello with {answer.strip()!r}")
    if "olleh" not in answer:
        sys.exit("bare_build: expected olleh")
    root.inside("make wheel")
    wheel = next((root.path / "src/build/package").glob("loramux-*.whl"))
    say(f"make wheel: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
    root.inside("apt-get install -y -q --no-install-recommends libgtest-dev && rm build/release/CMakeCache.txt && make build")
    if "libgmock-dev" in root.installed():
        sys.exit("bare_build: libgtest-dev brings libgmock-dev now: the case needs another way to be made")
    say("make build beside libgtest-dev alone: built")


def why_not():
    """Why it cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "it needs root"
    try:
        with urllib.request.urlopen(f"{MIRROR}/dists/{RELEASE}/Release", timeout=30):
            pass
    except (urllib.error.URLError, OSError) as error:
        return f"{MIRROR} does not answer: {error}"
    if not shutil.which("debootstrap"):
        call("apt-get", "install", "-y", "-q", "--no-install-recommends", "debootstrap")
    return ""


def main():
    if sys.argv[1:2] == ["--in"]:
        build_in(sys.argv[2])
        return
    reason = why_not()
    if reason:
        print(f"SKIPPED: bare_build did NOT run: {reason}", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        # Whatever ends it, its mounts and processes end with it, before the folder is removed: the compiler cache is mounted there.
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, __file__, "--in", folder]
        sys.exit(subprocess.run(words, check=False).returncode)


if __name__ == "__main__":
    main()
