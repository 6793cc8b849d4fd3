"""The orthonormal factor of a QR decomposition, and how a GPU and a TPU find it: it is that of Householder's method."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from modulax.linalg import _eigenbasis, _orthonormal_factor as factor
from modulax.linalg._triangular import divide_by_factor

from . import test_released_matrices, test_released_shampoo
from .released import distances, trajectory

by_cholesky = jax.jit(factor.by_cholesky)
METHODS = {"gpu": by_cholesky, "tpu": jax.jit(functools.partial(factor.by_cholesky, divide=divide_by_factor))}
every_method = pytest.mark.parametrize("by_cholesky", METHODS.values(), ids=METHODS)


def _conditioned(condition: float, shape: tuple[int, int] = (24, 12)) -> np.ndarray:
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.normal(size=(n, shape[1])))[0] for n in shape)
    return left * np.geomspace(1, 1 / condition, shape[1]) @ right.T


def _distance(q: Any) -> float:
    q = np.asarray(q)
    q = q.astype(np.result_type(q.dtype, np.float64))
    return float(np.max(np.abs(q.conj().swapaxes(-1, -2) @ q - np.eye(q.shape[-1]))))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.complex64])
@every_method
def test_it_is_that_of_householders_method(by_cholesky: Any, dtype: Any):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 9, 9)) + 1j * rng.normal(size=(2, 3, 9, 9))
    x = (x if np.issubdtype(dtype, np.complexfloating) else x.real).astype(dtype)
    unit = np.finfo(dtype).eps
    for y in (x, x[0, 0, :, :4], x[:, 0] * 1e30, x[:, 0] * 1e-30, x[..., :1]):
        q, is_orthonormal = by_cholesky(y)
        assert q.dtype == dtype
        assert is_orthonormal
        r = np.linalg.qr(y).R
        signs = np.diagonal(r, axis1=-2, axis2=-1)
        expected = np.linalg.qr(y).Q * (signs / np.abs(signs))[..., None, :]
        np.testing.assert_allclose(q, expected, atol=400 * unit)
        assert _distance(q) < 16 * unit


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("condition", [1e4, 1e8, 1e13])
@every_method
def test_columns_that_nearly_depend_on_others(by_cholesky: Any, condition: float):
    """The Gram matrix squares the condition number, so that one round alone would fail from about 1e8 on."""
    q, is_orthonormal = by_cholesky(_conditioned(condition))
    assert is_orthonormal
    assert _distance(q) < 1e-14
    np.testing.assert_allclose(np.tril(np.asarray(q).T @ _conditioned(condition), -1), 0, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_it_says_whether_columns_are_orthonormal():
    for x in (np.repeat(_conditioned(10), 2, axis=1), _conditioned(10) @ np.ones((12, 12)), np.eye(4)[[0, 0, 0, 0]]):
        q, is_orthonormal = by_cholesky(x)
        assert is_orthonormal == (_distance(q) < 1e-13)


def test_columns_of_zeros_get_some_orthonormal_direction():
    x = np.random.default_rng(0).normal(size=(9, 9)).astype(np.float32)
    x[:, [2, 5]] = 0
    q, is_orthonormal = by_cholesky(x)
    assert is_orthonormal
    assert _distance(q) < 2e-6
    assert by_cholesky(np.zeros((3, 9, 4), np.float32))[1]


def test_householders_method_is_the_last_resort():
    """Equal columns have no direction of their own, not even by rounding. A matrix of NaN has none at all."""
    x = jnp.ones((8, 3))
    assert not by_cholesky(x)[1]
    q = jax.jit(factor._on_gpu)(x)
    assert np.array_equal(q, jnp.linalg.qr(x).Q)
    assert _distance(q) < 1e-6
    q, is_orthonormal = by_cholesky(jnp.full((4, 2), jnp.nan))
    assert not is_orthonormal
    assert np.isnan(q).all()


def test_more_columns_than_a_block_of_a_tpu():
    x = np.random.default_rng(0).normal(size=(2, 300, 200)).astype(np.float32)
    q, is_orthonormal = METHODS["tpu"](x)
    assert is_orthonormal
    np.testing.assert_allclose(q, by_cholesky(x)[0], atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_gram_and_schmidts_method_is_the_last_resort_of_a_tpu(dtype: Any):
    of_pairs = np.repeat(np.random.default_rng(0).normal(size=(20, 5)), 2, axis=1)
    on_tpu = jax.jit(factor._on_tpu)
    for x in (np.ones((8, 3)), of_pairs, np.eye(4)[[0, 0, 0, 0]], np.outer(np.arange(1, 7), np.ones(6)) * 1e30):
        assert _distance(on_tpu(x.astype(dtype))) < 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(
        abs(on_tpu(of_pairs)[:, 0]), abs(of_pairs[:, 0]) / np.linalg.norm(of_pairs[:, 0]), rtol=1e-6
    )
    assert np.isnan(on_tpu(jnp.full((4, 2), jnp.nan))).all()


def test_which_platform_takes_which_method():
    traced = jax.jit(factor.orthonormal_factor).trace(jax.ShapeDtypeStruct((8, 4), jnp.float32))
    for name in ("cpu", "tpu", "cuda", "rocm"):
        text = traced.lower(lowering_platforms=(name,)).as_text()
        assert ("triangular_solve" in text) == (name in ("cuda", "rocm"))
        assert ("custom_call" in text and "stablehlo.while" not in text) == (name == "cpu")
    together = traced.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert "triangular_solve" in together


def _on_cuda(function: Any, *args: Any) -> str:
    return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_a_batch_by_vmap_is_one_decision():
    """A `cond` whose condition has a batch axis would compute both methods."""
    x = jax.random.normal(jax.random.key(0), (3, 2, 8, 4))
    together = jax.vmap(factor.orthonormal_factor, in_axes=1, out_axes=1)
    texts = [_on_cuda(f, x) for f in (factor.orthonormal_factor, together)]
    assert texts[0].count("stablehlo.case") == texts[1].count("stablehlo.case") > 0
    for method in (factor.orthonormal_factor, jax.jit(factor.orthonormal_factor)):
        np.testing.assert_allclose(together(x), method(x), atol=1e-6)


def test_a_batch_of_conditions_around_it():
    """As of the steps at which SOAP improves its bases, in a sweep over `precondition_frequency`."""
    x = jax.random.normal(jax.random.key(0), (3, 8, 4))
    is_due = jnp.array([True, False, True])
    for method in (factor.orthonormal_factor, factor._on_gpu):

        def chosen(is_due: Any, x: Any, method: Any = method) -> Any:
            return jax.lax.cond(is_due, method, lambda x: x, x)

        q = jax.jit(jax.vmap(chosen))(is_due, x)
        np.testing.assert_allclose(q[1], x[1])
        assert _distance(q[0]) < 2e-6
        assert "triangular_solve" in _on_cuda(jax.vmap(chosen), is_due, x)


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(check_vma: bool):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:2])
    x = jax.random.normal(jax.random.key(0), (4, 8, 4))
    spec = PartitionSpec("d")
    divided = jax.shard_map(factor.orthonormal_factor, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    np.testing.assert_allclose(divided(x), factor.orthonormal_factor(x), atol=1e-6)
    assert "triangular_solve" in _on_cuda(divided, x)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("method", [factor._on_gpu, factor._on_tpu], ids=["gpu", "tpu"])
def test_released_code_has_the_same_trajectories(method: Any, monkeypatch: pytest.MonkeyPatch):
    """The signs of columns are others than by Householder's method, and cancel."""
    monkeypatch.setattr(_eigenbasis, "orthonormal_factor", method)
    by_eigenbasis = {name: test_released_shampoo.CASES[name] for name in ("SOAP/default", "SOAP/some", "SOAP.meta/qr")}

    def points() -> Any:
        ours = {name: trajectory(case, case.make()) for name, case in by_eigenbasis.items()}
        dion = test_released_matrices.GROUPS["Dion"]
        return ours | {name: test_released_matrices.points_of(name, case, case.make()) for name, case in dion.items()}

    lowered = jax.jit(points).lower()
    assert "stablehlo.while" in lowered.as_text()
    assert max(distances("matrices", lowered.compile()()).values()) <= 1e-9
