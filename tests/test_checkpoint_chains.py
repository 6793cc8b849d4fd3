"""Chains with like parts, and copies of parameters: what a lenient restore of an edit, or optax, gives to each part."""

import collections
import itertools
import re
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import checkpoint

from .reach import EVERYTHING
from .settings import jax_defaults
from .test_checkpoint_optax import ADAMS, EMAS, TRACES, random_chain

PARAMS = [np.zeros(3), {"trace": np.zeros(())}]
BLANK = -1.0
CHAINS = range(300 if EVERYTHING else 40)


@pytest.fixture(autouse=True)
def _float64():
    with jax_defaults(), jax.enable_x64(True):
        yield


def blank(transform: Any) -> Any:
    """The initial state with no number in it that occurs in another one; nothing is compiled."""
    shapes = jax.eval_shape(transform.init, PARAMS)
    return jtu.tree_map(lambda x: np.full(x.shape, BLANK if np.dtype(x.dtype).kind == "f" else 0, x.dtype), shapes)


def marked(state: Any, numbers: Any) -> Any:
    """The state with another number in every array of floats."""
    return jtu.tree_map(lambda x: np.full_like(x, next(numbers)) if x.dtype.kind == "f" else x, state)


def floats(state: Any) -> list[float]:
    return [float(np.ravel(x)[0]) for x in jtu.tree_leaves(state) if x.dtype.kind == "f"]


@pytest.mark.filterwarnings("ignore:.*two optimizers")
def test_through_optax_every_part_keeps_its_numbers():
    for seed in CHAINS:
        theirs, ours = random_chain(seed)
        given = marked(blank(theirs), itertools.count(1.0))
        found, _ = checkpoint.state_from_optax(blank(ours), given, ours, PARAMS)
        parts = given.values() if isinstance(given, dict) else given
        ours_by_place = [found[name] for name in found.names if name in found.parts]
        with_arrays = [floats(x) for x in parts if floats(x)]
        assert [sorted(floats(x)) for x in ours_by_place if floats(x)] == [sorted(x) for x in with_arrays], seed
        back, _ = checkpoint.state_to_optax(blank(theirs), found, ours, PARAMS)
        assert floats(back) == floats(given), seed


def edited(random: np.random.Generator, parts: dict[str, Any], makers: list[Any]) -> dict[str, Any]:
    """The parts by keys of their own after a part came or went, or two changed their places."""
    keys = list(parts)
    i, kind = int(random.integers(len(keys))), random.integers(3)
    if kind == 0:
        keys.insert(i, "new")
        parts = parts | {"new": makers[random.integers(len(makers))](0.5)}
    elif kind == 1 and len(keys) > 1:
        del keys[i]
    else:
        keys = [keys[j] for j in random.permutation(len(keys))]
    return {key: parts[key] for key in keys}


AROUND: list[Any] = [
    (lambda t: t, lambda s: s),
    (lambda t: mx.ParamEMA(t, 0.9), lambda s: s.inner_state),
    (lambda t: mx.MultiSteps(t, 2), lambda s: s.inner_opt_state),
    (lambda t: mx.Chain(mx.Clip(1.0), t), lambda s: s["chain"]),
]


@pytest.mark.filterwarnings("ignore:.*(two optimizers|keeps parameters)")
def test_after_an_edit_no_part_has_the_numbers_of_another():
    makers = [ours for _, ours in (*ADAMS, *TRACES, *EMAS)]
    restored = 0
    for seed in CHAINS:
        random = np.random.default_rng(seed)
        before = {f"p{i}": makers[random.integers(len(makers))](0.5) for i in range(random.integers(2, 9))}
        after = edited(random, before, makers)
        has_names = bool(seed % 2)
        chains = [mx.Chain(**parts) if has_names else mx.Chain(*parts.values()) for parts in (before, after)]
        (around, _), (around_new, inside) = (AROUND[i] for i in random.integers(len(AROUND), size=2))
        old = marked(blank(around(chains[0])), itertools.count(1.0))
        new, _ = checkpoint.load_state_dict(blank(around_new(chains[1])), checkpoint.state_dict(old), strict=False)
        states = [
            dict(zip(parts, states_of(x), strict=True)) for parts, x in ((before, in_chain(old)), (after, inside(new)))
        ]
        counts = [collections.Counter(re.sub(r"_\d+$", "", name) for name in chain.parts) for chain in chains]
        order = [[key for key in parts if key in before and key in after] for parts in (before, after)]
        for key, state in states[1].items():
            found, own = floats(state), floats(states[0].get(key))
            is_kept = found == own
            # A part has its own numbers or none. Like parts that changed their places can't be told from those that
            # didn't, unless they have names.
            is_moved = not has_names and order[0] != order[1]
            assert is_kept or is_moved or set(found) <= {BLANK}, (seed, key)
            if has_names or (counts[0] == counts[1] and not is_moved):
                assert is_kept or key not in before, (seed, key)
            restored += is_kept and bool(own)
    assert restored > len(CHAINS)


