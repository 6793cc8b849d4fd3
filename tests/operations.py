"""What a function computes: the operations of its program, and of the programs in it."""

import collections
from collections.abc import Iterator
from typing import Any

import jax
import jax.tree_util as jtu


def operations(function: Any, *args: Any) -> collections.Counter[str]:
    """How often each primitive is in the program of a function, in calls, loops and branches too."""
    return collections.Counter(_names(jax.make_jaxpr(function)(*args).jaxpr))


def _names(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for x in jtu.tree_leaves(list(equation.params.values())):
            program = getattr(x, "jaxpr", x)
            if hasattr(program, "eqns"):
                yield from _names(program)
