#!/usr/bin/env python3
"""Takes each wait, arrival, fence, commit and release out of the Hopper kernels, one by one, and asks the host model.
And moves each access of memory past the arrival or fence that hands it over.

tools/mutate.py overlay FOLDER           writes copies of the sources in which each can be done at run time
tools/mutate.py run PROGRAM              runs the model with each of these changes, prints what it says
tools/mutate.py run PROGRAM --write      and writes docs/WAITS.md; with --missing, only what it lacks
tools/mutate.py run PROGRAM --every 12   a sample: fails if one of them is missed that docs/WAITS.md says is needed
tools/mutate.py check                    fails if docs/WAITS.md lacks a place of the sources, or has one that is gone

PROGRAM is tests/model/model_waits of a build folder, which compiles the copies: one build serves all. A place is a
statement, as in "wait(Traits::kKFull, state.k_pipe);", or "ptx::wgmma_fence();". In the copy it reads
"{ if (::tandem::model::kept(17)) wait(Traits::kKFull, state.k_pipe); }". Of an access that is moved a second copy
follows the arrival, which is carried out if the first is not.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kernel_sources import (
    CONTROL,
    EXPRESSION,
    NamesThatReach,
    blanked,
    blocks,
    body_of,
    function_at,
    without_arguments,
)

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/WAITS.md"

# The sources of the kernels that the program runs; a new kernel is a new entry, and an experiment in tests/model/waits.
KERNELS = {
    "forward": ["src/sm90/forward/*.cuh"],
    "prepare": ["src/sm90/scan_sequences.cuh"],
    "merge": ["src/sm90/merge/*.cuh"],
    "tile": ["src/sm90/tile/*.cuh"],
    "backward": ["src/sm90/backward/*.cuh"],
    "quantize": ["src/sm90/quantize/*.cuh"],
}

# Instructions that order something, and the kernels' own functions that are made of them.
INSTRUCTIONS = (
    r"ptx::(?:mbarrier_arrive\w*|mbarrier_wait\w*|fence_\w+|wgmma_(?:fence|commit|wait)|bulk_(?:commit|wait\w*)"
    r"|named_barrier_\w+|block_sync|warp_sync|cluster_(?:arrive|wait)|wait_for_previous_grid"
    r"|store_release|reduce_add_release)"
)
FUNCTIONS = (
    r"(?:\w+\.)?(?:wait|acquire|release|take_turn|pass_turn|publish|release_by_warp|release_by_thread"
    r"|meet|meet_at_the_end|arrive|wait_q|release_q|wait_do|release_do|wait_landed|pass_on"
    r"|take_dq_turn|pass_dq_turn|finish_turns)"
)
CALL = re.compile(rf"(?<![\w:.>])(?:{INSTRUCTIONS}|{FUNCTIONS})(?:<[^;(){{}}]*>)?\(")

# Accesses that others may wait for, and what says to others that they have been made.
ACCESS = re.compile(r"ptx::(?:(?:load|store)_shared|store_global|stmatrix\w*|ldmatrix\w*)\b")
STORE = re.compile(r"ptx::(?:store_shared|store_global|stmatrix\w*)\b")
FENCE_OF_PROXIES = re.compile(r"ptx::fence_proxy_")
TAKES_TURN = re.compile(r"take_turn\b")
HAND_OVER = re.compile(
    r"ptx::(?:mbarrier_arrive\w*|fence_proxy_\w+|named_barrier_\w+|block_sync|warp_sync|cluster_arrive|store_release"
    r"|reduce_add_release)\b"
)
# What neither an access that is moved nor what it is moved past has inside: it would be another schedule.
ORDERS = re.compile(r"ptx::(?:mbarrier_|fence_|wgmma_|named_barrier_|block_sync|cluster_|store_release|wait_for_)")
WAITS = re.compile(r"ptx::(?:mbarrier_wait|wgmma_wait|load_acquire)")
LEAVES = re.compile(r"\b(?:return|break|continue)\b")


# Why there is what no experiment misses, by Place.key.
def read_reasons() -> dict[tuple[str, str, str], str]:
    with open(ROOT / "tools/wait_reasons.toml", "rb") as file:
        entries = tomllib.load(file)["reason"]
    return {(entry["file"], entry["function"], place): entry["text"] for entry in entries for place in entry["places"]}


REASONS = read_reasons()


@dataclass
class Place:
    """A statement that can be taken out, or an access that can be moved past another statement."""

    kernel: str
    file: str
    function: str
    statement: str
    begin: int
    end: int
    past: str = ""  # what it is moved past, which ends there; empty: it is taken out
    past_end: int = 0
    nth: int = 1  # of the same in the function
    number: int = 0

    @property
    def text(self) -> str:
        text = f"`{self.statement}`" + (f" past `{self.past}`" if self.past else "")
        return text + (f" (number {self.nth})" if self.nth > 1 else "")

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.function, self.text


@dataclass
class Findings:
    """What the runs without one place said."""

    runs: int = 0
    named: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    missed_in: set[str] = field(default_factory=set)
    named_in: set[str] = field(default_factory=set)
    example: str = ""


def end_of_statement(text: str, position: int) -> int:
    """Past the semicolon that follows the call whose "(" precedes the position."""
    depth = 1
    while depth > 0:
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    while text[position] in " \n":
        position += 1
    return position + 1 if text[position] == ";" else -1


def statements(text: str) -> Iterator[tuple[int, int]]:
    code = blanked(text)
    for match in CALL.finditer(code):
        before = code[: match.start()].rstrip()
        if not before or not (before[-1] in ";{})" or before.endswith("else")):
            continue
        end = end_of_statement(code, match.end())
        if end > 0:
            yield match.start(), end


def sources() -> list[tuple[str, Path]]:
    return [
        (kernel, path)
        for kernel, patterns in KERNELS.items()
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
    ]


def shown(code: str) -> str:
    """A statement in one line; of a body or long arguments, that there are some."""
    line = " ".join(code.split())
    body = body_of(line)
    if body.startswith("{"):
        return line[: -len(body)] + "{ ... }"
    return line if len(line) <= 90 else without_arguments(line)


class Moves:
    """Which accesses can be moved past what. What a function does, its callers do."""

    def __init__(self, codes: dict[str, str]) -> None:
        self.codes = codes
        self.names = {pattern: NamesThatReach(pattern, codes) for pattern in (ACCESS, STORE, HAND_OVER, ORDERS, WAITS)}

    def reaches(self, pattern: re.Pattern[str], file: str, code: str) -> bool:
        return bool(pattern.search(code)) or self.names[pattern].called_in(file, code)

    def is_access(self, file: str, code: str) -> bool:
        """A call, or a statement with a body, that accesses memory and has nothing inside that orders anything."""
        if LEAVES.search(code) or self.reaches(ORDERS, file, code):
            return False
        done = body_of(code)
        if done.startswith("{") or CONTROL.match(done):
            return self.reaches(ACCESS, file, done)
        return bool(EXPRESSION.match(done)) and self.reaches(ACCESS, file, without_arguments(done))

    def hands_over(self, file: str, access: str, code: str) -> bool:
        """Only stores can be fenced; a turn that is taken says nothing to others."""
        if TAKES_TURN.match(code) or (FENCE_OF_PROXIES.match(code) and not self.reaches(STORE, file, access)):
            return False
        return self.reaches(HAND_OVER, file, code)

    def passes(self, file: str, code: str) -> bool:
        """Can an access be moved past it? Not past a loop, or what waits: that would be another schedule."""
        match = CONTROL.match(code)
        return (
            not (match and match.group(1) != "if") and not LEAVES.search(code) and not self.reaches(WAITS, file, code)
        )

    def of(self, file: str) -> Iterator[tuple[int, int, int, int]]:
        """Begin and end of each access, and of what follows it in its block and hands it over: at once, if the access
        only reads, for what it has read may be used at once."""
        code = self.codes[file]
        for block in blocks(code):
            for index, (begin, end) in enumerate(block):
                access = code[begin:end]
                if not self.is_access(file, access):
                    continue
                rest = block[index + 1 :] if self.reaches(STORE, file, access) else block[index + 1 : index + 2]
                past = next((span for span in rest if self.hands_over(file, access, code[slice(*span)])), None)
                if past is not None and self.passes(file, code[slice(*past)]):
                    yield begin, end, *past


def places() -> list[Place]:
    texts = [
        (kernel, str(path.relative_to(ROOT / "src/sm90")), path.read_text(encoding="utf-8"))
        for kernel, path in sources()
    ]
    moves = Moves({file: blanked(text) for _, file, text in texts})
    found: list[Place] = []
    for kernel, file, text in texts:
        code = moves.codes[file]
        inside = [
            Place(kernel, file, function_at(code, begin), " ".join(text[begin:end].split()), begin, end)
            for begin, end in statements(text)
        ] + [
            Place(
                kernel, file, function_at(code, begin), shown(code[begin:end]), begin, end, shown(code[at:after]), after
            )
            for begin, end, at, after in sorted(moves.of(file))
        ]
        for place in inside:
            place.nth = 1 + sum(
                (place.file, place.function, place.statement, place.past) == (p.file, p.function, p.statement, p.past)
                for p in found
            )
            place.number = len(found)
            found.append(place)
    return found


def changed(text: str, inside: list[Place]) -> str:
    """The source in which each of these places asks whether it is kept."""
    added: list[tuple[int, int, str]] = []  # where, what comes first there, what
    for place in inside:
        test = f"if (::tandem::model::kept({place.number}))"
        if place.past:
            second = " ".join(blanked(text)[place.begin : place.end].split())
            added += [(place.begin, 2, f"{{ {test} {{ "), (place.end, 0, " } }")]
            added += [(place.past_end, 1, f" {{ if (!::tandem::model::kept({place.number})) {{ {second} }} }}")]
        else:
            added += [(place.begin, 2, f"{{ {test} "), (place.end, 0, " }")]
    for where, _, what in sorted(added, key=lambda one: one[:2], reverse=True):
        text = text[:where] + what + text[where:]
    return text


def write_overlay(folder: Path) -> None:
    """Writes a file only if it changes, so that nothing is compiled in vain."""
    by_file = defaultdict(list)
    for place in places():
        by_file[place.file].append(place)
    for file, inside in by_file.items():
        text = changed((ROOT / "src/sm90" / file).read_text(encoding="utf-8"), inside)
        target = folder / "sm90" / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
    for stale in set((folder / "sm90").rglob("*.cuh")) - {folder / "sm90" / file for file in by_file}:
        stale.unlink()


def lines_of(program: Path, *options: str) -> list[dict]:
    done = subprocess.run([str(program), *options], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{program} {' '.join(options)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def experiments_of_places(program: Path, count: int, pool: ThreadPoolExecutor) -> dict[int, list[str]]:
    """For each place the experiments that come to it, in the program's order."""
    names = [line["experiment"] for line in lines_of(program, "--names")]
    found: dict[int, list[str]] = defaultdict(list)
    for name, lines in zip(
        names,
        pool.map(lambda name: lines_of(program, "--places", str(count), "--experiment", name), names),
        strict=True,
    ):
        for number in lines[0]["places"]:
            found[number].append(name)
    return found


