"""What a TPU computes in place of decompositions and of large products, which its compiler takes minutes for."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import modulax as mx
from modulax._rules import kron
from modulax.linalg import _eigenbasis, _inverse_root, _orthonormal_factor, _products, _triangular

from . import test_released_matrices, test_released_shampoo
from .released import distances, trajectory


def _by_newton(*args: Any) -> Any:
    return _inverse_root._on_tpu(*args, otherwise=_inverse_root._by_decomposition)


def _hermitian(condition: float, dtype: Any, rows: int = 40) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """A matrix with this condition number, and its eigenvectors and eigenvalues."""
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(rows, rows)))[0]
    values = 37 * np.geomspace(1, 1 / condition, rows)
    return ((vectors * values) @ vectors.T).astype(dtype), (vectors, values)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("condition, tolerance", [(1e2, 3e-6), (1e5, 5e-4), (1e7, 8e-3)])
def test_inverse_roots_by_newtons_method(condition: float, tolerance: float):
    """The fraction of the largest eigenvalue, below which all are raised, is added to each; it is estimated."""
    for dtype, most in ((np.float64, 1e-10), (np.float32, tolerance)):
        x, (vectors, values) = _hermitian(condition, dtype)
        x, exponents = jnp.asarray(np.stack([x, x / 8])), jnp.asarray([[1 / 4], [1 / 2]], dtype)
        given = jnp.full((2, 1), 1e-12, dtype), jnp.full((2, 1), 1e-6, dtype)
        roots = jax.jit(_by_newton)(x, exponents, *given)
        assert roots.dtype == dtype
        for root, size, exponent in zip(roots, (1, 8), (1 / 4, 1 / 2), strict=True):
            bound = np.linalg.norm(np.diag(values**4)) ** 0.25
            expected = (vectors * ((values + 1e-6 * bound) / size) ** -exponent) @ vectors.T
            np.testing.assert_allclose(root, expected, atol=most * np.abs(expected).max())


def test_roots_of_other_exponents_are_those_of_eigenvalues():
    x, _ = _hermitian(1e3, np.float32)
    args = jnp.asarray(x)[None], *(jnp.full((1, 1), y) for y in (0.35, 1e-9, 1e-6))
    np.testing.assert_array_equal(jax.jit(_by_newton)(*args), jax.jit(_inverse_root._by_decomposition)(*args))
    root = _inverse_root.inverse_root(jnp.zeros((2, 3, 3)), 0.25, 1e-4)
    np.testing.assert_allclose(
        _by_newton(1e-4 * jnp.eye(3)[None], *args[1:]), 1e-4**-0.35 * jnp.eye(3)[None], rtol=1e-5
    )
    np.testing.assert_allclose(root, np.broadcast_to(10 * np.eye(3), root.shape), rtol=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("n", [1, 5, 200, 300])
@pytest.mark.parametrize("dtype", [float, complex])
def test_division_by_triangular_matrices(n: int, dtype: Any):
    rng = np.random.default_rng(n)
    x, r = (rng.normal(size=(2, m, n)) + 1j * rng.normal(size=(2, m, n)) for m in (7, n))
    r = np.triu(r) / np.sqrt(n) + 2 * np.eye(n)
    x, r = (y if dtype is complex else y.real for y in (x, r))
    y = jax.jit(_triangular.divide_by_triangle)(x, r)
    np.testing.assert_allclose(y @ r, x, atol=1e-12)


@pytest.mark.parametrize("columns", [64, 384, 1100])
def test_products_by_blocks_of_columns(columns: int):
    a, b = (jax.random.normal(jax.random.key(i), (2, *shape)) for i, shape in enumerate([(3, 5), (5, columns)]))
    program = jax.jit(_products.product_of_blocks).trace(a, b)
    assert ("scan" in str(program.jaxpr)) == (columns > 256)
    np.testing.assert_allclose(program.lower().compile()(a, b), a @ b, atol=1e-5)
    np.testing.assert_array_equal(_products.rare_product(a, b), _products.product(a, b))


@pytest.mark.parametrize("is_first", [True, False])
def test_the_next_basis(is_first: bool):
    """The first one is nearly one of eigenvectors, and another one is improved by a single step, as on a CPU."""
    g = np.random.default_rng(0).normal(size=(2, 24, 32)).astype(np.float32)
    x = jnp.asarray(g @ g.swapaxes(-1, -2))
    basis = jnp.zeros_like(x) if is_first else jnp.linalg.eigh(x + jnp.ones_like(x))[1]
    turned, _ = _eigenbasis.power_step(x, basis)
    new = jax.jit(_eigenbasis._by_iterations)(x, turned, jnp.asarray(is_first))
    if not is_first:
        exact = _eigenbasis.renewed_eigenbasis(x, basis)
        np.testing.assert_allclose(abs(_eigenbasis._iterated_from(x, exact)), abs(exact), atol=1e-3)
        # Up to the signs of its columns, that of Householder's method.
        np.testing.assert_allclose(abs(new), abs(jnp.linalg.qr(turned).Q), atol=1e-5)
        return
    diagonal = np.asarray(new).swapaxes(-1, -2) @ x @ new
    values = np.diagonal(diagonal, axis1=-2, axis2=-1)
    np.testing.assert_allclose(np.asarray(new).swapaxes(-1, -2) @ new, np.broadcast_to(np.eye(24), x.shape), atol=2e-6)
    assert np.linalg.norm(diagonal - values[..., None] * np.eye(24)) < 0.02 * np.linalg.norm(diagonal)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(x)[:, ::-1], rtol=0.02)


def test_members_of_which_some_have_no_basis():
    """As in a sweep whose members have taken different numbers of steps: each is computed as if it were alone."""
    g = np.random.default_rng(0).normal(size=(2, 1, 6, 9)).astype(np.float32)
    x = jnp.asarray(g @ g.swapaxes(-1, -2))
    turned, is_first = 2 * x, jnp.array([True, False])
    for function in (_eigenbasis._by_iterations, _eigenbasis._next_eigenbasis):
        together = jax.jit(jax.vmap(function))(x, turned, is_first)
        for i in range(2):
            np.testing.assert_allclose(together[i], jax.jit(function)(x[i], turned[i], is_first[i]), atol=2e-6)
    whole = _eigenbasis._by_iterations(x, turned, is_first)
    np.testing.assert_allclose(whole, jax.vmap(_eigenbasis._by_iterations)(x, turned, is_first), atol=2e-6)


RULES = {
    "SOAP": (mx.ScaleBySOAP(), set()),
    "EShampoo": (mx.ScaleByEShampoo(), set()),
    "Dion": (mx.ScaleByDion(), set()),
    "Kron": (mx.ScaleByKron(), set()),
    "Shampoo": (mx.ScaleByShampoo(), {"Eigh"}),  # Jacobi's method, for exponents whose inverses are no integers
}


@pytest.mark.parametrize("name", RULES)
def test_which_decompositions_a_step_for_a_tpu_calls(name: str):
    rule, expected = RULES[name]
    # QDWH is for more than 256 rows.
    shape = jax.ShapeDtypeStruct((300, 6), jnp.float32)

    def calls(platform: str) -> set[str]:
        traced = jax.jit(rule.update).trace({"w": shape}, jax.eval_shape(rule.init, {"w": shape}))
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return {*re.findall(r"custom_call @(\w+)", text), *re.findall(r"triangular_solve|cholesky", text)}

    assert calls("tpu") == expected != calls("cpu")


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(check_vma: bool):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])
    g = jax.random.normal(jax.random.key(0), (4, 8, 9))
    x, spec = g @ jnp.matrix_transpose(g), PartitionSpec("d")

    def every(x: Any) -> Any:
        turned, _ = _eigenbasis.power_step(x, x)
        numbers = (jnp.full((len(x), 1), y, x.dtype) for y in (0.25, 1e-9, 1e-6))
        return (
            _by_newton(x, *numbers),
            _eigenbasis._by_iterations(x, turned, x[0, 0, 0] > 0),
            _eigenbasis._next_eigenbasis(x, turned, x[0, 0, 0] > 0),
            _triangular.divide_by_triangle(x, jnp.triu(x)),
            _products.product_of_blocks(x, jnp.tile(x, (1, 1, 40))),
            _products.rare_product(x, x),
        )

    divided = jax.shard_map(every, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    for one, other in zip(jax.jit(divided)(x), every(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("x64")
def test_derivatives_are_those_of_the_other_form():
    g = np.random.default_rng(0).normal(size=(1, 6, 9))
    x, r = jnp.asarray(g @ g.swapaxes(-1, -2)), jnp.triu(jnp.asarray(g[..., :6] + 4 * np.eye(6)))
    functions = {
        _triangular.divided_by_triangle: lambda x, r: x @ jnp.linalg.inv(r),
        _products.rare_product: jnp.matmul,
    }
    for function, plain in functions.items():
        found, expected = (jax.grad(lambda *xs: jnp.sum(jnp.sin(f(*xs))), (0, 1))(x, r) for f in (function, plain))  # noqa: B023
        for y, z in zip(found, expected, strict=True):
            np.testing.assert_allclose(jnp.triu(y), jnp.triu(z), atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_released_code_has_the_same_trajectories(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_inverse_root, "_power_of_eigenvalues", _by_newton)
    monkeypatch.setattr(_eigenbasis, "orthonormal_factor", _orthonormal_factor._on_tpu)
    monkeypatch.setattr(kron, "divided_by_triangle", _triangular.divide_by_triangle)
    monkeypatch.setattr(mx.ScaleByKron, "_draw", test_released_matrices.drawn_by_kron)
    shampoo = {name: case for name, case in test_released_shampoo.CASES.items() if name.startswith("Shampoo/")}
    found = {name: trajectory(case, case.make()) for name, case in shampoo.items()}
    for name, case in test_released_matrices.GROUPS["Kron"].items():
        found[name] = test_released_matrices.points_of(name, case, case.make())
    assert max(distances("matrices", found).values()) <= 1e-9
