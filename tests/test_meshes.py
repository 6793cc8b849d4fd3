"""Meshes: on explicit axes and inside `shard_map`, arrays have types that say where they are, and types must agree."""

import math
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import modulax as mx
from modulax import checkpoint
from modulax._transforms import spread
from modulax.testing import Case

from .instances import FIRSTS, Instance
from .reach import hooks_of

PARAMS = {"dense": {"kernel": jnp.ones((2, 4)), "bias": jnp.ones(2)}}
EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto


def mesh(axis_type: AxisType = EXPLICIT) -> Mesh:
    return jax.make_mesh((2,), ("d",), axis_types=(axis_type,), devices=jax.devices()[:2])


def ours() -> Iterator[Instance]:
    """An instance of each class; of optimizers, which are chains of the others, one for each set of methods."""
    groups = set[Hashable]()
    for instance in FIRSTS:
        group = hooks_of(instance.cls) if issubclass(instance.cls, mx.AbstractOptimizer) else instance
        if group not in groups:
            groups.add(group)
            yield instance


INSTANCES = list(ours())


def two_steps(case: Case) -> Any:
    def run(params: Any, updates: Any) -> Any:
        state = case.transform.init(params)
        _, state = case.update(updates, state, params)
        return case.update(updates, state, params)[0]

    return run


def case_of(instance: Instance) -> Case:
    return Case(instance.made, PARAMS, extra=instance.extra, examples=instance.examples)


def spec_of(case: Case) -> P:
    """The updates are sharded like the parameters, along the first axis; examples are not."""
    return P(None, "d") if case.examples else P("d")


@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_a_step_inside_shard_map(instance: Instance):
    case = case_of(instance)
    run = jax.shard_map(two_steps(case), mesh=mesh(AUTO), in_specs=(P("d"), spec_of(case)), out_specs=P("d"))
    found = jax.eval_shape(run, case.params, case.updates())
    assert jtu.tree_structure(found) == jtu.tree_structure(PARAMS)


FALLING = mx.schedules.Linear(0.9, 0.8, 10)
SCHEDULED = [
    mx.SOAP(0.1, b1=FALLING),
    mx.EShampoo(0.1, b1=FALLING),
    mx.Shampoo(0.1, b1=FALLING),
    mx.Dion(1e-3, beta=FALLING),
    mx.Muon(1e-3, eps=FALLING),
    mx.NorMuon(1e-3, b2=FALLING),
    mx.Scion(0.1, scale=FALLING),
]


@pytest.mark.parametrize("case", [
    *(pytest.param(case_of(i), id=str(i)) for i in INSTANCES),
    *(pytest.param(Case(t, PARAMS), id=f"scheduled {type(t).__name__}") for t in SCHEDULED),
])  # fmt: skip
def test_a_step_on_explicit_axes(case: Case):
    explicit = mesh()
    with jax.set_mesh(explicit):
        params = jax.device_put(case.params, NamedSharding(explicit, P("d")))
        updates = jax.device_put(case.updates(), NamedSharding(explicit, spec_of(case)))
        found = jax.eval_shape(two_steps(case), params, updates)
    assert jtu.tree_structure(found) == jtu.tree_structure(PARAMS)
    jax.jit(case.transform.init).lower(params)  # outside `jax.set_mesh`


# Options that choose between what is kept and what is given, and parameters in bfloat16.
OPTIONS = [
    ("reset", mx.Lookahead(mx.Adam(0.1), 2, 0.5, reset_state=True), jnp.float32),
    ("window", mx.ParamAverage(mx.SGD(0.1), window=2), jnp.float32),
    ("travelled", mx.Mechanize(mx.Adam(0.1), store_delta=False), jnp.float32),
    ("cautious", mx.AddDecayedWeights(0.1, cautious=True), jnp.float32),
    ("perturbed", mx.SAM(mx.AdamW(0.1), mx.Adam(0.1), sync_period=3), jnp.bfloat16),
    ("skipped", mx.MultiSteps(mx.AdamW(0.1), 2, should_skip=mx.skip_not_finite), jnp.bfloat16),
    ("finite", mx.ApplyIfFinite(mx.MasterWeights(mx.AdamW(0.1)), 3), jnp.bfloat16),
    ("rounded", mx.StochasticRounding(mx.AdamW(0.1)), jnp.bfloat16),
    ("masters", mx.MasterWeights(mx.ScheduleFreeAdamW(0.1)), jnp.bfloat16),
]


