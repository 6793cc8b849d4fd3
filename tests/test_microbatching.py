"""Batches in parts: the same results as optax and as the whole batch, in the memory of a part."""

import functools
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import jaxtyping
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import modulax as mx
from modulax.microbatching import (
    AccumulationType,
    Accumulator,
    micro_grad,
    micro_vmap,
    microbatch,
    reshape_batch_axis,
)

from .settings import jax_defaults

KINDS = {
    kind.name: kind
    for kind in (AccumulationType.SUM, AccumulationType.MEAN, AccumulationType.RUNNING_MEAN, AccumulationType.CONCAT)
}


def theirs(kind: Any) -> Any:
    return jtu.tree_map(lambda k: optax.microbatching.AccumulationType[k.name], kind)


@pytest.fixture
def batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {"x": random.normal(size=(12, 3)), "y": random.normal(size=12)}


PARAMS = {"w": np.array([0.3, -1.2, 0.7]), "b": np.array(0.4)}


def errors(params: Any, batch: Any) -> Any:
    return jnp.dot(batch["x"], params["w"]) + params["b"] - batch["y"]


def loss(params: Any, batch: Any) -> Any:
    return 0.5 * jnp.mean(errors(params, batch) ** 2)


def expect_close(actual: Any, desired: Any, rtol: float = 1e-12) -> None:
    chex.assert_trees_all_close(actual, desired, rtol=rtol, atol=rtol, strict=True)


# --- Parity with optax -----------------------------------------------------------------------------


@pytest.mark.parametrize("real", [None, 2])
def test_microbatch_agrees_with_optax_for_every_accumulation(batch, real: int | None):
    def fun(params: Any, *, batch: Any) -> Any:
        e = errors(params, batch)
        return dict.fromkeys(KINDS, (jnp.sum(e**2), e, e[:, None] * batch["x"]))

    with jax.enable_x64(True), jax_defaults():
        settings: dict[str, Any] = {"argnames": "batch", "num_real_microbatches": real}
        ours = jax.jit(microbatch(fun, (), 3, KINDS, **settings))(PARAMS, batch=batch)
        expect_close(ours, jax.jit(optax.microbatch(fun, (), 3, theirs(KINDS), **settings))(PARAMS, batch=batch))
        if real is None:
            np.testing.assert_allclose(ours["CONCAT"][1], errors(PARAMS, batch))  # the examples in their order


@pytest.mark.parametrize("kinds, size", [(KINDS, None), (KINDS, 4), (AccumulationType.SUM, 1)])
def test_micro_grad_agrees_with_optax(batch, kinds: Any, size: int | None):
    """Gradients of each example, transformed, with metrics and other outputs, for every accumulation."""

    def with_aux(params: Any, x: Any, y: Any) -> Any:
        e = errors(params, {"x": x, "y": y})
        return 0.5 * jnp.mean(e**2), {"error": e}

    def transform(g: Any) -> Any:
        return dict.fromkeys(KINDS, (g, jtu.tree_map(jnp.square, g)))

    settings: dict[str, Any] = {"has_aux": True, "batch_argnums": (1, 2), "microbatch_size": size}
    settings |= {"transform_fn": transform, "metrics_fn": mx.tree.norm}
    args = (PARAMS, batch["x"], batch["y"])
    with jax.enable_x64(True), jax_defaults():
        ours = jax.jit(micro_grad(with_aux, accumulator=kinds, **settings))(*args)
        reference = optax.microbatching.micro_grad(with_aux, accumulator=theirs(kinds), **settings)
        grads, each = jax.jit(reference)(*args)
        expect_close(ours, (grads, type(ours[1])(*each)))


@pytest.mark.parametrize("size, real", [(None, None), (3, None), (3, 1)])
def test_micro_vmap_agrees_with_optax(batch, size: int | None, real: int | None):
    def fun(w: Any, x: Any, *, y: Any) -> Any:
        return dict.fromkeys(KINDS, (x * y, jnp.vdot(w, x)))

    settings: dict[str, Any] = {"microbatch_size": size, "num_real_microbatches": real}
    args, in_axes = (PARAMS["w"], batch["x"].T.copy()), (None, 1)
    with jax.enable_x64(True), jax_defaults():
        ours = jax.jit(micro_vmap(fun, in_axes, accumulator=KINDS, **settings))(*args, y=batch["y"])
        reference: Any = optax.microbatching.micro_vmap
        reference = reference(fun, in_axes, accumulator=theirs(KINDS), **settings)
        expect_close(ours, jax.jit(reference)(*args, y=batch["y"]))


