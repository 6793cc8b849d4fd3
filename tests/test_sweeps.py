"""Making sweeps: members, names, tables, spaces, and the wrong calls."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import schedules, sweeps

CALL: Any = sweeps  # for calls that a type checker refuses
KEY = jax.random.key(0)
ADAMW = mx.AdamW(1e-3)
CHAIN = mx.Chain(
    clip=mx.ClipByGlobalNorm(1.0),
    adamw=mx.AdamW(schedules.WarmupCosineDecay(0.0, 1e-3, warmup_steps=2, decay_steps=10)),
)


@pytest.fixture(autouse=True)
def _as_users_call(monkeypatch: pytest.MonkeyPatch):
    """Without the checks of annotations, which only run in tests and would refuse some of the calls first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def rates(sweep: sweeps.Sweep) -> list[float]:
    return [round(float(x.learning_rate), 7) for x in sweep]


def test_a_grid_is_the_product_whose_last_name_varies_fastest():
    sweep = sweeps.grid(ADAMW, learning_rate=[1e-4, 1e-3], weight_decay=[0.0, 0.1, 0.2])
    expected = [ADAMW.replace(learning_rate=a, weight_decay=b) for a in (1e-4, 1e-3) for b in (0.0, 0.1, 0.2)]
    assert sweep == sweeps.Sweep(expected)
    assert len(sweep) == 6
    assert isinstance(sweep[-1], mx.AdamW)
    assert sweep.table()[5] == {"optimizer": "AdamW", "learning_rate": 1e-3, "weight_decay": 0.2}
    assert repr(sweep) == "Sweep(6 x AdamW; varied: learning_rate, weight_decay)"
    assert len(sweeps.grid(ADAMW)) == 1


def test_two_rates_of_one_optimizer_may_start_equal():
    muon = mx.Muon(0.01, adam_learning_rate=0.01)
    for name, other in (("learning_rate", "adam_learning_rate"), ("adam_learning_rate", "learning_rate")):
        (member,) = sweeps.grid(muon, **{name: [0.1]})
        assert float(getattr(member, name)) == pytest.approx(0.1)
        assert float(getattr(member, other)) == pytest.approx(0.01)


def test_members_are_taken_as_from_a_list():
    sweep = sweeps.zipped(ADAMW, learning_rate=[1e-4, 1e-3, 1e-2], b2=[0.9, 0.99, 0.999])
    assert [row["b2"] for row in sweep.table()] == [0.9, 0.99, 0.999]
    assert rates(sweep[1:]) == [1e-3, 1e-2]
    assert rates(sweep[[2, 0]]) == [1e-2, 1e-4]
    assert rates(sweep[np.array([True, False, True])]) == [1e-4, 1e-2]
    # What was named has a column also where nothing varies any more.
    assert sweep[1:2].table() == sweep[[1]].table() == [{"optimizer": "AdamW", "learning_rate": 1e-3, "b2": 0.99}]
    assert sweep != sweep[:2]
    assert sweep[:2] != sweep[1:]
    assert list(sweep)[1] is sweep[1]
    batched = sweep.batched()
    assert np.shape(batched.learning_rate) == (3,)
    assert np.shape(batched.eps) == (3,)
    with pytest.raises(IndexError):
        sweep[3]
    for mask in ([True], np.ones((3, 1), bool)):
        with pytest.raises(IndexError, match=r"a mask of shape \(3,\), with an entry for each member"):
            sweep[mask]


def test_names_are_those_of_replace():
    sweep = sweeps.grid(CHAIN, **{"clip.max_norm": [0.5, 1.0], "adamw.learning_rate.peak_value": [1e-3, 1e-2]})
    assert sweep.table()[2] == {
        "optimizer": "ClipByGlobalNorm > AdamW",
        "clip.max_norm": 1.0,
        "adamw.learning_rate.peak_value": 1e-3,
    }
    assert len(sweep.groups) == 1
    assert [row["*.b1"] for row in sweeps.grid(CHAIN, **{"*.b1": [0.8, 0.9]}).table()] == [0.8, 0.9]
    assert [row["weight_decay"] for row in sweeps.grid(CHAIN, weight_decay=[0.1, 0.2]).table()] == [0.1, 0.2]


def test_values_are_lists_and_arrays_also_on_a_device():
    expected = [1e-3, 1e-2]
    on_device = mx.SGD(jnp.asarray(0.5))
    for values in (expected, tuple(expected), np.array(expected), jnp.array(expected), list(jnp.array(expected))):
        assert rates(sweeps.grid(mx.SGD(0.1), learning_rate=values)) == expected
        assert rates(sweeps.grid(on_device, learning_rate=values)) == expected
    assert sweeps.grid(on_device, learning_rate=expected).table()[0]["learning_rate"] == 1e-3
    whole = sweeps.grid(ADAMW, learning_rate=[1e-3, schedules.CosineDecay(1e-3, 10)])
    assert len(whole.groups) == 2
    assert whole.table()[1]["learning_rate"].startswith("CosineDecay(")


