"""Containers whose transform receives the parameters in another form: its arguments, and the results."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import modulax as mx
from modulax.numerics import abs_sq

from .settings import jax_defaults

STEPS = 60


def trajectory(transform: Any, params: Any, gradients: Any) -> Any:
    """The updates of all steps, the parameters moving with them."""

    def body(carry: Any, g: Any) -> Any:
        params, state = carry
        updates, state = transform.update(g, state, params)
        return (jtu.tree_map(lambda p, u: p + u, params, updates), state), updates

    return jax.jit(lambda: jax.lax.scan(body, (params, transform.init(params)), gradients)[1])()


def complex_tree(*axes: int) -> Any:
    random = np.random.default_rng(len(axes))
    parts = random.normal(size=(2, *axes, 3))
    return {"z": jnp.asarray(parts[0] + 1j * parts[1]), "r": jnp.asarray(random.normal(size=(*axes, 2)))}


class Seen(mx.AbstractStatelessTransform):
    """Uses every extra argument that is a tree or a function; its parameters to evaluate are one more than others."""

    def apply(self, updates: Any, params: Any, **extra: Any) -> Any:
        gradient = jax.grad(extra["value_fn"])(params)
        from_caller = extra["grad_fn"](params)
        given = (updates, gradient, extra["grad"], from_caller)
        return jtu.tree_map(lambda u, g, c, h: 1000 * u + 100 * g + 10 * c + h, *given)

    def eval_params(self, state: Any, params: Any) -> Any:
        return jtu.tree_map(lambda p: p + 1, params)


# --- SplitRealAndImaginary -----------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_complex_parameters_are_trained_as_by_optax():
    params, gradients = complex_tree(), complex_tree(STEPS)
    ours = trajectory(mx.SplitRealAndImaginary(mx.Adam(0.1)), params, gradients)
    with jax_defaults():
        theirs = trajectory(optax.contrib.split_real_and_imaginary(optax.adam(0.1)), params, gradients)
    chex.assert_trees_all_close(ours, theirs, rtol=1e-12)
    unsplit = trajectory(mx.Adam(0.1), params, gradients)
    np.testing.assert_allclose(ours["r"], unsplit["r"], rtol=1e-12)
    assert not np.allclose(ours["z"], unsplit["z"])


@pytest.mark.usefixtures("x64")
def test_what_is_not_defined_for_complex_numbers_trains_their_parts():
    """As two parameters, each with the real or the imaginary parts; the state has a moment of each."""
    params, gradients = complex_tree(), complex_tree(STEPS)
    with pytest.raises(ValueError, match="is not defined for complex parameters"):
        mx.Rprop(0.1).init(params)
    together = trajectory(mx.SplitRealAndImaginary(mx.Rprop(0.1)), params, gradients)["z"]
    for part in (jnp.real, jnp.imag):
        alone = trajectory(mx.Rprop(0.1), part(params["z"]), part(gradients["z"]))
        np.testing.assert_allclose(part(together), alone, rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_split_twice_is_split_once():
    """The inner one finds nothing to split, and leaves the pairs of the outer one alone."""
    params, gradients = complex_tree(), complex_tree(STEPS)
    once = mx.SplitRealAndImaginary(mx.Rprop(0.1))
    twice = trajectory(mx.SplitRealAndImaginary(once), params, gradients)
    chex.assert_trees_all_equal(twice, trajectory(once, params, gradients))


def test_the_state_and_the_masks_inside_have_the_parts():
    params = {"z": jnp.ones(2, jnp.complex64), "r": jnp.ones(3)}
    inner = mx.Chain(mx.Trace(0.9), mx.Masked(mx.SetToZero(), mx.by_path({"*.imaginary": True, "*": False})))
    transform = mx.SplitRealAndImaginary(inner)
    state = transform.init(params)
    trace = state.inner_state["trace"].trace
    assert isinstance(trace["z"], mx.RealAndImaginary)
    assert trace["z"].real.dtype == trace["r"].dtype == jnp.float32
    updates, _ = transform.update({"z": (1 + 1j) * params["z"], "r": params["r"]}, state, params)
    np.testing.assert_array_equal(updates["z"], [1, 1])


def seen_of(loss: Any, params: Any) -> dict[str, Any]:
    """The extra arguments that `Seen` uses."""
    return {
        "value_fn": loss,
        "grad_fn": lambda params: jtu.tree_map(lambda p: -p, params),
        "grad": jtu.tree_map(lambda p: 3 * p, params),
    }


def test_extra_arguments_of_complex_parameters():
    """Trees are split, and functions see complex parameters; a gradient inside is that of two real parameters."""
    params = {"z": jnp.asarray([1 + 2j, 3 - 1j]), "r": jnp.asarray([2.0])}
    transform = mx.SplitRealAndImaginary(Seen())
    extra = seen_of(lambda params: jnp.sum(abs_sq(params["z"])) + jnp.sum(params["r"] ** 2), params)
    updates, _ = transform.update(params, transform.init(params), params, **extra)
    expected = jtu.tree_map(lambda p: (1000 + 200 + 30 - 1) * p, params)
    chex.assert_trees_all_close(updates, expected, rtol=1e-6)
    averaged = transform.eval_params(transform.init(params), params)
    chex.assert_trees_all_close(averaged, {"z": params["z"] + (1 + 1j), "r": params["r"] + 1})


# --- Flatten -------------------------------------------------------------------------------------

MIXED = {
    "a": np.ones((2, 3), np.float32),
    "b": jnp.ones(4, jnp.bfloat16),
    "c": np.ones((), np.float32),
    "d": jnp.ones(3, jnp.bfloat16),
    "none": None,
    "z": np.ones(2, np.complex64),
    "empty": np.ones((0, 3), np.float16),
}


def test_every_dtype_has_a_vector_of_its_own():
    params = jtu.tree_map(jnp.asarray, MIXED)
    transform = mx.Flatten(mx.Trace(0.9))
    state = transform.init(params)
    found = {name: (x.dtype.name, x.shape) for name, x in state.inner_state.trace.items()}
    assert found == {name: (name, (n,)) for name, n in (("float32", 7), ("bfloat16", 7), ("complex64", 2))}
    updates, _ = transform.update(params, state, params)
    chex.assert_trees_all_equal(updates, params, strict=True)
    with jax_defaults():
        twin = optax.flatten(optax.trace(0.9))
        del params["z"]
        theirs: Any = twin.update(params, twin.init(params), params)[0]
    assert theirs["b"].dtype == jnp.float32


@pytest.mark.parametrize(
    "inner", [mx.Chain(mx.Clip(0.5), mx.Adam(0.1)), mx.MultiSteps(mx.SGD(0.1, 0.9), 2)], ids=["Chain", "MultiSteps"]
)
def test_it_does_the_same_as_without(inner: Any):
    random = np.random.default_rng(0)
    gradients = jtu.tree_map(lambda x: jnp.asarray(random.normal(size=(5, *x.shape)), x.dtype), MIXED)
    params = jtu.tree_map(jnp.asarray, MIXED)
    plain = trajectory(inner, params, gradients)
    for flatten in (mx.Flatten(inner), mx.Flatten(inner, chunk=1)):
        flat = trajectory(flatten, params, gradients)
        for a, b in zip(jtu.tree_leaves(plain), jtu.tree_leaves(flat), strict=True):
            rtol = 1e-2 if a.dtype == jnp.bfloat16 else 1e-5
            np.testing.assert_allclose(a.astype(complex), b.astype(complex), rtol=rtol, atol=1e-6)


def test_a_vector_holds_no_more_arrays_than_a_chunk():
    params = {f"{i}": jnp.full(i + 1, float(i)) for i in range(5)} | {"low": jnp.ones(3, jnp.bfloat16)}
    state = mx.Flatten(mx.Trace(0.9), chunk=2).init(params)
    found = {name: x.size for name, x in state.inner_state.trace.items()}
    assert found == {"float32_0": 1 + 2, "float32_1": 3 + 4, "float32_2": 5, "bfloat16_0": 3}
    with pytest.raises(ValueError, match=r"`Flatten\(chunk=...\)` must be a positive integer, got 0"):
        mx.Flatten(mx.SGD(0.1), chunk=0)


def test_arrays_of_one_shape_keep_their_shardings():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    specs = {"x": PartitionSpec("x", None), "y": PartitionSpec(None, "y"), "neither": PartitionSpec(None, None)}
    places = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    params = {name: jax.device_put(np.ones((4, 4), np.float32), place) for name, place in places.items()}
    transform = mx.Flatten(mx.Trace(0.9))
    updates, _ = transform.update(params, transform.init(params))
    assert all(u.sharding.is_equivalent_to(places[name], 2) for name, u in updates.items())


def test_updates_of_another_dtype_than_the_parameters():
    """Each vector holds the arrays of one dtype of the parameters, whatever the dtypes of the updates."""
    params = {"a": jnp.ones(2), "b": jnp.ones(3), "c": jnp.ones(2, jnp.bfloat16)}
    grads = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.full(3, 1 / 3), "c": jnp.full(2, 1 / 3)}
    transform = mx.Flatten(mx.Trace(0.9))
    updates, state = grads, transform.init(params)
    for _ in range(2):
        updates, state = transform.update(grads, state, params)
    assert jtu.tree_map(lambda x: x.dtype, updates) == jtu.tree_map(lambda x: x.dtype, grads)
    np.testing.assert_allclose(updates["b"], 1.9 / 3, rtol=1e-6)
    with pytest.raises(ValueError, match="must have the leaves of the parameters that `init` was given"):
        transform.update(jtu.tree_map(lambda g: g.astype(jnp.float16), grads), state)


def test_extra_arguments_and_parameters_to_evaluate_of_vectors():
    params = {"a": jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), "b": jnp.asarray(5.0)}
    transform: mx.AbstractTransform = mx.Chain(mx.Flatten(mx.Flatten(Seen())))
    state = transform.init(params)
    extra = seen_of(lambda params: jnp.sum(params["a"] ** 2) + jnp.sum(params["b"] ** 3), params)
    updates, _ = transform.update(params, state, params, **extra)
    expected = {"a": (1000 + 200 + 30 - 1) * params["a"], "b": jnp.asarray((1000 + 30 - 1) * 5.0 + 100 * 3 * 25)}
    chex.assert_trees_all_close(updates, expected, rtol=1e-6)
    chex.assert_trees_all_close(transform.eval_params(state, params), jtu.tree_map(lambda p: p + 1, params))


def test_what_is_not_like_the_parameters_is_handed_on_as_it_is():
    """A number beside a single array, integers in the parameters' shapes, other shapes, and None."""

    class Given(mx.AbstractStatelessTransform):
        def apply(self, updates: Any, params: Any, **extra: Any) -> Any:
            seen.append(extra)
            return updates

    seen: list[Any] = []
    flat = mx.Flatten(Given())
    for tree in (jnp.ones(()), {"w": jnp.ones((2, 3)), "b": jnp.ones(2)}):
        given = {
            "value": jnp.ones(()),
            "labels": jtu.tree_map(lambda x: jnp.ones(x.shape, jnp.int32), tree),
            "examples": jtu.tree_map(lambda x: jnp.ones((5, *x.shape)), tree),
            "value_fn": None,
            "none": None,
        }
        flat.update(tree, flat.init(tree), tree, **given)
        jtu.tree_map(lambda x, y: chex.assert_equal_shape([x, y]), seen.pop(), given)


