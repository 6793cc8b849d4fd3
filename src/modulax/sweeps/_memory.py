"""How many members are trained at a time: as many as the memory of a device holds.

The compiler says how much memory a program needs. The program for all members is compiled first; only if it doesn't fit
are programs for fewer members compiled, and the need of both gives the number that fits.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

FRACTION = 0.9  # of the free memory; the rest is for what the compiler doesn't count


def peak(compiled: Any) -> int:
    """The bytes per device that a compiled program needs: arguments, results and temporary arrays."""
    need = compiled.memory_analysis()
    if need is None:
        return 0
    both = need.argument_size_in_bytes + need.output_size_in_bytes - need.alias_size_in_bytes
    return int(both + need.temp_size_in_bytes)


def free_memory(devices: Sequence[Any]) -> float:
    """The free bytes of the device that has the fewest; infinity where this is unknown."""
    local = [device for device in devices if device.process_index == jax.process_index()]
    on_the_host = sum(device.platform == "cpu" for device in local)
    return FRACTION * min((_free(device, on_the_host) for device in local), default=math.inf)


def _free(device: Any, on_the_host: int) -> float:
    """The free bytes of a device; if it is the CPU, its share of the host's, which several devices may use."""
    if device.platform == "cpu":
        is_known = {"SC_AVPHYS_PAGES", "SC_PAGE_SIZE"} <= getattr(os, "sysconf_names", {}).keys()
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / on_the_host if is_known else math.inf
    stats = device.memory_stats() or {}
    return float(stats.get("bytes_limit", math.inf)) - stats.get("bytes_in_use", 0)


def budget_of(devices: Sequence[Any], memory: float | int | None) -> float:
    """The bytes that may be used on each device; of several processes, the least, so that all choose one `chunk`."""
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, (int, float)) or not memory > 0):
        raise ValueError(f"`memory={memory!r}` must be a number of bytes per device, such as `memory=8e9`.")
    budget = free_memory(devices) if memory is None else float(memory)
    if jax.process_count() > 1:
        budget = float(np.min(multihost_utils.process_allgather(np.float32(budget))))
    return budget


def size_text(size: float | int) -> str:
    """Bytes in the largest unit in which there is at least one."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def fitting(
    needed: Callable[[int], int], members: int, rounded: Callable[[int], int], chunk: int | None, budget: float | int
) -> int:
    """How many members to train at a time: at most `chunk`, or as many as fit into the budget, in equal parts.

    Args:
        needed: the bytes per device of a program for so many members.
        members: the number of members.
        rounded: rounds a number of members up to a multiple of the number of devices.
        chunk: the largest number that the user wants; None for the largest that fits.
        budget: the free bytes per device.

    Raises:
        MemoryError: if `chunk` members, or the fewest possible, don't fit.
    """
    whole = _in_equal_parts(members, rounded(members if chunk is None else min(chunk, members)), rounded)
    if budget == float("inf") or (need := needed(whole)) <= budget:
        return whole
    least = rounded(1)
    need_of_least = need if whole == least else needed(least)
    if need_of_least > budget:
        what = "one member" if least == 1 else f"{least} members, one on each device,"
        raise MemoryError(
            f"Training {what} needs {size_text(need_of_least)} per device, and {size_text(budget)} are free. Use a "
            f"smaller model or batch, fewer seeds, or more devices; `memory=` sets the budget."
        )
    # Memory is linear in the width, so that two compiled programs decide it.
    slope = max((need - need_of_least) / (whole - least), 1e-9)
    width = _in_equal_parts(members, int(least + (budget - need_of_least) / slope), rounded)
    while width > least and needed(width) > budget:
        width = _in_equal_parts(members, width - max(width // 8, rounded(1)), rounded)
    if chunk is not None:
        raise MemoryError(
            f"`chunk={chunk}` needs {size_text(need)} per device, and {size_text(budget)} are free. Try "
            f"`chunk={width}`, or `chunk=None`, which finds it."
        )
    return width


def exhausted(width: int, rounded: Callable[[int], int]) -> str:
    """The error message for a device that has no memory left while it trains so many members."""
    advice = "Use a smaller model or batch, fewer seeds, or more devices"
    if width > rounded(1):
        advice = f"Try `chunk={rounded(max(width // 2, 1))}`, or a smaller `memory=`, from which the chunk is found"
    return f"The memory of a device was exhausted while {width} members were trained at a time. {advice}."


def _in_equal_parts(members: int, most: int, rounded: Callable[[int], int]) -> int:
    """The width of the fewest equal parts, none of which is above `most` after rounding, if that is possible."""
    step = rounded(1)
    most = max(most // step * step, step)
    parts = -(-members // most)
    return min(rounded(-(-members // parts)), most)
