"""LowBit: the codes, which arrays of a state are stored in them, and training, checkpoints and meshes with them."""

import dataclasses
import functools
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from sklearn.datasets import load_digits

import modulax as mx
import modulax.nnx
from modulax import checkpoint
from modulax.numerics._codes import Form, Rows, by_floats, by_patterns, draws_of
from modulax.numerics._quantized import form_of, quantize_together, quantized
from modulax.states import Quantized

FORMS = [(bits, nonnegative) for bits in (8, 4) for nonnegative in (False, True)]
# Rows of blocks, rows of 100 entries, arrays that are flattened in 4 bits and always, vectors, one block.
SHAPES = [(3, 2, 256), (2, 100), (3, 128), (5, 77), (300,), (2,)]


def values(shape: tuple[int, ...], nonnegative: bool = False) -> Any:
    """Numbers over many orders of magnitude, as moments have them."""
    random = np.random.default_rng(0)
    x = random.normal(size=shape) * np.exp(2 * random.normal(size=shape))
    return jnp.asarray(x * x if nonnegative else x, jnp.float32)


def levels(bits: int, nonnegative: bool) -> np.ndarray:
    """What all codes stand for in a block whose largest entry is 1."""
    if nonnegative:
        return (np.arange(1, 2**bits + 1) / 2**bits) ** 4
    most = 2 ** (bits - 1) - 1
    codes = np.arange(-most, most + 1)
    return codes * np.abs(codes) / most**2


# Scales in the middle and at both ends of float32.
SCALES = np.asarray([1.0, 3e-30, 0.7, 3.3e38], np.float32)


def in_numpy(x: Any, bits: int, block: int, nonnegative: bool) -> Any:
    """The documented equations, in double precision, for an array of whole blocks."""
    blocks = np.asarray(x, np.float64).reshape(-1, block)
    s = np.abs(blocks).max(1, keepdims=True)
    if nonnegative:
        code = np.clip(np.round(2**bits * (blocks / s) ** 0.25 - 1), 0, None)
        return (s * ((code + 1) / 2**bits) ** 4).reshape(x.shape)
    most = 2 ** (bits - 1) - 1
    code = np.sign(blocks) * np.round(most * np.sqrt(np.abs(blocks) / s))
    return (s * code * np.abs(code) / most**2).reshape(x.shape)


# --- The codes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits, nonnegative", FORMS)
def test_codes_stand_for_what_is_documented(bits: int, nonnegative: bool):
    @jax.jit
    def both(x: Any) -> Any:
        stored = quantized(x, bits, 128, nonnegative)
        again = stored.quantize(stored.dequantize())
        return stored, stored.dequantize(), again

    for shape in SHAPES:
        x = values(shape, nonnegative)
        stored, y, again = both(x)
        assert y.shape == shape
        assert y.dtype == x.dtype
        chex.assert_trees_all_equal(stored, again)
        block = min(stored.block, x.size)
        whole = x.size // block * block
        expected = in_numpy(x.reshape(-1)[:whole], bits, block, nonnegative)
        np.testing.assert_allclose(y.reshape(-1)[:whole], expected, rtol=1e-5)
        assert stored.codes.dtype == (jnp.uint8 if nonnegative else jnp.int8)
        assert stored.codes.shape == shape or bits == 4
        assert stored.codes.size * 8 <= x.size * bits + 256 * 8
        assert form_of(shape, stored.codes, stored.scales) == (bits, stored.block)
        assert bool(jnp.all(y > 0)) or not nonnegative
        assert jnp.max(jnp.abs(y)) == jnp.max(jnp.abs(x))
    np.testing.assert_array_equal(both(jnp.zeros((2, 128)))[1], 0)


def test_the_form_of_codes_is_that_in_which_they_were_stored():
    """Also of arrays smaller than a block, and of rows that are no blocks, though there are as many."""
    shapes: list[Any] = [(7,), (10,), (2, 7), (1, 7), (6, 10), (2, 5), (4, 6)]
    shapes += np.random.default_rng(0).integers(2, 40, (20, 2)).tolist()
    for shape, bits, block in itertools.product(map(tuple, shapes), (8, 4), (8, 64)):
        stored = jax.eval_shape(lambda x: quantized(x, bits, block, True), jax.ShapeDtypeStruct(shape, jnp.float32))  # noqa: B023
        assert form_of(shape, stored.codes, stored.scales) == (bits, stored.block), (shape, bits, block)


