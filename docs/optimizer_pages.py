"""Writes a page for every optimizer, with its pictures: a Sphinx extension.

The pages are made of the docstrings, the cards of the optimizers, `optimizers.toml`, `defaults_of_others.json`, the
ledgers of the documentation, and the runs of `optimizer_runs.py`. Git ignores them.
"""

import dataclasses
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import curves
import numpy as np
import optax
import optimizer_runs as runs
from optimizer_examples import NOTES, example

import modulax as mx

HERE = Path(__file__).parent
FOLDER = HERE / "api" / "optimizers"
OTHERS: dict[str, Any] = json.loads((HERE / "defaults_of_others.json").read_text(encoding="utf-8"))
# What isn't a number or a switch of the algorithm, or means the same everywhere.
NOT_COMPARED = {"mask", "key", "follow", "clip_value_fn", "base_optimizer", "hessian_diagonal_fn", "trust_ratio_mask"}
OPTAX_NAMES = {"OptimisticAdam": "optimistic_adam_v2"}
SECTIONS = ("Behavior", "Algorithm", "Example", "Defaults", "Citation")
# The compiler of many small programs that each run once; see noxfile.py.
QUICK_COMPILER = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


# --- Runs and pictures ---------------------------------------------------------------------------


def run_everything() -> dict[str, Any]:
    """What `optimizer_runs.py` writes; it runs only if a source has changed since."""
    sources = [*sorted((HERE.parent / "src").rglob("*.py")), HERE / "optimizer_runs.py", HERE / "optimizer_examples.py"]
    sources.append(HERE / "optimizers.toml")
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    output = FOLDER / f"runs-{digest[:16]}.json"
    if not output.exists():
        for old in FOLDER.glob("runs-*.json"):
            old.unlink()
        environment = os.environ | {"XLA_FLAGS": QUICK_COMPILER}
        subprocess.run([sys.executable, str(HERE / "optimizer_runs.py"), str(output)], check=True, env=environment)
    return json.loads(output.read_text(encoding="utf-8"))


def rounded(rate: float) -> str:
    return f"{rate:.1g}" if rate >= 1e-4 else f"{rate:.0e}"


def pictures(name: str, found: dict[str, Any]) -> dict[str, str]:
    """The three pictures of an optimizer, by the names of their files."""
    title = mx.get(name).__name__
    own = found[name]
    valleys = {
        "quadratic": (runs.quadratic, (-2.6, 2.6), (-2.2, 2.2), np.geomspace(0.01, 12, 9), (0.0, 0.0)),
        "rosenbrock": (runs.rosenbrock, (-1.9, 1.9), (-0.9, 2.3), np.geomspace(0.3, 200, 8), (1.0, 1.0)),
    }
    words = {"quadratic": "Quadratic, condition number 30", "rosenbrock": "Rosenbrock valley"}
    made = {
        f"{name}-{valley}.svg": curves.valley(*valleys[valley], own[valley]["path"], words[valley])
        for valley in valleys
    }
    kind = ", full batch" if name in runs.FULL_BATCH else ""
    colors = {other: color for other, color in (("sgd", curves.GREY), ("adamw", curves.BLUE)) if other != name}
    drawn = []
    for other, color in [*colors.items(), (name, curves.ORANGE)]:
        run = own["digits"] if other == name else found[f"{other}{kind}"]["digits"]
        rate = f" {rounded(run['rate'])}" if run["rate"] else ""
        points = [[i * runs.EVERY, loss] for i, loss in enumerate(run["loss"])]
        drawn.append((f"{mx.get(other).__name__}{rate}", color, points))
    last = runs.EVERY * (runs.ROUNDS - 1)
    return made | {f"{name}-digits.svg": curves.losses(drawn, last, f"Losses of {title}, AdamW and SGD on digits")}


# --- Sections of a page --------------------------------------------------------------------------


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def size(state_bytes: float) -> str:
    """Bytes per parameter, with as many digits as matter."""
    return f"{round(state_bytes, 2 if state_bytes < 1 else 1):g}"


