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
    return RANDOM.normal(size=shape).astype(np.float32)


# More matrices than devices and fewer, stacks and single ones, wide, tall and square, of odd sizes; query, key and value.
GRADS: dict[str, Any] = {
    "stacks": {"down": draw(16, 8), "odd": draw(6, 10), "square": draw(9, 8, 8), "up": draw(2, 8, 16)},
    "qkv": {"kernel": draw(8, 48)},
}
TRANSFORMS = {
    "stacks": mx.ScaleByMuon(weight_dimension_numbers=mx.MuonDimensionNumbers(-2, -1)),
    "qkv": mx.ScaleByMuon(
        beta=mx.schedules.Linear(0.5, 0.9, 3),
        adaptive=True,
        preconditioning="aol",
        per_head=True,
        weight_dimension_numbers=mx.roles(GRADS["qkv"], {"kernel": mx.Attention("qkv", heads=2)}),
    ),
}
FLAT, GRID = ((8,), ("data",)), ((4, 2), ("data", "model"))
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...], kind: AxisType) -> Mesh:
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names), devices=jax.devices("cpu")[:8])


def two_steps(transforms: dict[str, Any], shardings: Any = None) -> Any:
    """A program of two steps of each transform, whose state begins where `shardings` say."""

    def run(grads: Any) -> Any:
        out = {}
        for name, transform in transforms.items():
            state = transform.init(grads[name])
            if shardings is not None:
                state = jax.lax.with_sharding_constraint(state, shardings[name])
            _, state = transform.update(grads[name], state)
            out[name] = transform.update(jtu.tree_map(lambda g: 2 * g[::-1], grads[name]), state)[0]
        return out

    return jax.jit(run)


@pytest.fixture(scope="module")
def alone() -> Any:
    return two_steps(TRANSFORMS)(GRADS)


@pytest.mark.parametrize("shape, kind, axes, over, zero", [
    (FLAT, AUTO, ("data",), None, None),
    (FLAT, AUTO, (), None, "data"),
    (GRID, AUTO, ("data", "model"), None, None),
    (GRID, AUTO, ("data", "model"), "data", None),
    (FLAT, EXPLICIT, (None, "data"), None, None),
    (GRID, EXPLICIT, ("model", "data"), (), None),
], ids=["FSDP", "ZeRO-1", "FSDP x TP", "over FSDP", "explicit", "explicit, over nothing"])  # fmt: skip
def test_updates_are_those_of_one_device(
    shape: Any, kind: AxisType, axes: Any, over: Any, zero: Any, alone: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(spread, "_SMALL", 0)  # batches with one matrix for each device
    mesh, transforms = mesh_of(*shape, kind), {k: t.replace(over=over) for k, t in TRANSFORMS.items()}

    def place(x: Any) -> Any:
        spec = [None] * (x.ndim - 2) + [a if a and n % mesh.shape[a] == 0 else None for a, n in zip(axes, x.shape[-2:])]
        return jax.device_put(x, NamedSharding(mesh, P(*spec)))

    with jax.set_mesh(mesh):
        grads = jtu.tree_map(place, GRADS)
        places = {k: mx.state_sharding(t, grads[k], zero=zero) for k, t in transforms.items()} if zero else None
        found = two_steps(transforms, places)(grads)
    for u, g, wanted in zip(*map(jtu.tree_leaves, (found, grads, alone)), strict=True):
        np.testing.assert_allclose(u, wanted, atol=1e-5, rtol=1e-5)
        assert zero or u.sharding.is_equivalent_to(g.sharding, g.ndim), (u.sharding, g.sharding)
