"""Muon over many devices: the results are those of one device, and each device does its part of the work."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import modulax as mx
from modulax._transforms import spread

RANDOM = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape)


# More matrices than devices and fewer, wide, tall and square, of odd sizes; query, key and value in one array.
GRADS: dict[str, Any] = {
    "stacks": {"down": draw(16, 8), "odd": draw(6, 10), "square": draw(9, 8, 8), "up": draw(2, 8, 16)},
    "qkv": {"kernel": draw(8, 48)},
    "normalized": {"kernel": draw(8, 48)},
    "projected": {"odd": draw(6, 10), "table": draw(16, 8)},
}
TRANSFORMS: dict[str, Any] = {
    "stacks": mx.ScaleByMuon(weight_dimension_numbers=mx.MuonDimensionNumbers(-2, -1)),
    "qkv": mx.ScaleByMuon(
        beta=mx.schedules.Linear(0.5, 0.9, 3),
        adaptive=True,
        preconditioning="aol",
        per_head=True,
        weight_dimension_numbers=mx.roles(GRADS["qkv"], {"kernel": mx.Attention("qkv", heads=2)}),
    ),
}
TRANSFORMS["normalized"] = mx.ScaleByNorMuon(weight_dimension_numbers=TRANSFORMS["qkv"].weight_dimension_numbers)
TRANSFORMS["projected"] = mx.ScaleByScion(scale=1.0, roles={"table": mx.Embedding()})
FLAT, GRID = ((8,), ("data",)), ((4, 2), ("data", "model"))
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...], kind: AxisType) -> Mesh:
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names), devices=jax.devices("cpu")[:8])


def two_steps(transforms: dict[str, Any], grads: Any, places: Any = None) -> Any:
    """The updates of the second step of each transform, whose state begins where `places` say."""
    init = jax.jit(lambda grads: {name: t.init(grads[name]) for name, t in transforms.items()}, out_shardings=places)

    @jax.jit
    def step(grads: Any, states: Any) -> Any:
        results = {name: t.update(grads[name], states[name]) for name, t in transforms.items()}
        return {name: u for name, (u, _) in results.items()}, {name: state for name, (_, state) in results.items()}

    _, states = step(grads, init(grads))
    return step(jtu.tree_map(lambda g: jax.device_put(2 * np.asarray(g)[::-1], g.sharding), grads), states)[0]


@pytest.fixture(scope="module")
def alone() -> Any:
    with jax.enable_x64(True):
        return two_steps(TRANSFORMS, jax.device_put(GRADS))


# In float64: five steps of Newton-Schulz multiply what float32 rounds off by up to 3.44 ** 5.
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape, kind, axes, over, zero", [
    (FLAT, AUTO, ("data", None), None, None),
    (FLAT, AUTO, (None, None), None, "data"),
    (GRID, AUTO, ("data", "model"), None, None),
    (GRID, AUTO, ("data", "model"), "data", None),
    (FLAT, EXPLICIT, (None, "data"), None, None),
    (GRID, EXPLICIT, ("model", "data"), (), None),
], ids=["FSDP", "ZeRO-1", "FSDP x TP", "over FSDP", "explicit", "explicit, over nothing"])  # fmt: skip
def test_updates_are_those_of_one_device(
    shape: Any, kind: AxisType, axes: Any, over: Any, zero: Any, alone: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spread, "_SMALL_SHARE", 0)  # batches with one matrix for each device
    mesh, transforms = mesh_of(shape[0], shape[1], kind), {k: t.replace(over=over) for k, t in TRANSFORMS.items()}

    def place(x: Any) -> Any:
        ends = [a if a and n % mesh.shape[a] == 0 else None for a, n in zip(axes, x.shape[-len(axes) :], strict=True)]
        return jax.device_put(x, NamedSharding(mesh, P(*[None] * (x.ndim - len(ends)), *ends)))

    with jax.set_mesh(mesh):
        grads = jtu.tree_map(place, GRADS)
        places = {k: mx.state_sharding(t, grads[k], zero=zero) for k, t in transforms.items()} if zero else None
        found = two_steps(transforms, grads, places)
    for u, g, wanted in zip(*map(jtu.tree_leaves, (found, grads, alone)), strict=True):
        np.testing.assert_allclose(u, wanted, atol=1e-10, rtol=1e-10)
        assert zero or u.sharding.is_equivalent_to(g.sharding, g.ndim), (u.sharding, g.sharding)


def test_each_device_does_its_part():
    """Sixteen matrices on eight devices, which exchange them all to all; two matrices, which four devices share."""
    mesh = mesh_of(*FLAT, AUTO)
    transform = mx.ScaleByMuon(weight_dimension_numbers=mx.MuonDimensionNumbers(-2, -1))

    def compiled(count: int, sharding: Any) -> Any:
        grads = jax.ShapeDtypeStruct((count, 32, 64), jnp.float32, sharding=sharding)
        return jax.jit(lambda g: transform.update(g, transform.init(g))[0]).lower(grads).compile()

    alone = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    for count in (2, 16):
        part = compiled(count, NamedSharding(mesh, P(None, "data")))
        assert part.cost_analysis()["flops"] < compiled(count, alone).cost_analysis()["flops"] / 5
        assert "all-to-all" in part.as_text()
        assert "all-gather" not in part.as_text()


def test_an_axis_that_the_mesh_does_not_have():
    with jax.set_mesh(mesh_of(*FLAT, AUTO)):
        x = jax.device_put(draw(8, 8), NamedSharding(mesh_of(*FLAT, AUTO), P("data")))
        muon = mx.Muon(0.02, adam_learning_rate=1e-3, over=("data", "model"))
        transforms: tuple[Any, ...] = mx.ScaleByMuon(over="model"), muon
        for transform in transforms:
            message = r"`ScaleByMuon\(over=...\)`: the mesh of the parameters has no axis 'model'. It has `data`."
            with pytest.raises(ValueError, match=message):
                jax.eval_shape(lambda x, t=transform: t.update(x, t.init(x), x), x)


@pytest.mark.usefixtures("x64")
def test_a_sweep_and_a_hypergradient_over_devices():
    """Two matrices, which four devices share, under `jax.vmap` over a decay rate, and differentiated by it."""
    grads = {"a": draw(8, 16), "b": draw(16, 8)}

    def second(beta: Any, grads: Any) -> Any:
        transform = mx.ScaleByMuon(beta=beta)
        _, state = transform.update(grads, transform.init(grads))
        return transform.update(jtu.tree_map(lambda g: g[::-1], grads), state)[0]

    def total(beta: Any, grads: Any) -> Any:
        return sum(jnp.sum(u * g) for u, g in zip(*map(jtu.tree_leaves, (second(beta, grads), grads)), strict=True))

    run = jax.jit(lambda betas, grads: jax.vmap(lambda b: (second(b, grads), jax.grad(total)(b, grads)))(betas))
    betas = jnp.asarray([0.5, 0.9])
    found = run(betas, jax.device_put(grads, NamedSharding(mesh_of(*FLAT, AUTO), P("data"))))
    for x, y in zip(*map(jtu.tree_leaves, (found, run(betas, grads))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)
