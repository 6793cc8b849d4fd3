"""Which arguments of a traced program each of its results is computed from."""

from typing import Any

from jax.extend.core import Jaxpr, Literal


def sources_of(program: Jaxpr) -> list[frozenset[int]]:
    """Return for each result of a program the places of the arguments that it is computed from."""
    known: dict[Any, frozenset[int]] = {x: frozenset({i}) for i, x in enumerate(program.invars)}

    def sources(x: Any) -> frozenset[int]:
        return frozenset() if isinstance(x, Literal) else known.get(x, frozenset())

    for equation in program.eqns:
        known |= dict.fromkeys(equation.outvars, frozenset().union(*map(sources, equation.invars)))
    return list(map(sources, program.outvars))
