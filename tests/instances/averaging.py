"""Containers with a second set of parameters: averages, look-ahead, adversaries, and a scale that is found."""

from typing import Any

import jax
import optax

import modulax as mx
from modulax import schedules

from ..differences import Difference
from ._instance import Instance, twins


class PlainLookahead:
    """Optax's lookahead for plain parameters: the slow ones are kept in the state."""

    def __init__(self, *args: Any) -> None:
        self.inner = optax.lookahead(*args)

    def init(self, params: Any) -> Any:
        return params, self.inner.init(optax.LookaheadParams.init_synced(params))

    def update(self, updates: Any, state: Any, params: Any) -> Any:
        slow, state = state
        pair: Any
        pair, state = self.inner.update(updates, state, optax.LookaheadParams(params, slow))
        return pair.fast, (jax.tree.map(lambda s, u: s + u, slow, pair.slow), state)


def adversary() -> mx.Chain:
    return mx.Chain(mx.Normalize(), mx.SGD(0.1, 0.5))


def optax_adversary() -> Any:
    return optax.chain(optax.contrib.normalize(), optax.sgd(0.1, 0.5))


TRANSFORMS = (
    Instance("ParamEMA", lambda: mx.ParamEMA(mx.SGD(0.05, 0.9), schedules.EMAWarmup(0.9), start=1, every=2)),
    Instance("ParamEMA(debias=False)", lambda: mx.ParamEMA(mx.SGD(0.05, 0.9), 0.9, debias=False)),
    Instance("ParamAverage", lambda: mx.ParamAverage(mx.SGD(0.05, 0.9), 1, 2)),
    Instance("ParamAverage(window=2)", lambda: mx.ParamAverage(mx.SGD(0.05, 0.9), window=2)),
    Instance(
        "ScheduleFree",
        lambda: mx.ScheduleFree(mx.Chain(mx.AddDecayedWeights(0.1), mx.SGD(0.05)), 0.05, 0.8),
        lambda: optax.contrib.schedule_free(optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.05)), 0.05, 0.8),
    ),
    twins("ScheduleFreeSGD", mx.ScheduleFreeSGD, optax.contrib.schedule_free_sgd, 0.1),
    Instance("ScheduleFreeAdamW", lambda: mx.ScheduleFreeAdamW(0.05, 10, weight_decay=0.1)),
    twins(
        "ScheduleFreeAdamW-optax",
        mx.ScheduleFreeAdamW,
        optax.contrib.schedule_free_adamw,
        0.05,
        10,
        weight_decay=0.1,
        follow="optax",
    ),
    Instance(
        "Lookahead",
        lambda: mx.Lookahead(mx.SGD(0.05, 0.9), 3, 0.4, reset_state=True),
        lambda: PlainLookahead(optax.sgd(0.05, 0.9), 3, 0.4, True),
    ),
    Instance(
        "SAM",
        lambda: mx.SAM(mx.SGD(0.05, 0.9), adversary(), sync_period=3),
        lambda: optax.contrib.sam(optax.sgd(0.05, 0.9), optax_adversary(), sync_period=3),
    ),
    Instance("Mechanize", lambda: mx.Mechanize(mx.SGD(1.0))),
    Instance("Mechanize-recomputed", lambda: mx.Mechanize(mx.SGD(1.0), s_init=1e-3, store_delta=False)),
    Instance(
        "Mechanize-optax",
        lambda: mx.Mechanize(mx.SGD(1.0, 0.9), 0.1, s_init=1e-3, num_betas=3, follow="optax"),
        lambda: optax.contrib.mechanize(optax.sgd(1.0, 0.9), 0.1, s_init=1e-3, num_betas=3),
    ),
)

DIFFERENCES = (
    Difference(
        "ScheduleFree, evaluation parameters",
        "the average is stored in the state, and so is z, in at least float32: `b1` may be 0 or follow a schedule, "
        "`eval_params` is idempotent, and bfloat16 parameters lose no precision",
        "the average is derived from the parameters, (y - (1 - b1) z) / b1: NaN for `b1=0`, not "
        "idempotent, and in bfloat16 limited by the rounding of the parameters",
        "correctness is worth one more copy of the parameters",
        "test_averaging.py::test_low_precision_loses_nothing",
        "https://arxiv.org/abs/2405.15682",
    ),
    Difference(
        "ScheduleFree with a schedule",
        "weights an iterate by the learning rate of the step that led to it",
        "weights it by the learning rate of the next step: the count starts at 1; so does `follow='optax'`",
        "otherwise, with a warm-up from zero, the initial point contributes to the average",
        "test_equations_averaging.py::test_the_weights_of_optax_are_those_of_the_next_step",
        "https://github.com/google-deepmind/optax/pull/1744",
    ),
    Difference(
        "ScheduleFreeAdamW with a warm-up",
        "the warm-up starts at 1/T of the learning rate",
        "the warm-up starts at zero, so that the first step doesn't move; so does `follow='optax'`",
        "the authors' code. In the paper's algorithm 1, the bias correction multiplies the learning rate, so that "
        "early iterates have less weight: `follow='paper'`",
        "test_equations_averaging.py::test_the_warm_up_of_optax_begins_at_zero",
        "https://github.com/facebookresearch/schedule_free, https://arxiv.org/abs/2405.15682",
    ),
    Difference(
        "Lookahead, plain parameters",
        "the slow weights are stored in the state, and `eval_params` returns them, so it works in any container",
        "an error at the first update: parameters must be a pair, which does not match the gradients",
        "wrapping an optimizer should not require changing the model",
        "test_lookahead.py::test_both_modes_make_the_same_steps",
        "https://arxiv.org/abs/1907.08610",
    ),
    Difference(
        "Lookahead(reset_state=True)",
        "the state is reset for the parameters at which the next round starts",
        "the state is reset for the parameters before the last step",
        "some states, such as DoG's, store the initial parameters",
        "test_lookahead.py::test_a_fresh_state_is_one_for_the_parameters_where_the_round_begins",
        "",
    ),
    Difference(
        "SAM(sync_period=1)",
        "the optimizer alone",
        "each step starts from the parameters before the last one",
        "optax reads its cache before writing it",
        "test_equations_averaging.py::test_a_round_of_one_step_forgets_nothing",
        "https://github.com/google-deepmind/optax",
    ),
    Difference(
        "Mechanize",
        "the authors' code: the state stores the sum of the updates, and a negative reward is clipped",
        "the sum is computed from the parameters, the product is clipped, a negative reward is kept; so "
        "does `follow='optax'`",
        "in bfloat16, a sum that is computed from the parameters stays zero, and training stalls. In the paper, the "
        "first step has length zero: `follow='paper'`",
        "test_lookahead.py::test_mechanic_learns_in_low_precision",
        "https://github.com/optimizedlearning/mechanic, https://arxiv.org/abs/2306.00144",
    ),
)
