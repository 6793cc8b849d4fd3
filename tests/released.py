"""The trajectories of released code that are frozen in `tests/oracles`, and how far ours are from them."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


@functools.cache
def frozen(name: str) -> dict[str, Any]:
    """The arrays of `tests/oracles/NAME.npz`: trajectories by `algorithm/setting/array`, and draws."""
    with np.load(Path(__file__).parent / "oracles" / f"{name}.npz") as data:
        return dict(data)


def distances(name: str, ours: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The largest distance of each of our trajectories, as a fraction of the largest entry of the array.

    Args:
        name: the name of the file.
        ours: the points of each array, by `algorithm/setting`.
    """
    found = {}
    for case, points in ours.items():
        theirs = {n: frozen(name)[f"{case}/{n}"] for n in points}
        each = [np.max(np.abs(points[n] - x)) / np.max(np.abs(x)) for n, x in theirs.items()]
        found[case] = float(np.max(each))
    return found


def algorithms_of(cases: Iterable[str]) -> set[str]:
    """The algorithms of cases, which are called `algorithm/setting`."""
    return {case.partition("/")[0] for case in cases}


def settings_of(name: str, algorithms: set[str]) -> set[str]:
    """All frozen settings of some algorithms, as `algorithm/setting`."""
    return {key.rpartition("/")[0] for key in frozen(name) if key.partition("/")[0] in algorithms}
