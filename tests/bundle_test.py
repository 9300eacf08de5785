#!/usr/bin/env python3
"""The tarball and the wheel: their content, and that the program in them runs where nothing of its build is. Standard
library only.

Usage: bundle_test.py PATH_OF_LORAMUX [--debian]   (in its build directory, from which the archives are made)

The program of each runs in a root file system that holds glibc and nothing else, made here (needs root, and a container
that may mount; skipped elsewhere). With --debian, which needs root, debootstrap and the network, the tarball, the wheel and
the Debian package are installed in a minimal Debian without compilers, and `loramux demo` answers a request there.
"""
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import serving
from serving import ROOT, Server

DEBIAN = "--debian" in sys.argv
sys.argv = [word for word in sys.argv if word != "--debian"]
MIRROR = "http://deb.debian.org/debian"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def call(*command, ok=True, **more):
    run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         timeout=3600, **more)
    if ok and run.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {run.returncode}:\n{run.stdout}")
    return run.stdout


def build_directory():
    return pathlib.Path(serving.LORAMUX).resolve().parent.parent


def bundle(what, folder):
    said = call(sys.executable, ROOT / "tools/bundle.py", what, "--build", build_directory(), "--output", folder)
    return pathlib.Path(re.match(r"(.*) \([\d.]+ MB\)$", said.strip()).group(1))