def test_a_block_with_a_nan_is_not_finite_and_the_others_are():
    x = values((3, 256)).at[0, 3].set(jnp.nan).at[1, 200].set(jnp.inf)
    for bits in (8, 4):
        y = jax.jit(lambda x, bits=bits: quantized(x, bits, 128, False).dequantize())(x)
        is_finite = np.isfinite(y).reshape(6, 128)
        np.testing.assert_array_equal(is_finite, np.repeat([[False], [True], [True], [False], [True], [True]], 128, 1))


@pytest.mark.parametrize("bits", [8, 4])
def test_stochastic_rounding_is_right_on_average(bits: int):
    """The means of 10⁵ draws for each entry, and that the draws of different entries are independent.

    Without a sign, it is the mean of 1 / √x that is right.
    """
    n = 100_000
    seeds = jax.random.bits(jax.random.key(0), (n, 2), jnp.uint32)
    for nonnegative in (False, True):
        x = values((2, 16), nonnegative).at[:, 3].set(0)
        stored = quantized(x, bits, 16, nonnegative)

        @jax.jit
        def draw(seeds: Any, stored: Any = stored, x: Any = x) -> Any:
            return jax.vmap(lambda s: stored.quantize(x, s).dequantize())(seeds)

        draws = np.asarray(draw(seeds), np.float64).reshape(n, -1)
        x = np.asarray(x, np.float64)
        if nonnegative:
            x = np.maximum(x, x.max(1, keepdims=True) / 2 ** (4 * bits)) ** -0.5
            draws = draws**-0.5
        x = x.reshape(-1)
        spread = draws.std(0) / np.sqrt(n)
        assert np.all(np.abs(draws.mean(0) - x) <= 4.5 * spread + 1e-6 * np.abs(x))
        assert all(len(np.unique(of_entry)) <= 2 for of_entry in draws.T)
        pairs = np.atleast_2d(np.corrcoef(draws[:, spread > 1e-9].T))
        assert np.abs(pairs - np.eye(len(pairs))).max() < 0.02


@pytest.mark.parametrize("bits, nonnegative", FORMS)
def test_what_a_code_stands_for_is_rounded_to_it_with_every_draw(bits: int, nonnegative: bool):
    exact = levels(bits, nonnegative)
    x = np.zeros((4, 128, 256), np.float32)
    x[..., : exact.size] = exact
    x *= SCALES[:, None, None]
    stored = quantized(jnp.asarray(x), bits, 256, nonnegative)
    seeds = jax.random.bits(jax.random.key(0), (4, 2), jnp.uint32)
    again = jax.jit(jax.vmap(lambda seed: stored.quantize(stored.dequantize(), seed)))(seeds)
    np.testing.assert_array_equal(again.codes, np.broadcast_to(stored.codes, again.codes.shape))


@pytest.mark.parametrize("bits, nonnegative", FORMS)
def test_codes_of_accelerators_are_those_of_the_cpu(bits: int, nonnegative: bool):
    """Both are computed here: an error of rounding may move an entry to the next code, rarely."""
    of_codes = levels(bits, nonnegative)
    exact = np.zeros((16, 256), np.float32)
    exact[:, : of_codes.size] = of_codes
    exact *= np.tile(SCALES, 4)[:, None]
    spoilt = values((16, 256), nonnegative).at[0, 3].set(jnp.nan).at[1, 200].set(jnp.inf).at[2].set(0)
    draws = 1.01 + 0.98 * jax.random.uniform(jax.random.key(0), (16, 256))

    @jax.jit
    def encode(x: Any) -> Any:
        form = Form(bits, 256, not nonnegative)
        found = [way([Rows(x, u, form)])[0] for u in (None, draws) for way in (by_patterns, by_floats)]
        return [(codes & (2**bits - 1), scales) for codes, scales in found]

    for x in (exact, spoilt):
        for (codes, scales), (others, same) in zip(*[iter(encode(x))] * 2, strict=True):
            np.testing.assert_array_equal(scales, same)
            finite = np.isfinite(scales[:, 0])
            np.testing.assert_array_equal(finite, np.isfinite(np.asarray(x)).all(1))
            differ = np.asarray(codes != others)[finite]
            assert differ.mean() < (1e-3 if x is spoilt else 1e-9)


