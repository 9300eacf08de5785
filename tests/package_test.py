#!/usr/bin/env python3
"""The Debian package: its content, and its life from the installation to the purge. Standard library only.

Usage: package_test.py PATH_OF_LORAMUX   (in its build directory, from which CPack makes the package)

Installing needs root. It happens in a throw-away copy of this system: an overlay over / that only this process sees. The
machine itself does not change. Where the kernel refuses the overlay, the test installs the package for real, but only with
LORAMUX_TEST_INSTALL=1 in the environment. With that variable a test that cannot run fails instead of being skipped (for CI).
"""
import ctypes
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import unittest

import serving
from serving import DEMO, Server

MUST_RUN = os.environ.get("LORAMUX_TEST_INSTALL") == "1"
PREFIX = pathlib.Path("/srv/loramux-package-test")   # in the copy: the demo and the packages
UNIT = "/usr/lib/systemd/system/loramux.service"
CONFIG = "/etc/loramux/serve.toml"
STATE = "/var/lib/loramux"
WANTS = "/etc/systemd/system/multi-user.target.wants/loramux.service"   # exists while the service is enabled
FILES = {   # path: mode
    "/usr/bin/loramux": "-rwxr-xr-x", UNIT: "-rw-r--r--", CONFIG: "-rw-r--r--",
    "/usr/share/doc/loramux/README.md": "-rw-r--r--", "/usr/share/doc/loramux/CHANGELOG.md": "-rw-r--r--",
    "/usr/share/doc/loramux/CONTRIBUTING.md": "-rw-r--r--", "/usr/share/doc/loramux/SECURITY.md": "-rw-r--r--",
    "/usr/share/bash-completion/completions/loramux": "-rw-r--r--",
    "/usr/share/zsh/vendor-completions/_loramux": "-rw-r--r--",
    "/usr/share/fish/vendor_completions.d/loramux.fish": "-rw-r--r--",
    "/usr/share/doc/loramux/copyright": "-rw-r--r--", "/usr/share/doc/loramux/changelog.gz": "-rw-r--r--",
    "/usr/share/man/man1/loramux.1.gz": "-rw-r--r--"}
# What `loramux demo` serves.
FILES.update({f"/usr/share/loramux/demo/{path.relative_to(DEMO)}": "-rw-r--r--"
              for part in ("model", "adapters") for path in (DEMO / part).rglob("*") if path.is_file()})


def call(*command, ok=True, **more):
    """Standard output and error of a command, together. The command must succeed unless `ok` is False."""
    run = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         timeout=1800, **more)
    if ok and run.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {run.returncode}:\n{run.stdout}")
    return run.stdout


def make_package(folder, *settings):
    """The package that CPack makes from the build directory. `settings` are NAME=VALUE of CPack variables."""
    build = pathlib.Path(serving.LORAMUX).resolve().parent.parent
    call("cpack", "-G", "DEB", "--config", build / "CPackConfig.cmake", "-B", folder,
         *[word for setting in settings for word in ("-D", setting)], cwd=build)
    return next(pathlib.Path(folder).glob("*.deb"))


def unit_setting(text, name):
    return re.search(rf"^{name}=(.*)$", text, re.M).group(1)


class Packages(unittest.TestCase):
    """Makes two packages once: one of an older version, and one of the source's version."""
    folder = None

    @classmethod
    def setUpClass(cls):
        if Packages.folder:
            return
        missing = [tool for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "apt-get") if not shutil.which(tool)]
        if missing:
            skip(f"needs {', '.join(missing)}")
        Packages.folder = tempfile.TemporaryDirectory()
        Packages.version = call(serving.LORAMUX, "--version").strip()
        Packages.new = make_package(pathlib.Path(cls.folder.name) / "new")
        Packages.old = make_package(pathlib.Path(cls.folder.name) / "old", "CPACK_PACKAGE_VERSION=0.0.1")


def skip(reason):
    if MUST_RUN:
        raise AssertionError(f"LORAMUX_TEST_INSTALL=1, but this test {reason}")
    raise unittest.SkipTest(f"the test of the Debian package {reason}")


