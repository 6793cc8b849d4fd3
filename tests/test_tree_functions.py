"""Functions of whole trees: what optax makes of them, dtypes, absent leaves, nothing at all, and what does not fit."""

import collections
import functools
import inspect
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array

import modulax as mx
from modulax import tree

from .refusals import refused
from .settings import jax_defaults


def example(seed: int = 0, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "a": jnp.asarray(rng.normal(size=(3, 2)), dtype),
        "b": [None, jnp.asarray(rng.normal(), dtype)],
        "none": jnp.zeros((0, 2), dtype),
    }


def of_complex(seed: int = 0) -> dict[str, Any]:
    return jtu.tree_map(jax.lax.complex, example(seed), example(seed + 10))


def assert_same(actual: Any, expected: Any, rtol: float = 1e-12) -> None:
    """Equal structures, shapes and dtypes, and equal numbers."""
    chex.assert_trees_all_close(actual, expected, rtol=rtol, atol=rtol, strict=True)


# --- Equal to optax --------------------------------------------------------------------------------------------------

X, Y, Z = (lambda: example(0)), (lambda: example(1)), (lambda: example(2))
INTEGERS = {"x": np.int8(1), "y": np.int32(1), "z": np.int16(1)}
CALLS = {
    "add": lambda f: [f(X(), Y()), f(X(), Y(), Z(), X())],
    "sub": lambda f: f(X(), Y()),
    "mul": lambda f: [f(X(), Y()), f(of_complex(), Y())],
    "div": lambda f: [f(X(), Y()), f(jnp.arange(3), 2 + jnp.arange(3))],
    "scale": lambda f: [f(0.3, X()), f(jnp.asarray(2), X()), f(0.3, jnp.arange(3)), f(2, jnp.arange(3)), f(1j, X())],
    "add_scale": lambda f: [f(X(), -0.3, Y()), f({"a": None, "b": Y()}, 2.0, {"a": X()["a"], "b": X()})],
    "clip": lambda f: [f(X(), -0.1, 0.4), f(X(), max_value=0.2), f(X(), min_value=0), f(jnp.arange(4), 1, 2), f(X())],
    "where": lambda f: [f(True, X(), Y()), f(jnp.array([[True], [False], [True]]), X()["a"], Y()["a"])],
    "conj": lambda f: f({"x": of_complex(), "y": X()}),
    "real": lambda f: f({"x": of_complex(), "y": X()}),
    "sum": lambda f: [f(X()), f(of_complex()), f(X(), True), f({"n": jnp.arange(5), "x": jnp.ones(2)})],
    "max": lambda f: f(X()),
    "min": lambda f: f(X()),
    "size": lambda f: [f(X()), f({})],
    "norm": lambda f: [f(X(), *o) for o in ((), (1,), (2, True), (jnp.inf,), ("inf", True), (1, True))],
    "vdot": lambda f: [f(X(), Y()), f(of_complex(0), of_complex(1))],
    "allclose": lambda f: [f(X(), X()), f(X(), Y()), f(X(), tree.add(X(), tree.full_like(X(), 1e-9)))],
    "batch_shape": lambda f: [f(X()), f(X(), (2, 1))],
    "zeros_like": lambda f: [f(X()), f(X(), jnp.int8)],
    "ones_like": lambda f: [f(X()), f(X(), jnp.bfloat16)],
    "full_like": lambda f: [f(X(), 0.5), f(X(), 2, jnp.int32)],
    "cast": lambda f: [f(X(), jnp.bfloat16), f(X(), None), f({"n": jnp.arange(3)}, jnp.float32)],
    "cast_like": lambda f: f(X(), tree.cast(Y(), jnp.float16)),
    "dtype": lambda f: [
        jnp.zeros(2, f(X())),
        *(jnp.zeros(2, f(INTEGERS, w)) for w in ("highest", "lowest", "promote")),
    ],
    "split_key_like": lambda f: jtu.tree_map(jax.random.key_data, f(jax.random.key(3), X())),
    "random_like": lambda f: [f(jax.random.key(3), X()), f(jax.random.key(3), X(), jax.random.uniform, jnp.float32)],
    "unwrap_random_key_data": lambda f: f({"key": jax.random.key(3), "x": X()}),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CALLS)
