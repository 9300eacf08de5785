#!/usr/bin/env python3
"""What the compiled kernels of the CUDA plugin need: registers, shared memory, and the instructions that matter.

It fails if a kernel keeps registers in memory (a stack, spills), if a kernel that should use tensor cores has no
instruction of theirs, if a kernel of the list is missing, if a block of a typical launch does not fit a
multiprocessor, or if the plugin exports more than its one function. It needs no GPU.

Usage: cubin_table.py PLUGIN CUDA_ROOT TYPICAL_LAUNCHES [--write docs/design/gpu-kernels.md]
"""
import argparse
import collections
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TENSOR_CORES = {"LoraShrink", "SkinnyMatMulLora", "ExpertMatMul", "AttentionDecode", "AttentionPrefill"}   # with 16-bit types
HEAD_DIMS = (32, 64, 96, 128, 256)   # the variants of the attention kernels
# Those of SkinnyMatMulLora.
SKINNY_ROWS = tuple(f"{rows}{bits}" for bits in ("", ", 8 bits", ", 4 bits") for rows in (8, 16, 32, 64))
KEY_DIMS = (32, 64, 128, 256)        # those of DeltaRule and SelectiveScan
VARIANTS = {"AttentionDecode": ("head size", HEAD_DIMS), "AttentionPrefill": ("head size", HEAD_DIMS),
            "DeltaRule": ("key size", KEY_DIMS), "SelectiveScan": ("key size", KEY_DIMS),
            "SkinnyMatMulLora": ("rows", SKINNY_ROWS),
            "ExpertMatMul": ("rows", SKINNY_ROWS)}

# What a multiprocessor has (NVIDIA's CUDA C++ Programming Guide, compute capabilities).
Multiprocessor = collections.namedtuple("Multiprocessor", "registers warps blocks shared_bytes block_shared_bytes")
KIB = 1024
MULTIPROCESSORS = {
    "sm_80": Multiprocessor(65536, 64, 32, 164 * KIB, 163 * KIB),
    "sm_90": Multiprocessor(65536, 64, 32, 228 * KIB, 227 * KIB),
}
RESERVED_SHARED = KIB   # of each block, by the system

# Instructions by what they do. The first that matches counts.
INSTRUCTIONS = (
    ("tensor", r"HMMA"),
    ("matrices", r"LDSM"),
    ("copies", r"LDGSTS"),
    ("loads16", r"LDG\.E\S*\.128"),
    ("loads", r"LDG\."),
    ("stores", r"STG\."),
    ("local", r"(?:LDL|STL)\b"),
    ("barriers", r"BAR\.SYNC"),
)


def entry_of(mangled):
    """(kernel, type, variant) of an entry's mangled name."""
    kernel = re.search(r"\d+([A-Za-z]+)Kernel", mangled).group(1)
    dtype = "F16" if "4Half" in mangled else "BF16" if "4Bf16" in mangled else "F32"
    return kernel, dtype, int(re.search(r"Li(\d+)E", mangled).group(1))


def dump(cuda, plugin, *options):
    return subprocess.run([cuda / "bin/cuobjdump", *options, plugin], check=True, capture_output=True, text=True,
                          env=os.environ | {"PATH": f"{cuda / 'bin'}:{os.environ['PATH']}"}).stdout


def read_resources(cuda, plugin):
    """{(architecture, entry): (registers, stack bytes)}"""
    found, architecture, entry = {}, None, None
    for line in dump(cuda, plugin, "-res-usage").splitlines():
        if match := re.match(r"arch = (sm_\d+)", line):
            architecture = match.group(1)
        elif match := re.match(r"\s*Function (\S*Entry\S*):", line):
            entry = entry_of(match.group(1))
        elif (match := re.search(r"REG:(\d+) STACK:(\d+)", line)) and entry:
            found[architecture, entry] = tuple(map(int, match.groups()))
            entry = None
    return found


def read_instructions(cuda, plugin):
    """{(architecture, entry): Counter of INSTRUCTIONS}"""
    found, architecture, counter = {}, None, None
    for line in dump(cuda, plugin, "-sass").splitlines():
        if match := re.match(r"\s*arch = (sm_\d+)", line):
            architecture = match.group(1)
        elif match := re.match(r"\s*Function : (\S+)", line):
            counter = collections.Counter()
            if "Entry" in match.group(1):
                found[architecture, entry_of(match.group(1))] = counter
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            counter["all"] += 1
            for name, pattern in INSTRUCTIONS:
                if re.search(pattern, match.group(1)):
                    counter[name] += 1
                    break
    return found


