"""Plans for TPUs and GPUs that are not there: what `tests/test_planning.py` cannot see on a CPU."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import modulax as mx
from modulax import planning

MIB = 2**20


def shapes(**arrays: tuple[int, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(dims, jnp.float32) for name, dims in arrays.items()}


@pytest.mark.parametrize(
    "name, arguments, kind, sizes",
    [
        ("v5e:1x1", {}, "TPU v5 lite", {"data": 1}),
        ("v5e:1x2", {}, "TPU v5 lite", {"data": 2}),
        ("v5e:16x16", {"data": 32, "model": 8}, "TPU v5 lite", {"data": 32, "model": 8}),
        ("v5e:4x4", {"num_slices": 2}, "TPU v5 lite", {"slice": 2, "data": 16}),
        ("v5p:8x8x8", {"data": 512}, "TPU v5", {"data": 512}),
        ("v6e:2x2", {}, "TPU v6 lite", {"data": 4}),
        ("v4:2x2x1", {}, "TPU v4", {"data": 4}),
        ("tpu7x:2x2x1", {}, "TPU7x", {"data": 8}),
    ],
)
def test_topologies(name: str, arguments: dict[str, int], kind: str, sizes: dict[str, int]):
    before = dict(os.environ)
    mesh = planning.topology(name, **arguments)
    assert dict(os.environ) == before
    assert {device.device_kind for device in mesh.devices.flat} == {kind}
    assert mesh.shape == sizes
    if "slice" in sizes:
        assert [{d.slice_index for d in devices.flat} for devices in mesh.devices] == [{0}, {1}]


def test_an_update_moves_the_ideal_bytes():
    mesh = planning.topology("v5e:4x4")
    found = planning.plan(mx.AdamW(1e-3), shapes(w=(8192, 8192)), mesh, spec="data")
    assert (found.param_bytes, found.temp_bytes, found.collectives) == (16 * MIB, 0, ())
    assert found.hbm_bytes == pytest.approx(found.ideal_bytes, rel=1e-3)
    assert found.seconds == found.bounds["memory"] == pytest.approx(7 * 16 * MIB / 819e9, rel=1e-3)
    assert found.notes == ()
    assert found.fits


@pytest.mark.parametrize("every_k", [1, 4])
def test_the_new_parameters_of_zero_are_gathered(every_k: int):
    """Once, a piece at a time, also out of a `cond` that may take no step."""
    mesh, adamw = planning.topology("v5e:4x4"), mx.AdamW(1e-3)
    optimizer = adamw if every_k == 1 else mx.MultiSteps(adamw, every_k)
    found = planning.plan(optimizer, shapes(w=(8192, 1024)), mesh, zero="data")
    moments, counters = (2, 2) if every_k == 1 else (3, 4)
    assert found.state_bytes == moments * 32 * MIB // 16 + 4 * counters
    assert found.temp_bytes is not None
    assert found.temp_bytes < 20 * MIB
    (gather,) = found.collectives
    assert (gather.kind, gather.transform, gather.bytes) == ("all-gather", "", 32 * MIB)  # of the step itself
    assert found.bounds["links"] == pytest.approx(32 * MIB * 15 / 16 / 200e9)


def test_what_travels_between_slices():
    mesh = planning.topology("v5e:2x2", num_slices=2)
    found = planning.plan(mx.AdamW(1e-3), shapes(w=(8192, 1024)), mesh, zero=("slice", "data"))
    (send,) = [c for c in found.collectives if c.kind == "send"]
    assert send.bytes == 32 * MIB // 8
    assert found.bounds["network"] == pytest.approx(send.bytes / (25e9 / 8))


@pytest.mark.parametrize("rows", [2**15, 2**17])
def test_a_plan_of_what_does_not_fit(rows: int):
    """Of arguments that are too large together, and of an array that no device could hold."""
    params: Any = shapes(**({"w": (rows, 2**16)} if rows > 2**15 else {"v": (rows, 2**15), "w": (rows, 2**15)}))
    found = planning.plan(mx.AdamW(1e-3), params, planning.topology("v5e:2x2"))
    assert not found.fits
    assert found.peak_bytes == pytest.approx(4 * 4 * rows * 2**16, rel=1e-3)
    assert found.hbm_bytes is None
    assert "it does not fit" in found.notes[0]


def layer(x: Any, w: Any) -> Any:
    return x + jnp.tanh(x @ w[0].astype("bfloat16")) @ w[1].astype("bfloat16"), None


def loss(params: Any, x: Any) -> Any:
    return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, params)[0].astype("float32") ** 2)


def test_a_whole_step_that_is_a_little_too_large():
    """With the temporary arrays, whose size only the compiler knows: it says what it needs."""
    params = tuple(jax.ShapeDtypeStruct((30, *dims), jnp.float32) for dims in ((2048, 8192), (8192, 2048)))
    batch = jax.ShapeDtypeStruct((8, 1024, 2048), jnp.bfloat16)
    found = planning.plan(mx.AdamW(1e-3), params, planning.topology("v5e:1x1"), loss=loss, batch=batch)
    assert not found.fits
    assert found.peak_bytes > max(found.memory_bytes or 0, found.param_bytes + found.state_bytes)
    assert found.peak_bytes < 1.5 * (found.memory_bytes or 0)


def test_70_billion_parameters_on_512_chips():
    """In seconds, whatever the size: what counts is the number of different shapes."""
    layers, width = 80, 8192
    params = shapes(
        embedding=(32768, width),
        qkv=(layers, width, 3 * width),
        out=(layers, width, width),
        up=(layers, width, 4 * width),
        down=(layers, 4 * width, width),
        norm=(layers, width),
    )
    found = planning.plan(mx.AdamW(1e-3), params, planning.topology("v5p:8x8x8"), spec="data")
    assert found.parameters > 64e9
    assert found.fits
    assert found.compile_seconds < 30


@pytest.mark.parametrize("name", ["a100:1", "h100:8", "h200:16"])
def test_gpus(name: str):
    mesh = planning.topology(name)
    found = planning.plan(mx.AdamW(1e-3), shapes(w=(1024, 1024)), mesh, zero="data")
    assert found.parameters == 2**20
    assert found.state_bytes == 2 * 4 * MIB // mesh.size + 8
    assert [c.kind for c in found.collectives] == ["all-gather"] * (mesh.size > 1)
    assert found.seconds
