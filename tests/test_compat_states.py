"""States of `modulax.compat` are those of optax: the same NamedTuples, in the same nesting, with the same values."""

import functools
import os
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import compat
from modulax.compat import optax_paths
from modulax.compat._paths import _class_in_optax
from modulax.compat._states import CLASSES, TWINS
from modulax.tree._paths import key_names, leaves_with_paths

from . import settings
from .instances import TRANSFORMS, Instance
from .test_compat import as_compat

PARAMS = {
    "kernel": np.random.default_rng(0).normal(size=(3, 2)),
    "bias": np.random.default_rng(1).normal(size=2),
}
# Transforms of which optax has no public function, or that the tables of differences name.
WITHOUT = {
    "LBFGS-rate": "discards pairs of negative curvature",
    "Lookahead": "with plain parameters, it keeps the slow ones in its state",
    "Monitor": "its measures are others in optax",
    "ScaleByLBFGS": "discards pairs of negative curvature",
    "ScaleByMoMo": "in a chain of optax, which passes extra arguments on to its own class only",
    "ScaleByMoMoAdam": "the same",
    "ScaleByShape": "a private function of optax",
}
INSTANCES = [x for x in TRANSFORMS if x.optax is not None and x.name not in WITHOUT]


def made(make: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):
        found = make()
    return found.gradient_transformation() if hasattr(found, "gradient_transformation") else found


def pair(instance: Instance) -> tuple[Any, Any]:
    """What optax makes, and what `compat` makes of the same call."""
    return made(instance.optax), made(as_compat(instance.optax, set()))


def described(x: Any) -> Any:
    """The classes and the fields of a state, with the shapes and dtypes of its arrays."""
    if hasattr(x, "_fields"):
        return (
            type(x).__name__,
            {name: described(y) for name, y in zip(x._fields, x, strict=True)},
        )
    if isinstance(x, dict):
        return {str(key): described(y) for key, y in x.items()}
    if type(x) in (list, tuple):
        return [described(y) for y in x]
    return x if x is None else (jnp.shape(x), str(x.dtype))


def flat(x: Any) -> dict[str, Any]:
    return {jtu.keystr(path): y for path, y in jtu.tree_leaves_with_path(x)}


each_instance = pytest.mark.parametrize("instance", INSTANCES, ids=str)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
@each_instance
def test_initial_states_are_those_of_optax(instance: Instance):
    with settings.jax_defaults():
        theirs, ours = pair(instance)
        params = jax.tree.map(np.float32, PARAMS)
        found = jax.eval_shape(ours.init, params)
        assert described(found) == described(jax.eval_shape(theirs.init, params))


@pytest.mark.filterwarnings("ignore:.*learning rate of `Sophia` is negative")  # as optax has no direction of it
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("instance", INSTANCES if os.environ.get("MODULAX_LAWS") else INSTANCES[::5], ids=str)
def test_states_have_the_values_of_optax(instance: Instance):
    """After two steps; optax's own states are taken as they are. `nox -s laws` compares all of them."""
    with settings.jax_defaults():
        theirs, ours = pair(instance)
        start, state = theirs.init(PARAMS), ours.init(PARAMS)
        desired = jax.jit(functools.partial(two_steps, instance, theirs))(start)
        step = functools.partial(two_steps, instance, ours)
        actual = jax.jit(step)(state)
        assert jax.tree.structure(actual[1]) == jax.tree.structure(state)
        assert_same(actual, desired)
        assert_same(jax.jit(step)(start), desired)


def two_steps(instance: Instance, tx: Any, state: Any) -> Any:
    params = PARAMS
    for k in (1.0, 2.0):
        grads = jax.tree.map(lambda p: jnp.sin(p * k) + 0.1, params)  # noqa: B023
        extra = instance.extra(params, grads) if callable(instance.extra) else instance.extra
        if instance.examples:
            grads = jax.tree.map(lambda g: jnp.stack([(i + 1) * g for i in range(instance.examples)]), grads)
        updates, state = tx.update(grads, state, params, **extra)
        params = params if instance.examples else jax.tree.map(jnp.add, params, updates)
    return updates, state


