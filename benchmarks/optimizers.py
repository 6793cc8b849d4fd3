"""Compare 14 optimizers on four small trainings of two lengths each, for "Choosing an optimizer".

    python benchmarks/optimizers.py [--folder runs] [--only gpt ...] [--steps] [--quick]

Each optimizer is tuned in the space that `spaces` declares, with the same budget and the same schedule, a warm-up and a
cosine, and the chosen one is trained with new seeds: `modulax.sweeps.compare`. Writes the results
of all runs to `benchmarks/optimizers.json`, and the tables to `benchmarks/OPTIMIZERS.md`. With `--folder`, a comparison
that was interrupted goes on. `--steps` keeps the stored comparisons, and only counts the steps to AdamW's loss.
`--quick` makes two tiny comparisons and writes nothing.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from measure import seconds, table
from optimizer_tasks import Task, tasks

import modulax as mx
from modulax import sweeps

HERE = Path(__file__).parent
BUDGET, SEEDS = 16, 8
# Trainings and optimizers whose steps to AdamW's loss are counted, by this step.
COUNTED, FAMILY, EVERY = ("cnn", "gpt"), ("AdamW", "Muon", "NorMuon", "SOAP", "Shampoo"), 10
RATES = {
    "SGD": (mx.SGD, (3e-3, 1.0), {"momentum": 0.9, "nesterov": True}),
    "AdamW": (mx.AdamW, (3e-4, 0.1), {}),
    "Lion": (mx.Lion, (3e-5, 1e-2), {"weight_decay": 0.0}),
    "Adan": (mx.Adan, (3e-4, 0.1), {}),
    "ADOPT": (mx.ADOPT, (3e-4, 0.1), {}),
    "AdEMAMix": (mx.AdEMAMix, (3e-4, 0.1), {}),
    "Adafactor": (mx.Adafactor, (1e-3, 0.3), {}),
    "LAMB": (mx.LAMB, (1e-3, 0.3), {}),
    "Prodigy": (mx.Prodigy, (0.1, 10.0), {}),
    "Muon": (mx.Muon, (1e-3, 0.3), {}),
    "NorMuon": (mx.NorMuon, (1e-3, 0.3), {}),
    "SOAP": (mx.SOAP, (3e-4, 0.1), {}),
    "Shampoo": (mx.Shampoo, (3e-4, 0.1), {}),
    "Schedule-free AdamW": (mx.ScheduleFreeAdamW, (3e-4, 0.1), {}),
}


def spaces(steps: int) -> dict[str, sweeps.SearchSpace]:
    """The space of each optimizer: the peak of its rate, over two and a half decades; all else as by default.

    The schedule-free one has a warm-up only, as it is meant to.
    """
    found = {}
    for name, (make, (low, high), options) in RATES.items():
        warmup = steps // 10
        if make is mx.ScheduleFreeAdamW:
            optimizer, hyperparameter = make(low, warmup_steps=warmup, **options), "learning_rate"
        else:
            schedule = mx.schedules.WarmupCosineDecay(0.0, low, warmup_steps=warmup, decay_steps=steps)
            optimizer, hyperparameter = make(schedule, **options), "learning_rate.peak_value"
        found[name] = sweeps.SearchSpace(optimizer, **{hyperparameter: sweeps.LogUniform(low, high)})
    return found


def state_bytes(optimizer: Any, params: Any) -> int:
    """The bytes of a state."""
    leaves = jax.tree.leaves(jax.eval_shape(optimizer.init, params))
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)


def row_of(comparison: sweeps.Comparison, name: str, params: Any, size: int) -> dict[str, Any]:
    """What is kept of one optimizer in one comparison."""
    row = next(row for row in comparison.table() if row["optimizer"] == name)
    return row | {
        "values": comparison.values[comparison.names.index(name)].tolist(),
        "expected": comparison.expected(name).tolist(),
        "state": state_bytes(comparison.optimizers[name], params) / size,
    }


def compared(task: Task, name: str, steps: int, folder: Path | None, **quick: Any) -> list[dict[str, Any]]:
    """The rows of one task at one length, the best first."""
    begin = time.perf_counter()
    chosen = spaces(steps)
    if quick:
        chosen = {k: chosen[k] for k in ("AdamW", "Muon")}
    options: dict[str, Any] = {"budget": BUDGET, "seeds": SEEDS} | quick
    comparison = sweeps.compare(
        chosen,
        task.train(steps),
        "valid",
        test="test",
        key=jax.random.key(0),
        folder=None if folder is None else folder / f"{name}-{steps}",
        **options,
    )
    print(f"\n{task.title}, {steps} steps, {seconds(time.perf_counter() - begin)}\n\n{comparison}", flush=True)
    params = task.params()
    size = sum(x.size for x in jax.tree.leaves(params))
    return [row_of(comparison, optimizer, params, size) for optimizer in comparison.names]


def steps_to_adamw(task: Task, steps: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How soon the test loss of each chosen optimizer is the last one of AdamW: the mean of four new seeds.

    Returns:
        the loss, and the number of steps of each optimizer, None if it isn't reached.
    """
    keys, curves = jax.random.split(jax.random.key(1), 4), {}
    for row in rows:
        name = row["optimizer"]
        if name not in FAMILY:
            continue
        space = spaces(steps)[name]
        (address,) = space.spaces
        optimizer = space.optimizer.replace(**{address: row[address]})
        train = task.train(steps, EVERY)
        losses = jax.jit(jax.vmap(lambda optimizer, key: train(optimizer, key)["test"], (None, 0)))(optimizer, keys)  # noqa: B023
        curves[name] = np.mean(losses, 0)
        print(f"{name}: {curves[name][-1]:.4g}", flush=True)
    wanted = float(curves["AdamW"][-1])
    first = {name: np.flatnonzero(curve <= wanted) for name, curve in curves.items()}
    return {"loss": wanted, "steps": {name: int((x[0] + 1) * EVERY) if len(x) else None for name, x in first.items()}}