def test_concat_keeps_order_and_groups_by_structure():
    sweep = sweeps.concat([
        sweeps.grid(mx.SGD(0.1), learning_rate=[0.1, 0.2]),
        mx.Lion(1e-4),
        [mx.SGD(0.3, nesterov=True, momentum=0.9), mx.SGD(0.4)],
    ])  # fmt: skip
    assert [group.places for group in sweep.groups] == [[0, 1, 4], [2], [3]]
    table = sweep.table()
    assert [row["optimizer"] for row in table] == ["SGD", "SGD", "Lion", "SGD", "SGD"]
    assert [row["learning_rate"] for row in table] == [0.1, 0.2, 1e-4, 0.3, 0.4]
    assert "nesterov" not in table[2]
    assert [table[i]["nesterov"] for i in (0, 3)] == [False, True]
    with pytest.raises(ValueError, match=r"there are 3: SGD, Lion, SGD\. `sweeps\.run` trains each"):
        sweep.batched()


def clipped(*optimizers: Any) -> list[sweeps.Sweep]:
    return [sweeps.grid(mx.Chain(mx.ClipByGlobalNorm(1.0), x), learning_rate=[1e-3, 1e-1]) for x in optimizers]


def test_optimizers_are_called_by_what_is_inside():
    nested = mx.MultiSteps(mx.Chain(mx.ClipByGlobalNorm(1.0), mx.ParamEMA(mx.AdamW(0.1))), 2)
    groups = mx.groups(mx.SGD(0.1), {"head": {"learning_rate": 0.2}, "body": {"momentum": 0.9}})
    sweep = sweeps.concat([*clipped(mx.AdamW(1e-3), mx.Lion(1e-3)), nested, groups, mx.SAM(mx.SGD(0.1), mx.SGD(0.2))])
    labels = dict.fromkeys(row["optimizer"] for row in sweep.table())
    assert [*labels] == [
        "ClipByGlobalNorm > AdamW",
        "ClipByGlobalNorm > Lion",
        "MultiSteps(ClipByGlobalNorm > ParamEMA(AdamW))",
        "Partition(SGD)",
        "SAM(SGD)",
    ]
    assert [group.label for group in sweep.groups] == list(labels)
    assert repr(sweep[:4]).startswith("Sweep(2 x ClipByGlobalNorm > AdamW, 2 x ClipByGlobalNorm > Lion; varied:")


def test_concat_takes_names():
    adamw, muon = clipped(mx.AdamW(1e-3), mx.Muon(1e-3))
    mixed = [mx.SGD(0.1), mx.Lion(0.1)]
    sweep = sweeps.concat({"adamw": adamw, "muon": muon, "AdamW again": adamw[:1], "others": mixed})
    expected = ["adamw", "adamw", "muon", "muon", "AdamW again", "others: SGD", "others: Lion"]
    assert [row["optimizer"] for row in sweep.table()] == list(sweep.labels) == expected
    assert sweep[::-2].labels == tuple(expected[::-2])
    assert sweep[[2, 4]].labels == sweeps.concat([sweep[[2, 4]]]).labels == ("muon", "AdamW again")
    assert [group.label for group in sweep.groups[:2]] == ["adamw / AdamW again", "muon"]
    assert "2 x muon, 1 x AdamW again, 1 x others: SGD" in repr(sweep)
    assert sweep == sweeps.concat([adamw, muon, adamw[:1], mixed])  # a name changes no training


def test_a_notebook_shows_a_table():
    sweep = sweeps.grid(ADAMW, learning_rate=np.geomspace(1e-4, 1, 50))
    shown = sweep._repr_html_()
    assert shown.endswith("</table><p>Sweep(50 x AdamW; varied: learning_rate)</p><p>and 10 more</p>")
    assert shown.count("<tr>") == 41
    assert ">0.0001</td>" in shown
    assert "A &gt; &lt;B" in sweeps.concat({"A > <B": ADAMW})._repr_html_()


def test_what_is_read_back_from_the_table_is_the_value_of_the_member():
    sweep = sweeps.grid(mx.SGD(0.1), learning_rate=np.geomspace(1e-5, 1.0, 7))
    for member, row in zip(sweep, sweep.table(), strict=True):
        assert np.float32(row["learning_rate"]) == member.learning_rate
    frozen = sweeps.grid(mx.freeze_hyperparameters(mx.Adam(0.1)), learning_rate=[0.1, 0.2])
    assert [row["learning_rate"] for row in frozen.table()] == [0.1, 0.2]


