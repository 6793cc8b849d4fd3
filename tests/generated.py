"""The generated parts of the documentation, and the list of public names and their arguments.

`python -m tests.generated` writes all of them; a test fails where one is out of date.
"""

import dataclasses
import inspect
import re
import tomllib
import types
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import modulax
import modulax.checkpoint
import modulax.linen
import modulax.nnx
import modulax.planning
import modulax.sweeps
import modulax.testing
from docs.comparison_pictures import steps_to_adamw, summary
from docs.pictures import on_device, table_of
from modulax.testing._fields import fields_of, with_optional_numbers
from modulax.tree._paths import named_leaves

from . import exports, field_docs
from .differences import Difference
from .functions import FUNCTION_DIFFERENCES
from .instances import TRANSFORMS
from .oracles.ledger import AROUND, CURVATURE, DEPARTURES, FIRST_ORDER, RELEASED, Released
from .vocabulary import followers, rows

ROOT = Path(__file__).parents[1]
PUBLIC_NAMES = Path(__file__).parent / "public_names.txt"
STATE_DTYPES = Path(__file__).parent / "state_dtypes.txt"
# What `import modulax` brings, and the edges, which are imported by themselves.
PLACES = [
    x
    for name, x in inspect.getmembers(modulax)
    # The names of `compat` are those of optax.
    if inspect.ismodule(x) and not name.startswith("_") and x.__name__ == f"modulax.{name}" != "modulax.compat"
]
MODULES = (modulax, *PLACES, modulax.sweeps.writers)
BEGIN, END = "<!-- generated: python -m tests.generated -->", "<!-- end -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def notes() -> dict[str, Any]:
    """The groups of the optimizers, and what their pages say beyond their docstrings."""
    found = tomllib.loads((ROOT / "docs" / "optimizers.toml").read_text(encoding="utf-8"))
    for group in found["group"]:
        group["names"] = [name for name, note in found["optimizer"].items() if note["group"] == group["title"]]
    return found


def link(name: str) -> str:
    """A link to the page of an optimizer."""
    return f"[`{name}`](#modulax.{name})"


def paper(optimizer: type) -> str:
    """The first publication in the docstring of an optimizer, with a link."""
    references = (optimizer.__doc__ or "").partition("References:")[2]
    found = re.search(r"([^\[;]+),\s+\[[^\]]+\]\((\S+)\),\s+(\d{4})", references)
    assert found, f"`{optimizer.__name__}` has no reference"
    authors = " ".join(found[1].split())
    names = re.split(r", | and ", authors)
    return f"[{authors if len(names) < 3 else f'{names[0]} et al.'} {found[3]}]({found[2]})"


def optimizers() -> str:
    """A row for every optimizer, from its card, in groups."""
    rows = []
    for group in notes()["group"]:
        for name in group["names"]:
            card = modulax.card(name.lower())
            needs = [f"`{argument}`" for argument in card.extra] + ["examples"] * card.takes_examples
            needs += [] if card.takes_complex else ["real parameters"]
            bytes_ = f"{round(card.state_bytes, 2 if card.state_bytes < 1 else 1):g}"
            rows.append((group["title"], link(name), card.summary, bytes_, ", ".join(needs), paper(card.optimizer)))
    head = ("group", "optimizer", "what it does", "bytes", "needs", "paper")
    return f'<div class="sortable-table">\n\n{table(head, rows)}\n\n</div>\n'


def compared() -> str:
    """The ranks of the optimizers in the comparisons."""
    return f'<div class="sortable-table">\n\n{table(*summary())}\n\n</div>\n'


def sooner() -> str:
    """The share of AdamW's steps that optimizers of matrices need for its loss."""
    return table(*steps_to_adamw())


def groups() -> str:
    """A line for every group of optimizers: what they are good for."""
    return "\n".join(f"* **{group['title']}**: {group['text']}" for group in notes()["group"])


def optimizers_by_group() -> str:
    """A row for every group of optimizers: the names."""
    rows = [(group["title"], ", ".join(map(link, group["names"]))) for group in notes()["group"]]
    return table(("group", "optimizers"), rows)


def differences(from_optax: Sequence[Difference]) -> str:
    """A row for every deliberate difference from optax."""
    columns = [
        ("what", [d.subject for d in from_optax]),
        ("modulax", [d.ours for d in from_optax]),
        ("optax 0.2.8", [d.optax for d in from_optax]),
        ("why", [d.why for d in from_optax]),
        ("reference", [d.reference for d in from_optax]),
        ("test", [f"`{d.test}`" for d in from_optax]),
    ]
    head, cells = zip(*((name, column) for name, column in columns if any(column)), strict=True)
    return table(head, sorted(zip(*cells, strict=True)))


