"""`checkpoint.carry`: the state of one optimizer in that of another one, in the middle of a run."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import checkpoint

PARAMS = {"b": jnp.linspace(-1.0, 1.0, 3), "w": jnp.ones((2, 3))}
GRADS = [jax.tree.map(lambda p, i=i: jnp.sin(p + i), PARAMS) for i in range(6)]


def after(optimizer: Any, steps: int = 6) -> Any:
    state = optimizer.init(PARAMS)
    for grads in GRADS[:steps]:
        _, state = optimizer.update(grads, state, PARAMS)
    return state


ADAM, SGD, LION = mx.AdamW(0.1, b1=0.8), mx.SGD(0.1, momentum=0.8), mx.Lion(0.1, b2=0.8)
MUON = mx.Muon(0.1, beta=0.8, adam_learning_rate=0.1)


@pytest.mark.parametrize(
    "old, new, moments",
    [
        (ADAM, SGD, ["trace"]),
        (ADAM, LION, ["mu"]),
        (SGD, LION, ["mu"]),
        (LION, SGD, ["trace"]),
        (ADAM, mx.NAdam(0.1, b1=0.8), ["mu", "nu", "count"]),
        (ADAM, mx.Chain(mx.ClipByGlobalNorm(1e9), mx.Adam(0.1, b1=0.8)), ["mu", "nu", "count"]),
        (mx.ParamEMA(ADAM, 0.9), mx.ParamEMA(SGD, 0.9), ["trace"]),
        (mx.groups(ADAM, {"w": {"learning_rate": 1.0}}), SGD, ["trace"]),
        (mx.Stacked(SGD), LION, ["mu"]),
        (SGD, mx.Stacked(LION), ["mu"]),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, mx.AbstractTransform) else ",".join(x),
)
def test_moments_are_those_of_the_same_gradients(old: Any, new: Any, moments: list[str]):
    """With equal decay rates, a momentum is the one that the new optimizer would have by itself."""
    state, report = checkpoint.carry(new, PARAMS, old, after(old))
    for name in moments:
        chex.assert_trees_all_close(mx.tree.get(state, name), mx.tree.get(after(new), name), rtol=1e-5)
    assert any(name.endswith("step") for name in report.fresh)
    new.update(GRADS[0], state, PARAMS)


def test_matrices_of_muon_and_the_rest():
    state, report = checkpoint.carry(MUON, PARAMS, ADAM, after(ADAM))
    np.testing.assert_allclose(
        state.inner.inner_states["muon"]["scale_by_muon"].mu["w"], after(ADAM)[0].mu["w"], rtol=1e-6
    )
    adam = state.inner.inner_states["adam"][0]
    np.testing.assert_array_equal(adam.nu["b"], after(ADAM)[0].nu["b"])
    assert int(adam.count) == 6
    assert any(name.endswith("nu.w") for name in report.unused)


def test_what_is_not_carried():
    """A first moment beside a fresh second one, one of two, and states of containers that are not there."""
    cases = [
        (SGD, ADAM),
        (mx.Chain(mx.Trace(0.5), SGD), LION),
        (mx.ParamEMA(mx.SGD(0.1), 0.9), SGD),
        (mx.ScaleByAdam(), mx.ScaleByBelief()),
    ]
    for old, new in cases:
        state, report = checkpoint.carry(new, PARAMS, old, after(old))
        assert report.carried == {}
        chex.assert_trees_all_equal(state, new.init(PARAMS))
        assert str(report).startswith("carried 0, fresh")


def test_dtypes_are_those_of_the_new_optimizer():
    state, report = checkpoint.carry(mx.SGD(0.1, 0.75, accumulator_dtype=jnp.bfloat16), PARAMS, ADAM, after(ADAM))
    assert state[0].trace["w"].dtype == jnp.bfloat16
    assert set(report.factors.values()) == {4.0}
    assert "times 4" in str(report)


def test_arguments_in_another_order():
    with pytest.raises(
        ValueError, match=r"`carry` was given a `dict`, .* `carry\(optimizer, params, old_optimizer, old_s"
    ):
        checkpoint.carry(SGD, PARAMS, ADAM, PARAMS)


def test_nnx_takes_a_state_by_assignment():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    grads = nnx.state(model, nnx.Param)
    old, new = (modulax.nnx.Optimizer(model, optimizer) for optimizer in (ADAM, SGD))
    old.update(model, grads)
    weights = nnx.as_pure(nnx.state(model, nnx.Param))
    new.state, report = checkpoint.carry(new.transform, weights, old.transform, old.state)
    assert len(report.carried) == 2
    np.testing.assert_allclose(new.state[0].trace["kernel"], old.state[0].mu["kernel"] / 0.2, rtol=1e-5)
    new.update(model, grads)
    with pytest.raises(ValueError, match="needs a state of the same optimizer"):
        new.state = old.state
