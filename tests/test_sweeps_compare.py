"""`sweeps.compare`: the choice by validation, new seeds, edges, intervals, ranks, budgets."""

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy import stats

import modulax as mx
from modulax import sweeps
from modulax.sweeps import _comparison

QUIET: dict[str, Any] = {"progress": False, "devices": 1}
KEY = jax.random.key(0)
RATE = sweeps.LogUniform(1e-3, 1e-1)


def train(optimizer: Any, key: Any) -> Any:
    """A loss that is least at the rate 1 for SGD and 0.01 for Sign; the test metric has another order."""
    rate, noise = jnp.log10(optimizer.learning_rate), jax.random.normal(key)
    at = -2.0 if isinstance(optimizer, mx.SignSGD) else 0.0
    return {"valid": (rate - at) ** 2, "test": 3 + at + 0.1 * noise + rate}


def compared(**options: Any) -> sweeps.Comparison:
    spaces = {
        "SGD": sweeps.SearchSpace(mx.SGD(1e-3), learning_rate=RATE),
        "Sign": sweeps.SearchSpace(mx.SignSGD(1e-3), learning_rate=RATE),
        "given": sweeps.SearchSpace(mx.SignSGD(0.01)),
    }
    return sweeps.compare(spaces, train, "valid", **{"test": "test", "budget": 8, "seeds": 6} | QUIET | options)


@pytest.fixture(scope="module")
def comparison() -> sweeps.Comparison:
    return compared()


def test_the_best_by_validation_is_trained_again_with_new_seeds(comparison: sweeps.Comparison):
    search = comparison.search
    for name, places in comparison.members.items():
        chosen = comparison.optimizers[name]
        assert chosen == search.sweep[places[0]]
        assert search["valid"][places[0], 0] == search["valid"][places, 0].min()
        row = comparison.names.index(name)
        assert comparison.results.sweep[row] == chosen
        np.testing.assert_array_equal(comparison.values[row], comparison.results["test"][row])
    assert not set(map(str, search.keys)) & set(map(str, comparison.results.keys))
    assert comparison.values.shape == (3, 6)
    # The best first, by the metric that is reported.
    assert comparison.intervals.middle.tolist() == sorted(comparison.values.mean(axis=1), key=float)


def test_an_edge_is_extended_and_then_said(comparison: sweeps.Comparison):
    rates = {
        name: [float(comparison.search.sweep[i].learning_rate) for i in places]
        for name, places in comparison.members.items()
    }
    # The loss of SGD falls up to the rate 1: four more members, beyond 0.1 by half of the two decades.
    assert len(rates["SGD"]) == 12
    assert sum(0.1 <= rate <= 1.0 for rate in rates["SGD"]) == 4
    assert rates["SGD"][0] == max(rates["SGD"])
    assert comparison.edges == {"SGD": ("learning_rate",), "Sign": (), "given": ()}
    assert len(rates["Sign"]) == 8
    assert rates["given"] == [pytest.approx(0.01)]
    narrow = compared(extend=False)
    assert {name: len(places) for name, places in narrow.members.items()} == {"SGD": 8, "Sign": 8, "given": 1}
    # The members of one optimizer don't depend on the others.
    assert [float(narrow.search.sweep[i].learning_rate) for i in narrow.members["Sign"]] == rates["Sign"]


def test_no_member_beyond_the_range_of_a_hyperparameter():
    spaces = {"Lion": sweeps.SearchSpace(mx.Lion(0.01), b1=sweeps.Uniform(0.5, 0.99))}
    found = sweeps.compare(spaces, lambda optimizer, key: -optimizer.b1, budget=4, seeds=2, **QUIET)
    assert len(found.members["Lion"]) == 4
    assert found.edges == {"Lion": ("b1",)}


