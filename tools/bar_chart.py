"""Grouped bar charts as SVG, without any package, so that the same figures always give the same file."""

import dataclasses
import html

PANEL_WIDTH, PANEL_HEIGHT = 430, 210
LEFT, TOP, BOTTOM, GAP = 34, 26, 30, 10  # of a panel, around its plot
LEGEND_HEIGHT = 30
BAR_SHARE = 0.86  # of a group's width
STEP = 200  # between lines of the scale, by default
FONT = 'font-family="Helvetica, Arial, sans-serif"'


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    groups: list[str]  # along the x axis
    bars: dict[str, list[float | None]]  # {series: a value a group}


def chart(
    title: str, unit: str, panels: list[Panel], colors: dict[str, str], columns: int = 2, step: int = STEP
) -> str:
    """Panels in rows of `columns`, all of one scale with lines `step` apart; `colors` names the series in the order of
    their bars."""
    values = [value for panel in panels for bars in panel.bars.values() for value in bars if value is not None]
    top = (int(max(values) * 1.05) // step + 1) * step
    rows = -(-len(panels) // columns)
    width, height = columns * PANEL_WIDTH, LEGEND_HEIGHT + rows * PANEL_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'{FONT} font-size="9">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *legend(f"{title} ({unit})", colors),
    ]
    for number, panel in enumerate(panels):
        x, y = number % columns * PANEL_WIDTH, LEGEND_HEIGHT + number // columns * PANEL_HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *draw(panel, colors, top, step), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def legend(title: str, colors: dict[str, str]) -> list[str]:
    parts = [text(LEFT, 19, title, size=12, anchor="start")]
    x = 2 * PANEL_WIDTH - GAP - 90 * len(colors)
    for name, color in colors.items():
        parts += [f'<rect x="{x}" y="10" width="10" height="10" fill="{color}"/>', text(x + 14, 19, name, 11, "start")]
        x += 90
    return parts


def draw(panel: Panel, colors: dict[str, str], top: int, step: int) -> list[str]:
    plot_width, plot_height = PANEL_WIDTH - LEFT - GAP, PANEL_HEIGHT - TOP - BOTTOM
    base = TOP + plot_height
    parts = [text(LEFT + plot_width / 2, 16, panel.title, 11)]
    for level in range(0, top + 1, step):
        y = base - plot_height * level / top
        parts.append(f'<path d="M{LEFT} {y:.1f}h{plot_width}" stroke="{"#444" if level == 0 else "#ddd"}"/>')
        parts.append(text(LEFT - 4, y + 3, str(level), anchor="end"))
    names = [name for name in colors if name in panel.bars]
    group_width = plot_width / len(panel.groups)
    bar_width = group_width * BAR_SHARE / len(names)
    for number, group in enumerate(panel.groups):
        begin = LEFT + group_width * (number + (1 - BAR_SHARE) / 2)
        parts.append(text(begin + group_width * BAR_SHARE / 2, base + 13, group))
        for place, name in enumerate(names):
            value = panel.bars[name][number]
            if value is not None:
                parts += bar(begin + place * bar_width, base, bar_width, plot_height * value / top, value, colors[name])
    return parts


def bar(x: float, base: float, width: float, height: float, value: float, color: str) -> list[str]:
    """With its value on top."""
    rect = f'<rect x="{x:.1f}" y="{base - height:.1f}" width="{width - 0.6:.1f}" height="{height:.1f}" fill="{color}"/>'
    return [rect, text(x + width / 2, base - height - 2, f"{value:.0f}", size=min(9.0, width / 1.75))]


def text(x: float, y: float, words: str, size: float = 9, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:.3g}" text-anchor="{anchor}">{html.escape(words)}</text>'
