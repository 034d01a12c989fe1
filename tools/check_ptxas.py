#!/usr/bin/env python3
"""The gate on what ptxas says: wgmma is not serialized; registers, stack and spills stay within a committed table.

    tools/check_ptxas.py record COMPILER ARGUMENT...   runs the compiler, keeps what ptxas prints beside its -o OBJECT
    tools/check_ptxas.py check FOLDER                  checks what was kept below FOLDER, by tools/ptxas_limits.toml

The build runs `record` as its compiler launcher where the tests are built; ctest runs `check`. A kernel without a
row in the table is a fault, and so is a row without a kernel.
"""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

LIMITS = Path(__file__).resolve().parent / "ptxas_limits.toml"

# wgmma or setmaxnreg that ptxas gave up on. Its other notices about wgmma (C7519) cost nothing.
FAULT = re.compile(r"Potential Performance Loss|\(C75(07|08)\)")
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass
class Usage:
    """Of one kernel: registers a thread, bytes of stack, bytes of spills."""

    registers: int = 0
    stack: int = 0
    spills: int = 0


def record(command: list[str]) -> int:
    log = Path(command[command.index("-o") + 1] + ".ptxas")
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stdout.write(run.stdout)
    lines = (run.stdout + run.stderr).splitlines(keepends=True)
    log.write_text("".join(lines), encoding="utf-8")
    expected = re.compile(r"ptxas info|bytes stack frame|^\s*$")
    sys.stderr.writelines(line for line in run.stderr.splitlines(keepends=True) if not expected.search(line))
    return run.returncode


def demangle(names: list[str]) -> dict[str, str]:
    """Without namespaces, parameters and casts: forward_kernel<ForwardTraits<Bf16, 128>>."""
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = {}
    for name, long in zip(names, text.splitlines(), strict=True):
        plain = re.sub(r"\((int|bool|unsigned int)\)|(\w+|\(anonymous namespace\))::|^void ", "", long)
        short[name] = re.sub(r"\(.*\)$", "", plain).replace("> >", ">>")
    return short


def parse(text: str) -> tuple[dict[str, Usage], list[str]]:
    """Usage by mangled name, and the lines that are faults in themselves."""
    kernels: dict[str, Usage] = {}
    usage = Usage()
    for line in text.splitlines():
        if match := ENTRY.search(line):
            usage = kernels.setdefault(match.group(1), Usage())
        if match := STACK.search(line):
            usage.stack = int(match.group(1))
            usage.spills = int(match.group(2)) + int(match.group(3))
        if match := REGISTERS.search(line):
            usage.registers = int(match.group(1))
    return kernels, [line.strip() for line in text.splitlines() if FAULT.search(line)]


def compare(name: str, usage: Usage, limits: dict[str, dict[str, int]]) -> list[str]:
    if name not in limits:
        return [f"{name}: no row in {LIMITS.name}; it has {usage}"]
    row = limits[name]
    allowed = Usage(row["registers"], row.get("stack", 0), row.get("spills", 0))
    faults = []
    for quantity in ("registers", "stack", "spills"):
        found, limit = getattr(usage, quantity), getattr(allowed, quantity)
        if found > limit:
            faults.append(f"{name}: {quantity} {found}, at most {limit}")
    return faults


def check(folder: Path) -> int:
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8"))["kernels"]
    kernels: dict[str, Usage] = {}
    faults: list[str] = []
    for log in sorted(folder.rglob("*.ptxas")):
        found, bad_lines = parse(log.read_text(encoding="utf-8"))
        kernels |= found
        faults += [f"{log.name}: {line}" for line in bad_lines]
    names = demangle(list(kernels))
    for mangled, usage in kernels.items():
        print(f"{names[mangled]}: {usage.registers} registers, {usage.stack} bytes stack, {usage.spills} bytes spills")
        faults += compare(names[mangled], usage, limits)
    faults += [f"{name}: a row in {LIMITS.name}, but no such kernel" for name in limits.keys() - set(names.values())]
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"ptxas: {len(kernels)} kernels, {len(faults)} faults")
    return 1 if faults or not kernels else 0


def main() -> int:
    arguments = sys.argv[1:]
    if "-o" in arguments and arguments[0] == "record":
        return record(arguments[1:])
    if len(arguments) == 2 and arguments[0] == "check":
        return check(Path(arguments[1]))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
