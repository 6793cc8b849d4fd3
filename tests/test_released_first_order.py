"""The trajectories of released code of first-order optimizers, frozen in `tests/oracles/first_order.npz`, and ours.

`GROUPS` has the cases of each algorithm, by the names in that file.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import modulax as mx

from .oracles.ledger import FIRST_ORDER
from .oracles.problem import KERAS, STEPS, Problem
from .released import Case, Inputs, assert_complete, assert_near, distances_of, gradients

pytestmark = pytest.mark.usefixtures("x64")


def with_nan(*steps: int) -> Callable[[Problem, Any, Any], Inputs]:
    """Gradients whose first entries are NaN in some steps."""

    def inputs(problem: Problem, params: Any, now: Any) -> Inputs:
        first = jnp.where(jnp.isin(now["step"], jnp.asarray(steps)), jnp.nan, 0.0)
        return {n: g.at[(0,) * g.ndim].add(first) for n, g in gradients(problem, params, now).items()}, {}

    return inputs


def cosine(peak: float) -> Any:
    """The rate that falls to zero in the frozen runs."""
    return mx.schedules.CosineDecay(peak, STEPS)


def decayed_after(direction: Any, rate: Any, decay: float) -> Any:
    """A step, after which the parameters decay, with the rate."""
    return mx.Chain(
        direction,
        mx.ScaleByLearningRate(rate),
        mx.ScaleBySchedule(1 - decay * rate),
        mx.Scheduled(mx.AddDecayedWeights(-decay * rate)),
    )


def corrected(direction: Any, rate: Any, decay: Any) -> Any:
    """A step with weight decay by a schedule."""
    return mx.Chain(direction, mx.Scheduled(mx.AddDecayedWeights(decay)), mx.ScaleByLearningRate(rate))


class CautiousAdam(mx.AbstractLeafwise[mx.states.ScaleByAdamState]):
    """Adam of the entries that it moves against their gradients."""

    b1: mx.Number = mx.number(0.9)
    b2: mx.Number = mx.number(0.999)
    eps: mx.Number = mx.number(1e-8)

    def init_leaf(self, p: Any) -> Any:
        return mx.states.ScaleByAdamState(mu=jnp.zeros_like(p), nu=jnp.zeros_like(p))

    def prepare(self, count: Any) -> Any:
        return 1 - self.b1 ** (count + 1), 1 - self.b2 ** (count + 1)

    def update_leaf(self, now: Any, g: Any, s: Any, p: Any) -> Any:
        mu, nu = self.b1 * s.mu + (1 - self.b1) * g, self.b2 * s.nu + (1 - self.b2) * g**2
        mask = jnp.where(mu * g > 0, 1.0, 0.0)
        u = mu / now[0] / (jnp.sqrt(nu / now[1]) + self.eps)
        return mask * u / jnp.maximum(jnp.mean(mask), 1e-3), mx.states.ScaleByAdamState(mu=mu, nu=nu)


OF_KERAS = {"embeddings": mx.Embedding(), "bias": mx.Bias(), "gamma": mx.Gain(), "beta": mx.Bias()}
ALL: dict[str, Any] = {"b1": 0.8, "b2": 0.95, "eps": 1e-3}


def tiger(rate: Any, every_k: int = 1) -> Any:
    return mx.Tiger(rate, 0.8, 0.2, every_k=every_k, shrink_ratio=0.9, roles=OF_KERAS)


def up_and_down() -> Any:
    """The schedule of Tiger's frozen runs."""
    return mx.schedules.Join([mx.schedules.Linear(0.0, 0.1, 5), mx.schedules.Linear(0.1, 0.01, 25)], [5])