def glibc_only(root):
    """Fills the folder with glibc's loader and libraries, and with what a process may expect of a system."""
    libraries = {}
    for line in call("ldd", "/bin/sh").splitlines():
        match = re.search(r"(/\S*/(ld-linux\S*))|=> (/\S+/(libc\.so\.6))", line)
        if match:
            path = match.group(1) or match.group(3)
            libraries[path] = path
    libc = next(path for path in libraries if path.endswith("libc.so.6"))
    for name in ("libm.so.6", "libresolv.so.2", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libnss_files.so.2"):
        path = pathlib.Path(libc).parent / name
        if path.exists():
            libraries[str(path)] = str(path)
    for path in libraries:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(os.path.realpath(path), target)
        target.chmod(0o755)
    for folder in ("proc", "tmp", "etc"):
        (root / folder).mkdir()
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")


class Root:
    """A root file system in which programs run, with /proc."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        call("mount", "-t", "proc", "proc", self.path / "proc")

    def inside(self, *command, **more):
        environment = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/tmp", "DEBIAN_FRONTEND": "noninteractive"}
        return call("chroot", self.path, *command, env=environment, cwd="/", **more)

    def demo(self, program):
        """Starts the demo, and returns what the adapter `reverse` makes of hello."""
        with tempfile.TemporaryFile() as out:
            server = Server.run(["chroot", str(self.path), program, "demo", "--port", "0"], stdout=out, cwd="/",
                                env={"PATH": PATH, "HOME": "/tmp"})
        try:
            return server.chat("reverse", "hello")[1]["choices"][0]["message"]["content"]
        finally:
            server.stop()

    def close(self):
        call("umount", "--lazy", self.path / "proc", ok=False)


class Archives(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        missing = [tool for tool in ("patchelf", "readelf", "dpkg-query", "cmake", "ninja", "cargo") if not shutil.which(tool)]
        if missing:
            raise unittest.SkipTest(f"SKIPPED: the archives need {', '.join(missing)}")
        cls.folder = tempfile.TemporaryDirectory()
        cls.place = pathlib.Path(cls.folder.name)
        cls.version = call(serving.LORAMUX, "--version").strip()
        cls.wheel, cls.tarball = bundle("wheel", cls.place), bundle("tarball", cls.place)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def own_root(self):
        if os.geteuid() != 0:
            self.skipTest("SKIPPED: a root file system of its own needs root")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        glibc_only(root)
        try:
            root = Root(root)
        except (AssertionError, OSError) as error:   # many containers forbid it
            self.skipTest(f"SKIPPED: /proc cannot be mounted here ({error})")
        self.addCleanup(root.close)
        return root

    def test_wheel_is_what_the_standard_says(self):
        match = re.fullmatch(r"loramux-([\d.]+)-(py3-none-manylinux_(\d+)_(\d+)_(\w+))\.whl", self.wheel.name)
        self.assertEqual((match.group(1), match.group(5)), (self.version, os.uname().machine))
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            info = f"loramux-{self.version}.dist-info"
            record = {row.rsplit(",", 2)[0]: row.rsplit(",", 2)[1:] for row in archive.read(f"{info}/RECORD").decode().splitlines()}
            self.assertEqual(set(record), set(names))
            for name in names:
                content = archive.read(name)
                if name != f"{info}/RECORD":
                    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                    self.assertEqual(record[name], [f"sha256={digest}", str(len(content))])
            self.assertIn(f"Tag: {match.group(2)}\n", archive.read(f"{info}/WHEEL").decode())
            self.assertIn(f"Name: loramux\nVersion: {self.version}\n", archive.read(f"{info}/METADATA").decode())
            program = archive.getinfo(f"loramux-{self.version}.data/scripts/loramux")
            self.assertEqual(program.external_attr >> 16 & 0o777, 0o755)
            self.assertIn(f"{info}/licenses/loramux.txt", names)
            libraries = [name for name in names if "/lib/loramux/" in name]
            self.assertTrue(any("libcurl" in name for name in libraries), libraries)
            self.assertFalse([name for name in libraries if re.search(r"/(libc|libm|ld-linux[^/]*)\.so", name)])
            self.check_glibc((int(match.group(3)), int(match.group(4))), archive)

    def test_licences(self):
        """Each library has one, whether it is shared, linked or of headers alone, and each Rust crate."""
        with zipfile.ZipFile(self.wheel) as archive:
            prefix = f"loramux-{self.version}.dist-info/licenses/"
            texts = {name.removeprefix(prefix): archive.read(name).decode() for name in archive.namelist()
                     if name.startswith(prefix)}
        for package in ("libcurl4", "nlohmann-json3-dev", "libfmt-dev", "libhwy-dev", "libxxhash-dev"):
            self.assertIn(f"{package}.txt", texts)
        self.assertTrue(any(name.startswith("libboost") for name in texts), sorted(texts))
        self.assertIn("Apache License", texts["loramux.txt"])
        lock = (ROOT / "src/text/bindings/Cargo.toml").read_text(encoding="utf-8")
        wanted = re.findall(r"^([\w-]+) *=", lock.split("[dependencies]")[1].split("\n[")[0], re.MULTILINE)
        self.assertGreater(len(wanted), 1)
        for crate in wanted:
            found = [text for name, text in texts.items() if name.startswith(f"crate-{crate}-")]
            self.assertTrue(found and re.search("MIT|Apache|BSD", found[0]), crate)

    def test_a_library_without_a_licence_is_named(self):
        sys.path.insert(0, str(ROOT / "tools"))
        import linked_licences
        with self.assertRaisesRegex(linked_licences.Unknown, "no Debian package owns /usr/include/own.h"):
            linked_licences.owners(["/usr/bin/dpkg-query", "/usr/include/own.h"])
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(linked_licences.Unknown, "the crate own 1.0 names no licence"):
                linked_licences.copy_crate(("own", "1.0", "", pathlib.Path(folder)), pathlib.Path(folder))

    def check_glibc(self, promised, archive):
        """No file needs a newer glibc than the name of the wheel says."""
        with tempfile.TemporaryDirectory() as folder:
            archive.extractall(folder)
            needed = set()
            for path in pathlib.Path(folder).rglob("*"):
                if path.is_file() and path.read_bytes()[:4] == b"\x7fELF":
                    found = re.findall(r"\bGLIBC_(\d+)\.(\d+)\b", call("readelf", "--wide", "--version-info", path))
                    needed |= {(int(major), int(minor)) for major, minor in found}
            self.assertEqual(max(needed), promised)

    def test_wheel_in_a_new_environment(self):
        environment = self.place / "venv"
        call(sys.executable, "-m", "venv", environment)
        pip = environment / "bin/pip"
        call(pip, "install", "--no-index", "--disable-pip-version-check", self.wheel)
        program = environment / "bin/loramux"
        self.assertEqual(call(program, "--version", env={}).strip(), self.version)
        with tempfile.TemporaryFile() as out:
            server = Server.run([program, "demo", "--port", "0"], stdout=out, env={"HOME": "/tmp"}, cwd="/")
        answer = server.chat("reverse", "hello")[1]["choices"][0]["message"]["content"]
        mapped = pathlib.Path(f"/proc/{server.process.pid}/maps").read_text(encoding="utf-8")
        server.stop()
        self.assertEqual(answer, "olleh")
        self.assertIn(f"{environment.resolve()}/lib/loramux/libcurl.so.4", mapped)
        outside = {line.split()[-1] for line in mapped.splitlines() if ".so" in line and str(environment.resolve()) not in line}
        glibc = r"/(ld-linux\S*|libc|libm|libresolv|libpthread|libdl|librt|libnss_\w+|libgcc_s)[.-]"
        self.assertEqual([path for path in outside if not re.search(glibc, path)], [])
        call(pip, "uninstall", "--yes", "loramux")
        left = [path for path in environment.rglob("*") if path.is_file() and "loramux" in path.relative_to(environment).parts]
        self.assertEqual(left, [])   # pip leaves some empty folders

    def test_wheel_where_there_is_only_glibc(self):
        root = self.own_root()
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(root.path / "wheel")
        data = root.path / f"wheel/loramux-{self.version}.data"
        (root.path / "opt").mkdir()
        (data / "data").rename(root.path / "opt/env")
        (data / "scripts").rename(root.path / "opt/env/bin")
        (root.path / "opt/env/bin/loramux").chmod(0o755)
        self.assertEqual(root.demo("/opt/env/bin/loramux"), "olleh")

    def test_tarball_anywhere(self):
        name = f"loramux-{self.version}-linux-{os.uname().machine}"
        with tarfile.open(self.tarball) as archive:
            for entry in archive:
                self.assertTrue(entry.name.startswith(f"{name}/") and ".." not in entry.name, entry.name)
                self.assertEqual((entry.isfile(), entry.uname, entry.mtime), (True, "root", 0), entry.name)
            names = {entry.name.removeprefix(f"{name}/") for entry in archive.getmembers()}
        self.assertLessEqual({"bin/loramux", "README.md", "LICENSE", "share/loramux/demo/model/model.safetensors",
                              "share/loramux/licenses/libcurl4.txt"}, names)
        root = self.own_root()
        with tarfile.open(self.tarball) as archive:
            archive.extractall(root.path)
        (root.path / "some where").mkdir()
        (root.path / name).rename(root.path / "some where/else")
        self.assertEqual(root.demo("/some where/else/bin/loramux"), "olleh")
        said = root.inside("/some where/else/bin/loramux", "doctor", "--port", "0", ok=False)
        self.assertIn("model cache", said)

    def test_a_build_without_the_program_says_what_to_do(self):
        said = call(sys.executable, ROOT / "tools/bundle.py", "wheel", "--build", self.place, "--output", self.place, ok=False)
        self.assertIn("run `make build`, or give --build DIR", said)


@unittest.skipUnless(DEBIAN, "only with --debian")
class MinimalDebian(unittest.TestCase):
    """What a user has on a fresh machine: `debootstrap --variant=minbase`, without compilers."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        place = pathlib.Path(cls.folder.name)
        call("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", place / "root", MIRROR)
        cls.root = Root(place / "root")
        cls.wheel, cls.tarball = bundle("wheel", place), bundle("tarball", place)
        call("cpack", "-G", "DEB", "--config", build_directory() / "CPackConfig.cmake", "-B", place / "deb", cwd=build_directory())
        cls.deb = next((place / "deb").glob("loramux_*.deb"))
        shutil.copy("/etc/resolv.conf", cls.root.path / "etc/resolv.conf")
        for path in (cls.wheel, cls.tarball, cls.deb):
            shutil.copy(path, cls.root.path / "tmp" / path.name)
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB", file=sys.stderr)

    @classmethod
    def tearDownClass(cls):
        cls.root.close()
        cls.folder.cleanup()

    def setUp(self):
        for compiler in ("gcc", "cc", "g++", "clang", "make", "cargo"):
            self.assertFalse((self.root.path / "usr/bin" / compiler).exists(), compiler)

    def size_of(self, *folders):
        return sum(path.stat().st_size for folder in folders for path in (self.root.path / folder).rglob("*")
                   if path.is_file() and not path.is_symlink()) / 1e6

    def test_1_tarball(self):
        self.root.inside("sh", "-c", "mkdir /opt/loramux && tar -xf /tmp/loramux-*.tar.gz -C /opt/loramux --strip-components=1")
        self.assertEqual(self.root.demo("/opt/loramux/bin/loramux"), "olleh")
        print(f"tarball, unpacked: {self.size_of('opt/loramux'):.1f} MB", file=sys.stderr)
        shutil.rmtree(self.root.path / "opt/loramux")

    def test_2_wheel(self):
        self.root.inside("apt-get", "install", "-y", "-q", "--no-install-recommends", "python3-venv")
        self.root.inside("python3", "-m", "venv", "/opt/venv")
        self.root.inside("sh", "-c", "/opt/venv/bin/pip install --no-index /tmp/loramux-*.whl")
        self.assertEqual(self.root.demo("/opt/venv/bin/loramux"), "olleh")
        print(f"wheel, installed: {self.size_of('opt/venv/bin', 'opt/venv/lib/loramux', 'opt/venv/share'):.1f} MB", file=sys.stderr)

    def test_3_debian_package(self):
        self.root.inside("apt-get", "install", "-y", "-q", "--no-install-recommends", f"/tmp/{self.deb.name}")
        self.assertEqual(self.root.demo("/usr/bin/loramux"), "olleh")
        fields = self.root.inside("dpkg-query", "-W", "-f", "${Installed-Size}", "loramux")
        print(f"package, installed: {int(fields) / 1e3:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    serving.run_tests()
