"""Every optimizer solves one of four problems, with a learning rate that suits it; `nox -s laws` runs all four."""

from collections.abc import Callable, Iterator
from typing import Any

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
    "nesterov": lambda rate: mx.SGD(_rate(rate / 5), momentum=0.9, nesterov=True),
    "Adam": lambda rate: mx.Adam(_rate(rate)),
    "AdamW": lambda rate: mx.AdamW(_rate(rate), weight_decay=1e-6),
    "NAdam": lambda rate: mx.NAdam(_rate(rate)),
    "NAdamW": lambda rate: mx.NAdamW(_rate(rate), weight_decay=1e-6),
    "RMSProp": lambda rate: mx.RMSProp(_rate(rate / 2)),
    "RMSProp-centered": lambda rate: mx.RMSProp(_rate(rate / 5), eps=1e-3, centered=True),
    "MARS": lambda rate: mx.MARS(_rate(rate), adam_weight_decay=0.0),
    "MARSShampoo": lambda rate: mx.MARSShampoo(_rate(rate), adam_weight_decay=0.0),
    "MARSLion": lambda rate: mx.MARSLion(_rate(rate / 3), adam_learning_rate=_rate(rate), adam_weight_decay=0.0),
    "GPAAdamW": lambda rate: mx.GPAAdamW(_rate(rate), eval_interp_coeff=0.9),
    "CautiousAdamW": lambda rate: mx.CautiousAdamW(_rate(rate)),
    "GramsAdamW": lambda rate: mx.GramsAdamW(_rate(rate)),
    "CautiousLion": lambda rate: mx.CautiousLion(_rate(rate / 3)),
    "Lion": lambda rate: mx.Lion(_rate(rate / 3), weight_decay=1e-6),
    "Adamax": lambda rate: mx.Adamax(_rate(rate)),
    "AdamaxW": lambda rate: mx.AdamaxW(_rate(rate), weight_decay=1e-6),
    "AMSGrad": lambda rate: mx.AMSGrad(_rate(rate)),
    "StableAdamW": lambda rate: mx.StableAdamW(_rate(rate), weight_decay=1e-6),
    "LaProp": lambda rate: mx.LaProp(_rate(rate), weight_decay=1e-9),
    # Not relative to the parameters, which some problems begin at zero.
    "Tiger": lambda rate: mx.Scheduled(mx.ScaleByTiger(_rate(rate / 3), weight_decay=1e-6, relative="none")),
    "FOCUS": lambda rate: mx.FOCUS(_rate(rate / 3), b2=0.99, weight_decay=1e-6),
    "ASGD": lambda rate: mx.ASGD(rate, 1e-4, start=200),
    "FTRL": lambda rate: mx.FTRL(_rate(5 * rate)),
    "AdamC": lambda rate: mx.AdamC(_rate(rate), weight_decay=1e-6),
    "QHM": lambda rate: mx.QHM(_rate(rate), 0.9),
    "AggMo": lambda rate: mx.AggMo(_rate(rate / 5), (0.0, 0.7, 0.9)),
    "QHAdam": lambda rate: mx.QHAdam(_rate(rate), 0.95, nu1=0.7, nu2=0.9, weight_decay=1e-6),
    "AdaBelief": lambda rate: mx.AdaBelief(_rate(rate)),
    "Yogi": lambda rate: mx.Yogi(_rate(rate)),
    # Its first steps are as long as the gradient, which where the valley begins is 230.
    "RAdam": lambda rate: mx.Chain(mx.ClipByGlobalNorm(1.0), mx.RAdam(_rate(rate))),
    "NovoGrad": lambda rate: mx.NovoGrad(_rate(rate)),
    "Adan": lambda rate: mx.Adan(_rate(rate)),
    "Adagrad": lambda rate: mx.Adagrad(_rate(5 * rate)),
    "Adadelta": lambda rate: mx.Adadelta(_rate(10 * rate), eps=1e-4),
    "OptimisticAdam": lambda rate: mx.OptimisticAdam(_rate(rate)),
    "optimistic": lambda rate: mx.OptimisticGradientDescent(_rate(0.6 * rate)),
    "ADOPT": lambda rate: mx.ADOPT(_rate(2 * rate), b2=0.99),
    "AdEMAMix": lambda rate: mx.AdEMAMix(_rate(rate)),
    "SimplifiedAdEMAMix": lambda rate: mx.SimplifiedAdEMAMix(_rate(rate / 20), b1=0.9),
    "ACProp": lambda rate: mx.ACProp(_rate(rate / 10), eps=1e-3),
    "MADGRAD": lambda rate: mx.MADGRAD(_rate(rate)),
    "SignSGD": lambda rate: mx.SignSGD(_rate(rate / 3)),
    "Signum": lambda rate: mx.Signum(_rate(rate / 3)),
    "Rprop": lambda rate: mx.Rprop(rate / 10),
    "Sophia": lambda rate: mx.Sophia(_rate(rate), gamma=1.0, weight_decay=1e-6),
    "SophiaG": lambda rate: mx.SophiaG(_rate(rate), weight_decay=0.0, batch_size=2),
    "AdaHessian": lambda rate: mx.AdaHessian(_rate(10 * rate)),
    "LARS": lambda rate: mx.LARS(_rate(rate / 3), trust_coefficient=1.0),
    "LAMB": lambda rate: mx.LAMB(_rate(rate)),
    "Fromage": lambda rate: mx.Fromage(_rate(3 * rate)),
    "Adafactor": lambda rate: mx.Adafactor(_rate(3 * rate), min_dim_size_to_factor=2),
    "Adafactor-momentum": lambda rate: mx.Adafactor(
        _rate(rate), min_dim_size_to_factor=2, multiply_by_parameter_scale=False, momentum=0.9
    ),
    "AdamMini": lambda rate: mx.AdamMini(_rate(rate)),
    "Apollo": lambda rate: mx.Apollo(_rate(rate), 4, 50),
    "ApolloMini": lambda rate: mx.ApolloMini(_rate(rate), scale=1.0),
    "Amos": lambda rate: mx.Amos(_rate(rate), 1.0),
    "CAME": lambda rate: mx.CAME(_rate(rate), b3=0.999),
    "SM3": lambda rate: mx.SM3(_rate(10 * rate)),
    "NoisySGD": lambda rate: mx.NoisySGD(_rate(rate), 1e-3),
    "normalized": lambda rate: mx.Chain(mx.Normalize(), mx.SGD(_rate(rate))),
    "Muon": lambda rate: mx.Muon(_rate(rate), adam_learning_rate=_rate(rate)),
    "Muon-rms": lambda rate: mx.Muon(_rate(rate), consistent_rms=0.2),
    "NorMuon": lambda rate: mx.NorMuon(_rate(rate), adam_learning_rate=_rate(rate)),
    "AdaMuon": lambda rate: mx.AdaMuon(_rate(rate), weight_decay=0.0, adam_learning_rate=_rate(rate)),
    "Scion": lambda rate: mx.Scion(_rate(rate), scale=1.0, constrained=False),
    "Dion": lambda rate: mx.Dion(_rate(rate), weight_decay=0.0, adam_weight_decay=0.0),
    "MARSM": lambda rate: mx.MARSM(_rate(rate), weight_decay=0.0, adam_weight_decay=0.0),
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
    "DoG-layerwise": lambda rate: mx.Chain(mx.ScaleByDistanceOverGradients(1e-2), mx.Scale(-1.0)),
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
    "Mechanize": lambda rate: mx.Mechanize(mx.SGD(_rate(1.0), momentum=0.9), s_init=2e-4),
    "clipped": lambda rate: mx.Chain(mx.ClipByGlobalNorm(1.0), mx.Adam(_rate(rate))),
}
GRADIENT_DESCENT = {"SGD", "NoisySGD", "momentum", "nesterov", "optimistic", "ScheduleFreeSGD", "Lookahead"}
GRADIENT_DESCENT |= {"QHM", "AggMo", "ASGD"}
# Where a method needs a rate of its own, and more steps.
OF_THEIR_OWN: dict[tuple[str, str], tuple[mx.AbstractTransform, int]] = {
    # Where Rosenbrock's valley begins it is 0.009 wide and at an angle to the axes. Steps of ±rate in each coordinate
    # stay inside it, and drift along it, once they are shorter than about 0.003; a longer one jumps from side to
    # side until the schedule has shortened it.
    ("rosenbrock", "SignSGD"): (mx.SignSGD(schedules.CosineDecay(3e-3, 1000)), 1000),
}
# For each problem, the learning rates of gradient descent and of the methods with a step of fixed size,
# and the fraction of the loss that may be left.
TARGETS = {
    "bowl": (0.3, 0.3, 1e-4),
    "rotated": (0.9, 0.1, 5e-2),
    "rosenbrock": (1.5e-3, 0.1, 0.15),
    "digits": (1.0, 0.05, 0.15),
}