@pytest.mark.parametrize("best", [min, max])
def test_an_edge_of_a_decay_is_extended_on_its_side(best: Any):
    sign = 1 if best is min else -1
    space = sweeps.SearchSpace(mx.Adam(1e-3), b2=sweeps.OneMinus(sweeps.LogUniform(1e-3, 0.2)))
    found = sweeps.compare({"Adam": space}, lambda optimizer, key: sign * optimizer.b2, budget=8, seeds=2, **QUIET)
    b2 = [float(found.search.sweep[i].b2) for i in found.members["Adam"]]
    assert len(b2) == 12
    # In the logarithm of 1 - b2, by half of the width of the space.
    # It can't go below 0, which half of that doesn't.
    width = (0.2 / 1e-3) ** 0.5
    low, high = (1 - 0.2 * width**0.5, 0.8) if best is min else (0.999, 1 - 1e-3 / width)
    assert sum(low <= x <= high for x in b2) == 4
    assert b2[0] == best(b2)
    assert found.edges == {"Adam": ("b2",)}


def test_an_edge_is_extended_beside_one_that_cannot_be():
    spaces = {"b2": sweeps.Uniform(0.9, 0.9999), "learning_rate": RATE, "b1": sweeps.Uniform(0.5, 0.9)}
    space = sweeps.SearchSpace(mx.Adam(1e-3), **spaces)
    at = np.asarray([[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]])
    edges = space.edges(at, np.arange(2))
    assert edges == {"b2": True, "learning_rate": True, "b1": False}
    extended = space.extended(edges, jax.random.key(0), 4)
    assert extended is not None
    sweep, quantiles = extended
    for member, (b2, rate, b1) in zip(sweep, quantiles, strict=True):
        assert 0.9 <= member.b2 < 0.9999
        assert 0.1 <= member.learning_rate <= 1.0
        assert 0.3 - 1e-6 <= member.b1 <= 0.5
        assert (0 <= b2 < 1, 1 <= rate < 1.5, -0.5 <= b1 < 0) == (True, True, True)
    assert space.extended({"b2": True}, jax.random.key(0), 4) is None


def test_more_seeds_decide_among_finalists(tmp_path: Path):
    """With one seed, a rate below 0.01 may be lucky, as its loss depends on the seed alone."""

    def noisy(optimizer: Any, key: Any) -> Any:
        is_small = optimizer.learning_rate < 0.01
        return {"valid": jnp.where(is_small, 3 * jnp.abs(jax.random.normal(key)), 1 + optimizer.learning_rate)}

    spaces = {
        name: sweeps.SearchSpace(mx.SGD(1e-3), learning_rate=sweeps.LogUniform(1e-3, high))
        for name, high in (("wide", 0.1), ("narrow", 0.009))
    }
    spaces = {"given": sweeps.SearchSpace(mx.SGD(0.5))} | spaces  # which needs no finalists

    def chosen(**options: Any) -> sweeps.Comparison:
        settings: dict[str, Any] = {"budget": 8, "extend": False, "key": jax.random.key(1)} | QUIET | options
        return sweeps.compare(spaces, noisy, "valid", **settings)

    alone, several = chosen(), chosen(finalists=8, seeds=12, folder=tmp_path)
    assert float(alone.optimizers["wide"].learning_rate) < 0.01
    assert float(several.optimizers["wide"].learning_rate) >= 0.01
    places = several.members["wide"]
    assert several.optimizers["wide"] == several.search.sweep[places[0]]
    assert sorted(places) == sorted(alone.members["wide"])
    last = sweeps.load(tmp_path / "finalists")
    assert last["valid"].shape == (16, 12)
    keys = [set(map(str, np.asarray(sweeps.load(tmp_path / name).keys).tolist())) for name in ("finalists", "seeds")]
    assert not keys[0] & keys[1]


@pytest.mark.parametrize("best, second, edge", [
    (0.85, 0.95, True),  # the best is none of the extremes, and both of the best quarter are at the upper end
    (0.15, 0.05, False),
    (0.85, 0.5, None),  # by chance: the best quarter is elsewhere
    (0.75, 0.95, None),
    (0.97, 0.5, True),  # the largest that was tried
    (1.2, 1.45, None),  # beyond a space that was extended to 1.5, the outer fifth begins at 1.2
    (1.25, 1.45, True),
])  # fmt: skip
def test_the_best_quarter_at_an_end_is_an_edge(best: float, second: float, edge: bool | None):
    space = sweeps.SearchSpace(mx.Adam(1e-3), learning_rate=RATE, b1=sweeps.Uniform(0.5, 0.9))
    others = [0.02, 0.2, 0.3, 0.4, 0.6, 0.96]
    rates = [*others[:3], second, *others[3:], best] + ([1.5] * 4 if best > 1 else [])
    order = sorted(range(len(rates)), key=lambda i: (rates[i] != best, rates[i] != second, i))
    at = np.stack([rates, [0.5 if rate == best else 0.4 + 0.2 * (i % 2) for i, rate in enumerate(rates)]], axis=1)
    assert space.edges(at, np.array(order)) == ({} if edge is None else {"learning_rate": edge})