def runs_without(program: Path, place: Place, experiments: list[str], seeds: int, enough: int) -> list[dict]:
    """A result for each seed of each experiment, until so many experiments have named it in every order of events."""
    results: list[dict] = []
    for name in experiments:
        found = lines_of(program, "--without", str(place.number), "--seeds", str(seeds), "--experiment", name)
        results += found
        enough -= all(result["kind"] for result in found)
        if enough == 0:
            break
    return results


def summary(results: list[dict]) -> Findings:
    findings = Findings(runs=len(results))
    for result in results:
        if result["kind"]:
            findings.named += 1
            findings.kinds[result["kind"]] += 1
            findings.named_in.add(result["experiment"])
            findings.example = findings.example or result["message"]
        else:
            findings.missed_in.add(result["experiment"])
    return findings


def shortened(message: str) -> str:
    """Of a report the role, the call and what about it."""
    line = message.splitlines()[0] if message else ""
    line = re.sub(r"^block \d+, warpgroup \d+, warp \d+ \(([^)]*)\), thread \d+, ", r"\1, ", line)
    line = re.sub(r" by block \d+, warpgroup \d+, warp \d+ \(([^)]*)\), thread \d+", r" by \1", line)
    line = re.sub(r" at [\w.]+:\d+ \((\S+)\)", r" in \1", line)
    return line if len(line) <= 160 else line[:157] + "..."