def _pairs() -> Iterator[tuple[str, str]]:
    """Each optimizer with one problem in turn, and with those for which it has a learning rate of its own."""
    problems = tuple(PROBLEMS)
    for i, name in enumerate(OPTIMIZERS):
        own = {problem for problem, optimizer in OF_THEIR_OWN if optimizer == name}
        in_turn = {problems[i % 4]}
        yield from ((problem, name) for problem in problems if EVERYTHING or problem in own | in_turn)


@pytest.mark.parametrize("problem, name", list(_pairs()))
def test_solves(problem: str, name: str):
    slow, fast, target = TARGETS[problem]
    rate = slow if name in GRADIENT_DESCENT else fast
    own = OF_THEIR_OWN.get((problem, name))
    transform, steps = (OPTIMIZERS[name](rate), STEPS) if own is None else own
    before, after = PROBLEMS[problem]().run(transform, steps)
    assert after <= target * before


def test_momentum_is_faster_than_none():
    """On an ill-conditioned quadratic, which is what it was invented for."""
    problem = PROBLEMS["rotated"]()
    _, plain = problem.run(mx.SGD(0.9), 200)
    _, heavy_ball = problem.run(mx.SGD(0.9, momentum=0.8), 200)
    assert heavy_ball < 0.1 * plain


def test_frozen_parameters_stay():
    problem = PROBLEMS["bowl"]()
    frozen = mx.Chain(mx.SGD(0.5), mx.Freeze(mx.by_path({"a": True, "*": False})))
    params: Any = problem.start
    _, after = problem.run(frozen, 50)
    assert after == pytest.approx(0.5 * 3 * 3.0**2)
    assert params["a"].shape == (3,)
