"""The figures of bench/train.py: a chart of its loss curves, and the table of docs/TRAINING.md."""

import json
from collections.abc import Iterable
from typing import Any

import line_chart
from curves import SMOOTHED, distance, smoothed

STYLES = {
    "Tandem": line_chart.Style("#2f855a", 1.0),
    "PyTorch": line_chart.Style("#e0a458", 2.6),
    "control": line_chart.Style("#c3c9d1", 4.5),
}
NAMES = {"tandem": "Tandem", "torch": "PyTorch", "control": "control"}
TITLES = {
    "plain": "causal", "compile": "torch.compile(fullgraph=True)", "checkpoint": "activation checkpointing",
    "gqa": "three query heads to a key head", "packed": "packed documents",
}  # fmt: skip
Training = dict[str, Any]


def last_of_each(lines: Iterable[str]) -> dict[str, dict[str, Training]]:
    """{variant: {attention: training}}, all of a variant from the last run that has it through both."""
    runs: dict[str, dict[str, dict[str, Training]]] = {}
    for training in map(json.loads, filter(str.strip, lines)):
        by_run = runs.setdefault(training["variant"], {})
        by_run.setdefault(training["run"], {})[training["attention"]] = training
    whole = {name: [run for run in by_run.values() if {"tandem", "torch"} <= set(run)] for name, by_run in runs.items()}
    return {name: found[-1] for name, found in whole.items() if found}


def chart(lines: Iterable[str]) -> str:
    panels = []
    for variant, trainings in last_of_each(lines).items():
        curves = {NAMES[name]: smoothed(training["losses"]) for name, training in trainings.items()}
        apart = distance(trainings["tandem"]["losses"], trainings["torch"]["losses"])
        panels.append(line_chart.Panel(TITLES.get(variant, variant), curves, f"at most {apart:.4f} apart"))
    title = f"A small transformer's training loss, mean of {SMOOTHED} steps"
    used = {name for panel in panels for name in panel.curves}
    return line_chart.chart(title, "nats a byte", panels, {name: s for name, s in STYLES.items() if name in used})


def table(lines: Iterable[str]) -> str:
    found = last_of_each(lines)
    first = next(iter(found.values()))["tandem"]
    machines = sorted({f"{one['tandem']['gpu']}, torch {one['tandem']['torch']}" for one in found.values()})
    commits = sorted({one["tandem"]["commit"] for one in found.values()})
    rows = [
        "![loss curves through Tandem and through PyTorch's attention](training.svg)",
        "",
        f"{'; '.join(machines)}; commit {', '.join(commits)}, {first['date']}. {first['layers']} layers of width "
        f"{first['dim']}, headdim {first['headdim']}, {first['batch']} x {first['seqlen']} bytes a step. Text: "
        f"{first['text']}.",
        "",
        "| run | parameters | steps | loss, Tandem | loss, PyTorch | curves apart by at most | control |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for variant, trainings in found.items():
        ours, theirs = (trainings[name]["losses"] for name in ("tandem", "torch"))
        control = f"{distance(trainings['control']['losses'], theirs):.4f}" if "control" in trainings else "-"
        rows.append(
            f"| {TITLES.get(variant, variant)} | {trainings['tandem']['parameters']} | {len(ours)} "
            f"| {smoothed(ours)[-1]:.4f} | {smoothed(theirs)[-1]:.4f} | {distance(ours, theirs):.4f} | {control} |"
        )
    return "\n".join(rows) + "\n"
