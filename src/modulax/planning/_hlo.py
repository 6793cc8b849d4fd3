"""Reads the text of a compiled program: bytes through memory, floating-point operations, collectives.

`memory_analysis` of a compiled program gives its buffers, and `cost_analysis` counts the body of a loop once, both
branches of a conditional, and nothing on a GPU. The text has what they lack: every kernel with its operands and
results, the trip counts of loops, the memory space of an array in its layout (`S(1)` is on-chip memory of a TPU), and
the name of the transform that an instruction comes from.
"""

import collections
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# Instructions that move nothing: names for what is there, and ends of what was counted at its start.
_FREE = (
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "iota",
    "after-all",
    "add-dependency",
    "domain",
    "opt-barrier",
    "partition-id",
    "replica-id",
    "rng-get-and-update-state",
    "async-update",
)
_BITS = {"pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "c64": 64, "c128": 128, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](\{[^}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_NAME = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_OWNER = re.compile(r"^[A-Z]\w*$")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @functools.cached_property
    def op_name(self) -> str:
        """The path of names under which JAX traced it: `jit(step)/AdamW/Chain/ScaleByAdam/mul`."""
        return self.attribute(r'op_name="([^"]*)"').replace("\\'", "'")

    @property
    def kind(self) -> str:
        """The opcode without the ending that an asynchronous start has."""
        return self.opcode.removesuffix("-start")

    def attribute(self, pattern: str) -> str:
        """The first group of a pattern in the attributes; empty without a match."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else ""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """An instruction that reads and writes memory, with how often it runs.

    The owners are the classes of the transforms that it comes from; first the one with most of what is fused in it.
    """

    instruction: Instruction
    bytes: int
    times: int
    owners: tuple[str, ...]

    @property
    def total(self) -> int:
        """Bytes of all its runs."""
        return self.bytes * self.times


@dataclasses.dataclass(frozen=True)
class Collective:
    """A transfer between devices: bytes of the whole (gathered or reduced) array on one device.

    `devices` exchange it with each other; 0 are all of the program. `owner` is the class of the transform that it comes
    from. The kind `send` goes to another slice, over the network of the data center.
    """

    kind: str
    bytes: int
    times: int
    op_name: str
    devices: int = 0

    @property
    def owner(self) -> str:
        """The class of the innermost transform that it comes from; empty if there is none."""
        return _owner(self.op_name)

    @property
    def total(self) -> int:
        """Bytes of all its runs."""
        return self.bytes * self.times


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What a program does: its kernels, its collectives, and the floating-point operations of its matrix products."""

    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]
    flops: float

    @property
    def bytes(self) -> int:
        """Bytes that all kernels read from and write to the memory of a device."""
        return sum(k.total for k in self.kernels)


def traffic(text: str) -> Traffic:
    """Read what a program does from the text of its optimized HLO, `compiled.as_text()`."""
    return _Program(text).run()


def array_bytes(shape: str, *, everywhere: bool = False) -> int:
    """Bytes of the arrays in a shape, without those that don't lie in the main memory unless `everywhere`."""
    total = 0
    for dtype, dims, layout in _ARRAY.findall(shape):
        space = _SPACE.search(layout)
        if everywhere or space is None or space[1] == "0":
            total += math.ceil(_size(dims) * _bits(dtype) / 8)
    return total


def _size(dims: str) -> int:
    return math.prod(int(d.removeprefix("<=")) for d in dims.split(",") if d)


def _bits(dtype: str) -> int:
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return _BITS[dtype] if dtype in _BITS else int(digits[1]) if digits else 0