def test_equals_optax(name: str):
    ours = jax.jit(lambda: CALLS[name](getattr(tree, name)))()
    with jax_defaults():
        theirs = jax.jit(lambda: CALLS[name](getattr(optax.tree, name)))()
    assert jtu.tree_structure(ours) == jtu.tree_structure(theirs)
    assert_same(ours, theirs, rtol=0 if "random" in name or "key" in name else 1e-12)


@pytest.mark.usefixtures("x64")
def test_gradients_of_norms_are_those_of_optax():
    def gradients(norm: Any) -> Any:
        return jax.jit(lambda *trees: [jax.grad(norm)(x, o) for x in trees for o in (None, 1, jnp.inf)])

    with jax_defaults():
        theirs = gradients(optax.tree.norm)(example(), of_complex())
    assert_same(gradients(tree.norm)(example(), of_complex()), theirs)


@pytest.mark.parametrize("name", CALLS)
def test_the_signature_is_that_of_optax(name: str):
    def arguments(module: Any) -> Any:
        return [(p.name, p.kind, p.default) for p in inspect.signature(getattr(module, name)).parameters.values()]

    assert arguments(tree) == arguments(optax.tree)


# --- Dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_number_makes_no_leaf_wider(dtype: Any):
    x, y = example(0, dtype), example(1, dtype)
    number = jnp.asarray(0.1, jnp.float32)

    def results(x: Any, y: Any) -> Any:
        clipped = tree.clip(x, np.float64(-0.1), number)
        return tree.scale(number, x), tree.add_scale(x, number, y), clipped, tree.where(True, x, y), tree.add(x, y)

    assert tree.dtype(jax.eval_shape(results, x, y)) == dtype
    wide_x, wide_y = tree.cast(x, jnp.float32), tree.cast(y, jnp.float32)
    once = tree.cast(jtu.tree_map(lambda x, y: x + np.float32(0.1) * y, wide_x, wide_y), dtype)
    assert_same(tree.add_scale(x, 0.1, y), once, 0)
    with jax_defaults():
        assert optax.tree.scale(number, x)["a"].dtype == jnp.float32


def test_two_trees_have_the_dtype_that_holds_both():
    x, y = {"x": jnp.ones(2, jnp.bfloat16), "n": jnp.arange(2)}, {"x": jnp.ones(2), "n": jnp.ones(2, jnp.float16)}
    for actual in (tree.add(x, y), tree.sub(y, x), tree.where(True, x, y)):
        assert (actual["x"].dtype, actual["n"].dtype) == (jnp.float32, jnp.float16)
    assert tree.scale(2.0, x)["n"].dtype == jnp.float32
    assert tree.scale(2, x)["n"].dtype == jnp.int32


def test_reductions_of_low_dtypes_are_done_in_float32():
    x = {"a": jnp.full(4, 300, jnp.float16)}
    assert tree.norm(x) == 600
    assert tree.vdot(x, x) == 360_000
    assert tree.sum({"a": jnp.full(3000, 1, jnp.bfloat16)}) == 3000
    assert tree.sum(x).dtype == jnp.float32
    with jax_defaults():
        assert optax.tree.norm(x) == jnp.inf


def test_integers_are_reduced_as_integers():
    x = {"a": jnp.array([2**24 + 1, -5]), "b": jnp.array([True, True])}
    for value, expected in ((tree.sum(x), 2**24 - 2), (tree.max(x), 2**24 + 1), (tree.min(x), -5)):
        assert value.dtype == jnp.int32
        assert value == expected
    with jax_defaults():
        assert np.asarray(optax.tree.max(x)).item() == 2**24
    assert tree.norm(jnp.full(4, 100, jnp.int8)) == 200


def test_entries_of_narrow_integers_have_their_absolute_values():
    lowest = {"n": jnp.array([-128, 3], jnp.int8)}
    assert tree.norm(lowest, jnp.inf) == 128
    assert tree.norm(lowest, 1) == 131


def test_sums_may_be_added_pairwise():
    small = 2.0**-24  # half of what the next float32 after 1 is away
    leaves = [jnp.array(x, jnp.float32) for x in (1, small, small, small)]
    assert tree.sum(leaves) == 1
    assert tree.sum(leaves, associative_reduction=True) == 1 + 2 * small


def test_a_tolerance_is_relative_to_the_second_tree():
    one, two, nan = {"a": jnp.ones(2)}, {"a": jnp.full(2, 2.0)}, {"a": jnp.array([jnp.nan, 1.0])}
    assert tree.allclose(one, two, rtol=0.5, atol=0)
    assert not tree.allclose(two, one, rtol=0.5, atol=0)
    assert tree.allclose(two, one, rtol=0, atol=1)
    assert not tree.allclose(nan, nan)
    assert tree.allclose(nan, nan, equal_nan=True)
    assert not tree.allclose(nan, one, equal_nan=True)


