"""The trajectories of released code of optimizers of matrices, frozen in `tests/oracles/matrices.npz`, and ours."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import linalg, schedules

from .oracles.problem import TWO_LAYERS, Problem
from .released import Case, assert_near, distances_of, frozen, trajectory, with_previous

START, NAMES = TWO_LAYERS.start, ("w1", "w2")
MATRICES = Problem(*({n: part[n] for n in NAMES} for part in TWO_LAYERS))  # where the vectors have another AdamW
pytestmark = pytest.mark.usefixtures("x64")


def options(**arguments: Any) -> dict[str, Any]:
    return arguments


MARS = options(b1=0.8, b2=0.9, eps=1e-3, gamma=0.1, weight_decay=0.1, adam_learning_rate=0.05, adam_b1=0.85)
MARS |= options(adam_b2=0.9, adam_weight_decay=0.2)
ADAM = options(adam_learning_rate=0.05, adam_b2=0.95, adam_eps=1e-7)
ADAM_ALL = ADAM | options(adam_learning_rate=0.02, adam_b1=0.8, adam_weight_decay=0.2)
ADAM_OF_TORCH = options(adam_learning_rate=0.05, adam_b2=0.999, adam_weight_decay=0.01)
ADAM_OF_DION = options(adam_learning_rate=0.05, adam_eps=1e-8, adam_weight_decay=0.01)
# Their momentum is a sum, to whose norm times 1.02 `eps` is added.
DION = options(eps=1e-8 * 0.05 / 1.02, moment_eps=1e-8, ns_coeffs="polar_express", nesterov=False, clamped=False)
DION_ALL = options(adam_learning_rate=0.05, adam_b1=0.8, adam_b2=0.95, adam_eps=1e-3, adam_weight_decay=0.2)
FREE = options(beta=0.7, scale=2.0, constrained=False)
TURNED = options(beta=0.5, roles={"*": mx.Hidden(fan_in=1, fan_out=0)})


class CautiousState(mx.AbstractState):
    mu: Any


class CautiousMomentum(mx.AbstractLeafwise[CautiousState]):
    """Nesterov momentum of the entries in which momentum and gradient have one sign, as in docs/muon.md."""

    beta: mx.Number = mx.number(0.95)

    def init_leaf(self, p):
        return CautiousState(jnp.zeros_like(p))

    def update_leaf(self, now, g, s, p):
        del now, p
        mu = self.beta * s.mu + (1 - self.beta) * g
        mask = jnp.where(mu * g > 0, 1.0, 0.0)
        d = self.beta * mu + (1 - self.beta) * g
        return mask * d / jnp.maximum(jnp.mean(mask), 1e-3), CautiousState(mu)


def cautious_muon(learning_rate: float, beta: float = 0.95, decay: float = 0.0) -> Any:
    return mx.Chain(
        CautiousMomentum(beta),
        mx.ScaleByMuon(beta=0.0, nesterov=False, eps=1e-7),
        mx.ScaleByShape(),
        mx.AddDecayedWeights(decay),
        mx.ScaleByLearningRate(learning_rate),
    )


def adamuon_of_timm(table: str, steps: int, safety: float, b2: float, shape: Any, **muon: Any) -> Any:
    """Theirs multiplies the norm by a factor; ours has it in the first polynomial."""
    eps = 1e-7 if safety > 1 else 1e-3
    return mx.Chain(
        mx.ScaleByMuon(with_factor(table, safety)[:steps].tolist(), eps=0.0, **muon),
        mx.ScaleByAdam(0.0, b2, eps),
        shape,
        mx.AddDecayedWeights(0.1),
        mx.ScaleByLearningRate(0.1),
    )


def rsqrt_in() -> Any:
    """The inverse roots of the numbers of inputs, of matrices that are turned."""
    return mx.ScaleByPath({"w1": 4**-0.5, "w2": 3**-0.5})


def scion(of_matrix: Callable[[int, int], dict[str, Any]] = lambda m, n: {}, vectors: Any = None) -> Any:
    """Scion of matrices with m inputs and n outputs, and of vectors."""
    default = options(learning_rate=0.05, scale=1.0)
    matrices = {n: mx.Scion(**default | of_matrix(*START[n].shape)) for n in NAMES}
    others = mx.Scion(**default | options(beta=0.0) | (vectors or {}))
    return mx.Partition({**matrices, "b": others}, mx.by_path({"w1": "w1", "w2": "w2", "b*": "b"}))


GROUPS: dict[str, dict[str, Case]] = {
    # As the rows of docs/released_code.md say it: a clamped norm is `eps=0`, and the momentum of Microsoft's is a sum.
    "Muon": {
        "Muon.torch/default": Case(lambda: mx.Muon(0.05, eps=0.0, weight_decay=0.1), MATRICES),
        "Muon.torch/all": Case(
            lambda: mx.Muon(0.1, ((3.0, -3.2, 1.2),), 4, 0.8, 0.0, 0.3, nesterov=False, consistent_rms=0.2), MATRICES
        ),
        "Muon.timm/default": Case(lambda: mx.Muon(0.05, "dion", eps=0.0, nesterov=False, consistent_rms=0.2), MATRICES),
        "Muon.timm/original": Case(lambda: mx.Muon(0.05, eps=0.0, nesterov=False), MATRICES),
        "Muon.reference/default": Case(
            lambda: mx.Muon(0.05, eps=1e-8 * 0.05, weight_decay=0.1, clamped=False), MATRICES
        ),
        "Muon.reference/all": Case(
            lambda: mx.Muon(0.1, "standard", 4, 0.8, 2e-4, 0.2, nesterov=False, consistent_rms=0.2), MATRICES
        ),
        "Muon.dion/default": Case(
            lambda: mx.Muon(0.05, "polar_express", eps=DION["eps"], weight_decay=0.01, nesterov=False, clamped=False),
            MATRICES,
        ),
        "Muon.dion/all": Case(
            lambda: mx.Muon(0.1, "dion", 5, 0.8, 2e-4, 0.2, consistent_rms=0.2, cautious_weight_decay=True), MATRICES
        ),
    },
    "NorMuon": {
        "NorMuon/default": Case(lambda: mx.NorMuon(0.05, **ADAM)),
        "NorMuon/all": Case(lambda: mx.NorMuon(0.1, 0.8, 0.9, weight_decay=0.1, **ADAM_ALL)),
        "NorMuon/tall": Case(lambda: mx.NorMuon(0.02, weight_decay=0.3, **ADAM)),
        "NorMuon.dion/default": Case(lambda: mx.NorMuon(0.05, weight_decay=0.01, **DION, **ADAM_OF_DION)),
        "NorMuon.dion/all": Case(
            lambda: mx.NorMuon(
                0.1,
                0.8,
                0.9,
                2e-4,
                1e-8,
                0.2,
                ns_coeffs="dion",
                consistent_rms=0.2,
                cautious_weight_decay=True,
                **ADAM_OF_DION | options(adam_b1=0.8, adam_eps=1e-3, adam_weight_decay=0.2),
            )
        ),
        "NorMuon.dion/tall": Case(lambda: mx.NorMuon(0.02, weight_decay=0.3, **DION), MATRICES),
        "NorMuon.dion/unadjusted": Case(
            lambda: mx.Chain(
                mx.ScaleByNorMuon(ns_coeffs="polar_express", eps=DION["eps"], moment_eps=1e-8, nesterov=False),
                mx.AddDecayedWeights(0.01),
                mx.ScaleByLearningRate(0.05),
            ),
            MATRICES,
        ),
    },
    "AdaMuon": {
        "AdaMuon/default": Case(lambda: mx.AdaMuon(0.05, **ADAM_OF_TORCH)),
        "AdaMuon/all": Case(
            lambda: mx.AdaMuon(0.1, 0.8, moment_eps=1e-3, weight_decay=0.1, ns_steps=4, nesterov=False, **ADAM_OF_TORCH)
        ),
        "AdaMuon/tall": Case(lambda: mx.AdaMuon(0.05, 0.9, **ADAM_OF_TORCH)),
        # All but timm's default form divide by a corrected second moment, and keep no norm.
        "AdaMuon.timm/all": Case(
            lambda: adamuon_of_timm("timm/quintic", 4, 1.0, 0.9, mx.ScaleByShape(clamped=False), beta=0.8), MATRICES
        ),
        "AdaMuon.timm/tall": Case(
            lambda: adamuon_of_timm("timm/polar_express_safer", 5, 1.02, 0.95, rsqrt_in(), nesterov=False), MATRICES
        ),
        "AdaMuon.timm/default": Case(
            lambda: mx.AdaMuon(
                0.05,
                b2=0.95,
                eps=0.0,
                moment_eps=1e-7,
                weight_decay=0.0,
                ns_coeffs="dion",
                nesterov=False,
                sign=False,
                **ADAM,
            )
        ),
    },
    "CautiousMuon": {
        "CautiousMuon/default": Case(lambda: cautious_muon(0.05), MATRICES),
        "CautiousMuon/all": Case(lambda: cautious_muon(0.1, 0.8, 0.1), MATRICES),
        "CautiousMuon/tall": Case(lambda: cautious_muon(0.02, decay=0.3), MATRICES),
    },
    "Dion": {
        "Dion/default": Case(lambda: mx.Dion(0.05, rank=768, basis="inputs")),
        "Dion/all": Case(lambda: mx.Dion(0.1, 0.8, 1e-3, 0.1, rank=2, basis="inputs", **DION_ALL)),
        "Dion/tall": Case(lambda: mx.Dion(0.05, rank=1, basis="inputs")),
        "Dion.reference/default": Case(lambda: mx.Dion(0.05)),
        "Dion.reference/all": Case(
            lambda: mx.Dion(0.1, 0.8, 1e-3, 0.1, rank_fraction=0.3, rank_multiple_of=2, power_iterations=2, **DION_ALL)
        ),
        "Dion.reference/tall": Case(lambda: mx.Dion(0.05, rank_fraction=0.5)),
    },
    "Kron": {
        "Kron/default": Case(lambda: mx.Kron(0.02)),
        "Kron/all": Case(
            lambda: mx.Kron(0.05, 0.8, 0.1, 0.5, 0.3, 0.5, 4, 1, momentum_into_precond_update=False),
        ),
        "Kron/one_diagonal": Case(lambda: mx.Kron(0.05, weight_decay=0.3, precond_lr=0.2, diagonal="one")),
        "Kron/larger_diagonal": Case(lambda: mx.Kron(0.05, precond_init_scale=2.0, diagonal="longer")),
        "Kron/diagonal": Case(lambda: mx.Kron(0.05, diagonal="all")),
        "Kron/schedule": Case(
            lambda: mx.Kron(
                0.05,
                preconditioner_update_probability=schedules.ExponentialDecay(0.9, 10, np.exp(-1), 6, end_value=0.2),
            )
        ),
        "Kron/vectors": Case(lambda: mx.Kron(0.05, preconditioner_update_probability=0.3, min_ndim_triangular=3)),
    },
    "MARS": {
        "MARS.shampoo/default": Case(lambda: mx.MARSShampoo(0.05, adam_learning_rate=3e-3)),
        "MARS.shampoo/all": Case(lambda: mx.MARSShampoo(0.1, **MARS)),
        "MARS.shampoo/all_mars": Case(lambda: mx.MARSShampoo(0.1, where=True, **MARS)),
        "MARS.shampoo/exact": Case(lambda: mx.MARSShampoo(0.05, exact=True, adam_learning_rate=3e-3)),
        "MARS.shampoo/tall": Case(lambda: mx.MARSShampoo(0.02, weight_decay=0.3, adam_learning_rate=3e-3)),
    },
    "MARSM": {
        "MARSM/default": Case(lambda: mx.MARSM(0.05), MATRICES),
        "MARSM/all": Case(lambda: mx.MARSM(0.1, 0.8, 0.1, weight_decay=0.2, ns_steps=4), MATRICES),
        "MARSM/exact": Case(lambda: mx.MARSM(0.05, exact=True), MATRICES),
        "MARSM/tall": Case(lambda: mx.MARSM(0.05, gamma=0.05), MATRICES),
    },
    "Scion": {
        "Scion/default": Case(lambda: mx.Scion(0.05, 0.0, 1.0)),
        "Scion/all": Case(
            lambda: scion(lambda m, n: FREE | {"scale": 2 * max(1.0, n**0.5) / (n / m) ** 0.5, "ns_steps": 4}, FREE)
        ),
        "Scion/spectral_tall": Case(lambda: scion()),
        "Scion/spectral_max": Case(lambda: scion(lambda m, n: {"clamped": True})),
        "Scion/spectral_input": Case(lambda: scion(lambda m, n: {"scale": 0.5 * m**0.5})),
        "Scion/sign": Case(lambda: scion(lambda m, n: {"scale": 3.0, "norm": "sign"})),
        "Scion/sign_input": Case(
            lambda: scion(lambda m, n: FREE | {"learning_rate": 0.02, "scale": 2.0 * m, "norm": "sign"})
        ),
        "Scion/columns": Case(lambda: scion(lambda m, n: {"norm": "input"})),
        "Scion/columns_output": Case(
            lambda: scion(lambda m, n: FREE | {"scale": 2.0 / m, "norm": "input", "rms_eps": 1e-8 / m})
        ),
        "Scion/columns_embedding": Case(lambda: scion(lambda m, n: TURNED | {"norm": "input"})),
        "Scion/rows": Case(lambda: scion(lambda m, n: {"norm": "output"})),
        "Scion/rows_input": Case(
            lambda: scion(lambda m, n: FREE | {"scale": 2 * m**0.5, "norm": "output", "rms_eps": 1e-8 * m**0.5})
        ),
        "Scion/rows_embedding": Case(lambda: scion(lambda m, n: TURNED | {"norm": "output"})),
    },
}


def with_factor(table: str, factor: float) -> np.ndarray:
    """A table of coefficients with a factor of the norm in its first row."""
    triples = frozen("matrices")[f"coefficients/{table}"].copy()
    triples[0] /= factor ** np.array([1, 3, 5])
    return triples


def _is_dion(x: Any) -> bool:
    return isinstance(x, mx.states.DionState)


def with_drawn_bases(state: Any) -> Any:
    """A state with the random numbers that the released code of Dion was given."""

    def drawn(x: Any) -> Any:
        tables = {n: frozen("matrices")[f"draws/Dion/{n}"] for n in NAMES}
        bases = {n: table[: x.basis[n].shape[0], : x.basis[n].shape[1]] for n, table in tables.items()}
        return eqx.tree_at(lambda y: [y.basis[n] for n in NAMES], x, [jnp.asarray(b) for b in bases.values()])

    return jtu.tree_map(lambda x: drawn(x) if _is_dion(x) else x, state, is_leaf=_is_dion)


def drawn_by_kron(self: Any, now: Any, state: Any, gs: Any, states: Any) -> Any:
    """The random numbers that the released code of Kron was given, and the step in which its generator balances."""
    tables = [jnp.asarray(frozen("matrices")[f"draws/Kron/{n}"]) for n in START]
    drawn = [t[state.count].reshape(x.shape) for t, (*_, x) in zip(tables, gs, strict=True)]
    return now._replace(is_balanced=state.count == 19), drawn, states


def balanced_at_first(self: Any, now: Any, state: Any, gs: Any, states: Any) -> Any:
    return now._replace(is_balanced=state.count == 0), [x for (x,) in gs], states


def points_of(name: str, case: Case, transform: Any) -> Any:
    """In our layout: the released code got inputs x outputs as they are where the name ends in `tall`."""
    turned = NAMES if name.endswith("tall") else ()
    problem = case.problem if case.problem is MATRICES else TWO_LAYERS
    case = case._replace(problem=problem.transposed(*turned), inputs=with_previous)
    points = trajectory(case, transform, init=lambda params: with_drawn_bases(transform.init(params)))
    return {n: w.swapaxes(-1, -2) if n in turned else w for n, w in points.items()}


@pytest.mark.parametrize("group", GROUPS)
def test_as_in_the_released_code(group: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mx.ScaleByKron, "_draw", drawn_by_kron)
    assert_near(distances_of("matrices", GROUPS[group], points_of), 1e-10)


def test_the_factors_of_kron_are_balanced(monkeypatch: pytest.MonkeyPatch):
    """Their largest entries become equal and their product stays, so that no trajectory shows it."""
    monkeypatch.setattr(mx.ScaleByKron, "_draw", balanced_at_first)
    kron, w = mx.ScaleByKron(precond_lr=0.0), {"w": jnp.asarray(START["w1"])}
    for count, wanted in ((0, (4.0, 4.0)), (1, (8.0, 2.0))):
        factors = (8 * jnp.eye(5), 2 * jnp.eye(4), jnp.asarray(count))
        state = eqx.tree_at(lambda s: (s.left["w"], s.right["w"], s.count), kron.init(w), factors)
        _, new = kron.update(w, state)
        np.testing.assert_allclose([jnp.max(new.left["w"]), jnp.max(new.right["w"])], wanted)


@pytest.mark.parametrize(
    "preset, table, factor",
    [
        ("standard", "timm/original", 1.0),
        ("dion", "timm/quintic", 1.0),
        ("polar_express", "dion/polar_express", 1.02),
        ("polar_express_8", "timm/polar_express", 1.01),
    ],
)
def test_coefficients_are_those_of_the_released_code(preset: str, table: str, factor: float):
    """They multiply the norm by a factor; ours have it in the first polynomial."""
    np.testing.assert_allclose(linalg._newton_schulz.PRESETS[preset], with_factor(table, factor), rtol=1e-14)
