"""`plan`: compile a step for devices that need not be there, and read what it needs."""

import dataclasses
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax.sharding import Mesh
from jaxtyping import PyTree

from .._plugin.messages import brief, explained
from .._plugin.transforms import check_optimizer
from ..authoring import AbstractTransform, Params
from ..tree import leaf_paths
from ._chips import Chip, chip_of
from ._costs import bounds, bytes_by_transform, communications
from ._hlo import traffic
from ._notes import notes
from ._report import Plan
from ._shapes import (
    batch_shape,
    is_shape,
    local_bytes,
    local_size,
    placed,
    shape_of,
    state_fields,
    state_shapes,
    trained,
)
from ._topology import compiled_for

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@explained
def plan(
    optimizer: AbstractTransform,
    params: Params,
    mesh: Mesh,
    *,
    zero: str | tuple[str, ...] | None = None,
    spec: Any = None,
    loss: Callable[..., Any] | None = None,
    batch: PyTree = None,
    **extra: Any,
) -> Plan:
    """Compile a step for a mesh, and return its needs on each device: memory, transfers, and a lower bound of the time.

        mesh = topology("v5e:16x16", data=32, model=8)
        print(plan(optimizer, params, mesh, spec=spec, zero="data"))

    Nothing runs, and no array is created: shapes are enough, and you need not have the devices of the mesh. The program
    is `optimizer.step` with the gradients as arguments, or with `loss` and `batch` the whole training step. Parameters
    and state are donated, as in a training loop.

    All figures are read from the program that the compiler of the devices made, not from a model of it. The time is a
    lower bound: it assumes that memory, matrix units and links are used without pause, and all at once.

    Args:
        optimizer: a transform or an optimizer.
        params: the parameters or a model; arrays, or `jax.ShapeDtypeStruct`s as of `jax.eval_shape`. Those with a
            `NamedSharding` keep its `PartitionSpec` on the axes of `mesh`.
        mesh: the devices, from `topology`, or a mesh of the devices of this process.
        zero: axis of the mesh to divide the state over, or several axes, as in `state_sharding`.
        spec: how parameters are sharded: a tree of `PartitionSpec`s; a function of the dotted path and the shape that
            returns one; or the name of an axis, or several, over which the longest dimension is divided that it divides
            (FSDP). Without it, parameters without a sharding are replicated.
        loss: a function of parameters and batch, which is differentiated with respect to the parameters.
        batch: the second argument of `loss`; arrays or shapes. Without a sharding, the first dimension is divided over
            the first axis of the mesh.
        extra: extra arguments of `step`, such as `value`: shapes, or functions.

    Returns:
        a `Plan`, which `print` shows as tables.

    Raises:
        ValueError: if an axis does not divide a dimension that is sharded over it, or if `batch` is missing.
    """
    check_optimizer("plan(optimizer, params, mesh)", optimizer, params)
    _check(optimizer, mesh, loss, batch)
    arrays, static = eqx.partition(placed(params, mesh, spec), is_shape)
    if not jtu.tree_leaves(trained(arrays)):
        raise ValueError(f"`plan(params=...)` has no parameters to train: {brief(params)}.")
    state = state_shapes(optimizer, arrays, zero)
    given, functions = eqx.partition(jtu.tree_map(shape_of, extra), is_shape)
    step = _step(optimizer, static, functions, loss)
    last = trained(arrays) if loss is None else jtu.tree_map(lambda x: batch_shape(x, mesh), batch)
    start = time.perf_counter()
    try:
        compiled = compiled_for(mesh, step, arrays, state, last, given, donate=2)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        compiled = str(error)
    seconds = time.perf_counter() - start
    return _report(compiled, mesh, arrays, state, zero, loss is None, seconds)


def _check(optimizer: AbstractTransform, mesh: Mesh, loss: Any, batch: PyTree) -> None:
    if optimizer.example_axes:
        raise ValueError(
            f"`plan` computes one gradient for the batch, and `{type(optimizer).__name__}` takes one for each example. "
            f"Plan the optimizer that follows the average, such as `SGD(...)`, and add the per-example gradients: the "
            f"bytes of the parameters times the examples on a device."
        )
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"`plan(optimizer, params, mesh)` needs a mesh of devices, got {brief(mesh, 100)}. Write "
            '`planning.topology("v5e:4x4", data=16)`.'
        )
    if (loss is None) != (batch is None):
        given, missing = ("batch", "loss") if loss is None else ("loss", "batch")
        raise ValueError(f"`plan({given}=...)` needs `{missing}=` too: the step is that of `loss(params, batch)`.")


