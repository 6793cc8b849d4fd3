"""Compare 14 optimizers on four small trainings of two lengths each, for "Choosing an optimizer".

    python benchmarks/optimizers.py [--folder runs] [--only gpt ...] [--steps [SOAP ...]] [--quick]

Each optimizer is tuned in the space that `spaces` declares, with the same budget and the same schedule, a warm-up and a
cosine; more seeds decide among the best four, and the chosen one is trained with new seeds: `modulax.sweeps.compare`.
Tuned are the rate, the decay of the second moment, and weight decay, as far as an optimizer has them. On a CNN and a
GPT, those that precondition matrices, and AdamW with their `b2`, are then trained with more seeds, to count the steps
to AdamW's last loss. Writes the results of all runs to `benchmarks/optimizers.json`, and the tables to
`benchmarks/OPTIMIZERS.md`. `--only` keeps the stored results of the other trainings. With `--folder`, a comparison that
was interrupted goes on. `--steps` keeps the stored comparisons and only counts, for some or all of these optimizers.
`--quick` makes two tiny comparisons and writes nothing.
"""

import argparse
import json
import math
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
STORED = HERE / "optimizers.json"
BUDGET, FINALISTS, SEEDS = 32, 4, 8
B2 = sweeps.OneMinus(sweeps.LogUniform(1e-3, 0.2))
DECAY = sweeps.LogUniform(1e-4, 1.0)
ADAM = {"b2": B2, "weight_decay": DECAY}
# What makes each optimizer, the range of its rate, other arguments, and the spaces of what is tuned with the rate.
SPACES: dict[str, tuple[Any, tuple[float, float], dict[str, Any], dict[str, Any]]] = {
    "SGD": (mx.SGD, (3e-3, 1.0), {"momentum": 0.9, "nesterov": True}, {"momentum": B2}),
    "AdamW": (mx.AdamW, (3e-4, 0.1), {}, ADAM),
    "Lion": (mx.Lion, (3e-5, 1e-2), {}, ADAM),
    "Adan": (mx.Adan, (3e-4, 0.1), {}, {"b3": B2, "weight_decay": DECAY}),
    "ADOPT": (mx.ADOPT, (3e-4, 0.1), {}, {"b2": sweeps.OneMinus(sweeps.LogUniform(1e-4, 0.2))}),
    "AdEMAMix": (mx.AdEMAMix, (3e-4, 0.1), {}, ADAM),
    "Adafactor": (mx.Adafactor, (1e-3, 0.3), {}, {"decay_rate": sweeps.Uniform(0.5, 0.95)}),
    "LAMB": (mx.LAMB, (1e-3, 0.3), {}, ADAM),
    "Prodigy": (mx.Prodigy, (0.1, 10.0), {}, {"betas.1": B2, "weight_decay": DECAY}),
    "Muon": (mx.Muon, (1e-3, 0.3), {}, {"adam_b2": B2, "weight_decay": DECAY}),
    "NorMuon": (mx.NorMuon, (1e-3, 0.3), {}, ADAM | {"adam_learning_rate": sweeps.LogUniform(3e-4, 0.03)}),
    "SOAP": (mx.SOAP, (3e-4, 0.1), {}, ADAM),
    "Shampoo": (mx.Shampoo, (1e-2, 3.0), {}, {"weight_decay": DECAY}),
    "Schedule-free AdamW": (mx.ScheduleFreeAdamW, (3e-4, 0.1), {}, ADAM),
}
# The steps to AdamW's loss: of these trainings and optimizers, by evaluations after every so many steps.
COUNTED, EVERY, NEW_SEEDS = ("cnn", "gpt"), 10, 4
OTHERS: dict[str, tuple[Any, tuple[float, float], dict[str, Any], dict[str, Any]]] = {
    "AdamW, b2=0.95": (mx.AdamW, (3e-4, 0.1), {"b2": 0.95}, {}),
    "KLShampoo": (mx.KLShampoo, (3e-3, 1.0), {}, {"weight_decay": DECAY}),
    "Kron": (mx.Kron, (3e-4, 0.1), {}, {"weight_decay": DECAY}),
    "Scion": (mx.Scion, (3e-5, 1e-2), {}, {}),
}
FAMILY = ("AdamW", "Muon", "NorMuon", "SOAP", "Shampoo", *OTHERS)


def spaces(steps: int, declared: dict[str, Any]) -> dict[str, sweeps.SearchSpace]:
    """The space of each optimizer: the peak of its rate, over two and a half decades, and what is tuned with it.

    The schedule-free one has a warm-up only, as it is meant to.
    """
    found = {}
    for name, (make, (low, high), options, others) in declared.items():
        warmup = steps // 10
        if make is mx.ScheduleFreeAdamW:
            optimizer, hyperparameter = make(low, warmup_steps=warmup, **options), "learning_rate"
        else:
            schedule = mx.schedules.WarmupCosineDecay(0.0, low, warmup_steps=warmup, decay_steps=steps)
            optimizer, hyperparameter = make(schedule, **options), "learning_rate.peak_value"
        found[name] = sweeps.SearchSpace(optimizer, **{hyperparameter: sweeps.LogUniform(low, high)} | others)
    return found