def test_spaces_beyond_an_edge():
    above, below = sweeps.LogUniform(1e-4, 1e-2).beyond(True), sweeps.LogUniform(1e-4, 1e-2).beyond(False)
    assert (above.low, above.high) == pytest.approx((1e-2, 1e-1))
    assert (below.low, below.high) == pytest.approx((1e-5, 1e-4))
    assert sweeps.Uniform(1.0, 3.0).beyond(True) == sweeps.Uniform(3.0, 4.0)
    assert sweeps.Uniform(0.5, 3.0).beyond(False) == sweeps.Uniform(0.0, 0.5)
    assert sweeps.Uniform(0.0, 3.0).beyond(False) is None
    assert sweeps.Uniform(-1.0, 3.0).beyond(False) == sweeps.Uniform(-3.0, -1.0)
    decays = sweeps.OneMinus(sweeps.Uniform(0.0, 0.5))
    assert decays.beyond(True) is None
    assert decays.beyond(False) == sweeps.OneMinus(sweeps.Uniform(0.5, 0.75))
    assert sweeps.Choice([1, 2]).beyond(True) is None


def test_intervals_are_those_of_a_paired_bootstrap():
    rng = np.random.default_rng(0)
    common = rng.normal(size=12)
    values = np.stack([common, common + 0.1 + 0.01 * rng.normal(size=12), np.full(12, np.inf)])
    of_each, of_pairs = _comparison.intervals(values, "mean", [1])
    expected = stats.bootstrap((common,), np.mean, method="percentile", n_resamples=9999, rng=2).confidence_interval
    np.testing.assert_allclose((of_each.low[0], of_each.high[0]), expected, atol=0.03)
    np.testing.assert_allclose(of_each.middle[:2], values[:2].mean(axis=1))
    # The common part of the seeds cancels.
    assert 0.09 < of_pairs.low[1, 0] < of_pairs.middle[1, 0] < of_pairs.high[1, 0] < 0.11
    assert of_each.low[2] == np.inf
    assert (of_pairs.low[2, 0], of_pairs.high[0, 2], of_pairs.middle[2, 2]) == (np.inf, -np.inf, 0)
    medians, _ = _comparison.intervals(values, "median", [1])
    assert medians.middle[0] == np.median(common)


def test_the_expected_best_is_that_of_all_choices():
    costs, reported = np.asarray([3.0, 1.0, 2.0, np.inf]), np.asarray([10.0, 20.0, 5.0, 40.0])
    for k, found in enumerate(_comparison.best_of(costs, reported), start=1):
        chosen = [min(places, key=lambda i: costs[i]) for places in itertools.combinations(range(4), k)]
        assert found == pytest.approx(np.mean([reported[i] for i in chosen]))
    many = np.arange(1200.0)  # binomial coefficients of so many overflow
    np.testing.assert_allclose(_comparison.best_of(many, many), (1200 - np.arange(1, 1201)) / np.arange(2, 1202))


def test_ranks_ties_and_the_table(comparison: sweeps.Comparison):
    # `given` and the best of `Sign` have nearly the same rate, and the noise of a seed is common to both.
    assert comparison.names[-1] == "SGD"
    assert comparison.ranks["SGD"] == 3
    assert comparison.ties("SGD") == []
    rows = comparison.table()
    assert [row["optimizer"] for row in rows] == list(comparison.names)
    assert rows[0]["difference"] == 0
    assert rows[2]["difference_low"] > 0
    assert rows[2]["edge"] == "learning_rate"
    assert rows[2]["learning_rate"] == pytest.approx(float(comparison.optimizers["SGD"].learning_rate))
    assert "learning_rate" not in next(row for row in rows if row["optimizer"] == "given")
    for text in (repr(comparison), comparison._repr_html_()):
        assert "interval" in text
        assert "learning_rate=" in text
    assert comparison.expected("SGD").shape == (12,)


