"""What a parameter is in its layer: the kind of array, and what its axes mean."""

import abc
import dataclasses
import inspect
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Self

Axes = tuple[int, ...]

_QKV = {"q": "query", "k": "key", "v": "value", "o": "out"}


def _as_axes(x: Any) -> Axes:
    return (x,) if isinstance(x, int) else tuple(x)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AbstractRole(abc.ABC):
    """The kind of an array in its layer, and the meaning of its axes.

    `roles` finds the role of every parameter of a model.

    The subclasses are the kinds of arrays. Give one to `roles`, to `Muon(roles=...)` or as metadata of a field where a
    role cannot be found from the class of a layer:

        roles(model, {"readout": Head(), "blocks.*.qkv": Attention(heads=8)})

    Args:
        fan_in: the axes over which the layer sums, its inputs; a convolution also sums over its window.
        fan_out: the axes of its outputs.
        batch: the other axes, such as layers stacked by `vmap` or `scan`, or experts: one matrix for each index.
        blocks: the sizes of matrices that are joined along the outputs, such as query, key and value in one array;
            empty if there is one.
        depth: the number of the block in which it is, from 1; 0 before the blocks and one more than their number after
            them; several where blocks are stacked; None if the paths don't tell.
        is_known: False if the axes are an assumption: an unclassified array with two axes is taken as
            `(inputs, outputs)`.

    Attributes:
        is_linear: whether it is the matrix of a linear layer, which may be the head by its name.
        is_hidden: whether it is a matrix inside the model, which `Muon` and `GaLore` train as one.
        decays: whether weight decay applies to it by the mask `decays`.
        is_vector: whether it has one number for each channel or position, whatever its shape.
    """

    is_linear: ClassVar[bool] = False
    is_hidden: ClassVar[bool] = False
    decays: ClassVar[bool] = False
    is_vector: ClassVar[bool] = False

    fan_in: Any = ()  # an axis or several; always a tuple in the role
    fan_out: Any = ()
    batch: Any = ()
    blocks: tuple[int, ...] = ()
    depth: int | tuple[int, ...] | None = None
    is_known: bool = True

    def __init_subclass__(cls) -> None:
        begin = "\n\nArgs:\n"
        # Without the indentation, which Python 3.13 takes away itself.
        own, _, arguments = inspect.cleandoc(cls.__doc__ or "").partition(begin)
        shared = inspect.cleandoc(AbstractRole.__doc__ or "").partition(begin)[2].partition("\n\nAttributes:")[0]
        cls.__doc__ = own.rstrip() + begin + "\n".join(text.rstrip() for text in (arguments, shared) if text)

    def __post_init__(self) -> None:
        for name in ("fan_in", "fan_out", "batch"):
            object.__setattr__(self, name, _as_axes(getattr(self, name)))
        if bool(self.fan_in) != bool(self.fan_out):
            given, other = ("fan_in", "fan_out") if self.fan_in else ("fan_out", "fan_in")
            raise ValueError(f"`{type(self).__name__}({given}=...)` needs `{other}` too, or neither of them.")

    def __repr__(self) -> str:
        fields = [
            (x.name, getattr(self, x.name)) for x in dataclasses.fields(self) if getattr(self, x.name) != x.default
        ]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in fields)})"

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """The name of the role in tables, such as `"hidden"`."""

    def like(self, found: "AbstractRole | None", shape: tuple[int, ...]) -> Self:
        """Return this role with the axes of a found one, if it has none.

        Args:
            found: what is found without it.
            shape: the shape of the array.
        """
        if self.fan_in:
            own = {x: self._counted(getattr(self, x), shape) for x in ("fan_in", "fan_out", "batch")}
            rest = tuple(i for i in range(len(shape)) if i not in own["fan_in"] + own["fan_out"])
            return dataclasses.replace(self, **own | {"batch": own["batch"] or rest})
        if found is None or not found.fan_in:
            return self
        axes = {x: getattr(found, x) for x in ("fan_in", "fan_out", "batch")}
        return dataclasses.replace(self, **axes, blocks=self.blocks or found.blocks)

    def _counted(self, axes: Axes, shape: tuple[int, ...]) -> Axes:
        """The axes of an array, negative ones counted from the end."""
        if outside := [i for i in axes if not -len(shape) <= i < len(shape)]:
            raise ValueError(f"`{self!r}`: an array of shape {shape} has no axis {outside[0]}.")
        return tuple(i % len(shape) for i in axes)

    def decays_in(self, ndim: int) -> bool:
        """Return whether weight decay applies to an array with this role by the mask `decays`.

        Args:
            ndim: the number of its axes.
        """
        del ndim
        return self.decays

    def by_head(self, outputs: int) -> tuple[int, ...]:
        """Return the sizes of the matrices along the outputs, if each head of an attention layer has its own.

        Args:
            outputs: the number of outputs.
        """
        del outputs
        return self.blocks


class AbstractNamedRole(AbstractRole):
    """A role with the name of its class."""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


class Matrix(AbstractNamedRole):
    """A matrix inside the model, which Muon trains: `Hidden`, `Attention`, `Convolution` and `LoRA`.

    Use it to select all of them, `by_role({Matrix: "matrices"}, default="others")`, or as the role of a matrix of
    unknown kind.
    """

    is_hidden: ClassVar[bool] = True
    decays: ClassVar[bool] = True