# --- The program ---------------------------------------------------------------------------------


def _step(
    optimizer: AbstractTransform, static: PyTree, functions: Mapping[str, Any], loss: Callable[..., Any] | None
) -> Callable[..., Any]:
    """The program: of parameters, state, gradients or batch, and extra arguments."""

    def step(arrays: Params, state: PyTree, last: PyTree, given: Mapping[str, Any]) -> tuple[Params, PyTree]:
        model, extra = eqx.combine(arrays, static), eqx.combine(given, functions)
        if loss is not None:
            value, last = eqx.filter_value_and_grad(loss)(model, last)
            # A schedule, a measure or a condition may read it too. The compiler drops it where nothing does.
            extra = {"value": value, **extra}
        model, state = optimizer.step(last, state, model, **extra)
        return eqx.filter(model, eqx.is_array), state

    return step


# --- The report ----------------------------------------------------------------------------------


def _report(
    compiled: Any, mesh: Mesh, arrays: Params, state: PyTree, zero: Any, is_update: bool, seconds: float
) -> Plan:
    params, gradients = jtu.tree_leaves(arrays), jtu.tree_leaves(trained(arrays))
    fields, chip = state_fields(state, mesh), chip_of(mesh.devices.flat[0].device_kind)
    param_bytes, of_gradients = local_bytes(params), local_bytes(gradients)
    state_bytes = sum(field.bytes for field in fields if field.memory == "device")
    temp, peak = _memory(compiled, mesh, param_bytes + state_bytes + of_gradients * is_update)
    result = Plan(
        devices=_devices(mesh),
        parameters=sum(x.size for x in gradients),
        param_bytes=param_bytes,
        state_bytes=state_bytes,
        temp_bytes=temp,
        peak_bytes=peak,
        memory_bytes=None if chip is None else int(chip.memory / chip.devices),
        ideal_bytes=of_gradients + 2 * param_bytes + 2 * state_bytes,
        state=fields,
        compile_seconds=seconds,
        notes=(),
        **({} if isinstance(compiled, str) else _work(compiled, mesh, chip, arrays, state)),
    )
    return dataclasses.replace(result, notes=tuple(notes(result, sum(map(local_size, gradients)), zero, is_update)))


def _work(compiled: Any, mesh: Mesh, chip: Chip | None, arrays: Params, state: PyTree) -> dict[str, Any]:
    """What the program does: the fields of a plan that are read from its text."""
    done = traffic(compiled.as_text())
    transfers = communications(done.collectives, mesh.size)
    times = {} if chip is None else bounds(chip, done, transfers)
    paths, given = [*leaf_paths(arrays), *leaf_paths(state)], jtu.tree_leaves((arrays, state))
    results = zip(paths, given, jtu.tree_leaves(compiled.output_shardings), strict=True)
    return {
        "hbm_bytes": done.bytes,
        "flops": done.flops,
        "seconds": max(times.values(), default=None),
        "bounds": times,
        "collectives": transfers,
        "transforms": bytes_by_transform(done),
        "resharded": tuple(path for path, x, after in results if not after.is_equivalent_to(x.sharding, x.ndim)),
    }


def _devices(mesh: Mesh) -> str:
    axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    return f"{mesh.size} × {mesh.devices.flat[0].device_kind} ({axes})"


def _memory(compiled: Any, mesh: Mesh, arguments: int) -> tuple[int | None, int]:
    """The bytes of temporary arrays, and those of everything; of a program that was refused, what the compiler said."""
    if isinstance(compiled, str):
        sizes = [float(size) * _UNITS[unit] for size, unit in re.findall(r"\b(\d+(?:\.\d+)?)([KMGT])\b", compiled)]
        return None, int(max([arguments, *sizes]))
    found = compiled.memory_analysis()
    # The compiler of TPUs compares the memory with the largest sum at any time, not with the sizes of the temporary
    # arrays, some of which share a place. Other compilers allocate these in one piece.
    if mesh.devices.flat[0].platform == "tpu":
        return found.temp_size_in_bytes, found.peak_memory_in_bytes
    both = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return found.temp_size_in_bytes, both + found.temp_size_in_bytes