def noisy(optimizer: Any, key: Any) -> Any:
    return jnp.where(optimizer.learning_rate > 0.01, jnp.inf, 1.0) + jax.random.normal(key)


def test_runs_that_diverge_and_optimizers_in_doubt():
    spaces = {
        "A": sweeps.SearchSpace(mx.SGD(1e-3), learning_rate=RATE),
        "B": sweeps.SearchSpace(mx.Lion(1e-3), learning_rate=sweeps.LogUniform(1e-3, 1e-2)),
        "C": sweeps.SearchSpace(mx.Adam(0.1)),
    }
    found = sweeps.compare(spaces, noisy, budget=8, seeds=4, mode="min", reduce="median", **QUIET)
    assert found.ties("A") == ["B"]
    assert found.ranks == {"A": 1, "B": 1, "C": 3}
    assert 0 < found.diverged("A") < 1
    assert found.diverged("C") == 1
    assert np.isinf(found.intervals.middle[2])
    assert np.isfinite(found.expected("A")).all()
    assert found.expected("C") == pytest.approx(found.expected("A").max(), abs=3)
    highest = sweeps.compare(spaces, lambda opt, key: -noisy(opt, key), budget=8, seeds=4, mode="max", **QUIET)
    assert highest.names[-1] == "C"
    assert highest.ranks["C"] == 3
    found.plot()


def test_goes_on_from_a_folder(tmp_path: Path, comparison: sweeps.Comparison):
    first = compared(folder=tmp_path)
    np.testing.assert_array_equal(first.values, comparison.values)
    again = compared(folder=tmp_path)
    np.testing.assert_array_equal(first.values, again.values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["search", "seeds"]


def test_runs_are_loaded_by_the_order_of_the_members(tmp_path: Path):
    trainable = sweeps.Trainable(
        lambda optimizer, key: {"params": optimizer.learning_rate},
        lambda optimizer, carry: (carry, train(optimizer, KEY)),
    )
    spaces = {
        "SGD": sweeps.SearchSpace(mx.SGD(1e-3), learning_rate=RATE),
        "Sign": sweeps.SearchSpace(mx.SignSGD(1e-3), learning_rate=RATE),
    }
    found = sweeps.compare(spaces, trainable, "valid", test="test", budget=4, seeds=2, folder=tmp_path, **QUIET)
    assert found.names == ("Sign", "SGD")
    for results in (found.results, found.search):
        for i, member in enumerate(results.sweep):
            assert results.load(i)["params"] == pytest.approx(float(member.learning_rate))
    assert len(found.search.sweep) == 4 + 4 + 2  # those beyond the edge of SGD too


def test_mistakes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    call: Any = sweeps  # for calls that a type checker refuses
    space = {"SGD": sweeps.SearchSpace(mx.SGD(1e-3), learning_rate=RATE)}
    with pytest.raises(TypeError, match=r"takes a search space for each optimizer, by its name"):
        call.compare([*space.values()], train)
    with pytest.raises(TypeError, match=r"takes a `sweeps.SearchSpace\(optimizer, learning_rate=...\)` for 'SGD'"):
        call.compare({"SGD": mx.SGD(0.1)}, train)
    for wrong, says in (
        (lambda: call.compare(space, train, "valid", test="tset", **QUIET), "There is no metric `tset`"),
        (lambda: call.compare(space, train, **QUIET), "Choose a metric"),
        (lambda: call.compare(space, train, "valid", seeds=1, **QUIET), "at least 2, got 1. An interval needs two"),
        (lambda: call.SearchSpace(mx.SGD(0.1), learning_rate=[0.1]), "must be a space"),
        (lambda: compared(budget=2, seeds=2).ties("Adam"), "There is no optimizer 'Adam' in this comparison"),
    ):
        with pytest.raises(ValueError, match=says):
            wrong()