def in_chain(state: Any) -> Any:
    """The state of the chain in any of `AROUND`."""
    for name in ("inner_state", "inner_opt_state"):
        state = getattr(state, name, state)
    return state["chain"] if state.names == ("clip", "chain") else state


def states_of(chain: Any) -> list[Any]:
    """The states of the parts, with None for those that have none."""
    return [chain.parts.get(name) for name in chain.names]


@pytest.mark.filterwarnings("ignore:.*keeps parameters")
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_fresh_copies_of_restored_parameters_are_remarked_on(value: float):
    adam = mx.Adam(0.1)
    params = {"w": jnp.full((2, 3), value, jnp.bfloat16), "b": jnp.full(3, value, jnp.bfloat16)}
    saved = checkpoint.state_dict({"model": params})
    copies = {
        "slow": mx.Chain(mx.Clip(1.0), mx.Lookahead(adam, sync_period=2, slow_step_size=0.5)),
        "ema": mx.ParamEMA(adam, debias=False),
        "master": mx.MasterWeights(adam),
        "x": mx.ScheduleFree(adam, learning_rate=0.1),
        "x0": mx.Mechanize(adam),
        "init_params": mx.DoG(),
        "params0": mx.Prodigy(),
    }
    for field, optimizer in copies.items():
        template = {"model": params, "state": optimizer.init(params)}
        found, report = checkpoint.load_state_dict(template, saved, strict=False)
        (remark,) = report.remarks
        assert remark.startswith("Fresh copies of restored parameters: ")
        assert f".{field}.b`, `" in remark, remark
        assert "Restore the model first" in remark
        _, report = checkpoint.load_state_dict(template, {}, strict=False)  # which restores no parameters
        assert not report.remarks
        _, report = checkpoint.load_state_dict({"new": params["b"]} | found, checkpoint.state_dict(found), strict=False)
        assert not report.remarks
    for optimizer in (mx.ParamEMA(adam), mx.ParamAverage(adam), mx.MultiSteps(adam, 2), mx.SAM(adam, adam)):
        template = {"model": params, "state": optimizer.init(params)}
        assert not checkpoint.load_state_dict(template, saved, strict=False)[1].remarks


def test_a_rule_without_a_key_is_not_filled_from_another_rule():
    """Which has the same names, `mu` and `count`; a key of the user may be that of any rule."""
    params = {"w": jnp.ones(2)}
    adam = mx.ScaleByAdam()
    for old in (mx.LaProp(0.1), mx.Lion(0.1), mx.MultiSteps(mx.Chain(mx.ScaleByAdan()), 2)):
        for new in (adam, mx.ParamEMA(adam, 0.9)):
            _, report = checkpoint.load_state_dict(
                new.init(params), checkpoint.state_dict(old.init(params)), strict=False
            )
            assert not [name for name in report.restored if "mu" in name or "inner_state.count" in name]
            assert not report.remarks
    for old in (mx.Adam(0.1), mx.Chain(first=adam), mx.MultiSteps(mx.Chain(adam), 2)):
        _, report = checkpoint.load_state_dict(adam.init(params), checkpoint.state_dict(old.init(params)), strict=False)
        assert not report.fresh
    average = mx.ScaleByScion(0.9)  # its state is that of `Ema`
    saved = checkpoint.state_dict(mx.Chain(average).init(params))
    assert not checkpoint.load_state_dict(average.init(params), saved, strict=False)[1].fresh
