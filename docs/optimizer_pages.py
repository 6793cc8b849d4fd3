"""Writes a page for every optimizer, before Sphinx reads the pages.

They are made by `optimizer_page.md.jinja`, which extends the template of `class_pages.py`, of the docstrings, the cards
of the optimizers, `optimizers.toml`, `defaults_of_others.json`, the ledgers of the documentation, and the runs of
`optimizer_runs.py`. Git ignores them.
"""

import dataclasses
import inspect
import json
import operator
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optax
import optimizer_runs as runs
from class_pages import directive
from optimizer_examples import HERE, NOTES, TEMPLATES, example

import modulax as mx

FOLDER = HERE / "api" / "optimizers"
OTHERS: dict[str, Any] = json.loads((HERE / "defaults_of_others.json").read_text(encoding="utf-8"))
# What isn't a number or a switch of the algorithm, or means the same everywhere.
NOT_COMPARED = {"mask", "key", "follow", "clip_value_fn", "base_optimizer", "hessian_diagonal_fn", "trust_ratio_mask"}
OPTAX_NAMES = {"OptimisticAdam": "optimistic_adam_v2"}


def facts(card: Any) -> dict[str, str]:
    """The card of an optimizer, with links to the transforms that it is made of."""
    parts = runs.made(card.name).transform()
    names = [type(part).__name__ for part in getattr(parts, "parts", {"": parts}).values()]
    extra = [f"`{argument}`" for argument in card.extra] + ["per-example gradients"] * card.takes_examples
    size = round(card.state_bytes, 2 if card.state_bytes < 1 else 1)
    return {
        "Composed of": ", ".join(f"{{py:class}}`~modulax.{name}`" for name in names),
        "State": f"{size:g} bytes per parameter, for a float32 matrix of 1024 × 1024",
        "Needs": ", ".join(extra) or "only gradients and parameters",
        "Complex parameters": "yes" if card.takes_complex else "no",
        "By name": f'`mx.get("{card.name}")`',
    }


def written(value: Any) -> str:
    """A default, as a user writes it."""
    if isinstance(value, tuple | list):
        if len(value) == 1 and isinstance(value[0], tuple | list):  # one row of coefficients for all steps
            return written(value[0])
        return f"({', '.join(map(written, value))})"
    if isinstance(value, int | float | np.generic) and not isinstance(value, bool):
        return f"{float(value):g}".replace("e-0", "e-")
    return f"{value}" if value is None or isinstance(value, bool | str) else type(value).__name__


def our_defaults(cls: type) -> dict[str, str]:
    defaults = {}
    for field in dataclasses.fields(cls):
        if field.init and field.name not in NOT_COMPARED and not field.name.endswith("dtype"):
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            defaults[field.name] = "required" if default is dataclasses.MISSING else written(default)
    return defaults


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


def defaults(cls: type) -> dict[str, Any]:
    """Our defaults, those of the authors, optax, PyTorch and Keras, where these are from, and who has none."""
    authors = dict(NOTES["optimizer"][cls.__name__].get("authors", {}))
    found = [("authors", "authors", authors.pop("source", ""), {x: written(value) for x, value in authors.items()})]
    function, there = optax_defaults(cls)
    found.append(("optax", f"optax {optax.__version__}", function and f"`{function}`", there))
    for title, library in (("PyTorch", OTHERS["torch"]), ("Keras", OTHERS["keras"])):
        record = library["optimizers"].get(cls.__name__, {"name": "", "defaults": {}})
        values = {field: written(*theirs.values()) for field, theirs in record["defaults"].items()}
        found.append((title, f"{title} {library['version']}", record["name"] and f"`{record['name']}`", values))
    return {
        "defaults": our_defaults(cls),
        "columns": {title: values for title, _, _, values in found if values},
        "sources": [f"{version}: {source}" for _, version, source, _ in found if source],
        "missing": [title for title, _, source, _ in found[1:] if not source],
    }