def test_casts():
    x = {"c": jnp.ones(2, jnp.complex64), "x": jnp.ones(2, jnp.bfloat16)}
    assert_same(tree.cast(x, jnp.float32), {"c": x["c"], "x": jnp.ones(2)})
    assert tree.dtype({"x": jnp.uint32(1), "y": jnp.float16(1)}, "promote") == jnp.float16
    with refused("`tree.dtype`: the leaves have several dtypes, `c: complex64`, `x: bfloat16`"):
        tree.dtype(x)
    with pytest.raises(ValueError, match=r"neither bfloat16 nor float16 holds the other; `'promote'` would"):
        tree.dtype({"x": x["x"], "y": jnp.float16(1)}, "lowest")
    with pytest.raises(ValueError, match=r"must be None, `'promote'`, `'highest'` or `'lowest'`, got 'widest'"):
        tree.dtype(x, "widest")


def test_parts_of_complex_entries_are_clipped_by_themselves():
    assert tree.clip(jnp.array(3 - 4j), -1, 2) == 2 - 1j
    assert np.isnan(tree.clip(jnp.array(jnp.nan), -1, 2))
    assert tree.clip(jnp.array(0.0), 2, 1) == tree.clip(jnp.array(3.0), 2, 1) == 1  # the upper bound wins
    assert_same(tree.clip(jnp.arange(3), 0.5), jnp.array([0.5, 1.0, 2.0]))


class Named(eqx.Module):
    weight: Array
    name: str = eqx.field(static=True)


# --- Edges -----------------------------------------------------------------------------------------------------------


def test_a_norm_is_differentiable_at_zero():
    zeros = {"a": jnp.zeros(2), "c": jnp.zeros(2, jnp.complex64), "n": None}
    orders = None, 1, jnp.inf
    for gradient in jax.jit(lambda x: [jax.grad(tree.norm)(x, ord) for ord in orders])(zeros):
        assert_same(gradient, zeros, 0)
    with jax_defaults():
        assert np.isnan(jax.grad(optax.tree.norm)(zeros["a"])).all()


@pytest.mark.parametrize("nothing", [{}, None, {"a": None}, {"a": jnp.zeros((0, 3))}])
def test_trees_of_nothing(nothing: Any):
    assert tree.norm(nothing) == tree.norm(nothing, jnp.inf) == tree.norm(nothing, 1) == tree.sum(nothing) == 0
    assert tree.vdot(nothing, nothing) == tree.size(nothing) == 0
    assert tree.max(nothing) == -tree.min(nothing) == -jnp.inf
    assert tree.allclose(nothing, nothing)
    assert tree.dtype(nothing) == jnp.float32
    assert_same(tree.add_scale(nothing, 2.0, tree.scale(3.0, tree.clip(nothing, 0, 1))), nothing)
    assert_same(tree.random_like(jax.random.key(0), nothing), nothing)


def test_a_scalar_beside_a_leaf_is_for_all_of_it():
    rates = {"a": 0.5, "b": [None, jnp.array(2.0)], "none": jnp.array(1.0)}
    x = example(dtype=np.float32)
    assert_same(tree.mul(rates, x)["a"], x["a"] / 2)
    assert_same(tree.mul(x, rates)["b"][1], x["b"][1] * 2)


def test_leaves_are_paired_by_their_paths():
    """Containers of another type and models of other static fields fit."""
    assert_same(tree.add([jnp.array(1.0), None], (jnp.array(2.0), None)), [jnp.array(3.0), None])
    assert_same(tree.add_scale([jnp.array(1.0), None], 2.0, (jnp.array(2.0), None)), [jnp.array(5.0), None])
    one, two = Named(jnp.ones(2), "one"), Named(jnp.ones(2), "two")
    assert jtu.tree_structure(one) != jtu.tree_structure(two)
    assert eqx.tree_equal(tree.sub(one, two), tree.zeros_like(one))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "where", "vdot", "allclose", "cast_like"])
