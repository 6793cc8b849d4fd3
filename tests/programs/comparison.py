"""How far the results of two runs of one program are apart."""

from typing import Any

import jax
import numpy as np


def distance(found: Any, expected: Any) -> float:
    """Return the largest difference of two entries, relative to the largest entry of their array."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    assert pairs, "there is nothing to compare"
    distances = []
    for one, other in pairs:
        a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
        assert a.shape == b.shape, f"{a.shape} and {b.shape}"
        assert np.all(np.isfinite(b)), "the program diverges"
        distances.append(np.max(np.abs(a - b), initial=0) / (np.max(np.abs(b), initial=0) or 1))
    return float(np.max(distances))  # a NaN stays one


def assert_same(found: Any, expected: Any, tolerance: float) -> None:
    """Check that the results with modulax and with optax agree; `pytest -rP` shows the distance."""
    apart = distance(found, expected)
    print(f"distance {apart:.1e}, tolerance {tolerance:.0e}")
    assert apart <= tolerance, f"the results with modulax are {apart:.1e} from those with optax, beyond {tolerance:.0e}"


def assert_learns(losses: Any, factor: float = 0.9) -> None:
    """Check that the last loss is below the first by a factor."""
    assert losses[-1] < factor * losses[0], f"the loss went from {losses[0]} to {losses[-1]}"
