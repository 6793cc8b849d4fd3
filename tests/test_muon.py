"""Muon: what follows from orthogonality, batches, axes, edges; and where it differs from optax."""

from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import by_path, linalg
from modulax.schedules import Linear

from .operations import operations

SHAPES = ((4, 4), (3, 7), (7, 3), (16, 64), (64, 48), (32, 32))


def well_conditioned(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """A matrix with singular values between 1 and 3."""
    random = np.random.default_rng(seed)
    u, _, vh = np.linalg.svd(random.normal(size=shape), full_matrices=False)
    return (u @ np.diag(random.uniform(1, 3, size=min(shape))) @ vh).astype(np.float32)


PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")
# Compiled as a whole: by itself, each of its operations is a program.
orthogonalize = jax.jit(linalg.orthogonalize, static_argnames=("steps", "preconditioning", "dtype"))


def first_update(transform: Any, g: Any, params: Any = None) -> Any:
    return transform.update(g, transform.init(g if params is None else params))[0]


# --- Orthogonality -------------------------------------------------------------------------------------


@pytest.mark.parametrize("preconditioning", PRECONDITIONINGS)
def test_the_singular_values_of_an_update_are_about_one(preconditioning: Any):
    transform = mx.ScaleByMuon(preconditioning=preconditioning)
    for update in first_update(transform, [well_conditioned(shape) for shape in SHAPES]):
        found = np.linalg.svd(update, compute_uv=False)
        assert found.min() >= 0.68, update.shape
        assert found.max() <= 1.14, update.shape


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1e4, 1e30])
def test_the_size_of_a_matrix_does_not_matter(size: float):
    """Also where the squares of its entries vanish or overflow."""
    x = well_conditioned((5, 4))
    for preconditioning in PRECONDITIONINGS:
        expected = orthogonalize(x, preconditioning=preconditioning, eps=0.0)
        found = orthogonalize(np.float32(size) * x, preconditioning=preconditioning, eps=0.0)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.usefixtures("x64")
def test_an_adaptive_update_is_as_long_as_the_momentum():
    """⟨D, UVᵀ⟩ is the nuclear norm of D where UVᵀ is exactly orthogonal; each matrix of a batch by itself."""
    x = np.random.default_rng(3).normal(size=(2, 5, 4)) * np.asarray([1.0, 100.0])[:, None, None]
    transform = mx.ScaleByMuon(
        (1.5, -0.5, 0.0),
        40,
        beta=0.0,
        adaptive=True,
        weight_dimension_numbers=mx.MuonDimensionNumbers(-2, -1),
    )
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(
        first_update(transform, jnp.asarray(x)), s.sum(axis=1)[:, None, None] * (u @ vh), rtol=1e-9, atol=1e-9
    )


# --- Edges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preconditioning", PRECONDITIONINGS)
def test_a_matrix_of_zeros_stays(preconditioning: Any):
    """optax divides it by 1e-8, which is zero in float16."""
    dtypes = (jnp.float16, jnp.bfloat16, jnp.float32)
    zeros = [np.zeros((3, 2), dtype) for dtype in dtypes]
    transform = mx.Muon(0.1, preconditioning=preconditioning)
    updates, state = transform.update(zeros, transform.init(zeros), zeros)
    assert [u.dtype for u in updates] == [np.dtype(dtype) for dtype in dtypes]
    assert not any(np.any(u) for u in updates)
    updates, _ = transform.update([np.ones_like(zero) for zero in zeros], state, zeros)
    chex.assert_tree_all_finite(updates)
    assert all(np.any(u) for u in updates)


@pytest.mark.parametrize("preconditioning", PRECONDITIONINGS)
def test_gradients_through_zeros_and_equal_singular_values_are_finite(preconditioning: str):
    def total(matrices: Any) -> Any:
        return sum(linalg.orthogonalize(x, preconditioning=preconditioning).sum() for x in matrices)

    gradients = jax.jit(jax.grad(total))([jnp.zeros((3, 2)), jnp.eye(3), jnp.asarray([[1.0, 2.0], [0.0, 0.0]])])
    chex.assert_tree_all_finite(gradients)


