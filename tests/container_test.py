#!/usr/bin/env python3
"""deploy/docker/Dockerfile, without an engine that could build it: what it copies exists, its base has what the program
links, and it keeps the rules of such files. Standard library only.

Usage: container_test.py PATH_OF_LORAMUX
"""
import json
import pathlib
import re
import shutil
import subprocess
import unittest

import serving
from serving import ROOT

FILE = ROOT / "deploy/docker/Dockerfile"
KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD", "ENV", "ARG", "LABEL"}


def instructions():
    """[(line, name, arguments)], with continued lines joined and comments left out."""
    found, pending, start = [], "", 0
    for number, line in enumerate(FILE.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("#") or not (line.strip() or pending):
            continue
        start = start if pending else number
        pending += line.rstrip("\\") + " "
        if not line.endswith("\\"):
            name, _, arguments = pending.strip().partition(" ")
            found.append((start, name, " ".join(arguments.split())))
            pending = ""
    return found


def stages():
    """The instructions of each stage, each beginning with its FROM."""
    result = []
    for instruction in instructions():
        if instruction[1] == "FROM":
            result.append([])
        result[-1].append(instruction)
    return result


class Container(unittest.TestCase):
    def of(self, stage, name):
        return [arguments for _, found, arguments in stage if found == name]

    def test_instructions_are_known_and_bases_have_versions(self):
        self.assertEqual(len(stages()), 2)
        for line, name, arguments in instructions():
            self.assertIn(name, KNOWN, f"line {line}")
            if name == "FROM":
                self.assertRegex(arguments, r"^[\w./-]+:(?!latest)[\w.-]+( AS \w+)?$", f"line {line}")
            if name == "WORKDIR":
                self.assertTrue(arguments.startswith("/"), f"line {line}")
            if name == "ADD" or (name == "RUN" and re.search(r"\bsudo\b|apt-get upgrade|\bcurl\b[^|]*\|", arguments)):
                self.fail(f"line {line}: {arguments}")

    def test_both_stages_are_of_one_release(self):
        releases = {re.search(r":(\w+)", stage[0][2]).group(1) for stage in stages()}
        self.assertEqual(len(releases), 1, "the package is made for the release that it is built on")

    def test_what_it_copies_exists(self):
        build, final = stages()
        for arguments in self.of(build, "COPY"):
            for source in arguments.split()[:-1]:
                self.assertTrue((ROOT / source).exists(), source)
        commands = " && ".join(self.of(build, "RUN"))
        for arguments in self.of(final, "COPY"):
            stage, source = re.match(r"--from=(\w+) (\S+)", arguments).groups()
            self.assertTrue(build[0][2].endswith(f"AS {stage}"))
            made = re.search(rf"cp \S+ {re.escape(source)}( |$)|cp \S*{re.escape(pathlib.Path(source).name)} /( |$)", commands)
            self.assertTrue(made, f"no command of the build makes {source}")

    def test_its_commands_are_those_of_the_project(self):
        commands = " && ".join(self.of(stages()[0], "RUN"))
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for target in re.findall(r"\bmake (\w+)", commands):
            self.assertRegex(makefile, rf"(?m)^{target}:")
        setup = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")
        for word in re.findall(r"tools/setup\.sh (\w+)", commands):
            self.assertIn(word, re.search(r"# Usage: tools/setup.sh (\S+)", setup).group(1).split("|"))
        self.assertIn("--target loramux_envoy_plugin", commands)

    def test_packages_are_installed_as_images_should(self):
        for arguments in self.of(stages()[1], "RUN"):
            if "apt-get install" in arguments:
                self.assertRegex(arguments, r"apt-get update .*&& .*apt-get install")
                for word in ("-y", "--no-install-recommends", "rm -rf", "/var/lib/apt/lists/*", "DEBIAN_FRONTEND=noninteractive"):
                    self.assertIn(word, arguments)

    @unittest.skipUnless(shutil.which("apt-cache"), "SKIPPED: only on Debian")
    def test_the_release_has_its_packages(self):
        release = re.search(r":(\w+)", stages()[0][0][2]).group(1)
        if f"VERSION_CODENAME={release}\n" not in pathlib.Path("/etc/os-release").read_text(encoding="utf-8"):
            self.skipTest(f"SKIPPED: only on Debian {release}")
        if not any(pathlib.Path("/var/lib/apt/lists").glob("*_Packages*")):
            self.skipTest("SKIPPED: the lists of packages are not here (apt-get update)")
        install = re.search(r"apt-get install (.*?) &&", " ".join(self.of(stages()[1], "RUN"))).group(1)
        packages = [word for word in install.split() if not word.startswith(("-", "/"))]
        self.assertIn("curl", packages)   # of the health check
        for package in packages:
            said = subprocess.run(["apt-cache", "policy", package], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertRegex(said, r"Candidate: \d", package)

    def test_the_plugins_libraries_are_installed(self):
        plugin = pathlib.Path(serving.LORAMUX).parent / "libloramux_envoy.so"
        if not plugin.exists() or not shutil.which("dpkg-query"):
            self.skipTest("SKIPPED: the plugin is not built")
        install = " ".join(self.of(stages()[1], "RUN"))
        needed = subprocess.run(["readelf", "-d", plugin], stdout=subprocess.PIPE, text=True, check=True).stdout
        for name in re.findall(r"NEEDED.*\[(lib(?:grpc\+\+|protobuf)\.so\S*)\]", needed):
            owner = subprocess.run(["dpkg-query", "-S", f"*/{name}"], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertIn(owner.split(":")[0], install, name)

    def test_how_it_runs(self):
        final = stages()[1]
        self.assertEqual(self.of(final, "USER"), ["loramux"])
        entry, default = (json.loads(self.of(final, name)[0]) for name in ("ENTRYPOINT", "CMD"))
        self.assertEqual(entry[0], "/usr/bin/loramux")
        flags = subprocess.run([serving.LORAMUX, entry[1], "--help-all"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for flag in [word for word in entry + default if word.startswith("--") and word != "--help"]:
            self.assertRegex(flags, rf"{flag}\b")
        port = entry[entry.index("--port") + 1]
        self.assertEqual(self.of(final, "EXPOSE"), [port])
        check = json.loads(re.search(r"CMD (\[.*\])", self.of(final, "HEALTHCHECK")[0]).group(1))
        self.assertEqual(check[-1], f"http://127.0.0.1:{port}/health")
        positions = [name for _, name, _ in final]
        self.assertLess(max(i for i, name in enumerate(positions) if name in ("RUN", "COPY")), positions.index("USER"))

    def test_the_context_leaves_out_what_is_built(self):
        ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
        self.assertLessEqual({"build", ".git"}, set(ignored))


if __name__ == "__main__":
    serving.run_tests()