def test_reshape_batch_axis_agrees_with_optax():
    """Also along an axis that is counted from the end."""
    x = np.arange(48.0).reshape(2, 4, 6)
    for axis in range(3):
        split = optax.microbatching.reshape_batch_axis(jnp.asarray(x), 2, axis)
        for same in (axis, axis - 3):
            ours = reshape_batch_axis({"x": x, "name": "text"}, 2, same)
            np.testing.assert_array_equal(ours["x"], split)
            assert ours["name"] == "text"
            np.testing.assert_array_equal(microbatch(lambda x: x, 0, 2, in_axes=same)(x), split.sum(axis))


# --- Laws --------------------------------------------------------------------------------------------


def test_parts_add_up_to_the_whole(batch):
    """In every size, differentiated, mapped and compiled, the mean over the parts is the loss of the batch."""
    with jax.enable_x64(True):
        value, grads = jax.value_and_grad(loss)(PARAMS, batch)
        for size in (1, 4, 12):
            parts = microbatch(loss, 1, size, AccumulationType.MEAN)
            expect_close(jax.jit(jax.value_and_grad(parts))(PARAMS, batch), (value, grads))
        two = jtu.tree_map(lambda p: np.stack([p, 2 * p]), PARAMS)
        mapped = jax.vmap(microbatch(loss, 1, 4, AccumulationType.MEAN), in_axes=(0, None))(two, batch)
        np.testing.assert_allclose(mapped[0], value)


def test_the_number_of_real_microbatches_is_data(batch):
    """A partly filled batch does not recompile, has gradients, and gives the result of the filled rows."""

    @jax.jit
    @chex.assert_max_traces(n=1)
    def value_and_grad(params: Any, batch: Any, real: Any) -> Any:
        parts = microbatch(loss, 1, 3, AccumulationType.RUNNING_MEAN, num_real_microbatches=real)
        return jax.value_and_grad(parts)(params, batch)

    with jax.enable_x64(True):
        for real in (1, 2, 4):
            rows = np.concatenate([np.arange(12)[i::4] for i in range(real)])
            filled = {"x": batch["x"][rows], "y": batch["y"][rows]}
            expect_close(value_and_grad(PARAMS, batch, np.int32(real)), jax.value_and_grad(loss)(PARAMS, filled))


def test_sums_of_low_precision_are_added_up_in_float32():
    """Thousand times one in bfloat16, whose own arithmetic stops at 256."""
    ones = jnp.ones((1000, 1), jnp.bfloat16)
    for function in (
        microbatch(jnp.sum, 0, 1, AccumulationType.SUM),
        micro_vmap(jnp.sum, microbatch_size=2, accumulator=AccumulationType.SUM),
        micro_vmap(jnp.sum, microbatch_size=2, accumulator=AccumulationType.RUNNING_MEAN),
    ):
        out = jax.jit(function)(ones)
        assert out.dtype == jnp.bfloat16
        assert out in (1000, 1)


def test_models_with_functions_and_flags(key):
    """A model as parameters, a batch with a text in it, and gradients only where there are arrays."""
    model = eqx.nn.MLP(3, 1, 4, 1, key=key)

    def model_loss(model: Any, batch: Any) -> Any:
        assert batch["name"] == "digits"
        return jnp.mean((jax.vmap(model)(batch["x"])[:, 0] - batch["y"]) ** 2)

    batch = {"x": jnp.ones((6, 3)) * jnp.arange(6.0)[:, None], "y": jnp.arange(6.0), "name": "digits"}
    expected = eqx.filter_jit(eqx.filter_grad(model_loss))(model, batch)
    compiled = eqx.filter_jit(micro_grad(model_loss, accumulator=AccumulationType.MEAN, microbatch_size=3))
    grads, each = compiled(model, batch)
    assert each.values.shape == (6,)
    expect_close(grads, expected, 1e-5)
    parts = microbatch(eqx.filter_grad(model_loss), 1, 2, AccumulationType.MEAN)
    expect_close(eqx.filter_jit(parts)(model, batch), expected, 1e-5)


def test_an_accumulator_of_your_own(batch):
    """The largest of all, and how many parts there were."""
    largest = Accumulator(
        init=lambda value: (jtu.tree_map(lambda v: jnp.full(v.shape, -jnp.inf, v.dtype), value), jnp.zeros(())),
        update=lambda carry, value, i: (jtu.tree_map(jnp.maximum, carry[0], value), carry[1] + 1),
        finalize=lambda carry: {"max": carry[0], "parts": carry[1]},
        aggregate=lambda values: jtu.tree_map(lambda v: jnp.max(v, axis=0), values),
    )
    x, kinds = jnp.asarray(batch["x"], jnp.float32), (largest, AccumulationType.SUM)
    for size in (None, 3):
        out, total = micro_vmap(lambda x: (x**2, x), microbatch_size=size, accumulator=kinds)(x)
        np.testing.assert_array_equal(out["max"], jnp.max(x**2, axis=0))
        assert out["parts"] == (1 if size is None else 4)
        np.testing.assert_allclose(total, x.sum(0), rtol=1e-5)


