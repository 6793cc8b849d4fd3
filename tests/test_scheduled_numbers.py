"""Every number of every optimizer and of every transform may be a schedule."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest

import modulax as mx
from modulax import schedules

from . import reach
from .instances import TRANSFORMS, Instance

PARAMS = {"kernel": jnp.asarray([[0.5, -2.0], [1.0, 3.0]]), "bias": jnp.asarray([0.1, -0.4])}


def _plain_numbers(transform: Any) -> dict[str, Any]:
    """The numbers of the transform itself, also those in tuples; those that are no schedule already."""
    fields = {f.name for f in transform.__dataclass_fields__.values() if f.metadata.keys() & {"number", "numbers"}}
    of_schedules = {path for path, x in transform.addresses().items() if isinstance(x(transform), mx.AbstractSchedule)}
    return {
        path: x
        for path, x in transform.hyperparameters().items()
        if path.partition(".")[0] in fields and not any(path.startswith(s + ".") for s in of_schedules)
    }


def _cases() -> list[Any]:
    seen, cases = set(), []
    for instance in TRANSFORMS:
        transform = instance.made
        if type(transform) not in seen and _plain_numbers(transform):
            seen.add(type(transform))
            cases.append(pytest.param(instance, id=type(transform).__name__))
    return cases


def _run(transform: Any, instance: Instance, steps: int = 2) -> Any:
    params, state, all_updates = PARAMS, transform.init(PARAMS), []
    for t in range(steps):
        grads = jax.tree.map(lambda p, t=t: p * (1 + t), params)
        if instance.examples:
            grads = jax.tree.map(lambda g: jnp.stack([g] * instance.examples), grads)
        extra: Any = instance.extra(params, grads) if callable(instance.extra) else instance.extra
        updates, state = transform.update(grads, state, params, **extra)
        params = mx.apply_updates(params, updates)
        all_updates.append(updates)
    return all_updates


FIRST_OF_THEIR_HOOKS = {reach.hooks_of(i.cls): i for i in reversed(TRANSFORMS) if _plain_numbers(i.made)}.values()


@pytest.mark.parametrize("instance", _cases())
def test_constant_schedules_change_nothing(instance: Instance):
    """Shapes and dtypes for every class; values for one class of each set of overridden methods."""
    transform = instance.made
    scheduled = transform.replace(**{n: schedules.Constant(x) for n, x in _plain_numbers(transform).items()})
    if not isinstance(transform, mx.AbstractOptimizer):
        scheduled = mx.Scheduled(scheduled)
    run = functools.partial(_run, instance=instance)
    if reach.EVERYTHING or instance in FIRST_OF_THEIR_HOOKS:
        expected, found = jax.jit(run)(transform), jax.jit(run)(scheduled)
        chex.assert_trees_all_close(found, expected, rtol=1e-6, atol=1e-7)
    else:
        one_step = functools.partial(run, steps=1)
        assert jax.eval_shape(one_step, scheduled) == jax.eval_shape(one_step, transform)
