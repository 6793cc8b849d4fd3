"""Deliberate differences from optax."""

from typing import NamedTuple


class Difference(NamedTuple):
    """A row of `docs/differences_from_optax.md`, or of `docs/differences_from_optax_functions.md`.

    Attributes:
        subject: the class or the function, and the situation if it is not all of it.
        ours: what modulax does.
        optax: what optax 0.2.8 does.
        why: the reason.
        test: `file.py::name` of the test that shows the two differ.
        reference: the paper, the reference implementation or the issue that says so.
    """

    subject: str
    ours: str
    optax: str
    why: str
    test: str
    reference: str = ""
