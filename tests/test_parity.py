"""In double precision over 60 steps, each transform equals its optax counterpart.

The second oracle, equations transcribed to NumPy, is in `test_equations.py`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

from . import settings
from .instances import SCHEDULES, TRANSFORMS, Instance
from .vocabulary import names

pytestmark = pytest.mark.usefixtures("x64")
STEPS = 60
# optax computes schedules in float32, also where everything else is in float64.
SCHEDULE_RTOL = 1e-6


def tree(seed: int) -> dict[str, Any]:
    """A scalar, vectors, a matrix, a convolution's kernel, nested."""
    random = np.random.default_rng(seed)
    shapes = {
        "scalar": (),
        "dense": {"kernel": (3, 2), "bias": (2,)},
        "conv": {"kernel": (2, 2, 3, 2), "bias": (2,)},
    }
    return jtu.tree_map(
        lambda shape: np.asarray(random.normal(size=shape)),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


@functools.cache
def noise(steps: int) -> dict[str, Any]:
    """A tree for each step, stacked."""
    return jtu.tree_map(lambda *x: np.stack(x), *(tree(1 + i) for i in range(steps)))


def trajectory(
    transform: Any, extra: Any = None, *, steps: int = STEPS, examples: int = 0, updates_at: Any = None
) -> Any:
    """The updates of all steps, on gradients that depend on the parameters, on the step and on the example.

    `extra` holds extra arguments, or is a function of parameters and gradients that returns them; `updates_at`, if it
    is given, a function of the parameters that returns other gradients.
    """

    def body(carry: Any, noise: Any) -> Any:
        params, state = carry
        grads = updates_at(params) if updates_at else jtu.tree_map(lambda p, n: 0.5 * p + n, params, noise)
        given: Any = extra(params, grads) if callable(extra) else extra or {}
        if examples:
            grads = jtu.tree_map(lambda g: jnp.stack([(i + 1) * g for i in range(examples)]), grads)
        updates, state = transform.update(grads, state, params, **given)
        # Bounded, because some transforms lead away: without a learning rate, up the hill.
        params = jtu.tree_map(lambda p, u: p + jnp.clip(u, -1, 1), params, updates)
        return (params, state), updates

    params = jtu.tree_map(jnp.asarray, tree(0))
    return jax.lax.scan(body, (params, transform.init(params)), noise(steps))[1]


def _with_extra(twin: Any) -> Any:
    """A transform of optax that ignores the extra arguments that it does not know."""
    is_pair = isinstance(twin, optax.GradientTransformation)
    return optax.with_extra_args_support(twin) if is_pair else twin


def assert_close(actual: Any, desired: Any, rtol: float) -> None:
    """Relative to the largest entry of a leaf at each step."""
    assert jtu.tree_structure(actual) == jtu.tree_structure(desired)
    for (path, a), d in zip(jtu.tree_leaves_with_path(actual), jtu.tree_leaves(desired), strict=True):
        a, d = (np.asarray(x).reshape(len(x), -1) for x in (a, d))
        scale = np.max(np.abs(d), axis=1, keepdims=True)
        scale = np.maximum(scale, 0.01 * np.max(scale))  # where the steps cross zero
        error = np.max(np.abs(a - d) / np.where(scale > 0, scale, 1))
        assert error <= rtol, f"{jtu.keystr(path)}: {error}"


def _uses_schedule(instance: Instance) -> bool:
    return "schedule" in instance.name.lower()


def _with_twin(instances: tuple[Instance, ...]) -> list[Any]:
    return [pytest.param(i, id=str(i)) for i in instances if i.optax is not None]


@pytest.mark.parametrize("instance", _with_twin(TRANSFORMS))
def test_equals_optax(instance: Instance):
    twin = instance.optax
    assert twin is not None
    given: Any = {"examples": instance.examples, "updates_at": instance.updates}

    def both() -> Any:
        ours = trajectory(instance.make(), instance.extra, **given)
        with settings.jax_defaults():
            return ours, trajectory(_with_extra(twin()), instance.extra, **given)

    ours, theirs = jax.jit(both)()
    assert_close(ours, theirs, SCHEDULE_RTOL if _uses_schedule(instance) else instance.optax_rtol)


@pytest.mark.parametrize("instance", _with_twin(SCHEDULES))
def test_schedule_equals_optax(instance: Instance):
    assert instance.optax is not None
    schedule, twin = instance.make(), instance.optax()
    steps = jnp.arange(40)
    with settings.jax_defaults():
        theirs = jax.vmap(twin)(steps)
    ours = jax.vmap(schedule)(steps)
    np.testing.assert_allclose(ours, theirs, rtol=SCHEDULE_RTOL, atol=1e-7)


def test_whatever_optax_has_is_compared_with_it():
    """The one that isn't is compared elsewhere: its updates are tuples."""
    with_twin = {type(i.make()).__name__ for i in TRANSFORMS if i.optax is not None}
    without = {type(i.make()).__name__ for i in TRANSFORMS} - with_twin
    of_optax = {path.rpartition(".")[2] for path in names().values() if path}
    assert without & of_optax == {"GetPerElementMeanAndSumSqDiffGrads"}
    assert len(with_twin & of_optax) > 100


def test_optax_is_the_version_that_was_compared():
    assert optax.__version__.startswith("0.2.")
