"""`check`, and the mistakes of which `init` warns: what would train something else than was meant."""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx

from .test_roles import Declared, NTransformer, Transformer, declared

KEY = jax.random.key(0)
MODEL = Transformer(KEY)
HALF = jax.tree.map(lambda x: x.astype(jnp.bfloat16), eqx.filter(MODEL, eqx.is_inexact_array))

WEIGHTS = mx.by_role({mx.Bias: "b", mx.Gain: "b"}, default="w")
FOUND: dict[str, tuple[Any, Any, str, Any]] = {
    "ascent": (
        mx.Chain(mx.ScaleByAdam(), mx.Scale(1e-3)),
        MODEL,
        r"direction of the gradients after `Scale`.*`ScaleByLearningRate\(rate\)`",
        mx.Chain(mx.ScaleByAdam(), mx.ScaleByLearningRate(1e-3)),
    ),
    "ascent inside": (
        mx.Chain(mx.Clip(1.0), mx.Chain(mx.ScaleByAdam(), mx.Scale(1e-3))),
        MODEL,
        "direction of the gradients",
        mx.Chain(mx.Clip(1.0), mx.Chain(mx.ScaleByAdam(), mx.Scale(-1e-3))),
    ),
    "ascent by a schedule": (
        mx.Chain(mx.ScaleByAdam(), mx.ScaleBySchedule(mx.schedules.Linear(1e-3, 0.0, 10))),
        MODEL,
        "direction of the gradients after `ScaleBySchedule`",
        mx.Chain(mx.ScaleByAdam(), mx.ScaleBySchedule(mx.schedules.Linear(-1e-3, 0.0, 10))),
    ),
    "ascent without a flip": (
        mx.Chain(mx.ScaleByAdam(), mx.ScaleByLearningRate(0.1, flip_sign=False), mx.Scale(0.5)),
        MODEL,
        "direction of the gradients",
        mx.Chain(mx.ScaleByAdam(), mx.ScaleByLearningRate(0.1, flip_sign=False), mx.Scale(-0.5)),
    ),
    "ascent by two signs": (
        mx.Chain(mx.AdamW(1e-3, mask=mx.decays), mx.Scale(-1.0)),
        MODEL,
        "direction of the gradients",
        mx.Chain(mx.Scale(-1.0), mx.Scale(-1.0), mx.AdamW(1e-3, mask=mx.decays)),
    ),
    "ascent after weight decay": (
        mx.Chain(mx.ScaleByAdam(), mx.AddDecayedWeights(0.1, mask=mx.decays), mx.Scale(0.1)),
        MODEL,
        "direction of the gradients",
        mx.Chain(mx.ScaleByAdam(), mx.AddDecayedWeights(0.1, mask=mx.decays), mx.Scale(-0.1)),
    ),
    "ascent of one group": (
        mx.Partition(
            {"w": mx.Chain(mx.ScaleByAdam(), mx.Scale(1e-3)), "rest": mx.SGD(0.1)},
            mx.by_path({"blocks.*": "w", "*": "rest"}),
        ),
        MODEL,
        "direction of the gradients",
        mx.Chain(
            mx.Masked(mx.Chain(mx.ScaleByAdam(), mx.Scale(-1e-3)), mx.by_path({"blocks.*": True, "*": False})),
            mx.Masked(mx.SGD(0.1), mx.by_path({"blocks.*": False, "*": True})),
        ),
    ),
    "two optimizers": (
        mx.Chain(mx.AdamW(1e-3, mask=mx.decays), mx.SGD(0.1)),
        MODEL,
        "two optimizers, and `SGD` gets the steps of `AdamW`",
        mx.Chain(mx.Clip(1.0), mx.SGD(0.1)),
    ),
    "two, one of them in a container": (
        mx.Chain(mx.MultiSteps(mx.SGD(1e-3), 2), mx.SGD(0.1)),
        MODEL,
        "two optimizers, and `SGD` gets the steps of `MultiSteps`",
        mx.MultiSteps(mx.SGD(1e-3), 2),
    ),
    "an average before a clip": (
        mx.Chain(mx.ParamEMA(mx.SGD(1e-3)), mx.ClipByGlobalNorm(1.0)),
        MODEL,
        r"`ParamEMA` keeps parameters .* `ClipByGlobalNorm` .* `ParamEMA\(Chain\(...\)\)`",
        mx.Chain(mx.ClipByGlobalNorm(1.0), mx.ParamEMA(mx.SGD(1e-3)), mx.Identity()),
    ),
    "masters before a clip": (
        mx.Chain(mx.MasterWeights(mx.SGD(1e-3)), mx.Scale(0.5)),
        MODEL,
        "`MasterWeights` keeps parameters",
        mx.MasterWeights(mx.Chain(mx.SGD(1e-3), mx.Scale(0.5))),
    ),
    "a step to new parameters before a multiplier": (
        mx.Chain(mx.MADGRAD(0.1), mx.Scale(0.5)),
        MODEL,
        "`MADGRAD` computes the new parameters from the first ones, .* Put it last",
        mx.Chain(mx.Scale(0.5), mx.MADGRAD(0.1)),
    ),
    "rounding before a multiplier": (
        mx.Chain(mx.StochasticRounding(mx.SGD(1e-3)), mx.Scale(0.5)),
        MODEL,
        "`StochasticRounding` rounds the new parameters",
        mx.StochasticRounding(mx.Chain(mx.SGD(1e-3), mx.Scale(0.5))),
    ),
    "perturbed parameters before a clip": (
        mx.Chain(mx.SAM(mx.SGD(0.1), mx.SGD(0.01)), mx.Scale(0.5)),
        MODEL,
        r"`SAM` leads back from perturbed parameters, .*`SAM\(Chain\(...\), ...\)`",
        mx.Chain(mx.SAM(mx.SGD(0.1), mx.SGD(0.01), opaque_mode=True), mx.Scale(0.5)),
    ),
    "ScheduleFreeAdamW before a factor": (
        mx.Chain(mx.ScheduleFreeAdamW(1e-3), mx.ReduceOnPlateau()),
        MODEL,
        r"`ScheduleFreeAdamW` .* `ScheduleFree\(Chain\(AdamW\(..., b1=0.0\), ReduceOnPlateau\(...\)\), ...\)`",
        mx.ScheduleFree(mx.Chain(mx.Adam(1e-3, b1=0.0), mx.ReduceOnPlateau()), 1e-3),
    ),
    "Mechanize before a multiplier": (
        mx.Chain(mx.Mechanize(mx.SGD(1.0)), mx.Scale(0.5)),
        MODEL,
        "`Mechanize` keeps parameters",
        mx.Mechanize(mx.Chain(mx.SGD(1.0), mx.Scale(0.5))),
    ),
    **{
        f"an average in {name} before a multiplier": (
            mx.Chain(container, mx.Scale(0.5)),
            {"a": jnp.ones(2), "b": jnp.ones((2, 2))},
            "`ParamEMA` keeps parameters",
            mx.Chain(container, mx.Chain(mx.Identity(), mx.Chain())),
        )
        for name, container in {
            "Injected": mx.Injected(mx.ParamEMA(mx.SGD(0.1))),
            "MultiSteps": mx.MultiSteps(mx.ParamEMA(mx.SGD(0.1)), 1),
            "a group": mx.Partition({"x": mx.ParamEMA(mx.SGD(0.1)), "y": mx.SGD(0.1)}, {"a": "x", "b": "y"}),
        }.items()
    },
    "an average before a multiplier of some of its leaves": (
        mx.Chain(
            mx.Partition({"x": mx.ParamEMA(mx.SGD(0.1)), "y": mx.SGD(0.1)}, {"a": "x", "b": "x", "c": "y"}),
            mx.Masked(mx.Scale(0.5), {"a": False, "b": True, "c": True}),
        ),
        {"a": jnp.ones(2), "b": jnp.ones((2, 2)), "c": jnp.ones(3)},
        "`ParamEMA` keeps parameters .* what `Masked` does",
        mx.Chain(
            mx.Partition({"x": mx.ParamEMA(mx.SGD(0.1)), "y": mx.SGD(0.1)}, {"a": "x", "b": "x", "c": "y"}),
            mx.Masked(mx.Scale(0.5), {"a": False, "b": False, "c": True}),
        ),
    ),
    "a freeze before decay": (
        mx.Chain(mx.Freeze(mx.by_path({"lm_head.*": True, "*": False})), mx.AdamW(1e-3, mask=mx.decays)),
        MODEL,
        "`Freeze` stands before weight decay",
        mx.Chain(mx.AdamW(1e-3, mask=mx.decays), mx.Freeze(mx.by_path({"lm_head.*": True, "*": False}))),
    ),
    "a freeze before the second of two": (
        mx.Chain(mx.Freeze(mx.by_path({"lm_head.*": True, "*": False})), mx.AddDecayedWeights(0.1), mx.SGD(0.1)),
        {"lm_head": {"w": jnp.ones(2)}, "w": jnp.ones((2, 2))},
        "`Freeze` stands before weight decay",
        mx.SGD(0.1),
    ),
    "no decay": (mx.AdamW(1e-3, mask=False), MODEL, "no leaf decays", mx.AdamW(1e-3, weight_decay=0.0)),
    "decay of biases": (
        mx.AdamW(1e-3),
        MODEL,
        r"all biases and gains, `blocks.0.attention.query_proj.bias`, .*`mask=decays`",
        mx.AdamW(1e-3, mask=mx.decays),
    ),
    "decay of biases by Muon": (
        mx.Muon(2e-2, adam_learning_rate=1e-3, adam_weight_decay=0.1, mask=mx.decays),
        MODEL,
        r"all biases and gains, .*`adam_weight_decay=0.0`",
        mx.Muon(2e-2, adam_learning_rate=1e-3, weight_decay=0.1),
    ),
    "decay of biases beside Muon": (
        mx.Partition({"w": mx.Muon(2e-2, adam_learning_rate=1e-3), "b": mx.AdamW(1e-3)}, WEIGHTS),
        MODEL,
        r"all biases and gains, .*: `mask=decays`",
        mx.Partition({"w": mx.Muon(2e-2, adam_learning_rate=1e-3), "b": mx.Adam(1e-3)}, WEIGHTS),
    ),
    "Muon and a name": (
        mx.Muon(2e-2, adam_learning_rate=1e-3),
        {"embed": jnp.ones((2, 2))},
        "`embed` is trained as a matrix",
        mx.Muon(2e-2, adam_learning_rate=1e-3, roles={"embed": mx.Embedding()}),
    ),
    "a rate for two": (
        mx.Muon(mx.schedules.WarmupCosineDecay(0.0, 2e-2, 10, 100)),
        MODEL,
        r"AdamW trains .* 0.02, .*`Muon\(0.02, adam_learning_rate=3e-4\)`",
        mx.Muon(mx.schedules.WarmupCosineDecay(0.0, 2e-2, 10, 100), adam_learning_rate=3e-4),
    ),
    "a peak of 100": (
        mx.SGD(mx.schedules.WarmupCosineDecay(1e-3, 100, 1000, 5000)),
        MODEL,
        "`SGD`, `WarmupCosineDecay`, reaches 100.",
        mx.SGD(mx.schedules.WarmupCosineDecay(0.0, 1e-3, 1000, 5000)),
    ),
    "a negative rate": (mx.SGD(-0.1), MODEL, r"`SGD` is negative, -0.1.*`Chain\(Scale\(-1.0\), ...\)`", mx.SGD(0.1)),
    "a rate of 100": (mx.Chain(mx.Clip(1.0), mx.SGD(100.0)), MODEL, "`SGD` reaches 100.", mx.SGD(0.1)),
    "a rate of AdamW in Muon": (
        mx.Muon(0.1, adam_learning_rate=60.0),
        MODEL,
        "the adam learning rate of `Muon` reaches 60.",
        mx.Muon(0.1, adam_learning_rate=0.1),
    ),
    "growing weights": (
        mx.AdamW(1e-3, weight_decay=-0.1, mask=mx.decays),
        MODEL,
        "the weight decay of `AdamW` is -0.1: it makes weights grow",
        mx.AdamW(1e-3, weight_decay=0.1, mask=mx.decays),
    ),
    "infinite weights": (
        mx.AdamW(0.1, weight_decay=np.inf, mask=mx.decays),
        MODEL,
        "the weight decay of `AdamW` is inf: it makes weights infinite",
        mx.AdamW(0.01, weight_decay=0.1, mask=mx.decays),
    ),
    "a momentum above 1": (mx.SGD(0.1, 1.1), MODEL, "the momentum of `SGD` is 1.1: the steps grow", mx.SGD(0.1, 0.9)),
    "a rate of NaN": (mx.SGD(lambda step: jnp.sqrt(-step) - 1), MODEL, "`SGD`, .* is NaN.", mx.SGD(0.1)),
    "lost steps": (
        mx.SGD(mx.schedules.WarmupCosineDecay(0.0, 2e-4, 10, 100)),
        HALF,
        "a learning rate of 0.0002 is too small for parameters in bfloat16",
        mx.MasterWeights(mx.SGD(mx.schedules.WarmupCosineDecay(0.0, 2e-4, 10, 100))),
    ),
}
HEAD = mx.by_path({"lm_head.*": True, "*": False})
FOUND |= {
    "ascent of what no optimizer is applied to": (
        mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Masked(mx.SGD(0.1), HEAD)),
        MODEL,
        "no optimizer is applied to `.*`, and 21 more: the gradients pass through.*loss grows.*otherwise=.zero",
        mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Masked(mx.SGD(0.1), HEAD, otherwise="zero")),
    ),
    **{
        f"{type(inside).__name__} inside {type(outside).__name__}": (
            outside.replace(**{field: inside}),
            MODEL,
            f"`{type(inside).__name__}` .*, and doesn't see what `{type(outside).__name__}` does .*{remedy}",
            right,
        )
        for outside, field, inside, remedy, right in (
            (
                mx.Mechanize(mx.SGD(1.0)),
                "base_optimizer",
                mx.ParamEMA(mx.SGD(1.0)),
                r"Write `ParamEMA\(Mechanize\(...\)\)`",
                mx.ParamEMA(mx.Mechanize(mx.SGD(1.0))),
            ),
            (
                mx.Lookahead(mx.SGD(0.1), 5, 0.5),
                "fast_optimizer",
                mx.Mechanize(mx.SGD(1.0)),
                "Use another optimizer inside `Lookahead`",
                mx.Lookahead(mx.SGD(0.1), 5, 0.5),
            ),
            (
                mx.ScheduleFree(mx.SGD(0.1), 0.1),
                "base_optimizer",
                mx.COCOB(0.1),
                "Use another optimizer inside `ScheduleFree`",
                mx.ScheduleFree(mx.SGD(0.1), 0.1),
            ),
        )
    },
}
FOUND["two rates"] = (
    mx.ScheduleFree(mx.SGD(0.1), 1.0),
    MODEL,
    r"the learning rate of `ScheduleFree` is 1, and that of the `SGD` in it 0.1.*replace\(\*\*\{.\*.learning_rate.:",
    mx.ScheduleFree(mx.SGD(0.1), 1.0).replace(**{"*.learning_rate": 0.1}),
)
SCALED = mx.LossScaling(mx.SGD(0.1))
FOUND |= {
    f"{what} around LossScaling": (
        wrong,
        MODEL,
        f"`{what}` skips infinite gradients, so that `LossScaling` inside does not see them .* leave `{what}` out",
        right,
    )
    for what, wrong, right in (
        ("SkipSpikes", mx.SkipSpikes(SCALED), mx.LossScaling(mx.SkipSpikes(mx.SGD(0.1)))),
        ("ApplyIfFinite", mx.ApplyIfFinite(mx.Chain(SCALED), 2), SCALED),
        ("should_skip", mx.MultiSteps(SCALED, 2, should_skip=mx.skip_not_finite), mx.MultiSteps(SCALED, 2)),
    )
}
NONE = mx.by_path({"lm_head.*": False, "*": False})
MLP = eqx.nn.MLP(2, 2, 4, 1, key=KEY)
SEEN_BY_CHECK: dict[str, tuple[Any, Any, str, Any]] = {
    "a decay that forgets": (
        mx.ParamEMA(mx.SGD(0.1), 0.001),
        MODEL,
        "the decay of `ParamEMA` is 0.001; 0.5 to 1 is usual",
        mx.ParamEMA(mx.SGD(0.1), 0.999),
    ),
    "rates that grow towards the input": (
        mx.layerwise_decay(mx.SGD(0.1), MODEL, 2.0),
        MODEL,
        "the factor of `ScaleByDepth` is 2; 0 to 1 is usual",
        mx.layerwise_decay(mx.SGD(0.1), MODEL, 0.5),
    ),
    "a group without a leaf": (
        mx.Partition({"a": mx.SGD(0.1), "b": mx.Lion(1e-4)}, mx.by_path({"*": "a"})),
        MODEL,
        "no leaf has the label 'b' of `Partition`",
        mx.Partition({"a": mx.SGD(0.1)}, mx.by_path({"*": "a"})),
    ),
    "a clip after an optimizer": (
        mx.Chain(mx.MultiSteps(mx.AdamW(1e-3, mask=mx.decays), 2), mx.ClipByGlobalNorm(1.0)),
        MODEL,
        r"`ClipByGlobalNorm` clips the steps of `MultiSteps`.*put it first: `Chain\(ClipByGlobalNorm\(...\), ...\)`",
        mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(1e-3, mask=mx.decays), mx.ClipByRunningNorm()),
    ),
    "a clip after a rate": (
        mx.Chain(mx.ScaleByAdam(), mx.ScaleByLearningRate(1e-3), mx.Clip(1.0)),
        MODEL,
        "`Clip` clips the steps of `ScaleByLearningRate`",
        mx.Chain(mx.ScaleByAdam(), mx.Clip(1.0), mx.ScaleByLearningRate(1e-3)),
    ),
    "a decay in the place of b1": (
        mx.AdamW(1e-3, 0.004, mask=mx.decays),
        MODEL,
        r"the second argument of `AdamW` is `b1`, here 0.004: did you mean `weight_decay=0.004`\?",
        mx.AdamW(1e-3, 0.0, mask=mx.decays),  # without momentum, as in some GANs
    ),
    "a decay that shrinks all weights": (
        mx.Chain(mx.AdamW(mx.schedules.WarmupCosineDecay(0.0, 3e-3, 10, 100), weight_decay=30.0, mask=mx.decays)),
        MODEL,
        "the learning rate 0.003 times the weight decay 30 is taken from the weights in each step",
        mx.LAMB(0.1, weight_decay=1.0, mask=mx.decays),  # whose ratio bounds the step
    ),
    "a mask the other way round": (
        mx.AdamW(1e-3, mask=mx.by_role({mx.Gain: True}, default=False)),
        MODEL,
        "weight decay reaches `blocks.0.norm.*`, .* and no matrix. Write `mask=decays`",
        mx.AdamW(1e-3, mask=mx.decays),
    ),
    "no head": (
        mx.Muon(2e-2, adam_learning_rate=1e-3),
        MLP,
        'no layer is called `head`: if `layers.1.weight` is the last one, write `roles={"layers.1.weight": Head',
        mx.Muon(2e-2, adam_learning_rate=1e-3, roles={"layers.1.weight": mx.Head()}),
    ),
    "a freeze of nothing": (
        mx.Chain(mx.AdamW(1e-3, mask=mx.decays), mx.Freeze(NONE)),
        MODEL,
        "`Freeze` freezes nothing",
        mx.Chain(mx.AdamW(1e-3, mask=mx.decays), mx.Freeze(HEAD)),
    ),
    "decay rates in another order": (
        mx.AdamW(1e-3, 0.999, 0.9, mask=mx.decays),
        MODEL,
        r"`b1` of `AdamW`, 0.999, is above `b2`, 0.9: were they swapped\?",
        mx.AdamW(1e-3, 0.9, 0.9, mask=mx.decays),
    ),
    "everything frozen": (
        mx.Chain(mx.AdamW(1e-3, mask=mx.decays), mx.Freeze(True)),
        MODEL,
        "every parameter is frozen, so nothing is trained",
        mx.Chain(mx.AdamW(1e-3, mask=mx.decays), mx.Freeze(HEAD)),
    ),
    "a selection of everything": (
        mx.selective_transform(mx.AdamW(1e-3, mask=mx.decays), freeze_mask=NONE),
        MODEL,
        "`Masked` freezes nothing",
        mx.Masked(mx.AdamW(1e-3, mask=mx.decays), True),
    ),
}
FOUND |= SEEN_BY_CHECK
# What `init` doesn't warn of.
ONLY_CHECKED = (
    *SEEN_BY_CHECK,
    *(name for name in FOUND if name.startswith("ascent")),
    "no decay",
    *(name for name in FOUND if name.startswith("decay of biases")),
    "two rates",
)


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_and_what_to_write(name: str):
    wrong, model, message, right = FOUND[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = mx.check(wrong, model)
    assert len(found) == 1, found
    with pytest.warns(UserWarning, match=message):
        warnings.warn(str(found), stacklevel=1)
    assert str(mx.check(right, model)) == "nothing found"
    if name in ONLY_CHECKED:
        wrong.init(model)
    else:
        with pytest.warns(UserWarning, match=message):
            wrong.init(model)
    right.init(model)


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


@pytest.mark.parametrize("name", USUAL)
def test_usual_optimizers_have_no_finding(name: str):
    assert mx.check(USUAL[name], MODEL) == ()
    assert mx.check(USUAL[name].replace() if name == "layerwise" else USUAL["AdamW"], NTransformer(nnx.Rngs(0))) == ()


DEAD: dict[str, Any] = {
    "everything first": lambda: mx.by_path({"*": True, "*.bias": False}),
    "a part of a layer": lambda: mx.by_path({"blocks.*": 1, "blocks.0.*": 2}),
    "the same with slashes": lambda: mx.by_path({"blocks/*": 1, "blocks/0/*": 2}),
    "at the root": lambda: mx.by_path({"*.bias": 1, "bias": 2}),
    "a regular expression": lambda: mx.by_regex({".*": True, ".*bias": False}),
    "a class": lambda: mx.by_type({eqx.Module: True, eqx.nn.Linear: False}),
    "one character": lambda: mx.by_path({"?.bias": 1, "a.bias": 2, "*": 3}),
    "one path of a layer": lambda: mx.by_path({"a/*": 1, "a/w": 2}),
    "a set": lambda: mx.by_path({"[a]*": 1, "a.bias": 2}),
    "an escaped path": lambda: mx.by_regex({r"a\..*": 1, r"a\.bias": 2, ".*": 3}),
    "a lazy expression": lambda: mx.by_regex({".*?": 1, "a.*": 2}),
    "a role": lambda: mx.by_role({mx.AbstractRole: 1, mx.Bias: 2}),
    "a field": lambda: mx.by_type({eqx.nn.Linear: True, (eqx.nn.Linear, "bias"): False}),
    "groups": lambda: mx.groups(mx.SGD(0.1), {"*": {"learning_rate": 1.0}, "*.bias": {"learning_rate": 0.1}}),
    "multipliers": lambda: mx.ScaleByPath({"*": 1.0, "*.bias": 0.1}).init({"bias": jnp.ones(2)}),
}
ALIVE: dict[str, Any] = {
    "everything last": lambda: mx.by_path({"*.bias": False, "*": True}),
    "other separators": lambda: mx.by_path({"a/*": 1, "a.w": 2, "*": 3}),
    "one role of several": lambda: mx.by_role({mx.Bias: 1, mx.AbstractRole: 2}),
    "two parts": lambda: mx.by_path({"head.*": 1, "*.bias": 2, "*": 3}),
    "one character": lambda: mx.by_path({"blocks.?": 1, "blocks.*": 2}),
    "sets": lambda: mx.by_path({"blocks.[01]": 1, "blocks.[0-9]": 2}),
    "a subclass first": lambda: mx.by_type({eqx.nn.Linear: False, eqx.Module: True}),
    "other fields": lambda: mx.by_type({(eqx.nn.Linear, "bias"): False, eqx.nn.Linear: True}),
}


@pytest.mark.parametrize("name", DEAD)
def test_a_pattern_that_never_wins_is_refused(name: str):
    with pytest.raises(ValueError, match=r"can never match: .* Write it first"):
        DEAD[name]()


@pytest.mark.parametrize("name", ALIVE)
def test_a_pattern_that_may_win_is_not_refused(name: str):
    ALIVE[name]()


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


def test_mistakes_with_the_optimizer_of_nnx():
    model = NTransformer(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.SGD(0.1))
    grads = nnx.state(model, nnx.Param)
    with pytest.raises(TypeError, match=r"in the other order: write `update\(model, grads\)`"):
        optimizer.update(grads, model)
    with pytest.raises(AttributeError, match=r"`optimizer.hyperparameters.learning_rate\[...\] = ...`"):
        optimizer.learning_rate = 0.1
    with pytest.raises(ValueError, match=r"nothing reads .*`optimizer.hyperparameters.learning_rate\[...\] = ...`"):
        optimizer.update(model, grads, lr=0.1)
    optimizer.update(model, grads)
    optimizer.hyperparameters.learning_rate[...] = 0.2


@pytest.mark.parametrize(
    "schedule",
    [
        lambda step: 1e-3 * (1 - step / 1000),  # for a run of 1000 steps
        lambda step: 1e-3 * jnp.sqrt(1 - step / 1000),
        lambda step: step / 1000000,  # a search for a learning rate
        mx.schedules.CosineOneCycle(100, 3.0),  # of super-convergence
    ],
    ids=["linear", "root", "growing", "one cycle"],
)
def test_a_schedule_may_be_meant_for_the_steps_of_its_run(schedule: Any):
    mx.SGD(schedule).init(MODEL)


def test_numbers_and_schedules_that_are_traced():
    """In a function of an optimizer, nothing is known of its numbers."""

    @jax.jit
    def train(optimizer: mx.AdamW) -> jax.Array:
        assert mx.check(optimizer, MODEL) == ()
        return optimizer.b1

    train(mx.AdamW(-1.0, mask=mx.decays))
    train(mx.AdamW(mx.schedules.Constant(-1.0), mask=mx.decays))


def test_a_model_with_arrays_of_its_own():
    assert isinstance(declared(), Declared)
    assert mx.check(mx.AdamW(1e-3, mask=mx.decays), declared()) == ()
