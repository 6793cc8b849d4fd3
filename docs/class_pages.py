"""Writes a page for every container and every transform, before Sphinx reads the pages.

A line of a list, `{pages}`, in `api/containers.md` and `api/transforms.md` is a page: the class, and what is documented
with it, such as its state. `optimizer_pages.py` writes those of the optimizers, which extend the same template. Git
ignores them.
"""

import functools
import inspect
import pkgutil
import re
import shutil
from typing import Any

import optimizer_runs as runs
from optimizer_examples import HERE, NOTES, TEMPLATES

import modulax as mx

KINDS = ("containers", "transforms")
LIST = re.compile(r"^```\{pages\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = 12  # optimizers


def listed_names(kind: str) -> list[list[str]]:
    """The names on each page."""
    text = (HERE / "api" / f"{kind}.md").read_text(encoding="utf-8")
    return [line.split(", ") for names in LIST.findall(text) for line in names.splitlines()]


@functools.cache
def users() -> dict[str, list[str]]:
    """The optimizers that each class is a part of, those to begin with first."""
    found: dict[str, list[str]] = {}

    def add(optimizer: str, part: Any) -> None:
        names = found.setdefault(f"modulax.{type(part).__name__}", [])
        if optimizer not in names:
            names.append(optimizer)
        for inner in part.each_part() if isinstance(part, mx.AbstractContainer) else ():
            add(optimizer, inner.transform)

    for optimizer in NOTES["optimizer"]:
        add(optimizer, runs.made(optimizer.lower()).transform())
    return found


def directive(name: str, names: list[str]) -> str:
    """What documents a name, with those of its methods that are listed."""
    x = pkgutil.resolve_name(name)
    members = [other.rpartition(".")[2] for other in names if other.startswith(f"{name}.")]
    kind = "class" if inspect.isclass(x) else "function"
    return f".. auto{kind}:: {name}\n" + (f"   :members: {', '.join(members)}\n" if members else "")


def facts(names: list[str]) -> dict[str, str]:
    """The states of a class, and the optimizers that are made of it."""
    states = [f"`{name[8:]}`" for name in names if re.fullmatch(r"modulax\.states\.\w+", name)]
    optimizers = [f"`{name}`" for name in users().get(names[0], [])]
    rest = f" and {len(optimizers) - SHOWN} more" if len(optimizers) > SHOWN else ""
    found = {"Used by": ", ".join(optimizers[:SHOWN]) + rest, "State": ", ".join(states)}
    return {name: text for name, text in found.items() if text}


def summary(x: Any) -> str:
    """The first line of a docstring: what it is."""
    return (inspect.getdoc(x) or "").partition("\n")[0]


def write() -> None:
    """Write all pages. What is listed twice is documented on the first one."""
    template = TEMPLATES.get_template("class_page.md.jinja")
    for kind in KINDS:
        folder = HERE / "api" / kind
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        documented: set[str] = set()
        for names in listed_names(kind):
            name = names[0].rpartition(".")[2]
            classes = [x for x in names if x.rpartition(".")[0] not in names and x not in documented]
            documented |= {*names}
            text = template.render(
                cls=name,
                summary=summary(pkgutil.resolve_name(names[0])),
                facts=facts(names),
                directives=[directive(x, names) for x in classes],
            )
            (folder / f"{name.lower()}.md").write_text(text, encoding="utf-8")