class Contents(Packages):
    def test_name_and_control_fields(self):
        architecture = call("dpkg", "--print-architecture").strip()
        self.assertEqual(self.new.name, f"loramux_{self.version}_{architecture}.deb")
        fields = {name: call("dpkg-deb", "-f", self.new, name).strip()
                  for name in ("Package", "Version", "Architecture", "Depends", "Description", "Maintainer")}
        self.assertEqual((fields["Package"], fields["Version"], fields["Architecture"]),
                         ("loramux", self.version, architecture))
        for dependency in ("adduser", "libc6 (>= ", "libstdc++6 (>= ", "libre2-"):
            self.assertIn(dependency, fields["Depends"])
        self.assertNotIn("-dev", fields["Depends"])
        self.assertIn("@", fields["Maintainer"])

    def test_files_modes_and_owners(self):
        found = {}
        for line in call("dpkg-deb", "-c", self.new).splitlines():
            mode, owner, size, _, _, path = line.split()[:6]
            self.assertEqual(owner, "root/root", line)
            if mode.startswith("d"):
                self.assertEqual(mode, "drwxr-xr-x", line)
            else:
                found[path.lstrip(".")] = mode
                self.assertGreater(int(size), 0, line)
        pages = {path: found.pop(path) for path in list(found) if path.startswith("/usr/share/doc/loramux/docs/")}
        self.assertEqual(found, FILES)
        self.assertIn("/usr/share/doc/loramux/docs/guide/install.md", pages)
        self.assertEqual(set(pages.values()), {"-rw-r--r--"})

    def test_configuration_is_a_conffile_and_scripts_are_shell(self):
        control = pathlib.Path(self.folder.name) / "control"
        call("dpkg-deb", "-e", self.new, control)
        self.assertEqual((control / "conffiles").read_text(encoding="utf-8"), f"{CONFIG}\n")
        for script in ("postinst", "prerm", "postrm"):
            self.assertEqual((control / script).stat().st_mode & 0o777, 0o755)
            call("sh", "-n", control / script)

    def test_program_is_stripped_and_has_no_search_path(self):
        data = pathlib.Path(self.folder.name) / "data"
        call("dpkg-deb", "-x", self.new, data)
        sections = call("readelf", "--wide", "--sections", "--dynamic", data / "usr/bin/loramux")
        for unwanted in (".symtab", ".debug_info", "RPATH", "RUNPATH"):
            self.assertNotIn(unwanted, sections)
        self.assertLess((data / "usr/bin/loramux").stat().st_size, 26_000_000)   # more than 100 MB with its symbols

    def test_debug_information_is_a_package_of_its_own(self):
        debug = next(self.new.parent.glob("*.ddeb"))
        self.assertEqual(call("dpkg-deb", "-f", debug, "Package").strip(), "loramux-dbgsym")
        self.assertIn("/usr/lib/debug/.build-id/", call("dpkg-deb", "-c", debug))

    def test_every_key_of_the_configuration_is_a_flag(self):
        """This includes the keys in comments: an operator will remove the comment sign."""
        text = (DEMO.parent / "deploy/debian/serve.toml").read_text(encoding="utf-8")
        keys = re.findall(r"^# ([a-z-]+ = .*)$", text, re.M)
        self.assertIn('host = "127.0.0.1"', keys)
        file = pathlib.Path(self.folder.name) / "all.toml"
        flags = call(serving.LORAMUX, "serve", "--help-all")
        for key in keys:
            self.assertIn("--" + key.split(" ")[0], flags if not key.startswith("model ") else "--model")
        # The server looks at files that must exist before it looks at anything else.
        file.write_text("\n".join(key for key in keys if "/etc/loramux/" not in key), encoding="utf-8")
        said = call(serving.LORAMUX, "serve", "--config", file, ok=False)
        self.assertRegex(said, "/srv/(models|adapters)|--admin-key-file|--insecure-no-admin-key")   # it reached the search for the files of the example
        self.assertNotIn(str(file), said)

    def test_unit_waits_longer_than_the_server_drains(self):
        unit = (DEMO.parent / "deploy/systemd/loramux.service").read_text(encoding="utf-8")
        drain = re.search(r"--drain-timeout SECONDS\n.*?Default:\s+(\d+)\.", call(serving.LORAMUX, "serve", "--help-all"),
                          re.DOTALL).group(1)
        self.assertGreater(int(unit_setting(unit, "TimeoutStopSec")), int(drain))


class ThrowAwayRoot:
    """The root file system with its changes in memory. Only this process and its children see the mount."""

    def __init__(self):
        if ctypes.CDLL(None, use_errno=True).unshare(0x00020000) != 0:   # CLONE_NEWNS
            raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS)")
        call("mount", "--make-rprivate", "/")
        base = pathlib.Path(tempfile.mkdtemp(prefix="loramux-root-"))
        call("mount", "-t", "tmpfs", "tmpfs", base)
        for name in ("upper", "work", "root"):
            (base / name).mkdir(mode=0o755)
        self.path, self.base = base / "root", base
        call("mount", "-t", "overlay", "overlay", "-o",
             f"lowerdir=/,upperdir={base}/upper,workdir={base}/work", self.path)
        (self.path / "var/lib/man-db/auto-update").unlink(missing_ok=True)   # the index of all manual pages takes long
        for shared in ("proc", "dev"):
            call("mount", "--rbind", f"/{shared}", self.path / shared)

    def close(self):
        call("umount", "--recursive", self.base)
        self.base.rmdir()


