"""Methods for matrices and differential privacy against their equations, transcribed to NumPy from the papers."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax import linalg

from .transcriptions import ETA, STEPS, points

pytestmark = pytest.mark.usefixtures("x64")
SHAPES = ((4, 6), (6, 4), (5, 5))
PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")


def gradients(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(STEPS, *shape))


def start(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape)


@pytest.mark.parametrize("size", [2, 4])  # of the values
@pytest.mark.parametrize(
    "transform",
    [
        *(mx.ScaleByMuon(adaptive=True), mx.ScaleByNorMuon(), mx.ScaleByAdaMuon()),
        *(mx.ScaleByScion(), mx.ScaleByScion(norm="output")),
    ],
    ids=str,
)
def test_query_key_and_value_in_one_array_are_three_matrices(transform: Any, size: int):
    """And axes in another order make the same matrices."""
    parts = {name: gradients((6, 4))[:3] for name in ("query", "key")} | {"value": gradients((6, size))[:3]}
    role = mx.Attention(blocks=(4, 4, size), fan_in=1, fan_out=0)
    joined = {"w": np.concatenate(list(parts.values()), axis=-1).swapaxes(1, 2)}
    apart = points(transform, {name: start(x.shape[1:]) for name, x in parts.items()}, parts)
    field = "roles" if hasattr(transform, "roles") else "weight_dimension_numbers"
    roles = mx.roles({"w": joined["w"][0]}, {"w": role})
    first = {"w": np.concatenate([start(x.shape[1:]) for x in parts.values()], axis=-1).T}
    together = points(transform.replace(**{field: roles}), first, joined)
    expected = np.concatenate([apart[name] for name in parts], axis=-1).swapaxes(1, 2)
    np.testing.assert_allclose(together["w"], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("basis, size", [("shorter", 2), ("shorter", 4), ("inputs", 2)])
def test_dion_trains_query_key_and_value_in_one_array_as_three_matrices(basis: str, size: int):
    """Also with the factor of their shapes, from the same bases."""
    parts = {name: gradients((3, n))[0] for name, n in (("query", 4), ("key", 4), ("value", size))}
    joined = {"w": np.concatenate(list(parts.values()), axis=-1).T}
    apart = mx.Dion(1.0, consistent_rms=0.2, basis=basis)
    together = apart.replace(roles=mx.roles(joined, {"w": mx.Attention(blocks=(4, 4, size), fan_in=1, fan_out=0)}))
    state = together.init(joined)
    drawn = mx.tree.get(state, "basis")["w"]
    bases = dict(zip(parts, drawn if size == 4 else (*drawn[0], drawn[1]), strict=True))
    expected, _ = apart.update(parts, mx.tree.set(apart.init(parts), basis=bases), parts)
    found, state = together.update(joined, state, joined)
    np.testing.assert_allclose(found["w"].T, np.concatenate([expected[n] for n in parts], axis=-1), rtol=1e-12)
    together.update(joined, state, joined)


def test_scion_chooses_norms_by_role():
    params = {name: start((4, 6)) for name in ("hidden", "embedding", "head", "norm")} | {"bias": start((6,))}
    given = {"embedding": mx.Embedding(fan_in=0, fan_out=1), "head": mx.Head(), "norm": mx.Gain()}
    scion = mx.ScaleByScion(0.0, 2.0, 3.0, 5.0, 7.0, roles=given)
    found = {name: np.asarray(u) for name, u in scion.update(params, scion.init(params))[0].items()}
    g = params["head"]
    sizes = {
        "hidden": 2 * np.sqrt(6 / 4) * np.asarray(linalg.orthogonalize(jnp.asarray(g), eps=1e-7)),
        "embedding": 5 * g / np.sqrt(np.mean(g**2, axis=1, keepdims=True)),
        "head": 3 / 4 * np.sign(g),
        "norm": 7 * g / np.sqrt(np.mean(g**2)),
        "bias": 7 * params["bias"] / np.sqrt(np.mean(params["bias"] ** 2)),
    }
    for name, expected in sizes.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-7, err_msg=name)


# --- Newton-Schulz and the polynomials -----------------------------------------------------------------


@pytest.mark.parametrize("name", PRECONDITIONINGS)
def test_orthogonalize_is_a_polynomial_of_the_singular_values(name: str):
    """With a bound that is one number, which that of each row, `"aol"`, is not."""
    x, presets = start((4, 6)), linalg._newton_schulz.PRESETS
    of_rows = np.sqrt(np.abs(x @ x.T).sum(axis=1, keepdims=True))
    u, values, vh = np.linalg.svd(x / of_rows if name == "aol" else x, full_matrices=False)
    bounds = {"frobenius": np.linalg.norm(x), "spectral": values[0], "aol": 1.0, "schatten": np.sum(values**4) ** 0.25}
    found = jax.jit(lambda x: {c: linalg.orthogonalize(x, c, preconditioning=name, eps=0.0) for c in presets})(x)
    assert values[0] <= bounds[name]
    for preset, table in presets.items():
        s = values / bounds[name]
        for a, b, c in table * 5 if len(table) == 1 else table:
            s = a * s + b * s**3 + c * s**5
        np.testing.assert_allclose(found[preset], u @ np.diag(s) @ vh, atol=1e-12, err_msg=preset)


@pytest.mark.parametrize("name", PRECONDITIONINGS)
def test_eps_is_added_to_a_norm_or_bounds_it_from_below(name: str):
    """The first coefficient alone leaves the quotient as it is."""
    x = start((4, 6))
    x[0] *= 0.1
    s = np.linalg.svd(x, compute_uv=False)
    of_rows = np.sqrt(np.abs(x @ x.T).sum(axis=1, keepdims=True))
    for eps in (of_rows.mean(), 2 * s.sum()):
        size = {
            "frobenius": np.sqrt(np.sum(s**2)) + eps,
            "spectral": s[0] + eps,
            "aol": np.maximum(of_rows, eps),
            "schatten": max(np.sum(s**4) ** 0.25, eps),
        }[name]
        found = linalg.orthogonalize(jnp.asarray(x), (1.0, 0.0, 0.0), 1, preconditioning=name, eps=eps)
        np.testing.assert_allclose(found, x / size, rtol=1e-9)


# --- Laws of GaLore ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_full_rank_loses_nothing(shape: tuple[int, int]):
    """The smaller side is turned, not shrunk: gradient descent inside is gradient descent."""
    inside = points(mx.GaLore(ETA, base_optimizer=mx.Identity()), start(shape), gradients(shape))
    np.testing.assert_allclose(inside, points(mx.SGD(ETA), start(shape), gradients(shape)), rtol=1e-9)


def test_the_larger_side_loses_something():
    """optax's choice differs from the paper's: projecting the larger side is not gradient descent."""
    larger = mx.GaLore(ETA, base_optimizer=mx.Identity(), follow="optax")
    found = points(larger, start((4, 6)), gradients((4, 6)))
    assert not np.allclose(found, points(mx.SGD(ETA), start((4, 6)), gradients((4, 6))), rtol=1e-2)


def test_weights_of_galore_decay_after_the_step():
    galore = mx.GaLore(0.1, base_optimizer=mx.Identity(), weight_decay=1.0)
    for transform, wanted in ((galore, 0.9 * (2 - 0.1)), (galore.replace(follow="optax"), 0.9 * 2 - 0.1)):
        (found,) = points(transform, np.full(3, 2.0), np.ones((1, 3)))
        np.testing.assert_allclose(found, wanted)


def test_the_state_is_small():
    """The moments of an m × n matrix have r × n entries, where m is the smaller side; other leaves are as they are."""
    params = {"wide": jnp.ones((4, 9)), "tall": jnp.ones((9, 4)), "bias": jnp.ones(4)}
    state = mx.ScaleByGaLore(2).init(params)
    moments = jtu.tree_map(jnp.shape, state.base_optimizer_state.mu, is_leaf=lambda x: isinstance(x, jax.Array))
    assert moments == {"wide": (2, 9), "tall": (9, 2), "bias": (4,)}
    assert state.projector["bias"] is None
    assert state.projector["wide"].shape == state.projector["tall"].shape == (4, 2)


@pytest.mark.parametrize("gap", [3, mx.schedules.Constant(2.9999)])  # schedules may be between whole numbers
def test_the_projector_changes_with_the_gap_alone(gap: Any):
    transform, w = mx.ScaleByGaLore(2, gap), jnp.asarray(start((4, 6)))
    state, seen = transform.init(w), []
    for g in gradients((4, 6))[:7]:
        _, state = transform.update(jnp.asarray(g), state)
        seen.append(np.asarray(state.projector))
    assert [np.array_equal(a, b) for a, b in itertools.pairwise(seen)] == [True, True, False] * 2


@pytest.mark.parametrize("shape, follow", [((3, 4), "paper"), ((4, 3), "paper"), ((3, 3), "paper"), ((3, 3), "optax")])
def test_complex_matrices_are_projected_on_the_smaller_side(shape: tuple[int, int], follow: Any):
    """On the rows of a square matrix; the projector is unitary, and that of an earlier gradient."""
    a, b, c, d = gradients(shape)[:4]
    first, second = a + 1j * b, c + 1j * d
    transform = mx.ScaleByGaLore(2, 2, base_optimizer=mx.Identity(), follow=follow)
    _, state = transform.update(jnp.asarray(first), transform.init(jnp.asarray(first)))
    found, _ = transform.update(jnp.asarray(second), state)
    u, _, vh = np.linalg.svd(first)
    rows, columns = u[:, :2] @ u[:, :2].conj().T, vh[:2].conj().T @ vh[:2]
    np.testing.assert_allclose(found, rows @ second if shape[0] <= shape[1] else second @ columns, rtol=1e-9)


def test_the_factor_of_galore_is_for_matrices_alone():
    params = {"w": jnp.asarray(start((3, 4))), "b": jnp.asarray(start((3,)))}
    transform = mx.ScaleByGaLore(3, scale=0.25, base_optimizer=mx.Scale(2.0))
    found, state = transform.update(params, transform.init(params))
    np.testing.assert_allclose(found["w"], 0.5 * params["w"], rtol=1e-9)
    np.testing.assert_array_equal(found["b"], 2 * params["b"])
    with pytest.raises(ValueError, match=r"of shape \(5, 6\) doesn't fit its projector of shape \(3, 3\)"):
        transform.update(params | {"w": jnp.ones((5, 6))}, state)


def test_what_is_projected_may_need_parameters():
    """An inner transform with weight decay receives the parameters, projected like the gradient."""
    transform = mx.ScaleByGaLore(2, base_optimizer=mx.Chain(mx.AddDecayedWeights(0.1)))
    g, w = gradients((4, 6))[0], start((4, 6))
    found, _ = transform.update(jnp.asarray(g), transform.init(jnp.asarray(w)), jnp.asarray(w))
    p = np.linalg.svd(g)[0][:, :2]
    np.testing.assert_allclose(found, p @ p.T @ (g + 0.1 * w), rtol=1e-10)


def test_batches_of_matrices_are_projected_one_by_one():
    g = gradients((3, 4, 6))[0]
    batch = mx.ScaleByGaLore(2, weight_dimension_numbers=mx.GaLoreDimensionNumbers(-2, -1))
    found, _ = batch.update(jnp.asarray(g), batch.init(jnp.asarray(g)))
    single = mx.ScaleByGaLore(2)
    for u, x in zip(found, g, strict=True):
        expected, _ = single.update(jnp.asarray(x), single.init(jnp.asarray(x)))
        np.testing.assert_allclose(u, expected, rtol=1e-9)


@pytest.mark.parametrize("right", [False, True])
def test_the_derivative_of_directions(right: bool):
    """Right where the singular values differ, finite where they coincide; compiled, of a batch and of one matrix."""
    x, dx = start((3, 5, 4)), start((3, 5, 4))[::-1].copy()

    @jax.jit
    def spans(x: jax.Array) -> jax.Array:
        u = linalg.leading_directions(x, 2, right)
        return u @ jnp.swapaxes(u, -1, -2)  # whatever the signs

    derivative = jax.jit(lambda x, dx: jax.jvp(spans, (x,), (dx,))[1])
    difference = (spans(x + 1e-6 * dx) - spans(x - 1e-6 * dx)) / 2e-6
    np.testing.assert_allclose(derivative(x, dx), difference, atol=1e-7)
    np.testing.assert_allclose(derivative(x[0], dx[0]), difference[0], atol=1e-7)
    jacobian = jax.jit(jax.jacobian(lambda x: linalg.leading_directions(x, 2)))
    for x in (np.zeros((3, 4)), np.eye(3)):
        assert np.all(np.isfinite(jacobian(x)))
    narrow = jax.ShapeDtypeStruct((3, 5, 4), jnp.bfloat16)
    found = jax.eval_shape(lambda x: linalg.leading_directions(x, 2, right), narrow)
    assert found.shape == (3, 4 if right else 5, 2)
    assert found.dtype == jnp.bfloat16


# --- Abadi et al. 2016, algorithm 1 --------------------------------------------------------------------


def per_example(n: int = 5) -> dict[str, np.ndarray]:
    """Gradients of examples, some longer than one and some shorter."""
    random = np.random.default_rng(4)
    sizes = np.geomspace(0.05, 3, n)
    return {k: np.einsum("i,ti...->ti...", sizes, random.normal(size=(STEPS, n, *s))) for k, s in PARTS.items()}


PARTS = {"w": (3, 2), "b": (4,)}


def dpsgd(bound: float, eta: float = ETA) -> Iterator[dict[str, np.ndarray]]:
    point = {k: start(shape) for k, shape in PARTS.items()}
    grads = per_example()
    for t in range(STEPS):
        n = len(grads["w"][t])
        total = dict.fromkeys(PARTS, 0.0)
        for i in range(n):
            length = np.sqrt(sum(np.sum(grads[k][t][i] ** 2) for k in PARTS))
            total = {k: total[k] + grads[k][t][i] / max(1, length / bound) for k in PARTS}
        point = {k: point[k] - eta * total[k] / n for k in PARTS}
        yield point


def test_dpsgd_equals_its_equations():
    found = points(mx.DPSGD(ETA, 1.0, 0.0, 0), {k: start(s) for k, s in PARTS.items()}, per_example())
    expected = list(dpsgd(1.0))
    for k in PARTS:
        np.testing.assert_allclose(found[k], np.stack([point[k] for point in expected]), rtol=1e-12)


def test_the_noise_has_its_deviation_and_no_memory():
    """Mean zero, standard deviation σ C / n, and independent of leaf, step and key."""
    sigma, bound, n, size = 0.7, 2.0, 4, 20_000
    grads = {"a": jnp.zeros((n, size)), "b": jnp.zeros((n, size))}
    transform = mx.DifferentiallyPrivateAggregate(bound, sigma, 3)
    state, draws = transform.init(jtu.tree_map(lambda g: g[0], grads)), []
    for _ in range(2):
        u, state = transform.update(grads, state)
        draws += [u["a"], u["b"]]
    other = mx.DifferentiallyPrivateAggregate(bound, sigma, 4)
    draws.append(other.update(grads, other.init(grads))[0]["a"])
    noise = np.stack(draws) * n / (sigma * bound)
    np.testing.assert_allclose(np.cov(noise), np.eye(5), atol=5 / np.sqrt(size))
    np.testing.assert_allclose(noise.mean(axis=1), 0, atol=5 / np.sqrt(size))
    assert abs(np.mean(noise**4) - 3) < 0.2


def test_one_example_moves_the_sum_by_at_most_the_bound():
    """However long it is, and also where its norm overflows."""

    @jax.jit
    def moved(others: Any, both: Any) -> Any:
        without, with_it = (mx.per_example_global_norm_clip(grads, 0.5)[0] for grads in (others, both))
        return mx.tree.norm(jtu.tree_map(jnp.subtract, with_it, without))

    random = np.random.default_rng(5)
    for size in (1e-3, 1.0, 1e6, 1e200):
        others = {k: random.normal(size=(4, *s)) for k, s in PARTS.items()}
        one = {k: size * random.normal(size=(1, *s)) for k, s in PARTS.items()}
        both = jtu.tree_map(lambda a, b: np.concatenate([a, b]), others, one)
        assert moved(others, both) <= 0.5 * (1 + 1e-12)


def test_clipped_examples_are_counted():
    grads = {"a": jnp.asarray([[3.0, 4.0], [0.0, 0.0], [0.3, 0.4]]), "b": jnp.zeros((3, 2, 1))}
    total, count = mx.per_example_global_norm_clip(grads, 1.0)
    np.testing.assert_allclose(total["a"], [0.9, 1.2])
    assert count == 1
    assert count.dtype == jnp.int32
    _, none = mx.per_example_global_norm_clip(grads, jnp.inf)
    _, every = mx.per_example_global_norm_clip(grads, 0.0)
    assert (none, every) == (0, 2)
    assert mx.per_example_global_norm_clip(grads, 5.0)[1] == 0  # which the longest one equals
    assert mx.per_example_global_norm_clip({}, 1.0) == ({}, 0)
    whole = jnp.asarray([[3, 4], [0, 0]])
    for sums in (mx.per_example_global_norm_clip(whole, 1.0)[0], mx.per_example_layer_norm_clip(whole, 1.0)[0]):
        np.testing.assert_allclose(sums, [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("uniform", [True, False])
def test_layers_are_clipped_by_themselves(uniform: bool):
    grads = per_example()
    grads = {k: jnp.asarray(g[0]) for k, g in grads.items()}
    found, counts = mx.per_example_layer_norm_clip(grads, 0.8, uniform)
    for k, shape in PARTS.items():
        share = 1 / 2 if uniform else np.prod(shape) / 10
        bound = 0.8 * np.sqrt(share)
        lengths = [np.linalg.norm(np.asarray(g).ravel()) for g in grads[k]]
        expected = sum(np.asarray(g) * min(1, bound / x) for g, x in zip(grads[k], lengths, strict=True))
        np.testing.assert_allclose(found[k], expected, rtol=1e-12)
        assert int(counts[k]) == sum(x > bound for x in lengths)
        assert counts[k].dtype == jnp.int32


def test_gradients_of_examples_are_asked_for():
    w = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
    optimizer = mx.DPSGD(0.1, 1.0, 1.0, 0)
    state = optimizer.init(w)
    for call in (optimizer.update, optimizer.step):
        with pytest.raises(ValueError, match=r"leading axis: at `b` .* must have shape \(n, 2\)"):
            call(w, state, w)
    with pytest.raises(ValueError, match=r"per_example_global_norm_clip.*at `b` the shape is"):
        mx.per_example_global_norm_clip({"a": jnp.ones((2, 3)), "b": jnp.ones((3, 3))}, 1.0)
    for shape in ((), (0, 3)):
        with pytest.raises(
            ValueError, match=rf"`per_example_layer_norm_clip` needs.*`a` the shape is {re.escape(str(shape))}"
        ):
            mx.per_example_layer_norm_clip({"a": jnp.ones(shape)}, 1.0)
    with pytest.raises(TypeError, match="key"):
        mx.DPSGD(0.1, 1.0, 1.0)