@pytest.mark.parametrize("shape", [(32, 256), (12, 128), (3, 16, 128), (5, 77)])
def test_arrays_of_a_tpu_are_those_of_the_cpu(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch):
    """Scales of both moments by one reduction, and pairs of rows by way of arrays in 4 bits."""
    xs = [values(shape), jnp.square(values(shape))]
    seeds = jnp.arange(4, dtype=jnp.uint32).reshape(2, 2)

    def stored(bits: int, block: int) -> Any:
        forms = [quantized(x, bits, block, nonnegative=i == 1) for i, x in enumerate(xs)]
        found = quantize_together(forms, xs, list(seeds))
        return [(x.dequantize(), x.scales) for x in found], [x.codes.shape for x in found]

    # A block of 256 entries fills the lanes of a TPU twice.
    for bits, block in ((8, 128), (4, 128), *[(8, 256)] * (shape[-1] == 256)):
        expected, shapes = jax.jit(stored, static_argnums=(0, 1))(bits, block)
        with monkeypatch.context() as on_tpu:
            on_tpu.setattr(jax.lax, "platform_dependent", lambda *args, tpu, **others: tpu(*args))
            found, others = jax.jit(lambda bits=bits, block=block: stored(bits, block))()
        assert shapes == others
        for (x, scales), (y, same) in zip(expected, found, strict=True):
            np.testing.assert_array_equal(scales, same)
            assert np.mean(np.asarray(x != y)) < 1e-2
            chex.assert_trees_all_close(x, y, atol=float(scales.max()) / 4)


@pytest.mark.parametrize("accumulated", [1, 4, 8])
def test_draws_are_even_over_the_steps(accumulated: int):
    """The mean of 64 steps is twice as near as that of independent draws, also of each eighth step."""
    optimizer, params = mx.LowBit(mx.Lion(0.1)), {"w": jnp.zeros((64, 64))}
    x = {signed: values((2, 128), not signed) for signed in (True, False)}

    @jax.jit
    def run() -> Any:
        def step(state: Any, _: Any) -> Any:
            after = optimizer.update(params, state, params)[1]
            seeds = state.rng_key, jax.random.bits(jax.random.wrap_key_data(state.rng_key), (2,))
            forms = {signed: quantized(y, 4, 128, not signed) for signed, y in x.items()}
            return after, [[q.quantize(x[s], seed).dequantize() for s, q in forms.items()] for seed in seeds]

        return jax.lax.scan(step, optimizer.init(params), length=64 * accumulated)[1]

    even, independent = jax.tree.map(lambda y: np.asarray(y[::accumulated], np.float64), run())
    for i, signed in enumerate((True, False)):
        power = 1 if signed else -0.5
        exact = np.asarray(x[signed], np.float64)
        if not signed:
            exact = np.maximum(exact, exact.max(1, keepdims=True) / 2**16)
        errors = [np.mean(((y[i] ** power).mean(0) - exact**power) ** 2) ** 0.5 for y in (even, independent)]
        assert errors[0] < errors[1] / 2


@pytest.mark.parametrize("bits, nonnegative", FORMS)
def test_blocks_of_every_magnitude(bits: int, nonnegative: bool):
    """Scales from the smallest normal numbers to the largest: the codes are those of the block around one."""
    x = values((2, 128), nonnegative)
    x = x / jnp.max(jnp.abs(x), 1, keepdims=True)
    powers = np.asarray([-125, -60, -1, 1, 100, 125, 126, 127])[:, None, None]
    scaled = np.ldexp(np.asarray(x), powers)
    usual = quantized(x, bits, 128, nonnegative)
    stored = jax.jit(jax.vmap(lambda y: quantized(y, bits, 128, nonnegative)))(scaled)
    # A small entry of a block of the smallest numbers, the first ones, is denormal, and XLA makes it zero.
    np.testing.assert_array_equal(stored.codes[1:], np.broadcast_to(usual.codes, stored.codes[1:].shape))
    np.testing.assert_array_equal(stored.scales, np.ldexp(np.asarray(usual.scales), powers))
    largest = np.asarray(jax.jit(jax.vmap(lambda q: q.dequantize()))(stored)[-1], np.float64)
    np.testing.assert_allclose(largest, np.asarray(usual.dequantize(), np.float64) * 2.0**127, rtol=1e-6)


# --- What is stored in fewer bits ------------------------------------------------------------------