def test_counts_and_flags_keep_their_meaning():
    """In parts, too: the four microbatches hold i and i + 4."""
    x = jnp.arange(8)
    assert micro_vmap(lambda x: x > 2, microbatch_size=2, accumulator=AccumulationType.SUM)(x) == 5
    assert microbatch(jnp.sum, 0, 2)(x).dtype == x.dtype
    np.testing.assert_array_equal(microbatch(lambda x: x > 2, 0, 2)(x), [1, 4])
    assert microbatch(lambda x: jnp.all(x > 2), 0, 2)(x) == 1


# --- Arguments -------------------------------------------------------------------------------------------


def test_arguments_with_examples_are_found_by_position_and_by_name():
    """From either end, with an axis for each; what has no examples is passed on as it is."""
    x, y = np.arange(12.0, dtype=np.float32).reshape(2, 6), np.arange(6.0, dtype=np.float32)

    def product(scale: Any, x: Any, *, y: Any, offset: Any) -> Any:
        assert x.shape == (2, 3)
        assert y.shape == (3,)
        return scale * jnp.sum(x * y[None]) + offset

    for position in (1, -1):
        parts = microbatch(product, position, 3, argnames="y", in_axes=(1, 0))
        assert parts(2.0, x, y=y, offset=1.0) == 2 * np.sum(x * y) + 2
    assert microbatch(product, 1, None) is product
    summed = micro_vmap(lambda scale, *, y: scale * y, None, microbatch_size=3, accumulator=AccumulationType.SUM)
    assert summed(2.0, y=y) == 2 * y.sum()


def test_no_more_microbatches_are_computed_than_there_are():
    """The number may be too large, and it may be zero, also where there is one microbatch alone."""
    x = jnp.arange(1.0, 5.0)
    for size in (2, 4):
        for real, expected in ((0, 0.0), (1, 4.0 if size == 2 else 10.0), (7, 10.0)):
            for number in (real, jnp.asarray(real)):
                assert microbatch(jnp.sum, 0, size, num_real_microbatches=number)(x) == expected
    _, each = micro_grad(jnp.dot, microbatch_size=2, keep_batch_dim=False, num_real_microbatches=1)(1.0, x)
    np.testing.assert_array_equal(each.values, [1, 0, 3, 0])


def test_the_function_that_maps_may_be_another_one():
    axes = []

    def noting(function: Any, in_axes: Any, out_axes: Any) -> Any:
        axes.append((in_axes, out_axes))
        return jax.vmap(function, in_axes, out_axes)

    micro_vmap(lambda x, y: x * y, (None, 1), vmap_fn=noting)(jnp.ones(()), jnp.ones((1, 2)))
    assert axes
    assert set(axes) == {((None, 1), 0)}


def test_an_example_comes_with_its_axis_or_without():
    """Several arguments to differentiate give a tuple of gradients, and so does one in a tuple."""
    w, x, weights = jnp.asarray(1.0), jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), jnp.asarray([1.0, 10.0])
    shapes = []

    def weighted(w: Any, x: Any, *, weights: Any) -> Any:
        shapes.append((x.shape, weights.shape))
        return jnp.sum(w * x * weights)

    for keep, batch_argnums in ((True, -1), (False, 1), (False, (-1,))):
        shapes.clear()
        grads, each = micro_grad(weighted, keep_batch_dim=keep, batch_argnums=batch_argnums)(w, x, weights=weights)
        assert set(shapes) == {((1, 2) if keep else (2,), ())}
        assert grads == 73
        np.testing.assert_array_equal(each.values, [3, 70])
    for argnums in ((0,), (-1, 0)):
        grads, _ = micro_grad(weighted, False, argnums, keep_batch_dim=False)(w, x, weights=weights)
        assert isinstance(grads, tuple)
        assert len(grads) == len(argnums)
        assert grads[-1] == 73


def test_it_needs_the_memory_of_a_part(key):
    """The temporary memory of the compiled programs, as XLA counts it."""
    w = jax.random.normal(key, (64, 64))
    x = jnp.ones((512, 64))

    def sum_of_losses(w: Any, x: Any) -> Any:
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    def temporary(function: Any) -> int:
        analysis: Any = jax.jit(function).lower(w, x).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    whole = temporary(jax.grad(sum_of_losses))
    assert temporary(jax.grad(microbatch(sum_of_losses, 1, 16))) < whole / 8
    assert temporary(microbatch(jax.grad(sum_of_losses), 1, 16)) < whole / 8

    per_example = jax.vmap(jax.grad(sum_of_losses), in_axes=(None, 0))
    all_at_once = temporary(lambda w, x: jnp.sum(jnp.abs(per_example(w, x)), axis=0))
    in_parts = temporary(micro_grad(sum_of_losses, microbatch_size=16, transform_fn=jnp.abs))
    assert in_parts < all_at_once / 8


