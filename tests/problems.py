"""Problems to minimize, each with the point where it starts and what counts as solved."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np


@dataclasses.dataclass(frozen=True)
class Problem:
    """A function to minimize.

    Args:
        name: what the test is called.
        loss: the function, from parameters to a number.
        start: where to begin.
        best: the smallest value that it has.
    """

    name: str
    loss: Callable[[Any], jax.Array]
    start: Any
    best: float = 0.0

    def __str__(self) -> str:
        return self.name

    def run(self, transform: Any, steps: int) -> tuple[float, float]:
        """The loss at the start, and that of the parameters to evaluate after some steps, both above the best."""

        @jax.jit
        def train(transform: Any, params: Any) -> Any:
            def body(carry: Any, _: None) -> Any:
                params, state = carry
                value, grads = jax.value_and_grad(self.loss)(params)
                extra = {"value": value, "grad": grads, "value_fn": self.loss, "obj_fn": self.loss}
                updates, state = transform.update(grads, state, params, **extra)
                return (jtu.tree_map(jnp.add, params, updates), state), value

            start = (params, transform.init(params))
            (params, state), values = jax.lax.scan(body, start, length=steps)
            return values[0], self.loss(transform.eval_params(state, params))

        before, after = train(transform, self.start)
        return float(before) - self.best, float(after) - self.best


def _bowl(params: Any) -> jax.Array:
    return 0.5 * sum((jnp.sum((p - 1) ** 2) for p in jtu.tree_leaves(params)), jnp.zeros(()))


def _rotated(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return 0.5 * jnp.vdot(x, matrix @ x)


def _rosenbrock(x: jax.Array) -> jax.Array:
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def _logistic(params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = images @ params["weight"] + params["bias"][None, :]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -jnp.mean(chosen)


def bowl() -> Problem:
    """A round quadratic on a tree: every descent method solves it."""
    return Problem("bowl", _bowl, {"a": jnp.full((3,), -2.0), "b": (jnp.asarray([[4.0]]),)})


def rotated() -> Problem:
    """A quadratic of condition number 100, its axes rotated away from the coordinates."""
    random = np.random.default_rng(0)
    basis, _ = np.linalg.qr(random.normal(size=(6, 6)))
    matrix = basis @ np.diag(np.geomspace(0.01, 1.0, 6)) @ basis.T
    loss = functools.partial(_rotated, matrix=jnp.asarray(matrix, jnp.float32))
    return Problem("rotated", loss, jnp.asarray(random.normal(size=6), jnp.float32))


def rosenbrock() -> Problem:
    """A long curved valley."""
    return Problem("rosenbrock", _rosenbrock, jnp.asarray([-1.2, 1.0]))


def digits() -> Problem:
    """Logistic regression on 200 images of digits."""
    from sklearn.datasets import load_digits  # takes seconds

    images, labels = load_digits(return_X_y=True)
    images = jnp.asarray(images[:200] / 16, jnp.float32)
    loss = functools.partial(_logistic, images=images, labels=jnp.asarray(labels[:200]))
    return Problem("digits", loss, {"weight": jnp.zeros((64, 10)), "bias": jnp.zeros((10,))})


PROBLEMS = {make.__name__: make for make in (bowl, rotated, rosenbrock, digits)}