def test_spaces_are_inverse_distribution_functions():
    u = 0.25
    assert sweeps.Uniform(1, 3).at(u) == 1.5
    assert sweeps.LogUniform(1e-4, 1.0).at(u) == pytest.approx(1e-3)
    decays = sweeps.OneMinus(sweeps.LogUniform(1e-4, 1.0))
    assert decays.at(u) == pytest.approx(0.9)
    assert [decays.at(x) for x in (0.0, 1.0)] == pytest.approx([0.0, 0.9999], abs=1e-9)
    assert sweeps.OneMinus(decays).at(u) == pytest.approx(1e-3)
    assert [sweeps.OneMinus(sweeps.Choice([0.25, 0.5])).at(x) for x in (0.0, 0.9)] == [0.5, 0.75]
    assert math.isfinite(sweeps.OneMinus(sweeps.Normal(1.0, 2.0)).at(0.0))
    assert sweeps.Choice("abcd").at(u) == "b"
    assert sweeps.Choice([1, 2]).at(0.999) == 2
    # Two objects of one text are two choices for Optuna.
    functions = [mx.schedules.WrappedSchedule(lambda t, a=a: a * t) for a in (1.0, 2.0)]
    parameter = sweeps.Choice(functions).parameter("learning_rate")
    assert [parameter.value(choice) for choice in parameter.arguments["choices"]] == functions
    normal = sweeps.Normal(1.0, 2.0)
    assert normal.at(0.5) == pytest.approx(1.0)
    assert normal.at(0.8413447460685429) == pytest.approx(3.0)
    assert math.isfinite(normal.at(0.0))
    assert sweeps.Uniform(0, 1) == sweeps.Uniform(0.0, 1.0) != sweeps.LogUniform(0.1, 1.0)
    assert repr(sweeps.Uniform(0, 1)) == "Uniform(0.0, 1.0)"
    assert len({sweeps.Uniform(0, 1), sweeps.Uniform(0, 1)}) == 1


@pytest.mark.parametrize(
    "name, message", [("sgd.nesterov", "is an option"), ("sgd.momentum", "Give the optimizer a number")]
)
def test_a_name_with_dots_is_proposed_as_it_can_be_written(name: str, message: str):
    chain = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.SGD(0.1))
    with pytest.raises(ValueError, match=rf'{message}.*`optimizer.replace\(\*\*{{"{name}": ...}}\)`'):
        sweeps.grid(chain, **{name: [0.5, 0.9]})


@pytest.mark.parametrize("sampler", ["sobol", "random", None])
def test_samples_depend_on_the_key_alone_and_fill_the_space(sampler: str | None):
    space = {"learning_rate": sweeps.LogUniform(1e-4, 1e-1), "b2": sweeps.Uniform(0.9, 0.999)}
    sweep = sweeps.sample(KEY, ADAMW, 64, sampler=sampler, **space)
    assert sweep == sweeps.sample(jax.random.key(0), ADAMW, 64, sampler=sampler, **space)
    assert sweep != sweeps.sample(jax.random.key(1), ADAMW, 64, sampler=sampler, **space)
    u = (np.log10([x.learning_rate for x in sweep]) + 4) / 3
    v = (np.array([x.b2 for x in sweep]) - 0.9) / 0.099
    counts = np.histogram2d(u, v, bins=4, range=[[0, 1], [0, 1]])[0]
    if sampler == "random":
        assert counts.sum() == 64
        assert counts.std() > 0
    else:
        np.testing.assert_array_equal(counts, 4)


def test_one_dimension_is_drawn_independently_by_default():
    space: dict[str, Any] = {"learning_rate": sweeps.Uniform(0.0, 1.0)}
    assert sweeps.sample(KEY, ADAMW, 5, **space) == sweeps.sample(KEY, ADAMW, 5, sampler="random", **space)
    assert sweeps.sample(KEY, ADAMW, 5, **space) != sweeps.sample(KEY, ADAMW, 5, sampler="sobol", **space)


