#!/usr/bin/env python3
"""Fills the last column of the table of cases in docs/TESTING.md with the tests that name each case.

tools/case_table.py            writes the file
tools/case_table.py --check    fails if the file is out of date, or if a test names a case that the table lacks
"""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- cases -->\n", "<!-- end of cases -->\n"
CASE = re.compile(r"(?<![A-Za-z0-9])C(?!99\b)(\d{2,3})(?=\b|_)")  # C99 is the language
TEST = re.compile(r"^\s*TEST(?:_[FP])?\((\w+), (\w+)\)")
SUFFIXES = {".cpp", ".py", ".cmake", ".c"}


def python_test_names(lines: list[str]) -> list[str | None]:
    """For each line the test that it belongs to, comments and decorators above the test included."""
    names: list[str | None] = [None] * len(lines)
    for node in ast.walk(ast.parse("\n".join(lines))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        first = min(part.lineno for part in (node, *node.decorator_list)) - 1
        while first > 0 and lines[first - 1].startswith("#"):
            first -= 1
        names[first : node.end_lineno] = [node.name] * (node.end_lineno - first)
    return names


def test_names(lines: list[str]) -> list[str | None]:
    """For each line of C++ the test that it belongs to: the one that begins next below a comment, else above."""
    names: list[str | None] = []
    current = None
    for line in lines:
        match = TEST.match(line)
        if match:
            current = f"{match.group(1)}.{match.group(2)}"
        names.append(current)
    following = None
    for number in range(len(lines) - 1, -1, -1):
        if TEST.match(lines[number]):
            following = names[number]
        elif following and lines[number].startswith("//"):
            names[number] = following
        else:
            following = None
    return names


def tests_of_cases(root: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((root / "tests").rglob("*")):
        if path.suffix not in SUFFIXES or path.name == "test_tools.py":
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        names = python_test_names(lines) if path.suffix == ".py" else test_names(lines)
        for line, name in zip(lines, names, strict=True):
            for number in CASE.findall(line):
                found[f"C{number}"].add(f"{path.relative_to(root / 'tests')}" + (f": {name}" if name else ""))
    return found


def filled(document: str, found: dict[str, set[str]]) -> tuple[str, list[str]]:
    """The document with its table filled, and the cases that tests name but the table lacks."""
    before, rest = document.split(BEGIN)
    table, after = rest.split(END)
    rows, known = [], set()
    for row in table.splitlines():
        case, text = (cell.strip() for cell in row.split("|")[1:3])
        if re.fullmatch(r"C\d+", case):
            known.add(case)
            by_file: dict[str, list[str]] = defaultdict(list)
            for test in sorted(found.get(case, ())):
                file, _, name = test.partition(": ")
                by_file[file].append(name)
            tests = "; ".join(
                f"{file}: {', '.join(filter(None, names))}".removesuffix(": ") for file, names in by_file.items()
            )
            row = f"| {case} | {text} | {tests} |" if tests else f"| {case} | {text} | |"
        rows.append(row)
    return before + BEGIN + "\n".join(rows) + "\n" + END + after, sorted(set(found) - known)


def main() -> int:
    path = ROOT / "docs/TESTING.md"
    document = path.read_text(encoding="utf-8")
    expected, unknown = filled(document, tests_of_cases(ROOT))
    for case in unknown:
        print(f"docs/TESTING.md: tests name {case}, which the table of cases lacks")
    if "--check" not in sys.argv[1:]:
        path.write_text(expected, encoding="utf-8")
    elif document != expected:
        print("docs/TESTING.md: the table of cases is out of date; tools/case_table.py writes it")
        return 1
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
