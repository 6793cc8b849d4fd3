"""Successive halving and population-based training: who is trained how long, from whose carry, and after a restart."""

import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx
from flax.training import train_state

import modulax as mx
from modulax import sweeps
from modulax.linen import TrainState
from modulax.nnx import Optimizer
from modulax.sweeps import _folder
from modulax.sweeps._population import Lane

from .sweep_probes import count_trained

CURVATURES = jnp.array([1.0, 10.0, 100.0])
TRACED: Counter[str] = Counter()


def start(optimizer: Any, key: Any) -> Any:
    TRACED["start"] += 1
    params = jax.random.normal(key, (3,))
    return params, optimizer.init(params), key


def advance(optimizer: Any, carry: Any) -> Any:
    """Five steps on a noisy quadratic."""
    TRACED["advance"] += 1

    def step(carry: Any, _: None) -> Any:
        params, state, key = carry
        key, now = jax.random.split(key)
        grads = CURVATURES * params + 1e-3 * jax.random.normal(now, (3,))
        return (*optimizer.step(grads, state, params), key), None

    carry, _ = jax.lax.scan(step, carry, length=5)
    loss = 0.5 * jnp.sum(CURVATURES * carry[0] ** 2)
    return carry, {"loss": loss, "score": -loss, "steps": carry[1].step}


QUIET: dict[str, Any] = {"progress": False, "devices": 1}
TRAINABLE = sweeps.Trainable(start, advance)
LOGGED = sweeps.Trainable(
    lambda optimizer, key: jax.random.uniform(key),
    lambda optimizer, carry: (carry, {"loss": carry, "rate": jax.jit(jnp.copy)(optimizer.learning_rate)}),
)
NO_STATE = sweeps.Trainable(LOGGED.start, lambda optimizer, carry: (carry, {"loss": carry}))
RATES = sweeps.grid(mx.SGD(1e-3, momentum=0.5), learning_rate=np.logspace(-4, 0, 27))


@pytest.fixture(scope="module")
def whole() -> sweeps.Results:
    return sweeps.run(RATES, TRAINABLE, segments=9, **QUIET)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """How many segments of runs are trained."""
    return count_trained(monkeypatch)


def halving(training: Any = TRAINABLE, **options: Any) -> sweeps.Results:
    return sweeps.halving(RATES, training, **{"metric": "loss", "rungs": [1, 3, 9]} | QUIET | options)


def test_halving_trains_the_best_members_longer(whole: sweeps.Results):
    TRACED.clear()
    found = halving()
    assert TRACED == {"start": 2, "advance": 2}
    assert sorted(found.segments) == [1] * 18 + [3] * 6 + [9] * 3
    losses = whole.metrics["loss"][:, 0]
    alive = np.arange(27)
    for end, kept in ((1, 9), (3, 3)):
        # A loss that overflowed ranks last.
        order = np.argsort(np.where(np.isfinite(losses[alive, end - 1]), losses[alive, end - 1], np.inf), kind="stable")
        assert set(np.flatnonzero(found.segments > end)) == set(alive[order[:kept]])
        alive = alive[order[:kept]]
    for member, end in enumerate(found.segments):
        for name, values in found.metrics.items():
            np.testing.assert_allclose(values[member, :, :end], whole.metrics[name][member, :, :end], rtol=1e-5)
        assert np.isnan(found.metrics["loss"][member, :, end:]).all()
        assert (found.metrics["steps"][member, :, end:] == 0).all()
    member = found.best("loss")[1]["member"]
    assert member in alive
    assert found.final("loss")[member] == np.nanmin(found.final("loss")[alive])
    assert found.best("steps")[1]["member"] in alive  # the others have made fewer steps
    assert not found.diverged.any()  # a dropped member has not diverged
    with pytest.raises(ValueError, match=r"Only the members of `sweeps.pbt` have a lineage"):
        found.lineage(0)


