"""The optimizer of big_vision: per-pattern schedules, learning rates and weight decays, and frozen parameters.

optax's side is built as big_vision builds it: for every pattern, a mask and a masked transformation. On our side, a
pattern is a group of a `Partition`.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import modulax as mx

from .comparison import assert_same

STEPS = 24
PARAMS = jax.tree.map(
    lambda size: np.random.default_rng(size).normal(size=(size, 3)).astype(np.float32),
    {
        "embedding": {"kernel": 3},
        "encoder": {"block_0": {"kernel": 4, "bias": 5}, "block_1": {"kernel": 6, "bias": 7}},
        "head": {"kernel": 8, "bias": 9},
    },
)


def cosine(step: Any) -> Any:
    return 0.5 * (1 + jnp.cos(jnp.pi * step / STEPS)) * jnp.minimum(1, (step + 1) / 4)


def root(step: Any) -> Any:
    return 1 / jnp.sqrt(1 + step)


LEARNING_RATE, WEIGHT_DECAY = 0.02, 0.01
# A parameter belongs to the first pattern that matches its path; None freezes it.
SCHEDULES = {"head/.*": root, "embedding/.*": None, ".*": cosine}
RATE_FACTORS = {"head/.*": 2.0, ".*block_1/.*": 0.5, ".*": 1.0}
DECAY_FACTORS = {".*/kernel": 1.0, ".*": 0.0}


def path_of(keys: Any) -> str:
    return "/".join(key.key for key in keys)


def first_match(path: str, patterns: Any) -> str:
    return next(pattern for pattern in patterns if re.fullmatch(pattern, path))


def masks(patterns: Any) -> Any:
    """For each pattern, the tree that says which parameters belong to it."""

    def mask(pattern: str) -> Any:
        return jax.tree_util.tree_map_with_path(lambda k, _: first_match(path_of(k), patterns) == pattern, PARAMS)

    return {pattern: mask(pattern) for pattern in patterns}


def of_optax() -> Any:
    by_schedule = masks(SCHEDULES)
    frozen = by_schedule.pop("embedding/.*")
    trained = jax.tree.map(lambda x: not x, frozen)
    scale_by = {"scale": optax.scale, "decay": optax.add_decayed_weights, "schedule": optax.scale_by_schedule}

    def masked(kind: str, groups: Any, number: Any) -> list[Any]:
        return [optax.masked(scale_by[kind](number(pattern)), mask) for pattern, mask in groups.items()]

    return optax.chain(
        optax.masked(optax.clip_by_global_norm(1.0), trained),
        optax.masked(optax.scale_by_adam(b2=0.95, mu_dtype=jnp.float32), trained),
        optax.scale(LEARNING_RATE),
        *masked("scale", masks(RATE_FACTORS), RATE_FACTORS.__getitem__),
        *masked("decay", masks(DECAY_FACTORS), lambda pattern: WEIGHT_DECAY * DECAY_FACTORS[pattern]),
        *masked("schedule", by_schedule, SCHEDULES.__getitem__),
        optax.masked(optax.set_to_zero(), frozen),
        optax.scale(-1.0),
    )


def of_modulax() -> Any:
    """One part for each combination of schedule and factors that occurs."""

    def settings(keys: Any, _: Any) -> Any:
        path = path_of(keys)
        tables = (SCHEDULES, RATE_FACTORS, DECAY_FACTORS)
        return "+".join(first_match(path, table) for table in tables)

    def group(label: str) -> mx.AbstractTransform:
        schedule, factor, decay = (
            table[pattern]
            for table, pattern in zip((SCHEDULES, RATE_FACTORS, DECAY_FACTORS), label.split("+"), strict=True)
        )
        if schedule is None:
            return mx.SetToZero()
        return mx.Chain(
            mx.Scale(LEARNING_RATE * factor),
            mx.AddDecayedWeights(WEIGHT_DECAY * decay),
            mx.ScaleByLearningRate(schedule),
        )

    labels = jax.tree_util.tree_map_with_path(settings, PARAMS)
    trained = jax.tree.map(lambda label: "embedding" not in label, labels)
    groups = mx.Partition({label: group(label) for label in jax.tree.leaves(labels)}, labels)
    adam = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.ScaleByAdam(b2=0.95))
    return mx.Chain(mx.Masked(adam, trained), groups)


def run(tx: Any) -> Any:
    def step(carry: Any, noise: Any) -> Any:
        params, state = carry
        grads = jax.tree.map(jnp.add, params, noise)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    rng = np.random.default_rng(0)
    noise = jax.tree.map(lambda p: rng.normal(size=(STEPS, *p.shape)).astype(np.float32), PARAMS)
    return jax.jit(lambda params: jax.lax.scan(step, (params, tx.init(params)), noise)[1])(PARAMS)


def test_big_vision():
    theirs, tx = run(of_optax()), of_modulax()
    assert_same(run(tx), theirs, 1e-5)
    assert np.ptp(theirs["embedding"]["kernel"], axis=0).max() == 0
    assert len(jax.tree.leaves(mx.tree.get(tx.init(PARAMS), "mu"))) == 6


def test_the_schedules_of_big_vision_by_name():
    """Its monitoring reads each pattern's learning rate; here they are hyperparameters of the state."""
    tx = of_modulax()
    numbers = tx.hyperparameters(tx.init(PARAMS))
    rates = {name: float(x) for name, x in numbers.items() if name.endswith("learning_rate")}
    assert sorted(set(rates.values())) == [0.25, 1.0]
