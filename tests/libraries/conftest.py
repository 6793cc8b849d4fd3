"""Programs run under JAX's default settings, as users run them."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from ..settings import jax_defaults

# GPJax requires jax<0.11: it is installed on Python 3.11 only, by `nox -s compatibility-3.11`.
collect_ignore = [] if find_spec("gpjax") else ["test_gpjax.py"]


@pytest.fixture(autouse=True)
def _jax_defaults() -> Iterator[None]:
    with jax_defaults():
        yield