def released(rows_of: Sequence[Released] = RELEASED) -> str:
    """A row for every released code that modulax is compared with."""
    rows = [(", ".join(f"`{name}`" for name in r.names.split(", ")), r.source, r.version, r.settings) for r in rows_of]
    return table(("modulax", "released code", "version or commit", "settings"), rows)


def departures() -> str:
    """A row for every deliberate departure from released code."""
    rows = [(d.subject, d.ours, d.theirs, d.why, f"{d.distance:.2g}") for d in DEPARTURES]
    return table(("what", "modulax", "released code", "why", "distance"), rows)


def vocabulary() -> str:
    """A row for every optax name that is called something else in modulax."""
    return table(("optax 0.2.8", "modulax"), rows())


def concrete(module: types.ModuleType, base: type) -> dict[str, type]:
    """The public classes of a module that are subclasses of a base and can be made."""
    found = ((name, getattr(module, name)) for name in dir(module) if not name.startswith("_"))
    classes = {name: x for name, x in found if inspect.isclass(x)}
    return {name: x for name, x in classes.items() if issubclass(x, base) and not inspect.isabstract(x)}


def follows() -> str:
    """A row for every optax function whose algorithm differs from the default in modulax."""
    return table(("optax 0.2.8", "the same numbers", "default"), followers())


def contents() -> str:
    """A row for everything that there is many of."""
    transforms = concrete(modulax, modulax.AbstractTransform)
    optimizers = {modulax.get(name).__name__ for name in modulax.available()}
    containers = [name for name, x in transforms.items() if x.__module__.startswith("modulax._containers.")]
    made_of_others = {"Clipped", "Expression", "Stretched", "WrappedSchedule"}
    curves = concrete(modulax.schedules, modulax.schedules.AbstractSchedule).keys() - made_of_others
    page = "[{}]({}.md)".format
    rows = [
        ("optimizers", len(optimizers), page("Choosing an optimizer", "choosing_an_optimizer")),
        ("containers", len(containers), ", ".join(f"`{name}`" for name in sorted(containers))),
        (
            "other transforms",
            len(transforms.keys() - optimizers - {*containers}),
            page("Transforms", "api/transforms"),
        ),
        ("schedules", len(curves), page("Schedules", "schedules")),
        ("functions in `modulax.losses`", len(public_names(modulax.losses)), page("Losses", "losses")),
        (
            "functions in `modulax.projections`",
            len(public_names(modulax.projections)),
            page("Projections", "projections"),
        ),
        ("functions in `modulax.tree`", len(public_names(modulax.tree)), page("Trees", "api/tree")),
    ]
    return table(("what", "how many", "where"), [(name, str(count), where) for name, count, where in rows])


def result(part: str, row: str, column: str) -> str:
    """A cell of a table of the benchmarks: of the first row that has the text, under this head."""
    head, rows = table_of(part)
    return next(cells for cells in rows if row in "|".join(cells))[head.index(column)]


def figures() -> str:
    """The figures of the README, from the benchmarks."""
    lowered = (result("program", f"1000|{which}", "trace + lower") for which in ("optax", "closed over"))
    steps = {row["transform"]: row for row in on_device("GPT-2 with 148 arrays")}
    rows = [(f"a step of {name}, GPT-2 on an H200", steps[name]["optax"], steps[name]["step"]) for name in COMPARED]
    return table(("", "optax", "modulax"), [*rows, ("trace and lower AdamW for 1000 arrays, on two cores", *lowered)])


COMPARED = ("AdamW", "LAMB", "Adafactor")


PAGES = {
    "README.md": [figures],
    "docs/features.md": [contents],
    "docs/api/optimizers.md": [optimizers_by_group],
    "docs/choosing_an_optimizer.md": [groups, compared, sooner, optimizers],
    "docs/differences_from_optax_functions.md": [partial(differences, FUNCTION_DIFFERENCES)],
    "docs/released_code.md": [released, partial(released, FIRST_ORDER + AROUND + CURVATURE), departures],
    "docs/optax_names.md": [follows, vocabulary],
}


def page(name: str) -> str:
    """The page with its tables regenerated."""
    start, *parts = (ROOT / name).read_text(encoding="utf-8").split(BEGIN)
    for make, part in zip(PAGES[name], parts, strict=True):
        start += f"{BEGIN}\n{make()}\n{END}{part.partition(END)[2]}"
    return start


def public_names(module: types.ModuleType) -> set[str]:
    """The public names of a module: those without an underscore; of the modules it holds, only modulax's own."""
    return {
        name
        for name, x in ((n, getattr(module, n)) for n in {*dir(module), *getattr(module, "__all__", ())})
        if not name.startswith("_") and (not inspect.ismodule(x) or (module is modulax and x in PLACES))
    }


def words(default: Any) -> str:
    """A default value, without what differs between two runs."""
    if isinstance(default, tuple):
        return f"({', '.join(map(words, default))})"
    if inspect.isclass(default) or inspect.isfunction(default):
        return default.__name__
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    if isinstance(default, np.generic):
        default = default.item()
    return repr(default) if default is None or isinstance(default, bool | int | float | str) else type(default).__name__


