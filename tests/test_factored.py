"""Methods with little memory: Adafactor against its equations, and how many bytes it and SM3 need."""

from collections.abc import Callable, Iterator
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest

import modulax as mx

from . import settings
from .transcriptions import ETA, compiled, points

x64 = pytest.mark.usefixtures("x64")
STEPS, SHAPE = 50, (4, 6)


def gradients() -> np.ndarray:
    scales = np.geomspace(1e-2, 1e2, int(np.prod(SHAPE))).reshape(SHAPE)
    return np.random.default_rng(0).normal(size=(STEPS, *SHAPE)) * scales


def start() -> np.ndarray:
    return np.random.default_rng(1).normal(size=SHAPE)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


# --- Shazeer and Stern 2018, algorithms 4 and 5 --------------------------------------------------------


def adafactor(
    rate: Callable[[int], float] = lambda t: ETA,
    exponent: float = 0.8,
    offset: int = 0,
    proportional: bool = True,
    d: float | None = 1.0,
    momentum: float = 0.0,
    decay: float = 0.0,
    eps1: float = 1e-30,
    factored: bool = True,
) -> Iterator[np.ndarray]:
    x = start()
    r, c, v, m = np.zeros(SHAPE[0]), np.zeros(SHAPE[1]), np.zeros(SHAPE), np.zeros(SHAPE)
    for t, g in enumerate(gradients(), 1):
        beta = 1 - max(t - offset, 1) ** -exponent
        square = g**2 + eps1
        r = beta * r + (1 - beta) * square @ np.ones(SHAPE[1])
        c = beta * c + (1 - beta) * np.ones(SHAPE[0]) @ square
        v = np.outer(r, c) / np.sum(r) if factored else beta * v + (1 - beta) * square
        u = g / np.sqrt(v)
        if d is not None:
            u = u / max(1, rms(u) / d)
        alpha = rate(t) * (max(1e-3, rms(x)) if proportional else 1)
        m = momentum * m + (1 - momentum) * alpha * u
        x = x - m - decay * x
        yield x


def relative(t: int) -> float:
    return min(1e-2, 1 / np.sqrt(t))


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Iterator[Any]]]] = {
    "relative": (lambda: mx.Adafactor(None, 2), lambda: adafactor(relative)),
    "numbers": (
        lambda: mx.Adafactor(ETA, 2, 0.6, 7, False, 0.5, 0.8, None, 0.01, 1e-3),
        lambda: adafactor(lambda t: ETA, 0.6, 7, False, 0.5, 0.8, 0.01, 1e-3),
    ),
    "whole": (
        lambda: mx.Adafactor(ETA, 2, clipping_threshold=None, factored=False),
        lambda: adafactor(d=None, factored=False),
    ),
}


@x64
@pytest.mark.parametrize("name", CASES)
def test_adafactor_equals_its_equations(name: str):
    make, transcription = CASES[name]
    found = points(make(), start(), gradients())
    np.testing.assert_allclose(found, np.stack(list(transcription())), rtol=1e-11, atol=1e-13)


# --- What follows from the equations -------------------------------------------------------------------


@x64
def test_the_two_longest_axes_are_factored():
    """The others index factored matrices, whichever way the axes are ordered."""
    g = np.random.default_rng(0).normal(size=(3, 5, 7))
    transform = mx.ScaleByFactoredRMS(min_dim_size_to_factor=5)
    single = [transform.update(jnp.asarray(x), transform.init(jnp.asarray(x)))[0] for x in g]
    # The mean over the rows of all matrices is that of each: the third axis is a batch.
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1)):
        turned = jnp.asarray(g.transpose(order))
        state = transform.init(turned)
        u, _ = transform.update(turned, state)
        np.testing.assert_allclose(np.asarray(u).transpose(np.argsort(order)), np.stack(single), rtol=1e-11)
        assert sorted(state.v_row.shape) == [3, 5]
        assert sorted(state.v_col.shape) == [3, 7]