GROUPS: dict[str, dict[str, Case]] = {
    "LaProp": {
        "LaProp/default": Case(lambda: mx.LaProp(0.02)),
        "LaProp/all": Case(lambda: mx.LaProp(0.1, **ALL, weight_decay=0.01, amsgrad=True)),
        "LaProp/decay": Case(lambda: mx.LaProp(0.1, **ALL, weight_decay=0.01)),
        "LaProp/centered": Case(lambda: mx.LaProp(0.02, centered=True)),
        "LaProp/centered_all": Case(lambda: mx.LaProp(0.1, **ALL, weight_decay=0.01, centered=True, amsgrad=True)),
        "LaProp/scheduled": Case(lambda: mx.LaProp(cosine(0.1), **ALL, weight_decay=0.01)),
        # timm multiplies the decay by the rate.
        "LaProp/timm": Case(lambda: decayed_after(mx.ScaleByLaProp(cosine(0.1), **ALL), cosine(0.1), 0.3)),
    },
    "QHM, QHAdam": {
        "QHM/default": Case(lambda: mx.QHM(0.2, 0.9, 0.7)),
        "QHM/all": Case(lambda: mx.Chain(mx.AddDecayedWeights(0.1), mx.QHM(0.3, 0.8, 0.4))),
        "QHM/decoupled": Case(
            lambda: mx.Chain(mx.ScaleByQHM(0.8, 0.4), mx.AddDecayedWeights(0.1), mx.ScaleByLearningRate(0.3))
        ),
        "QHAdam/default": Case(lambda: mx.QHAdam(0.05)),
        "QHAdam/recommended": Case(lambda: mx.QHAdam(0.05, 0.995, nu1=0.7)),
        "QHAdam/all": Case(lambda: mx.Chain(mx.AddDecayedWeights(0.1), mx.QHAdam(0.1, **ALL, nu1=0.6, nu2=0.8))),
        "QHAdam/decoupled": Case(lambda: mx.QHAdam(0.1, **ALL, nu1=0.6, nu2=0.8, weight_decay=0.1)),
    },
    "AggMo": {
        "AggMo/default": Case(lambda: mx.AggMo(0.05)),
        "AggMo/all": Case(lambda: mx.Chain(mx.AddDecayedWeights(0.1), mx.AggMo(0.1, (0.3, 0.7)))),
        "AggMo/exponential": Case(
            lambda: mx.Chain(mx.AddDecayedWeights(0.1), mx.AggMo(0.1, [1 - 0.3**i for i in range(4)]))
        ),
    },
    "AdamC": {
        "AdamC/default": Case(lambda: mx.AdamC(cosine(0.05))),
        "AdamC/all": Case(lambda: mx.AdamC(cosine(0.1), **ALL, weight_decay=0.3)),
        "AdamC/amsgrad": Case(lambda: corrected(mx.ScaleByAMSGrad(**ALL), cosine(0.1), 0.3 * cosine(0.1) / 0.1)),
        "AdamC/cautious": Case(lambda: corrected(CautiousAdam(**ALL), cosine(0.1), 0.3 * cosine(0.1) / 0.1)),
    },
    "FTRL": {
        "FTRL/default": Case(lambda: mx.FTRL(0.5)),
        "FTRL/all": Case(lambda: mx.FTRL(0.3, -0.6, 0.2, 0.3, 0.05, 0.02, 0.1)),
    },
    "ASGD": {
        "ASGD/default": Case(lambda: mx.ASGD(0.05)),
        "ASGD/all": Case(lambda: mx.Chain(mx.AddDecayedWeights(0.2), mx.ASGD(0.2, 0.1, 0.6, 11))),
        "ASGD/averaged": Case(lambda: mx.ASGD(0.05, start=1), is_evaluated=True),
        "ASGD/averaged_all": Case(
            lambda: mx.Chain(mx.AddDecayedWeights(0.2), mx.ASGD(0.2, 0.1, 0.6, 11)), is_evaluated=True
        ),
    },
    "Tiger": {
        "Tiger/default": Case(lambda: mx.Tiger(0.05, roles=OF_KERAS), KERAS),
        "Tiger/all": Case(lambda: tiger(up_and_down(), 2), KERAS, with_nan(8, 9, 20)),
        "Tiger/scheduled": Case(lambda: tiger(up_and_down()), KERAS),
        "Tiger/nan": Case(lambda: tiger(0.1), KERAS, with_nan(8, 9)),
    },
    "FOCUS": {
        "FOCUS/default": Case(lambda: mx.FOCUS(0.02, b2=1 - 2.0**-10)),
        "FOCUS/all": Case(lambda: mx.FOCUS(0.05, 0.8, 0.875, 0.4, weight_decay=0.1)),
    },
}


@pytest.mark.parametrize("group", GROUPS)
def test_as_in_the_released_code(group: str):
    assert_near(distances_of("first_order", GROUPS[group]))


def test_no_setting_is_left_out():
    assert_complete("first_order", GROUPS, FIRST_ORDER)
