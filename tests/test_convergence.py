"""Optimizers solve one of four problems, with a learning rate that suits them; `nox -s laws` runs all four.

Those that find their step size, look at matrices or curvatures, or are built around others, and a few plain ones. How
the others step is tested by their equations.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import modulax as mx
from modulax import schedules

from .problems import PROBLEMS
from .reach import EVERYTHING

STEPS = 400


def _rate(rate: float) -> schedules.CosineDecay:
    return schedules.CosineDecay(rate, STEPS)


OPTIMIZERS: dict[str, Callable[[float], mx.AbstractTransform]] = {
    "SGD": lambda rate: mx.SGD(_rate(rate)),
    "momentum": lambda rate: mx.SGD(_rate(rate / 5), momentum=0.9),
    "Adam": lambda rate: mx.Adam(_rate(rate)),
    "MARSShampoo": lambda rate: mx.MARSShampoo(_rate(rate), adam_weight_decay=0.0),
    "Sophia": lambda rate: mx.Sophia(_rate(rate), gamma=1.0, weight_decay=1e-6),
    "AdaHessian": lambda rate: mx.AdaHessian(_rate(10 * rate)),
    "Adafactor": lambda rate: mx.Adafactor(_rate(3 * rate), min_dim_size_to_factor=2),
    "Muon": lambda rate: mx.Muon(_rate(rate), adam_learning_rate=_rate(rate)),
    "Scion": lambda rate: mx.Scion(_rate(rate), scale=1.0, constrained=False),
    "Dion": lambda rate: mx.Dion(_rate(rate), weight_decay=0.0, adam_weight_decay=0.0),
    "SOAP": lambda rate: mx.SOAP(_rate(rate), weight_decay=0.0),
    "EShampoo": lambda rate: mx.EShampoo(_rate(rate), b2=0.99, weight_decay=0.0, precondition_frequency=10),
    "Shampoo": lambda rate: mx.Shampoo(_rate(rate), b2=0.99, eps=1e-8, grafting=mx.ScaleByAdam()),
    "Kron": lambda rate: mx.Kron(_rate(rate)),
    "GaLore": lambda rate: mx.GaLore(_rate(rate), 4, 50),
    # These find their own step size: the rate is no matter to them.
    "Prodigy": lambda rate: mx.Prodigy(_rate(1.0)),
    "DAdaptAdamW": lambda rate: mx.DAdaptAdamW(_rate(1.0)),
    "DoG": lambda rate: mx.DoG(init_step=("heuristic", 1e-2)),
    "DoWG": lambda rate: mx.DoWG(),
    "COCOB": lambda rate: mx.COCOB(alpha=10.0),
    "PolyakSGD": lambda rate: mx.PolyakSGD(),
    "MoMo": lambda rate: mx.MoMo(),
    "MoMoAdam": lambda rate: mx.MoMoAdam(1.0),
    "LBFGS": lambda rate: mx.LBFGS(),
    "backtracking": lambda rate: mx.Chain(mx.SGD(1.0), mx.ScaleByBacktrackingLinesearch(20)),
    "zoom": lambda rate: mx.Chain(mx.SGD(1.0), mx.ScaleByZoomLinesearch(20)),
    # Averages make up for the decay that they do without.
    "ScheduleFreeSGD": lambda rate: mx.ScheduleFreeSGD(2 * rate),
    "ScheduleFreeAdamW": lambda rate: mx.ScheduleFreeAdamW(rate),
    "Lookahead": lambda rate: mx.Lookahead(mx.SGD(_rate(rate / 5), momentum=0.9), 5, 0.8),
    "SAM": lambda rate: mx.SAM(mx.Adam(_rate(rate)), mx.Chain(mx.Normalize(), mx.SGD(0.01))),
    "Mechanize": lambda rate: mx.Mechanize(mx.SGD(1.0, momentum=0.5), s_init=5e-5),
}
GRADIENT_DESCENT = {"SGD", "momentum", "ScheduleFreeSGD", "Lookahead"}
# For each problem, the learning rates of gradient descent and of the methods with a step of fixed size,
# and the fraction of the loss that may be left.
TARGETS = {
    "bowl": (0.3, 0.3, 1e-4),
    "rotated": (0.9, 0.1, 5e-2),
    "rosenbrock": (1.5e-3, 0.1, 0.15),
    "digits": (1.0, 0.05, 0.15),
}


def _pairs() -> Iterator[tuple[str, str]]:
    """Each optimizer with one problem in turn."""
    problems = tuple(PROBLEMS)
    for i, name in enumerate(OPTIMIZERS):
        yield from ((problem, name) for problem in (problems if EVERYTHING else [problems[i % 4]]))


@pytest.mark.parametrize("problem, name", list(_pairs()))
def test_solves(problem: str, name: str):
    slow, fast, target = TARGETS[problem]
    before, after = PROBLEMS[problem]().run(OPTIMIZERS[name](slow if name in GRADIENT_DESCENT else fast), STEPS)
    assert after <= target * before


def test_momentum_is_faster_than_none():
    """On an ill-conditioned quadratic, which is what it was invented for."""
    problem = PROBLEMS["rotated"]()
    _, plain = problem.run(mx.SGD(0.9), 200)
    _, heavy_ball = problem.run(mx.SGD(0.9, momentum=0.8), 200)
    assert heavy_ball < 0.1 * plain


FIRST_STEP_IS_ZERO = {"ADOPT", "SOAP"}


def test_no_optimizer_is_taken_for_ascending():
    """Most entries of the first step are kept, and it goes downhill."""
    params = {"w": jnp.asarray([[1.0, -2.0], [3.0, 0.5]]), "b": jnp.asarray([0.3, -0.7])}
    loss = lambda p: sum(jnp.sum(x**2) for x in jax.tree.leaves(p))  # noqa: E731
    grads, seen = jax.grad(loss)(params), set[str]()
    extra = {"value": loss(params), "grad": grads, "value_fn": loss, "obj_fn": loss}

    def first(optimizer: Any) -> Any:
        return optimizer.update(grads, optimizer.init(params), params, **extra)[0]

    for name in mx.available():
        cls: Any = mx.get(name)
        if mx.card(name).takes_examples or cls.__name__ in FIRST_STEP_IS_ZERO:
            continue
        needs_rate = inspect.signature(cls).parameters.get("learning_rate", None)
        given = () if needs_rate is None or needs_rate.default is not inspect.Parameter.empty else (0.01,)
        with warnings.catch_warnings(action="ignore"):
            arounds = [around(cls(*given)) for around in (mx.Cautious, mx.Grams)]
            found = jax.jit(lambda arounds=arounds: list(map(first, arounds)))()
        for around, updates in zip(arounds, found, strict=True):
            kept = [np.mean(np.asarray(u) != 0) for u in jax.tree.leaves(updates)]
            downhill = sum(float(jnp.vdot(u, g)) for u, g in zip(*map(jax.tree.leaves, (updates, grads)), strict=True))
            assert min(kept) >= 0.5, around
            assert downhill < 0, around
        seen.add(name)
    assert len(seen) > 70