def test_a_spread_batch_stays_spread():
    """Each device has its share of every part; also where axes of the mesh are explicit."""
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,), devices=jax.devices()[:2])
        x = jax.device_put(jnp.arange(24.0).reshape(12, 2), NamedSharding(mesh, PartitionSpec("data")))
        with jax.set_mesh(mesh):
            cut = jax.jit(lambda x: reshape_batch_axis(x, 4))(x)
            assert cut.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "data")), 3)
            kinds = (AccumulationType.CONCAT, AccumulationType.SUM)
            rows, total = jax.jit(microbatch(lambda x: (2 * x, jnp.sum(x, axis=0)), 0, 4, kinds))(x)
        np.testing.assert_array_equal(rows, 2 * np.arange(24.0).reshape(12, 2))
        np.testing.assert_array_equal(total, np.arange(24.0).reshape(12, 2).sum(0))


# --- Errors --------------------------------------------------------------------------------------------


def pair(w: Any, x: Any) -> Any:
    return x * w, jnp.sum(x * w)


X = np.ones((12, 2), np.float32)
AXES: Any = {"a": 0}
NO_INTEGER = "must be an integer, .* got {'a': 0}"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: microbatch(pair, 1, 5)(1.0, X), r"must divide the number of examples, 12. .* 1, 2, 3, 4, 6, 12"),
        (lambda: microbatch(pair, 1, 0)(1.0, X), r"`microbatch\(microbatch_size=...\)` must be a positive integer"),
        (lambda: microbatch(pair, 1, 3)(1.0, x=X), "argument 1 of `pair` should have the examples, .* passes 1"),
        (lambda: microbatch(pair, (), 3, argnames="x")(1.0, X), "argument `x` of `pair` should have the examples"),
        (lambda: microbatch(pair, 0, 3)(1.0, X), r"there is no array in `args\[0\]`"),
        (lambda: microbatch(pair, 1, 3, in_axes=2)(1.0, X), r"`args\[1\]` has shape \(12, 2\), .* on axis 2"),
        (lambda: microbatch(pair, 1, 3, in_axes=(0, 0)), "has 2 axes for the 1 arguments of `argnums`"),
        (lambda: microbatch(pair, (0, 1), 3)(X[:3], X), r"got 3 in `args\[0\]`, 12 in `args\[1\]`"),
        (lambda: microbatch(pair, 1, 3, "sum")(1.0, X), "or an `Accumulator`, got 'sum'"),
        (lambda: microbatch(pair, 1, 3, (AccumulationType.SUM,))(1.0, X), "a single accumulator, or a tree with the"),
        (lambda: microbatch(jnp.sum, 0, 3, AccumulationType.MEAN)(jnp.arange(6)), "floating-point results, .* int32"),
        (lambda: micro_vmap(pair, (None, 0), 1), "must be 0, got 1"),
        (lambda: micro_vmap(pair, (None, 0))(1.0), "has 2 axes, but the call passes 1"),
        (lambda: micro_grad(loss, batch_argnums=2)(1.0, X), "the call passes 2 positional arguments"),
        (lambda: microbatch(pair, -3, 3)(1.0, X), "argument -3 of `pair` should have the examples, .* passes 2"),
        (lambda: microbatch(functools.partial(pair), 2, 3)(1.0, X), "argument 2 of `the function` should have"),
        (
            lambda: micro_vmap(lambda x: {"n": x}, accumulator=AccumulationType.RUNNING_MEAN)(jnp.arange(6)),
            r"`micro_vmap\(accumulator=...\)`: `AccumulationType.RUNNING_MEAN` .* dtype int32 at `n`",
        ),
        # An axis is an integer: not a tree of axes, as in `jax.vmap`, nor None where an argument must have examples.
        (lambda: micro_vmap(pair, (None, AXES))(1.0, {"a": X}), rf"`micro_vmap`: .* `args\[1\]` {NO_INTEGER}"),
        (lambda: microbatch(pair, 1, 3, in_axes=(AXES,))(1.0, {"a": X}), rf"`microbatch`: .* `args\[1\]` {NO_INTEGER}"),
        (
            lambda: reshape_batch_axis({"a": X}, 3, AXES),
            rf"`reshape_batch_axis`: .* of `tree` {NO_INTEGER}",
        ),
    ],
    ids=range(20),
)
def test_what_does_not_fit_is_refused(call: Any, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    with pytest.raises(ValueError, match=message):
        call()


def test_a_python_number_has_gradients_too():
    grads, _ = micro_grad(lambda c, x: c["c"] * x.sum())({"c": 1.0, "n": 2}, jnp.arange(4.0))
    assert grads["c"] == 6.0
    assert grads["n"] is None
