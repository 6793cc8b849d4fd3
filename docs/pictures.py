"""What the documentation is made of besides its pages: pictures, pages of classes, figures of the landing page.

`python docs/pictures.py` draws the pictures into `docs/_pictures` and writes the pages of optimizers and other
classes. The build runs
it if a source has changed, in a process of its own, so that JAX never starts in the process of Sphinx, which forks. The
figures and the ratios to optax are read from benchmarks/results.json.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
FOLDER = HERE / "_pictures"
RESULTS = ROOT / "benchmarks" / "results.json"
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


def digest(files: Iterable[Path] = ()) -> str:
    """Changes with the library, and with other files."""
    sources = [*sorted((ROOT / "src").rglob("*.py")), *sorted(files)]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def make_if_changed() -> None:
    """Draw all pictures and write the pages of the classes, unless they are those of these sources."""
    scripts = [file for kind in ("*.py", "*.jinja", "*.toml", "*.json") for file in HERE.glob(kind)]
    texts = [HERE / "released_code.md", HERE / "differences_from_optax.md", *(HERE / "api").glob("*.md")]
    stamp = FOLDER / digest([*scripts, *texts, *sorted(RESULTS.parent.glob("*.json"))])
    if not stamp.exists():
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        subprocess.run([sys.executable, __file__], check=True)
        stamp.touch()


def table_of(part: str) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table of a part of the benchmarks."""
    table = next(tables_of(json.loads(RESULTS.read_text(encoding="utf-8"))[part]))
    return table["head"], table["rows"]


def tables_of(part: Any) -> Iterator[Any]:
    return (block for block in part["content"] if isinstance(block, dict))


def on_device(model: str) -> list[dict[str, str]]:
    """The rows of a table of the steps on a GPU, by the heads of the columns."""
    text = RESULTS.with_name("DEVICES.md").read_text(encoding="utf-8").partition(f"## {model}\n")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in rows]


def figures() -> dict[str, str]:
    """The figures of the landing page, out of the tables of the benchmarks."""
    step = next(row for row in on_device("GPT-2 with 148 arrays") if row["transform"] == "AdamW")
    lowered = [float(row[3]) for row in table_of("program")[1] if row[1] in {"closed over", "argument"}]
    low, high = min(lowered), max(lowered)
    return {
        "step": step["step"],
        "step_of_optax": step["optax"],
        "trace_and_lower": f"{low:.2f}" if low == high else f"{low:.2f}–{high:.2f}",
    }


def ratios() -> dict[str, list[float]]:
    """All ratios to optax, by part."""
    results: Any = json.loads(RESULTS.read_text(encoding="utf-8"))
    found: dict[str, list[float]] = {}
    for part in filter(results.__contains__, COLUMNS):
        for table in tables_of(results[part]):
            columns = [i for i, head in enumerate(table["head"]) if head in COLUMNS[part]]
            rows = [
                row for row in table["rows"] if not any(cell.startswith("optax") for cell in row[: table["labels"]])
            ]
            found.setdefault(part, []).extend(float(row[i]) for row in rows for i in columns if row[i])
    return found


def draw_ratios() -> None:
    """Draw a dot for every ratio, in a line for each part."""
    import drawing

    found = ratios()
    with drawing.picture(FOLDER / "benchmarks.svg", "Ratios of modulax to optax", 620, 310) as axes:
        for i, values in enumerate(found.values()):
            axes.plot(values, [i] * len(values), "o", color=drawing.GREY, alpha=0.6, markersize=5, markeredgewidth=0)
        axes.axvline(1.0, color=drawing.ORANGE, linewidth=1)
        axes.set(xscale="log", xlabel="modulax over optax: faster on the left of the line, or less memory")
        axes.set_yticks(range(len(found)), [part.replace("_", " ") for part in found])
        axes.invert_yaxis()


def draw_sweep() -> None:
    """Train with 32 learning rates and 3 seeds as one program, and draw the losses."""
    import drawing
    import equinox as eqx
    import jax
    import jax.numpy as jnp
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

    with drawing.picture(FOLDER / "sweep.svg", "Validation loss against the learning rate", 620, 250) as axes:
        axes.fill_between(rates, losses.min(axis=1), losses.max(axis=1), color=drawing.GREY, alpha=0.25, linewidth=0)
        middle = np.median(losses, axis=1)
        axes.loglog(rates, middle, color=drawing.BLUE, label="median of three seeds")
        best = int(middle.argmin())
        label = f"best: {float(rates[best]):.1e}"
        axes.plot(rates[best], middle[best], "o", color=drawing.ORANGE, label=label)
        axes.set(xlabel="learning rate of AdamW", ylabel="validation loss")
        axes.legend()


def main() -> None:
    import class_pages
    import comparison_pictures
    import floors
    import optimizer_pages
    import optimizer_runs
    import schedule_pictures

    draw_ratios()
    draw_sweep()
    comparison_pictures.draw(FOLDER)
    floors.draw(FOLDER / "floors.svg")
    schedule_pictures.draw(FOLDER)
    class_pages.write()
    optimizer_pages.write(optimizer_runs.draw(FOLDER))


if __name__ == "__main__":
    main()