def blocks_of(multiprocessor, registers, threads, shared_bytes):
    """Blocks that a multiprocessor holds at once, and what limits them."""
    warps = (threads + 31) // 32
    warp_registers = -(-registers * 32 // 256) * 256   # given out in units of 256
    limits = {
        "blocks": multiprocessor.blocks,
        "warps": multiprocessor.warps // warps,
        "registers": multiprocessor.registers // (warp_registers * warps),
        "shared": multiprocessor.shared_bytes // (shared_bytes + RESERVED_SHARED),
    }
    if shared_bytes > multiprocessor.block_shared_bytes:
        limits["shared"] = 0
    reason = min(limits, key=limits.get)
    return limits[reason], reason


def check(resources, instructions, launches, architectures):
    problems = []
    for architecture in architectures:
        for entry in launches:
            name = f"{' '.join(map(str, entry))} for {architecture}"
            if (architecture, entry) not in resources:
                problems.append(f"{name} is not in the plugin")
                continue
            registers, stack = resources[architecture, entry]
            counts = instructions[architecture, entry]
            if stack or counts["local"]:
                problems.append(f"{name} keeps {stack} bytes of registers in memory "
                                f"({counts['local']} instructions)")
            if entry[0] in TENSOR_CORES and entry[1] != "F32" and not counts["tensor"]:
                problems.append(f"{name} has no tensor-core instruction")
            blocks, reason = blocks_of(MULTIPROCESSORS[architecture], registers, *launches[entry])
            if blocks == 0:
                problems.append(f"{name}: a block does not fit a multiprocessor ({reason})")
    listed = set(re.findall(r"^  k([A-Z]\w+),", (ROOT / "src/gpu/kernel_id.h").read_text(), re.M)) - {"Count"}
    for kernel in sorted(listed - {entry[0] for _, entry in resources}):
        problems.append(f"{kernel} is in kernel_id.h, but not in the plugin")
    for architecture, entry in sorted(resources):
        if entry not in launches:
            problems.append(f"{' '.join(map(str, entry))} has no typical launch (lab/bench/gpu/typical_launches.cc)")
    return sorted(set(problems))


def check_plugin(plugin):
    """It loads without a GPU, gives its version, and exports nothing else."""
    function = ctypes.CDLL(str(plugin)).loramux_cuda_plugin
    function.restype = ctypes.POINTER(ctypes.c_char_p)
    version = function()[0].decode()
    if not re.fullmatch(r"\d+\.\d+\.\d+-[0-9a-f]{12}", version):
        yield f"the plugin's version is '{version}'"
    symbols = subprocess.run(["nm", "-D", "--defined-only", plugin], check=True, capture_output=True, text=True).stdout
    exported = [line.split()[-1] for line in symbols.splitlines()]
    if exported != ["loramux_cuda_plugin"]:
        yield f"the plugin exports {exported}"


PAGE = """# The compiled kernels

What each kernel of the CUDA plugin needs, read from its machine code by `make test-cuda`, which fails if a kernel
spills registers or misses the tensor cores. **This says how kernels are built, not how fast they are.** The entries for
f16 are those for bf16, but for the type.

- *registers*: of a thread, for compute capability 8.0 and 9.0
- *tensor*: tensor-core instructions (HMMA); *copies*: asynchronous copies of 16 bytes into shared memory
- *16 B*: loads of 16 bytes, of all loads of global memory; both count instructions, not how often they run
- *blocks*: that an H100's multiprocessor holds at once in a typical launch, and what limits them

| kernel | type | registers 8.0 / 9.0 | tensor | copies | 16 B / loads | instructions | threads | shared | blocks | warps |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def page_of(resources, instructions, launches):
    lines = []
    for entry, (threads, shared_bytes) in launches.items():
        kernel, dtype, variant = entry
        if dtype == "F16":
            continue
        name = kernel + (f", {VARIANTS[kernel][0]} to {VARIANTS[kernel][1][variant]}" if kernel in VARIANTS else "")
        registers = [resources[architecture, entry][0] for architecture in MULTIPROCESSORS]
        counts = instructions["sm_90", entry]
        blocks, reason = blocks_of(MULTIPROCESSORS["sm_90"], registers[1], threads, shared_bytes)
        loads = counts["loads16"] + counts["loads"]
        lines.append((kernel, f"| {name} | {dtype.lower()} | {registers[0]} / {registers[1]} | {counts['tensor'] or ''} | "
                              f"{counts['copies'] or ''} | {counts['loads16']} / {loads} | {counts['all']:,} | {threads} | "
                              f"{shared_bytes / KIB:.1f} KiB | {blocks} ({reason}) | {blocks * threads // 32} |"))
    lines.sort(key=lambda line: line[0])   # stable: types and variants keep their order
    return PAGE + "\n".join(line for _, line in lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("plugin", type=pathlib.Path)
    parser.add_argument("cuda", type=pathlib.Path)
    parser.add_argument("typical_launches", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path)
    options = parser.parse_args()

    launches = {}
    for line in subprocess.run([options.typical_launches], check=True, capture_output=True, text=True).stdout.splitlines():
        launch = json.loads(line)
        variant = launch["variant"] if launch["kernel"] in VARIANTS else 0
        launches[launch["kernel"], launch["dtype"], variant] = (launch["threads"], launch["shared_bytes"])
    resources = read_resources(options.cuda, options.plugin)
    instructions = read_instructions(options.cuda, options.plugin)
    architectures = sorted({architecture for architecture, _ in resources})
    problems = check(resources, instructions, launches, architectures) + list(check_plugin(options.plugin))
    for problem in problems:
        print(f"cubin_table: {problem}", file=sys.stderr)
    print(f"{len(resources)} entries for {', '.join(architectures)}: {len(problems)} problems")
    if options.write and not problems:
        options.write.write_text(page_of(resources, instructions, launches))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
