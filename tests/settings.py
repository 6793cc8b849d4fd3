"""Settings for the length of a `with` statement."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def jax_defaults() -> Iterator[None]:
    """JAX's own settings of promotion: optax and flax break under the strict ones of the tests."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
