#!/usr/bin/env python3
"""Checks that what the documents point at exists: links, their anchors, ./run commands, and files named in backticks.

tools/check_docs.py [ROOT]
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
RUN_COMMAND = re.compile(r"(?<![\w/])\./run\s+([a-z][\w-]*)")
CASE_LABEL = re.compile(r"^  ([a-z][a-z-]*(?: \| -{0,2}[a-z-]+)*)\)", re.MULTILINE)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
REPOSITORY_PATH = re.compile(
    r"(?:include|src|cli|python|tests|bench|examples|tools|docs)/[\w.*/{},-]+|[\w-]+\.(?:md|toml|txt)"
)

Fault = tuple[int, str]


def documents(root: Path) -> list[Path]:
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def anchor_of(heading: str) -> str:
    """The anchor that Markdown viewers give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {anchor_of(heading) for heading in HEADING.findall(path.read_text(encoding="utf-8"))}


def run_commands(root: Path) -> set[str]:
    labels = CASE_LABEL.findall((root / "run").read_text(encoding="utf-8"))
    return {command for label in labels for command in label.split(" | ")}


def expand_braces(pattern: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [name for choice in match.group(1).split(",") for name in expand_braces(before + choice + after)]


def check_link(document: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return True
    name, _, anchor = target.partition("#")
    path = document.parent / name if name else document
    return path.exists() and (not anchor or anchor in anchors(path))


def check_document(root: Path, document: Path, commands: set[str]) -> Iterator[Fault]:
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        for target in LINK.findall(line):
            if not check_link(document, target):
                yield number, f"the link {target} leads nowhere"
        for command in RUN_COMMAND.findall(line):
            if command not in commands:
                yield number, f"./run {command} is not a command"
        for span in CODE_SPAN.findall(line):
            if not REPOSITORY_PATH.fullmatch(span):
                continue
            for pattern in expand_braces(span):
                if not any(root.glob(pattern)) and not any(document.parent.glob(pattern)):
                    yield number, f"there is no {pattern}"


def check_tree(root: Path) -> list[str]:
    commands = run_commands(root)
    return [
        f"{document.relative_to(root)}:{line}: {message}"
        for document in documents(root)
        for line, message in check_document(root, document, commands)
    ]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    faults = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"docs: {len(documents(root))} documents, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
