"""The GPU's figures, from the lines of bench/compare.py: charts, the README's tables and those of docs/SPEED.md."""

import json
from collections.abc import Iterable

import bar_chart
from cells import HEADDIMS, MASKS, SEQLENS, parse_cells
from measurements import Anchors, Found, Measurement, Relation, by_process, last_of_each, relations, shown

COLORS = {"FA2": "#9aa5b1", "cuDNN": "#6c8ebf", "FA3": "#e0a458", "Tandem": "#2f855a"}
TITLES = {"fa2": "FA2", "cudnn": "cuDNN", "fa3": "FA3", "tandem": "Tandem", "flex": "FlexAttention"}
WORDS = {"forward": "forward", "backward": "backward", "forward_backward": "forward and backward"}


def read(lines: Iterable[str], op: str = "forward") -> list[Found]:
    """Of each process, in their order."""
    found = by_process((json.loads(line) for line in lines if line.strip()), op)
    return [one for one in found.values() if one]


def table_cells(processes: list[Found]) -> Found:
    """Those of the paper's figures: of the last process that timed all of them, or of the last that timed each."""
    table = parse_cells("table")
    whole = [found for found in processes if found.keys() >= set(table)]
    found = whole[-1] if whole else last_of_each(processes)
    return {cell: found[cell] for cell in table if cell in found}


def measured_where(found: Found) -> str:
    def all_of(field: str) -> str:
        return "; ".join(sorted({getattr(group, field) for group in found.values()}))

    passes = sorted({len(group.passes["tandem"]) for group in found.values()})
    return f"{all_of('gpu')}, {all_of('driver')}, {all_of('date')}, commit {all_of('commit')}, passes: {passes[-1]}"


def chart(lines: Iterable[str], op: str = "forward") -> str:
    found = table_cells(read(lines, op))
    panels = []
    for headdim in HEADDIMS:
        for mask in MASKS:
            groups = [found.get(cell) for cell in parse_cells(f"{headdim}:{mask}:*")]
            bars = {
                TITLES[name]: [group.tflops(name) if group and name in group.passes else None for group in groups]
                for name in ("fa2", "cudnn", "fa3", "tandem")
            }
            measured = {title: values for title, values in bars.items() if any(values)}
            title = f"headdim {headdim}, {'causal' if mask == 'causal' else 'no mask'}"
            labels = [f"{int(seqlen) // 1024}k" if int(seqlen) >= 1024 else seqlen for seqlen in SEQLENS]
            if measured:
                panels.append(bar_chart.Panel(title, labels, measured))
    used = {title for panel in panels for title in panel.bars}
    colors = {title: color for title, color in COLORS.items() if title in used}
    return bar_chart.chart(f"Attention {WORDS[op]}, bf16", "TFLOPS", panels, colors)


def backward_chart(lines: Iterable[str]) -> str:
    return chart(lines, "backward")


def summary(lines: Iterable[str]) -> str:
    """The README's section: a row a headdim and mask."""
    found = table_cells(read(lines))
    rows = [
        "## Speed on a Hopper GPU",
        "",
        "![TFLOPS of Tandem and others by headdim, mask and sequence length](docs/speed_forward.svg)",
        "",
        f"Forward, bf16, TFLOPS, and in brackets the ratio to cuDNN in the same run ({measured_where(found)}). 16384 "
        "tokens, hidden size 2048. [SPEED](docs/SPEED.md) has the protocol, every ratio, and other problems.",
        "",
    ]
    return "\n".join(rows + ratio_rows(found)) + "\n"


def backward_summary(lines: Iterable[str]) -> str:
    """The same of the backward."""
    found = table_cells(read(lines, "backward"))
    rows = [
        "![TFLOPS of the backward of Tandem and others](docs/speed_backward.svg)",
        "",
        f"Backward, bf16, whole (every kernel that it takes), the same figures ({measured_where(found)}).",
        "",
    ]
    return "\n".join(rows + ratio_rows(found)) + "\n"


def ratio_rows(found: Found) -> list[str]:
    rows = [f"| headdim | mask | {' | '.join(SEQLENS)} |", "| --- | --- |" + " --: |" * len(SEQLENS)]
    for headdim in HEADDIMS:
        for mask in MASKS:
            groups = [found.get(cell) for cell in parse_cells(f"{headdim}:{mask}:*")]
            entries = [f"{g.tflops('tandem'):.0f} ({shown(g.ratio('cudnn'))})" if g else "" for g in groups]
            rows.append(f"| {headdim} | {mask} | {' | '.join(entries)} |")
    return rows


def backward_details(lines: Iterable[str]) -> str:
    """docs/SPEED.md: the backward, then forward and backward together."""
    lines = list(lines)
    parts = [details(lines, "backward")]
    if read(lines, "forward_backward"):
        parts += ["### Forward and backward\n", details(lines, "forward_backward")]
    return "\n".join(parts)