def test_complex_matrices_become_unitary():
    real, imaginary = well_conditioned((5, 4), 1), well_conditioned((5, 4), 2)
    for preconditioning in PRECONDITIONINGS:
        found = orthogonalize(jax.lax.complex(real, imaginary), preconditioning=preconditioning)
        values = np.linalg.svd(found, compute_uv=False)
        assert values.min() >= 0.6
        assert values.max() <= 1.14


def test_other_steps_and_coefficients():
    x = well_conditioned((4, 6))
    three = orthogonalize(x, steps=3)
    np.testing.assert_allclose(orthogonalize(x, [(3.4445, -4.775, 2.0315)] * 3), three, rtol=1e-5)
    np.testing.assert_allclose(orthogonalize(x, jnp.asarray([3.4445, -4.775, 2.0315]), steps=3), three, rtol=1e-5)
    assert linalg.orthogonalize(jnp.zeros((2, 0, 3))).shape == (2, 0, 3)


# --- Coefficients --------------------------------------------------------------------------------------


def test_coefficients_are_numbers_like_any_other():
    muon = mx.Muon(0.1)
    assert [p for p in muon.hyperparameters() if "ns" in p] == ["ns_coeffs.0.0", "ns_coeffs.0.1", "ns_coeffs.0.2"]
    assert "ns_coeffs=((3.4445, -4.775, 2.0315),)" in f"{muon:all}"
    changed = muon.replace(**{"ns_coeffs.0.1": -4.7})
    assert "ns_coeffs=((3.4445, -4.7, 2.0315),)" in repr(changed)
    for given in ((1.0, 2.0, 3.0), [1.0, 2.0, 3.0], np.arange(1.0, 4.0), jnp.arange(1.0, 4.0), [(1, 2, 3)]):
        assert "ns_coeffs=((1.0, 2.0, 3.0),)" in repr(muon.replace(ns_coeffs=given))
    assert np.shape(muon.replace(ns_coeffs="dion").ns_coeffs) == (5, 3)
    assert np.shape(mx.Muon(0.1, np.ones((2, 3))).ns_coeffs) == (2, 3)


def test_coefficients_can_be_swept_and_scheduled():
    """The coefficients of `"standard"`, and the mean of these and of a plain cubic step."""
    g = well_conditioned((4, 6))
    usual, cubic = np.asarray([3.4445, -4.775, 2.0315], np.float32), np.asarray([1.5, -0.5, 0.0], np.float32)
    table = np.stack([usual, (usual + cubic) / 2])
    expected = np.stack([orthogonalize(g, row) for row in table])
    swept = jax.jit(jax.vmap(lambda row: first_update(mx.ScaleByMuon(row, beta=0.0), g)))(table)
    np.testing.assert_allclose(swept, expected, atol=1e-5)
    batch = eqx.tree_at(lambda muon: muon.ns_coeffs[0], mx.Muon(0.1), tuple(table.T))
    assert "ns_coeffs=((float32[2], float32[2], float32[2]),)" in repr(batch)
    with pytest.raises(ValueError, match=r"batch of transforms: `ns_coeffs\.0\.0` is not a scalar"):
        batch.init(g)

    row: Any = tuple(Linear(a, (a + b) / 2, 1) for a, b in zip(usual, cubic, strict=True))
    bare, optimizer = mx.ScaleByMuon(row, beta=0.0), mx.Muon(1.0, row, beta=0.0, consistent_rms=6**-0.5)
    steps: list[tuple[Any, int]] = [(bare, 1), (optimizer, -1)]
    for transform, sign in steps:
        state = transform.init(g)
        assert float(transform.hyperparameters(state)["ns_coeffs.0.0"]) == pytest.approx(3.4445)
        for step in range(2):
            update, state = transform.update(g, state, g)
            np.testing.assert_allclose(sign * update, expected[step], atol=1e-5)