PARAMS = {
    "w": values((64, 128)),
    "odd": values((70, 67)),
    "bias": values((128,)),
    "z": jax.lax.complex(values((64, 64)), values((64, 64))),
    "half": values((64, 128)).astype(jnp.bfloat16),
}


def quantized_paths(state: Any) -> set[str]:
    """The paths of the quantized arrays, without what is above the states of the rules."""
    found = jtu.tree_leaves_with_path(state, is_leaf=lambda x: isinstance(x, Quantized))
    paths = {mx.tree.leaf_paths({jtu.keystr(p, simple=True, separator="."): 0})[0]: x for p, x in found}
    return {".".join(path.split(".")[-2:]) for path, x in paths.items() if isinstance(x, Quantized)}


def test_moments_of_large_arrays_are_quantized():
    state = jax.eval_shape(mx.LowBit(mx.AdamW(1e-3)).init, PARAMS)
    assert quantized_paths(state) == {"mu.w", "mu.odd", "mu.half", "nu.w", "nu.odd", "nu.half", "nu.z"}
    chosen = mx.LowBit(mx.AdamW(1e-3), where=mx.by_path({"w": False, "half": False, "*": True}), min_size=1)
    expected = {"mu.odd", "mu.bias", "nu.odd", "nu.bias", "nu.z"}
    assert quantized_paths(jax.eval_shape(chosen.init, PARAMS)) == expected
    inside = mx.LowBit(mx.MultiSteps(mx.ScheduleFree(mx.RMSProp(1e-3), 1e-3), 2))
    assert quantized_paths(jax.eval_shape(inside.init, {"w": PARAMS["w"]})) == {"nu.w"}
    for never in (mx.MADGRAD(1e-3), mx.LBFGS(), mx.COCOB()):
        assert not quantized_paths(jax.eval_shape(mx.LowBit(never).init, {"w": PARAMS["w"]}))


# --- Steps -----------------------------------------------------------------------------------------


# The length of a step and the cosine of its angle to that in 32 bits: the medians of docs/low_bit.md, and a tolerance.
STEPS = [
    (8, None, 1.000, 0.999),
    (4, None, 0.983, 0.911),
    (4, 32, 0.979, 0.928),
]  # fmt: skip


def steps_beside(optimizer: Any, ways: list[Any], count: int) -> Any:
    """Length and cosine of steps, medians of a training with the optimizer, whose gradients are given to all ways.

    It is one on scikit-learn's digits, in 32 bits.
    """
    images, labels = load_digits(return_X_y=True)
    images, labels = jnp.asarray(images, jnp.float32) / 16, jnp.asarray(labels)
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"in": jax.random.normal(keys[0], (64, 128)) / 32**0.5, "out": jax.random.normal(keys[1], (128, 10)) / 8}
    batches = jax.random.randint(jax.random.key(1), (count, 64), 0, len(images))

    def loss(params: Any, batch: Any) -> Any:
        logits = jax.nn.relu(images[batch] @ params["in"]) @ params["out"]
        return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(logits, labels[batch]))

    def step(carry: Any, batch: Any) -> Any:
        params, state, states = carry
        grads = jax.grad(loss)(params, batch)
        exact, state = optimizer.update(grads, state, params)
        steps = [way.update(grads, s, params) for way, s in zip(ways, states, strict=True)]
        flat = [jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(u)]) for u in (exact, *(u for u, _ in steps))]
        length = jnp.stack([jnp.linalg.norm(x) for x in flat])
        products = jnp.stack([x @ flat[0] for x in flat])
        found = jnp.stack([length / length[0], products / (length * length[0])])
        return (mx.apply_updates(params, exact), state, [s for _, s in steps]), found[:, 1:]

    start = params, optimizer.init(params), [way.init(params) for way in ways]
    return np.median(jax.jit(lambda x: jax.lax.scan(step, start, x)[1])(batches)[5:], 0).T


def test_the_steps_of_a_training_are_those_that_the_guide_says():
    adamw = mx.AdamW(3e-3)
    ways = [mx.LowBit(adamw, bits, block or 128, min_size=1024) for bits, block, *_ in STEPS]
    found = steps_beside(adamw, ways, 200)
    np.testing.assert_allclose(found, [x[2:] for x in STEPS], atol=0.01)
    assert np.all(np.abs(found[0] - 1) < 0.002)


