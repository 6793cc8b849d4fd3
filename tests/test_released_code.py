"""The trajectories of the authors' released code, frozen in `tests/oracles/`, and ours."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx

from .oracles.ledger import DEPARTURES, RELEASED
from .released import Case, Inputs, assert_complete, assert_near, distances_of, gradients

pytestmark = pytest.mark.usefixtures("x64")


def with_loss(problem: Any, params: Any, now: Any) -> Inputs:
    return gradients(problem, params, now), {"value": problem.loss(params, now["noise"])}


def with_sampled(problem: Any, params: Any, now: Any) -> Inputs:
    return gradients(problem, params, now), {"sampled": now["sampled"]}


class SampledSquares(mx.AbstractStatelessTransform):
    """The curvature of the frozen runs of Sophia: squares of sampled gradients."""

    def apply(self, updates: Any, params: Any = None, sampled: Any = None, **extra: Any) -> Any:
        del updates, params, extra
        return jtu.tree_map(jnp.square, sampled)


def one_later(schedule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda count: schedule(count + 1)


def rising_alpha(t: Any) -> Any:
    return 4.0 * jnp.minimum(t.astype(float) / 15, 1)


def rising_b3(t: Any) -> Any:
    """Linear in the half-life, from 0.8 to 0.99."""
    part = jnp.minimum(t.astype(float) / 15, 1)
    first, last = (np.log(0.5) / np.log(b3 + 1e-8) - 1 for b3 in (0.8, 0.99))
    return jnp.where(t < 15, 0.5 ** (1 / ((1 - part) * first + part * last + 1)), 0.99)


def decayed(optimizer: Any, decay: float) -> Any:
    return mx.Chain(mx.AddDecayedWeights(decay), optimizer)


# Twice around the normalization, it makes SAM adaptive.
WEIGHTED = mx.Stateless(lambda updates, params: jtu.tree_map(lambda g, w: jnp.abs(w) * g, updates, params))
BOUND: dict[str, Any] = {"lower_bound": 1.0, "weight_decay": 0.1, "adapt_lower_bound": True}
GROUPS: dict[str, dict[str, Case]] = {
    "torch": {
        "SGD/default": Case(lambda: mx.SGD(0.1)),
        "SGD/all": Case(lambda: decayed(mx.SGD(0.05, 0.8, nesterov=True), 0.1)),
        "AdamW/default": Case(lambda: mx.AdamW(0.05, weight_decay=1e-2)),
        "AdamW/all": Case(lambda: mx.AdamW(0.1, 0.8, 0.95, 1e-3, weight_decay=0.2)),
        "AMSGrad/default": Case(lambda: mx.AMSGrad(0.05)),
        "AMSGrad/all": Case(lambda: mx.AMSGrad(0.1, 0.8, 0.9, 1e-3)),
        "RMSProp/default": Case(lambda: mx.RMSProp(0.02, 0.99, eps_in_sqrt=False)),
        "RMSProp/all": Case(lambda: mx.RMSProp(0.02, 0.9, 1e-3, centered=True, momentum=0.5, eps_in_sqrt=False)),
        "RAdam/default": Case(lambda: mx.RAdam(0.05, eps=0.0)),
        "RAdam/all": Case(lambda: mx.RAdam(0.1, 0.8, 0.95, 0.0)),
        "Adamax/default": Case(lambda: mx.Adamax(0.05)),
        "Adamax/all": Case(lambda: mx.Adamax(0.1, 0.8, 0.95)),
        "Adadelta/default": Case(lambda: mx.Adadelta(1.0, 0.9, 1e-6)),
        "Adadelta/all": Case(lambda: mx.Adadelta(3.0, 0.8, 1e-3)),
        "Rprop/default": Case(lambda: mx.Rprop(0.01)),
        "Rprop/all": Case(lambda: mx.Rprop(0.1, 0.4, 1.5, 1e-3, 0.5)),
    },
    "averages": {
        "ParamEMA/default": Case(lambda: mx.ParamEMA(mx.SGD(0.1), debias=False, start=1), is_evaluated=True),
        "ParamEMA/all": Case(
            lambda: mx.ParamEMA(mx.AdamW(0.05, weight_decay=1e-2), 0.8, False, 13, 3), is_evaluated=True
        ),
        "ParamAverage/default": Case(lambda: mx.ParamAverage(mx.SGD(0.1)), is_evaluated=True),
        "ParamAverage/all": Case(lambda: mx.ParamAverage(mx.AdamW(0.05, weight_decay=1e-2), 10, 3), is_evaluated=True),
        "ScheduleFreeSGD/default": Case(lambda: mx.ScheduleFreeSGD(0.5)),
        "ScheduleFreeSGD/all": Case(lambda: mx.ScheduleFreeSGD(0.2, 10, 0.8, 0.1, 1.0)),
        "ScheduleFreeAdamW/default": Case(lambda: mx.ScheduleFreeAdamW(0.05)),
        "ScheduleFreeAdamW/all": Case(lambda: mx.ScheduleFreeAdamW(0.1, 10, 0.95, 0.99, 1e-4, 0.1)),
        "ScheduleFreeAdamW/warm_up": Case(lambda: mx.ScheduleFreeAdamW(0.05, 10)),
        "ScheduleFreeAdamW/decay": Case(lambda: mx.ScheduleFreeAdamW(0.05, weight_decay=0.1)),
        "ScheduleFreeAdamW/evaluated": Case(
            lambda: mx.ScheduleFreeAdamW(0.1, 10, 0.95, 0.99, 1e-4, 0.1), is_evaluated=True
        ),
        "Mechanize/recomputed": Case(lambda: mx.Mechanize(mx.SGD(1.0), store_delta=False)),
        "Mechanize/default": Case(lambda: mx.Mechanize(mx.SGD(1.0))),
        "Mechanize/all": Case(lambda: mx.Mechanize(mx.SGD(1.0, 0.8), 0.1, 1e-6, 1e-2, 3)),
        "SAM/default": Case(lambda: mx.SAM(mx.SGD(0.1), mx.Chain(mx.Normalize(), mx.SGD(0.05))), updates_per_step=2),
        "SAM/adaptive": Case(
            lambda: mx.SAM(mx.SGD(0.1), mx.Chain(WEIGHTED, mx.Normalize(), WEIGHTED, mx.SGD(2.0))), updates_per_step=2
        ),
        "SAM/all": Case(
            lambda: mx.SAM(mx.AdamW(0.05, weight_decay=0.1), mx.Chain(mx.Normalize(), mx.SGD(0.3)), reset_state=False),
            updates_per_step=2,
        ),
    },
    "tuning free": {
        "DAdaptAdamW/default": Case(mx.DAdaptAdamW),
        "DAdaptAdamW/all": Case(lambda: mx.DAdaptAdamW(0.5, (0.8, 0.99), 1e-4, 1e-2, 0.1)),
        "Prodigy/default": Case(mx.Prodigy),
        "Prodigy/all": Case(lambda: mx.Prodigy(0.5, (0.8, 0.99), 0.9, 1e-4, 1e-2, 1.2, 0.1, safeguard_warmup=True)),
        "DoG/default": Case(mx.DoG),
        "DoG/all": Case(lambda: mx.DoG(0.5, ("heuristic", 1e-2), 1e-3, 0.1)),
        "DoWG/default": Case(mx.DoWG),
        "DoWG/all": Case(lambda: mx.DoWG(1.0, 1e-2, 1e-2)),
        "COCOB/default": Case(mx.COCOB),
        "COCOB/all": Case(lambda: mx.COCOB(1.0, 10, 1e-2, 0.1)),
        "MoMo/default": Case(mx.MoMo, inputs=with_loss),
        "MoMo/all": Case(lambda: mx.MoMo(0.1, 0.8, **BOUND), inputs=with_loss),
        "MoMoAdam/default": Case(mx.MoMoAdam, inputs=with_loss),
        "MoMoAdam/all": Case(lambda: mx.MoMoAdam(0.1, 0.8, 0.95, 1e-3, **BOUND), inputs=with_loss),
    },
    "moments": {
        "MADGRAD/default": Case(lambda: mx.MADGRAD(0.05)),
        "MADGRAD/all": Case(lambda: mx.MADGRAD(0.1, 0.5, 0.1, 1e-3)),
        "AdaBelief/default": Case(lambda: mx.AdaBelief(0.05)),
        "AdaBelief/all": Case(lambda: mx.AdaBelief(0.1, 0.8, 0.95, 1e-3, eps_root=1e-3, weight_decay=0.1)),
        "ADOPT/default": Case(lambda: mx.ADOPT(0.05)),
        "ADOPT/all": Case(lambda: mx.ADOPT(0.05, 0.8, 0.95, 1e-2, use_clipping=False)),
        "ADOPT/decoupled": Case(lambda: mx.ADOPT(0.05, weight_decay=0.1)),
        "ADOPT/decoupled_all": Case(lambda: mx.ADOPT(0.05, 0.8, 0.95, 1e-2, use_clipping=False, weight_decay=0.3)),
        "AdEMAMix/default": Case(lambda: mx.AdEMAMix(0.02, alpha=2.0)),
        "AdEMAMix/all": Case(
            lambda: mx.AdEMAMix(0.02, 0.8, 0.95, one_later(rising_b3), one_later(rising_alpha), 1e-3, weight_decay=0.1)
        ),
        "Adan/default": Case(lambda: mx.Adan(0.02, eps_root=0.0)),
        "Adan/all": Case(lambda: mx.Adan(0.05, 0.9, 0.8, 0.95, 1e-3, eps_root=0.0, weight_decay=0.1)),
        "Adan/no_prox": Case(lambda: mx.Adan(0.05, eps_root=0.0, weight_decay=0.1, proximal=False)),
        "Adan/clipped": Case(lambda: mx.Adan(0.05, eps=1e-3, eps_root=0.0, weight_decay=0.1, max_grad_norm=0.5)),
        "Lion/default": Case(lambda: mx.Lion(0.02, weight_decay=0.0)),
        "Lion/all": Case(lambda: mx.Lion(0.01, 0.8, 0.95, weight_decay=0.3)),
        "NovoGrad/default": Case(lambda: mx.NovoGrad(0.02, 0.95, 0.0, 1e-8)),
        "NovoGrad/all": Case(lambda: mx.NovoGrad(0.02, 0.8, 0.9, 1e-2, weight_decay=0.1)),
        "Yogi/default": Case(lambda: mx.Yogi(0.05)),
        "Yogi/all": Case(lambda: mx.Yogi(0.1, 0.8, 0.95, 1e-2)),
    },
    "layers, matrices and mixtures": {
        "ACProp/default": Case(lambda: mx.ACProp(0.05)),
        "ACProp/rectified": Case(lambda: mx.ACProp(0.05, rectified=True)),
        "ACProp/all": Case(lambda: mx.ACProp(0.05, 0.8, 0.95, 1e-3, eps_root=1e-3, weight_decay=0.1)),
        "Fromage/default": Case(lambda: mx.Fromage(0.01)),
        "Fromage/all": Case(lambda: mx.Fromage(0.1)),
        "LAMB/default": Case(lambda: mx.LAMB(0.05)),
        "LAMB/all": Case(lambda: mx.LAMB(0.1, 0.8, 0.95, 1e-3, weight_decay=0.1)),
        "SM3/default": Case(lambda: mx.Chain(mx.ScaleBySM3(eps=1e-30), mx.ScaleByLearningRate(0.1))),
        "SM3/all": Case(lambda: mx.Chain(mx.ScaleBySM3(0.5, eps=1e-30), mx.ScaleByLearningRate(0.3))),
        "Sophia/default": Case(
            lambda: mx.Sophia(0.02, weight_decay=0.0, gamma=100.0, hessian_diagonal_fn=SampledSquares()),
            inputs=with_sampled,
        ),
        "Sophia/all": Case(
            lambda: mx.Sophia(
                0.05, 0.8, 0.9, weight_decay=0.1, gamma=5.0, update_interval=3, hessian_diagonal_fn=SampledSquares()
            ),
            inputs=with_sampled,
        ),
        "Muon/default": Case(lambda: mx.Muon(0.05, eps=1e-7, adam_b2=0.95)),
        "Muon/all": Case(
            lambda: mx.Muon(
                0.1,
                beta=0.8,
                eps=1e-7,
                weight_decay=0.1,
                adam_b1=0.8,
                adam_b2=0.95,
                adam_weight_decay=0.2,
                adam_learning_rate=0.02,
            )
        ),
        "GaLore/default": Case(lambda: mx.GaLore(0.05, 1, base_optimizer=mx.ScaleByAdam(eps=0.0))),
        "GaLore/all": Case(lambda: mx.GaLore(0.1, 1, 7, 0.25, mx.ScaleByAdam(0.0, 0.95, 0.0))),
        "GaLore/eps_and_decay": Case(
            lambda: mx.GaLore(0.05, 1, base_optimizer=mx.ScaleByAdam(eps=1e-6, corrected_eps=False), weight_decay=0.1)
        ),
    },
    "spikes": {
        "SkipSpikes/default": Case(lambda: mx.SkipSpikes(mx.SGD(0.1), 8, 1.5, "both", 3), inputs=with_loss),
        "SkipSpikes/all": Case(lambda: mx.SkipSpikes(mx.SGD(0.02, 0.8), 5, 0.5, "both", 1), inputs=with_loss),
        "SkipSpikes/levanter": Case(
            lambda: mx.SkipSpikes(mx.SGD(0.1), 8, 1.5 * (7 / 8) ** 0.5, "both", 4), inputs=with_loss
        ),
        "ClipByRunningNorm/default": Case(lambda: mx.Chain(mx.ClipByRunningNorm(1.0), mx.SGD(0.1))),
        "ClipByRunningNorm/all": Case(lambda: mx.Chain(mx.ClipByRunningNorm(0.5, 0.8, 5, 1e-2), mx.SGD(0.2))),
        "ClipByNormPercentile/default": Case(lambda: mx.Chain(mx.ClipByNormPercentile(10, 40), mx.SGD(0.1))),
        "ClipByNormPercentile/all": Case(lambda: mx.Chain(mx.ClipByNormPercentile(65, 40), mx.SGD(0.2))),
        "StableAdamW/default": Case(lambda: mx.StableAdamW(0.05, weight_decay=0.0)),
        "StableAdamW/all": Case(lambda: mx.StableAdamW(0.1, 0.8, 0.9, 1e-3, weight_decay=0.0)),
        "StableAdamW/decay": Case(lambda: mx.StableAdamW(0.05, weight_decay=0.1)),
    },
}


# In the order of the ledger.
APART: dict[str, Callable[[], Any]] = {
    "AdaBelief/rectified": lambda: mx.AdaBelief(0.05),
    "ACProp/rectified": lambda: mx.ACProp(0.05),
    "Adan/default": lambda: mx.Adan(0.02),
    "GaLore/signs": lambda: mx.GaLore(0.1, 1, 7, 0.25, mx.ScaleByAdam(0.8, 0.95, 0.0)),
    "Mechanize/recomputed": lambda: mx.Mechanize(mx.SGD(1.0)),
    "Muon/bfloat16": lambda: mx.Muon(0.05, eps=1e-7, adam_b2=0.95),
    "RAdam/eps": lambda: mx.RAdam(0.05, eps=1e-3),
    "Sophia/late": lambda: mx.Sophia(0.02, weight_decay=0.0, gamma=100.0, hessian_diagonal_fn=SampledSquares()),
}


@pytest.mark.parametrize("group", GROUPS)
def test_as_in_the_released_code(group: str):
    assert_near(distances_of("trajectories", GROUPS[group]))


def test_departures_from_the_released_code():
    found = distances_of("trajectories", {name: Case(make, inputs=with_sampled) for name, make in APART.items()})
    for departure in DEPARTURES:
        np.testing.assert_allclose(found[departure.trajectory], departure.distance, rtol=0.1, err_msg=departure.subject)


def test_nothing_is_left_out():
    """Every frozen trajectory is compared, every departure is shown, and every algorithm has two settings and a row."""
    assert [d.trajectory for d in DEPARTURES] == list(APART)
    compared = {name for cases in GROUPS.values() for name in cases}
    assert_complete("trajectories", {"all": compared | APART.keys()}, RELEASED)
    assert compared >= {f"{x}/{y}" for row in RELEASED for x in row.names.split(", ") for y in ("default", "all")}
