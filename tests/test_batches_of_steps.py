"""In a batch of steps under `jax.vmap`, what is meant for few steps is computed in those alone."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import modulax as mx
from modulax.numerics import cond

from .operations import operations
from .reach import cases, checked

X = jnp.asarray([[0.3, 1.1, -0.4], [2.0, -1.0, 0.5]])


def step(count: Any, x: Any) -> Any:
    """The sine of every third number, and the others as they are."""
    return cond(count % 3 == 0, lambda: {"x": jnp.sin(x)}, lambda: {"x": x})["x"]


@pytest.mark.parametrize("counts", [[[0, 1, 3], [2, 4, 5]], [[0, 3, 6], [3, 0, 9]], [[1, 2, 4], [5, 7, 8]]])
def test_each_entry_of_a_batch_of_batches_gets_its_own_branch(counts: list[list[int]]):
    def total(x: Any) -> Any:
        return jnp.sum(batch(jnp.asarray(counts), x) ** 2)

    batch = jax.vmap(jax.jit(jax.vmap(step)))
    is_true = np.asarray(counts) % 3 == 0
    np.testing.assert_allclose(batch(jnp.asarray(counts), X), np.where(is_true, np.sin(X), X), rtol=1e-6)
    slope = np.where(is_true, 2 * np.sin(X) * np.cos(X), 2 * X)
    np.testing.assert_allclose(jax.grad(total)(X), slope, rtol=1e-5)
    turns = np.where(is_true, 2 * np.cos(2 * np.asarray(X)), 2.0)
    hessian = jax.hessian(total)(X)
    np.testing.assert_allclose(np.einsum("ijij->ij", hessian), turns, rtol=1e-5)


def test_a_branch_that_no_entry_needs_is_not_computed():
    computed = list[int]()

    def rare(x: Any) -> Any:
        jax.debug.callback(lambda: computed.append(1))
        return x + 1

    batch = jax.jit(jax.vmap(lambda count, x: cond(count == 0, lambda: rare(x), lambda: x)))
    for counts, found in (([1, 2], [0.0, 0.0]), ([0, 2], [1.0, 0.0]), ([0, 0], [1.0, 1.0])):
        computed.clear()
        np.testing.assert_array_equal(batch(jnp.asarray(counts), jnp.zeros(2)), found)
        jax.effects_barrier()
        assert bool(computed) == (0 in counts)


@pytest.mark.parametrize("batch", [step, jax.vmap(step)], ids=["one", "batch"])
def test_inside_shard_map_each_device_takes_its_branch(batch: Any):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    spec = PartitionSpec("d")
    on_devices = jax.shard_map(lambda c, x: batch(c[0], x[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
    counts = jnp.asarray([[0, 1, 3], [2, 4, 5]]) if batch is not step else jnp.asarray([3, 1])
    is_true = np.asarray(counts % 3 == 0).reshape(2, -1)
    np.testing.assert_allclose(jax.jit(on_devices)(counts, X), np.where(is_true, np.sin(X), X), rtol=1e-6)


def test_branches_that_differ_are_refused_by_jax_and_numbers_of_python_are_arrays():
    x = jnp.ones(2, jnp.bfloat16)
    batch = jax.vmap(lambda is_one: cond(is_one, lambda: 1.0, lambda: x[0]))
    found: Any = batch(jnp.asarray([True, False]))
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, [1.0, 1.0])
    for other in (lambda: x[:1], lambda: x.astype(jnp.float32), lambda: (x, x)):
        for branches in ((other, lambda: x), (lambda: x, other)):
            with pytest.raises(TypeError, match="branch"):
                cond(True, *branches)


def batched(tree: Any) -> Any:
    """The shapes of three such trees in a batch."""
    return jtu.tree_map(lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), tree)


def test_a_batch_of_states_takes_the_branches_of_one():
    """Else an ensemble of SOAP would decompose its matrices in every step, ten times as often."""
    branching = set[str]()
    for instance in sorted(checked()["states_can_be_donated"], key=str):
        case = cases()[instance]
        arguments = case.updates(), jax.eval_shape(case.init), case.params
        if of_one := operations(case.update, *arguments)["cond"]:
            of_batch = operations(jax.vmap(case.update), *map(batched, arguments))["cond"]
            assert of_one <= of_batch, instance
            branching.add(instance.name)
    assert {"MultiSteps", "SAM", "ScaleByKron", "ScaleBySOAP", "ScaleBySophia"} <= branching


@pytest.mark.parametrize("search", [mx.ScaleByZoomLinesearch(5), mx.ScaleByBacktrackingLinesearch(5, store_grad=True)])
def test_a_batch_of_line_searches_computes_no_gradient_that_is_stored(search: Any):
    """Nor one of a trial that is not the last."""
    optimizer = mx.Chain(mx.ScaleByLBFGS(), search)
    value_and_grad = mx.value_and_grad_from_state(lambda x: jnp.sum(jnp.cosh(x)))

    def fit(x: Any, state: Any) -> Any:
        value, grad = value_and_grad(x, state=state)
        return optimizer.step(grad, state, x, value=value, grad=grad, value_fn=lambda x: jnp.sum(jnp.cosh(x)))

    state = jax.eval_shape(optimizer.init, X)
    of_one = operations(fit, X, state)["cond"]
    assert of_one == operations(jax.vmap(fit), batched(X), batched(state))["cond"] > 0


def test_members_of_a_sweep_that_refresh_at_other_steps_are_those_alone():
    """Bases every two and every three steps, side by side."""
    params = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)}

    def train(optimizer: Any) -> Any:
        def body(carry: Any, i: Any) -> Any:
            params, state = carry
            grads = jtu.tree_map(lambda p: jnp.sin(3 * p + i), params)
            return optimizer.step(grads, state, params), None

        return jax.lax.scan(body, (params, optimizer.init(params)), jnp.arange(7.0))[0]

    members = [mx.SOAP(0.1, precondition_frequency=every) for every in (2, 3)]
    mapped = jax.vmap(train)(jtu.tree_map(lambda *x: jnp.stack([jnp.asarray(y, jnp.float32) for y in x]), *members))
    for i, member in enumerate(members):
        for found, alone in zip(jtu.tree_leaves(mapped), jtu.tree_leaves(train(member)), strict=True):
            np.testing.assert_allclose(found[i], alone, rtol=1e-4, atol=1e-5)