def facts(card: Any) -> str:
    """The card of an optimizer, with links to the transforms that it is made of."""
    optimizer = runs.made(card.name)
    parts = optimizer.transform()
    names = [type(part).__name__ for part in getattr(parts, "parts", {"": parts}).values()]
    extra = [f"`{argument}`" for argument in card.extra] + ["per-example gradients"] * card.takes_examples
    rows = [
        ("Composed of", ", ".join(f"{{py:class}}`~modulax.{name}`" for name in names)),
        ("State", f"{size(card.state_bytes)} bytes per parameter, for a float32 matrix of 1024 × 1024"),
        ("Needs", ", ".join(extra) or "only gradients and parameters"),
        ("Complex parameters", "yes" if card.takes_complex else "no"),
        ("By name", f'`mx.get("{card.name}")`'),
    ]
    items = "\n".join(f"{name}\n: {text}\n" for name, text in rows)
    return f'<div class="optimizer-facts">\n\n{items}\n</div>\n'


def behavior(name: str, own: dict[str, Any]) -> str:
    cls = mx.get(name).__name__
    rates = [own[problem]["rate"] for problem in ("quadratic", "rosenbrock", "digits")]
    given = ", ".join(f"`{field}={value}`" for field, value in runs.ARGUMENTS.get(name, {}).items())
    chosen = (
        f"The learning rates, the best of a sweep, are {rounded(rates[0])}, {rounded(rates[1])} and "
        f"{rounded(rates[2])}; the other hyperparameters have their defaults{f', except {given}' if given else ''}."
        if rates[0]
        else f"All hyperparameters have their defaults{f', except {given}' if given else ''}."
    )
    batch = f"all {runs.IMAGES} images" if name in runs.FULL_BATCH else f"{runs.BATCH} images"
    alt = f"Path of {cls} on"
    return f"""\
<div class="optimizer-pictures">

![{alt} a rotated quadratic of condition number 30](pictures/{name}-quadratic.svg)
![{alt} Rosenbrock's valley](pictures/{name}-rosenbrock.svg)
![Losses of {cls}, AdamW and SGD on digits](pictures/{name}-digits.svg)

</div>

Above: {runs.STEPS} steps on two functions of two variables, from the circle to the minimum at the cross. Below: the
cross-entropy of a small network on {runs.IMAGES} images of digits, in batches of {batch}; the numbers are learning
rates. {chosen}
"""


