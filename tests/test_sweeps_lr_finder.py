"""The learning rate range test: the suggestion, what it says of a range that is too narrow, and the plot."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import matplotlib.pyplot as plt
import numpy as np
import pytest

import modulax as mx
from modulax import sweeps
from modulax.sweeps._population import Lane

QUIET: dict[str, Any] = {"progress": False, "devices": 1}


def lowest_at(center: float, width: float = 1.0) -> Any:
    """A training whose loss is 1 at small rates, falls to 0.01 in three decades, and is infinite past the minimum."""

    def train(optimizer: mx.SGD, key: jax.Array) -> Any:
        x = jnp.log10(optimizer.learning_rate / center) / width
        loss = 10.0 ** (-2 * jnp.clip(1 + x / 3, 0, 1))
        noise = 1 + 0.01 * jax.random.normal(key)
        return {"loss": jnp.where(x > 0.2, jnp.inf, loss * noise), "accuracy": 1 - loss}

    return train


def find(train: Any, low: float = 1e-6, high: float = 1.0, **options: Any) -> sweeps.RangeTest:
    given: dict[str, Any] = {"metric": "loss"} | QUIET | options
    return sweeps.lr_finder(mx.SGD(1.0), train, low, high, **given)


@pytest.fixture(scope="module")
def found() -> sweeps.RangeTest:
    return find(lowest_at(1e-2), seeds=3)


def test_the_suggestion_is_before_the_minimum(found: sweeps.RangeTest):
    np.testing.assert_allclose(found.rates, np.geomspace(1e-6, 1.0, 64))
    np.testing.assert_array_equal(found.scores, found.results.scores("loss", reduce="median"))
    # 80 % of the three decades between 1e-5 and 1e-2, but for the smoothing
    assert found.suggestion == pytest.approx(10**-2.6, rel=0.25)
    assert found.suggestion in found.rates
    assert found.note == ""
    assert found.results.diverged[found.rates > 2e-2].all()
    assert found.peak == found.rates[np.argmin(found.smoothed)] > found.suggestion
    said = f"suggestion {found.suggestion:.3g}, best smoothed score at {found.peak:.3g}"
    assert repr(found) == f"RangeTest({said}; 64 rates from 1e-06 to 1)"
    # A score is worse than that of the lowest rate by no more than that: the cliff doesn't reach far to the left.
    assert found.smoothed.max() <= found.scores[0] * 1.0001
    assert np.argmin(found.smoothed) == pytest.approx(np.argmin(found.scores), abs=3)


def test_large_metrics_may_be_good(found: sweeps.RangeTest):
    best = find(lowest_at(1e-2), metric="accuracy", mode="max")
    assert best.note == ""
    assert best.suggestion is not None
    assert found.suggestion is not None
    # An accuracy has 80 % of its gain earlier than the logarithm of the loss.
    assert 1e-4 < best.suggestion < found.suggestion
    assert best.smoothed.max() == pytest.approx(0.99, rel=2e-3)
    assert best.peak == best.rates[np.argmax(best.smoothed)]
    assert best.plot().get_yscale() == "linear"
    plt.close("all")


def test_a_rate_that_diverges_in_another_metric_is_the_worst():
    def train(optimizer: Any, key: Any) -> Any:
        rate = optimizer.learning_rate
        is_bad = rate > 0.1
        return {"loss": jnp.where(is_bad, jnp.nan, 1.0), "accuracy": jnp.where(is_bad, 0.9, 0.5 + rate)}

    found = find(train, 1e-3, n=8, metric="accuracy", mode="max")
    np.testing.assert_array_equal(np.isneginf(found.scores), found.rates > 0.1)
    assert (found.peak or 1.0) < 0.1


@pytest.mark.parametrize(
    "low, high, has_suggestion, note",
    [
        (1e-6, 1e-4, True, "at the upper border of the range: raise `high`, 0.0001"),
        (8e-3, 1.0, True, "at the lower border of the range: lower `low`, 0.008"),
        (1e-9, 1e-6, False, "The score hardly depends on the rate: raise `high`, or train longer"),
        (0.1, 1.0, False, "The training diverged at every rate: lower `low`, 0.1"),
        (1e-2, 1.0, False, "No rate is better than the lowest: lower `low`, 0.01"),
    ],
)
def test_a_range_that_is_too_narrow(low: float, high: float, has_suggestion: bool, note: str):
    found = find(lowest_at(1e-2), low, high, n=32)
    assert note in found.note
    assert note in repr(found)
    assert (found.suggestion is not None) == (found.peak is not None) == has_suggestion
    assert found.plot(plt.figure().gca()) is not None


def test_gradient_descent_on_a_quadratic():
    """The limit of stability is 0.02. Trained in segments; with the rate inside a schedule."""
    curvatures = jnp.array([1.0, 100.0])

    def start(optimizer: Any, key: jax.Array) -> Any:
        return jnp.ones(2), optimizer.init(jnp.ones(2))

    def advance(optimizer: Any, carry: Any) -> Any:
        carry, _ = jax.lax.scan(lambda c, _: (optimizer.step(curvatures * c[0], c[1], c[0]), None), carry, length=20)
        return carry, jnp.sum(curvatures * carry[0] ** 2)

    optimizer = mx.Chain(mx.SGD(mx.schedules.Linear(1.0, 0.0, 40)))
    options: dict[str, Any] = {"name": "learning_rate.init_value", "segments": 2} | QUIET
    found = sweeps.lr_finder(optimizer, sweeps.Trainable(start, advance), 1e-5, 1.0, **options)
    assert found.suggestion is not None
    assert 2e-3 < found.suggestion < 0.04  # the rate falls to zero, so that it may begin above the limit
    assert found.name == "learning_rate.init_value"
    assert found.results.metrics.shape == (64, 1, 2)


def test_wrong_calls(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    train = lowest_at(1e-2)
    line, stairs = mx.schedules.Linear(1.0, 0.0, 40), lambda step: jnp.where(step < 9, 0.1, 0.01)
    scheduled = lambda rate: sweeps.lr_finder(mx.SGD(rate), train, 1e-6, 1.0)  # noqa: E731
    monkeypatch.setattr(Lane, "advance", None)  # before anything is trained
    two = "two positive rates, the lower one first"
    for call, message in (
        (lambda: scheduled(line), "is a schedule, Linear. Name the number in it .*`learning_rate.init_value`"),
        (lambda: scheduled(stairs), "is a schedule, WrappedSchedule. Test constant rates"),
        (lambda: find(train, 1.0, 1e-6), two),
        (lambda: find(train, 0.0, 1.0), two),
        (lambda: find(train, 1e-6, np.inf), two),
        (lambda: find(train, n=2), r"n=...\)` must be an integer of at least 3"),
        (lambda: find(train, metric="los"), "There is no metric `los`.* Did you mean `loss`"),
        (lambda: find(train, reduce="sum"), r"scores\(reduce=...\)` must be one of"),
        (lambda: find(train, segments=2), r"lr_finder\(segments=2\)` needs a training that can be cut"),
        (lambda: find(train, name="lr"), r"sweeps.lr_finder\(lr=...\)`.*Did you mean `learning_rate`"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_plot(found: sweeps.RangeTest, monkeypatch: pytest.MonkeyPatch):
    ax = found.plot(plt.figure().gca())
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("learning rate", "loss")
    points, line, mark = ax.get_lines()
    np.testing.assert_array_equal(points.get_xdata(), found.rates)
    np.testing.assert_array_equal(line.get_ydata(), found.smoothed)
    np.testing.assert_array_equal(mark.get_xdata(), [found.suggestion] * 2)
    (band,) = ax.collections
    assert band.get_paths()[0].get_extents().x1 < 0.02  # as far as a seed is finite
    low, high = ax.get_ylim()
    assert low < 0.01 < 1 < high < 10
    plt.close("all")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"requires matplotlib: `pip install \"modulax\[sweeps\]\"`"):
        found.plot()