# --- Batches -------------------------------------------------------------------------------------------


def _products(params: Any) -> int:
    transform = mx.ScaleByMuon()
    return operations(transform.update, params, transform.init(params))["dot_general"]


def test_matrices_of_one_shape_are_orthogonalized_together():
    """A loop with three products for each shape, however many matrices there are, lying or standing."""
    one = {"w": jnp.ones((4, 8))}
    many = {f"w{i}": jnp.ones((4, 8) if i % 2 else (8, 4)) for i in range(20)}
    others = {f"v{i}": jnp.ones((3, 3)) for i in range(5)}
    assert _products(one) == _products(many) == 3
    assert _products({**many, **others}) == 6


def test_together_is_as_one_by_one():
    random = np.random.default_rng(4)
    shapes = {"a": (4, 6), "b": (6, 4), "c": (4, 6), "d": (5, 5), "e": (2, 4, 6), "f": (6,)}
    grads = {k: jnp.asarray(random.normal(size=s), jnp.float32) for k, s in shapes.items()}
    found = first_update(mx.ScaleByMuon(weight_dimension_numbers=mx.MuonDimensionNumbers(-2, -1)), grads)
    for k in "abcd":
        np.testing.assert_allclose(found[k], first_update(mx.ScaleByMuon(), grads[k]), atol=3e-6)
    for u, g in zip(found["e"], grads["e"], strict=True):
        np.testing.assert_allclose(u, first_update(mx.ScaleByMuon(), g), atol=3e-6)
    np.testing.assert_array_equal(found["f"], grads["f"])


# --- Axes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, numbers",
    [
        ((3, 3, 4, 8), mx.MuonDimensionNumbers((0, 1, 2), 3)),
        ((6, 2, 5), mx.MuonDimensionNumbers(0, (1, 2))),
        ((6, 2, 5), mx.MuonDimensionNumbers([-1], [0, 1])),
    ],
    ids=["convolution", "attention", "negative"],
)
def test_a_kernel_is_the_matrix_of_its_axes(shape: tuple[int, ...], numbers: mx.MuonDimensionNumbers):
    """An update of it, with the factor of the shape, is that of the matrix."""
    g = np.random.default_rng(5).normal(size=shape).astype(np.float32)

    def axes(x: Any) -> tuple[int, ...]:
        return tuple(a % g.ndim for a in ([x] if isinstance(x, int) else x))

    rows, columns = axes(numbers.reduction_axis), axes(numbers.output_axis)
    n_rows = int(np.prod([shape[a] for a in rows]))
    matrix = g.transpose(rows + columns).reshape(n_rows, -1)
    kernel, plain = mx.Muon(0.1, muon_weight_dimension_numbers=numbers), mx.Muon(0.1)
    found, _ = kernel.update(g, kernel.init(g), g)
    expected, _ = plain.update(matrix, plain.init(matrix), matrix)
    back = np.asarray(found).transpose(rows + columns).reshape(n_rows, -1)
    np.testing.assert_allclose(back, expected, atol=1e-6)


def _by_function(tree: Any) -> Any:
    return jtu.tree_map(lambda x: mx.MuonDimensionNumbers() if x.shape == (3, 3) else None, tree)