def state_bytes(optimizer: Any, params: Any) -> int:
    """The bytes of a state."""
    leaves = jax.tree.leaves(jax.eval_shape(optimizer.init, params))
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in leaves)


def row_of(comparison: sweeps.Comparison, name: str, params: Any, size: int) -> dict[str, Any]:
    """What is kept of one optimizer in one comparison."""
    row = next(row for row in comparison.table() if row["optimizer"] == name)
    return row | {
        "chosen": {path: row[path] for path in comparison.tuned[name]},
        "values": comparison.values[comparison.names.index(name)].tolist(),
        "expected": comparison.expected(name).tolist(),
        "state": state_bytes(comparison.optimizers[name], params) / size,
    }


def compared(
    task: Task, declared: dict[str, Any], steps: int, folder: Path | None, **options: Any
) -> list[dict[str, Any]]:
    """The rows of the optimizers with these spaces on one task at one length, the best first."""
    begin = time.perf_counter()
    settings: dict[str, Any] = {"budget": BUDGET, "finalists": FINALISTS, "seeds": SEEDS} | options
    comparison = sweeps.compare(
        spaces(steps, declared),
        task.train(steps),
        "valid",
        test="test",
        key=jax.random.key(0),
        folder=folder,
        **settings,
    )
    print(f"\n{task.title}, {steps} steps, {seconds(time.perf_counter() - begin)}\n\n{comparison}", flush=True)
    params = task.params()
    size = sum(x.size for x in jax.tree.leaves(params))
    return [row_of(comparison, optimizer, params, size) for optimizer in comparison.names]


def count(task: Task, found: dict[str, Any], name: str, folder: Path | None) -> None:
    """Put into the results of a task how soon the test loss of an optimizer is at most AdamW's last one.

    The tuned optimizer is trained with new seeds. The steps are those of the mean of their losses, and those of each
    seed to AdamW's loss with the same one; None where it isn't reached. AdamW comes first.
    """
    steps = task.steps[-1]
    row = next((x for x in found["lengths"][str(steps)] if x["optimizer"] == name), None)
    if row is None:
        (row,) = compared(task, {name: OTHERS[name]}, steps, folder)
    space = spaces(steps, SPACES | OTHERS)[name]
    optimizer, train = space.optimizer.replace(**chosen(row)), task.train(steps, EVERY)
    # One seed after the other: batches of decompositions are no faster on a CPU.
    curve = jax.jit(lambda key: train(optimizer, key)["test"])
    seeds = np.stack([curve(key) for key in jax.random.split(jax.random.key(1), NEW_SEEDS)])
    curves = [seeds.mean(axis=0), *seeds]
    if name == "AdamW":
        found["reached"] = {"commit": commit(), "losses": [float(x[-1]) for x in curves], "optimizers": []}
    of_mean, *of_seeds = map(first_below, found["reached"]["losses"], curves)
    result = {"chosen": chosen(row), "test": float(curves[0][-1]), "steps": of_mean, "of_seeds": of_seeds}
    print(f"{task.title}, {name}: {result}", flush=True)
    others = [x for x in found["reached"]["optimizers"] if x["optimizer"] != name]
    found["reached"]["optimizers"] = [*others, {"optimizer": name} | result]


def first_below(loss: float, curve: np.ndarray) -> int | None:
    """The first step at which a loss is at most a number, None if there is none."""
    places = np.flatnonzero(curve <= loss)
    return EVERY * (int(places[0]) + 1) if len(places) else None


def rounded(x: Any) -> Any:
    """All floats of the results with six digits."""
    if isinstance(x, dict):
        return {name: rounded(y) for name, y in x.items()}
    if isinstance(x, list):
        return [rounded(y) for y in x]
    return float(f"{x:.6g}") if isinstance(x, float) else x


def reached(found: dict[str, Any], steps: int) -> list[str]:
    """The table of the steps to AdamW's loss."""
    cells = [
        (
            x["optimizer"],
            str(x["steps"] or "–"),
            f"{x['steps'] / steps:.0%}" if x["steps"] else "",
            ", ".join(str(y or "–") for y in x["of_seeds"]),
            f"{x['test']:.4g}",
            chosen_text(x),
        )
        for x in sorted(found["optimizers"], key=lambda x: x["steps"] or math.inf)
    ]
    head = ("optimizer", "steps", "of AdamW's", "of each seed", f"loss after {steps}", "chosen")
    return [
        f"Steps until the test loss is at most AdamW's after {steps}, {found['losses'][0]:.4g}: of the mean of",
        f"{NEW_SEEDS} more seeds, and of each of them to AdamW's loss with the same seed. The loss is computed every",
        f"{EVERY} steps. At commit {found['commit']}.",
        "",
        table(head, cells),
    ]


