"""Statistics of a comparison: bootstrap intervals over seeds, and the expected best of some members."""

from collections.abc import Sequence

import numpy as np

from ._panels import REDUCTIONS, Spread

DRAWS = 10_000
COVERED = 0.95


def intervals(values: np.ndarray, reduce: str, seed: Sequence[int]) -> tuple[Spread, Spread]:
    """The mean or median with its bootstrap interval of 95 % of each row, and of the difference of each pair of rows.

    All rows are drawn with the same seeds, so that differences are those within a seed.

    Args:
        values: the values, `[row, seed]`. One that is infinite makes a mean infinite.
        reduce: `"mean"` or `"median"`.
        seed: a seed of NumPy's generators.
    """
    places = np.random.default_rng(seed).integers(values.shape[1], size=(DRAWS, values.shape[1]))
    # With a row for the values themselves.
    places = np.concatenate([np.arange(values.shape[1])[None], places])
    drawn = REDUCTIONS[reduce](values[:, places], axis=-1)
    return _interval(drawn), _interval(difference(drawn[:, None], drawn[None]))


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The difference, which is 0 for two values that are both infinite."""
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, a - b)


def _interval(drawn: np.ndarray) -> Spread:
    """The value, which is the first one, and quantiles of the others: values that occur, since some may be infinite."""
    tail = (1 - COVERED) / 2
    low, high = np.quantile(drawn[..., 1:], [tail, 1 - tail], axis=-1, method="inverted_cdf")
    return Spread(drawn[..., 0], low, high)


def best_of(costs: np.ndarray, reported: np.ndarray) -> np.ndarray:
    """The expectation of what is reported of the best of k members, for each k from 1 to their number.

    The best is that of the least cost among k members, of which each choice is equally likely.

    Args:
        costs: the cost of each member.
        reported: what is reported of it.
    """
    in_order = reported[np.argsort(costs, kind="stable")]
    n = len(costs)
    # The chance that the k members have that of rank i, if they have none of the better ones. Quotients of binomial
    # coefficients overflow from about a thousand members on.
    chosen = np.minimum(np.arange(1, n + 1)[:, None] / (n - np.arange(n)), 1)
    none_before = np.cumprod(np.hstack([np.ones((n, 1)), 1 - chosen[:, :-1]]), axis=1)
    return (chosen * none_before) @ in_order