def test_the_work_of_halving_shrinks_with_the_members(monkeypatch: pytest.MonkeyPatch):
    from modulax.sweeps._hooks import Progress

    widths, remaining = list[int](), list[int]()
    monkeypatch.setattr(Progress, "total", lambda bar, n: remaining.append(n))
    monkeypatch.setattr(Progress, "advance", lambda bar, n=1, **shown: remaining.append(-n))
    advanced = Lane.advance
    monkeypatch.setattr(Lane, "advance", lambda lane, n: (widths.append(lane.size.width), advanced(lane, n))[1])
    halving()
    # A ninth of the members is one lane: nine lanes, then three for two segments each, then one for six.
    assert widths == [3] * (9 + 3 * 2 + 1 * 6)
    assert (max(remaining), sum(remaining)) == (27 + 9 * 2 + 3 * 6, 0)
    widths.clear()
    halving(rungs=4, chunk=27)  # three members would leave most of a lane of 27 empty
    assert widths == [27] * (1 + 2) + [3] * 6 + [3] * 18


def test_halving_ranks_all_classes_together_and_by_any_metric():
    both = sweeps.concat([RATES[::3], sweeps.grid(mx.Adam(1e-3), learning_rate=[1e-4, 1e-3])])
    options: Any = {"rungs": [1, 2], "factor": 2, "seeds": 2, "reduce": "median"} | QUIET
    low = sweeps.halving(both, TRAINABLE, "loss", **options)
    high = sweeps.halving(both, TRAINABLE, "score", mode="max", **options)
    np.testing.assert_array_equal(low.segments, high.segments)
    assert sum(low.segments == 2) == 6
    first = np.median(np.where(np.isfinite(x := low.metrics["loss"][:, :, 0]), x, np.inf), axis=1)
    assert set(np.flatnonzero(low.segments == 2)) == set(np.argsort(first, kind="stable")[:6])
    # The smallest rate is the best of one seed, and the largest one in the mean of both.
    opposed = sweeps.Trainable(
        lambda optimizer, key: jax.random.uniform(key),
        lambda optimizer, u: (u, jnp.where(u < 0.5, optimizer.learning_rate, 3 - 2 * optimizer.learning_rate)),
    )
    rates = sweeps.grid(mx.SGD(1.0), learning_rate=[0.0, 0.5, 1.0])
    for reduce, best in (("min", 0), ("mean", 2)):
        found = sweeps.halving(rates, opposed, rungs=2, reduce=reduce, seeds=6, **QUIET)
        assert found.segments[best] == 3
    found = sweeps.halving(both[:3], TRAINABLE, "loss", factor=2, **QUIET)
    assert sorted(found.segments) == [2, 4, 8]


def population() -> sweeps.Sweep:
    spaces: Any = {"learning_rate": sweeps.LogUniform(1e-4, 1e-1), "momentum": sweeps.Uniform(0.0, 0.9)}
    return sweeps.sample(jax.random.key(1), mx.SGD(1e-3, momentum=0.5), 8, **spaces)


def pbt(**options: Any) -> sweeps.Results:
    explore: Any = {"learning_rate": 1.5, "momentum": lambda momentum, u: 0.9 * u}
    given = {"metric": "loss", "segments": 4, "explore": explore} | QUIET | options
    return sweeps.pbt(population(), TRAINABLE, **given)


