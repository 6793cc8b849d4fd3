"""Meshes of devices that aren't there, and programs compiled for them."""

import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Without these, libtpu asks the metadata server of a cloud machine what it runs on, and waits for it. The second
# process that loads libtpu would wait for the first, which holds the devices.
_WITHOUT_DEVICE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_INSTALL = 'Install it by `pip install "modulax[planning]"`.'
# NVIDIA, H100 Tensor Core GPU Architecture (2022), and the limits of compute capability 9.0 in the CUDA C++ Programming
# Guide: what XLA asks a device for when it compiles.
_H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 85899345920
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def topology(name: str, *, num_slices: int = 1, **axes: int) -> Mesh:
    """Return a mesh of devices to compile for, which need not be there.

        mesh = planning.topology("v5e:16x16", data=32, model=8)

    Args:
        name: chips and their arrangement: `"v5e:16x16"`, `"v5p:8x8x8"`, `"v6e:4x4"`, `"h100:8"`; or `"cpu:8"` for
            devices of this process.
        num_slices: number of TPU slices, connected by the network of the data center.
        axes: names and sizes of the axes of the mesh, the slowest first; with several slices, the first axis must be
            a multiple of their number. By default one axis `data`.

    Raises:
        ValueError: if there is no such topology, or the sizes of the axes don't multiply to its number of devices.
        ImportError: if the compiler for these devices is not installed.
    """
    kind, _, arrangement = name.partition(":")
    devices = np.array(_devices(kind, arrangement, num_slices))
    sizes = axes or {"data": len(devices)}
    if math.prod(sizes.values()) != len(devices):
        raise ValueError(
            f"`topology({name!r})` has {len(devices)} devices, and the axes "
            f"{', '.join(f'{axis}={size}' for axis, size in sizes.items())} have {math.prod(sizes.values())}."
        )
    return Mesh(devices.reshape(tuple(sizes.values())), tuple(sizes))


def _devices(kind: str, arrangement: str, num_slices: int) -> list[Any]:
    if kind == "cpu":
        return _cpus(int(arrangement))
    if kind == "h100":
        return _gpus(int(arrangement))
    return _tpus(f"{kind}:{arrangement}", num_slices)


def _cpus(number: int) -> list[Any]:
    devices = jax.devices("cpu")
    if len(devices) < number:
        raise ValueError(
            f"`topology('cpu:{number}')` needs {number} CPU devices, and this process has {len(devices)}. Start it with "
            f"`XLA_FLAGS=--xla_force_host_platform_device_count={number}`."
        )
    return devices[:number]


def _tpus(name: str, num_slices: int) -> list[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError(f"`topology({name!r})` needs the TPU compiler, libtpu. {_INSTALL}")
    for variable, value in _WITHOUT_DEVICE.items():
        os.environ.setdefault(variable, value)
    # A single chip is the only arrangement that doesn't fill a host.
    options: dict[str, Any] = {"chips_per_host_bounds": (1, 1, 1)} if name.endswith(":1x1") else {}
    options |= {"num_slices": num_slices} if num_slices > 1 else {}
    try:
        return list(topologies.get_topology_desc(name, "tpu", **options).devices)
    except Exception as error:
        raise ValueError(
            f"There is no topology {name!r}. Write for example 'v5e:16x16', 'v5p:8x8x8', 'v6e:4x4', 'h100:8' or 'cpu:8'."
        ) from error


def _gpus(number: int) -> list[Any]:
    if importlib.util.find_spec("jax_plugins.xla_cuda12") is None:
        raise ImportError(f"`topology('h100:{number}')` needs the GPU compiler, jax-cuda12-plugin. {_INSTALL}")
    jax.devices("cpu")  # which loads the plugins of JAX
    shape = f"1x1x{number}"
    return list(topologies.get_topology_desc("", "cuda", target_config=_H100, topology=shape).devices)


def compiled_for(mesh: Mesh, function: Callable[..., Any], *arguments: Any, donate: int = 0) -> Any:
    """Compile a function for a mesh; arguments without a sharding on it are replicated, the first `donate` donated."""
    whole = NamedSharding(mesh, PartitionSpec())

    def placed(x: Any) -> Any:
        sharding = x.sharding if isinstance(getattr(x, "sharding", None), NamedSharding) else whole
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    platform = {"gpu": "cuda"}.get(mesh.devices.flat[0].platform, mesh.devices.flat[0].platform)
    # Timing of kernels needs a device.
    options = {"xla_gpu_autotune_level": "0"} if platform == "cuda" else None
    traced = jax.jit(function, donate_argnums=tuple(range(donate))).trace(*jtu.tree_map(placed, arguments))
    return traced.lower(lowering_platforms=(platform,)).compile(options)