def test_the_order_of_the_leaves_is_that_of_the_first_tree(name: str):
    """An `OrderedDict` has the order in which it was written, a dict that of its keys."""
    x = {"a": np.array([1.0, -2.0]), "b": np.array([4.0, 3.0], np.float16)}
    y = {"a": np.array([0.5, 3.0], np.float16), "b": np.array([-5.0, 7.0])}
    other = collections.OrderedDict(b=y["b"], a=y["a"])
    function = functools.partial(tree.where, np.array([True, False])) if name == "where" else getattr(tree, name)
    assert_same(function(x, other), function(x, y))
    found = function(other, x)
    assert_same(dict(found) if isinstance(found, dict) else found, function(y, x))


def test_gradients_and_a_whole_model(key):
    model = eqx.nn.MLP(2, 1, 3, 1, key=key)
    grads = tree.ones_like(eqx.filter(model, eqx.is_array))
    updates = tree.add_scale(grads, 0.5, model)
    assert (updates.layers[0].weight == grads.layers[0].weight + model.layers[0].weight / 2).all()
    assert updates.activation is None
    with pytest.raises(ValueError, match=r"`tree.norm`: `tree` must be a tree of arrays, but at `activation` there is"):
        tree.norm(model)


def test_a_choice_between_states_with_counters_and_keys():
    old = {"count": jnp.array(1), "key": jax.random.key(0), "mu": jnp.ones(2)}
    new = {"count": jnp.array(2), "key": jax.random.key(1), "mu": jnp.zeros(2)}
    chosen = jax.jit(lambda condition: tree.where(condition, new, old))(jnp.array(False))
    assert_same(tree.unwrap_random_key_data(chosen), tree.unwrap_random_key_data(old), 0)
    keys = jax.random.split(jax.random.key(0), 3)
    assert_same(tree.unwrap_random_key_data({"keys": keys, "name": "a"})["keys"], jax.random.key_data(keys), 0)


def test_random_trees():
    shapes = {"a": jax.ShapeDtypeStruct((2, 3), jnp.float16), "c": jnp.zeros(4, jnp.complex64)}
    drawn = tree.random_like(jax.random.key(0), shapes)
    assert_same(tree.zeros_like(drawn), tree.zeros_like(shapes))
    signs = tree.random_like(jax.random.key(0), shapes["a"], jax.random.rademacher)
    assert signs.dtype == jnp.float16
    np.testing.assert_array_equal(jnp.abs(signs), np.ones((2, 3)))
    assert tree.random_like(jax.random.key(0), shapes["a"], lambda key, shape, dtype: shape) == (2, 3)


def test_explicit_sharding_is_that_of_the_tree():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.zeros((4, 2)), PartitionSpec("data"))
        for like in (tree.random_like(jax.random.key(0), x), tree.ones_like(x), tree.scale(2.0, x)):
            assert jax.typeof(like).sharding.spec == PartitionSpec("data", None)


def test_numbers_may_be_traced_and_differentiated():
    x, y = {"a": jnp.array([1.0, 2.0])}, {"a": jnp.array([3.0, -1.0])}

    def of_number(number: Any) -> Any:
        return tree.sum(tree.clip(tree.add_scale(x, number, y), max_value=number)) + tree.sum(tree.scale(number, x))

    assert jax.jit(jax.grad(of_number))(2.0) == 3 + 1 - 1  # the first entry is at its bound


# --- What does not fit -----------------------------------------------------------------------------------------------

