"""The figures of docs/ACCURACY.md: error table and chart (bench/errors.py), a model's drift (bench/model_drift.py)."""

import json
from collections.abc import Iterable
from typing import Any

import bar_chart

Record = dict[str, Any]
Cell = tuple[Any, ...]  # dtype, headdim, seqlen_k, v_mean

COLORS = {"plain fp8": "#9aa5b1", "no rotation": "#e0a458", "no blocks": "#6c8ebf", "Tandem fp8": "#2f855a"}
FP8 = {"plain fp8": "plain", "no rotation": "no_rotation", "no blocks": "no_block_scales", "Tandem fp8": "tandem"}
CHART_TITLE = "Error of fp8 attention, root mean square against double"
CHART_STEP = 100
IN_UNITS = 1e4  # of the chart: 1e-4


def cells(lines: Iterable[str]) -> dict[Cell, dict[str, Record]]:
    """{cell: {variant: record}} of the last run that measured each."""
    found: dict[Cell, dict[str, Record]] = {}
    for record in map(json.loads, filter(str.strip, lines)):
        cell = tuple(record[field] for field in ("dtype", "headdim", "seqlen_k", "v_mean"))
        if any(other["run"] != record["run"] for other in found.get(cell, {}).values()):
            del found[cell]
        found.setdefault(cell, {})[record["variant"]] = record
    return dict(sorted(found.items()))


def length(seqlen: int) -> str:
    return f"{seqlen // 1024}k"


def where(records: Iterable[Record]) -> str:
    def all_of(field: str) -> str:
        return "; ".join(sorted({record[field] for record in records}))

    records = list(records)
    return f"{all_of('gpu')}, {all_of('driver')}, {all_of('date')}, commit {all_of('commit')}"


def table(lines: Iterable[str]) -> str:
    found = cells(lines)
    everything = [record for variants in found.values() for record in variants.values()]
    rows = [f"Measured on {where(everything)}.", ""]
    rows += [
        "### fp8",
        "",
        "| headdim | keys | V + | plain | no rotation | no block scales | Tandem | plain / Tandem |",
    ]
    rows.append("| --: | --: | --: |" + " --: |" * 5)
    for (dtype, headdim, seqlen, mean), variants in found.items():
        if dtype == "e4m3":
            values = [shown(variants.get(name)) for name in FP8.values()]
            rows.append(f"| {headdim} | {length(seqlen)} | {mean} | {' | '.join(values)} | {ratio(variants)} |")
    rows += [
        "",
        "### 16 bits",
        "",
        "| headdim | keys | V + | fp16 plain | fp16 Tandem | ratio | bf16 plain | bf16 Tandem | ratio |",
    ]
    rows.append("| --: | --: | --: |" + " --: |" * 6)
    for (dtype, *cell), variants in found.items():
        if dtype == "fp16":
            headdim, seqlen, mean = cell
            both = [variants, found.get(("bf16", *cell), {})]
            values = [f"{shown(v.get('plain'))} | {shown(v.get('tandem'))} | {ratio(v)}" for v in both]
            rows.append(f"| {headdim} | {length(seqlen)} | {mean} | {' | '.join(values)} |")
    return "\n".join(rows) + "\n"


def shown(record: Record | None) -> str:
    return "-" if record is None else f"{record['rmse']:.2e}"


def ratio(variants: dict[str, Record]) -> str:
    if not {"plain", "tandem"} <= variants.keys():
        return "-"
    return f"{variants['plain']['rmse'] / variants['tandem']['rmse']:.2f}"


def chart(lines: Iterable[str]) -> str:
    found = {cell: variants for cell, variants in cells(lines).items() if cell[0] == "e4m3"}
    panels = []
    for headdim in dict.fromkeys(cell[1] for cell in found):
        for mean in (0, 1):
            seqlens = [cell[2] for cell in found if cell[1] == headdim and cell[3] == mean]
            bars = {}
            for name, variant in FP8.items():
                records = [found["e4m3", headdim, seqlen, mean].get(variant) for seqlen in seqlens]
                bars[name] = [record["rmse"] * IN_UNITS if record else None for record in records]
            title = f"headdim {headdim}, V{' + 1' if mean else ''}, by keys"
            panels.append(bar_chart.Panel(title, [length(seqlen) for seqlen in seqlens], bars))
    return bar_chart.chart(CHART_TITLE, "1e-4", panels, COLORS, step=CHART_STEP)


def drift(lines: Iterable[str]) -> str:
    """The last run."""
    records = [json.loads(line) for line in lines if line.strip()]
    records = [record for record in records if record["run"] == records[-1]["run"]]
    last = records[-1]
    rows = [f"{last['model']}, {last['texts']} texts, {last['date']}, commit {last['commit']}.", ""]
    rows.append("| model in | attention in | against its own attention in | distance | largest | same neighbour |")
    rows.append("| --- | --- | --- | --: | --: | --: |")
    for record in records:
        variant = f" ({record['variant'].replace('_', ' ')})" if record["variant"] not in ("", "tandem") else ""
        figures = f"{record['rmse']:.4f} | {record['max_error']:.4f} | {record['same_neighbour']:.1%}"
        rows.append(f"| {record['model_dtype']} | {record['dtype']}{variant} | {record['against']} | {figures} |")
    return "\n".join(rows) + "\n"