def test_pbt_is_what_its_history_says():
    TRACED.clear()
    found = pbt()
    assert TRACED == {"start": 2, "advance": 2}
    rates, momenta, parents = found.history["learning_rate"], found.history["momentum"], found.parents
    assert parents is not None
    members, size = population(), 8
    ratios = []
    carries = [start(member, key) for member, key in zip(members, found.keys[:, 0], strict=True)]
    run = jax.jit(advance)
    for segment in range(4):
        before = found.metrics["loss"][:, 0, segment - 1]
        replaced = np.flatnonzero(parents[:, segment] != np.arange(size))
        if segment == 0:
            assert not replaced.size
        else:
            order = np.argsort(before)
            assert set(replaced) == set(order[-2:])
            assert set(parents[replaced, segment]) <= set(order[:2])
            for i in range(size):
                parent = parents[i, segment]
                ratio = rates[i, segment] / rates[parent, segment - 1]
                ratios += [round(float(ratio), 3)]
                assert min(abs(ratio - x) for x in ((1.5, 1 / 1.5) if i in replaced else (1.0,))) < 1e-5
                assert (momenta[i, segment] == momenta[parent, segment - 1]) == (i not in replaced)
        optimizers = [mx.SGD(rates[i, segment], momentum=momenta[i, segment]) for i in range(size)]
        results = [run(optimizer, carries[i]) for optimizer, i in zip(optimizers, parents[:, segment], strict=True)]
        carries = [carry for carry, _ in results]
        losses = [metrics["loss"] for _, metrics in results]
        np.testing.assert_allclose(found.metrics["loss"][:, 0, segment], losses, rtol=1e-4)
    assert set(ratios) == {0.667, 1.0, 1.5}
    optimizer, row = found.best("loss")
    assert row["learning_rate"] == pytest.approx(float(optimizer.hyperparameters()["learning_rate"]))
    line = found.lineage(row["member"])
    assert [step["segment"] for step in line] == [0, 1, 2, 3]
    assert line[-1]["learning_rate"] == pytest.approx(row["learning_rate"], rel=1e-5)
    for earlier, later in itertools.pairwise(line):
        assert earlier["member"] == parents[later["member"], later["segment"]]
        assert earlier["momentum"] == momenta[earlier["member"], earlier["segment"]]


PLUS_SIXTEENTH: Any = {"learning_rate": lambda rate, u: rate + 0.0625}


def assert_applied_rates_are_those_of_the_history(optimizer: Any, training: Any) -> None:
    """The metric of the training is the learning rate that was applied; the largest is replaced by the smallest."""
    members = sweeps.grid(optimizer, learning_rate=[0.125, 0.25, 0.375, 0.5])
    found = sweeps.pbt(members, training, segments=3, explore=PLUS_SIXTEENTH, chunk=3, **QUIET)
    assert found.parents is not None
    assert found.parents[3, 1] == 0
    assert found.history["learning_rate"][3].tolist() == [0.5, 0.1875, 0.1875]
    np.testing.assert_allclose(found.metrics[:, 0], found.history["learning_rate"], rtol=1e-5)


def test_pbt_applies_what_its_history_says_where_the_state_holds_the_hyperparameters():
    def start(optimizer: Any, key: Any) -> Any:
        return jnp.ones(2), optimizer.init(jnp.ones(2))

    def advance(optimizer: Any, carry: Any) -> Any:
        params, state = optimizer.step(carry[0], carry[1], carry[0])
        return (params, state), 1 - params[0] / carry[0][0]

    injected = mx.inject_hyperparams(lambda learning_rate: mx.SGD(learning_rate))(learning_rate=0.1)
    nested = mx.Chain(mx.Clip(1e9), mx.Injected(mx.Partition({"a.b": injected}, "a.b"), hyperparam_dtype=jnp.bfloat16))
    own = mx.Injected(mx.SGD(0.1), static_args="learning_rate")  # which keeps it in the transform
    for optimizer in (nested, own, mx.Injected(mx.Injected(mx.SGD(0.1)), static_args="*")):
        assert_applied_rates_are_those_of_the_history(optimizer, sweeps.Trainable(start, advance))


