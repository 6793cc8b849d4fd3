"""The curve of every schedule, and a Sphinx extension that puts it below the summary of the schedule."""

from pathlib import Path
from typing import Any

import drawing
import jax
import jax.numpy as jnp
import numpy as np

from modulax import schedules

STEPS = 100
# The code whose value is drawn, for every schedule of `modulax.schedules`.
CURVES = {
    "Constant": "Constant(0.5)",
    "Linear": "Linear(1.0, 0.1, 60, transition_begin=20)",
    "Polynomial": "Polynomial(1.0, 0.1, 3.0, 100)",
    "CosineDecay": "CosineDecay(1.0, 100, alpha=0.1)",
    "ExponentialDecay": "ExponentialDecay(1.0, 40, 0.3)",
    "REX": "REX(1.0, 100)",
    "WarmupConstant": "WarmupConstant(0.0, 1.0, 20)",
    "WarmupCosineDecay": "WarmupCosineDecay(0.0, 1.0, 20, 100)",
    "WarmupExponentialDecay": "WarmupExponentialDecay(0.0, 1.0, 20, 40, 0.3)",
    "EMAWarmup": "EMAWarmup(0.9)",
    "WarmupStableDecay": "WarmupStableDecay(0.0, 1.0, 20, 50, 30)",
    "InverseSqrt": "InverseSqrt(1.0, 20)",
    "Power": "Power(64, 4e6, 10, decay_begin=70, decay_steps=30)",
    "CosineOneCycle": "CosineOneCycle(100, 1.0)",
    "LinearOneCycle": "LinearOneCycle(100, 1.0)",
    "SGDR": "SGDR.geometric(1.0, 15, 3)",
    "PiecewiseConstant": "PiecewiseConstant(1.0, {30: 0.5, 70: 0.2})",
    "PiecewiseInterpolate": 'PiecewiseInterpolate("cosine", 1.0, {30: 0.5, 70: 0.2})',
    "Join": "Join([Linear(0.0, 1.0, 20), 0.6, CosineDecay(0.6, 40)], [20, 60])",
    "Expression": "CosineDecay(1.0, 100) * 0.5 + 0.2",
    "Clipped": "CosineDecay(1.0, 100).clip(0.2, 0.8)",
    "Stretched": "WarmupCosineDecay(0.0, 1.0, 0.2, 1.0).over(100)",
    "WrappedSchedule": "WrappedSchedule(lambda step: 1 / (1 + step / 20))",
}


def draw(folder: Path) -> None:
    """Draw the curve of every schedule, with its code as the title."""
    for name, code in CURVES.items():
        made = eval(code, {**vars(schedules), "jnp": jnp})
        assert type(made).__name__ == name, f"the picture of {name} shows another schedule, {made}"
        values = np.asarray(jax.vmap(made)(jnp.arange(STEPS + 1)), np.float64)
        drawing.schedule(folder / f"{name}.svg", np.broadcast_to(values, STEPS + 1), code)


def show(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put the picture after the first paragraph of a docstring, which is Markdown."""
    del app, obj, options
    module, _, last = name.rpartition(".")
    if what == "class" and module == "modulax.schedules" and last in CURVES:
        at = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
        picture = f"![Values of {CURVES[last]} over {STEPS} steps](/_pictures/{last}.svg){{.curve}}"
        lines[at:at] = ["", picture.replace('"', "'"), ""]


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", show, priority=600)  # before `markdown_pages`
    return {"parallel_read_safe": True, "parallel_write_safe": True}