def rounded(x: Any) -> Any:
    """All floats of the results with six digits."""
    if isinstance(x, dict):
        return {name: rounded(y) for name, y in x.items()}
    if isinstance(x, list):
        return [rounded(y) for y in x]
    return float(f"{x:.6g}") if isinstance(x, float) else x


def page(results: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "# Optimizers, compared",
        "",
        f"`benchmarks/optimizers.py` at commit {results['commit']}: {results['budget']} members of each optimizer are",
        "drawn from its space and trained with one seed; the best by the validation loss is trained with "
        f"{results['seeds']} new seeds.",
        "The interval is one of 95 % for the mean of their test losses. Optimizers whose difference may be zero share",
        "a rank. State is in bytes per parameter.",
    ]
    for task in results["tasks"]:
        for steps, rows in task["lengths"].items():
            cells = [
                (
                    row["optimizer"],
                    str(row["rank"]),
                    f"{row['test']:.4g}",
                    f"{row['test_low']:.4g} to {row['test_high']:.4g}",
                    f"{row['diverged']:.0%}",
                    f"{next(v for k, v in row.items() if k.startswith('learning_rate')):.2g}",
                    "yes" if row["edge"] else "",
                    f"{row['state']:.1f}",
                )
                for row in rows
            ]
            head = ("optimizer", "rank", "test loss", "interval", "diverged", "rate", "at the edge", "state")
            lines += ["", f"## {task['title']}, {steps} steps", "", table(head, cells)]
        if "reached" in task:
            loss, counts = task["reached"]["loss"], task["reached"]["steps"]
            cells = [
                (name, str(counts[name] or "not reached")) for name in sorted(counts, key=lambda x: counts[x] or 9**9)
            ]
            lines += [
                "",
                f"Steps until the test loss, the mean of four new seeds, is AdamW's after {steps}, {loss:.4g}:",
                "",
            ]
            lines += [table(("optimizer", "steps"), cells)]
    return "\n".join(lines) + "\n"


def commit() -> str:
    """The commit of the checkout."""
    return subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare optimizers on small trainings.")
    parser.add_argument("--folder", type=Path, help="where finished runs are kept")
    parser.add_argument("--only", nargs="*", help="names of tasks")
    parser.add_argument("--steps", action="store_true", help="only count the steps to AdamW's loss")
    parser.add_argument("--quick", action="store_true", help="two tiny comparisons; write nothing")
    arguments = parser.parse_args()
    if arguments.quick:
        for name, task in tasks().items():
            if name in ("cnn", "gpt"):
                compared(task, name, 5, None, budget=2, seeds=2, progress=False)
        return
    stored = HERE / "optimizers.json"
    results = {"commit": commit(), "budget": BUDGET, "seeds": SEEDS, "tasks": []}
    if arguments.steps:
        results = json.loads(stored.read_text(encoding="utf-8"))
    for name, task in tasks().items():
        if arguments.only is None or name in arguments.only:
            if not arguments.steps:
                lengths = {str(steps): compared(task, name, steps, arguments.folder) for steps in task.steps}
                results["tasks"].append({"name": name, "title": task.title, "lengths": lengths})
            if name in COUNTED:
                found = next(x for x in results["tasks"] if x["name"] == name)
                found["reached"] = steps_to_adamw(task, task.steps[-1], found["lengths"][str(task.steps[-1])])
    results = rounded(results)
    stored.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "OPTIMIZERS.md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