# --- Bytes ---------------------------------------------------------------------------------------------

MODEL = {"kernel": (256, 512), "narrow": (512, 127), "bias": (512,), "scale": ()}
# Four bytes for each row and each column of a factored matrix, each entry of the rest, and each counter.
FACTORED = 4 * (256 + 512 + 512 + 127 + 512 + 1)
ENTRIES = 256 * 512 + 512 * 127 + 512 + 1
SIZES: dict[str, tuple[Callable[[], Any], Any, int]] = {
    "ScaleByFactoredRMS": (mx.ScaleByFactoredRMS, jnp.bfloat16, 4 * (256 + 512 + 512 * 127 + 512 + 1) + 4),
    "ScaleByFactoredRMS-all": (
        lambda: mx.ScaleByFactoredRMS(min_dim_size_to_factor=100),
        jnp.float32,
        FACTORED + 4,
    ),
    "Adafactor": (
        lambda: mx.Adafactor(1e-2, 100, momentum=0.9, dtype_momentum=jnp.bfloat16),
        jnp.float32,
        FACTORED + 2 * ENTRIES + 3 * 4,
    ),
    "ScaleBySM3": (mx.ScaleBySM3, jnp.float32, FACTORED + 4 * ENTRIES),
    "SM3": (lambda: mx.SM3(0.1), jnp.bfloat16, FACTORED + 2 * ENTRIES + 4),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_state_has_the_documented_bytes(name: str):
    make, dtype, expected = SIZES[name]
    params = {k: jax.ShapeDtypeStruct(shape, dtype) for k, shape in MODEL.items()}
    state = jax.eval_shape(make().init, params)
    assert sum(x.size * x.dtype.itemsize for x in jtu.tree_leaves(state)) == expected
    assert all(x.size for x in jtu.tree_leaves(state))


# --- Where optax differs, or fails -----------------------------------------------------------------------


def few_steps(transform: Any, params: Any, steps: int = 3) -> Any:
    state = transform.init(params)
    updates = None
    for _ in range(steps):
        updates, state = transform.update(jtu.tree_map(np.ones_like, params), state, params)
    return updates


def test_adafactor_of_optax_itself():
    """Its decay is in float32."""
    params = {"kernel": jnp.asarray(start(), jnp.float32), "bias": jnp.ones(3)}
    numbers: dict[str, Any] = {"min_dim_size_to_factor": 2, "momentum": 0.9, "weight_decay_rate": 0.01}
    with settings.jax_defaults():
        theirs = few_steps(compiled(optax.adafactor(0.1, **numbers)), params)
    ours = few_steps(mx.Adafactor(0.1, **numbers), params)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-5)


def test_the_relative_step_is_not_that_of_optax():
    params = jnp.full(3, 2.0)
    with settings.jax_defaults():
        theirs = few_steps(compiled(optax.adafactor()), params, 1)
    np.testing.assert_allclose(theirs, -2, rtol=1e-6)
    np.testing.assert_allclose(few_steps(mx.Adafactor(follow="optax"), params, 1), theirs, rtol=1e-6)
    np.testing.assert_allclose(few_steps(mx.Adafactor(), params, 1), -2e-2, rtol=1e-6)
    with pytest.raises(ValueError, match=r"Adafactor\(follow=.*'paper'.*'optax'"):
        mx.Adafactor().replace(follow="keras")


def test_an_offset_on_a_fresh_state():
    """For as many steps the mean square is the last square; then the decay begins."""
    params = jnp.full(3, 2.0)
    for steps in (1, 5, 20):
        assert np.all(np.isfinite(few_steps(mx.Adafactor(0.1, decay_offset=10), params, steps)))
        with settings.jax_defaults():
            assert np.all(np.isnan(few_steps(compiled(optax.adafactor(0.1, decay_offset=10)), params, steps)))