def required(field: Any) -> str:
    """What a field requires of its value, as an error message says it."""
    needs, options = field.metadata.get("needs"), field.metadata.get("options")
    return f" {needs.words}" if needs else f" must be one of {words(options)}" if options else ""


def called(x: Any) -> str:
    """The arguments of a function or a class: names, kinds, defaults, and what is required of them."""
    fields = getattr(x, "__dataclass_fields__", {})
    given, is_by_name = [], False
    for name, p in inspect.signature(x).parameters.items():
        if p.kind is p.KEYWORD_ONLY and not is_by_name:
            given.append("*")
        is_by_name = is_by_name or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        has_factory = name in fields and fields[name].default_factory is not dataclasses.MISSING
        default = "" if p.default is p.empty else "=..." if has_factory else f"={words(p.default)}"
        given.append(f"{star}{name}{default}{required(fields[name]) if name in fields else ''}")
    return f"({', '.join(given)})"


def lines(name: str, x: Any) -> Iterator[str]:
    """A public name with its arguments; of a class also the methods with defaults, and the fields that are computed."""
    is_class = inspect.isclass(x)
    is_record = is_class and (dataclasses.is_dataclass(x) or issubclass(x, tuple))  # else another package makes it
    if not getattr(x, "__module__", "").startswith("modulax.") or not (is_record or (callable(x) and not is_class)):
        yield name
        return
    yield name + ("" if is_class and inspect.isabstract(x) else called(x))
    inherited = {attribute for base in x.__mro__[1:] for attribute in vars(base)} if is_class else set()
    for method, f in sorted(vars(x).items()) if is_class else ():
        f = getattr(x, method) if isinstance(f, classmethod | staticmethod) else f
        is_new = not method.startswith("_") and method not in inherited and inspect.isroutine(f)
        if is_new and "=" in (arguments := called(f)):
            yield f"{name}.{method}{arguments}"
    for field in getattr(x, "__dataclass_fields__", {}).values() if is_class else ():
        if field.name not in inspect.signature(x).parameters and required(field):
            yield f"{name}.{field.name}{required(field)}"


def names() -> str:
    """A line for every public name."""
    found = ((f"{m.__name__}.{name}", getattr(m, name)) for m in MODULES for name in sorted(public_names(m)))
    return "".join(f"{line}\n" for name, x in found for line in lines(name, x))


def missing_arguments() -> str:
    """A script for the type checkers: a call without arguments of every transform and schedule that requires one."""
    bases = (modulax.AbstractTransform, modulax.AbstractSchedule, modulax.AbstractStatefulSchedule)
    calls: dict[type, str] = {}
    for module in MODULES:
        place = module.__name__.replace("modulax", "mx", 1)
        for name, x in (found for base in bases for found in concrete(module, base).items()):
            given = inspect.signature(x).parameters.values()
            if x is not modulax.schedules.Clipped and any(  # `clip` makes one
                p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in given
            ):
                calls.setdefault(x, f"{place}.{name}()  # wrong: reportCallIssue, call-arg\n")
    return f"import modulax as mx\n\n{''.join(sorted(calls.values()))}"


def state_dtypes() -> str:
    """A line for every transform, and one for each field that is a dtype: the dtypes in its state.

    The parameters are in bfloat16, and the field is float16.
    """
    params = {"bias": jax.ShapeDtypeStruct((2,), jnp.bfloat16), "kernel": jax.ShapeDtypeStruct((3, 2), jnp.bfloat16)}

    def line(transform: modulax.AbstractTransform) -> str:
        state = jax.eval_shape(transform.init, params)
        named = [([n for n in names if n not in params], x.dtype) for names, x in named_leaves(state)]
        return ", ".join(dict.fromkeys(f"{'.'.join(names)} {dtype}" for names, dtype in named)) or "nothing"

    lines: dict[str, str] = {}
    for instance in TRANSFORMS:
        transform = instance.make()
        name = type(transform).__name__
        if name not in lines:
            lines[name] = line(transform)
            is_free = "a_field_that_is_a_dtype_is_one_of_the_state" not in instance.exemptions
            for field in (f.name for f in fields_of(transform, static=True) if "dtype" in f.name and is_free):
                given = with_optional_numbers(transform).replace(**{field: jnp.float16})
                lines[f"{name}({field}=float16)"] = line(given)
    return "".join(f"{name}: {dtypes}\n" for name, dtypes in sorted(lines.items()))


def main() -> None:
    exports.main()
    field_docs.main()
    PUBLIC_NAMES.write_text(names(), encoding="utf-8")
    STATE_DTYPES.write_text(state_dtypes(), encoding="utf-8")
    for name in PAGES:
        (ROOT / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
