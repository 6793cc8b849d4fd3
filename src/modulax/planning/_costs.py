"""What a compiled program costs: bytes by transform, transfers between devices, and a lower bound of its time."""

from collections.abc import Iterable

from ._chips import Chip
from ._hlo import Collective, Traffic
from ._report import Communication

NETWORK = "send"  # the kind of a transfer to another slice


def communications(collectives: Iterable[Collective], devices: int) -> tuple[Communication, ...]:
    """The transfers by kind and transform, the largest first."""
    groups: dict[tuple[str, str], list[Collective]] = {}
    for collective in collectives:
        groups.setdefault((collective.kind, collective.owner), []).append(collective)
    found = [
        Communication(kind, owner, sum(c.times for c in group), sum(c.total for c in group), _sent(group, devices))
        for (kind, owner), group in groups.items()
    ]
    return tuple(sorted(found, key=lambda c: -c.bytes))


def _sent(group: Iterable[Collective], devices: int) -> float:
    """The bytes that one device sends, if each part of an array travels once and the work is divided evenly."""
    total = 0.0
    for collective in group:
        number = collective.devices or devices
        passes = 2 if collective.kind == "all-reduce" else 1  # reduced, and handed out again
        is_whole = collective.kind in ("collective-permute", NETWORK)
        total += passes * collective.total * (1.0 if is_whole else (number - 1) / number)
    return total


def bytes_by_transform(traffic: Traffic) -> dict[str, int]:
    """The bytes that the kernels of each class of transforms move, the largest first.

    A kernel counts for the transform with most of what is fused in it.
    """
    sizes: dict[str, int] = {}
    for kernel in traffic.kernels:
        owner = next(iter(kernel.owners), "")
        sizes[owner] = sizes.get(owner, 0) + kernel.total
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def bounds(chip: Chip, traffic: Traffic, transfers: Iterable[Communication]) -> dict[str, float]:
    """The least seconds for which each part of a device is busy."""
    transfers = tuple(transfers)
    network = sum(c.sent_bytes for c in transfers if c.kind == NETWORK)
    links = sum(c.sent_bytes for c in transfers if c.kind != NETWORK)
    found = {
        "memory": traffic.bytes / chip.bandwidth,
        "matrix units": traffic.flops / chip.flops,
        "links": links / chip.links,
        "network": network / chip.network if chip.network else 0.0,
    }
    return {name: chip.devices * seconds for name, seconds in found.items() if seconds}