@pytest.mark.parametrize(
    "numbers",
    [
        {"embedding": None, "layer": {"bias": None, "w": mx.MuonDimensionNumbers()}},
        {"embedding": None, "layer": mx.MuonDimensionNumbers()},
        _by_function,
        by_path({"*.w": mx.MuonDimensionNumbers(), "*": None}),
    ],
    ids=["tree", "prefix", "function", "paths"],
)
def test_who_is_a_matrix_can_be_said(numbers: Any):
    """The embedding is AdamW's, although it has two axes."""
    params = {"embedding": jnp.ones((3, 4)), "layer": {"w": well_conditioned((3, 3)), "bias": jnp.ones(3)}}
    if isinstance(numbers, dict) and not isinstance(numbers["layer"], dict):
        del params["layer"]["bias"]
    optimizer = mx.Muon(0.1, muon_weight_dimension_numbers=numbers, adam_learning_rate=0.1)
    state = optimizer.init(params)
    updates, _ = optimizer.update(params, state, params)
    np.testing.assert_allclose(updates["embedding"], -0.1, rtol=1e-4)
    assert not np.allclose(np.abs(updates["layer"]["w"]), 0.1, rtol=1e-2)
    held = state.inner.inner_states["muon"]["scale_by_muon"].mu
    assert held["embedding"] is None
    assert held["layer"]["w"].shape == (3, 3)