def details(lines: Iterable[str], op: str = "forward") -> str:
    """docs/SPEED.md: a row a cell, then what is held against other cells."""
    processes = read(lines, op)
    table = table_cells(processes)
    parts = [f"Measured on {measured_where(table)}.", "", *cell_rows(table)] if table else []
    others = {cell: group for cell, group in last_of_each(processes).items() if cell not in parse_cells("table")}
    if others:
        related = {(one.kind, one.cell): one for found in processes for one in relations(found)}
        parts += ["", "### Other problems", "", f"Measured on {measured_where(others)}.", ""]
        parts += other_rows(others, list(related.values()))
    return "\n".join(parts) + "\n"


def cell_rows(found: Found) -> list[str]:
    anchors = Anchors()
    has_gradients = any(group.op != "forward" for group in found.values())
    head = (
        "| headdim | mask | seqlen | Tandem | cuDNN | ratio | FA2 | ratio | to FA3* | to the goal* | to the control |"
    )
    rows = [
        head + " deterministic |" * has_gradients,
        "| --- | --- | --: |" + " --: |" * (8 + has_gradients),
    ]
    for cell, group in found.items():
        entries = [str(cell.headdim), cell.mask, str(cell.seqlen), rate(group, "tandem")]
        for name in ("cudnn", "fa2"):
            entries += [rate(group, name), shown(group.ratio(name))]
        entries += [shown(anchors.ratio(group, name)) for name in ("fa3", "goal")]
        entries.append(shown(group.ratio("prototype")))
        entries += [shown(group.ratio("tandem (deterministic)"))] * has_gradients
        rows.append(f"| {' | '.join(entries)} |")
    return rows


FP8_COLUMNS = {  # of a cell in e4m3: what is timed beside Tandem's
    "tandem (V in rows)": "V in rows",
    "tandem (scales of heads)": "scales of heads",
    "tandem (from bf16)": "from bf16",
    "tandem (bf16)": "Tandem, bf16",
    "cudnn (bf16)": "cuDNN, bf16",
    "cudnn": "cuDNN, fp8",
}


def fp8_details(lines: Iterable[str]) -> str:
    """docs/SPEED.md: a row a cell in e4m3; the rates of Tandem's other variants, and our time under theirs."""
    cells = parse_cells("fp8")
    measured = last_of_each(read(lines))
    found = {cell: measured[cell] for cell in cells if cell in measured}
    if not found:
        return ""
    controls = sorted({name for group in found.values() for name in group.passes if name.startswith("prototype")})
    names = FP8_COLUMNS | {name: name.replace("prototype", "control") for name in controls}
    head = ["headdim", "mask", "seqlen", "Tandem", *names.values(), "to FA3*", "to the goal*", "end to end"]
    rows = [f"Measured on {measured_where(found)}. TFLOPS, and in brackets Tandem's speed over theirs.", ""]
    rows += [f"| {' | '.join(head)} |", "| --- | --- | --: |" + " --: |" * (len(head) - 3)]
    anchors = Anchors()
    for cell, group in found.items():
        entries = [str(cell.headdim), cell.mask, str(cell.seqlen), rate(group, "tandem")]
        entries += [f"{rate(group, name)} ({shown(group.ratio(name))})" for name in names]
        entries += [shown(anchors.ratio(group, name)) for name in ("fa3", "goal")]
        rows.append(f"| {' | '.join(entries)} | {shown(end_to_end(group))} |")
    return "\n".join(rows) + "\n"


def end_to_end(group: Measurement) -> float | None:
    """The speed of quantising and attention in fp8 over that of attention in bf16."""
    ratios = [group.ratio(name) for name in ("tandem (bf16)", "tandem (from bf16)")]
    return None if None in ratios else ratios[0] / ratios[1]


def other_rows(found: Found, related: list[Relation]) -> list[str]:
    rows = ["| problem | Tandem | others | held against | ratio | wanted |", "| --- | --: | --- | --- | --: | --: |"]
    for cell, group in found.items():
        names = [name for name in group.passes if name in TITLES and name != "tandem"]
        others = ", ".join(f"{TITLES[name]} {rate(group, name)} ({shown(group.ratio(name))})" for name in names)
        ours = [relation for relation in related if relation.cell == cell]
        for relation in ours:
            held = f"{relation.kind} ({relation.to}) | {relation.ratio:.3f} | {relation.wanted:g}"
            rows.append(f"| {cell.name} | {rate(group, 'tandem')} | {others} | {held} |")
        if not ours:
            rows.append(f"| {cell.name} | {rate(group, 'tandem')} | {others} | | | |")
    return rows


def rate(group: Measurement, name: str) -> str:
    return f"{group.tflops(name):.0f}" if name in group.passes else "-"


def eager_calls(lines: Iterable[str]) -> str:
    """docs/SPEED.md: the last line of each device and call."""
    last = {(record["device"], record["call"]): record for record in map(json.loads, filter(str.strip, lines))}
    rows = ["| device | call | us | from, to | torch | commit |", "| --- | --- | --: | --- | --- | --- |"]
    for (device, call), record in sorted(last.items()):
        figures = f"{record['us']:.1f} | {record['us_min']:.1f}, {record['us_max']:.1f}"
        rows.append(
            f"| {device} ({record['processor']}) | {call} | {figures} | {record['torch']} | {record['commit']} |"
        )
    return "\n".join(rows) + "\n"