def written(value: Any) -> str:
    """A default, as a user writes it."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return f"{value}"
    if isinstance(value, tuple | list):
        if len(value) == 1 and isinstance(value[0], tuple | list):  # one row of coefficients for all steps
            return written(value[0])
        return f"({', '.join(map(written, value))})"
    if isinstance(value, int | float | np.generic):
        return f"{float(value):g}".replace("e-0", "e-")
    return type(value).__name__


def ours(field: Any) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return written(field.default_factory())
    return "required" if field.default is dataclasses.MISSING else written(field.default)


def optax_defaults(cls: type) -> tuple[str, dict[str, str]]:
    """The function of optax, and its defaults, read from its signature."""
    word = OPTAX_NAMES.get(cls.__name__, cls.__name__).replace("_", "").lower()
    for module, prefix in ((optax.contrib, "contrib."), (optax, "")):
        for name, function in vars(module).items():
            if name.replace("_", "").lower() == word and inspect.isroutine(function):
                parameters = inspect.signature(function).parameters.values()
                given = {p.name: "required" if p.default is p.empty else written(p.default) for p in parameters}
                return f"optax.{prefix}{name}", given
    return "", {}


def defaults(cls: type) -> str:
    """Our defaults next to those of the authors, optax, PyTorch and Keras; what differs from ours is bold."""
    name = cls.__name__
    authors = dict(NOTES["optimizer"][name].get("authors", {}))
    source = authors.pop("source", "")
    function, there = optax_defaults(cls)
    columns = {"authors": {field: written(value) for field, value in authors.items()}, "optax": there}
    sources = [f"authors: {source}"] if source else []
    sources += [f"optax {optax.__version__}: `{function}`"] if function else []
    missing = [] if function else ["optax"]
    for library, title in (("torch", "PyTorch"), ("keras", "Keras")):
        record = OTHERS[library]["optimizers"].get(name)
        columns[title] = {field: written(value) for field, value in record["defaults"].items()} if record else {}
        missing += [] if record else [title]
        sources += [f"{title} {OTHERS[library]['version']}: `{record['name']}`"] if record else []
    columns = {title: column for title, column in columns.items() if column}
    rows = []
    for field in dataclasses.fields(cls):
        if not field.init or field.name in NOT_COMPARED or field.name.endswith("dtype"):
            continue
        default = ours(field)
        theirs = [column.get(field.name, "") for column in columns.values()]
        required = default == "required"
        cells = [f"**{x}**" if x and x != default and x != "required" and not required else x for x in theirs]
        rows.append((f"`{field.name}`", default, *cells))
    sentences = f"Differences from modulax are bold. Sources: {'; '.join(sources)}." if sources else ""
    if missing:
        sentences += f" {_listed(missing)} {'does' if len(missing) == 1 else 'do'} not have this optimizer."
    return f"{table(('hyperparameter', 'modulax', *columns), rows)}\n\n{sentences.strip()}\n"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def rows_of(page: str) -> Iterator[dict[str, str]]:
    """The rows of the tables of a page, by the heads of their columns."""
    head: list[str] = []
    for line in (HERE / page).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            head = []
            continue
        cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not head:
            head = cells
        elif set(line) - set("|- "):
            yield dict(zip(head, cells, strict=True))


def ledgers(name: str) -> str:
    """What an optimizer was compared with, and where it departs from optax and from the authors' code."""
    named = re.compile(rf"(?<![\w.]){name}(?!\w)")
    items = []
    for row in rows_of("released_code.md"):
        if named.search(row.get("modulax", "")) and "version or commit" in row:
            code = f"{row['released code']} {row['version or commit']}"
            settings = f", with {row['settings']}" if row["settings"] else ""
            items.append(
                f"**Released code**: the same trajectory as {code}{settings}, to 1e-12 after every step ([Released "
                "code](../../released_code.md))."
            )
        elif "distance" in row and named.match(row["what"]):
            items.append(difference(row, "released code"))
    for row in rows_of("differences_from_optax.md"):
        if named.search(row["what"]):
            items.append(difference(row, f"optax {optax.__version__}"))
    if not items:
        return ""
    rest = "[Differences from optax](../../differences_from_optax.md) lists those that concern all optimizers."
    return "## Differences\n\n" + "\n".join(f"* {item}" for item in items) + f"\n\n{rest}\n\n"


def difference(row: dict[str, str], other: str) -> str:
    """A row of a ledger as a sentence."""
    ours, theirs, why = (row[key].rstrip(".") for key in ("modulax", other, "why"))
    return f"**{row['what']}**. modulax: {ours}. {other}: {theirs}. Reason: {why}."


def page(name: str, own: dict[str, Any]) -> str:
    card = mx.card(name)
    cls = card.optimizer
    note = NOTES["optimizer"][cls.__name__]
    return f"""\
# {cls.__name__}

{note["when"]}

{facts(card)}
## Behavior

{behavior(name, own)}
## Algorithm

```{{eval-rst}}
.. autoclass:: modulax.{cls.__name__}
```

## Example

```python
{example(cls.__name__)}```

## Defaults

{defaults(cls)}
{ledgers(cls.__name__)}## Citation

```bibtex
{mx.citation(runs.made(name))}
```
"""


# --- The extension -------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    """Writes a file that has changed; Sphinx reads only those again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_pages(app: Any, config: Any) -> None:
    """Writes all pages and pictures, and checks that none lacks a part."""
    del app
    if "_static" not in config.html_static_path:
        config.html_static_path = [*config.html_static_path, "_static"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = run_everything()
    names = mx.available()
    written = set()
    for name in names:
        text = page(name, found[name])
        lacking = [section for section in SECTIONS if f"\n## {section}\n" not in text]
        assert not lacking, f"the page of {name} has no section {lacking}"
        write(FOLDER / f"{name}.md", text)
        drawn = pictures(name, found)
        assert all(f"(pictures/{file})" in text for file in drawn), f"the page of {name} shows other pictures"
        for file, svg in drawn.items():
            write(FOLDER / "pictures" / file, svg)
        written |= {f"{name}.md", *drawn}
    for file in [*FOLDER.glob("*.md"), *(FOLDER / "pictures").glob("*.svg")]:
        if file.name not in written:
            file.unlink()


def setup(app: Any) -> dict[str, bool]:
    app.connect("config-inited", write_pages)
    app.add_css_file("pictures.css")
    app.add_js_file("sortable.js")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
