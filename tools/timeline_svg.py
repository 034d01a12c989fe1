#!/usr/bin/env python3
"""Draws a run of the forward kernel in the host model: who waits, issues and computes when, as an SVG.

    tools/timeline_svg.py docs/forward_timeline.svg        # runs build/tests/model/model_run (./run build makes it)
    tools/timeline_svg.py OUTPUT.svg --trace TRACE.json    # draws what ./run model --timeline TRACE.json has written

The trace is checked against the Trace Event Format, as Perfetto reads it, first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
# Two work tiles of one block, four blocks of keys each: short enough to read, long enough for every part to be seen.
PROBLEM = ["--op", "forward", "--headdim", "128", "--seqlen-q", "256", "--seqlen-k", "512", "--seed", "7"]

LEFT, RIGHT, WIDTH = 190, 15, 1280
LANE, LANE_GAP, ROW_GAP = 15, 2, 9
TOP = 58
COLOURS = {
    "wait": ("#e3e3e3", "waits for a barrier"),
    "softmax": ("#f2a33a", "softmax"),
    "issue": ("#222222", "issues a load, a store, a product"),
    "product": ("#3b75af", "product under way on the tensor cores"),
    "copy k": ("#5aa469", "K being copied"),
    "copy v": ("#9c6fb5", "V"),
    "copy q": ("#c8553d", "Q"),
    "copy": ("#8a8a8a", "O"),
}


@dataclass
class Span:
    row: str
    name: str
    begin: int
    end: int
    kind: str


# ------------------------------------------------------------------------------------------------------------ the trace

REQUIRED = {"X": ("ts", "dur", "pid", "tid"), "b": ("ts", "pid", "id", "cat"), "e": ("ts", "pid", "id", "cat")}


def check_events(events: list[dict[str, Any]]) -> None:
    """What the format asks of complete, nestable asynchronous and metadata events."""
    open_spans: dict[tuple[str, int], int] = {}
    for event in events:
        phase = event["ph"]
        assert isinstance(event["name"], str), event
        if phase == "M":
            assert event["name"] in ("thread_name", "process_name"), event
            assert isinstance(event["args"]["name"], str), event
            continue
        assert phase in REQUIRED, f"phase {phase!r} in {event}"
        assert all(key in event for key in REQUIRED[phase]), event
        assert event["ts"] >= 0, event
        key = (event["cat"], event["id"]) if phase != "X" else ("", 0)
        if phase == "b":
            assert key not in open_spans, f"begun twice: {event}"
            open_spans[key] = event["ts"]
        elif phase == "e":
            assert open_spans.pop(key) <= event["ts"], f"ends before it begins: {event}"
    assert not open_spans, f"never ended: {open_spans}"
    check_nesting(events)


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Complete events of one thread lie one in the other or apart."""
    threads: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            threads.setdefault(event["tid"], []).append((event["ts"], -event["ts"] - event["dur"]))
    for thread, spans in threads.items():
        ends: list[int] = []
        for begin, negative_end in sorted(spans):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or -negative_end <= ends[-1], f"thread {thread}: events overlap at {begin}"
            ends.append(-negative_end)


def place_of(name: str) -> str:
    """k[0] of "tma_load k[0] + 8192"."""
    return name.partition(" ")[2].partition(" ")[0]


def kind_of(name: str, is_async: bool) -> str:
    if is_async:
        if "wgmma" in name:
            return "product"
        operand = place_of(name).partition("[")[0]
        return f"copy {operand}" if "load" in name and operand in ("q", "k", "v") else "copy"
    if name.startswith("wait"):
        return "wait"
    return "softmax" if name == "softmax" else "issue"


def read_spans(events: list[dict[str, Any]]) -> tuple[list[str], list[Span]]:
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    begun: dict[int, dict[str, Any]] = {}
    spans = []
    for event in events:
        if event["ph"] == "X":
            kind = kind_of(event["name"], False)
            spans.append(Span(rows[event["tid"]], event["name"], event["ts"], event["ts"] + event["dur"], kind))
        elif event["ph"] == "b":
            begun[event["id"]] = event
        elif event["ph"] == "e":
            start = begun.pop(event["id"])
            kind = kind_of(start["name"], True)
            spans.append(Span(rows[start["tid"]], start["name"], start["ts"], event["ts"], kind))
    return list(rows.values()), spans


def merged(spans: list[Span]) -> list[Span]:
    """Products of a row that follow or overlap each other, as one; and so the copies of one tile's panels."""
    result: list[Span] = []
    last: dict[tuple[str, str], Span] = {}
    for span in sorted(spans, key=lambda s: s.begin):
        key = span.row, label_of(span)
        joins = span.kind == "product" or span.kind.startswith("copy")
        if joins and key in last and span.begin <= last[key].end:
            last[key].end = max(last[key].end, span.end)
        else:
            last[key] = span
            result.append(span)
    return result


# ---------------------------------------------------------------------------------------------------------- the picture


def lanes_of(spans: list[Span]) -> list[int]:
    """Spans that overlap get lanes of their own."""
    ends: list[int] = []
    lanes = []
    for span in spans:
        free = [lane for lane, end in enumerate(ends) if end <= span.begin]
        lane = free[0] if free else len(ends)
        if lane == len(ends):
            ends.append(0)
        ends[lane] = span.end
        lanes.append(lane)
    return lanes


