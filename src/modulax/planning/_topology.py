"""Meshes of devices that this machine does not have."""

import contextlib
import glob
import importlib.metadata
import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._plugin.messages import explained, listing, suggestion
from ._chips import CHIPS, Chip

SLICE = "slice"  # the axis that is over slices, which are connected by the network of the data center
# What the runtime asks the metadata server of a TPU host for; and two processes may load the library.
_NO_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_GPUS_PER_HOST = 8


@explained
def topology(name: str, *, num_slices: int = 1, **axes: int) -> Mesh:
    """Return a mesh of abstract devices: any machine can compile programs for it, but nothing can run on it.

        mesh = topology("v5e:16x16", data=32, model=8)

    Names are as in Google Cloud, the generation and the number of chips along each dimension: `"v5e:4x4"`,
    `"v6e:16x16"`, `"v4:4x4x8"`, `"v5p:8x8x8"`, `"tpu7x:4x4x4"`, and `"v5e:1x1"` for one chip. A TPU7x chip is two
    devices. `"h100:8"`, `"h200:8"` and `"a100:8"` are GPUs with NVLink, eight in each host. `"cpu:8"` uses devices of
    this process, into which the CPU can be divided.

    The compilers are separate packages: `pip install "modulax[planning]"` for TPUs, and for GPUs `pip install
    jax-cuda12-plugin jax-cuda12-pjrt nvidia-cuda-nvcc-cu12` in the version of JAX. Neither needs an accelerator.

    Args:
        name: the chip, and the number of chips along each dimension.
        num_slices: number of slices of this form, which are connected by the network of a data center. They are the
            axis `slice`, which becomes the first one if `axes` doesn't name it.
        axes: the names and sizes of the axes of the mesh, whose product is the number of devices; without them one
            axis, `data`.

    Returns:
        a `jax.sharding.Mesh` with automatic axes.

    Raises:
        ValueError: if the name is unknown, or if the axes don't have as many devices as the topology.
        ImportError: if the compiler is not installed.
    """
    kind, chip, layout = _parsed(name)
    if num_slices < 1:
        raise ValueError(f"`topology(num_slices={num_slices})` must be at least 1.")
    number = num_slices * math.prod(layout) * (1 if chip is None else chip.devices)
    axes = _axes(name, number, num_slices, axes)
    if chip is None:
        devices = _cpus(number)
    elif chip.platform == "tpu":
        devices = _tpus(kind, layout, num_slices)
    else:
        devices = _gpus(chip, layout[0], num_slices)
    return Mesh(_placed(devices, num_slices, tuple(axes.values())), tuple(axes), (AxisType.Auto,) * len(axes))


def compiled_for(mesh: Mesh, function: Callable[..., Any], *arguments: Any, donate: int = 0) -> Any:
    """Compile a function for a mesh; arguments without a sharding on one are replicated, the first `donate` donated."""
    whole = NamedSharding(mesh, PartitionSpec())

    def placed(x: Any) -> Any:
        sharding = x.sharding if isinstance(getattr(x, "sharding", None), NamedSharding) else whole
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    platform = mesh.devices.flat[0].platform
    platform = "cuda" if platform == "gpu" else platform
    # Without a GPU, nothing can be timed to choose the fastest kernel.
    options: dict[str, str | bool] | None = {"xla_gpu_autotune_level": "0"} if platform == "cuda" else None
    traced = jax.jit(function, donate_argnums=tuple(range(donate))).trace(*jtu.tree_map(placed, arguments))
    lowered = traced.lower(lowering_platforms=(platform,))
    try:
        return lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if platform != "tpu" or "RESOURCE_EXHAUSTED" not in str(error):
            raise
        try:  # libtpu of JAX 0.10 compiles what is larger than the memory, so that more than its size is known
            return lowered.compile(compiler_options={"xla_tpu_no_crash_on_oom": True})
        except jax.errors.JaxRuntimeError:
            raise error from None


def _parsed(name: str) -> tuple[str, Chip | None, tuple[int, ...]]:
    """The kind of chip, its figures, and the number of chips along each dimension."""
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name) if isinstance(name, str) else None
    kind = match[1].lower() if match else str(name).partition(":")[0].lower()
    if kind not in CHIPS and kind != "cpu":
        known = [*CHIPS, "cpu"]
        raise ValueError(f"`topology({name!r})`: the chips are {listing(known)}.{suggestion(kind, known)}")
    chip = CHIPS.get(kind)
    layout = tuple(map(int, match[2].split("x"))) if match else ()
    example, what = "8", "number of devices"
    if chip is not None and chip.dimensions:
        example = "x".join("4" * chip.dimensions)
        what = f"number of chips along each of {chip.dimensions} dimensions"
    if len(layout) != example.count("x") + 1 or 0 in layout:
        raise ValueError(f'`topology({name!r})`: write the {what} after the colon, such as `"{kind}:{example}"`.')
    return kind, chip, layout


