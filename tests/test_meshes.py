"""Meshes: on explicit axes and inside `shard_map`, arrays have types that say where they are, and types must agree."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import modulax as mx
from modulax.testing import Case

from .instances import TRANSFORMS, Instance
from .test_fields import firsts

PARAMS = {"dense": {"kernel": jnp.ones((2, 4)), "bias": jnp.ones(2)}}
# JAX does not choose a sharding for singular vectors.
OF_MATRICES = (mx.ScaleByGaLore, mx.GaLore)


def mesh(axis_type: AxisType) -> Mesh:
    return jax.make_mesh((2,), ("d",), axis_types=(axis_type,), devices=jax.devices()[:2])


def two_steps(case: Case) -> Any:
    def run(params: Any, updates: Any) -> Any:
        state = case.transform.init(params)
        _, state = case.update(updates, state, params)
        return case.update(updates, state, params)[0]

    return run


def case_of(instance: Instance) -> Case:
    return Case(instance.make(), PARAMS, extra=instance.extra, examples=instance.examples)


def spec_of(case: Case) -> P:
    """The updates are sharded like the parameters, along the first axis; examples are not."""
    return P(None, "d") if case.examples else P("d")


@pytest.mark.parametrize("instance", firsts(TRANSFORMS), ids=str)
def test_a_step_inside_shard_map(instance: Instance):
    case = case_of(instance)
    run = jax.shard_map(two_steps(case), mesh=mesh(AxisType.Auto), in_specs=(P("d"), spec_of(case)), out_specs=P("d"))
    found = jax.eval_shape(run, case.params, case.updates())
    assert jtu.tree_structure(found) == jtu.tree_structure(PARAMS)


@pytest.mark.parametrize("instance", [i for i in firsts(TRANSFORMS) if not isinstance(i.make(), OF_MATRICES)], ids=str)
def test_a_step_on_explicit_axes(instance: Instance):
    case, explicit = case_of(instance), mesh(AxisType.Explicit)
    with jax.set_mesh(explicit):
        params = jax.device_put(case.params, NamedSharding(explicit, P("d")))
        updates = jax.device_put(case.updates(), NamedSharding(explicit, spec_of(case)))
        found = jax.eval_shape(two_steps(case), params, updates)
    assert jtu.tree_structure(found) == jtu.tree_structure(PARAMS)


def bad_at_first(case: Case) -> Any:
    """Two steps, the first of them with a gradient that is not finite."""

    def run(params: Any, updates: Any) -> Any:
        state = case.transform.init(params)
        first, state = case.transform.update(jtu.tree_map(lambda u: u / 0, updates), state, params)
        return first, case.transform.update(updates, state, params)[0]

    return run


@pytest.mark.parametrize(
    "transform",
    [
        mx.ApplyIfFinite(mx.SGD(0.1, momentum=0.9), 3),
        mx.ConditionallyMask(mx.Adam(0.1), lambda step: step > 0),
        mx.MultiSteps(mx.Adam(0.1), 1, should_skip=mx.skip_not_finite),
    ],
    ids=lambda t: type(t).__name__,
)
def test_a_skipped_step_is_zero_on_every_mesh(transform: Any):
    """The condition is local inside `shard_map`; here it is the same everywhere."""
    run = bad_at_first(Case(transform, PARAMS))
    grads = jtu.tree_map(lambda p: jnp.arange(1.0, p.size + 1).reshape(p.shape), PARAMS)
    expected = run(PARAMS, grads)
    manual = jax.shard_map(run, mesh=mesh(AxisType.Auto), in_specs=P("d"), out_specs=P("d"))(PARAMS, grads)
    explicit = mesh(AxisType.Explicit)
    with jax.set_mesh(explicit):
        found = jax.jit(run)(*jax.device_put((PARAMS, grads), NamedSharding(explicit, P("d"))))
    for x in jtu.tree_leaves(found):
        assert x.sharding.spec == P("d", *[None] * (x.ndim - 1))
    assert not any(np.any(x) for x in jtu.tree_leaves(found[0]))
    for tree in (manual, found):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tree, expected)


def test_an_eager_init_puts_the_state_where_the_parameters_are():
    """Each array at its own place: two of one shape are sharded along different axes, and one is on no mesh."""
    devices = mesh(AxisType.Auto)
    places = {"rows": P("d"), "columns": P(None, "d"), "bias": P()}
    params = {k: jax.device_put(jnp.ones((2, 4)), NamedSharding(devices, spec)) for k, spec in places.items()}
    params |= {"a_count": jnp.zeros((), jnp.int32), "host": jnp.ones(2)}
    trained = {k: p for k, p in params.items() if k != "a_count"}
    # Moments, averages, codes of four bits, and a memory with a leading axis.
    for transform in (mx.LowBit(mx.MultiSteps(mx.Adam(0.1), 2), min_size=8), mx.ScaleByLBFGS(2)):
        state = transform.init(params)
        for x, wanted in zip(
            jax.tree.leaves(state), jax.tree.leaves(mx.state_sharding(transform, trained)), strict=True
        ):
            assert x.sharding.is_equivalent_to(wanted, x.ndim) or x.shape == (2,), (x.shape, x.sharding, wanted)


def test_what_has_no_sharding_rule_says_so():
    """On explicit axes, GaLore needs matrices that are not sharded; under `Auto` axes XLA moves them."""
    explicit = mesh(AxisType.Explicit)
    with jax.set_mesh(explicit):
        sharded = jax.device_put(PARAMS, NamedSharding(explicit, P("d")))
        optimizer = mx.GaLore(0.1, 1)
        with pytest.raises(Exception, match="shard"):
            jax.eval_shape(lambda p: optimizer.update(p, optimizer.init(p), p), sharded)
        whole = jax.device_put(PARAMS, NamedSharding(explicit, P()))
        jax.eval_shape(lambda p: optimizer.update(p, optimizer.init(p), p), whole)