def test_pbt_changes_the_optimizer_that_the_carry_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # a tree with other leaves is no `TrainState`

    def of_linen(optimizer: Any, key: Any) -> Any:
        return TrainState.create(apply_fn=None, params={"w": jnp.ones(2)}, tx=optimizer)

    def of_linen_on(optimizer: Any, carry: Any) -> Any:
        new = carry.apply_gradients(grads=carry.params)
        rate = 1 - new.params["w"][0] / carry.params["w"][0]
        return new, jnp.where(optimizer[1].learning_rate > 0, rate, 0)

    def of_nnx(optimizer: Any, key: Any) -> Any:
        model = nnx.Dict(w=nnx.Param(jnp.ones(2)))
        return nnx.split((model, Optimizer(model, optimizer)))

    def of_nnx_on(optimizer: Any, carry: Any) -> Any:
        model, optimizer = nnx.merge(*carry)
        before = model.w[0]
        optimizer.update(model, nnx.state(model))
        return nnx.split((model, optimizer)), 1 - model.w[0] / before

    def pure(optimizer: Any, key: Any) -> Any:
        definition, state = of_nnx(optimizer, key)
        return definition, nnx.as_pure(state)

    def pure_on(optimizer: Any, carry: Any) -> Any:
        (definition, state), rate = of_nnx_on(optimizer, carry)
        return (definition, nnx.as_pure(state)), rate

    jitted = jax.jit(lambda optimizer: jax.jit(of_linen, static_argnums=1)(optimizer, None))
    in_program = lambda optimizer, key: jitted(optimizer), of_linen_on
    for training in ((of_linen, of_linen_on), in_program, (of_nnx, of_nnx_on), (pure, pure_on)):
        optimizer = mx.Chain(mx.Clip(1e9), mx.SGD(0.1))
        assert_applied_rates_are_those_of_the_history(optimizer, sweeps.Trainable(*training))


def test_pbt_of_a_space_draws_from_it_and_mode_max_copies_the_largest():
    explore = {"momentum": sweeps.Uniform(0.95, 0.99)}
    found = pbt(metric="score", mode="max", explore=explore, segments=2, exploit=0.5)
    parents = found.parents
    assert parents is not None
    score = found.metrics["score"][:, 0, 0]
    replaced = np.flatnonzero(parents[:, 1] != np.arange(8))
    assert score[replaced].max() <= np.delete(score, replaced).min()
    assert ((found.history["momentum"][replaced, 1] >= 0.95) & (found.history["momentum"][replaced, 1] < 0.99)).all()
    np.testing.assert_array_equal(found.history["momentum"][:, 0], [m.momentum for m in population()])


def test_pbt_copies_no_member_that_diverged():
    training = sweeps.Trainable(
        NO_STATE.start, lambda optimizer, carry: (carry, jnp.where(optimizer.learning_rate < 0.25, carry, jnp.nan))
    )
    members = sweeps.grid(mx.SGD(0.1), learning_rate=np.arange(1, 9) / 10)
    found = sweeps.pbt(members, training, explore={"learning_rate": 1.2}, segments=2, exploit=0.5, **QUIET)
    assert found.parents is not None
    assert set(found.parents[4:, 1].tolist()) <= {0, 1}


def test_pbt_changes_each_value_of_a_pattern_by_itself():
    optimizer = mx.groups(mx.SGD(0.1), {"b": {"learning_rate": 0.001}})
    members = sweeps.concat({"mine": [optimizer] * 4})
    training = sweeps.Trainable(
        lambda o, key: jax.random.uniform(key), lambda o, u: (u, u + 0 * sum(map(jnp.sum, jax.tree.leaves(o))))
    )
    explore = {"*learning_rate": lambda value, u: value * 3}
    found = sweeps.pbt(members, training, segments=2, explore=explore, **QUIET)
    names = ["transforms.b.learning_rate", "transforms.default.learning_rate"]
    assert list(found.history) == names
    assert found.parents is not None
    (replaced,) = np.flatnonzero(found.parents[:, 1] != np.arange(4))
    for name, value in zip(names, (0.001, 0.1), strict=True):
        np.testing.assert_allclose(found.history[name][:, 0], value, rtol=1e-6)
        np.testing.assert_allclose(found.history[name][:, 1], value * np.where(np.arange(4) == replaced, 3, 1))
        assert found.sweep.table()[replaced][name] == pytest.approx(3 * value)
    assert found.sweep.labels == ("mine",) * 4


class Grown:
    def __init__(self, factor: float):
        self.factor = factor

    def __call__(self, value: float, u: float) -> float:
        return value * self.factor


def grown(factor: float, value: float, u: float) -> float:
    return value * factor


