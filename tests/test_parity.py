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

from modulax import checkpoint
from modulax.tree._paths import named_leaves, split

from . import settings
from .instances import SCHEDULES, TRANSFORMS, Instance
from .vocabulary import names

pytestmark = pytest.mark.usefixtures("x64")
STEPS = 60
# optax computes schedules in float32, also where everything else is in float64.
SCHEDULE_RTOL = 1e-6


def tree(seed: int, *, is_whole: bool = False) -> dict[str, Any]:
    """A scalar, a vector or two, a matrix, a convolution's kernel, nested."""
    random = np.random.default_rng(seed)
    shapes = {
        "scalar": (),
        "dense": {"kernel": (3, 2), "bias": (2,)},
        "conv": {"kernel": (2, 2, 3, 2), "bias": (2,)},
    }
    drawn = jtu.tree_map(
        lambda shape: np.asarray(random.normal(size=shape)),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    if not is_whole:
        del drawn["conv"]["bias"]
    return drawn


@functools.cache
def noise(steps: int) -> dict[str, Any]:
    """A tree for each step, stacked."""
    return jtu.tree_map(lambda *x: np.stack(x), *(tree(1 + i) for i in range(steps)))


def trajectory(transform: Any, extra: Any = None, **how: Any) -> Any:
    """The updates of all steps."""
    return run(transform, extra, **how)[1]


def run(transform: Any, extra: Any = None, *, steps: int = STEPS, examples: int = 0, updates_at: Any = None) -> Any:
    """The last parameters, the last and the first state, and all updates.

    The gradients depend on the parameters, on the step and on the example.

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

    # From here, no line search comes so near to a minimum that rounding decides.
    params = jtu.tree_map(jnp.asarray, tree(0, is_whole=updates_at is not None))
    start = transform.init(params)
    end, updates = jax.lax.scan(body, (params, start), noise(steps))
    return (*end, start), updates


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


# States that hold other things than those of optax.
WITHOUT_COUNTERPART = {
    "FromFunctions": "a state of the caller's own",
    "Offload": "the same state, in the memory of the host",
    "Monitor": "measurements that have their own states",
    "ScaleByPath-schedule": "a partition in optax",
}


def assert_states_convert(ours: Any, theirs: Any, rtol: float, instance: Instance) -> None:
    """The states after the same steps are converted into each other."""
    (params, our_state, our_start), (_, their_state, their_start) = ours, theirs
    ours = {"params": params, "opt_state": our_state}
    theirs = {"params": params, "opt_state": their_state}
    if instance.name == "Lookahead":
        their_start = their_start[1]
        theirs = {"params": optax.LookaheadParams(params, their_state[0]), "opt_state": their_state[1]}
    template = {"params": params, "opt_state": our_start}
    optimizer = instance.make()
    found, report = checkpoint.state_from_optax(template, theirs, optimizer)
    # optax has no counter where nothing needs one, and in one case only whether it is 0.
    but = {*report.fresh, *(x for x, source in report.restored.items() if source.endswith("is_initial_step"))}
    assert {split(x)[-1] for x in but} <= {"count", "norm", "skipped", "step"}
    leaves_close(found, ours, rtol, {split(x) for x in but})
    found, report = checkpoint.state_to_optax(theirs | {"opt_state": their_start}, ours, optimizer)
    leaves_close(found, theirs, rtol, {split(x) for x in report.fresh})


def leaves_close(actual: Any, desired: Any, rtol: float, but: set[Any]) -> None:
    """Relative to the largest entry of a leaf; without the leaves that stayed as they were."""
    assert jtu.tree_structure(actual) == jtu.tree_structure(desired)
    for (name, a), (_, d) in zip(named_leaves(actual), named_leaves(desired), strict=True):
        a, d = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, d))
        if name not in but:
            assert (a.shape, a.dtype) == (d.shape, d.dtype)
            a, d = np.asarray(a, float), np.asarray(d, float)
            error = np.max(np.abs(a - d), initial=0) / np.max(np.abs(d), initial=1e-9)
            assert error <= rtol, f"{name}: {a} for {d}"


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
        ours = run(instance.make(), instance.extra, **given)
        with settings.jax_defaults():
            return ours, run(_with_extra(twin()), instance.extra, **given)

    (our_end, ours), (their_end, theirs) = jax.jit(both)()
    rtol = SCHEDULE_RTOL if _uses_schedule(instance) else instance.optax_rtol
    assert_close(ours, theirs, rtol)
    if instance.name not in WITHOUT_COUNTERPART:
        # At the minimum, where line searches lead, a memory holds differences of nearly equal gradients.
        assert_states_convert(our_end, their_end, max(100 * rtol, 1e-5 if instance.updates else 1e-9), instance)


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