@pytest.mark.parametrize(
    "numbers, message",
    [
        (mx.MuonDimensionNumbers(0, 0), "no axis may occur twice"),
        (mx.MuonDimensionNumbers(0, -2), "no axis may occur twice"),
        (mx.MuonDimensionNumbers(0, 2), "axes of the array"),
        (mx.MuonDimensionNumbers((), 1), "least one each"),
        (by_path({"*": True}), "has True for `w`"),
    ],
    ids=["twice", "negative", "beyond", "none", "label"],
)
def test_axes_that_are_none_are_refused(numbers: Any, message: str):
    with pytest.raises(ValueError, match=f"ScaleByMuon.weight_dimension_numbers=.*{message}"):
        mx.ScaleByMuon(weight_dimension_numbers=numbers).init({"w": jnp.ones((2, 2))})


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: mx.Muon(0.1, preconditioning="frobenus"), "Did you mean `frobenius`"),
        (lambda: mx.Muon(0.1).replace(follow="jordan"), r"follow=.*'paper'.*'optax'"),
        (lambda: mx.ScaleByMuon((1.0, 2.0)), r"three numbers.*got \(1.0, 2.0\)"),
        (lambda: mx.ScaleByMuon(((1.0, 2.0, 3.0), 4.0)), "a sequence of triples"),
        (lambda: mx.ScaleByMuon([]), "three numbers"),
        (lambda: mx.Muon(0.1, Linear(1.0, 2.0, 10)), "three numbers.*got Linear"),
        (lambda: mx.Muon(0.1).replace(**{"ns_coeffs.0.1": "a"}), r"Muon\(ns_coeffs=...\).*a number or a schedule"),
        (lambda: mx.Muon(0.1).replace(**{"ns_coeffs.0.3": 1.0}), "no hyperparameter, option or part `ns_coeffs.0.3`"),
        (lambda: mx.ScaleByMuon("quintic"), "`standard`, `dion`"),
        (lambda: mx.ScaleByMuon(beta=1.0), "must be in"),
        (lambda: linalg.orthogonalize(jnp.ones(3)), r"needs a matrix .* shape \(3,\)"),
        (lambda: linalg.orthogonalize(jnp.ones((3, 3)), preconditioning="l1"), "one of `'frobenius'`, `'spectral'`"),
        (lambda: mx.GaLore(0.1, rank=0).init(jnp.ones((2, 2))), "rank=.*positive integer"),
        (lambda: mx.ScaleByGaLore().replace(base_optimizer=len), "is not a modulax transform"),
        (lambda: mx.ScaleByGaLore().replace(follow="std"), r"ScaleByGaLore.follow=.*'paper'.*'optax'"),
    ],
)
def test_mistakes_are_explained(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schedule_goes_by_the_steps_of_the_state():
    """The state counts, so that no `Scheduled` is needed around the bare transform."""
    beta: Any = Linear(0.5, 0.9, 4)
    g, transform = well_conditioned((3, 4)), mx.ScaleByMuon(beta=beta)
    state = transform.init(g)
    for i in range(3):
        assert float(transform.hyperparameters(state)["beta"]) == pytest.approx(0.5 + 0.1 * i)
        _, state = transform.update(g, state)
    expected = 1 - 0.5 * 0.6 * 0.7
    np.testing.assert_allclose(state.mu, expected * g, rtol=1e-5)


# --- Where optax differs -------------------------------------------------------------------------------


def _second_update(transform: Any, params: Any) -> Any:
    random = np.random.default_rng(6)
    state, updates = transform.init(params), None
    for _ in range(3):
        g = jtu.tree_map(lambda p: jnp.asarray(random.normal(size=p.shape), p.dtype), params)
        updates, state = transform.update(g, state, params)
    return updates


def test_the_momentum_of_optax_is_corrected_unevenly():
    w = jnp.zeros((4, 6))
    paper, optax = (_second_update(mx.ScaleByMuon(follow=f), w) for f in ("paper", "optax"))
    assert np.max(np.abs(paper - optax)) > 1e-3


def test_the_adam_of_optax_beside_muon_looks_ahead():
    b = jnp.zeros(5)
    paper, optax = (_second_update(mx.Muon(0.1, adam_learning_rate=0.1, follow=f), b) for f in ("paper", "optax"))
    np.testing.assert_array_equal(paper, _second_update(mx.AdamW(0.1, weight_decay=0.0), b))
    np.testing.assert_array_equal(optax, _second_update(mx.NAdamW(0.1, weight_decay=0.0), b))
    assert np.max(np.abs(paper - optax)) > 1e-3


# --- Dtype of the iteration ----------------------------------------------------------------------------


@pytest.mark.parametrize("preconditioning", PRECONDITIONINGS)
def test_an_iteration_in_bfloat16(preconditioning: str):
    """Near that in float32, of which state and updates keep the dtype; complex matrices stay as they are."""
    grads = {"w": well_conditioned((16, 24)), "tall": well_conditioned((24, 16))}
    narrow = mx.ScaleByMuon(preconditioning=preconditioning, dtype=jnp.bfloat16, adaptive=True)
    updates, state = narrow.update(grads, narrow.init(grads))
    expected = first_update(mx.ScaleByMuon(preconditioning=preconditioning, adaptive=True), grads)
    assert {x.dtype for x in jtu.tree_leaves((updates, state.mu))} == {np.dtype(np.float32)}
    for u, wanted in zip(jtu.tree_leaves(updates), jtu.tree_leaves(expected), strict=True):
        assert 1e-4 < np.linalg.norm(u - wanted) / np.linalg.norm(wanted) < 0.05
    z = jax.lax.complex(grads["w"], well_conditioned((16, 24), 1))
    np.testing.assert_array_equal(
        orthogonalize(z, preconditioning=preconditioning, dtype=jnp.bfloat16),
        orthogonalize(z, preconditioning=preconditioning),
    )


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (3, 5, 5)], ids=str)
def test_galore_without_a_decomposition(shape: tuple[int, ...]):
    """Orthonormal columns that hold as much of the gradient as its leading singular vectors, nearly."""
    numbers = mx.GaLoreDimensionNumbers(-2, -1)
    g = jax.random.normal(jax.random.key(0), shape)

    def projected(method: Any) -> tuple[Any, Any]:
        t = mx.ScaleByGaLore(2, base_optimizer=mx.Identity(), weight_dimension_numbers=numbers, method=method)
        u, state = t.update(g, t.init(g), g)
        return u, state.projector

    (exact, _), (near, projector) = projected("svd"), projected("range")
    gram = jnp.swapaxes(projector, -1, -2) @ projector
    np.testing.assert_allclose(gram, jnp.broadcast_to(jnp.eye(2), gram.shape), atol=1e-3)
    assert jnp.linalg.norm(near) > 0.95 * jnp.linalg.norm(exact)
    zero = mx.ScaleByGaLore(2, method="range", weight_dimension_numbers=numbers)
    assert not jnp.isnan(zero.update(0 * g, zero.init(g), g)[0]).any()
