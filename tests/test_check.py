"""`check`, and the mistakes of which `init` warns: what would train something else than was meant.

A row of `likely_mistakes.tsv` is an optimizer, parameters, what `check` says of them as a regular expression, an
optimizer of which it says nothing, and whether `init` warns.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import modulax as mx

from .test_roles import NTransformer, Transformer, declared

KEY = jax.random.key(0)
MODEL = Transformer(KEY)
HALF = jax.tree.map(lambda x: x.astype(jnp.bfloat16), eqx.filter(MODEL, eqx.is_inexact_array))

WEIGHTS = mx.by_role({mx.Bias: "b", mx.Gain: "b"}, default="w")
HEAD = mx.by_path({"lm_head.*": True, "*": False})
NONE = mx.by_path({"lm_head.*": False, "*": False})
MLP = eqx.nn.MLP(2, 2, 4, 1, key=KEY)
ROWS = Path(__file__).with_name("likely_mistakes.tsv").read_text(encoding="utf-8").splitlines()[1:]
MISTAKES = [tuple(row.split("\t")) for row in ROWS]


@pytest.mark.parametrize(
    "optimizer, model, says, instead, init", [row[1:] for row in MISTAKES], ids=[x for x, *_ in MISTAKES]
)
def test_what_is_found_and_what_to_write(optimizer: str, model: str, says: str, instead: str, init: str):
    wrong, params, right = (eval(text) for text in (optimizer, model, instead))  # eval: the text is our own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = mx.check(wrong, params)
    assert re.search(says, found)
    assert str(mx.check(right, params)) == "nothing found"
    if init == "silent":
        wrong.init(params)
    else:
        with pytest.warns(UserWarning, match=says):
            wrong.init(params)
    right.init(params)


def ascending(learning_rate: Any) -> mx.Chain:
    return mx.Chain(mx.ScaleByAdam(), mx.Scale(learning_rate))


class Ascent(mx.AbstractOptimizer):
    rate: Any = mx.required_number()

    def transform(self):
        return ascending(self.rate)


INSIDE: dict[str, Any] = {
    "ParamEMA": lambda rate: mx.ParamEMA(ascending(rate)),
    "ParamAverage": lambda rate: mx.ParamAverage(ascending(rate)),
    "MultiSteps": lambda rate: mx.MultiSteps(ascending(rate), 2),
    "ApplyIfFinite": lambda rate: mx.ApplyIfFinite(ascending(rate), 2),
    "ConditionallyMask": lambda rate: mx.ConditionallyMask(ascending(rate), lambda step: step > 2),
    "SkipSpikes": lambda rate: mx.SkipSpikes(ascending(rate)),
    "Injected": lambda rate: mx.Injected(ascending(rate)),
    "Scheduled": lambda rate: mx.Scheduled(ascending(rate)),
    "MasterWeights": lambda rate: mx.MasterWeights(ascending(rate)),
    "StochasticRounding": lambda rate: mx.StochasticRounding(ascending(rate)),
    "LowBit": lambda rate: mx.LowBit(ascending(rate)),
    "Offload": lambda rate: mx.Offload(ascending(rate)),
    "Stacked": lambda rate: mx.Stacked(ascending(rate)),
    "LossScaling": lambda rate: mx.LossScaling(ascending(rate)),
    "Lookahead": lambda rate: mx.Lookahead(ascending(rate), 5, 0.5),
    "ScheduleFree": lambda rate: mx.ScheduleFree(ascending(rate), 0.1),
    "SAM": lambda rate: mx.SAM(ascending(rate), mx.SGD(0.1)),
    "SplitRealAndImaginary": lambda rate: mx.SplitRealAndImaginary(ascending(rate)),
    "Flatten": lambda rate: mx.Flatten(ascending(rate)),
    "several": lambda rate: mx.Chain(mx.Clip(1.0), mx.ParamEMA(mx.MultiSteps(ascending(rate), 2))),
    "a function": lambda rate: mx.FromFactory(ascending, learning_rate=rate),
    "a function of a schedule": lambda rate: mx.FromFactory(
        lambda learning_rate: ascending(2 * learning_rate), learning_rate=rate * mx.schedules.Linear(1.0, 0.0, 10)
    ),
    "inject_hyperparams": lambda rate: mx.inject_hyperparams(ascending)(learning_rate=rate),
    "an own optimizer": Ascent,
    "a negative rate": lambda rate: mx.Chain(mx.ScaleByAdam(), mx.ScaleByLearningRate(-rate)),
}


def test_ascent_is_found_inside():
    params = {"w": jnp.ones(2), "scalar": jnp.ones(())}
    for name, make in INSIDE.items():
        (found,) = mx.check(make(0.1), params)
        assert "direction of the gradients after `Scale" in found, name
        assert mx.check(make(-0.1), params) == (), name
    # What else is in a function is found, too; of what is not known, an optimizer negates.
    of_schedule = mx.FromFactory(lambda rate: mx.AdamW(rate), rate=mx.schedules.Linear(0.0, 50.0, 10))
    assert "the learning rate of `AdamW`, `Linear`, reaches 50." in str(mx.check(of_schedule, MODEL))
    assert "weight decay reaches all biases" in str(mx.check(of_schedule, MODEL))
    muon = mx.Muon(mx.schedules.Linear(0.0, 60.0, 9), adam_learning_rate=mx.schedules.Linear(0.0, 70.0, 9))
    assert [x.split(" reaches ")[1][:2] for x in mx.check(muon, MODEL) if "reaches" in x] == ["60", "70"]
    of_user = mx.FromFactory(lambda rate: mx.Chain(mx.Stateless(negated), mx.Scale(rate)), rate=0.1)
    assert mx.check(mx.Chain(mx.Clip(1.0), of_user), params) == ()
    by_vector = mx.Flatten(mx.Masked(ascending(0.1), mx.by_path({"float32": True, "*": False})))
    assert mx.check(by_vector, params) == ()  # whose paths are not those of the parameters
    mixed = mx.Partition({True: mx.SGD(0.1), False: mx.ScaleByMADGRAD(0.1)}, {"w": True, "scalar": False})
    assert mx.check(mixed, params) == ()  # which negates itself


class Learner(eqx.Module):
    network: eqx.nn.Linear
    inner: list[Any]


def test_an_optimizer_in_a_model_is_not_trained():
    network, optimizer = eqx.nn.Linear(2, 1, key=KEY), mx.AdamW(1e-3, weight_decay=0.5)
    message = r"hyperparameters of the `SGD` in the field `inner.0` of the model .*`freeze_hyperparameters\(...\)`"
    trained = Learner(network, [mx.SGD(mx.schedules.Linear(0.1, 0.0, 5))])
    with pytest.warns(mx.LikelyMistake, match=message):
        optimizer.init(trained)
    assert len(mx.check(mx.SGD(0.1), trained)) == 1
    frozen = Learner(network, [mx.freeze_hyperparameters(trained.inner[0])])
    grads = eqx.filter_grad(lambda model: jnp.sum(model.network(jnp.ones(2))))(frozen)
    assert jax.tree.leaves(grads.inner) == []
    new, _ = optimizer.step(grads, optimizer.init(frozen), frozen)
    assert jax.tree.leaves(new.inner) == jax.tree.leaves(frozen.inner) == [pytest.approx(0.1), 0.0, 5.0, 0.0]
    # It is the optimizer that it was, also after a change.
    assert "learning_rate=0.1," in f"{mx.freeze_hyperparameters(optimizer.replace(learning_rate=0.1)):all}"
    changed = mx.freeze_hyperparameters(optimizer).replace(learning_rate=0.5)
    assert set(map(type, jax.tree.leaves(changed))) == {float}
    updates = [t.update(network, t.init(network))[0].weight for t in (trained.inner[0], new.inner[0])]
    assert jnp.array_equal(*updates)
    assert mx.check(mx.SGD(0.1), {"optimizer": mx.SGD(0.1)}) == ()  # trained on purpose
    with pytest.raises(ValueError, match=r"`learning_rate` of `SGD` is an array of shape \(2,\)"):
        mx.freeze_hyperparameters(jax.vmap(mx.SGD)(jnp.ones(2)))


TWO = {"a": jnp.ones((2, 2)), "b": jnp.ones(2)}
FIRST = mx.Freeze({"a": True, "b": False})
QUIET = {
    "decay of the others": mx.Chain(FIRST, mx.AdamW(0.1, weight_decay=0.1, mask={"a": False, "b": True})),
    "frozen again": mx.Chain(FIRST, mx.AdamW(0.1, weight_decay=0.1), FIRST),
    "decay of one group": mx.Chain(FIRST, mx.groups(mx.AdamW(0.1, weight_decay=0.0), {"b": {"weight_decay": 0.1}})),
    "frozen after a step to new parameters": mx.Chain(mx.MADGRAD(0.1), FIRST),
    "an average of others than the frozen": mx.Chain(
        mx.Masked(mx.ParamEMA(mx.SGD(0.1)), {"a": False, "b": True}), FIRST
    ),
    "an average of others than those that are scaled": mx.Chain(
        mx.Partition({"a": mx.ParamEMA(mx.SGD(0.1)), "b": mx.SGD(0.1)}, {"a": "a", "b": "b"}),
        mx.Masked(mx.Chain(mx.Clip(1.0), mx.Scale(0.5)), {"a": False, "b": True}),
    ),
    "growth without end": mx.SGD(mx.schedules.ExponentialDecay(1e-7, 100, 2.0)),
    "a linear schedule for 1000 steps": mx.SGD(lambda step: 1e-3 * (1 - step / 1000)),
    "a root schedule for 1000 steps": mx.SGD(lambda step: 1e-3 * jnp.sqrt(1 - step / 1000)),
    "a search for a learning rate": mx.SGD(lambda step: step / 1000000),
    "super-convergence": mx.SGD(mx.schedules.CosineOneCycle(100, 3.0)),
    "large batches": mx.LARS(mx.schedules.WarmupCosineDecay(0.0, 29.0, 100, 1000)),
    "one after the other": mx.Chain(
        mx.ConditionallyTransform(mx.SGD(0.1), lambda step: step < 2),
        mx.ConditionallyTransform(mx.Adam(0.1), lambda step: step >= 2),
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_no_false_alarm(name: str):
    QUIET[name].init(TWO)


def test_decay_of_what_is_frozen_is_found_inside_an_optimizer():
    frozen = mx.Freeze({"a": False, "b": True})
    with pytest.warns(mx.LikelyMistake, match="`Freeze` stands before weight decay"):
        mx.Chain(frozen, mx.Muon(0.1, adam_learning_rate=0.1, adam_weight_decay=0.1)).init(TWO)
    assert mx.check(mx.Fromage(0.01), MODEL) == ()  # it has no mask that could be given


def negated(updates: Any, params: Any) -> Any:
    return jax.tree.map(jnp.negative, updates)


USUAL = {
    "AdamW": mx.AdamW(mx.schedules.WarmupCosineDecay(0.0, 3e-4, 100, 1000), weight_decay=0.1, mask=mx.decays),
    "clip": mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(1e-3, mask=mx.decays)),
    "SGD": mx.SGD(0.1, momentum=0.9, nesterov=True),
    "Adam": mx.Adam(1e-3),
    "Lion": mx.Lion(1e-4, mask=mx.decays),
    "LAMB": mx.LAMB(1e-3),
    "Adafactor": mx.Adafactor(1e-3),
    "RMSProp": mx.RMSProp(1e-3),
    "Adadelta": mx.Adadelta(1.0),
    "Prodigy": mx.Prodigy(1.0),
    "DoG": mx.DoG(1.0),
    "ScheduleFreeAdamW": mx.ScheduleFreeAdamW(1e-3),
    "Muon": mx.Muon(2e-2, adam_learning_rate=3e-4, weight_decay=0.01),
    "EMA": mx.ParamEMA(mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Adam(1e-3)), 0.999),
    "MultiSteps": mx.MultiSteps(mx.Adam(1e-3), 4),
    "groups": mx.groups(mx.AdamW(1e-3, mask=mx.decays), {"lm_head.*": {"learning_rate": 1e-2}}),
    "plateau": mx.Chain(mx.Adam(1e-3), mx.ReduceOnPlateau(0.5)),
    "multiplier": mx.Chain(mx.Adam(1e-3), mx.Scale(0.5)),
    "lookahead": mx.Lookahead(mx.SGD(0.1), sync_period=5, slow_step_size=0.5),
    "L-BFGS": mx.LBFGS(),
    "freeze": mx.Chain(mx.Adam(1e-3), mx.Freeze(mx.by_path({"embedding.*": True, "*": False}))),
    "layerwise": mx.layerwise_decay(mx.AdamW(1e-3, mask=mx.decays), MODEL, 0.75),
    # What another library or a user wrote may negate.
    "of optax": mx.layerwise_decay(mx.from_optax(optax.adam(1e-3)), MODEL, 0.75),
    "a group of optax": mx.Partition({True: mx.SGD(0.1), False: mx.from_optax(optax.sgd(0.1))}, HEAD),
    "a function": mx.Partition({True: mx.SGD(0.1), False: mx.Chain(mx.Clip(1.0), mx.Stateless(negated))}, HEAD),
    "a function before a multiplier": mx.Chain(mx.Stateless(negated), mx.Scale(2.0)),
}


def test_usual_optimizers_have_no_finding():
    for name, optimizer in USUAL.items():
        assert mx.check(optimizer, MODEL) == (), name
    for name in ("AdamW", "layerwise"):
        assert mx.check(USUAL[name], NTransformer(nnx.Rngs(0))) == (), name
    assert mx.check(USUAL["AdamW"], declared()) == ()  # a model with arrays of its own


@pytest.mark.parametrize(
    "rules",
    [
        {"a/*": 1, "a.w": 2, "*": 3},
        {"head.*": 1, "*.bias": 2, "*": 3},
        {"blocks.?": 1, "blocks.*": 2},
        {"blocks.[01]": 1, "blocks.[0-9]": 2},
    ],
    ids=["other separators", "two parts", "one character", "sets"],
)
def test_a_pattern_that_may_win_is_not_refused(rules: dict[str, int]):
    """Those that never win are in `wrong_calls.tsv`."""
    mx.by_path(rules)


COUNTS: dict[str, Any] = {
    "every_k": lambda n: mx.MultiSteps(mx.SGD(0.1), n),
    "k": mx.ApplyEvery,
    "sync_period": lambda n: mx.Lookahead(mx.SGD(0.1), n, 0.5),
    "max_consecutive_errors": lambda n: mx.ApplyIfFinite(mx.SGD(0.1), n),
    "every": lambda n: mx.ParamEMA(mx.SGD(0.1), every=n),
    "patience": lambda n: mx.ReduceOnPlateau(patience=n),
    "growth_interval": lambda n: mx.LossScaling(mx.SGD(0.1), growth_interval=n),
    "precondition_frequency": lambda n: mx.SOAP(0.1, precondition_frequency=n),
    "update_interval": lambda n: mx.SophiaG(0.1, update_interval=n),
    "update_proj_gap": lambda n: mx.GaLore(0.1, update_proj_gap=n),
}


def test_counts_are_whole():
    for field, make in COUNTS.items():
        with pytest.raises(ValueError, match=rf"\({field}=...\)` must be a whole number .*, got 4.6. Write 5\."):
            make(4.6)
        for count in (4, 4.0, float("inf")):  # never
            make(count)
    with pytest.raises(ValueError, match=r"must be a whole number of at least 0, got -1.0. Write 0\."):
        mx.ApplyIfFinite(mx.SGD(0.1), -1)
    # A schedule may be between two of them, and its optimizer is made of its value.
    scheduled = mx.SOAP(0.1, precondition_frequency=mx.schedules.Linear(1.5, 1.0, 1))
    assert next(scheduled.each_part()).transform.hyperparameters()["precondition_frequency"] == 1.5


def test_rates_that_are_meant_or_not_known():
    for rate in (1.0, 30.0, jnp.asarray(-1.0)):  # `init` does not wait for an array on a device
        mx.LARS(rate).init(TWO)
    mx.Chain(mx.Scale(-1.0), mx.SGD(0.1)).init(TWO)  # the way to maximize
    jax.vmap(lambda rate: mx.SGD(rate).init(TWO))(jnp.asarray([-1.0, 100.0]))


def test_numbers_and_schedules_that_are_traced():
    """In a function of an optimizer, nothing is known of its numbers."""

    @jax.jit
    def train(optimizer: mx.AdamW) -> jax.Array:
        assert mx.check(optimizer, MODEL) == ()
        return optimizer.b1

    train(mx.AdamW(-1.0, mask=mx.decays))
    train(mx.AdamW(mx.schedules.Constant(-1.0), mask=mx.decays))
