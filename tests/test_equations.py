"""The options of Adam against their equations, and the arithmetic of chains.

The files `test_equations*.py` have an equation for each class without released code, and for each option that no frozen
trajectory has (`test_released_*.py`). They are transcribed to NumPy from the cited papers: one function for each
algorithm, which yields its points.
"""

import numpy as np
import pytest

import modulax as mx

from .transcriptions import ETA, Cases, Points, assert_equations, looked_ahead, moments, points, start

pytestmark = pytest.mark.usefixtures("x64")


# --- Kingma and Ba 2014, algorithm 1; Loshchilov and Hutter 2017, algorithm 2; Dozat 2016 ----------


def adam(b1: float, b2: float, eps: float, root: float = 0.0, decay: float = 0.0, nesterov: bool = False) -> Points:
    w = start()
    for t, g, m, v in moments(b1, b2):
        m_hat = looked_ahead(b1, t, g, m) if nesterov else m / (1 - b1**t)
        w = w - ETA * (m_hat / (np.sqrt(v / (1 - b2**t) + root) + eps) + decay * w)
        yield w


CASES: Cases = {
    "Adam": (lambda: mx.Adam(ETA, 0.8, 0.95, 1e-3, eps_root=1e-2), lambda: adam(0.8, 0.95, 1e-3, 1e-2)),
    "NAdam": (lambda: mx.NAdam(ETA, eps=1e-5), lambda: adam(0.9, 0.999, 1e-5, nesterov=True)),
    "NAdamW": (
        lambda: mx.NAdamW(ETA, 0.8, weight_decay=0.1),
        lambda: adam(0.8, 0.999, 1e-8, decay=0.1, nesterov=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_its_equations(name: str):
    assert_equations(CASES[name])


def test_chains_are_associative():
    a, b, c = mx.Trace(0.8), mx.ClipByGlobalNorm(1.0), mx.AdamW(ETA)
    flat = points(mx.Chain(a, b, c))
    np.testing.assert_allclose(points(mx.Chain(mx.Chain(a, b), c)), flat, rtol=1e-14)
    np.testing.assert_allclose(points(mx.Chain(a, mx.Chain(b, c))), flat, rtol=1e-14)