BATCHED = jax.vmap(mx.AdamW)(jnp.array([1e-3, 1e-2]))
BOTH = r"`sweeps.grid\(learning_rate=..., \*_rate=...\)`: both names refer to `learning_rate`"
DECAY = sweeps.Uniform(0.0, 0.9)
WRONG: list[tuple[type[Exception], str, Any]] = [
    (ValueError, "Did you mean `learning_rate`", lambda: CALL.grid(ADAMW, learning_rte=[1e-3])),
    (ValueError, "part `gamma` in AdamW. There are `learning_rate`, `b1`", lambda: CALL.grid(ADAMW, gamma=[1e-3])),
    (ValueError, "option .* another program.*sweeps\\.concat\\(\\[sweep", lambda: CALL.grid(ADAMW, nesterov=[True])),
    (ValueError, r"optimizer\.replace\(mu_dtype=\.\.\.\)", lambda: CALL.zipped(ADAMW, mu_dtype=["bfloat16"])),
    (ValueError, r"must be in \[0, 1\)", lambda: CALL.grid(ADAMW, b1=[0.9, 1.5])),
    (ValueError, r"list of values.*Write `learning_rate=\[\.\.\.\]`", lambda: CALL.grid(ADAMW, learning_rate=1e-3)),
    (ValueError, "must be a list of values", lambda: CALL.grid(ADAMW, learning_rate="1e-3")),
    (ValueError, r"an array of shape \(2, 2\)", lambda: CALL.grid(ADAMW, learning_rate=np.ones((2, 2)))),
    (ValueError, r"an array of shape \(\)", lambda: CALL.grid(ADAMW, learning_rate=jnp.ones(()))),
    (ValueError, "no values, so that the sweep would be empty", lambda: CALL.grid(ADAMW, learning_rate=[])),
    (ValueError, "has no values", lambda: CALL.grid(ADAMW, learning_rate=np.zeros(0))),
    (ValueError, "1 for `b2`, 2 for `b1`.*sweeps\\.grid", lambda: CALL.zipped(ADAMW, b2=[0.9], b1=[0.8, 0.9])),
    (TypeError, r"make an instance, `AdamW\(\.\.\.\)`", lambda: CALL.grid(mx.AdamW, learning_rate=[1e-3])),
    (TypeError, r"mx\.from_optax", lambda: CALL.grid(optax.adam(1e-3), learning_rate=[1e-3])),
    (ValueError, "give it one optimizer, whose `learning_rate` is a scalar", lambda: CALL.grid(BATCHED, b1=[0.9])),
    (ValueError, r"sweeps\.zipped\(AdamW\(\.\.\.\), learning_rate=values\)", lambda: CALL.Sweep([BATCHED])),
    (ValueError, "needs at least one optimizer", lambda: CALL.Sweep([])),
    (ValueError, "needs at least one optimizer", lambda: CALL.concat([])),
    (ValueError, "needs at least one optimizer", lambda: CALL.grid(ADAMW, b1=[0.9])[1:]),
    (TypeError, "Convert an optax optimizer", lambda: CALL.concat([optax.adam(1e-3)])),
    (TypeError, r"\[mx\.AdamW\(1e-3\), mx\.Lion\(1e-4\)\]", lambda: CALL.concat([3])),
    (ValueError, "the lower one first", lambda: CALL.Uniform(1.0, 0.0)),
    (ValueError, "finite bounds", lambda: CALL.Uniform(0.0, float("inf"))),
    (ValueError, "positive bounds.*`Uniform`", lambda: CALL.LogUniform(0.0, 1.0)),
    (ValueError, "positive standard deviation", lambda: CALL.Normal(0.0, 0.0)),
    (ValueError, "no values to choose", lambda: CALL.Choice([])),
    (TypeError, r"OneMinus\(LogUniform", lambda: CALL.OneMinus(0.1)),
    (ValueError, "a space for at least one", lambda: CALL.sample(KEY, ADAMW, 4)),
    (ValueError, "must be a positive integer, got 0", lambda: CALL.sample(KEY, ADAMW, 0, b1=DECAY)),
    (ValueError, r"`sweeps\.Choice", lambda: CALL.sample(KEY, ADAMW, 4, b1=[0.8, 0.9])),
    (ValueError, r"`sweeps\.LogUniform", lambda: CALL.sample(KEY, ADAMW, 4, b1=0.9)),
    (ValueError, "one of `'random'`, `'sobol'`", lambda: CALL.sample(KEY, ADAMW, 4, b1=DECAY, sampler="halton")),
    (ValueError, r"must be in \[0, 1\)", lambda: CALL.sample(KEY, ADAMW, 4, b1=sweeps.Uniform(2, 3))),
    (ValueError, BOTH, lambda: CALL.grid(ADAMW, learning_rate=[1.0, 2.0], **{"*_rate": [3.0, 4.0]})),
    (ValueError, "there is no hyperparameter", lambda: CALL.sample(KEY, ADAMW, 4, bb=DECAY)),
]


@pytest.mark.parametrize("error, says, call", WRONG, ids=range(len(WRONG)))
def test_wrong_calls_are_answered_with_what_to_write(error: type[Exception], says: str, call: Any):
    with pytest.raises(error, match=says):
        call()
