"""`checkpoint.carry`: the state of one optimizer in that of another one, in the middle of a run."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import checkpoint
from modulax.checkpoint._parts import states_in
from modulax.testing import default_params
from modulax.tree._paths import named_leaves

from .instances import TRANSFORMS
from .probes import Proportional

PARAMS = {"b": jnp.linspace(-1.0, 1.0, 3), "w": jnp.ones((2, 3))}
GRADS = [jax.tree.map(lambda p, i=i: jnp.sin(p + i), PARAMS) for i in range(6)]


def after(optimizer: Any, steps: int = 6) -> Any:
    state = optimizer.init(PARAMS)
    for grads in GRADS[:steps]:
        _, state = optimizer.update(grads, state, PARAMS)
    return state


ADAM, SGD, LION = mx.AdamW(0.1, b1=0.8), mx.SGD(0.1, momentum=0.8), mx.Lion(0.1, b2=0.8)
MUON = mx.Muon(0.1, beta=0.8, adam_learning_rate=0.1)


# Of single rules, see `RULES`.
SAME_MOMENTS: dict[str, tuple[Any, Any, list[str]]] = {
    "Adam to NAdam": (ADAM, mx.NAdam(0.1, b1=0.8), ["mu", "nu", "count"]),
    "into a chain": (ADAM, mx.Chain(mx.ClipByGlobalNorm(1e9), mx.Adam(0.1, b1=0.8)), ["mu", "nu", "count"]),
    "in an average": (mx.ParamEMA(ADAM, 0.9), mx.ParamEMA(SGD, 0.9), ["trace"]),
    "out of groups": (mx.groups(ADAM, {"w": {"learning_rate": 1.0}}), SGD, ["trace"]),
    "out of a stack": (mx.Stacked(SGD), LION, ["mu"]),
    "into a stack": (SGD, mx.Stacked(LION), ["mu"]),
}


@pytest.mark.parametrize("name", SAME_MOMENTS)
def test_moments_are_those_of_the_same_gradients(name: str):
    """With equal decay rates, a momentum is the one that the new optimizer would have by itself."""
    old, new, moments = SAME_MOMENTS[name]
    state, report = checkpoint.carry(new, PARAMS, old, after(old))
    for field in moments:
        chex.assert_trees_all_close(mx.tree.get(state, field), mx.tree.get(after(new), field), rtol=1e-5)
    assert any(path.endswith("step") for path in report.fresh)
    new.update(GRADS[0], state, PARAMS)


FORMS = [
    (mx.MultiSteps(mx.Identity(), 9), {"use_grad_mean": False}),
    (mx.MultiSteps(mx.Identity(), 9, use_grad_mean=False), {"use_grad_mean": True}),
    (mx.ScaleByACProp(0.8), {"follow": "optax"}),
    (mx.ScaleByACProp(0.8, follow="optax"), {"follow": "paper"}),
    (mx.ScheduleFree(mx.Scale(-0.1), 0.1), {"follow": "optax"}),
    (mx.ScheduleFree(mx.Scale(-0.1), 0.1, follow="optax"), {"follow": "paper"}),
]


@pytest.mark.parametrize("old, option", [pytest.param(*x, id=f"{type(x[0]).__name__}-{x[1]}") for x in FORMS])
def test_what_options_keep_in_another_form_is_converted(old: Any, option: dict[str, Any]):
    new = old.replace(**option)
    state, report = checkpoint.carry(new, PARAMS, old, after(old, 3))
    assert not report.fresh
    chex.assert_trees_all_close(state, after(new, 3), rtol=1e-5, atol=1e-6)
    start, _ = checkpoint.carry(new, PARAMS, old, old.init(PARAMS))
    chex.assert_trees_all_equal(start, new.init(PARAMS))


OTHER_FORMS = [
    (mx.ScaleByAMSGrad(), {"follow": "optax"}, "nu_max"),
    (mx.ScaleByShampoo(), {"b2": 0.9}, "left"),
    (mx.ScaleByShampoo(b2=0.9), {"kl": True}, "left"),
    (mx.ScaleByShampoo(b2=0.9), {"exponent": 0.5}, "left_root"),
]


@pytest.mark.parametrize("old, option, field", OTHER_FORMS, ids=lambda x: str(x) if isinstance(x, dict) else None)
def test_what_options_keep_in_another_form_is_fresh(old: Any, option: dict[str, Any], field: str):
    new = old.replace(**option)
    for pair in ((old, new), (new, old)):
        state, report = checkpoint.carry(pair[1], PARAMS, pair[0], after(pair[0], 2))
        chex.assert_trees_all_equal(state, pair[1].init(PARAMS))
        assert f"`{field}`" in report.fresh[f"{field}.w"]


def test_what_options_keep_in_one_form_goes_on():
    uncorrected = mx.ScaleByAMSGrad(bias_correction_nu=False)  # for which the two are one
    shampoo = mx.ScaleByShampoo(b2=0.9)
    for old, option in ((uncorrected, {"follow": "optax"}), (shampoo, {"b2": jnp.asarray(0.99), "eps": 1e-6})):
        assert not checkpoint.carry(old.replace(**option), PARAMS, old, after(old, 2))[1].fresh
    state = shampoo.init(PARAMS)
    reports = []

    def carried(b2: Any) -> Any:
        new = mx.ScaleByShampoo(b2=b2)
        found, report = checkpoint.carry(new, PARAMS, new, state)
        reports.append(report.fresh)
        return found.count

    jax.eval_shape(carried, 0.9)
    assert reports == [{}]


def test_the_momentum_of_dion_is_an_average_at_full_rank_alone():
    for beta, factor in ((0.8, 1), (0.0, 0)):
        dion = mx.ScaleByDion(beta)
        state, _ = checkpoint.carry(SGD, PARAMS, dion, after(dion))
        expected = factor * mx.tree.get(after(SGD), "trace")["w"]
        np.testing.assert_allclose(mx.tree.get(state, "trace")["w"], expected, rtol=1e-4, atol=1e-6)
    dion = mx.ScaleByDion(0.8, rank=1)
    _, report = checkpoint.carry(SGD, PARAMS, dion, after(dion))
    assert report.fresh["inner.parts.trace.trace.w"] == "a sum without decay has no average"


def of_numbers(optimizer: Any, params: Any, least: int = 1) -> Any:
    """A state with another number in each array; whole numbers are those of every dtype."""
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(optimizer.init, params)
    return jax.tree.map(lambda x: random.integers(least, 100, x.shape).astype(x.dtype), shapes)


def test_to_itself_is_to_continue():
    """No array of any state is lost, whatever the state is made of. Hyperparameters in a state are not carried."""
    params = default_params()
    classes = {i.cls: i for i in reversed(TRANSFORMS) if i.cls is not mx.Injected}
    optimizers, states, seen = {}, {}, set[type]()
    for instance in reversed(classes.values()):
        name, optimizer = instance.name, instance.make()
        state = of_numbers(optimizer, params)
        inside = {*states_in(state).values()}
        if not inside <= seen:  # a class of states that none before it has
            optimizers[name], states[name] = optimizer, state
            seen |= inside
    reports = {}

    @jax.jit  # one program; the states are constants in it
    def carried() -> dict[str, Any]:
        out = {}
        for name, optimizer in optimizers.items():
            out[name], reports[name] = checkpoint.carry(optimizer, params, optimizer, states[name])
        return out

    for name, state in carried().items():
        assert not reports[name].fresh, name
        chex.assert_trees_all_equal(state, states[name])
        chex.assert_trees_all_equal_dtypes(state, states[name])


RULES = {
    "SGD": mx.SGD(0.1, momentum=0.5),
    "clipped": mx.Chain(mx.ClipByGlobalNorm(1e9), mx.AddDecayedWeights(0.0), mx.SGD(0.1, momentum=0.5)),
    "Ema": mx.Ema(0.5),
    "Lion": mx.Lion(0.1, b2=0.5),
    "Muon": mx.Muon(0.1, beta=0.5, adam_learning_rate=0.1, adam_b1=0.5, adam_b2=0.5, follow="optax"),
    "Adam": mx.Adam(0.1, 0.5, 0.5),
    "LAMB": mx.LAMB(0.1, b1=0.5, b2=0.5),
    "RAdam": mx.RAdam(0.1, 0.5, 0.5),
    "Adan": mx.Adan(0.1, 0.5, 0.5, 0.5),
    "AdEMAMix": mx.AdEMAMix(0.1, b1=0.5, b2=0.5, b3=0.5),
    "SimplifiedAdEMAMix": mx.SimplifiedAdEMAMix(0.1, b1=0.5, b2=0.5),
    "RMSProp": mx.RMSProp(0.1, decay=0.5, momentum=0.5),
    "centered": mx.RMSProp(0.1, decay=0.5, centered=True, momentum=0.5),
    "LARS": mx.LARS(0.1, momentum=0.5),
    "NovoGrad": mx.NovoGrad(0.1, 0.5, 0.5),
    "ADOPT": mx.ADOPT(0.1, b1=0.5, b2=0.5),
    "CAME": mx.CAME(0.1, 0.5, 0.5, 0.5),
    "OptimisticAdam": mx.OptimisticAdam(0.1, b1=0.5, b2=0.5),
    "Prodigy": mx.Prodigy(betas=(0.5, 0.5)),
    "SM3": mx.SM3(0.1, momentum=0.5),
    "normalized": mx.Chain(mx.NormalizeByUpdateNorm(), mx.Trace(0.5)),
    "by Adam": mx.Chain(mx.ScaleByAdam(0.5, 0.5), mx.Trace(0.5)),
}


def test_from_each_to_each_after_the_same_gradients():
    """Whatever is carried between two rules is what the new one has by itself after the same gradients, and counts."""
    some = ("SGD", "Lion", "Muon", "Adam", "RMSProp")
    pairs = [(old, new) for old in RULES for new in RULES if new in some or old in some[:4:3]]

    @jax.jit
    def trained() -> dict[str, Any]:
        def step(states: Any, _: None) -> tuple[Any, None]:
            return {k: RULES[k].update(grads, x, PARAMS)[1] for k, x in states.items()}, None

        return jax.lax.scan(step, {name: x.init(PARAMS) for name, x in RULES.items()}, length=24)[0]

    grads = jax.tree.map(lambda p: 0.01 * (p + 2), PARAMS)
    states = jax.tree.map(np.asarray, trained())
    reports = {}

    @jax.jit
    def carried() -> dict[Any, Any]:
        out = {}
        for old, new in pairs:
            out[old, new], reports[old, new] = checkpoint.carry(RULES[new], PARAMS, RULES[old], states[old])
        return out

    for (old, new), state in carried().items():
        own, taken = dict(named_leaves(states[new])), reports[old, new].carried
        for name, x in named_leaves(state):
            if ".".join(name) in taken:
                np.testing.assert_allclose(x, own[name], rtol=1e-5, err_msg=f"{old} to {new}: {name}")
    averages = {"Ema", "Lion", "Muon", "SGD", "clipped"}  # without a second moment
    adam = {"Adam", "LAMB", "OptimisticAdam", "by Adam"}
    sources = averages | adam | {"RAdam", "Adan", "AdEMAMix", "SimplifiedAdEMAMix", "centered"}
    expected = {(x, y) for x in sources for y in averages} | {(x, y) for x in adam for y in adam | {"Muon"}}
    found = {pair for pair, report in reports.items() if len(report.carried) > 1 and pair[0] != pair[1]}
    assert found == {(old, new) for old, new in pairs if (old, new) in expected and old != new}


def test_what_is_not_carried():
    """A first moment beside a fresh second one, one of two, and states of containers that are not there."""
    both = mx.Partition({"a": SGD, "b": ADAM}, {"b": "a", "w": "b"})
    cases = [
        (SGD, ADAM, "the old optimizer has no `ScaleByAdam` with the same input"),
        (mx.ParamEMA(mx.SGD(0.1), 0.9), SGD, "0 old states have a momentum of the same inputs"),
        (mx.ScaleByAdam(), mx.ScaleByBelief(), "no `ScaleByBelief`"),
        (mx.SAM(mx.SGD(0.1), SGD), SGD, "0 old states have a momentum of the same inputs"),
        (mx.ScaleByGaLore(2, base_optimizer=SGD), SGD, "0 old states have a momentum of the same inputs"),
        (mx.MultiSteps(SGD, 8, use_grad_mean=False), SGD, "0 old states have a momentum of the same inputs"),
    ]
    for old, new, reason in cases:
        state, report = checkpoint.carry(new, PARAMS, old, of_numbers(old, PARAMS))
        assert {name for name in report.carried if name != "step"} == set()
        chex.assert_trees_all_equal(mx.tree.set(state, step=0) if "step" in report.carried else state, new.init(PARAMS))
        assert any(reason in x for x in report.fresh.values())
        assert reason in str(report)
    _, report = checkpoint.carry(LION, PARAMS, both, of_numbers(both, PARAMS))
    assert report.carried == {}
    assert report.fresh["inner.parts.scale_by_lion.mu.b"] == "the old states differ in `count`"


def test_the_sum_of_another_decay_rate_is_of_the_same_average():
    """Of one class as between two, so that a detour by an average changes nothing."""
    slow, fast, average = mx.SGD(0.1, momentum=0.99), mx.SGD(0.1, momentum=0.9), mx.QHM(0.1, momentum=0.9)
    nesterov = mx.SGD(0.1, momentum=0.9, nesterov=True)
    for new in (fast, nesterov):
        direct, report = checkpoint.carry(new, PARAMS, slow, after(slow))
        detour, _ = checkpoint.carry(average, PARAMS, slow, after(slow))
        detour, _ = checkpoint.carry(new, PARAMS, average, detour)
        chex.assert_trees_all_close(direct.inner, detour.inner, rtol=1e-5)
        np.testing.assert_allclose([*report.factors.values()], 0.1, rtol=1e-5)
        np.testing.assert_allclose(direct.inner[0].trace["w"], 0.1 * after(slow).inner[0].trace["w"], rtol=1e-5)
    old, new = mx.ScaleByAggMo((0.0, 0.9, 0.99)), mx.ScaleByAggMo((0.0, 0.5, 0.9))
    state, report = checkpoint.carry(new, PARAMS, old, after(old))
    factors = {name[-1]: x for name, x in report.factors.items()}
    assert factors == {"1": pytest.approx(0.2, rel=1e-5), "2": pytest.approx(0.1, rel=1e-5)}
    np.testing.assert_allclose(state.velocities["w"][2], 0.1 * after(old).velocities["w"][2], rtol=1e-5)
    for decay in (1.0, jnp.asarray(1.0)):  # sums without decay, which are the same
        rule = mx.Trace(decay)
        chex.assert_trees_all_equal(checkpoint.carry(rule, PARAMS, rule, after(rule))[0], after(rule))
        state = jax.jit(lambda x: checkpoint.carry(mx.Trace(x), PARAMS, mx.Trace(x), after(mx.Trace(x)))[0])(decay)
        chex.assert_trees_all_close(state, after(rule))
    _, report = checkpoint.carry(mx.Trace(0.9), PARAMS, mx.Trace(1.0), after(mx.Trace(1.0)))
    assert not report.carried


def test_masters_of_rounded_parameters_are_remarked_on():
    low = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    masters = mx.MasterWeights(SGD)
    state, report = checkpoint.carry(masters, low, SGD, after(SGD))
    assert set(report.fresh) == {"master.b", "master.w"}
    assert "rounded parameter: write `tree.set(state, master=params)` with" in report.fresh["master.w"]
    state = mx.tree.set(state, master=PARAMS)
    _, state = masters.step(GRADS[0], state, low)
    expected, _ = SGD.step(GRADS[0], after(SGD), PARAMS)
    chex.assert_trees_all_close(state.master, expected, rtol=1e-6)
    _, report = checkpoint.carry(mx.Lookahead(SGD, 2, 0.5), PARAMS, SGD, after(SGD))
    assert "rounded" not in report.fresh["slow.w"]


def test_the_average_of_a_filter_is_no_momentum():
    grokfast = mx.Chain(mx.GrokFast(), mx.SGD(0.1))
    for old, new in ((grokfast, SGD), (SGD, grokfast), (mx.GrokFast(), mx.Ema(0.9))):
        _, report = checkpoint.carry(new, PARAMS, old, after(old))
        assert not [name for name in report.carried if not name.endswith("step")]


def test_dtypes_are_those_of_the_new_optimizer():
    state, report = checkpoint.carry(mx.SGD(0.1, 0.75, accumulator_dtype=jnp.bfloat16), PARAMS, ADAM, after(ADAM))
    assert state.inner[0].trace["w"].dtype == jnp.bfloat16
    assert set(report.factors.values()) == {4.0}
    assert "times 4" in str(report)


def test_nnx_takes_a_state_by_assignment():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    grads = nnx.state(model, nnx.Param)
    old, new = (modulax.nnx.Optimizer(model, optimizer) for optimizer in (ADAM, SGD))
    old.update(model, grads)
    weights = nnx.as_pure(nnx.state(model, nnx.Param))
    new.state, report = checkpoint.carry(new.transform, weights, old.transform, old.state)
    assert len(report.carried) == 2
    np.testing.assert_allclose(new.state.inner[0].trace["kernel"], old.state.inner[0].mu["kernel"] / 0.2, rtol=1e-5)
    new.update(model, grads)
    with pytest.raises(ValueError, match="needs a state of the same optimizer"):
        new.state = old.state


LABELS = {"b": "x", "w": "y"}
TWO = mx.Partition({"x": ADAM, "y": ADAM}, LABELS)
FACTORED = mx.Chain(mx.ScaleByFactoredRMS(min_dim_size_to_factor=2))


GOES_ON: dict[str, tuple[Any, Any, Any]] = {
    "one of two": (mx.groups(ADAM, {"w": {"learning_rate": 0.1}}), ADAM, PARAMS),
    "two of one": (ADAM, mx.groups(ADAM, {"w": {"learning_rate": 0.1}}), PARAMS),
    "joined": (TWO, mx.Partition({"x": ADAM, "y": ADAM}, {"b": "y", "w": "y"}), PARAMS),
    "swapped": (TWO, mx.Partition({"y": ADAM, "x": ADAM}, {"b": "y", "w": "x"}), PARAMS),
    "one array": (mx.Adam(0.1, b1=0.8), mx.Chain(mx.Adam(0.1, b1=0.8)), PARAMS["b"]),
    "rows and columns": (FACTORED, FACTORED, PARAMS),
}


@pytest.mark.parametrize("name", GOES_ON)
def test_groups_and_single_arrays_go_on(name: str):
    """Moments go on with the count of their steps, from whatever states they come."""
    old, new, params = GOES_ON[name]

    def run(optimizer: Any, state: Any, steps: range) -> Any:
        updates = None
        for i in steps:
            updates, state = optimizer.update(jax.tree.map(lambda p, i=i: jnp.sin(p + i), params), state, params)
        return updates, state

    _, state = run(old, old.init(params), range(5))
    state, report = checkpoint.carry(new, params, old, state)
    assert {name.rpartition(".")[2] for name in report.fresh} <= {"step"}
    expected, _ = run(old, old.init(params), range(6))
    chex.assert_trees_all_close(run(new, state, range(5, 6))[0], expected, rtol=1e-6)


def test_a_count_is_that_of_all_moments():
    """A parameter without moments makes the count fresh, and one count of two that differ is not taken."""
    thawed, frozen = mx.AdamW(0.1), mx.selective_transform(mx.AdamW(0.1), freeze_mask={"b": True, "w": False})
    state, report = checkpoint.carry(thawed, PARAMS, frozen, of_numbers(frozen, PARAMS))
    chex.assert_trees_all_equal(state.inner, thawed.init(PARAMS).inner)
    assert report.fresh["inner.parts.scale_by_adam.mu.b"] == "the old state has nothing for this parameter"
    assert "the arrays for `b` are fresh" in report.fresh["inner.parts.scale_by_adam.count"]
    # Without a count, each parameter is for itself.
    old = mx.selective_transform(SGD, freeze_mask={"b": True, "w": False})
    state, report = checkpoint.carry(SGD, PARAMS, old, of_numbers(old, PARAMS))
    assert {name for name in report.carried if "trace" in name} == {"inner.parts.trace.trace.w"}
    state, report = checkpoint.carry(ADAM, PARAMS, TWO, of_numbers(TWO, PARAMS))
    assert report.carried == {}
    assert report.fresh["inner.parts.scale_by_adam.mu.b"] == "the old states differ in `count`"
    reasons = []
    jax.eval_shape(lambda x: reasons.append(checkpoint.carry(ADAM, PARAMS, TWO, x)[1].fresh), TWO.init(PARAMS))
    assert "the old states may differ in `count`, which is traced" in reasons[0].values()


CONTAINERS = {
    "average": lambda x: mx.ParamEMA(x, 0.9),
    "window": lambda x: mx.ParamAverage(x, window=2),
    "loss scale": mx.LossScaling,
    "spikes": lambda x: mx.SkipSpikes(x, 4),
    "finite": lambda x: mx.ApplyIfFinite(x, 3),
    "rounding": mx.StochasticRounding,
    "steps": lambda x: mx.MultiSteps(x, 3),
    "masters": mx.MasterWeights,
    "slow": lambda x: mx.Lookahead(x, 5, 0.5),
    "norms": lambda x: mx.Chain(mx.ClipByRunningNorm(), x),
    "noise": lambda x: mx.Chain(mx.AddNoise(0.1, 0.5, 0), x),
    "optax": lambda x: mx.Chain(mx.from_optax(optax.ema(0.9)), x),
    "vectors": mx.Flatten,
}


def test_what_a_container_holds_itself_goes_on():
    for name, around in CONTAINERS.items():
        old, new = around(mx.AdamW(0.1)), around(mx.Adam(0.1))
        _, report = checkpoint.carry(new, PARAMS, old, of_numbers(old, PARAMS))
        assert {x.rpartition(".")[2] for x in report.fresh} == {"step"}, name  # that of the inner optimizer
        _, report = checkpoint.carry(around(mx.SGD(0.1)), PARAMS, old, of_numbers(old, PARAMS))
        assert {x.rpartition(".")[2] for x in report.fresh} == {"step"}, name


def test_statistics_of_other_updates_are_fresh():
    old, same, other = (mx.Chain(x, mx.ClipByRunningNorm()) for x in (mx.AdamW(0.1), mx.Adam(0.5), SGD))
    for new, is_carried in ((same, True), (other, False)):
        _, report = checkpoint.carry(new, PARAMS, old, of_numbers(old, PARAMS))
        assert ("parts.clip_by_running_norm.mean" in report.carried) == is_carried


def test_hyperparameters_in_a_state_are_those_of_the_new_optimizer():
    old = mx.Injected(mx.SGD(Proportional(), momentum=0.8), static_args=("momentum",))
    _, state = old.update(GRADS[0], old.init(PARAMS), PARAMS, value=1.0)
    new = mx.Injected(mx.SGD(0.01, momentum=0.9))
    carried, report = checkpoint.carry(new, PARAMS, old, state)
    trace = jax.tree.map(lambda g: 2 * g, GRADS[0])  # of the decay rate 0.9
    chex.assert_trees_all_close(mx.tree.get(carried, "trace"), trace)
    assert float(carried.hyperparams["learning_rate"]) == np.float32(0.01)
    assert "hyperparameter" in report.fresh["hyperparameters.learning_rate"]


def test_schedules_in_a_new_container_go_on():
    """By the count of the optimizer that it holds, if that one goes on."""
    old = mx.AdamW(mx.schedules.Linear(0.1, 0.0, 10))
    state = of_numbers(old, PARAMS)
    carried, report = checkpoint.carry(mx.ParamEMA(mx.Injected(old)), PARAMS, old, state)
    assert carried.inner_state.count == carried.inner_state.inner_state.step == state.step
    assert report.carried["inner_state.count"] == "step"
    _, report = checkpoint.carry(
        mx.Injected(mx.SGD(0.1)), PARAMS, mx.ScaleByAdam(), of_numbers(mx.ScaleByAdam(), PARAMS)
    )
    assert "count" in report.fresh


def test_moments_in_other_bits():
    params = {"w": jnp.ones((8, 32))}
    grads = {"w": jnp.sin(jnp.arange(256.0)).reshape(8, 32)}
    eight, four = (mx.LowBit(ADAM, bits=bits, min_size=2) for bits in (8, 4))
    _, state = ADAM.update(grads, ADAM.init(params), params)
    for new, old, tolerance in ((eight, ADAM, 0.05), (four, eight, 0.3), (ADAM, four, 0.3)):
        state, report = checkpoint.carry(new, params, old, state)
        assert {name.rpartition(".")[2] for name in report.fresh} <= {"rng_key"}
        moments = mx.tree.dequantize(state)
        error = mx.tree.norm(mx.tree.sub(mx.tree.get(moments, "mu"), mx.tree.scale(0.2, grads)))
        assert error < tolerance * 0.2 * mx.tree.norm(grads)


def test_a_sum_without_decay():
    """Its size has no limit, so that it is no average of anything, also where the decay is traced."""
    endless = mx.SGD(0.1, momentum=1.0)
    for new, old in ((endless, ADAM), (LION, endless)):
        _, report = checkpoint.carry(new, PARAMS, old, of_numbers(old, PARAMS))
        assert "a sum without decay has no average" in report.fresh.values()

    def traced(momentum: Any) -> Any:
        state, report = checkpoint.carry(mx.SGD(0.1, momentum=momentum), PARAMS, ADAM, old)
        assert "times" in str(report)
        return state.inner[0].trace["b"]

    old = of_numbers(ADAM, PARAMS)
    expected = jnp.outer(jnp.asarray([2.0, 10.0, 0.0]), old.inner[0].mu["b"])
    np.testing.assert_allclose(jax.vmap(traced)(jnp.asarray([0.5, 0.9, 1.0])), expected, rtol=1e-5)


@pytest.mark.parametrize("optimizer", [ADAM, mx.LowBit(ADAM, bits=8, min_size=2)], ids=["Adam", "LowBit"])
def test_the_old_state_outlives_the_new_one(optimizer: Any):
    params, old = jax.tree.map(jnp.array, PARAMS), after(optimizer)
    state, _ = checkpoint.carry(optimizer, params, optimizer, old)
    optimizer.step(GRADS[0], state, params, donate=True)
    assert not any(x.is_deleted() for x in jax.tree.leaves(old))
