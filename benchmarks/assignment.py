"""Assignment and linear algebra against optax, compiled."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from measure import interleaved, seconds, table

import modulax
from modulax.assignment import hungarian_algorithm


def _row(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], arguments: Any, rounds: int) -> list[str]:
    compiled = [jax.jit(f).lower(*arguments).compile() for f in (theirs, ours)]
    (t, u), (_, ratio) = interleaved([functools.partial(f, *arguments) for f in compiled], rounds)
    return [name, seconds(t), seconds(u), f"{ratio:.2f}"]


def assignment(quick: bool) -> str:
    """`hungarian_algorithm`, for one matrix and for a batch under `vmap`.

    The costs are random, integers with many ties, distances between points in the plane, and a matrix for which every
    search visits all columns; "distances, 16 of 100 × 10" are 100 predictions of a detector and 10 objects.
    """
    rng = np.random.default_rng(0)

    def distances(*shape: int) -> np.ndarray:
        *batch, n, m = shape
        x, y = rng.normal(size=(*batch, n, 1, 2)), rng.normal(size=(*batch, 1, m, 2))
        return np.linalg.norm(x - y, axis=-1)

    n = 16 if quick else 128
    costs = {
        f"random, {n} × {n}": rng.uniform(size=(n, n)),
        f"ties, {n} × {n}": rng.integers(10, size=(n, n)),
        f"distances, {n} × {n}": distances(n, n),
        f"products, {n} × {n}": np.outer(np.arange(n), np.arange(n)),
        "random, 32 × 32": rng.uniform(size=(32, 32)),
        "random, 32 of 32 × 32": rng.uniform(size=(32, 32, 32)),
        "distances, 16 of 100 × 10": distances(16, 100, 10),
    }
    rows = []
    for name, c in costs.items():
        ours, theirs = (
            jax.vmap(f) if c.ndim == 3 else f for f in (hungarian_algorithm, optax.assignment.hungarian_algorithm)
        )
        rows.append(_row(name, ours, theirs, (jnp.asarray(c, jnp.float32),), 3 if quick else 100))
    return table(["costs", "optax", "modulax", "ratio"], rows)


def linear_algebra(quick: bool) -> str:
    """`power_iteration` and `matrix_inverse_pth_root` of a random covariance matrix, and 100 steps of `nnls`."""
    rng = np.random.default_rng(0)
    n = 16 if quick else 128
    x = rng.normal(size=(n, 2 * n)) * np.geomspace(1, 1e-2, n)[:, None]
    covariance = jnp.asarray(x @ x.T, jnp.float32)
    problem = tuple(jnp.asarray(a, jnp.float32) for a in (rng.normal(size=(2 * n, n)), rng.normal(size=2 * n)))
    rounds = 3 if quick else 100
    rows = [
        _row(f"`power_iteration`, {n}", modulax.power_iteration, optax.power_iteration, (covariance,), rounds),
        *(
            _row(
                f"`matrix_inverse_pth_root`, {n}, p = {p}",
                functools.partial(modulax.matrix_inverse_pth_root, p=p),
                functools.partial(optax.matrix_inverse_pth_root, p=p),
                (covariance,),
                rounds,
            )
            for p in (2, 4)
        ),
        _row(
            f"`nnls`, {2 * n} × {n}",
            functools.partial(modulax.nnls, iters=100),
            functools.partial(optax.nnls, iters=100),
            problem,
            rounds,
        ),
    ]
    return table(["", "optax", "modulax", "ratio"], rows)
