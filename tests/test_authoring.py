"""Optimizers that are a direction, a decay and a rate, as a user writes them with `modulax.authoring`."""

import inspect
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
import modulax.authoring as ma

PARAMS = {"w": jnp.array([1.0, -2.0])}


class AbstractSlope(ma.AbstractFields):
    """The hyperparameters of a soft sign."""

    slope: ma.Number = ma.number(2.0)
    odd: bool = ma.static(True)


class SoftSign(AbstractSlope, ma.AbstractLeafwise):
    def update_leaf(self, now, g, s, p):
        del now, p
        return jnp.tanh(self.slope * (g if self.odd else jnp.abs(g))), s


class Decayed(ma.AbstractDecayed, AbstractSlope, ma.AbstractRated):
    direction = SoftSign
    slope: ma.Number = ma.number(3.0)


class Even(ma.AbstractRated):
    direction = SoftSign
    odd: ClassVar[bool] = False


def step_of(optimizer: Any) -> Any:
    updates, _ = optimizer.update(PARAMS, optimizer.init(PARAMS), PARAMS)
    return updates["w"]


def test_the_bases_from_right_to_left_are_the_arguments():
    assert list(inspect.signature(Decayed).parameters) == ["learning_rate", "slope", "odd", "weight_decay", "mask"]
    chain = mx.Chain(SoftSign(0.5), mx.AddDecayedWeights(0.1), mx.ScaleByLearningRate(0.3))
    np.testing.assert_array_equal(step_of(Decayed(0.3, 0.5, True, 0.1)), step_of(chain))
    assert Decayed(0.3).transform().parts["soft_sign"].slope == 3.0


def test_a_direction_gets_the_constants_of_the_class():
    np.testing.assert_allclose(step_of(Even(1.0)), -np.tanh([2.0, 4.0]), rtol=1e-6)


def test_a_group_after_the_rate_is_refused():
    """Its weight decay would not be applied."""
    with pytest.raises(TypeError, match="write `AbstractRated` after `AbstractDecayed`, as the last base"):

        class Wrong(ma.AbstractRated, ma.AbstractDecayed):
            direction = SoftSign
            learning_rate: ma.Number = ma.number(1.0)


def test_a_missing_direction_is_asked_for():
    class Without(ma.AbstractRated):
        pass

    with pytest.raises(TypeError, match=r"`Without` has no direction: write `direction = \.\.\.` in its class"):
        Without(0.1).init(PARAMS)


def test_groups_are_not_made_by_mistake():
    with pytest.raises(AttributeError, match=r"'modulax\.authoring' has no attribute 'AbstractDecay'\. Did you mean"):
        ma.AbstractDecay  # noqa: B018