def _axes(name: str, number: int, num_slices: int, axes: Mapping[str, int]) -> dict[str, int]:
    """The axes of the mesh, with the slices as the first one unless there is an axis for them."""
    axes = dict(axes) or {"data": number // num_slices}
    is_within_slice = SLICE not in axes and math.prod(axes.values()) * num_slices == number
    if num_slices > 1 and is_within_slice:
        axes = {SLICE: num_slices, **axes}
    product = math.prod(axes.values())
    if product != number:
        sizes = " × ".join(f"{axis}={size}" for axis, size in axes.items())
        raise ValueError(
            f"`topology({name!r}, ...)` has {number} devices, and the axes {sizes} have {product}. The product of the "
            f"axes must be {number}."
        )
    over_slices = axes.get(SLICE, next(iter(axes.values())))
    if over_slices % num_slices or (SLICE in axes and next(iter(axes)) != SLICE):
        axis, size = next(iter(axes.items()))
        raise ValueError(
            f"`topology({name!r}, num_slices={num_slices})`: the first axis is over the slices, and {axis}={size} is "
            f"not. Write `{SLICE}={num_slices}` before the other axes."
        )
    return axes


def _placed(devices: list[Any], num_slices: int, shape: tuple[int, ...]) -> Any:
    """The devices in the shape of the mesh, in the order that `jax.make_mesh` gives them within a slice."""
    if devices[0].platform != "tpu":
        return np.array(devices).reshape(shape)
    by_slice: dict[int, list[Any]] = {}
    for device in devices:
        by_slice.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    inner = (shape[0] // num_slices, *shape[1:])
    names = tuple(map(str, range(len(inner))))
    auto = (AxisType.Auto,) * len(inner)
    meshes = [jax.make_mesh(inner, names, auto, devices=those).devices for _, those in sorted(by_slice.items())]
    return np.concatenate(meshes)


def _tpus(kind: str, layout: tuple[int, ...], num_slices: int) -> list[Any]:
    _check_libtpu(kind)
    options: dict[str, Any] = {"num_slices": num_slices} if num_slices > 1 else {}
    # A host has a square of four chips, unless the topology has fewer along a dimension.
    options["chips_per_host_bounds"] = (*(2 - n % 2 for n in layout[:2]), 1)
    if kind == "v4":
        options["chip_config_name"] = "megacore"  # both cores are one device, as on a pod
    with _environment():
        topology = topologies.get_topology_desc(f"{kind}:{'x'.join(map(str, layout))}", "tpu", **options)
    return list(topology.devices)


def _check_libtpu(kind: str) -> None:
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise ImportError(
            f"`topology` needs the compiler of TPUs for {kind}, which is in the package libtpu. It runs without a TPU: "
            'pip install "modulax[planning]".'
        )


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Set what libtpu reads when it is loaded on a machine without a TPU, and only for that time.

    On a TPU, the runtime is the one that the process computes with, and finds out these things by itself.
    """
    is_on_tpu = glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")
    new = {} if is_on_tpu else {name: value for name, value in _NO_TPU.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


# What the GPUs have in common in XLA's description of a device.
_TARGET = """gpu_device_info {{
{fields}
memory_bandwidth: {bandwidth:.0f}
device_memory_size: {memory:.0f}
threads_per_block_limit: 1024
threads_per_warp: 32
threads_per_core_limit: 2048
shared_memory_per_block: 49152
registers_per_core_limit: 65536
registers_per_block_limit: 65536
block_dim_limit_x: 2147483647
block_dim_limit_y: 65535
block_dim_limit_z: 65535
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 9 }}
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{kind}"
"""


def _gpus(chip: Chip, number: int, num_slices: int) -> list[Any]:
    hosts = max(1, number // _GPUS_PER_HOST)
    if number % hosts or number // hosts > _GPUS_PER_HOST:
        raise ValueError(
            f"`topology` of {number} GPUs: a host has {_GPUS_PER_HOST}, so write up to {_GPUS_PER_HOST} or a multiple."
        )
    target = _TARGET.format(fields=chip.target, bandwidth=chip.bandwidth, memory=chip.memory, kind=chip.kinds[0])
    form = f"{num_slices}x{hosts}x{number // hosts}"
    try:
        return list(topologies.get_topology_desc("", "cuda", target_config=target, topology=form).devices)
    except NotImplementedError:
        version = importlib.metadata.version("jax")
        packages = f"jax-cuda12-plugin=={version} jax-cuda12-pjrt=={version} nvidia-cuda-nvcc-cu12"
        raise ImportError(
            f"`topology` needs the compiler of GPUs for {chip.kinds[0]}. It runs without a GPU: pip install {packages}"
        ) from None


def _cpus(number: int) -> list[Any]:
    devices = jax.devices("cpu")
    if len(devices) < number:
        raise ValueError(
            f'`topology("cpu:{number}")`: this process has {len(devices)} CPU devices. Write '
            f'`jax.config.update("jax_num_cpu_devices", {number})` before JAX is used, or set '
            f"XLA_FLAGS=--xla_force_host_platform_device_count={number}."
        )
    return devices[:number]