def row_of(place: Place, findings: Findings) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in findings.kinds.most_common())
    said = f"{kinds}: {shortened(findings.example)}" if findings.example else kinds
    if findings.runs == 0:
        said = "never come to"
    elif findings.named == 0:
        said = "nothing"
    cells = [place.file, f"`{place.function}`", place.text, f"{findings.named} of {findings.runs}", said]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


INTRODUCTION = """# Every wait is needed

Written by `./run model --mutate` (`tools/mutate.py`). Each row is a statement of the Hopper kernels that orders
something: a wait, an arrival, a fence, a commit, a barrier, or a call of a function that is made of these. The host
model ([MODEL.md](MODEL.md)) has run the kernels without it, and with all others, on the problems of
`tests/model/waits`, with three seeds each: a fair order of events, one with the latest completions and the producer
ahead, one with the latest completions and a consumer behind. Of the problems that come to the statement it takes one
after the other, until in one of them every run has been wrong.
"Named": in how many of these runs the model reported something, or the result was wrong. What it said: the kinds of
reports and how often, then one of them.

A statement that is named in some problems and not in others is needed by the instances or problems of those: a longer
ring of stages, say, makes the wait for its stages follow from another.

Without an arrival somebody waits for ever, which does not say that it comes late enough. So each access of memory that
an arrival or a fence hands over, a store before it or a load right before it, is moved past that, too.
"""
MOVED = """
## Moved

An access, moved past what hands it over: `{ ... }` and `(...)` stand for what is left out.
"""
NOT_NEEDED = """
## Not needed in the model

Why they are there is said below the table.
"""


