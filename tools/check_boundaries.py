#!/usr/bin/env python3
"""Checks the rules that hold the source tree together: who may include what, and what may not be written where.

    tools/check_boundaries.py [ROOT]

Prints one line per fault, FILE:LINE: RULE, and exits with 1 if there are any. docs/DESIGN.md gives the reasons.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HEADER_SUFFIXES = {".h", ".hpp", ".cuh"}
CPP_SUFFIXES = HEADER_SUFFIXES | {".c", ".cpp", ".cu"}
CODE_SUFFIXES = CPP_SUFFIXES | {".py", ".pyi", ".sh", ".cmake"}
MAX_LINES = 500

# What the files of a folder may include in quotes or as <tandem/...>: the arrows of the design go one way. The longest
# matching folder counts; files elsewhere (tests, bench) may include everything.
LAYERS = {
    "include": ("tandem/",),
    "src/core": ("core/", "tandem/"),
    "src/cpu": ("cpu/", "core/", "tandem/"),
    "src/sm90": ("sm90/", "core/", "tandem/"),
    "src/sm90/ptx": ("sm90/ptx/", "core/"),
    "src/sm90/tile": ("sm90/tile/", "sm90/ptx/", "core/"),
    "src/api": ("api/", "core/", "tandem/"),
    "cli": ("tandem/", "cli/"),
    "python": ("tandem/",),
    "examples": ("tandem/",),
}
PROJECT_FOLDERS = ("tandem/", "api/", "core/", "cpu/", "sm90/", "cli/")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
CUDA_HEADER = re.compile(
    r"^(cuda|cudnn|cublas|curand|cute/|cutlass/|cub/|thrust/|nv/|cooperative_groups|mma\.h|driver_types)"
)
FRAMEWORK_HEADER = re.compile(r"^(torch|ATen|c10|pybind11|nanobind|numpy|Python\.h|tensorflow|xla|jax|dlpack|caffe2)\b")
CUDA_NAME = re.compile(r"\b(cuda[A-Z]\w+|CU(stream|device|context|result|tensorMap)\w*)\b")
INLINE_ASM = re.compile(r"\b(asm|__asm|__asm__)\b\s*(volatile|__volatile__)?\s*(goto\s*)?[({]")
LAUNCH = re.compile(r"<<<|\bcudaLaunch\w+\s*\(|\bcuLaunch\w+\s*\(")
LAUNCH_FILE = re.compile(r"^src/sm90/(.*/)?(launch|preprocess|postprocess)[^/]*$|^tests/gpu/")
CUDA_FOLDERS = ("src/sm90/", "cli/cuda/", "tests/gpu/")
TENSOR_MAP = re.compile(r"\bcuTensorMapEncodeTiled\b")

# A reader of the product has no use for the machine that it was written on, nor a registry's host, nor unfinished work.
# Character classes keep these patterns from finding themselves.
FORBIDDEN_WORDS = [
    (re.compile(r"(?<![\w.*}])/(work|root|home|Users)/\w"), "a path of one machine"),
    (re.compile(r"\b(py[p]i|python[h]osted|npm[j]s|deb[i]an|crat[e]s)\.(org|io)\b"), "the host of a package registry"),
    (re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b"), "unfinished work"),
    (re.compile(r"\b(sub-?[a]gents?|this [s]ession)\b", re.IGNORECASE), "how the text came about"),
]

Fault = tuple[int, str]


def list_files(root: Path) -> list[str]:
    """Files that git knows or would add; all files where there is no repository."""
    git = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(git, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        names = set(filter(None, listing.stdout.split("\0")))
    else:
        names = {str(path.relative_to(root)) for path in root.rglob("*")}
    return sorted(name for name in names if (root / name).is_file())


def strip_comments(text: str) -> str:
    """C and C++ comments and string contents blanked, line breaks kept. Include lines stay as they are."""

    def blank(match: re.Match[str]) -> str:
        found = match.group(0)
        if found.startswith(("/*", "//")):
            return re.sub(r"[^\n]", " ", found)
        return found if found.startswith("#") else '""'

    pattern = r'#\s*include[^\n]*|/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def layer_of(name: str) -> tuple[str, ...] | None:
    folders = [folder for folder in LAYERS if name.startswith(folder + "/")]
    return LAYERS[max(folders, key=len)] if folders else None


def check_includes(name: str, code: str) -> Iterator[Fault]:
    layer = layer_of(name)
    for number, line in enumerate(code.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        if CUDA_HEADER.match(header) and not name.startswith(CUDA_FOLDERS):
            yield number, f"CUDA header {header} outside src/sm90 and cli/cuda"
        if FRAMEWORK_HEADER.match(header) and name.startswith(("src/", "include/")):
            yield number, f"framework header {header} in the library"
        if layer is not None and header.startswith(PROJECT_FOLDERS) and not header.startswith(layer):
            yield number, f"{header} is not among what this folder may include: {', '.join(layer)}"


def check_hardware_access(name: str, code: str) -> Iterator[Fault]:
    for number, line in enumerate(code.splitlines(), 1):
        if INLINE_ASM.search(line) and not name.startswith("src/sm90/ptx/"):
            yield number, "inline assembly outside src/sm90/ptx"
        if LAUNCH.search(line) and not LAUNCH_FILE.match(name):
            yield number, "a kernel launch outside the launch, preprocess and postprocess files of src/sm90"
        if TENSOR_MAP.search(line) and not re.match(r"src/sm90/tensor_map\.", name):
            yield number, "cuTensorMapEncodeTiled outside src/sm90/tensor_map"
        if CUDA_NAME.search(line) and not name.startswith(CUDA_FOLDERS):
            yield number, "a CUDA type or call outside src/sm90 and cli/cuda (the stream of tandem.h is void*)"


def check_header_guard(name: str, code: str) -> Iterator[Fault]:
    """#pragma once, an #ifndef guard in a C header, or Highway's guard in a header compiled once per target."""
    lines = [line.strip() for line in code.splitlines() if line.strip()]
    first, second = [*lines, "", ""][:2]
    guard = re.match(r"#ifndef (\w+)$", first)
    if first == "#pragma once" or "HWY_TARGET_TOGGLE" in first or (guard and second == f"#define {guard.group(1)}"):
        return
    yield 1, "the header does not begin with #pragma once or a guard"


def check_length(text: str) -> Iterator[Fault]:
    lines = text.splitlines()
    if len(lines) > MAX_LINES and not any("generated" in line.lower() for line in lines[:3]):
        yield MAX_LINES, f"{len(lines)} lines; at most {MAX_LINES} unless generated"


def check_words(text: str) -> Iterator[Fault]:
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, meaning in FORBIDDEN_WORDS:
            match = pattern.search(line)
            if match:
                yield number, f"'{match.group(0)}': {meaning}"


def check_file(name: str, text: str) -> Iterator[Fault]:
    suffix = Path(name).suffix
    yield from check_words(text)
    if suffix in CODE_SUFFIXES or text.startswith("#!"):
        yield from check_length(text)
    if suffix in CPP_SUFFIXES:
        code = strip_comments(text)
        yield from check_includes(name, code)
        yield from check_hardware_access(name, code)
        if suffix in HEADER_SUFFIXES:
            yield from check_header_guard(name, code)


def check_tree(root: Path) -> list[str]:
    faults = []
    for name in list_files(root):
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary file
        faults += [f"{name}:{line}: {message}" for line, message in check_file(name, text)]
    return faults


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    faults = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"boundaries: {len(list_files(root))} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