def test_preconditioners_in_eight_bits():
    """Also beside moments in 4 bits. Outer products keep their dtype, and so does everything of Shampoo by default."""
    shampoo = mx.Shampoo(3e-3, b2=0.99, precondition_frequency=10, grafting=mx.ScaleByAdam())
    way = mx.LowBit(shampoo, min_size=1024, preconditioners=True)
    ((length, cosine),) = steps_beside(shampoo, [way], 50)
    assert length == pytest.approx(1, abs=0.01)
    assert cosine > 0.99
    matrix = {"w": jnp.zeros((64, 128))}
    roots = {f"{name}.w" for name in ("left_root", "right_root", "left_basis", "right_basis")}
    for optimizer in (shampoo, mx.EShampoo(3e-3), mx.SOAP(3e-3)):
        low = jax.eval_shape(mx.LowBit(optimizer, 4, preconditioners=True).init, matrix)
        stored = {name for name in quantized_paths(low) if name in roots}
        assert len(stored) == 2
        assert all(mx.tree.get(low, name.split(".")[0])["w"].bits == 8 for name in stored)
        plain = quantized_paths(jax.eval_shape(mx.LowBit(optimizer, 4).init, matrix))
        assert quantized_paths(low) - plain == stored


def test_the_moments_are_read_and_continued_in_full_precision():
    params = {"w": PARAMS["w"], "bias": PARAMS["bias"]}
    optimizer = mx.LowBit(mx.ScheduleFree(mx.AdamW(0.1), 0.1))
    state = optimizer.init(params)
    new, state = optimizer.step(params, state, params)
    plain = mx.tree.dequantize(state).inner_state
    assert jtu.tree_structure(plain) == jtu.tree_structure(optimizer.inner.init(params))
    nu = mx.tree.get(plain, "nu")
    np.testing.assert_array_equal(nu["w"], mx.tree.get(state, "nu")["w"].dequantize())
    root = (1e-3 * params["w"] ** 2) ** 0.25
    np.testing.assert_allclose(nu["w"] ** 0.25, root, rtol=1e-3, atol=1 / 256 * float(jnp.max(root)))
    chex.assert_trees_all_equal(optimizer.eval_params(state, new), optimizer.inner.eval_params(plain, new))
    chex.assert_trees_all_close(
        optimizer.update(params, state, new)[0], optimizer.inner.update(params, plain, new)[0], rtol=1e-5, atol=1e-6
    )


def explicit() -> Mesh:
    """Four devices along an explicit axis."""
    return jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])


def test_state_of_sharded_parameters():
    mesh = jax.make_mesh((2, 4), ("a", "b"))
    place = NamedSharding(mesh, P("a", "b"))
    params = {"w": values((32, 512))}
    sharded = jax.device_put(params, place)
    for bits in (8, 4):
        optimizer = mx.LowBit(mx.AdamW(0.1), bits)
        shardings = mx.state_sharding(optimizer, sharded)
        state = jax.jit(optimizer.init, out_shardings=shardings)(sharded)
        mu = mx.tree.get(state, "mu")["w"]
        assert mu.codes.sharding.shard_shape(mu.codes.shape) == ((16, 128) if bits == 8 else (8, 128))
        assert mu.scales.sharding.shard_shape(mu.scales.shape) == (16, 1)
        step = jax.jit(optimizer.step, out_shardings=({"w": place}, shardings))
        expected = stepped(optimizer, params)
        chex.assert_trees_all_close(step(sharded, state, sharded), expected, rtol=1e-6)


def stepped(optimizer: Any, params: Any) -> Any:
    return optimizer.step(params, optimizer.init(params), params)


@pytest.mark.parametrize("bits", [4, 8])
def test_explicit_axes_that_codes_cannot_be_divided_over(bits: int):
    """An odd number of rows on a device, and arrays that are flattened: the step is that without a mesh."""
    mesh, one_step = explicit(), jax.jit(functools.partial(stepped, mx.LowBit(mx.Lion(0.1), bits, min_size=1)))
    specs = {(12, 128): P("d"), (8, 77): P("d"), (3, 4, 128): P(None, "d"), (2, 200): P(None, "d")}
    params = {str(shape): values(shape) for shape in specs}
    places = {str(shape): NamedSharding(mesh, spec) for shape, spec in specs.items()}
    expected = one_step(params)
    with jax.set_mesh(mesh):
        found = one_step(jax.device_put(params, places))
    for name, x in found[0].items():
        assert x.sharding.is_equivalent_to(places[name], x.ndim)
    chex.assert_trees_all_close(jax.device_get(found), jax.device_get(expected), rtol=1e-5)


