"""`python -m modulax.planning`: print a plan."""

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

import equinox as eqx

from ..authoring import AbstractTransform
from ._plan import plan
from ._topology import topology

_HELP = "`module:name`; a function without arguments is called"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the plan for an optimizer and parameters that are named by module."""
    parser = argparse.ArgumentParser("python -m modulax.planning", description="Will it fit, and what will it cost?")
    parser.add_argument("optimizer", help=_HELP)
    parser.add_argument("params", help=f"{_HELP}, for its shapes alone")
    parser.add_argument("--topology", required=True, help="such as v5e:16x16, v5p:8x8x8, h100:8 or cpu:8")
    parser.add_argument("--num-slices", type=int, default=1, help="slices of this topology")
    parser.add_argument("--mesh", type=_axes, default={}, help="axes and sizes, such as data=32,model=8")
    parser.add_argument("--zero", type=_names, help="axis to divide the state over, or several: slice,data")
    parser.add_argument("--spec", help="axis to divide the parameters over, or module:name of specs")
    parser.add_argument("--loss", help="module:function of parameters and batch")
    parser.add_argument("--batch", help=f"{_HELP}, for its shapes alone")
    given = parser.parse_args(arguments)
    sys.path.insert(0, os.getcwd())
    mesh = topology(given.topology, num_slices=given.num_slices, **given.mesh)
    optimizer = _object(given.optimizer)
    report = plan(
        optimizer if isinstance(optimizer, AbstractTransform) else optimizer(),
        _shapes(given.params),
        mesh,
        zero=given.zero,
        spec=_spec(given.spec),
        loss=given.loss and _object(given.loss),
        batch=given.batch and _shapes(given.batch),
    )
    sys.stdout.write(f"{report}\n")


def _axes(text: str) -> dict[str, int]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and size.strip().isdigit() for name, _, size in pairs):
        raise argparse.ArgumentTypeError(f"write axes and sizes, data=32,model=8, in place of {text!r}")
    return {name.strip(): int(size) for name, _, size in pairs}


def _names(text: str) -> str | tuple[str, ...]:
    return tuple(text.split(",")) if "," in text else text


def _spec(text: str | None) -> Any:
    return text if text is None else _object(text) if ":" in text else _names(text)


def _object(address: str) -> Any:
    module, _, name = address.partition(":")
    if not name:
        raise SystemExit(f"{address!r}: write the module and the name in it, such as train:optimizer")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _shapes(address: str) -> Any:
    """A tree, or the shapes of what a function returns, which is not run."""
    found = _object(address)
    return eqx.filter_eval_shape(found) if inspect.isroutine(found) else found


if __name__ == "__main__":
    main()