class _Program:
    """The computations of a program, by name, and what was found on a walk through those that run."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current: list[Instruction] = []
        for line in text.splitlines():
            if line[:1].isspace():
                if (instruction := _parse(line)) is not None:
                    current.append(instruction)
            elif head := _HEAD.match(line):
                current = self.computations.setdefault(head[2], [])
                self.entry = head[2] if head[1] else self.entry
        self.shapes = {name: {i.name: i.shape for i in inside} for name, inside in self.computations.items()}

    def run(self) -> Traffic:
        found = self._walk(self.entry, 1)
        kernels = tuple(x for x in found if isinstance(x, Kernel))
        collectives = tuple(x for x in found if isinstance(x, Collective))
        return Traffic(kernels, collectives, float(sum(x for x in found if isinstance(x, int))))

    def _walk(self, name: str, times: int) -> list[Kernel | Collective | int]:
        """Kernels, collectives, and operations of a computation that runs `times` times."""
        found: list[Kernel | Collective | int] = []
        shapes = {i.name: _stored(i) for i in self.computations[name]}
        for i in self.computations[name]:
            found += self._arithmetic(i, name, times)
            if i.opcode == "while":
                found += self._walk(i.attribute(r"body=%?([\w.\-]+)"), times * self._trips(i))
            elif i.opcode == "conditional":
                branches = [self._walk(b, times) for b in self._called(i)]
                found += max(branches, key=_weight)
            elif i.opcode in ("call", "async-start"):
                found += itertools.chain(*(self._walk(called, times) for called in self._called(i)))
            elif moved := self._moved(i, shapes):
                owners = collections.Counter(self._owners(i)).most_common()
                found.append(Kernel(i, moved, times, tuple(name for name, _ in owners)))
        return found

    def _arithmetic(self, i: Instruction, name: str, times: int) -> Iterator[Collective | int]:
        """Collectives and matrix products of an instruction, also of those that are fused in it."""
        if i.kind in COLLECTIVES:
            shapes = self.shapes[name]
            given = sum(array_bytes(shapes.get(o, ""), everywhere=True) for o in i.operands)
            whole = array_bytes(i.shape, everywhere=True) - (given if i.opcode.endswith("-start") else 0)
            yield Collective(i.kind, max(given, whole), times, i.op_name, _group_size(i))
        elif i.opcode == "send" and "_xla_megascale_target" in i.attributes:
            sent = array_bytes(self.shapes[name].get(i.operands[0], ""), everywhere=True)
            yield Collective("send", sent, times, i.op_name)
        elif i.opcode in ("dot", "convolution") or "gemm" in i.attribute(r'custom_call_target="([^"]*)"'):
            yield times * _flops(i, self.shapes[name])
        elif i.kind == "fusion":
            for called in self._called(i):
                yield from self._fused_arithmetic(called, times)

    def _fused_arithmetic(self, name: str, times: int) -> Iterator[Collective | int]:
        goes_on = self._goes_on(name)
        for i in self.computations[name]:
            if i.kind not in COLLECTIVES or not goes_on:
                yield from self._arithmetic(i, name, times)

    def _goes_on(self, name: str) -> bool:
        """Whether fused instructions continue or end a collective that others have started.

        A TPU repeats an asynchronous one in each kernel that runs meanwhile, and at its end.
        """
        return name.startswith("async_collective_fusion") or any(
            "AsyncCollectiveDone" in i.attributes for i in self.computations[name]
        )

    def _trips(self, i: Instruction) -> int:
        """How often the body of a loop runs: as noted, or by the constant that its condition compares with."""
        if noted := i.attribute(r'"known_trip_count":\{"n":"(\d+)"'):
            return int(noted)
        condition = self.computations[i.attribute(r"condition=%?([\w.\-]+)")]
        constants = {j.name: j.operands[0] for j in condition if j.opcode == "constant"}
        compared = [constants[o] for j in condition if j.is_root for o in j.operands if o in constants]
        return int(compared[0]) if compared and compared[0].isdigit() else 1

    def _called(self, i: Instruction) -> list[str]:
        branches = _BRANCHES.search(i.attributes)
        names = _OPERAND.findall(branches[1]) if branches else _CALLED.findall(i.attributes)
        return [n for n in names if n in self.computations]

    def _owners(self, i: Instruction) -> Iterator[str]:
        """Classes of the transforms that an instruction comes from, also of those that are fused in it."""
        for called in self._called(i) if i.kind == "fusion" else []:
            for inner in self.computations[called]:
                yield from self._owners(inner)
        if owner := _owner(i.op_name):
            yield owner

    def _moved(self, i: Instruction, shapes: Mapping[str, str]) -> int:
        """Bytes that an instruction reads and writes; those of an asynchronous one are counted at its start."""
        if i.opcode in _FREE or i.opcode.endswith("-done"):
            return 0
        reads = [array_bytes(shapes.get(o, "")) for o in i.operands]
        writes = array_bytes(i.shape)
        if i.kind in COLLECTIVES or i.opcode == "copy-start":
            # The result of a start holds the operands again.
            return sum(reads) + max(writes - (sum(reads) if i.opcode.endswith("-start") else 0), 0)
        if i.opcode in ("slice-start", "dynamic-slice-start"):
            # The result holds the operand, the slice and a flag.
            *_, cut, _flag = _ARRAY.findall(i.shape)
            cut = "{}[{}]{}".format(*cut)
            return array_bytes(cut, everywhere=True) * (reads[0] > 0) + array_bytes(cut)
        if i.opcode in ("slice", "dynamic-slice"):
            return 2 * min(reads[0], writes)
        if i.opcode == "dynamic-update-slice":
            return 2 * reads[1]
        if i.kind == "fusion":
            (called,) = self._called(i)
            # The result of a start holds the operands again, and a flag.
            results = [x.shape for x in self.computations[called] if x.is_root]
            written = sum(map(array_bytes, results)) if i.opcode == "fusion-start" else writes
            return self._moved_fused(self.computations[called], reads, written)
        return sum(reads) + writes

    def _moved_fused(self, inner: list[Instruction], reads: list[int], writes: int) -> int:
        """Bytes of a fusion: of a slice where only a slice of an operand is read or of the result is written."""
        whole = {i.name: i for i in inner}
        parameters = {i.name: int(i.operands[0]) for i in inner if i.opcode == "parameter"}
        for name, number in parameters.items():
            reads[number] = _read_by(inner, name, reads[number])
        for i in inner:
            if i.opcode != "dynamic-update-slice":
                continue
            target, update = i.operands[0], array_bytes(whole[i.operands[1]].shape, everywhere=True)
            while whole[target].opcode == "bitcast":
                target = whole[target].operands[0]
            if target in parameters and reads[parameters[target]]:
                writes -= max(array_bytes(i.shape) - update, 0)
                reads[parameters[target]] = 0
        return sum(reads) + max(writes, 0)


def _read_by(inner: list[Instruction], name: str, whole: int) -> int:
    """Bytes of an operand that instructions read: those of its slices, unless one reads more of it."""
    users = [i for i in inner if name in i.operands]
    is_sliced = users and all(i.opcode in ("dynamic-slice", "slice") and i.operands[0] == name for i in users)
    return min(whole, sum(array_bytes(i.shape, everywhere=True) for i in users)) if is_sliced else whole


def _owner(op_name: str) -> str:
    return next((part for part in reversed(op_name.split("/")) if _OWNER.match(part)), "")


def _group_size(i: Instruction) -> int:
    """How many devices exchange data with each other; 0 for all.

    The groups are listed, `{{0,1},{2,3}}`, given by their number and size, `[2,2]<=[4]`, or the axes of a mesh,
    `mesh['a'=2,'b'=2] {'b'}`, where a part of an axis is `'b':(1)2`.
    """
    if size := i.attribute(r"replica_groups=\[\d+,(\d+)\]"):
        return int(size)
    if mesh := i.attribute(r"replica_groups=mesh\[([^\]]*)\]"):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", i.attribute(r"replica_groups=mesh\[[^\]]*\] \{([^}]*)\}"))
        return math.prod(int(part or sizes[name]) for name, part in axes)
    listed = i.attribute(r"replica_groups=\{\{([\d,]+)")
    return listed.count(",") + 1 if listed else 0


def _weight(found: list[Kernel | Collective | int]) -> int:
    return sum(x.total for x in found if isinstance(x, Kernel))


def _stored(i: Instruction) -> str:
    """The shape of what later instructions read; nothing for memory that was allocated and not yet written."""
    return "" if "AllocateBuffer" in i.attributes else i.shape


def _parse(line: str) -> Instruction | None:
    head = _NAME.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    start = rest.index("(")
    end = _closing(rest, start)
    inside = rest[start + 1 : end]
    opcode = rest[:start]
    operands = (inside.strip(),) if opcode in ("parameter", "constant") else tuple(_OPERAND.findall(inside))
    return Instruction(head[2], shape, opcode, operands, rest[end + 1 :], bool(head[1]))


def _closing(text: str, start: int) -> int:
    """The place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"No closing parenthesis in {text!r}.")


def _flops(i: Instruction, shapes: Mapping[str, str]) -> int:
    """Floating-point operations of a matrix product or a convolution: two for each multiplication."""
    results = math.prod(_dims(i.shape))
    given = [_dims(shapes[o]) for o in i.operands[:2]]
    if i.opcode == "convolution":
        kernel = i.attribute(r"dim_labels=\w+_(\w+)->")
        # XLA writes a batch of products as a convolution with a dilated window: each result has one place in it.
        is_batch = "lhs_dilate" in i.attributes or "stride" in i.attribute(r"window=\{([^}]*)\}")
        window = [] if is_batch else [d for d, label in zip(given[1], kernel, strict=True) if label.isdigit()]
        return 2 * results * given[1][kernel.index("i")] * math.prod(window)
    contracted = i.attribute(r"lhs_contracting_dims=\{([\d,]*)\}") or i.attribute(
        r'"lhs_contracting_dimensions":\[([\d",]*)\]'
    ).replace('"', "")
    return 2 * results * math.prod(given[0][int(d)] for d in contracted.split(",") if d)


def _dims(shape: str) -> list[int]:
    found = _ARRAY.search(shape)
    return [int(d) for d in found[2].split(",") if d] if found else []