ROW = re.compile(r"^\| (\S+) \| `(\w*)` \| (`.*?`(?: past `.*?`)?(?: \(number \d+\))?) \|.*$", re.MULTILINE)
HEAD = ["", "| file | function | without | named | what the model said |", "| --- | --- | --- | --- | --- |"]
Rows = dict[tuple[str, str, str], str]


def rows_of(text: str) -> Rows:
    """The rows of a document's tables, by the places that they are about."""
    return {(row[1], row[2], row[3].replace("\\|", "|")): row.group() for row in ROW.finditer(text)}


def written_rows() -> tuple[Rows, Rows]:
    """Of the document as it is: what is needed, and what is not."""
    text = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    needed, _, redundant = text.partition("## Not needed")
    return rows_of(needed), rows_of(redundant)


def document(all_places: list[Place], findings: dict[int, Findings]) -> str:
    """The page. Places without findings keep the rows that they have."""
    needed, redundant = written_rows()
    for place in all_places:
        found = findings.get(place.number)
        if found is not None:
            (needed if found.named else redundant)[place.key] = row_of(place, found)
            (redundant if found.named else needed).pop(place.key, None)
    taken_out = [place.key for place in all_places if not place.past]
    moved = [place.key for place in all_places if place.past]
    counts = [sum(key in needed for key in keys) for keys in (taken_out, moved)]
    lines = [INTRODUCTION, f"{len(taken_out)} statements, {counts[0]} named; {len(moved)} accesses, {counts[1]} named."]
    lines += ["", "## Needed", *HEAD, *(needed[key] for key in taken_out if key in needed)]
    lines += [MOVED.rstrip(), *(line.replace("without", "moved") for line in HEAD)]
    lines += [needed[key] for key in moved if key in needed]
    left = [key for key in taken_out + moved if key in redundant]
    lines += [NOT_NEEDED.rstrip(), *HEAD, *(redundant[key] for key in left), ""]
    lines += [
        f"- {file}, `{function}`, {text}: {REASONS.get((file, function, text), 'not known')}"
        for file, function, text in left
    ]
    return "\n".join(lines) + "\n"


def check() -> int:
    needed, redundant = (set(rows) for rows in written_rows())
    current = {place.key for place in places()}
    for file, function, statement in sorted(current - needed - redundant):
        print(f"docs/WAITS.md lacks {file}, {function}: {statement}")
    for file, function, statement in sorted((needed | redundant) - current):
        print(f"docs/WAITS.md has {file}, {function}: {statement}, which is gone")
    return 1 if current != needed | redundant else 0


def run(arguments: argparse.Namespace) -> int:
    needed, redundant = written_rows()
    chosen = [
        place
        for place in places()
        if (arguments.place is None or place.number == arguments.place)
        and place.number % arguments.every == arguments.first % arguments.every
        and not (arguments.missing and (place.key in needed or place.key in redundant))
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        experiments = experiments_of_places(arguments.program, len(places()), pool)
        results = list(
            pool.map(
                lambda place: runs_without(
                    arguments.program, place, experiments[place.number], arguments.seeds, arguments.enough
                ),
                chosen,
            )
        )
    findings = {place.number: summary(found) for place, found in zip(chosen, results, strict=True)}
    for place in chosen:
        print(row_of(place, findings[place.number]))
        if findings[place.number].named and findings[place.number].missed_in:
            print(f"    missed in: {', '.join(sorted(findings[place.number].missed_in))}")
    if arguments.write:
        DOCUMENT.write_text(document(places(), findings), encoding="utf-8")
        return 0
    missed = [place for place in chosen if findings[place.number].named == 0 and place.key not in REASONS]
    for place in missed:
        print(f"of {place.text} in {place.function}, {place.file}, the model said nothing")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    overlay = commands.add_parser("overlay")
    overlay.add_argument("folder", type=Path)
    commands.add_parser("check")
    runs = commands.add_parser("run")
    runs.add_argument("program", type=Path)
    runs.add_argument("--write", action="store_true", help="docs/WAITS.md")
    runs.add_argument("--every", type=int, default=1, help="only one place in so many")
    runs.add_argument("--first", type=int, default=0, help="of those the first")
    runs.add_argument("--place", type=int, help="only this number")
    runs.add_argument("--missing", action="store_true", help="only what docs/WAITS.md lacks")
    runs.add_argument("--seeds", type=int, default=3)
    runs.add_argument("--enough", type=int, default=1, help="experiments that name one in every run; 0: all are run")
    runs.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.command == "overlay":
        write_overlay(arguments.folder)
        return 0
    return check() if arguments.command == "check" else run(arguments)


if __name__ == "__main__":
    sys.exit(main())
