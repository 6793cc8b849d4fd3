"""The user's training, traced once for one optimizer, and run for a batch of them.

`train(optimizer, key)`, or the `start` and `advance` of a `Trainable`, is traced for one member and one key, without a
batch: the errors are those of the user's own code, and a program of any width is made from the same jaxpr without
calling the function again. The first structure of a sweep is traced a second time, and an error is raised if that gives
another program. The arrays that it closes over become arguments of the program, so that a data set is neither a
constant in the program nor copied for each member.

A `LaneProgram` maps one traced function over members and seeds. The members are spread over the devices with
`shard_map`: each device runs the batch of its own members, so that no array ever moves between them.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.extend.core import (
    ClosedJaxpr,  # pyright: ignore[reportPrivateImportUsage]
    jaxpr_as_fun,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Key, PRNGKeyArray, PyTree, UInt32

from .._plugin.arrays import is_typed_key
from .._plugin.messages import listing
from .._plugin.trees import dotted
from ..authoring import AbstractTransform
from ._program import Content, content_of

Train = Callable[[Any, PRNGKeyArray], PyTree]
Keys: TypeAlias = Key[Array, "..."] | UInt32[Array, "..."]
MEMBERS = "members"
READS_A_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
# A tracer that is formatted, hashed or taken as a shape is a plain TypeError.
READS_A_VALUE_TOO = ("Tracer.__format__", "unhashable type: 'DynamicJaxprTracer'", "sequences of concrete values")


@dataclasses.dataclass(frozen=True)
class Trainable:
    """A training in segments, for `run`, `halving`, `pbt` and `optuna`.

        def start(optimizer, key):
            model = make_model(key)
            return model, optimizer.init(model), key

        def advance(optimizer, carry):   # one segment, such as 100 steps by `jax.lax.scan`
            ...
            return carry, {"loss": loss}

        trainable = sweeps.Trainable(start, advance)

    The carry may contain Equinox models with their functions; anything that is not an array must be the same after a
    segment as before it. Derive random numbers from a key or a step count in the carry.

    Args:
        start: function of an optimizer and a random key that returns the carry.
        advance: function of an optimizer and the carry that returns the next carry and the metrics of the segment. If
            it takes three arguments, the third is the number of the segment, from 0, or with `data=` its data. That is
            the same for all members and seeds.
    """

    start: Callable[[Any, PRNGKeyArray], PyTree]
    advance: Callable[..., tuple[PyTree, PyTree]]

    def __post_init__(self) -> None:
        for name, function in (("start", self.start), ("advance", self.advance)):
            if not callable(function):
                raise TypeError(f"`Trainable({name}=...)` must be a function, got {function!r}.")


def in_segments(training: Any) -> Trainable | None:
    """The training as segments, or None if it is a plain function."""
    return training if isinstance(training, Trainable) else None


class Traced(NamedTuple):
    """A traced function of arrays: its program for one member, and the shapes of its results."""

    closed: ClosedJaxpr
    result: PyTree

    def call(self, consts: list[Any], *leaves: Any) -> list[Any]:
        """The function, with the arrays that it closes over as an argument.

        So a data set is neither a constant of the program nor copied for each member.
        """
        return jaxpr_as_fun(self.closed.replace(consts=consts))(*leaves)


def trace(name: str, function: Callable[..., PyTree], *arguments: PyTree, again: bool = False) -> Traced:
    """Trace a function of the user, which returns arrays, for arguments given as arrays or shapes.

    Args:
        name: the name of the function, for error messages.
        function: the function.
        *arguments: its arguments.
        again: whether to trace it a second time, and raise an error if the programs differ.
    """
    if jax.config.jax_disable_jit:
        raise RuntimeError(
            f"A sweep is a compiled program, which `jax.disable_jit` forbids. To debug `{name}`, call it for one "
            f"optimizer: `train(sweep[0], key)`."
        )
    shapes = jax.tree.map(shape_of, arguments)
    try:
        # For one optimizer, whatever the width is: an error is that of a single run, and no chunk is traced again.
        closed, result = jax.make_jaxpr(function, return_shape=True)(*shapes)
    except (*READS_A_VALUE, TypeError) as error:
        if isinstance(error, READS_A_VALUE) or any(words in str(error) for words in READS_A_VALUE_TOO):
            raise TypeError(_explained(name, error)) from error
        raise

    if any(_is_traced(x) for x in _static_in(jtu.tree_structure(result))):
        raise ValueError(
            f"`{name}` returned an optimizer in a part of its result that is no data, as is `tx` of Flax's "
            f"`TrainState`. Return `modulax.linen.TrainState`, or the parameters and the state alone."
        )
    if again:
        _check_pure(name, function, shapes, content_of(closed))
    return Traced(closed, result)


def _static_in(treedef: Any) -> Iterator[Any]:
    """Whatever the nodes of a tree hold that is no data."""
    nodes = [treedef]
    while nodes:
        node = nodes.pop()
        nodes += node.children()
        if (held := node.node_data()) is not None:
            yield from held[1] if isinstance(held[1], tuple) else [held[1]]


def _is_traced(x: Any) -> bool:
    return isinstance(x, AbstractTransform) and any(isinstance(leaf, Tracer) for leaf in jtu.tree_leaves(x))


def _check_pure(name: str, function: Callable[..., PyTree], shapes: Sequence[Any], first: Content) -> None:
    """Raise an error if a second tracing gives another program, as that of a function which takes the next batch."""
    cause: Exception | None = None
    try:
        second = jax.make_jaxpr(lambda *arguments: function(*arguments))(*shapes)  # JAX knows `function` already
        difference = first.difference(content_of(second))
    except Exception as error:
        difference, cause = f"{type(error).__name__}, {error}" if str(error) else type(error).__name__, error
    if difference:
        raise ValueError(
            f"`{name}` is no function of its arguments: traced a second time, it gave {difference}. A sweep traces it "
            f"before it trains, so the batch that `next(loader)` returned then, or a random number of NumPy, would be "
            f"the same in every step. Take the data from a closure or the carry, by an index that the carry or a key "
            f"determines; or stream them, by `data=loader` or `jax.pure_callback`, as the guide shows under "
            f'"Stream data through a sweep".'
        ) from cause


def unjitted(function: Any) -> Any:
    """The function inside `jax.jit` or `eqx.filter_jit`, which would not run it when it is traced again."""
    while hasattr(function, "lower") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The arguments of a function; None of some builtins and callables, of which Python doesn't know them."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def takes_number(advance: Callable[..., Any]) -> bool:
    """Whether a function must be called with the number of the segment too."""
    signature = signature_of(advance)
    parameters = signature.parameters.values() if signature else ()
    return len([x for x in parameters if x.default is x.empty and x.kind < x.VAR_POSITIONAL]) == 3


def check_arguments(name: str, function: Callable[..., Any], call: str) -> None:
    """Raise an error if a function of the user can't be called as written, or takes the arguments in another order."""
    if (signature := signature_of(function)) is None:
        return
    if next(iter(signature.parameters), "") in ("key", "rng", "seed", "carry"):
        raise TypeError(f"`{name}` is called with the optimizer first: write `{call}`.")
    try:
        signature.bind(*[None] * (1 + call.count(",")))
    except TypeError as error:
        raise TypeError(
            f"`{name}` is called as `{call}`, and this one is `{name}{signature}`. Give it these arguments, and take "
            f"whatever else it needs from a closure or `functools.partial`."
        ) from error