@pytest.mark.parametrize("case", [
    *(pytest.param(case_of(instance), id=str(instance)) for instance in INSTANCES),
    *(pytest.param(Case(t, jtu.tree_map(partial(jnp.asarray, dtype=d), PARAMS)), id=n) for n, t, d in OPTIONS),
])  # fmt: skip
def test_a_step_with_a_divided_state_on_explicit_axes(case: Case):
    """The parameters are whole; each array of the state is divided if it can be, and stays where it was."""
    transform, explicit = case.transform, mesh()
    whole = NamedSharding(explicit, P())

    def placed(x: Any, sharding: Any = whole) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    def axes(tree: Any) -> list[Any]:
        specs = [x.sharding.spec if x.sharding else P() for x in jtu.tree_leaves(tree)]
        return [(*spec, *[None] * (x.ndim - len(spec))) for x, spec in zip(jtu.tree_leaves(tree), specs, strict=True)]

    def step(params: Any, state: Any, updates: Any) -> Any:
        return transform.step(updates, state, params, **case.extra_for(params, updates))

    with jax.set_mesh(explicit):
        params, updates = jtu.tree_map(placed, (case.params, case.updates()))
        shardings = mx.state_sharding(transform, params, zero="d")
        state = jtu.tree_map(placed, jax.eval_shape(transform.init, params), shardings)
        results = [(params, state), jax.eval_shape(step, params, state, updates)]
        # Those that a moment has divided. JAX doesn't flatten a divided array.
        if not case.examples and not isinstance(transform, mx.Flatten):
            divided = jtu.tree_map(
                lambda x: placed(x, NamedSharding(explicit, P(*[None] * (x.ndim - 1), "d"))), updates
            )
            results.append(jax.eval_shape(step, params, state, divided))
        averaged = jax.eval_shape(transform.eval_params, state, params)
    assert axes(averaged) == axes(params)
    assert all(axes(result) == axes(results[0]) for result in results)


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

    def run(params: Any, updates: Any) -> Any:
        """Two steps, the first of them with a gradient that is not finite."""
        first, state = transform.update(jtu.tree_map(lambda u: u / 0, updates), transform.init(params), params)
        return first, transform.update(updates, state, params)[0]

    grads = jtu.tree_map(lambda p: jnp.arange(1.0, p.size + 1).reshape(p.shape), PARAMS)
    expected = run(PARAMS, grads)
    manual = jax.shard_map(run, mesh=mesh(AUTO), in_specs=P("d"), out_specs=P("d"))(PARAMS, grads)
    explicit = mesh()
    with jax.set_mesh(explicit):
        found = jax.jit(run)(*jax.device_put((PARAMS, grads), NamedSharding(explicit, P("d"))))
    for x in jtu.tree_leaves(found):
        assert x.sharding.spec == P("d", *[None] * (x.ndim - 1))
    assert not any(np.any(x) for x in jtu.tree_leaves(found[0]))
    for tree in (manual, found):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tree, expected)


def test_an_eager_init_puts_the_state_where_the_parameters_are():
    """Each array at its own place: two of one shape are sharded along different axes, and one is on no mesh."""
    devices = mesh(AUTO)
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


@pytest.mark.parametrize("kinds, spec", [
    ((EXPLICIT, EXPLICIT), P("a")),
    ((EXPLICIT, EXPLICIT), P()),
    ((EXPLICIT, AUTO), P("a", "b")),
    ((EXPLICIT, AUTO), P(None, ("a", "b"))),
])  # fmt: skip
def test_an_eager_init_on_explicit_axes_outside_of_their_mesh(kinds: Any, spec: P):
    """Nothing is computed from the parameters, and their types name devices."""
    grid = jax.make_mesh((2, 2), ("a", "b"), axis_types=kinds, devices=jax.devices()[:4])
    place = NamedSharding(grid, spec)
    params = {"w": jax.device_put(jnp.ones((8, 8)), place)}
    optimizer = mx.AdamW(0.1)
    state = optimizer.init(params)
    moments = mx.tree.get(state, "mu")["w"], mx.tree.get(state, "nu")["w"]
    assert all(x.sharding.is_equivalent_to(place, 2) for x in moments)
    for other in (mx.SGD(0.1, momentum=0.9), mx.LowBit(mx.Lion(0.1), block=4, min_size=8)):
        first = other.init(params)
        assert jtu.tree_structure(mx.state_sharding(other, params)) == jtu.tree_structure(first)
        assert all(x.sharding.device_set == place.device_set for x in jtu.tree_leaves(first))
        assert other.step(params, first, params)[0]["w"].sharding.is_equivalent_to(place, 2)
    carried, _ = checkpoint.carry(mx.SGD(0.1, momentum=0.9), params, optimizer, state)
    assert mx.tree.get(carried, "trace")["w"].sharding.is_equivalent_to(place, 2)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("follow", ["paper", "optax"])