def compared(theirs: str, ours: str) -> str:
    """A default of another library; what differs from ours is bold."""
    return f"**{theirs}**" if theirs not in ("", ours, "required") and ours != "required" else theirs


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def rows_of(page: str) -> Iterator[dict[str, str]]:
    """The rows of the tables of a page, by the heads of their columns."""
    head: list[str] = []
    for line in (HERE / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|") or not head:
            head = cells
        elif set(line) - set("|- "):
            yield dict(zip(head, cells, strict=True))


def ledgers(name: str) -> dict[str, Any]:
    """What an optimizer was compared with, and where it departs from optax and from the authors' code."""
    named = re.compile(rf"(?<![\w.]){name}(?!\w)")
    of_released, of_optax = list(rows_of("released_code.md")), rows_of("differences_from_optax.md")
    departures = [row for row in of_released if "distance" in row and named.match(row["what"])]
    differences = [(row, "released code") for row in departures]
    differences += [(row, f"optax {optax.__version__}") for row in of_optax if named.search(row["what"])]
    released = [row for row in of_released if "version or commit" in row and named.search(row["modulax"])]
    return {"released": released, "differences": differences}


def classes_in(module: str) -> list[type]:
    """The classes that a module defines; none if there is no such module."""
    names = vars(sys.modules[module]) if module in sys.modules else {}
    return [x for x in names.values() if inspect.isclass(x) and x.__module__ == module]


def rule_of(name: str) -> str:
    """The methods of the rule on one matrix of an optimizer; nothing for any other one."""
    parts = getattr(runs.made(name).transform(), "parts", {}).values()
    classes = [type(part) for part in parts if isinstance(part, mx.AbstractMatrixwise)]
    names = {name for name in vars(mx.AbstractMatrixwise) if name[0] != "_"} - {"init", "update"}
    methods = [x for cls in classes for name, x in vars(cls).items() if name in names and inspect.isfunction(x)]
    return "\n".join(textwrap.dedent(inspect.getsource(method)) for method in methods)


def reference(name: str) -> str:
    """The code of an optimizer in plain JAX, from `docs/references`; nothing if there is none."""
    file = HERE / "references" / f"{'adamw' if name == 'adam' else name}.py"
    return file.read_text(encoding="utf-8").replace("  # fmt: skip", "") if file.exists() else ""


def companions(cls: type) -> list[str]:
    """The transforms and the states that the page of an optimizer documents too: those in its file.

    Not those that are on a page of `docs/api/`.
    """
    classes = classes_in(cls.__module__)
    optimizers = [x for x in classes if issubclass(x, mx.AbstractOptimizer) and not inspect.isabstract(x)]
    if cls is not optimizers[0]:
        return []  # on the page of the first one
    public = {*operator.attrgetter("__all__")(mx), *dir(mx.states)}
    on_pages = {word for file in (HERE / "api").glob("*.md") for word in re.findall(r"[\w.]+", file.read_text("utf-8"))}
    others = [x for x in classes if x not in optimizers and x.__name__ in public]
    others = [x for x in others if not {f"modulax.{x.__name__}", f"modulax.states.{x.__name__}"} & on_pages]
    names = [f"states.{x.__name__}" if issubclass(x, mx.AbstractState) else x.__name__ for x in others]
    return sorted(names, key=lambda name: name.startswith("states."))


def page(name: str, rates: dict[str, float | None]) -> str:
    card = mx.card(name)
    cls = card.optimizer.__name__
    return TEMPLATES.get_template("optimizer_page.md.jinja").render(
        name=name,
        cls=cls,
        summary=card.summary,
        note=NOTES["optimizer"][cls],
        facts=facts(card),
        directives=[directive(f"modulax.{x}", []) for x in (cls, *companions(card.optimizer))],
        runs=runs,
        rates=rates,
        given=", ".join(f"`{field}={value}`" for field, value in runs.ARGUMENTS.get(name, {}).items()),
        rule=rule_of(name),
        reference=reference(name),
        example=example(cls),
        citation=mx.citation(runs.made(name)),
        **defaults(card.optimizer),
        **ledgers(cls),
    )


TEMPLATES.filters |= {"rate": runs.rounded, "compared": compared, "listed": listed}


def write(rates: dict[str, dict[str, float | None]]) -> None:
    """Write all pages, given the learning rates of the pictures."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for name in mx.available():
        (FOLDER / f"{name}.md").write_text(page(name, rates[name]), encoding="utf-8")
