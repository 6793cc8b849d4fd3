"""Checkpoints of optax in `modulax.compat`, and the reverse: the states are the same."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

from modulax import compat

from . import settings
from .reach import EVERYTHING
from .test_compat_states import PARAMS, flat

CHAINS = range(200 if EVERYTHING else 8)
# Parts with like states, of a decay.
PARTS: list[Any] = [
    lambda o, d: o.scale_by_adam(b1=d),
    lambda o, d: o.adam(1e-2, b1=d),
    lambda o, d: o.adamw(lambda step: 1e-2 / (step + 1), b1=d),
    lambda o, d: o.trace(d),
    lambda o, d: o.sgd(0.1, momentum=d),
    lambda o, d: o.masked(o.trace(d), {"kernel": True, "bias": False}),
    lambda o, d: o.ema(d),
    lambda o, d: o.chain(o.clip(9.0), o.ema(d)),
    lambda o, d: o.multi_transform({"a": o.trace(d), "b": o.ema(d)}, {"kernel": "a", "bias": "b"}),
]


def random_chain(o: Any, seed: int) -> Any:
    """A chain of 2 to 8 parts of few kinds; every second one is a `named_chain` in random order."""
    random = np.random.default_rng(seed)
    kinds, n = random.permutation(len(PARTS))[:3], random.integers(2, 9)
    parts = [PARTS[random.choice(kinds)](o, 0.3 + 0.6 * float(x)) for x in random.permutation(n) / n]
    names = [f"part{i}" for i in random.permutation(n)]
    return o.chain(*parts) if seed % 2 else o.named_chain(*zip(names, parts, strict=True))


def read(state: Any, template: Any) -> Any:
    """The state in the classes of another one, as from a checkpoint: array by array, under the same names."""
    assert flat(state).keys() == flat(template).keys()
    return jtu.tree_structure(template).unflatten(jtu.tree_leaves(state))


@pytest.mark.usefixtures("x64")
def test_random_chains_go_on_from_each_others_checkpoints():
    for seed in CHAINS:
        with settings.jax_defaults():
            desired, *found = jax.jit(runs, static_argnums=0)(seed)
        for actual in found:
            trees = map(flat, (actual, desired))
            jax.tree.map(lambda a, d: np.testing.assert_allclose(a, d, rtol=1e-12, atol=1e-14), *trees)


def runs(seed: int) -> list[Any]:
    """The updates and the states after two steps and two further ones, each by optax or by compat."""
    both = random_chain(optax, seed), random_chain(compat, seed)
    found = []
    for first, second in ((0, 0), (0, 1), (1, 0), (1, 1)):
        _, state = two_steps(both[first], both[first].init(PARAMS), 1.0)
        found.append(two_steps(both[second], read(state, both[second].init(PARAMS)), 3.0))
    return found


def two_steps(tx: Any, state: Any, start: float) -> Any:
    first, second = (jax.tree.map(lambda p, k=k: jnp.sin(p * k) + 0.1, PARAMS) for k in (start, start + 1))
    _, state = tx.update(first, state, PARAMS)
    return tx.update(second, state, PARAMS)
