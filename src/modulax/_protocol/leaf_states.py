"""The initial states of many arrays, for a rule on one array."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
from jax.core import Tracer
from jaxtyping import Array

from .._support.failures import at_leaf, located
from .._support.types import State
from ..tree._leafmap import in_groups

_GROUP = 32  # arrays of one shape whose initial states are computed together, in a program
_EAGER_GROUP = 2  # and outside one: few, since the last one of a shape may be computed as often


# The rule is an argument, so that rules that differ in numbers alone share the compiled function.
@jax.jit
def _init_group(rule: Any, leaves: Sequence[Array]) -> list[State]:
    return [rule.init_leaf(p) for p in leaves]


def init_leaves(rule: Any, leaves: Sequence[Array], path: Callable[[int], str]) -> list[State]:
    """The states of many arrays, computed in groups of one shape by a function that is compiled once for each shape."""
    is_program = any(isinstance(p, Tracer) for p in leaves)
    size = _GROUP if is_program else _EAGER_GROUP
    if len(leaves) >= size:
        example = jax.eval_shape(rule.init_leaf, leaves[0])
        if not jtu.tree_leaves(example):  # a program without results takes its time too
            return [example] * len(leaves)
    kinds = [(p.shape, p.dtype) for p in leaves]
    counts = collections.Counter(kinds)

    def together(group: Sequence[int]) -> list[State]:
        with at_leaf(lambda: path(group[0]), leaves[group[0]]), located(type(rule).__name__, "init_leaf"):
            return _init_group(rule, [leaves[i] for i in group])

    def each(i: int) -> State:
        if not is_program:
            return together([i] * min(size, counts[kinds[i]]))[0]  # the program of the others again
        with at_leaf(lambda: path(i), leaves[i]), located(type(rule).__name__, "init_leaf"):
            return rule.init_leaf(leaves[i])

    return in_groups(kinds, size, each, together)