def test_an_offset_on_a_restored_state():
    """It begins at the offset: the first decay is 0, as on a fresh state without one."""
    w, g = jnp.ones(3), jnp.asarray([1.0, -2.0, 3.0])
    plain, offset = mx.ScaleByFactoredRMS(), mx.ScaleByFactoredRMS(step_offset=100)
    state = plain.init(w)
    used = mx.states.FactoredState(v_row=None, v_col=None, v=jnp.full(3, 7.0), count=jnp.asarray(100, jnp.int32))
    for _ in range(3):
        u, state = plain.update(g, state)
        v, used = offset.update(g, used)
        np.testing.assert_allclose(u, v, rtol=1e-6)
    assert used.count == 103


def test_sm3_takes_scalars():
    w = jnp.asarray(2.0)
    with settings.jax_defaults(), pytest.raises(IndexError):
        few_steps(compiled(optax.sm3(0.1)), w)
    u = few_steps(mx.SM3(0.1, 0.0), w)
    np.testing.assert_allclose(u, -0.1 / np.sqrt(3), rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("zero", ["all", "a row", "a column"])
def test_zero_gradients(dtype: Any, zero: str):
    """1e-30 is zero in float16, in which optax makes NaN of it."""
    g = np.random.default_rng(0).normal(size=SHAPE)
    where = {"all": np.s_[:], "a row": np.s_[1], "a column": np.s_[:, 2]}[zero]
    g[where] = 0
    w, g = jnp.ones(SHAPE, dtype), jnp.asarray(g, dtype)
    transforms: list[mx.AbstractTransform] = [
        mx.Adafactor(0.1, 2),
        mx.ScaleByFactoredRMS(min_dim_size_to_factor=2, epsilon=0.0),
        mx.SM3(0.1),
    ]
    for transform in transforms:
        state = transform.init(w)
        for _ in range(3):
            u, state = transform.update(g, state, w)
            u = np.asarray(u, np.float32)
            chex.assert_tree_all_finite(u)
            np.testing.assert_array_equal(u[where], 0)


def test_squares_that_overflow():
    """Updates stay finite, also where only some rows or columns overflow, and in the steps after."""
    transform = mx.ScaleByFactoredRMS(min_dim_size_to_factor=2)
    for entry in (np.s_[:], np.s_[1], np.s_[:, 2], np.s_[1, 2]):
        g = np.ones(SHAPE, np.float32)
        g[entry] = 1e30
        state = transform.init(jnp.ones(SHAPE))
        for x in (g, np.ones_like(g)):
            u, state = transform.update(jnp.asarray(x), state)
            chex.assert_tree_all_finite(u)


def test_hypergradients_at_zero():
    """In float32 too: 1e-30 to the power of -3/2 would be more than that holds."""

    def total(rate: Any, g: Any) -> Any:
        return jnp.sum(few_steps_of(mx.Adafactor(rate, 2), g)) + jnp.sum(few_steps_of(mx.SM3(rate), g))

    def few_steps_of(transform: Any, g: Any) -> Any:
        w = jnp.ones_like(g)
        u, state = transform.update(g, transform.init(w), w)
        return u + transform.update(g, state, w)[0]

    for g in (jnp.zeros(SHAPE), jnp.ones(SHAPE).at[1].set(0)):
        by_rate, by_update = jax.grad(total, argnums=(0, 1))(jnp.asarray(0.1), g)
        assert np.isfinite(by_rate)
        chex.assert_tree_all_finite(by_update)


def test_an_array_without_entries_is_not_factored():
    """Whatever the smallest length is: the means of its rows would be NaN."""
    transform, g = mx.ScaleByFactoredRMS(min_dim_size_to_factor=0), jnp.ones((3, 0))
    state = transform.init(g)
    assert (state.v_row, state.v.shape) == (None, (3, 0))
    chex.assert_trees_all_equal(transform.update(g, state)[0], g)
