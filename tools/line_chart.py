"""Curves as SVG, without any package, so that the same figures always give the same file."""

import dataclasses
import html
import math

from bar_chart import BOTTOM, FONT, GAP, LEFT, LEGEND_HEIGHT, PANEL_HEIGHT, PANEL_WIDTH, TOP, legend, text


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    curves: dict[str, list[float]]  # {series: a value a step}
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Style:
    color: str
    width: float


def chart(title: str, unit: str, panels: list[Panel], styles: dict[str, Style], columns: int = 2) -> str:
    """Panels in rows of `columns`, all of one scale; `styles` names the series, those drawn first in front."""
    values = [value for panel in panels for curve in panel.curves.values() for value in curve if math.isfinite(value)]
    bottom, top = math.floor(min(values) * 2) / 2, math.ceil(max(values) * 2) / 2
    rows = -(-len(panels) // columns)
    width, height = columns * PANEL_WIDTH, LEGEND_HEIGHT + rows * PANEL_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'{FONT} font-size="9">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *legend(f"{title} ({unit})", {name: style.color for name, style in styles.items()}),
    ]
    for number, panel in enumerate(panels):
        x, y = number % columns * PANEL_WIDTH, LEGEND_HEIGHT + number // columns * PANEL_HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *draw(panel, styles, bottom, top), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw(panel: Panel, styles: dict[str, Style], bottom: float, top: float) -> list[str]:
    plot_width, plot_height = PANEL_WIDTH - LEFT - GAP, PANEL_HEIGHT - TOP - BOTTOM
    base = TOP + plot_height

    def height(value: float) -> float:
        return base - plot_height * (value - bottom) / (top - bottom)

    parts = [text(LEFT + plot_width / 2, 16, panel.title, 11)]
    for half in range(round(bottom * 2), round(top * 2) + 1):
        y = height(half / 2)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{plot_width}" stroke="{"#444" if half / 2 == bottom else "#ddd"}"/>')
        parts.append(text(LEFT - 4, y + 3, f"{half / 2:g}", anchor="end"))
    steps = max(len(curve) for curve in panel.curves.values())
    for share in (0, 0.5, 1):
        parts.append(text(LEFT + plot_width * share, base + 13, f"{round(steps * share)}"))
    parts.append(text(LEFT + plot_width, TOP + 12, panel.note, anchor="end"))
    for name in reversed(styles):
        curve = panel.curves.get(name, [])
        points = [
            f"{LEFT + plot_width * (step + 1) / steps:.1f} {height(value):.2f}"
            for step, value in enumerate(curve)
            if math.isfinite(value)
        ]
        if points:
            line = f'fill="none" stroke="{styles[name].color}" stroke-width="{styles[name].width}"'
            parts.append(f'<path d="M{" L".join(points)}" {line}><title>{html.escape(name)}</title></path>')
    return parts