def shape_of(x: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array."""
    return jax.ShapeDtypeStruct(np.shape(x), getattr(x, "dtype", None) or jnp.result_type(x))


def as_metrics(name: str, out: PyTree) -> PyTree:
    """The metrics as arrays; an error if there are none, or something is neither an array nor a number."""
    leaves = jtu.tree_leaves_with_path(out)
    wrong = [f"{dotted(path) or 'the result'}: {what}" for path, x in leaves if (what := _why_not_a_metric(x))]
    if wrong or not leaves:
        what = listing(wrong) if wrong else f"`{out!r}`, which has no arrays"
        raise TypeError(
            f"`{name}` must return its metrics, arrays or numbers in any pytree, and it returned {what}. Write, for "
            f'example, `return {{"loss": loss}}`; keep a model or a function out of the metrics.'
        )
    names = [dotted(path) for path, _ in leaves]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"`{name}` returned several metrics with the name {listing(twice)}. Give each its own name.")
    return jax.tree.map(jnp.asarray, out)


def _why_not_a_metric(x: Any) -> str:
    if not isinstance(x, (jax.Array, bool, int, float, complex, np.ndarray, np.generic)):
        return type(x).__name__
    if is_typed_key(x):
        return "a random key"
    return "" if np.size(x) else f"an empty array of shape {np.shape(x)}"


def _explained(name: str, error: Exception) -> str:
    first = str(error).strip().splitlines()[0]
    return (
        f"`{name}` was traced by JAX, because all members of a sweep run in one program. It reads a traced value as a "
        f"Python number: a hyperparameter has another value in every member. Compute with `jax.numpy`; in place of "
        f"`float(x)`, use `x`; in place of `if x > 0`, `jnp.where` or `jax.lax.cond`; a length or a shape must be the "
        f"same in all members. The error from JAX: {first}"
    )


class Placement(NamedTuple):
    """The devices of a sweep: a mesh with one axis, over which the members are spread."""

    mesh: Mesh

    def sharding(self, *axes: str) -> NamedSharding:
        """The sharding of arrays with a leading axis `MEMBERS`; or else, of those that each device has a copy of."""
        return NamedSharding(self.mesh, P(*axes))

    def rounded(self, width: int) -> int:
        """The smallest multiple of the number of devices that is not below `width`."""
        return -(-width // self.mesh.size) * self.mesh.size


def placement(devices: Any) -> Placement:
    """The mesh over devices: all of them (None), the first so many (a number), or those given."""
    there = jax.devices()
    if isinstance(devices, jax.Device):
        devices = [devices]
    if isinstance(devices, (str, bool)):
        raise TypeError(f"`devices={devices!r}` must be a list such as `jax.devices()[:4]`, a number, or None for all.")
    if isinstance(devices, int):
        if not 0 < devices <= len(there):
            raise ValueError(f"`devices={devices}` must be between 1 and {len(there)}, the number of devices of JAX.")
        devices = there[:devices]
    selection = there if devices is None else list(devices)
    if not selection:
        raise ValueError("`devices=[]` is empty. For all devices of JAX, write `devices=None`.")
    return Placement(Mesh(np.array(selection), (MEMBERS,)))


def placed(x: Any, sharding: NamedSharding) -> jax.Array:
    """An array on its devices, of which some may belong to other processes; these have the same array."""
    if sharding.is_fully_addressable or (isinstance(x, jax.Array) and not x.is_fully_addressable):
        return jax.device_put(x, sharding)
    if is_typed_key(x):
        return jax.random.wrap_key_data(placed(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


class Axes(NamedTuple):
    """Whether an argument has an axis of members, and one of seeds after it."""

    members: bool
    seeds: bool


class Size(NamedTuple):
    """For how many members and seeds a program is."""

    width: int
    seeds: int


class LaneProgram:
    """A traced function of flat arrays, mapped over members and seeds, and compiled for any number of both.

    Args:
        traced: the function for one member and one seed.
        axes: the axes of each of its arguments. The results have both.
        where: the devices, over which the members are spread.
        donated: the arguments whose memory the results may use.
    """

    def __init__(self, traced: Traced, axes: Sequence[Axes], where: Placement, donated: Sequence[int] = ()):
        self.traced, self.axes, self.where = traced, axes, where
        self.donated = tuple(1 + i for i in donated)
        self.shardings = [where.sharding(*[MEMBERS] * axis.members) for axis in axes]
        self.consts = [placed(x, where.sharding()) for x in traced.closed.consts]
        self._compiled: dict[Size, Any] = {}

    def _mapped(self, size: Size) -> Callable[..., list[Any]]:
        """The function over seeds, members and devices. There may be no array with an axis, so that sizes are given."""
        over_seeds = self._over_seeds(size.seeds)
        over_members = jax.vmap(
            over_seeds,
            in_axes=(None, *(0 if axis.members else None for axis in self.axes)),
            axis_size=size.width // self.where.mesh.size,
        )
        if self.where.mesh.size == 1:
            return over_members
        specs = (x.spec for x in self.shardings)
        # Members never communicate: each device runs the plain batch of its members, and XLA has nothing to partition.
        return jax.shard_map(
            over_members, mesh=self.where.mesh, in_specs=(P(), *specs), out_specs=P(MEMBERS), check_vma=False
        )

    def _over_seeds(self, seeds: int) -> Callable[..., list[Any]]:
        if seeds > 1:
            axes = (None, *(0 if axis.seeds else None for axis in self.axes))
            return jax.vmap(self.traced.call, in_axes=axes, axis_size=seeds)

        # An axis of length one would make the program take a quarter longer to compile.
        def one(consts: list[Any], *leaves: Any) -> list[Any]:
            arguments = [x[0] if axis.seeds else x for x, axis in zip(leaves, self.axes, strict=True)]
            return [jax.lax.expand_dims(x, (0,)) for x in self.traced.call(consts, *arguments)]

        return one

    def shapes(self, size: Size) -> list[jax.ShapeDtypeStruct]:
        """The shapes and placement of the arguments for so many members and seeds."""
        types: Any = self.traced.closed.in_avals
        return [
            jax.ShapeDtypeStruct((*itertools.compress(size, axis), *x.shape), x.dtype, sharding=sharding)
            for axis, x, sharding in zip(self.axes, types, self.shardings, strict=True)
        ]

    def compiled(self, size: Size) -> Any:
        """The compiled program for so many members and seeds."""
        if size not in self._compiled:
            jitted = jax.jit(self._mapped(size), donate_argnums=self.donated)
            self._compiled[size] = jitted.lower(self.consts, *self.shapes(size)).compile()
        return self._compiled[size]

    def __call__(self, size: Size, leaves: Sequence[Any]) -> list[Any]:
        """Run the program for so many members and seeds."""
        arrays = [placed(x, sharding) for x, sharding in zip(leaves, self.shardings, strict=True)]
        return self.compiled(size)(self.consts, *arrays)


def check_training(name: str, training: Any, segments: int, *, has_data: bool) -> None:
    """Raise an error if the training can't be called, or can't be cut into segments."""
    if isinstance(training, Trainable):
        check_arguments("start", training.start, "start(optimizer, key)")
        third = ", batch" if has_data else ", segment" if takes_number(training.advance) else ""
        check_arguments("advance", training.advance, f"advance(optimizer, carry{third})")
        return
    if not callable(training) or isinstance(training, AbstractTransform):
        raise TypeError(
            f"`{name}` needs the training as a function, `train(optimizer, key)`, or as a "
            f"`sweeps.Trainable(start, advance)`; got {training!r}."
        )
    if segments != 1 or has_data:
        what = "data=..." if has_data else f"segments={segments}"
        raise ValueError(
            f"`{name}({what})` needs a training that can be cut into segments: `sweeps.Trainable(start, advance)` in "
            f"place of a function."
        )
    check_arguments("train", training, "train(optimizer, key)")
