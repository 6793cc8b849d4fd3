"""The figures of accelerators, per chip, from the public pages of their makers."""

import dataclasses

_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a chip can do at most, and how JAX names it.

    Args:
        kinds: `device_kind` of its devices in JAX.
        platform: the platform of JAX for which programs are compiled.
        memory: bytes that a program can use.
        bandwidth: bytes per second from and to this memory.
        flops: operations per second of the matrix units, in bfloat16.
        links: bytes per second that it sends to chips of the same slice or host, over all links together.
        network: bytes per second that it sends to other slices over the network of the data center; None if unknown.
        dimensions: number of dimensions of a topology; 0 if a topology is a number of devices.
        devices: devices of JAX per chip.
        target: fields of XLA's description of a GPU in which one differs from another.
    """

    kinds: tuple[str, ...]
    platform: str
    memory: float
    bandwidth: float
    flops: float
    links: float
    network: float | None = None
    dimensions: int = 0
    devices: int = 1
    target: str = ""


# Google gives the bandwidth of the links (ICI) in both directions together; half of it is sent. The memory is what the
# compiler of each chip reports as available: the capacity without what the runtime reserves.
# https://docs.cloud.google.com/tpu/docs/v4 (275 TFLOPS, 32 GiB, 1,200 GB/s); links: six of 50 GB/s in each direction,
# Jouppi et al., "TPU v4", https://arxiv.org/abs/2304.01433
# https://docs.cloud.google.com/tpu/docs/v5e (197 TFLOPS, 16 GB, 819 GB/s, ICI 400 GB/s, network 6.4 Tb/s for 256)
# https://docs.cloud.google.com/tpu/docs/v6e (918 TFLOPS, 32 GB, 1,638 GB/s, ICI 800 GB/s)
# https://docs.cloud.google.com/tpu/docs/tpu7x, which compares v5p (459 TFLOPS, 95 GiB, 2,765 GB/s, ICI 1,200 GB/s,
# network 50 Gb/s), v6e (network 100 Gb/s) and TPU7x (2,307 TFLOPS, 192 GiB, 7,380 GB/s, ICI 1,200 GB/s, 100 Gb/s)
_TPUS = {
    "v4": Chip(("TPU v4",), "tpu", 30.75 * _GIB, 1200e9, 275e12, 300e9, dimensions=3),
    "v5e": Chip(("TPU v5 lite", "TPU v5e"), "tpu", 15.75 * _GIB, 819e9, 197e12, 200e9, 25e9 / 8, 2),
    "v5p": Chip(("TPU v5", "TPU v5p"), "tpu", 95.74 * _GIB, 2765e9, 459e12, 600e9, 50e9 / 8, 3),
    "v6e": Chip(("TPU v6 lite", "TPU v6e"), "tpu", 31.25 * _GIB, 1638e9, 918e12, 400e9, 100e9 / 8, 2),
    "tpu7x": Chip(("TPU7x", "TPU v7x"), "tpu", 189.5 * _GIB, 7380e9, 2307e12, 600e9, 100e9 / 8, 3, devices=2),
}

# https://www.nvidia.com/en-us/data-center/h100/ (SXM: 989 TFLOPS without sparsity, 80 GB, 3.35 TB/s, NVLink 900 GB/s),
# .../h200/ (141 GB, 4.8 TB/s) and .../a100/ (SXM: 312 TFLOPS, 80 GB, 2,039 GB/s, NVLink 600 GB/s). NVIDIA gives NVLink
# in both directions together. The targets are from the table of compute capabilities in the CUDA C++ programming guide
# and from the white papers of the two architectures (multiprocessors, L2, clock).
_HOPPER = """cuda_compute_capability { major: 9 }
core_count: 132
fpus_per_core: 128
shared_memory_per_core: 233472
shared_memory_per_block_optin: 232448
l2_cache_size: 52428800
clock_rate_ghz: 1.98"""
_AMPERE = """cuda_compute_capability { major: 8 }
core_count: 108
fpus_per_core: 64
shared_memory_per_core: 167936
shared_memory_per_block_optin: 166912
l2_cache_size: 41943040
clock_rate_ghz: 1.41"""
_GPUS = {
    "a100": Chip(("NVIDIA A100-SXM4-80GB",), "cuda", 80e9, 2039e9, 312e12, 300e9, target=_AMPERE),
    "h100": Chip(("NVIDIA H100 80GB HBM3",), "cuda", 80e9, 3350e9, 989e12, 450e9, target=_HOPPER),
    "h200": Chip(("NVIDIA H200",), "cuda", 141e9, 4800e9, 989e12, 450e9, target=_HOPPER),
}

CHIPS = _TPUS | _GPUS


def chip_of(kind: str) -> Chip | None:
    """The chip whose devices JAX calls `kind`; None if its figures are unknown, as those of a CPU are."""
    return next((chip for chip in CHIPS.values() if kind in chip.kinds), None)
