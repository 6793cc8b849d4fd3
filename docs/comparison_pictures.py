"""The comparisons of optimizers, out of benchmarks/optimizers.json: tables, and a picture for each training."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "optimizers.json"


def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def comparisons() -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """The training, the number of steps, and the row of each optimizer by its name."""
    for task in results()["tasks"]:
        for steps, rows in task["lengths"].items():
            yield task, steps, {row["optimizer"]: row for row in rows}


def summary() -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table: the rank of each optimizer in each comparison, and its bytes of state."""
    columns = list(comparisons())
    head = ["optimizer", *(f"{task['name']}, {steps}" for task, steps, _ in columns), "state"]
    rows = []
    for name, first in columns[0][2].items():
        ranks = [f"**{x}**" if x == "1" else x for x in (str(rows[name]["rank"]) for _, _, rows in columns)]
        rows.append([name, *ranks, f"{first['state']:.1f}"])
    return head, sorted(rows)


def steps_to_adamw() -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table: the share of AdamW's steps after which each optimizer has its last loss."""
    tasks = [task for task in results()["tasks"] if "reached" in task]
    head, rows = ["optimizer"], {row["optimizer"]: [row["optimizer"]] for row in tasks[0]["reached"]["optimizers"]}
    for task in tasks:
        steps = max(map(int, task["lengths"]))
        head += [f"{task['name']}, {steps}", "each seed"]
        for row in task["reached"]["optimizers"]:
            of_mean, *of_seeds = (f"{x / steps:.0%}" if x else "–" for x in (row["steps"], *row["of_seeds"]))
            rows[row["optimizer"]] += [of_mean, ", ".join(of_seeds)]
    return head, [*rows.values()]


def draw(folder: Path) -> None:
    """For each training, the test losses of the new seeds, with their means and intervals; the best ones in color."""
    import drawing
    from matplotlib.ticker import MaxNLocator, NullLocator

    for task in results()["tasks"]:
        file = folder / f"comparison_{task['name']}.svg"
        with drawing.picture(file, task["title"], 740, 270, panels=2) as panels:
            for axes, (steps, rows) in zip(panels, task["lengths"].items(), strict=True):
                for i, row in enumerate(rows):
                    color = drawing.ORANGE if row["rank"] == 1 else drawing.BLUE
                    axes.plot(row["values"], [i] * len(row["values"]), ".", color=drawing.GREY, alpha=0.5, markersize=3)
                    axes.plot([row["test_low"], row["test_high"]], [i, i], color=color, linewidth=2)
                    axes.plot(row["test"], i, "o", color=color, markersize=4)
                axes.set_yticks(range(len(rows)), [row["optimizer"] for row in rows])
                axes.invert_yaxis()
                axes.grid(axis="x")
                axes.set(xscale="log", xlabel="test loss")
                axes.xaxis.set_major_locator(MaxNLocator(4))
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.set_minor_locator(NullLocator())
                axes.set_title(f"{steps} steps", loc="left", fontsize=9, fontweight="bold")