class RealRoot:
    path = pathlib.Path("/")

    def close(self):
        pass


def make_root():
    """The root to install to. Skips the test where an installation would surprise the owner of the machine."""
    if os.geteuid() != 0:
        skip("needs root to install it")
    if "install ok installed" in call("dpkg-query", "-W", "-f", "${Status}", "loramux", ok=False):
        skip("does not run because loramux is installed on this machine")
    try:
        return ThrowAwayRoot()
    except (OSError, AssertionError) as error:
        if MUST_RUN:
            return RealRoot()
        skip(f"cannot mount an overlay here ({error}); LORAMUX_TEST_INSTALL=1 installs for real")


class Installed(Packages):
    """From the installation to the purge. All tests use one root; each begins and ends without the package."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = make_root()
        cls.place = cls.root.path / PREFIX.relative_to("/")
        shutil.copytree(DEMO, cls.place / "demo", ignore=shutil.ignore_patterns("__pycache__"))
        for name, package in (("old.deb", cls.old), ("new.deb", cls.new)):
            shutil.copy(package, cls.place / name)
        call("chmod", "-R", "a+rX", cls.place)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.place)
        cls.root.close()

    def setUp(self):
        self.addCleanup(self.inside, "dpkg", "--purge", "loramux", ok=False)   # also after a failure

    def inside(self, *command, ok=True):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        return call("chroot", self.root.path, *command, ok=ok, env=environment, cwd="/")

    def file(self, path):
        return self.root.path / path.lstrip("/")

    def install(self, name):
        return self.inside("apt-get", "install", "-y", "-q", "--no-install-recommends", "--allow-downgrades",
                           PREFIX / name)

    def snapshot(self):
        """Every path that a package may change, with its type, mode, owner and link target; and the accounts."""
        prune = [word for path in ("/var/log", "/var/cache", "/var/tmp", "/var/lib/dpkg", "/var/lib/apt", PREFIX)
                 for word in ("-path", str(path), "-prune", "-o")]
        deep = ("/etc", "/var", "/srv", "/usr/lib/systemd")
        shallow = ("/", "/opt", "/home", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local/bin", "/usr/share",
                   "/usr/share/doc", "/usr/share/man/man1")   # all of /usr would take a minute on a machine with many packages
        show = ("-printf", "%p %y %M %u %g %l\\n")
        listing = (self.inside("find", *deep, "-xdev", *prune, *show) +
                   self.inside("find", *shallow, "-maxdepth", "1", *show)).splitlines()
        backups = re.compile(r"^/etc/(passwd-|group-|shadow-|gshadow-|subuid-|subgid-|\.pwd\.lock) ")
        accounts = {f"{name}: {line}" for name in ("passwd", "group", "shadow", "gshadow")
                    for line in self.file(f"/etc/{name}").read_text(encoding="utf-8").splitlines()}
        return {line for line in listing if not backups.match(line)} | accounts

    def owner_and_mode(self, path):
        return self.inside("stat", "-c", "%U:%G %a", path).strip()

    def service_command(self, *environment):
        """The command of the unit, run as systemd would: as the unit's user, with an empty environment."""
        unit = self.file(UNIT).read_text(encoding="utf-8")
        return ["chroot", str(self.root.path), "setpriv", "--reuid", unit_setting(unit, "User"), "--regid",
                unit_setting(unit, "Group"), "--clear-groups", "--no-new-privs", "--bounding-set=-all", "env", "-i", "-C",
                unit_setting(unit, "WorkingDirectory"), *environment, *unit_setting(unit, "ExecStart").split()]

    def configure(self):
        """Removes comment signs and sets values, as an operator would."""
        text = self.file(CONFIG).read_text(encoding="utf-8")
        for key, value in (("model", f'"{PREFIX}/demo/model"'), ("adapter-dir", f'"{PREFIX}/demo/adapters"'),
                           ("port", "0"), ("device-memory", '"64MiB"'), ("host-memory", '"32MiB"')):
            text, changed = re.subn(rf"^# {key} = .*$", f"{key} = {value}", text, flags=re.M)
            self.assertEqual(changed, 1, key)
        self.file(CONFIG).write_text(text, encoding="utf-8")
        return text

    def enable(self):
        """Does the work of `systemctl enable`, because systemd may not be installed here."""
        folder = self.file(WANTS).parent
        if not folder.exists():
            folder.mkdir(parents=True)
            self.addCleanup(folder.rmdir)
        self.file(WANTS).symlink_to(UNIT)

    def check_fresh_installation(self, said):
        self.assertIn("Set 'model' in /etc/loramux/serve.toml", said)
        self.assertEqual(self.inside("/usr/bin/loramux", "--version").strip(), self.version)
        self.assertRegex(self.inside("getent", "passwd", "loramux"), r":/var/lib/loramux:/usr/sbin/nologin$")
        self.assertEqual(self.owner_and_mode(STATE), "loramux:loramux 750")
        self.assertEqual(self.owner_and_mode("/etc/loramux"), "root:loramux 750")
        self.assertEqual(self.inside("dpkg", "--verify", "loramux"), "")
        self.assertFalse(os.path.lexists(self.file(WANTS)), "enabled without a model")

    def check_service_without_a_model(self):
        """The service ends at once with the reason, and with a status for which systemd does not restart it."""
        unit = self.file(UNIT).read_text(encoding="utf-8")
        run = subprocess.run(self.service_command(), stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True,
                             timeout=serving.PATIENCE)
        self.assertIn("model is required", run.stdout)
        self.assertIn(str(run.returncode), unit_setting(unit, "RestartPreventExitStatus").split())

    def check_service(self):
        """The service answers, runs as the unit's user, ends with 0 at SIGTERM, and notifies the service manager."""
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.addCleanup(manager.close)
        manager.bind("")   # the kernel chooses an abstract name
        manager.settimeout(serving.PATIENCE)
        server = Server.run(self.service_command("NOTIFY_SOCKET=@" + manager.getsockname()[1:].decode()))
        try:
            self.assertIn(f"READY=1\nSTATUS=Serving on port {server.port}", manager.recv(4096).decode())
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
            uid = self.inside("id", "-u", "loramux").strip()
            self.assertEqual(set(re.search(r"^Uid:\s+(.*)$", status, re.M).group(1).split()), {uid})
            self.assertRegex(status, r"CapEff:\s+0+\n")
            answer = server.chat("reverse", "hello")[1]["choices"][0]["message"]["content"]
            self.assertEqual(answer, "olleh")
        finally:
            log = server.stop()
        self.assertIn("SIGTERM", log)
        self.assertRegex(manager.recv(4096).decode(), r"^STOPPING=1\nSTATUS=.*\nEXTEND_TIMEOUT_USEC=46000000$")

    def check_unit(self):
        if not self.file("/usr/bin/systemd-analyze").exists():
            return
        said = self.inside("systemd-analyze", "verify", "--man=no", UNIT, ok=False)
        self.assertNotIn("loramux", said)

    def test_install_run_upgrade_remove_purge(self):
        before = self.snapshot()
        self.assertIn("Inst loramux", self.inside("apt-get", "-s", "install", PREFIX / "new.deb"))
        self.check_fresh_installation(self.install("old.deb"))
        self.check_unit()
        self.check_service_without_a_model()
        configuration = self.configure()
        self.enable()
        self.check_service()
        (self.file(STATE) / "kept").write_text("x", encoding="utf-8")
        (self.file("/etc/loramux") / "keys").write_text("x", encoding="utf-8")

        self.assertNotIn("not started", self.install("new.deb"))
        self.assertEqual(self.inside("dpkg-query", "-W", "-f", "${Version}", "loramux"), self.version)
        self.assertEqual(self.file(CONFIG).read_text(encoding="utf-8"), configuration)
        self.assertTrue(os.path.lexists(self.file(WANTS)), "an upgrade disabled the service")
        self.check_service()

        self.inside("apt-get", "remove", "-y", "-q", "loramux")
        self.assertFalse(self.file("/usr/bin/loramux").exists())
        self.assertFalse(self.file(UNIT).exists())
        self.assertEqual(self.file(CONFIG).read_text(encoding="utf-8"), configuration)
        self.assertTrue((self.file(STATE) / "kept").exists())
        self.inside("getent", "passwd", "loramux")

        self.install("new.deb")
        self.check_service()
        self.inside("apt-get", "remove", "-y", "-q", "loramux")
        self.inside("dpkg", "--purge", "loramux")
        self.assert_unchanged_since(before)

    def test_purge_at_once(self):
        before = self.snapshot()
        self.install("new.deb")
        self.inside("apt-get", "purge", "-y", "-q", "loramux")
        self.assert_unchanged_since(before)

    def assert_unchanged_since(self, before):
        after = self.snapshot()
        self.assertEqual(sorted(after - before), [], "left behind by the package")
        self.assertEqual(sorted(before - after), [], "taken away by the package")


if __name__ == "__main__":
    serving.run_tests()