@pytest.mark.parametrize("around", [mx.Flatten, mx.SplitRealAndImaginary])
def test_parameters_may_be_a_single_array(around: Any):
    """A line search inside needs the gradient in the form of its parameters."""
    dtype = jnp.complex64 if around is mx.SplitRealAndImaginary else jnp.float32
    matrix = jnp.asarray([[1.0, 2.0], [3.0, 4.0]], dtype)

    def loss(tree: Any) -> Any:
        return sum(jnp.sum(abs_sq(x) ** 2) for x in jtu.tree_leaves(tree))

    transform = around(mx.LBFGS())

    def run(params: Any) -> Any:
        grad = jax.grad(loss)(params)
        state = transform.init(params)
        return transform.update(grad, state, params, value=loss(params), grad=grad, value_fn=loss)[0]

    np.testing.assert_array_equal(run(matrix), run({"w": matrix})["w"])


def test_the_gradients_of_examples_are_flattened_each_by_itself():
    random = np.random.default_rng(0)
    params = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(3)}
    grads = jtu.tree_map(lambda p: jnp.asarray(random.normal(size=(4, *p.shape)), p.dtype), params)
    inner = mx.DifferentiallyPrivateAggregate(0.5, 0.0, 0)
    expected, _ = inner.update(grads, inner.init(params), params)
    transform = mx.Flatten(inner)
    for given in (params, None):
        updates, _ = transform.update(grads, transform.init(params), given)
        chex.assert_trees_all_close(updates, expected, rtol=1e-6)