A = {"w": jnp.ones((8, 1)), "n": [jnp.ones(2)]}


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: tree.add(A, {"w": 1.0}), "`tree.add`: `tree_y` must have the leaves of `tree_x`; it lacks `n.0`"),
        (
            lambda: tree.add(A, A, {**A, "x": 1.0, "w": None}),
            "`other_trees[0]` must have the leaves of `tree_x`; it lacks `w` and has an unknown `x`",
        ),
        (
            lambda: tree.add_scale(A, 1.0, {"w": A["w"], "n": [None]}),
            "`tree.add_scale`: `tree_y` must have the leaves of `tree_x`; it lacks `n.0`",
        ),
        (
            lambda: tree.sub(A, {**A, "w": jnp.ones(8)}),
            "`tree.sub`: at `w` the shapes are (8, 1) and (8,). They must be equal, or broadcast to one of them",
        ),
        (lambda: tree.vdot(A, {**A, "w": 1.0}), "`tree.vdot`: at `w` the shapes are (8, 1) and (). They must be equal"),
        (lambda: tree.allclose(A, {**A, "n": [1.0]}), "`tree.allclose`: at `n.0` the shapes are (2,) and ()"),
        (lambda: tree.scale(jnp.ones(2), A), "`tree.scale(scalar=...)` must be a scalar, got an array of shape (2,)"),
        (lambda: tree.scale(jnp.ones(1), A), "`tree.scale(scalar=...)` must be a scalar, got an array of shape (1,)"),
        (lambda: tree.add_scale(A, A["w"], A), "`tree.add_scale(scalar=...)` must be a scalar, got an array of shape"),
        (lambda: tree.clip(A, 0, A["w"]), "`tree.clip(max_value=...)` must be a scalar, got an array of shape (8, 1)"),
        (lambda: tree.real({"a": "text"}), "`tree.real`: `tree` must be a tree of arrays, but at `a` there is 'text'"),
        (lambda: tree.conj({"a": "text"}), "`tree.conj`: `tree` must be a tree of arrays, but at `a` there is 'text'"),
        (lambda: tree.where(1.0, A, A), "`tree.where(condition=...)` must hold booleans, got float32"),
        (lambda: tree.where(1, A, A), "must hold booleans, got int32: use `condition != 0`"),
        (lambda: tree.where(True, A, {**A, "w": jnp.ones(8)}), "`tree.where`: at `w` the shapes are (8, 1) and (8,)"),
        (lambda: tree.where(jnp.ones(2, bool), A, A), "its shape is (2,), and at `w` the shape is (8, 1)"),
        (
            lambda: tree.where(jnp.ones(3, bool), A, A),
            "`tree.where(condition=...)` must broadcast to every leaf; its shape is (3,), and at `n.0` the shape is (2",
        ),
        (lambda: tree.max({"a": 1j}), "`tree.max` needs real numbers, which can be ordered, and `a` is complex"),
        (lambda: tree.norm(A, 3), "`tree.norm(ord=...)` must be None, 1, 2 or `jnp.inf`, got 3"),
        (lambda: tree.size({"a": 1, "b": "text"}), "`tree` must be a tree of arrays, but at `b` there is 'text'"),
        (lambda: tree.add(A, {**A, "w": "text"}), "`tree.add`: `tree_y` must be a tree of arrays, but at `w` there is"),
        (
            lambda: tree.sub({"a": 1, "b": 2}, collections.OrderedDict(b="text", a=3)),
            "`tree.sub`: `tree_y` must be a tree of arrays, but at `b` there is 'text'",
        ),
        (lambda: tree.dtype({"a": 1.0}, "widest"), "`tree.dtype(mixed_dtype_handler=...)` must be None"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_path(call: Any, message: str):
    with refused(message):
        call()


def test_a_moment_without_a_new_value_is_left_out():
    """As in optax: None in the updates is None in the result."""
    old = {"w": jnp.ones(2), "b": jnp.ones(2)}
    cases: tuple[Any, ...] = (
        (tree.update_moment, 0.5, 1),
        (tree.update_moment_per_elem_norm, 0.5, 2),
        (tree.update_infinity_moment, 0.5, 0.0),
    )
    for function, *rest in cases:
        new = function({"w": jnp.zeros(2), "b": None}, old, *rest)
        np.testing.assert_array_equal(new["w"], 0.5)
        assert new["b"] is None
    new = mx.incremental_update({"w": jnp.zeros(2), "b": None}, old, 0.25)
    np.testing.assert_array_equal(new["w"], 0.75)
    assert new["b"] is None


@pytest.mark.parametrize("kind", ["Masked", "Partition", "Freeze"])
def test_map_params_finds_arrays_of_optax_under_a_mask_by_names(kind: str):
    theirs = mx.from_optax(optax.adam(0.1))
    mask = {"w": True, "b": False}
    transform = {
        "Masked": mx.Masked(theirs, mask),
        "Partition": mx.Partition({True: theirs, False: mx.SGD(0.1)}, mask),
        "Freeze": mx.Chain(theirs, mx.Freeze(mask)),
    }[kind]
    state = transform.init({"w": jnp.ones(2), "b": jnp.ones(2)})
    mapped = tree.map_params(transform, lambda x: x + 1, state)
    changed = jax.tree.map(lambda a, b: bool(np.any(np.asarray(a) != np.asarray(b))), state, mapped)
    moments = [x for path, x in tree.get_all_with_path(changed, "*.mu.w")]
    assert moments == [True]
    assert not any(x for _, x in tree.get_all_with_path(changed, "*.count"))