def assert_same(actual: Any, desired: Any) -> None:
    found = flat(actual)
    for path, x in flat(desired).items():
        if not jnp.issubdtype(x.dtype, jax.dtypes.extended):
            np.testing.assert_allclose(found[path], x, rtol=5e-6, atol=1e-8, err_msg=path)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_paths_of_optax_are_those_of_its_states():
    """And the arrays there have the shapes of ours. A chain that `compat` makes of pairs has no transform."""
    params = jax.tree.map(np.float32, PARAMS)
    with settings.jax_defaults():
        pairs = {instance.name: pair(instance) for instance in INSTANCES}
        single = {name: both for name, both in pairs.items() if hasattr(both[1], "transform")}
        assert len(single) > 0.8 * len(pairs)
        for name, (theirs, ours) in single.items():
            desired = jtu.tree_leaves_with_path(jax.eval_shape(theirs.init, params))
            own = dict(leaves_with_paths(jax.eval_shape(ours.transform.init, params)))
            found = {place: own[path].shape for place, path in optax_paths(ours.transform, params).items()}
            assert found.items() <= {"/".join(key_names(path)): x.shape for path, x in desired}.items(), name


LINE, MASK = mx.schedules.Linear(1.0, 0.0, 9), {"kernel": True, "bias": False}
PAIRS = [
    (mx.AdamW(1e-3), optax.adamw(1e-3)),
    (mx.SGD(LINE), optax.sgd(optax.linear_schedule(1.0, 0.0, 9))),
    (mx.MultiSteps(mx.Adam(1e-3), 4), optax.MultiSteps(optax.adam(1e-3), 4)),
    (
        mx.Chain(mx.Clip(1.0), mx.Masked(mx.Lion(1.0), MASK)),
        optax.chain(optax.clip(1), optax.masked(optax.lion(1), MASK)),
    ),
]


@pytest.mark.parametrize("ours, theirs", PAIRS)
def test_every_array_has_its_path_in_optax(ours: Any, theirs: Any):
    desired = jtu.tree_leaves_with_path(theirs.init(PARAMS))
    assert [*optax_paths(ours, PARAMS)] == ["/".join(key_names(path)) for path, _ in desired]


def test_a_transform_of_modulax_with_states_of_optax_itself():
    """For libraries that look into states: MaxText, jax_privacy, `optax.tree`."""
    params: Any = {"w": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(0.5)}
    clip, adam = mx.ClipByGlobalNorm(1.0), mx.Adam(lambda step: 0.1)
    ours = compat.to_optax(mx.Chain(clip, mx.Masked(adam, {"w": True, "b": False})))
    theirs = optax.chain(
        optax.clip_by_global_norm(1.0), optax.masked(optax.adam(lambda step: 0.1), {"w": True, "b": False})
    )
    assert isinstance(ours, optax.GradientTransformationExtraArgs)
    states: list[Any] = [tx.init(params) for tx in (ours, theirs)]
    updates = [params, params]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    for i, tx in enumerate((ours, theirs)):
        clipped, (inner,) = states[i]
        moments, *rest = inner
        assert isinstance(moments, optax.ScaleByAdamState)
        ones = optax.tree.ones_like(moments.mu)
        states[i] = clipped, optax.MaskedState((moments._replace(mu=ones), *rest))
        with settings.jax_defaults():
            updates[i], states[i] = tx.update(params, states[i], params)
        assert optax.tree.get(states[i], "mu")["w"].shape == (2,)
        assert int(optax.tree.get(states[i], "ScaleByScheduleState").count) == 1
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates[0], updates[1])
    injected = compat.to_optax(mx.Injected(mx.SGD(0.1)))
    state = injected.init(params)
    assert isinstance(state, optax.InjectStatefulHyperparamsState)
    state.hyperparams["learning_rate"] = jnp.asarray(0.5)
    assert injected.update(params, state, params)[0]["b"] == -0.25


def test_the_classes_of_optax_itself_have_the_fields_of_ours():
    found = {name: _class_in_optax(name) for name in TWINS}
    own = {name for name, cls in found.items() if cls is CLASSES[name]}
    assert own == {"LookaheadWithSlowState", "MechanicWithDeltaState", "MultiStepsWithNoiseState"}
    assert all(cls._fields == CLASSES[name]._fields for name, cls in found.items())