@pytest.mark.parametrize(
    "change",
    [Grown, lambda factor: functools.partial(grown, factor), lambda factor: lambda value, u: value * factor],
    ids=["object", "partial", "lambda"],
)
def test_pbt_knows_its_folder_by_the_values_that_functions_returned(change: Any, tmp_path: Any):
    members = sweeps.zipped(mx.SGD(0.1), learning_rate=[1.0, 2.0, 3.0, 4.0])
    training = sweeps.Trainable(
        lambda o, key: jnp.zeros(()), lambda o, x: (x + o.learning_rate, {"loss": x + o.learning_rate})
    )
    options: Any = {"segments": 2, "folder": tmp_path / "search"} | QUIET
    first, again = (sweeps.pbt(members, training, explore={"learning_rate": change(1.5)}, **options) for _ in range(2))
    assert first.history["learning_rate"][:, 1].tolist() == [1, 2, 3, 1.5]
    np.testing.assert_array_equal(again.metrics["loss"], first.metrics["loss"])
    with pytest.raises(ValueError, match=r"whose carries after segment 1 are no more. If a function in `explore` has"):
        sweeps.pbt(members, training, explore={"learning_rate": change(50.0)}, **options)


class KilledError(Exception):
    pass


SEARCHES = {"halving": lambda **o: halving(chunk=4, rungs=[1, 3], **o), "pbt": lambda **o: pbt(chunk=3, **o)}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_that_is_killed_goes_on(search: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    uninterrupted = SEARCHES[search]()
    left = 0

    def killed_after(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(_folder.os, "replace", killed_after(os.replace))
    monkeypatch.setattr(_folder, "save", killed_after(_folder.save))
    found, kills = None, 0
    while found is None:
        left = 7 + kills % 3
        try:
            found = SEARCHES[search](folder=tmp_path / "search")
        except KilledError:
            kills += 1
    assert kills > 2
    for name, values in uninterrupted.metrics.items():
        np.testing.assert_array_equal(found.metrics[name], values)
    np.testing.assert_array_equal(found.segments, uninterrupted.segments)
    assert found.sweep == uninterrupted.sweep
    stored = sweeps.load(tmp_path / "search")
    at_the_end = stored.segments == stored.total
    assert at_the_end.sum() == (found.segments == found.total).sum()
    if search == "pbt":  # a copy has the curve of the member that it continued
        line = [x["member"] for x in found.lineage(found.best("loss")[1]["member"])]
        curve = found["loss"][line, 0, np.arange(found.total)]
        np.testing.assert_array_equal(stored["loss"][stored.best("loss")[1]["member"], 0], curve)
    left = 1000
    again = SEARCHES[search](folder=tmp_path / "search")
    np.testing.assert_array_equal(again["loss"], found["loss"])


def test_a_sweep_goes_on_with_the_members_that_halving_dropped(tmp_path: Path, whole: sweeps.Results, trained: Counter):
    """Two searches and a sweep over one space in one folder: each trains what the others have not."""
    options: Any = {"folder": tmp_path / "both", "tags": {"task": "quadratic"}}
    halving(**options)
    assert trained.total() == 27 + 9 * 2 + 3 * 6
    trained.clear()
    halving(metric="score", mode="max", **options)  # ranks as the other one
    sweeps.halving(RATES, TRAINABLE, "loss", rungs=[1, 4], **QUIET, **options)  # of which 3 are further, of 9 at 3
    assert trained.total() == 6 * 1
    trained.clear()
    found = sweeps.run(RATES, TRAINABLE, segments=9, **QUIET, **options)
    assert trained.total() == 18 * 8 + 6 * 5
    np.testing.assert_allclose(found["loss"], whole["loss"], rtol=1e-5)
    assert [call["kind"] for call in sweeps.load(tmp_path / "both").calls] == ["halving", "run"]


def of_flax(optimizer: Any, key: Any) -> Any:
    return train_state.TrainState.create(apply_fn=None, params={"w": jnp.ones(3)}, tx=optimizer)


def changing(optimizers: Any, training: Any, name: str = "learning_rate") -> Any:
    return sweeps.pbt(optimizers, training, "loss", segments=2, explore={name: 1.2}, **QUIET)


OF_FLAX = sweeps.Trainable(of_flax, lambda optimizer, carry: (carry, {"loss": carry.step}))
NEVER_MEASURED = sweeps.Trainable(
    lambda optimizer, key: optimizer.learning_rate,
    lambda optimizer, carry: (carry, {"loss": jnp.nan * optimizer.learning_rate}),
)
TWICE = mx.ScheduleFree(mx.SGD(0.1), 0.1)
MISTAKES: list[tuple[str, Callable[[], Any]]] = [
    ("finite `loss`: .* not measured at every step, return the last value", lambda: halving(NEVER_MEASURED, rungs=2)),
    ("No member has a finite `loss`", lambda: changing(RATES, NEVER_MEASURED)),
    (
        "`start` returned an optimizer in a part .* `tx` of Flax's `TrainState`. Return `modulax.linen.TrainState`",
        lambda: sweeps.run(RATES, OF_FLAX, segments=2, **QUIET),
    ),
    (
        r'twice, as `learning_rate` and as `base_optimizer.learning_rate`. Write `\*\*\{"\*.learning_rate": ...\}`',
        lambda: sweeps.grid(TWICE, learning_rate=[0.1, 0.2]),
    ),
    (r'Write `name="\*.learning_rate"` for both', lambda: sweeps.lr_finder(TWICE, lambda o, key: 0.0, 1e-3, 1.0)),
    (r"SGD is None.* `optimizer.replace\(momentum=...\)`", lambda: sweeps.grid(mx.SGD(0.1), momentum=[0.5, 0.9])),
    ("`momentum` of SGD is None", lambda: sweeps.hypergradient(lambda o: o.learning_rate, mx.SGD(0.1), "momentum")),
    ("must rise from at least 1, such as", lambda: halving(rungs=[3, 1])),
    ("must rise from at least 1", lambda: halving(rungs=[])),
    (r"`sweeps.halving\(rungs=...\)` must be a positive integer", lambda: halving(rungs=0)),
    (r"`sweeps.halving\(factor=...\)` must be an integer of at least 2", lambda: halving(factor=1)),
    ("There is no metric `lss`.*Did you mean `loss`", lambda: halving(metric="lss")),
    ("Choose a metric: there are `loss`, `score`", lambda: halving(metric=None)),
    (r"can be cut into segments: `sweeps.Trainable\(start, advance\)`", lambda: halving(lambda o, key: {"loss": 0.0})),
    (
        r'Write one of them as `explore=\{"transforms.b.learning_rate": ...\}`, or all of them as `explore=\{"\*.le',
        lambda: changing([mx.groups(mx.SGD(0.1), {"b": {}})] * 4, TRAINABLE),
    ),
    ("one structure, and there are `SGD`, `Adam`", lambda: changing([mx.SGD(0.1), mx.Adam(0.1)], TRAINABLE)),
    ("must be at most 0.5", lambda: pbt(exploit=0.6)),
    ("at least one of the 8 members: 0.12 or more", lambda: pbt(exploit=0.1)),
    ("must be a factor above 1, such as 1.2, a space", lambda: pbt(explore={"learning_rate": 0.8})),
    ("no hyperparameter, option or part `lr` in SGD. Did you mean", lambda: pbt(explore={"lr": 1.2})),
    ("is an option and not a hyperparameter", lambda: pbt(explore={"nesterov": 1.2})),
    (
        "changes `inner.learning_rate`, and `Injected` follows the values in its state, which the carry",
        lambda: changing([mx.Injected(mx.SGD(0.1))] * 4, NO_STATE),
    ),
    (r"`sweeps.pbt\(explore=\{'learning_rate': ...\}\)` has no effect, because", lambda: changing(RATES, NO_STATE)),
    (r"explore=\{'learning_rate': ...\}\)` has no effect, because `advance", lambda: changing(RATES, LOGGED)),
    (
        "changed `b2` from 0.999 to 1.*must be in .* Give a space, or a function that stays in the range",
        lambda: changing([mx.Adam(1e-3)] * 4, TRAINABLE, "b2"),
    ),
]


@pytest.mark.parametrize("message, call", MISTAKES)
def test_a_mistake_is_answered(message: str, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()
