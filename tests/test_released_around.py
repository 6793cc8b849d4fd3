"""The trajectories of released code of what goes around an optimizer, frozen in `tests/oracles/first_order.npz`."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

from .oracles.problem import SMALL, STEPS
from .released import Case, assert_complete, assert_near, distances_of, trajectory, with_previous

pytestmark = pytest.mark.usefixtures("x64")
MARS = (0.1, 0.8, 0.9, 1e-3)
DECAYED: dict[str, Any] = {"weight_decay": 0.1, "gamma": 0.2}
VECTORS: dict[str, Any] = {"adam_learning_rate": 0.02, "adam_b1": 0.7, "adam_b2": 0.8, "adam_weight_decay": 0.3}
GPA: dict[str, Any] = {
    "b1": 0.8,
    "b2": 0.95,
    "eps": 1e-3,
    "weight_decay": 0.2,
    "train_interp_coeff": 0.9,
    "eval_interp_coeff": 0.8,
}
ALL = (0.1, 0.8, 0.95, 1e-3, 0.1)


def uncorrected(b1: float, b2: float) -> Callable[[Any], Any]:
    """What takes the bias corrections out of the direction of Adam, if its `eps` is added before them."""

    def factor(count: Any) -> Any:
        t = count.astype(float) + 1
        return (1 - b1**t) / jnp.sqrt(1 - b2**t)

    return factor


def adamw(
    around: Callable[[Any], Any], rate: float, b1=0.9, b2=0.999, eps=1e-6, decay=0.0, correct_bias: bool = True
) -> Any:
    """AdamW with `eps` before the bias correction, and something around its direction."""
    after = [] if correct_bias else [mx.ScaleBySchedule(uncorrected(b1, b2))]
    direction = mx.Chain(mx.ScaleByAdam(b1, b2, eps, corrected_eps=False), *after)
    return mx.Chain(around(direction), mx.AddDecayedWeights(decay), mx.ScaleByLearningRate(rate))


def after_first(first: float, value: float) -> Callable[[Any], Any]:
    """A number of the first step, and one of all others: in timm, the first gradient of MARS is left as it is."""
    return lambda count: jnp.where(count == 0, first, value)


def rising(count: Any) -> Any:
    return 0.1 * jnp.minimum(1.0, (count.astype(float) + 1) / 20)


def schedule_free(count: Any) -> Any:
    """The weight of the old average in their `SCHEDULE_FREE`, with the weights k times the rate to the power 1.5."""
    k = jnp.arange(STEPS, dtype=float)
    weights = (k + 1) * rising(k) ** 1.5
    return 1 - (weights / jnp.cumsum(weights))[count]


def gpa_without_schedule() -> Any:
    options: dict[str, Any] = GPA | {"eval_interp_coeff": schedule_free}
    return mx.GPAAdamW(rising, **options)


def diloco(every: int, rate: float, momentum: float, *adamw: float, weight_decay: float, **options: Any) -> Any:
    outer = mx.SGD(rate, momentum, nesterov=True)
    return mx.DiLoCo(mx.AdamW(*adamw, weight_decay=weight_decay), every, outer, **options)


def grokfast(filtered: Any, optimizer: str) -> Any:
    return mx.Chain(filtered, mx.SGD(0.05) if optimizer == "sgd" else mx.AdamW(0.05, weight_decay=0.1))


def summed() -> Any:
    return mx.GrokFastMA(4, 0.3, use_mean=False, warmup=False)


def decaying_cautiously(direction: Any, decay: float, rate: float) -> Any:
    return mx.Chain(direction, mx.AddDecayedWeights(decay, cautious=True), mx.ScaleByLearningRate(rate))


COUNTED = functools.partial(mx.Cautious, normalize="count")
GROUPS: dict[str, dict[str, Callable[[], Any]]] = {
    "Cautious": {
        "CautiousAdamW/default": lambda: mx.CautiousAdamW(0.05),
        "CautiousAdamW/all": lambda: mx.Cautious(mx.AdamW(*ALL[:-1], weight_decay=0.1)),
        "CautiousAdamW/loop": lambda: adamw(mx.Cautious, 0.05),
        "CautiousAdamW/loop_all": lambda: adamw(mx.Cautious, *ALL),
        "CautiousAdamW/loop_uncorrected": lambda: adamw(mx.Cautious, *ALL, correct_bias=False),
        "CautiousAdamW/count_plus_one": lambda: adamw(COUNTED, 0.05),
        "CautiousAdamW/count_plus_one_all": lambda: adamw(COUNTED, *ALL),
        "CautiousLion/default": lambda: mx.CautiousLion(0.02),
        "CautiousLion/all": lambda: COUNTED(mx.Lion(0.03, 0.8, 0.95, weight_decay=0.3)),
        "CautiousLion/mean": lambda: mx.Cautious(mx.Lion(0.02, weight_decay=0.0)),
        "CautiousLion/mean_all": lambda: mx.Cautious(mx.Lion(0.03, 0.8, 0.95, weight_decay=0.3)),
        "CautiousDecayAdamW/default": lambda: decaying_cautiously(mx.ScaleByAdam(0.9, 0.95), 0.1, 0.05),
        "CautiousDecayAdamW/all": lambda: decaying_cautiously(mx.ScaleByAdam(0.8, 0.9, 1e-3), 0.4, 0.1),
        "CautiousDecayLion/default": lambda: decaying_cautiously(mx.ScaleByLion(0.9, 0.95), 0.1, 0.02),
        "CautiousDecayLion/all": lambda: decaying_cautiously(mx.ScaleByLion(0.8, 0.9), 0.4, 0.03),
    },
    "GrokFast": {
        "GrokFastEMA/default": lambda: grokfast(mx.GrokFast(), "sgd"),
        "GrokFastEMA/all": lambda: grokfast(mx.GrokFast(0.8, 0.5), "sgd"),
        "GrokFastEMA/adamw": lambda: grokfast(mx.GrokFast(), "adamw"),
        "GrokFastEMA/adamw_all": lambda: grokfast(mx.GrokFast(0.8, 0.5), "adamw"),
        "GrokFastMA/default": lambda: grokfast(mx.GrokFastMA(10), "sgd"),
        "GrokFastMA/all": lambda: grokfast(summed(), "sgd"),
        "GrokFastMA/adamw": lambda: grokfast(mx.GrokFastMA(10), "adamw"),
        "GrokFastMA/adamw_all": lambda: grokfast(summed(), "adamw"),
    },
    "MARS": {
        "MARS/default": lambda: mx.MARS(0.05),
        "MARS/all": lambda: mx.MARS(*MARS, where=True, **DECAYED),
        "MARS/vectors": lambda: mx.MARS(*MARS, **DECAYED, **VECTORS),
        "MARS/amsgrad": lambda: mx.MARS(*MARS, where=True, amsgrad=True, **DECAYED),
        "MARS/exact": lambda: mx.MARS(0.05, exact=True),
        "MARS/exact_all": lambda: mx.MARS(*MARS, where=True, exact=True, **DECAYED),
        "MARS/timm": lambda: mx.MARS(
            0.05,
            0.9,
            adam_b2=0.99,
            adam_weight_decay=0.0,
            gamma=after_first(0.0, 0.025),
            max_norm=after_first(1e9, 1.0),
        ),
        "MARS/timm_all": lambda: mx.MARS(
            *MARS, where=True, weight_decay=0.1, gamma=after_first(0.0, 0.2), max_norm=after_first(1e9, 1.0)
        ),
        "MARSLion/default": lambda: mx.MARSLion(0.02),
        "MARSLion/all": lambda: mx.MARSLion(0.03, 0.8, where=True, **DECAYED),
        "MARSLion/exact": lambda: mx.MARSLion(0.02, exact=True),
        "MARSLion/exact_all": lambda: mx.MARSLion(0.03, 0.8, where=True, exact=True, **DECAYED),
    },
    "GPA": {
        "GPAAdamW/default": lambda: mx.GPAAdamW(0.05),
        "GPAAdamW/all": lambda: mx.GPAAdamW(0.1, **GPA, decay_on_y=True),
        "GPAAdamW/decay": lambda: mx.GPAAdamW(schedules.CosineDecay(0.1, STEPS), **GPA),
        "GPAAdamW/evaluated": lambda: mx.GPAAdamW(0.1, **GPA),
        "GPAAdamW/schedule_free": lambda: gpa_without_schedule(),
        "GPAAdamW/schedule_free_evaluated": lambda: gpa_without_schedule(),
    },
    "DiLoCo": {
        "DiLoCo/default": lambda: mx.DiLoCo(mx.AdamW(0.05, 0.9, 0.95, weight_decay=0.1), 8),
        "DiLoCo/all": lambda: diloco(5, 0.4, 0.6, 0.1, 0.8, 0.95, 1e-3, weight_decay=0.2),
        "DiLoCo/workers": lambda: diloco(8, 0.7, 0.9, 0.05, 0.9, 0.95, weight_decay=0.1, axis_name="workers"),
    },
    "Grams": {
        "Grams/default": lambda: mx.GramsAdamW(0.05),
        "Grams/all": lambda: mx.GramsAdamW(*ALL[:-1], weight_decay=0.1),
        "Grams/uncorrected": lambda: adamw(mx.Grams, *ALL, correct_bias=False),
    },
}


def points_of(name: str, case: Case, transform: Any) -> Any:
    """What the released code is compared with: with several workers, they are on the axis after that of the steps."""
    if not name.endswith("workers"):
        return trajectory(case, transform)
    noise = {n: np.stack([x, np.roll(x, -13, axis=0)]) for n, x in SMALL.noise.items()}  # as in `noise_of_worker`
    return jax.vmap(lambda noise: trajectory(case, transform, noise), 0, 1, axis_name="workers")(noise)


@pytest.mark.parametrize("group", GROUPS)
def test_as_in_the_released_code(group: str):
    makers = GROUPS[group].items()
    cases = {n: Case(make, inputs=with_previous, is_evaluated=n.endswith("evaluated")) for n, make in makers}
    assert_near(distances_of("first_order", cases, points_of))


def test_no_setting_is_left_out():
    assert_complete("first_order", GROUPS)
