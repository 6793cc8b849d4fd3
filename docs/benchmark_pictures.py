"""The picture of the benchmarks page: the ratios to optax in benchmarks/results.json."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# The columns with ratios to optax, by part. The ratios of the other parts are to something else.
COLUMNS = {
    "eager": ("ratio",),
    "step": ("argument, as built", "`optimizer.step`"),
    "init": ("ratio",),
    "program": ("ratio",),
    "small parameters": ("ratio",),
    "sweep": ("ratio",),
    "training": ("modulax, stock", "`modulax.nnx.Optimizer`"),
    "ctc": ("ratio",),
    "cross_entropy": ("ratio",),
    "assignment": ("ratio",),
    "linear algebra": ("ratio",),
    "projections": ("ratio",),
}


def ratios() -> dict[str, list[float]]:
    """All ratios to optax, by part."""
    results: Any = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    found: dict[str, list[float]] = {}
    for part in filter(results.__contains__, COLUMNS):
        for block in results[part]["content"]:
            if isinstance(block, str):
                continue
            columns = [i for i, head in enumerate(block["head"]) if head in COLUMNS[part]]
            rows = [row for row in block["rows"] if "optax" not in row[: block["labels"]]]
            found.setdefault(part, []).extend(float(row[i]) for row in rows for i in columns if row[i])
    return found


def draw_ratios(folder: Path) -> None:
    """Draw a dot for every ratio, in a line for each part, for light and dark pages."""
    import matplotlib.pyplot as plt

    found = ratios()
    for theme, ink, accent in (("light", "#22313f", "#c0392b"), ("dark", "#d5dde5", "#ff8a75")):
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        style: dict[Any, Any] = dict.fromkeys(names, ink) | {"axes.spines.top": False, "axes.spines.right": False}
        with plt.rc_context(style):
            figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
            for i, values in enumerate(found.values()):
                axes.plot(values, [i] * len(values), "o", color=ink, alpha=0.45, markersize=5, markeredgewidth=0)
            axes.axvline(1.0, color=accent, linewidth=1)
            axes.set(xscale="log", xlabel="modulax over optax: faster on the left of the line, or less memory")
            axes.set_yticks(range(len(found)), [part.replace("_", " ") for part in found])
            axes.invert_yaxis()
            figure.savefig(folder / f"benchmarks-{theme}.png", dpi=144, transparent=True)
            plt.close(figure)
