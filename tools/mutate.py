#!/usr/bin/env python3
"""Takes each wait, arrival, fence, commit and release out of the Hopper kernels, one by one, and asks the host model.

tools/mutate.py overlay FOLDER           writes copies of the sources in which each can be taken out at run time
tools/mutate.py run PROGRAM              runs the model without each of them, prints what it says
tools/mutate.py run PROGRAM --write      and writes docs/WAITS.md; with --missing, only what it lacks
tools/mutate.py run PROGRAM --every 12   a sample: fails if one of them is missed that docs/WAITS.md says is needed
tools/mutate.py check                    fails if docs/WAITS.md lacks a place of the sources, or has one that is gone

PROGRAM is tests/model/model_waits of a build folder, which compiles the copies: one build serves all. A place is a
statement, as in "wait(Traits::kKFull, state.k_pipe);", or "ptx::wgmma_fence();". In the copy it reads
"{ if (::tandem::model::kept(17)) wait(Traits::kKFull, state.k_pipe); }".
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/WAITS.md"

# The sources of the kernels that the program runs; a new kernel is a new entry, and an experiment in tests/model/waits.
KERNELS = {
    "forward": ["src/sm90/forward/*.cuh"],
    "prepare": ["src/sm90/scan_sequences.cuh"],
    "merge": ["src/sm90/merge/*.cuh"],
    "tile": ["src/sm90/tile/*.cuh"],
    "backward": ["src/sm90/backward/*.cuh"],
}

# Instructions that order something, and the kernels' own functions that are made of them.
INSTRUCTIONS = (
    r"ptx::(?:mbarrier_arrive\w*|mbarrier_wait\w*|fence_\w+|wgmma_(?:fence|commit|wait)|bulk_(?:commit|wait\w*)"
    r"|named_barrier_\w+|block_sync|warp_sync|cluster_(?:arrive|wait)|wait_for_previous_grid"
    r"|store_release|reduce_add_release)"
)
FUNCTIONS = (
    r"(?:\w+\.)?(?:wait|acquire|release|take_turn|pass_turn|publish|release_by_warp|release_by_thread"
    r"|meet|meet_at_the_end|arrive|wait_q|release_q|wait_do|release_do|wait_landed|pass_on|take_dq_turn|pass_dq_turn|finish_turns)"
)
CALL = re.compile(rf"(?<![\w:.>])(?:{INSTRUCTIONS}|{FUNCTIONS})(?:<[^;(){{}}]*>)?\(")
HEADER = re.compile(r"TANDEM_(?:DEVICE|KERNEL)\b(?:\s*TANDEM_LAUNCH_BOUNDS\([^)]*\)\s)?[^;{()]*?(\w+)\(")
LAUNCH_BOUNDS = re.compile(r"TANDEM_LAUNCH_BOUNDS\([^)]*\)")
COMMENT = re.compile(r"//[^\n]*")

# Why there is what no experiment misses, by Place.key.
FENCE = (
    "The ISA asks for it after any access of registers that a product writes, reads too; the model sees only that "
    "ordinary code has changed them."
)
REASONS: dict[tuple[str, str, str], str] = {
    ("forward/store.cuh", "store_tiles", "`ptx::bulk_wait<0>();`"): "Each store has been waited for until it had read "
    "shared memory; that it is written the grid's end sees to.",
    ("backward/store.cuh", "store_gradients", "`ptx::bulk_wait<0>();`"): "As the forward's.",
    ("backward/consume_split.cuh", "issue_dk", "`ptx::wgmma_commit();`"): "The commit of the square of dQ that is "
    "issued next closes the group, and both are waited for together.",
    ("backward/consume.cuh", "run", "`ptx::mbarrier_wait(Traits::kVFull, reader_.parity());`"): "In a tile without a "
    "step: the load thread arrives for V right after it has for K.",
    (
        "backward/consume_split.cuh",
        "run",
        "`ptx::mbarrier_wait(Traits::kVFull, reader_.parity());`",
    ): "Consumer 0 reads "
    "no V; that it has landed before dV takes its place follows from consumer 1's wait and meet_at_the_end().",
    (
        "backward/consume_split.cuh",
        "run",
        "`ptx::mbarrier_wait(Traits::kKFull, reader_.parity());` (number 2)",
    ): "Consumer 1 reads K for dQ only, once P has come from consumer 0, which has waited for K.",
    ("backward/consume_split.cuh", "send_p", "`ptx::mbarrier_wait(Traits::kPEmpty, step_ % 2 ^ 1);`"): "Consumer 0 has "
    "waited for dS of the step before, which consumer 1 writes once it has read P.",
    (
        "backward/consume_split.cuh",
        "write_ds",
        "`ptx::mbarrier_wait(barrier_at(Traits::kDsEmpty, ds()), step_ / 2 % 2 ^ 1);`",
    ): "P of this step has come, which consumer 0 sends once its dQ of two steps before is done.",
    ("backward/consume_split.cuh", "begin_step", "`wait_q();` (number 2)"): "Consumer 1 reads Q for dK only, once P "
    "has come from consumer 0, which has waited for Q; and the load thread writes the step's words before it loads dO.",
    (
        "backward/postprocess.cuh",
        "sum_dsink",
        "`ptx::block_sync();`",
    ): "No experiment has a sink; BackwardRows tests it.",
    ("backward/load.cuh", "run", "`ptx::fence_proxy_async();`"): "Between what the grid before has written by ordinary "
    "stores and the copies that read it; in global memory the model does not ask for that.",
    ("backward/consume.cuh", "release_q", "`ptx::warp_sync();`"): "The lanes have met, at meet(), since they read what "
    "lies in the stage.",
} | {
    ("backward/" + file, function, "`ptx::wgmma_fence();`" + (f" (number {nth})" if nth > 1 else "")): FENCE
    for file, function, nth in [
        ("consume.cuh", "run_steps", 3),
        ("consume.cuh", "run_steps", 4),
        ("consume.cuh", "run_steps_late", 2),
        ("consume.cuh", "run_steps_late", 3),
        ("consume.cuh", "finish_steps", 1),
        ("consume_split.cuh", "run_steps", 2),
        ("consume_split.cuh", "run_steps", 3),
        ("consume_split.cuh", "run_steps", 4),
        ("consume_split.cuh", "begin_dq", 1),
        ("consume_split.cuh", "make_square", 1),
    ]
}


@dataclass
class Place:
    """A statement that can be taken out."""

    number: int
    kernel: str
    file: str
    function: str
    statement: str
    begin: int
    end: int
    nth: int  # of the same statements in the function, from 1

    @property
    def text(self) -> str:
        return f"`{self.statement}`" + (f" (number {self.nth})" if self.nth > 1 else "")

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


def blanked(text: str) -> str:
    """The text with comments replaced by blanks, so that places stay."""
    return COMMENT.sub(lambda match: " " * len(match.group()), text)


def end_of_statement(text: str, position: int) -> int:
    """Past the semicolon that follows the call whose "(" precedes the position."""
    depth = 1
    while depth > 0:
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    while text[position] in " \n":
        position += 1
    return position + 1 if text[position] == ";" else -1


def function_at(text: str, position: int) -> str:
    headers = [
        match.group(1) for match in HEADER.finditer(LAUNCH_BOUNDS.sub(lambda m: " " * len(m.group()), text[:position]))
    ]
    return headers[-1] if headers else ""


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


def places() -> list[Place]:
    found: list[Place] = []
    for kernel, path in sources():
        text = path.read_text(encoding="utf-8")
        file = str(path.relative_to(ROOT / "src/sm90"))
        for begin, end in statements(text):
            statement = " ".join(text[begin:end].split())
            function = function_at(blanked(text), begin)
            nth = 1 + sum((file, function, statement) == (p.file, p.function, p.statement) for p in found)
            found.append(Place(len(found), kernel, file, function, statement, begin, end, nth))
    return found


def write_overlay(folder: Path) -> None:
    """Writes a file only if it changes, so that nothing is compiled in vain."""
    by_file = defaultdict(list)
    for place in places():
        by_file[place.file].append(place)
    for file, inside in by_file.items():
        text = (ROOT / "src/sm90" / file).read_text(encoding="utf-8")
        for place in reversed(inside):
            statement = f"{{ if (::tandem::model::kept({place.number})) {text[place.begin : place.end]} }}"
            text = text[: place.begin] + statement + text[place.end :]
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


def experiments_of_places(program: Path, count: int) -> dict[int, list[str]]:
    """For each place the experiments that come to it."""
    found: dict[int, list[str]] = defaultdict(list)
    for line in lines_of(program, "--places", str(count)):
        for number in line["places"]:
            found[number].append(line["experiment"])
    return found


def runs_without(program: Path, place: Place, experiments: list[str], seeds: int) -> list[dict]:
    """A result for each experiment and seed."""
    if not experiments:
        return []
    named = [option for name in experiments for option in ("--experiment", name)]
    return lines_of(program, "--without", str(place.number), "--seeds", str(seeds), *named)


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
something: a wait, an arrival, a fence, a commit, a barrier. The host model ([MODEL.md](MODEL.md)) has run the kernels
without it, and with all others, on the problems of `tests/model/waits`, with three seeds each: a fair order of
events, one with the latest completions and the producer ahead, one with the latest completions and a consumer behind.
"Named": in how many of the runs in which the statement would have been come to the model reported something, or the
result was wrong. What it said: the kinds of reports and how often, then one of them.

A statement that is named in some problems and not in others is needed by the instances or problems of those: a longer
ring of stages, say, makes the wait for its stages follow from another.
"""