def label_of(span: Span) -> str:
    if span.kind == "wait":
        return span.name.removeprefix("wait for ")
    if span.kind.startswith("copy"):
        return ("O in " if span.kind == "copy" else "") + place_of(span.name)
    return span.name if span.kind == "softmax" else ""


class Picture:
    def __init__(self, steps: int) -> None:
        self.scale = (WIDTH - LEFT - RIGHT) / steps
        self.steps = steps
        self.y = TOP
        self.body: list[str] = []

    def x(self, step: int) -> float:
        return round(LEFT + step * self.scale, 1)

    def text(self, x: float, y: float, words: str, attributes: str = "") -> None:
        self.body.append(f'<text x="{x:g}" y="{y:g}" {attributes}>{escape(words)}</text>')

    def bar(self, span: Span, y: float) -> None:
        x, width = self.x(span.begin), max(1.2, round((span.end - span.begin) * self.scale, 1))
        colour = COLOURS[span.kind][0]
        if span.kind == "issue":
            self.body.append(f'<rect x="{x:g}" y="{y + 2:g}" width="1.2" height="{LANE - 4}" fill="{colour}"/>')
            return
        title = escape(f"{span.name}, steps {span.begin} to {span.end}")
        self.body.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{LANE}" fill="{colour}"><title>{title}</title></rect>'
        )
        label = label_of(span)
        if label and width > 5.2 * len(label) + 2:
            fill = "#555" if span.kind == "wait" else "#fff"
            self.text(x + 3, y + 11, label, f'fill="{fill}" font-size="9"')

    def row(self, name: str, spans: list[Span]) -> None:
        # What is issued is marked over what happens meanwhile, so only the rest needs lanes.
        bars = [span for span in spans if span.kind != "issue"]
        lanes = lanes_of(bars)
        height = (max(lanes, default=0) + 1) * (LANE + LANE_GAP)
        self.text(LEFT - 8, self.y + 12, name, 'text-anchor="end"')
        self.body.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.y + height:g}" y2="{self.y + height:g}" stroke="#ddd"/>'
        )
        for span, lane in zip(bars, lanes, strict=True):
            self.bar(span, self.y + lane * (LANE + LANE_GAP))
        for span in spans:
            if span.kind == "issue":
                self.bar(span, self.y)
        self.y += height + ROW_GAP

    def legend(self, kinds: set[str]) -> None:
        x = 12.0
        for kind, (colour, words) in COLOURS.items():
            if kind not in kinds:
                continue
            self.body.append(f'<rect x="{x:g}" y="30" width="11" height="11" fill="{colour}"/>')
            self.text(x + 15, 40, words)
            x += 30 + 6.0 * len(words)

    def axis(self) -> None:
        every = max(50, self.steps // 12 // 50 * 50)
        for step in range(0, self.steps + 1, every):
            self.text(self.x(step), self.y + 12, str(step), 'text-anchor="middle" fill="#666"')
        self.text(LEFT - 8, self.y + 12, "step of the scheduler", 'text-anchor="end" fill="#666"')
        self.y += 22

    def svg(self, title: str) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.y}" font-family="sans-serif" '
            f'font-size="11">\n<rect width="{WIDTH}" height="{self.y}" fill="#fff"/>\n'
            f'<text x="12" y="19" font-size="13">{escape(title)}</text>\n'
        )
        return head + "\n".join(self.body) + "\n</svg>\n"


def order_of(rows: list[str]) -> list[str]:
    """Each consumer above its tensor cores, the producer above the copies that it issues."""
    first = [row for row in ("load", "copy engine") if row in rows]
    consumers = [row for row in rows if row.startswith("consumer")]
    pairs = [row for consumer in consumers for row in (consumer, f"tensor cores, {consumer}") if row in rows]
    return first + pairs + [row for row in rows if row not in first + pairs]


def draw(trace: dict[str, Any], title: str) -> str:
    events = trace["traceEvents"]
    check_events(events)
    rows, spans = read_spans(events)
    spans = merged(spans)
    picture = Picture(max(span.end for span in spans))
    picture.legend({span.kind for span in spans})
    for row in order_of(rows):
        picture.row(row, sorted((s for s in spans if s.row == row), key=lambda s: s.begin))
    picture.axis()
    return picture.svg(title)


def run_model(program: Path, trace: Path) -> str:
    """Writes the trace; returns what the run was, in words."""
    done = subprocess.run([program, *PROBLEM, "--timeline", trace], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()[-2].partition(": finished")[0].removesuffix(", threads 0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--model", type=Path, default=ROOT / "build/tests/model/model_run")
    parser.add_argument("--trace", type=Path, help="a trace to draw; default: the model is run")
    arguments = parser.parse_args()
    if arguments.trace:
        text = draw(json.loads(arguments.trace.read_text()), arguments.trace.name)
    else:
        if not arguments.model.exists():
            sys.exit(f"{arguments.model} does not exist; ./run build makes it, --model names another")
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            words = run_model(arguments.model, trace)
            text = draw(json.loads(trace.read_text()), f"The forward kernel in the host model, one block: {words}")
    arguments.output.write_text(text)


if __name__ == "__main__":
    main()
