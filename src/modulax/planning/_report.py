"""What a step needs on each device, as `plan` returns it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from .._plugin.messages import bytes_text, html_table, table

T = TypeVar("T")

_RIGHT = ("bytes per device", "bytes moved", "count", "bytes", "copies", "figure")
_LEAST = 1e-3  # of the largest row: what is smaller is left out of the printed tables


@dataclasses.dataclass(frozen=True)
class StateField:
    """The arrays of one field of the state, such as `mu`.

    Args:
        name: the key of its transform and its name, such as `scale_by_adam.mu`.
        bytes: on each device.
        whole_bytes: of the whole arrays.
        copies: how many devices hold each part of the largest array.
        over: the axes of the mesh over which it is replicated.
        memory: `device`, or the kind of another memory, such as `pinned_host`.
    """

    name: str
    bytes: int
    whole_bytes: int
    copies: int
    over: tuple[str, ...]
    memory: str = "device"


@dataclasses.dataclass(frozen=True)
class Communication:
    """The transfers of one kind that come from one transform.

    Args:
        kind: `all-gather`, `all-reduce`, `all-to-all`, ...; `send` goes to another slice.
        transform: the class of the transform; empty if it is of the step itself, such as the new parameters in ZeRO-1.
        count: how many run in a step.
        bytes: of the whole arrays, gathered or reduced, on one device.
        sent_bytes: that one device sends at least.
    """

    kind: str
    transform: str
    count: int
    bytes: int
    sent_bytes: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The memory and time that a step needs on each device. `print` shows it as tables.

    Args:
        devices: the number and the kind of the devices, and the axes of the mesh.
        parameters: number of scalar parameters of the whole model.
        param_bytes: of the parameters.
        state_bytes: of the state of the optimizer, without arrays in other memories, such as host memory.
        temp_bytes: of temporary arrays, as the compiler counts them.
        peak_bytes: of arguments, results and temporary arrays together, at the worst time.
        memory_bytes: that a program can use; None if the device is unknown, such as a CPU.
        hbm_bytes: read from and written to memory; None if the program doesn't fit and the compiler refused it.
        ideal_bytes: of gradients read once, and of parameters and state read and written once.
        flops: of matrix products and convolutions.
        seconds: a lower bound of the time of a step: the largest of `bounds`; None if the device is unknown.
        bounds: seconds by what is used: `memory`, `matrix units`, `links`, and `network` between slices.
        collectives: the transfers between devices by kind and transform; the largest first.
        state: the fields of the state; the largest first.
        transforms: bytes moved by class of transform; the largest first. What is under `""` is of the step itself.
        resharded: paths of parameters and state that the step returns with a different sharding. There should be none:
            the next step would be compiled again.
        compile_seconds: that tracing and compilation took.
        notes: possible problems, and what to write instead.
    """

    devices: str
    parameters: int
    param_bytes: int
    state_bytes: int
    temp_bytes: int | None
    peak_bytes: int
    memory_bytes: int | None
    hbm_bytes: int | None = None
    ideal_bytes: int
    flops: float | None = None
    seconds: float | None = None
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    collectives: tuple[Communication, ...] = ()
    state: tuple[StateField, ...]
    transforms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    resharded: tuple[str, ...] = ()
    compile_seconds: float
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether the memory of a device holds it; None if the device is unknown."""
        return None if self.memory_bytes is None else self.peak_bytes <= self.memory_bytes

    def __str__(self) -> str:
        tables = [table(header, rows, right=_RIGHT) for header, rows in self._tables()]
        notes = [f"note: {note}" for note in self.notes]
        return "\n\n".join("\n".join(lines) for lines in ([self._title()], *tables, notes) if lines)

    def _repr_html_(self) -> str:
        tables = [html_table(header, rows, right=_RIGHT) for header, rows in self._tables() if rows]
        return html_table((), (), notes=[self._title()]) + "".join(tables) + html_table((), (), notes=self.notes)

    def _title(self) -> str:
        return f"{count_text(self.parameters)} parameters on {self.devices}; all figures are per device"

    def _tables(self) -> list[tuple[Sequence[str], list[list[str]]]]:
        """The header and the rows of each table."""
        return [
            (("a step", "figure", ""), self._summary()),
            (("state", "bytes per device", "copies", "memory"), self._rows_of_state()),
            (("transform", "bytes moved"), self._rows_of_transforms()),
            (("collective", "transform", "count", "bytes"), self._rows_of_collectives()),
        ]

    def _summary(self) -> list[list[str]]:
        share = (
            f"of {bytes_text(self.memory_bytes)}: {self.peak_bytes / self.memory_bytes:.0%}"
            if self.memory_bytes
            else ""
        )
        rows = [
            ["parameters", bytes_text(self.param_bytes), ""],
            ["state", bytes_text(self.state_bytes), ""],
            ["temporary arrays", bytes_text(self.temp_bytes), ""],
            ["peak", bytes_text(self.peak_bytes), share],
            ["bytes moved", bytes_text(self.hbm_bytes), f"ideal for the update: {bytes_text(self.ideal_bytes)}"],
            ["matrix products", flops_text(self.flops), ""],
        ]
        if self.seconds is not None:
            of = ", ".join(f"{name} {seconds_text(x)}" for name, x in self.bounds.items())
            rows.append(["time, at least", seconds_text(self.seconds), of])
        return [row for row in rows if row[1]]

    def _rows_of_state(self) -> list[list[str]]:
        shown, others = _large({x: x.bytes for x in self.state})
        rows = [[x.name, bytes_text(x.bytes), f"{x.copies:,}", x.memory if x.memory != "device" else ""] for x in shown]
        return rows + ([["others", bytes_text(others), "", ""]] if others else [])

    def _rows_of_transforms(self) -> list[list[str]]:
        shown, others = _large(self.transforms)
        rows = [[name or "the step itself", bytes_text(self.transforms[name])] for name in shown]
        return rows + ([["others", bytes_text(others)]] if others else [])

    def _rows_of_collectives(self) -> list[list[str]]:
        shown, others = _large({x: x.bytes for x in self.collectives})
        rows = [[x.kind, x.transform or "the step itself", f"{x.count:,}", bytes_text(x.bytes)] for x in shown]
        return rows + ([["others", "", "", bytes_text(others)]] if others else [])


def _large(sizes: Mapping[T, int]) -> tuple[list[T], int]:
    """What is not small beside the largest, and the sum of what is."""
    least = _LEAST * max(sizes.values(), default=0)
    return [x for x, size in sizes.items() if size >= least > 0], sum(size for size in sizes.values() if size < least)


def flops_text(flops: float | int | None) -> str:
    """Operations in a unit of thousands; empty for none."""
    if not flops:
        return ""
    place = min(max(int(math.log10(flops)) // 3, 0), len("kMGTPE"))
    return f"{flops / 1000**place:.3g} {' kMGTPE'[place].strip()}FLOP"


def seconds_text(seconds: float) -> str:
    """Seconds in the largest unit in which there is at least one."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def count_text(number: float | int) -> str:
    """A number in the largest unit of thousands in which there is at least one."""
    for unit in ("", " K", " M", " B"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} T"