class Hidden(Matrix):
    """The weight matrix of a linear layer inside the model. Matrices of attention are `Attention` instead."""

    is_linear: ClassVar[bool] = True


class Embedding(AbstractNamedRole):
    """A table of vectors, one for each token or class."""


class Head(AbstractNamedRole):
    """The weight matrix of the last layer, whose outputs are logits or predictions."""

    decays: ClassVar[bool] = True


class Convolution(Matrix):
    """The kernel of a convolution. Its window belongs to the inputs."""


@dataclasses.dataclass(frozen=True, repr=False)
class Attention(Matrix):
    """A projection of an attention layer, or several in one array.

    Args:
        part: `"query"`, `"key"`, `"value"` or `"out"`; or the first letters of those that are joined along the outputs
            in this order, `"qkv"` or `"kv"`.
        heads: number of heads; needed to split an array by heads.
        kv_heads: number of heads of keys and values, if they are fewer.
    """

    part: str = "qkv"
    heads: int | None = None
    kv_heads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part not in _QKV.values() and not set(self.part) <= set("qkv"):
            raise ValueError(
                f'`Attention(part=...)` must be "query", "key", "value" or "out", or letters for several in one array, '
                f'such as "qkv", got {self.part!r}.'
            )

    @property
    def kind(self) -> str:
        return self.part

    def like(self, found: AbstractRole | None, shape: tuple[int, ...]) -> Self:
        # The blocks of a layer called `qkv` are a guess from its name, of which this role may know better.
        role = super().like(None if found is None else dataclasses.replace(found, blocks=()), shape)
        if role.part in _QKV.values() or role.blocks or not role.fan_out:
            return role
        counts = self._heads_of(role.part)
        total = math.prod(shape[axis] for axis in role.fan_out)
        if total % sum(counts):
            raise ValueError(
                f"`{self!r}`: {total} outputs of an array of shape {shape} are not {sum(counts)} parts of one size."
            )
        return dataclasses.replace(role, blocks=tuple(total // sum(counts) * n for n in counts))

    def by_head(self, outputs: int) -> tuple[int, ...]:
        if self.heads is None or self.part == "out":
            return self.blocks
        heads = self._heads_of(self.part if self.blocks else {"query": "q"}.get(self.part, "k"))
        sizes = self.blocks or (outputs,)
        if uneven := [(size, n) for size, n in zip(sizes, heads, strict=True) if size % n]:
            raise ValueError(f"`{self!r}`: {uneven[0][0]} outputs are not {uneven[0][1]} heads of one size.")
        return tuple(size // n for size, n in zip(sizes, heads, strict=True) for _ in range(n))

    def _heads_of(self, letters: str) -> list[int]:
        """The number of heads of each projection, by its first letter."""
        heads = self.heads or 1
        return [heads if letter == "q" else self.kv_heads or heads for letter in letters]


class Bias(AbstractNamedRole):
    """A bias: it is added to the outputs of a layer."""

    is_vector: ClassVar[bool] = True


class Gain(AbstractNamedRole):
    """The gain of a norm, a number for each channel."""

    is_vector: ClassVar[bool] = True


class Position(AbstractNamedRole):
    """A table of positions, or another array that is added to the inputs of the blocks."""

    is_vector: ClassVar[bool] = True


class LoRA(Matrix):
    """One of the two factors of a low-rank adapter."""


class Other(AbstractRole):
    """An array that could not be classified. With several axes it may be a kernel, and decays."""

    @property
    def is_vector(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(self.batch)  # a vector of each block in a stack

    def decays_in(self, ndim: int) -> bool:
        return ndim > 1 and not self.is_vector

    @property
    def kind(self) -> str:
        return ""


def axes(ndim: int, fan_in: Iterable[int], fan_out: Iterable[int], rank: int) -> dict[str, Any]:
    """The axes of an array whose last `rank` axes are those of one layer, and whose first ones are a batch of layers.

    Args:
        ndim: number of axes of the array.
        fan_in: axes of the inputs in one layer.
        fan_out: axes of the outputs in one layer.
        rank: number of axes in one layer.
    """
    first = ndim - rank
    if first < 0:
        return {}
    return {
        "fan_in": tuple(first + i for i in fan_in),
        "fan_out": tuple(first + i for i in fan_out),
        "batch": tuple(i for i in range(ndim) if i - first not in {*fan_in, *fan_out}),
    }


def in_stack(role: AbstractRole, stack: Axes, ndim: int) -> AbstractRole:
    """Return the role of an array in which blocks are stacked, given that of one block.

    Args:
        role: the role in one block.
        stack: the axes of the stack.
        ndim: number of axes of the array.
    """
    rest = [i for i in range(ndim) if i not in stack]
    if not role.fan_in:
        return dataclasses.replace(role, batch=stack) if not role.kind and len(rest) < 2 else role
    own = {name: tuple(rest[i] for i in getattr(role, name)) for name in ("fan_in", "fan_out", "batch")}
    return dataclasses.replace(role, **own | {"batch": (*stack, *own["batch"])})