@pytest.mark.parametrize("optimizer", [mx.MARS(0.1), mx.Adan(0.1)], ids=lambda x: type(x).__name__)
def test_a_gradient_in_the_state_beside_moments_that_are_divided(optimizer: Any):
    """On explicit axes, where each device has whole groups of eight rows of the one and not of the others."""
    mesh = explicit()
    params, low_bit = {"w": values((16, 128))}, mx.LowBit(optimizer, min_size=1)
    expected = stepped(low_bit, params)
    with jax.set_mesh(mesh):
        whole = jax.device_put(params, NamedSharding(mesh, P()))
        init = jax.jit(low_bit.init, out_shardings=mx.state_sharding(low_bit, whole, zero="d"))
        found = low_bit.step(whole, init(whole), whole)
    chex.assert_trees_all_close(jax.device_get(found[0]), jax.device_get(expected[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_step_inside_shard_map_is_that_of_each_part(bits: int):
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    optimizer, x = mx.LowBit(mx.AdamW(0.1), bits, stochastic=False), values((64, 256))
    step = jax.shard_map(lambda x: stepped(optimizer, x)[0], mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    expected = jnp.concatenate([stepped(optimizer, part)[0] for part in jnp.split(x, 4)])
    chex.assert_trees_all_close(jax.jit(step)(x), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(64, 128), (3, 12, 128), (2, 6, 256)])
def test_no_two_entries_have_one_draw(shape: tuple[int, ...]):
    """But by chance: there are 16384 draws in 8 bits, and four times as many in 4."""
    for bits in (8, 4):
        draws = np.asarray(draws_of(jnp.arange(2, dtype=jnp.uint32), jnp.zeros(shape), bits))
        assert len(np.unique(draws)) > 0.75 * draws.size
        assert np.all((draws > 1) & (draws < 2))


def test_draws_are_divided_over_explicit_axes():
    """No device computes those of the whole array: they would be four times the temporary memory of its share."""
    mesh = explicit()
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=NamedSharding(mesh, P("d")))
    for bits in (8, 4):
        with jax.set_mesh(mesh):
            jaxpr: Any = jax.make_jaxpr(lambda x, bits=bits: draws_of(jnp.zeros(2, jnp.uint32), x, bits))(x)
        assert all(v.aval.sharding.spec[:1] == ("d",) for e in jaxpr.eqns for v in e.outvars if v.aval.ndim > 1)
        assert any(e.primitive.name == "iota" for e in jaxpr.eqns)


# --- Checkpoints -----------------------------------------------------------------------------------


def restored(like: Any, state: Any, **kwargs: Any) -> Any:
    """What is restored of a state, of which nothing is left over and nothing is missing."""
    found, report = checkpoint.load_state_dict(like, checkpoint.state_dict(state), **kwargs)
    assert (report.fresh, report.unused) == ((), ())
    return found


@pytest.mark.parametrize("bits, block", [(8, 128), (8, 8), (4, 128)])
def test_checkpoints_are_restored_in_either_form(bits: int, block: int):
    """Arrays that are smaller than a block, too."""
    # Two of one shape, and two of one size.
    shapes = ((8, 256), (8, 256), (5, 77), (7, 55), (2, 7), (10,), (2,))
    params = {f"{i}": values(shape) for i, shape in enumerate(shapes)}
    adamw = mx.AdamW(0.1)
    optimizer = mx.LowBit(adamw, bits, block, min_size=3)
    _, full = adamw.update(params, adamw.init(params), params)
    template = optimizer.init(params)
    moments = jax.tree.map(
        lambda form, x: form.quantize(x) if isinstance(form, Quantized) else x,
        template.inner_state, full, is_leaf=lambda x: isinstance(x, Quantized),
    )  # fmt: skip
    low = dataclasses.replace(template, inner_state=moments)
    chex.assert_trees_all_equal(restored(template, low), low)
    to_full = restored(adamw.init(params), low, strict=False)
    chex.assert_trees_all_equal(to_full, mx.tree.dequantize(low).inner_state)
    chex.assert_trees_all_equal(restored(template, full, strict=False).inner_state, moments)


def test_checkpoints_are_restored_where_other_arrays_are_quantized():
    """Each pair of codes and scales by itself, also where the optimizer was put into a container."""
    params = {name: {"w": values((8, 256)), "v": values((512,))} for name in "ab"}
    places = ({"*": True}, {"a.v": False, "*": True}, {"b.*": False, "a.*": True})
    low = [mx.LowBit(mx.AdamW(0.1), where=mx.by_path(place), min_size=100) for place in places]
    states = [x.update(params, x.init(params), params)[1] for x in low]
    wide = mx.tree.dequantize
    found = restored(mx.Chain(mx.Clip(1.0), low[1]).init(params), states[0], strict=False)
    chex.assert_trees_all_equal(wide(found)["low_bit"].inner_state, wide(states[0]).inner_state)
    for (old, of_old), (new, of_new) in itertools.permutations(enumerate(states), 2):
        found = restored(low[new].init(params), of_old)
        chex.assert_trees_all_equal_shapes_and_dtypes(found, of_new)
        for moment, name in itertools.product(("mu", "nu"), itertools.product("ab", "wv")):
            x, as_found, form = (mx.tree.get(s, moment)[name[0]][name[1]] for s in (of_old, found, of_new))
            if isinstance(form, Quantized) and not isinstance(x, Quantized):
                x = form.quantize(x)
            np.testing.assert_array_equal(*(np.asarray(wide(y)) for y in (x, as_found)), err_msg=f"{old} {new} {name}")


def test_a_checkpoint_of_rounding_to_nearest_is_continued_with_draws():
    """One in 8 bits had no phase at first. `Partition` has two of these states, and a rename moves them."""
    params = {"w": values((64, 128)), "v": values((64, 128))}
    old, new = mx.LowBit(mx.Adam(0.1), stochastic=False), mx.LowBit(mx.Adam(0.1), key=3)
    before = old.update(params, old.init(params), params)[1]
    found = restored({"a": new.init(params)}, {"a": before})["a"]
    np.testing.assert_array_equal(found.rng_key, new.init(params).rng_key)
    chex.assert_trees_all_equal(found.inner_state, before.inner_state)
    of_shapes, _ = checkpoint.load_state_dict(jax.eval_shape(new.init, params), checkpoint.state_dict(before))
    np.testing.assert_array_equal(of_shapes.rng_key, 0)
    assert restored(old.init(params), found).rng_key is None
    # A phase under another name is moved with the rest.
    advanced = new.update(params, new.init(params), params)[1]
    moved, _ = checkpoint.load_state_dict(
        {"b": new.init(params)}, checkpoint.state_dict({"a": advanced}), rename={"a": "b"}
    )
    chex.assert_trees_all_equal(moved["b"], advanced)


# --- Wrong calls -----------------------------------------------------------------------------------


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"`LowBit\(bits=\.\.\.\)` must be 8 or 4, got 16"):
        mx.LowBit(mx.AdamW(0.1), 16)
    with pytest.raises(ValueError, match=r"`LowBit\(block=\.\.\.\)` must be a power of two such as 128, got 100"):
        mx.LowBit(mx.AdamW(0.1), block=100)
    with pytest.raises(ValueError, match=r"`LowBit\(where=\.\.\.\)` needs `True` or `False` for every leaf"):
        mx.LowBit(mx.AdamW(0.1), where={"w": "yes"}).init({"w": jnp.ones(3)})


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    "rule", [mx.ScaleByLaProp(b2=0.9, centered=True), mx.ScaleByStddev(0.9), mx.ScaleByStddev(0.9, eps_in_sqrt=False)]
)
def test_a_variance_is_no_difference_of_rounded_moments(rule: Any, bits: Any):
    """Of gradients whose sizes differ by a factor of a thousand within a block."""
    random = np.random.default_rng(0)
    sizes = 10.0 ** random.uniform(-3, 0, 4096)
    grads = jnp.asarray(sizes * (1 + random.normal(size=(40, 4096))), jnp.float32)

    @jax.jit
    def largest(rule: Any) -> Any:
        def step(state: Any, g: Any) -> Any:
            u, state = rule.update(g, state, g)
            return state, jnp.max(jnp.abs(u))

        return jnp.max(jax.lax.scan(step, rule.init(grads[0]), grads)[1][16:])

    assert largest(mx.LowBit(rule, bits)) < 1.2 * largest(rule)
