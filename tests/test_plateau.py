"""ReduceOnPlateau: when the scale is reduced, and when not."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx

from .settings import jax_defaults

STEPS = 60


def run(transform: Any, values: Any) -> Any:
    """The factors of all steps, and the states."""

    def body(state: Any, value: Any) -> Any:
        updates, state = transform.update(jnp.ones(()), state, jnp.zeros(()), value=value)
        return state, (updates, state)

    return jax.jit(lambda: jax.lax.scan(body, transform.init(jnp.zeros(())), jnp.asarray(values))[1])()


def plateaus(sign: float = 1.0) -> np.ndarray:
    """Values that fall, stay, fall again, rise, and stay."""
    falling, flat = 4 * 0.8 ** np.arange(12), np.full(14, 4 * 0.8**11)
    again = flat[-1] * 0.9 ** np.arange(12)
    rising = again[-1] * 1.01 ** np.arange(22)
    noise = 1 + 1e-3 * np.random.default_rng(0).normal(size=STEPS)
    return sign * np.concatenate([falling, flat, again, rising]) * noise


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"patience": 3},
        {"factor": 0.5, "patience": 2, "rtol": 0.05, "cooldown": 4, "min_scale": 0.2},
        {"patience": 2, "rtol": 0.0, "atol": 0.1, "accumulation_size": 3},
        {"patience": 1, "rtol": 0.02, "atol": 0.01, "accumulation_size": 2, "cooldown": 1},
    ],
)
def test_plateaus_are_those_of_optax(arguments: Any):
    found, state = run(mx.ReduceOnPlateau(**arguments), plateaus())
    with jax_defaults():
        twin, their_state = run(optax.contrib.reduce_on_plateau(**arguments), plateaus())
    np.testing.assert_allclose(found, twin, rtol=1e-12)
    for field in their_state._fields:
        theirs = np.nan_to_num(getattr(their_state, field))  # before the first mean, the best is the largest number
        np.testing.assert_allclose(getattr(state, field), theirs, rtol=1e-12, err_msg=field)
    assert found[-1] < found[0]


def test_a_plateau_below_zero():
    """A loss that stays at -1 does not improve, nor does one that rises towards zero."""
    for values in (np.full(8, -1.0), np.linspace(-2.0, -1.9998, 8)):
        ours, _ = run(mx.ReduceOnPlateau(0.1, patience=3), values)
        np.testing.assert_allclose(ours, [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01], rtol=1e-6)
        with jax_defaults():
            theirs, _ = run(optax.contrib.reduce_on_plateau(0.1, patience=3), values)
        np.testing.assert_array_equal(theirs, 1)


def test_an_improvement_is_relative_on_either_side_of_zero():
    """Going down by a tenth of the absolute value is an improvement of a tenth, by a twentieth it is not."""
    for sign in (1.0, -1.0):
        for step, improves in ((0.105, True), (0.05, False)):
            values = sign * (1 - sign * step) ** np.arange(6)
            found, _ = run(mx.ReduceOnPlateau(0.5, patience=1, rtol=0.1), values)
            assert (found[-1] == 1) == improves


def test_what_is_not_finite_is_never_the_best():
    """It is not an improvement, and does not affect later values."""
    for bad in (np.nan, np.inf, -np.inf):
        values = np.asarray([bad, 3.0, 2.0, bad, 1.0, 0.5, 0.25, 0.125])
        ours, state = run(mx.ReduceOnPlateau(0.1, patience=2), values)
        np.testing.assert_array_equal(ours, 1)
        assert state.best_value[-1] == 0.125
        assert all(np.all(np.isfinite(x[-1])) for x in jtu.tree_leaves(state))
        in_pairs, _ = run(mx.ReduceOnPlateau(0.1, patience=2, accumulation_size=2), values)
        np.testing.assert_array_equal(in_pairs[:3], 1)
    found, _ = run(mx.ReduceOnPlateau(0.5, patience=2), [1.0, np.nan, -np.inf, 0.5, np.inf, 0.4])
    np.testing.assert_array_equal(found, [1, 1, 0.5, 0.5, 0.5, 0.5])  # the two count as no improvement
    with jax_defaults():
        theirs, their_state = run(optax.contrib.reduce_on_plateau(0.1, patience=2), [-np.inf, 3.0, 2.0, 1.0, 0.5])
    assert theirs[-1] < 1
    assert their_state.best_value[-1] == -np.inf


def test_the_scale_is_kept_as_precise_as_numbers_are():
    """In bfloat16, 0.9**40 would be off by percents, and the updates stay in bfloat16."""
    transform = mx.ReduceOnPlateau(0.9, patience=1)
    params = jnp.ones(2, jnp.bfloat16)
    updates, state = params, transform.init(params)
    for _ in range(41):
        updates, state = transform.update(params, state, params, value=1.0)
    assert updates.dtype == jnp.bfloat16
    np.testing.assert_allclose(state.scale, 0.9**40, rtol=1e-5)


def test_it_can_be_changed_during_the_run():
    impatient = mx.ReduceOnPlateau(0.5, patience=2)
    g = jnp.ones(())
    state = impatient.init(g)
    for _ in range(5):
        _, state = impatient.replace(patience=100).update(g, state, value=1.0)
    updates, _ = impatient.update(g, state, value=1.0)  # four are more than two
    assert updates == 0.5


def test_bad_numbers_and_a_missing_value():
    for name, value in (("factor", 1.0), ("factor", 0.0), ("patience", 0), ("rtol", -1), ("accumulation_size", 0)):
        with pytest.raises(ValueError, match=rf"`ReduceOnPlateau\({name}=\.\.\.\)` must"):
            mx.ReduceOnPlateau(**{name: value})
    transform = mx.ReduceOnPlateau()
    with pytest.raises(ValueError, match=r"`ReduceOnPlateau` needs `value`"):
        transform.update(jnp.ones(2), transform.init(jnp.ones(2)))
    factor: Any = mx.schedules.Constant(0.5)
    scheduled = mx.ReduceOnPlateau(factor)
    with pytest.raises(ValueError, match=r"Write `Scheduled\(ReduceOnPlateau\(factor=\.\.\.\)\)`"):
        scheduled.update(jnp.ones(2), scheduled.init(jnp.ones(2)), value=1.0)


def test_it_continues_from_the_state_of_optax():
    """Where no value was seen yet, that holds an infinity."""
    transform = mx.ReduceOnPlateau(0.5, patience=2)
    state = dataclasses.replace(transform.init(jnp.ones(2)), best_value=jnp.asarray(jnp.inf))
    _, state = transform.update(jnp.ones(2), state, value=3.0)
    assert state.best_value == 3


def test_its_scale_is_listed_with_the_hyperparameters_in_the_state():
    """The learning rate of the last step was that of the optimizer times the scale."""
    chain = mx.Chain(mx.SGD(0.1), mx.Partition({"a": mx.ReduceOnPlateau(0.5, patience=1)}, {"x": "a"}))
    params = {"x": jnp.zeros(2)}
    state = chain.init(params)
    for factor in (1.0, 0.5, 0.25):
        updates, state = chain.update({"x": jnp.ones(2)}, state, params, value=1.0)
        np.testing.assert_allclose(updates["x"], -0.1 * factor, rtol=1e-6)
        assert chain.hyperparameters(state)["parts.partition.transforms.a.scale"] == factor
    assert not [name for name in chain.hyperparameters() if name.endswith(".scale")]
    alone = mx.ReduceOnPlateau()
    assert alone.hyperparameters(alone.init(params))["scale"] == 1.0
