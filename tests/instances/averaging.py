"""Containers with a second set of parameters: averages, look-ahead, adversaries, and a scale that is found."""

from typing import Any

import jax
import optax

import modulax as mx

from ..differences import Difference
from ._instance import Instance


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
    Instance(
        "ScheduleFree",
        lambda: mx.ScheduleFree(mx.Chain(mx.AddDecayedWeights(0.1), mx.SGD(0.05)), 0.05, 0.8),
        lambda: optax.contrib.schedule_free(optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.05)), 0.05, 0.8),
    ),
    Instance("ScheduleFreeSGD", lambda: mx.ScheduleFreeSGD(0.1), lambda: optax.contrib.schedule_free_sgd(0.1)),
    Instance("ScheduleFreeAdamW", lambda: mx.ScheduleFreeAdamW(0.05, 10, weight_decay=0.1)),
    Instance(
        "ScheduleFreeAdamW-optax",
        lambda: mx.ScheduleFreeAdamW(0.05, 10, weight_decay=0.1, follow="optax"),
        lambda: optax.contrib.schedule_free_adamw(0.05, 10, weight_decay=0.1),
        is_variant=True,
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
    Instance(
        "Mechanize-optax",
        lambda: mx.Mechanize(mx.SGD(1.0, 0.9), 0.1, s_init=1e-3, num_betas=3, follow="optax"),
        lambda: optax.contrib.mechanize(optax.sgd(1.0, 0.9), 0.1, s_init=1e-3, num_betas=3),
        is_variant=True,
    ),
)

DIFFERENCES = (
    Difference(
        "ScheduleFree, the parameters to evaluate",
        "the mean is kept in the state, in at least float32: `b1` may be 0 or follow a schedule, evaluating twice is "
        "evaluating once, and bfloat16 parameters lose nothing",
        "the mean is derived from the parameters, (y - (1 - b1) z) / b1: NaN for `b1=0`, another mean when it is "
        "derived from itself, and in bfloat16 no better than the rounding of the parameters",
        "one copy of the parameters more is less than a wrong answer",
        "test_averaging.py::test_low_precision_loses_nothing",
        "https://arxiv.org/abs/2405.15682",
    ),
    Difference(
        "ScheduleFree with a schedule",
        "a point weighs by the learning rate of the step that led to it",
        "it weighs by that of the step after: the count starts at 1; `follow='optax'` does so too",
        "with a warm-up from zero, the start has a weight in the mean otherwise",
        "test_equations_averaging.py::test_the_weights_of_optax_are_those_of_the_next_step",
        "https://github.com/google-deepmind/optax/pull/1744",
    ),
    Difference(
        "ScheduleFreeAdamW",
        "the bias correction is a factor of the learning rate, so that early points weigh less; the warm-up begins "
        "with a T-th of the rate",
        "the bias correction is AdamW's, and the warm-up begins with zero; `follow='optax'` does so too",
        "it is the paper's algorithm 1",
        "test_equations_averaging.py::test_the_bias_correction_of_optax_weighs_no_point",
        "https://arxiv.org/abs/2405.15682, algorithm 1",
    ),
    Difference(
        "Lookahead, plain parameters",
        "the slow parameters are kept in the state, and `eval_params` returns them: it works in any container",
        "an error in the first update: parameters are a pair, which is no tree like the gradients",
        "who wraps an optimizer should not have to change the model",
        "test_lookahead.py::test_both_modes_make_the_same_steps",
        "https://arxiv.org/abs/1907.08610",
    ),
    Difference(
        "Lookahead(reset_state=True)",
        "the fresh state is for the parameters where the round begins",
        "it is for those before the last step",
        "some states, such as DoG's, remember where they began",
        "test_lookahead.py::test_a_fresh_state_is_one_for_the_parameters_where_the_round_begins",
        "",
    ),
    Difference(
        "SAM(sync_period=1)",
        "the optimizer alone",
        "each step starts from the parameters before the last one",
        "the cache is read before it is written",
        "test_equations_averaging.py::test_a_round_of_one_step_forgets_nothing",
        "https://github.com/google-deepmind/optax",
    ),
    Difference(
        "Mechanize",
        "the paper's algorithm: the sum of the steps is in the state, the first step only looks, a negative reward is "
        "forgotten",
        "the sum is computed from the parameters, the product is clipped, a negative reward is remembered; "
        "`follow='optax'` does so too",
        "in bfloat16 a sum that is computed from the parameters stays zero, and nothing is learned",
        "test_lookahead.py::test_mechanic_learns_in_low_precision",
        "https://arxiv.org/abs/2306.00144, algorithm 1",
    ),
)
