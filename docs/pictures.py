"""The picture and the figures of the landing page.

The picture is a sweep over learning rates on scikit-learn's digits, made when the site is built; the figures are read
from benchmarks/results.json.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def table_of(part: str) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table of a part of the benchmarks."""
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    table = next(block for block in results[part]["content"] if isinstance(block, dict))
    return table["head"], table["rows"]


def figures() -> dict[str, str]:
    """The figures of the landing page, out of the tables of the benchmarks."""
    rates, closures, one_vmap, _ = table_of("sweep")[1][-1]
    lowered = [float(row[3]) for row in table_of("program")[1] if row[1] in {"closed over", "argument"}]
    low, high = min(lowered), max(lowered)
    return {
        "sweep_rates": rates,
        "sweep_closures": closures,
        "sweep_vmap": one_vmap,
        "trace_and_lower": f"{low:.2f}" if low == high else f"{low:.2f}–{high:.2f}",
    }


def draw_sweep(folder: Path) -> None:
    """Train with 32 learning rates and 3 seeds as one program, and draw the losses, for light and dark pages."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import matplotlib.pyplot as plt
    import numpy as np
    from sklearn.datasets import load_digits

    import modulax as mx
    from modulax import sweeps

    loaded: Any = load_digits(return_X_y=True)
    x, y = jnp.asarray(loaded[0] / 16, jnp.float32), jnp.asarray(loaded[1])
    train_x, train_y, valid_x, valid_y = x[:1400], y[:1400], x[1400:], y[1400:]

    def loss(model: Any, x: Any, y: Any) -> Any:
        logits = jax.vmap(model)(x)
        return mx.losses.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def train(optimizer: Any, key: Any) -> Any:
        arrays, rest = eqx.partition(eqx.nn.MLP(64, 10, 32, 1, key=key), eqx.is_array)

        def body(carry: Any, key: Any) -> Any:
            arrays, state = carry
            rows = jax.random.randint(key, (64,), 0, len(train_x))
            grads = jax.grad(lambda arrays: loss(eqx.combine(arrays, rest), train_x[rows], train_y[rows]))(arrays)
            return optimizer.step(grads, state, arrays), None

        keys = jax.random.split(key, 300)
        (arrays, _), _ = jax.lax.scan(body, (arrays, optimizer.init(arrays)), keys)
        return loss(eqx.combine(arrays, rest), valid_x, valid_y)

    rates = np.logspace(-4, 0, 32)
    losses = sweeps.run(sweeps.grid(mx.AdamW(1e-3), learning_rate=rates), train, seeds=3, progress=False).metrics

    for theme, ink, accent in (("light", "#22313f", "#c0392b"), ("dark", "#d5dde5", "#ff8a75")):
        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        style: dict[Any, Any] = dict.fromkeys(names, ink) | {"axes.spines.top": False, "axes.spines.right": False}
        with plt.rc_context(style):
            figure, axes = plt.subplots(figsize=(7.5, 3.0), layout="constrained")
            axes.fill_between(rates, losses.min(axis=1), losses.max(axis=1), color=ink, alpha=0.2, linewidth=0)
            middle = np.median(losses, axis=1)
            axes.loglog(rates, middle, color=ink, label="median of three seeds")
            best = int(middle.argmin())
            axes.plot(rates[best], middle[best], "o", color=accent, label=f"best: {float(rates[best]):.1e}")
            axes.set(xlabel="learning rate of AdamW", ylabel="validation loss")
            axes.legend(frameon=False)
            figure.savefig(folder / f"sweep-{theme}.png", dpi=144, transparent=True)
            plt.close(figure)