def page(results: dict[str, Any]) -> str:
    """The tables."""
    lines = [
        "# Optimizers, compared",
        "",
        "`benchmarks/optimizers.py`: members of each optimizer are drawn from its space and trained with one seed. The",
        f"best by the validation loss, or the best of some finalists after {results['seeds']} more seeds, is trained",
        f"with {results['seeds']} new seeds. The interval is one of 95 % for the mean of their test losses, and that",
        "of the difference for the mean difference from the first row with the same seed. Optimizers whose difference",
        "may be zero share a rank. State is in bytes per parameter.",
    ]
    for task in results["tasks"]:
        of_one = results | task
        for steps, rows in task["lengths"].items():
            cells = [
                (
                    row["optimizer"],
                    str(row["rank"]),
                    f"{row['test']:.4g}",
                    f"{row['test_low']:.4g} to {row['test_high']:.4g}",
                    f"{row['difference_low']:.2g} to {row['difference_high']:.2g}" if row is not rows[0] else "",
                    f"{row['diverged']:.0%}",
                    chosen_text(row),
                    ", ".join(short(path) for path in row["edge"].split(", ") if path),
                    f"{row['state']:.1f}",
                )
                for row in rows
            ]
            head = ("optimizer", "rank", "test loss", "interval", "difference", "diverged", "chosen", "at the edge")
            finalists = f", {of_one['finalists']} finalists" if "finalists" in of_one else ""
            how = f"{of_one['budget']} members of each optimizer{finalists}, at commit {of_one['commit']}."
            lines += ["", f"## {task['title']}, {steps} steps", "", how, "", table((*head, "state"), cells)]
        if "reached" in task:
            lines += ["", *reached(task["reached"], max(map(int, task["lengths"])))]
    return "\n".join(lines) + "\n"


def chosen(row: dict[str, Any]) -> dict[str, float]:
    """The hyperparameters that were chosen, by their paths; of rows of earlier versions, the rate."""
    if "rate" in row:
        return {"learning_rate": row["rate"]}
    return row.get("chosen", {path: x for path, x in row.items() if path.startswith("learning_rate")})


def short(path: str) -> str:
    """The name of a hyperparameter in a table."""
    return "rate" if path.startswith("learning_rate") else path


def chosen_text(row: dict[str, Any]) -> str:
    digits = {path: 4 if 0.9 < x < 1 else 2 for path, x in chosen(row).items()}  # of decays near one, more
    return ", ".join(f"{short(path)}={x:.{digits[path]}g}" for path, x in chosen(row).items())


def commit() -> str:
    """The commit of the checkout."""
    return subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True
    ).stdout.strip()


def store(results: dict[str, Any]) -> None:
    """Write the results and their page."""
    results = rounded(results)
    STORED.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "OPTIMIZERS.md").write_text(page(results), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare optimizers on small trainings.")
    parser.add_argument("--folder", type=Path, help="where finished runs are kept")
    parser.add_argument("--only", nargs="*", help="names of tasks")
    parser.add_argument("--steps", nargs="*", help="only count the steps to AdamW's loss, of these optimizers")
    parser.add_argument("--quick", action="store_true", help="two tiny comparisons; write nothing")
    arguments = parser.parse_args()
    if arguments.quick:
        for name in COUNTED:
            quick = {"budget": 2, "finalists": 1, "seeds": 2, "progress": False}
            compared(tasks()[name], {k: SPACES[k] for k in ("AdamW", "Muon")}, 5, None, **quick)
        return
    results = json.loads(STORED.read_text(encoding="utf-8"))
    for name, task in tasks().items():
        if arguments.only is not None and name not in arguments.only:
            continue
        if arguments.steps is None:
            folders = {n: arguments.folder and arguments.folder / f"{name}-{n}" for n in task.steps}
            lengths = {str(n): compared(task, SPACES, n, folders[n]) for n in task.steps}
            how = {"commit": commit(), "budget": BUDGET, "finalists": FINALISTS}
            new = {"name": name, "title": task.title, **how, "lengths": lengths}
            results["tasks"] = [new if old["name"] == name else old for old in results["tasks"]]
        if name in COUNTED:
            found = next(x for x in results["tasks"] if x["name"] == name)
            for optimizer in arguments.steps or FAMILY:
                folder = arguments.folder and arguments.folder / f"{name}-{optimizer}"
                count(task, found, optimizer, folder)
                store(results)
        store(results)


if __name__ == "__main__":
    main()
