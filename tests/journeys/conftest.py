"""Programs run under JAX's default settings, as users run them."""

from collections.abc import Iterator

import pytest

from ..settings import jax_defaults


@pytest.fixture(autouse=True)
def _jax_defaults() -> Iterator[None]:
    with jax_defaults():
        yield
