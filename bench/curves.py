"""Loss curves: what bench/train.py judges and tools/training_figures.py draws. Needs the standard library only."""

SMOOTHED = 20  # steps


def smoothed(curve: list[float]) -> list[float]:
    """Means of up to SMOOTHED steps."""
    return [sum(curve[max(0, end - SMOOTHED) : end]) / min(end, SMOOTHED) for end in range(1, len(curve) + 1)]


def distance(one: list[float], other: list[float]) -> float:
    """The largest between two smoothed curves."""
    return max(abs(a - b) for a, b in zip(smoothed(one), smoothed(other), strict=True))