def test_a_convolution_whose_inputs_are_divided_is_projected(follow: Any):
    """Its axes are joined to rows, and JAX reshapes no divided axis; the updates are where the gradients are."""
    optimizer = mx.GaLore(0.01, 2, update_proj_gap=2, follow=follow)
    params = {"kernel": jnp.sin(jnp.arange(96.0)).reshape(2, 2, 4, 6)}

    def updates(params: Any) -> Any:
        state, found = optimizer.init(params), []
        for i in range(3):
            out, state = optimizer.update(jtu.tree_map(lambda p, i=i: jnp.cos(7 * p + i), params), state, params)
            found.append(out["kernel"])
        return found

    explicit = mesh()
    place = NamedSharding(explicit, P(None, None, "d", None))
    with jax.set_mesh(explicit):
        found = updates(jax.device_put(params, place))
    for x, wanted in zip(found, updates(params), strict=True):
        assert x.sharding.is_equivalent_to(place, 4)
        np.testing.assert_allclose(x, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_matrices_of_heads_that_are_divided_along_their_outputs():
    """Each has the factor of its own shape, and nothing is reshaped for it."""
    roles = {"key": mx.Attention("key", heads=2, fan_in=0, fan_out=(1, 2))}
    optimizer = mx.Muon(0.02, adam_learning_rate=1e-3, roles=roles, per_head=True)
    params = {"key": jnp.linspace(-1.0, 1.0, 64).reshape(8, 2, 4)}
    wanted, _ = jax.jit(optimizer.update)(params, optimizer.init(params), params)
    explicit = mesh()
    with jax.set_mesh(explicit):
        divided = jax.device_put(params, NamedSharding(explicit, P(None, None, "d")))
        found, _ = jax.jit(optimizer.update)(divided, jax.jit(optimizer.init)(divided), divided)
    assert found["key"].sharding.spec[-1] == "d"
    np.testing.assert_allclose(found["key"], wanted["key"], atol=1e-10, rtol=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("in_rounds", [False, True])
def test_factors_are_divided_over_devices(in_rounds: bool, monkeypatch: pytest.MonkeyPatch):
    """Each device decomposes and multiplies some of the blocks, and has a part of every factor."""
    if in_rounds:  # in each, a device decomposes one matrix
        monkeypatch.setattr(spread, "_LEAST_DECOMPOSED", 0)
    kinds = mx.by_path({"vector": None, "*": mx.MuonDimensionNumbers(-2, -1)})
    every: Any = {"precondition_frequency": 1, "eps": 1.0, "weight_dimension_numbers": kinds}
    transforms = {
        "KLShampoo": mx.ScaleByShampoo(b2=0.9, block_size=8, kl=True, grafting=mx.Ema(0.9), **every),
        "EShampoo": mx.ScaleByEShampoo(block_size=8, **every),
        "SOAP": mx.ScaleBySOAP(max_precond_dim=8, **every),
    }

    @jax.jit
    def step(grads: Any, states: Any) -> Any:
        new = {name: transform.update(grads, states[name]) for name, transform in transforms.items()}
        return {name: u for name, (u, _) in new.items()}, {name: state for name, (_, state) in new.items()}

    def second(first: Any, then: Any) -> Any:
        states = {name: transform.init(first) for name, transform in transforms.items()}
        program = step.lower(first, states).compile()
        return program(then, program(first, states)[1]), program

    # Two blocks side by side, two and three on top of each other.
    arrays = {
        "wide": ((4, 8, 16), P(None, "a", "b")),
        "tall": ((4, 16, 8), P(None, ("a", "b"))),
        "three": ((4, 24, 8), P(None, "a", "b")),
        "vector": ((64,), P(("a", "b"))),
    }
    random = np.random.default_rng(0)
    first = {name: random.normal(size=shape) for name, (shape, _) in arrays.items()}
    then = jtu.tree_map(lambda x: x[::-1], first)
    grid = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AUTO, AUTO), devices=jax.devices()[:4])
    places = {name: NamedSharding(grid, spec) for name, (_, spec) in arrays.items()}
    (wanted, _), _ = second(first, then)
    (found, states), program = second(jax.device_put(first, places), jax.device_put(then, places))
    jtu.tree_map(partial(np.testing.assert_allclose, atol=1e-10, rtol=1e-10), found, wanted)
    for u in found.values():
        assert all(u[name].sharding.is_equivalent_to(places[name], u[name].ndim) for name in arrays)
    factors = [x for x in jtu.tree_leaves(states) if x.shape[-2:] == (8, 8)]
    assert len(factors) == 32
    assert all(math.prod(x.sharding.shard_shape(x.shape)) == x.size // 4 for x in factors)
    assert "all-gather" not in program.as_text()
