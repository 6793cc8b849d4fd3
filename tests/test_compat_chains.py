"""Checkpoints of optax in `modulax.compat`, and the reverse: the states are the same, in memory and as bytes."""

import re
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from modulax import compat

from . import settings
from .reach import EVERYTHING
from .test_compat_states import INSTANCES, PARAMS, assert_same, flat, pair

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


def numbered(state: Any, seed: int) -> Any:
    """The state with random numbers in it."""
    random = np.random.default_rng(seed)

    def number(x: Any) -> Any:
        return x if jnp.issubdtype(x.dtype, jax.dtypes.extended) else random.integers(0, 9, x.shape).astype(x.dtype)

    return jax.tree.map(number, state)


@pytest.mark.filterwarnings("ignore:.*learning rate of `Sophia` is negative")  # as optax has no direction of it
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_bytes_of_optax_are_read_and_the_reverse():
    """By `flax.serialization`, of 20 transforms."""
    chosen = [x for x in INSTANCES if "oise" not in x.name and "Priv" not in x.name and not x.name.startswith("DP")][
        ::9
    ]
    assert len(chosen) >= 20
    for instance in chosen:
        with settings.jax_defaults():
            theirs, ours = pair(instance)
            params = jax.tree.map(np.float32, PARAMS)
            states = numbered(theirs.init(params), 1), numbered(ours.init(params), 2)
        written = [flax.serialization.to_bytes(state) for state in states]
        assert_same(flax.serialization.from_bytes(states[1], written[0]), states[0])
        assert_same(flax.serialization.from_bytes(states[0], written[1]), states[1])
        assert type(flax.serialization.from_bytes(states[1], written[0])) is type(states[1])


# Rules of trainers, from regular expressions over the paths of a state to partition specs: anchored and not.
RULES = [
    (r"^(\d+/)*inner_states/\w+/inner_state/(\d+/)*(mu|nu|trace)/kernel$", P("fsdp", "model")),
    (r"^1/0/(mu|nu)/kernel$", P("data", "model")),
    (r"(mu|nu)/bias", P("model")),
    (r"hyperparams/learning_rate$", P()),
    (r"v_(row|col)/kernel", P("data")),
    (r"count$", P()),
    (r".*", P(None)),
]


def specs(state: Any) -> list[P]:
    paths = [jtu.keystr(path, simple=True, separator="/") for path, _ in jtu.tree_leaves_with_path(state)]
    return [next(spec for rule, spec in RULES if re.search(rule, path)) for path in paths]


def rows(tree: Any) -> Any:
    """A rule by the classes of states, as t5x has: a spec for each array of moments, none for anything else."""
    if isinstance(tree, tuple) and (names := getattr(tree, "_fields", None)):
        return {name: P("rows") if name in ("mu", "nu") else rows(x) for name, x in zip(names, tree, strict=True)}
    if isinstance(tree, dict):
        return {key: rows(x) for key, x in tree.items()}
    return [rows(x) for x in tree] if isinstance(tree, tuple) else None


def test_partition_rules_give_the_specs_that_they_give_for_optax():
    def makers(o: Any) -> list[Any]:
        return [
            o.chain(o.clip(1.0), o.adamw(lambda step: 0.1)),
            o.inject_hyperparams(o.adam)(learning_rate=0.1),
            o.multi_transform({"a": o.adam(0.1), "b": o.sgd(0.1, 0.9)}, {"kernel": "a", "bias": "b"}),
            o.adafactor(0.1, min_dim_size_to_factor=2),
            o.adafactor(),
            o.MultiSteps(o.lion(0.1), 2).gradient_transformation(),
            o.contrib.muon(0.1),
        ]

    params = jax.tree.map(np.float32, PARAMS)
    with settings.jax_defaults():
        for theirs, ours in zip(makers(optax), makers(compat), strict=True):
            states = [jax.eval_shape(tx.init, params) for tx in (theirs, ours)]
            assert specs(states[1]) == specs(states[0])
            assert rows(states[1]) == rows(states[0])
            assert len(set(specs(states[0]))) > 1
