"""Masks, labels, schedules and functions that the instances share."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import modulax as mx
from modulax import schedules
from modulax.numerics import abs_sq
from modulax.tree import norm

# Functions in static fields have names, because lambdas cannot be pickled.


def previous(params: Any, updates: Any) -> dict[str, Any]:
    """The gradient at the previous parameters."""
    del params
    return {"previous_grad": jax.tree.map(lambda g: 0.5 * g, updates)}


def matrices(tree: Any) -> Any:
    """A mask: leaves with two axes or more."""
    return jax.tree.map(lambda x: x.ndim > 1, tree)


def doubled(updates: Any, params: Any) -> Any:
    del params
    return jax.tree.map(lambda u: u + u, updates)


def momentum_init(params: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, params)


def momentum_update(updates: Any, state: Any, params: Any = None) -> Any:
    """SGD with a learning rate of 0.05 and momentum 0.9, as a function."""
    del params
    state = jax.tree.map(lambda g, t: g.astype(t.dtype) + 0.9 * t, updates, state)
    return jax.tree.map(lambda t: -0.05 * t, state), state


def kind(tree: Any) -> Any:
    """Labels: `matrix` for leaves with two axes or more, `other` for the rest."""
    return jax.tree.map(lambda x: "matrix" if x.ndim > 1 else "other", tree)


def is_huge(updates: Any, step: Any, params: Any) -> Any:
    del step, params
    size = norm(updates)
    return size > 1e6, {"norm": size}


def loss(params: Any, updates: Any) -> Any:
    """The extra argument `value`: a loss whose gradient is half of the parameters."""
    del updates
    squares = [jnp.sum(abs_sq(jnp.asarray(p))) for p in jax.tree.leaves(params)]
    return {"value": sum((0.25 * x.astype(float) for x in squares), jnp.ones((), float))}


def decaying(step: Any) -> Any:
    """A plain function as a schedule."""
    return 0.1 / (1 + jnp.asarray(step).astype(float))


def growing(step: Any) -> Any:
    return jnp.where(step < 2, 1, 3)


def two_of_three(step: Any, **extra: Any) -> Any:
    """When a transform runs."""
    del extra
    return step % 3 != 1


def is_long(updates: Any) -> Any:
    return norm(updates) > 1


def ratio(updates: Any, params: Any) -> Any:
    """How long a step is, relative to where it begins."""
    return norm(updates) / (1e-6 + norm(params))


def bowl(params: Any) -> Any:
    """An objective whose curvature depends on the point, is not diagonal, and is bounded."""
    leaves = [p.astype(float) for p in jax.tree.leaves(params)]
    total = sum((jnp.sum(p) for p in leaves), jnp.zeros(()))
    return sum((jnp.sum(jnp.sqrt(1 + p**2)) for p in leaves), 0.05 * total**2)


BIASES = mx.by_path({"*bias": True, "*": False})
KERNELS = mx.by_path({"*bias": False, "*": True})


def not_bias(tree: Any) -> Any:
    """`KERNELS`, for optax."""

    def is_kernel(path: Any, leaf: Any) -> bool:
        del leaf
        return str(getattr(path[-1], "key", "")) != "bias"

    return jax.tree_util.tree_map_with_path(is_kernel, tree)


def is_bias(tree: Any) -> Any:
    return jax.tree.map(lambda x: not x, not_bias(tree))


def bias_or_rest(tree: Any) -> Any:
    return jax.tree.map(lambda x: "rest" if x else "bias", not_bias(tree))


# Bare transforms take schedules only inside `Scheduled`, which the annotations do not say.
B1: Any = schedules.Linear(0.8, 0.95, 10)
DECAY: Any = schedules.Constant(0.01)
FROZEN: Any = is_bias
WARMUP = {"init_value": 0.0, "peak_value": 0.1, "warmup_steps": 5, "decay_steps": 30}


class CautiousState(mx.AbstractState):
    mean: Any


class Cautious(mx.AbstractStatefulSchedule):
    """A stateful schedule: the larger the losses so far and the loss now, the smaller the number."""

    needs: ClassVar[tuple[str, ...]] = ("value",)

    init_value: mx.Hyperparameter = mx.number()
    decay: mx.Hyperparameter = mx.number(0.5)

    def init(self) -> CautiousState:
        return CautiousState(jnp.zeros(()))

    def update(self, state: CautiousState, *, value: Any = 0.0, **extra: Any) -> CautiousState:
        del extra
        return CautiousState(self.decay * state.mean + (1 - self.decay) * jnp.asarray(value, state.mean.dtype))

    def __call__(self, state: CautiousState, *, value: Any = 0.0, **extra: Any) -> Any:
        del extra
        return self.init_value / (1 + state.mean + jnp.asarray(value, state.mean.dtype))


def tied(learning_rate: Any, decay: Any) -> Any:
    """A weight decay relative to the learning rate."""
    return mx.Chain(mx.ScaleByAdam(), mx.AddDecayedWeights(decay * learning_rate), mx.Scale(-learning_rate))