ROW = re.compile(r"^\| (\S+) \| `(\w*)` \| (`.*?`(?: \(number \d+\))?) \|.*$", re.MULTILINE)
HEAD = ["| file | function | without | named | what the model said |", "| --- | --- | --- | --- | --- |"]


def rows_of(text: str) -> dict[tuple[str, str, str], str]:
    """The rows of a document's tables, by the places that they are about."""
    return {match.groups(): match.group() for match in ROW.finditer(text)}


def written_rows() -> tuple[dict[tuple[str, str, str], str], dict[tuple[str, str, str], str]]:
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
    in_order = [place.key for place in all_places]
    rows = [needed[key] for key in in_order if key in needed]
    lines = [INTRODUCTION, f"{len(in_order)} statements, {len(rows)} of them named.", "", "## Needed", "", *HEAD, *rows]
    lines += ["", "## Not needed in the model", "", "Why they are there is said below the table.", "", *HEAD]
    lines += [redundant[key] for key in in_order if key in redundant]
    lines += [""]
    lines += [
        f"- {file}, `{function}`, {text}: {REASONS.get((file, function, text), 'not known')}"
        for file, function, text in in_order
        if (file, function, text) in redundant
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
    experiments = experiments_of_places(arguments.program, len(places()))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(
            pool.map(
                lambda place: runs_without(arguments.program, place, experiments[place.number], arguments.seeds), chosen
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
        print(f"without {place.text} in {place.function}, {place.file}, the model said nothing")
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
    runs.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.command == "overlay":
        write_overlay(arguments.folder)
        return 0
    return check() if arguments.command == "check" else run(arguments)


if __name__ == "__main__":
    sys.exit(main())
