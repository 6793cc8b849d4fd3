"""Containers that give a transform the parameters in another form: flattened, or with complex arrays split.

A subclass of `AbstractReshaping` implements `form(params)`, which returns a pair of functions: `down` converts a tree
like the parameters to the inner form, and `up` converts back. `init`, `update` and `eval_params` follow from it: they
convert parameters, updates and extra arguments (`extra_inside`), call the inner transform, and convert the result back
to the dtypes and the sharding of the updates or the parameters (`_returned`).
"""

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from .._protocol.container import AbstractContainer, required_part
from .._protocol.extra_arguments import extra_inside
from .._protocol.transform import AbstractTransform, everything_in, in_dtype_of, update_dtypes
from .._roles.find import AbstractRoles
from .._roles.labels import read_by_role
from .._support.arithmetic import common_dtype
from .._support.module import AbstractModule, AbstractState, nested, shared
from .._support.placement import shard_like
from .._support.types import Params, State, Updates
from ..tree._align import paired
from ..tree._math import trainable


class Form(NamedTuple):
    """Functions that convert trees like the parameters to the inner form (`down`) and back (`up`)."""

    down: Callable[[PyTree], PyTree]
    up: Callable[[PyTree], PyTree]


class AbstractReshaping(AbstractContainer):
    """A container that gives its inner transform the parameters in another form."""

    inner: eqx.AbstractVar[AbstractTransform]

    state_type: ClassVar[type]
    _gives_gradients = False
    _keeps = "direction"

    @abc.abstractmethod
    def form(self, params: Params, *, of_updates: bool = False) -> Form:
        """Return the conversion of trees like these parameters.

        Args:
            params: the parameters; or the updates, if `update` was called without parameters.
            of_updates: whether `params` are updates, which may have batch axes of per-example gradients.
        """

    def init(self, params: Params) -> Any:
        """Return the inner state, for the parameters in the other form."""
        return self.state_type(self.inner.init(self.form(params).down(params)))

    def update(self, updates: Updates, state: Any, params: Params | None = None, **extra: Any) -> tuple[Updates, Any]:
        """Run one step of the inner transform, in the other form."""
        form = self.form(updates, of_updates=True) if params is None else self.form(params)

        def down(tree: PyTree) -> PyTree:
            return form.down(paired(trainable(tree), updates, f"{type(self).__name__}.update"))

        inner_params = None if params is None else form.down(params)
        inner_extra = extra_inside(extra, updates, down, form.up)
        new, inner_state = self.inner.update(form.down(updates), state.inner_state, inner_params, **inner_extra)
        new = _returned(form.up(new), updates, update_dtypes(self.inner))
        return new, dataclasses.replace(state, inner_state=inner_state)

    # Overridden because the inner transform has its evaluation parameters in the other form.
    def eval_params(self, state: Any, params: Params) -> Params:
        """Return the evaluation parameters of the inner transform, converted back to the form of the parameters.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        form = self.form(params)
        inner = self.inner.at(state.inner_state)
        return _returned(form.up(inner.eval_params(state.inner_state, form.down(params))), params)


def _returned(tree: PyTree, given: PyTree, wide: Sequence[DTypeLike] = ()) -> PyTree:
    """Return the tree in the dtypes (but for what is widened) and with the sharding of the given tree."""

    def one(x: Array, like: Array) -> Array:
        x = in_dtype_of(like, x, wide)
        # A piece of a vector has lost the sharding of its parameter.
        return shard_like(x, like) if x.shape == like.shape else x

    return jtu.tree_map(one, tree, given)


class RealAndImaginary(AbstractModule):
    """The real and the imaginary part of a complex array, a node in the trees inside `SplitRealAndImaginary`.

    Args:
        real: the real part.
        imaginary: the imaginary part.
    """

    stands_for_one_array: ClassVar[bool] = True

    real: Float[Array, "..."]
    imaginary: Float[Array, "..."]


def is_complex_pair(x: object) -> bool:
    """Whether this is a `RealAndImaginary`."""
    return isinstance(x, RealAndImaginary)


class SplitRealAndImaginaryState(AbstractState):
    """State of `SplitRealAndImaginary`: the state of the inner transform, whose trees have no complex arrays."""

    optax_fields = ("inner_state",)

    inner_state: State = nested()


class SplitRealAndImaginary(AbstractReshaping):
    """Runs a transform on the real and imaginary parts of complex parameters, as if they were separate parameters.

        SplitRealAndImaginary(Rprop(1e-3))

    This makes an optimizer for real parameters usable for complex ones. The result differs for an optimizer that
    supports complex parameters itself: Adam divides each part by its own root mean square, for example. Real arrays
    stay unchanged.

    JAX's gradient of a real function of complex parameters is the conjugate of the direction of steepest ascent. Pass
    `jax.tree.map(jnp.conj, grads)` to this optimizer, as to any other. The paths of the inner arrays end in `.real` and
    `.imaginary`; patterns in the inner transform must match these, as `"*.kernel*"` does.

    Args:
        inner: the inner transform.
    """

    inner: AbstractTransform = required_part()

    state_type: ClassVar[type] = SplitRealAndImaginaryState

    def form(self, params: Params, *, of_updates: bool = False) -> Form:
        """Return the conversion of complex arrays to pairs of real ones."""
        del of_updates
        if not any(map(jnp.iscomplexobj, jtu.tree_leaves(params))):
            return Form(lambda tree: tree, lambda tree: tree)  # leaves pairs of an outer container unjoined

        def split(x: Array) -> Any:
            return RealAndImaginary(jnp.real(x), jnp.imag(x)) if jnp.iscomplexobj(x) else x

        def join(x: Any) -> Array:
            return jax.lax.complex(x.real, x.imaginary) if is_complex_pair(x) else x

        return Form(
            lambda tree: jtu.tree_map(split, tree), lambda tree: jtu.tree_map(join, tree, is_leaf=is_complex_pair)
        )


class FlattenState(AbstractState):
    """State of `Flatten`: the state of the inner transform, whose trees are vectors by dtype and chunk."""

    # Vectors over all parameters, which belong to none of them.
    inner_state: State = shared()


class Flatten(AbstractReshaping):
    """Runs a transform on the flattened parameters: one vector for all arrays of a dtype.

        Flatten(AdamW(1e-3))  # one vector
        Flatten(AdamW(1e-3), chunk=16)  # vectors of 16 arrays

    Use it on a CPU, or on a GPU if all arrays are small, for models with many tiny arrays, where the launch overhead of
    each array dominates a step. A TPU or a GPU copies all arrays into the vector and back, which takes two to five
    times the bytes of a step. On a CPU, a step of AdamW for 150 arrays with at most 40 entries took a tenth of the
    time; for 1000 arrays, a seventh. The cost is compilation time, because separate instructions slice each array from
    the vector: it is the same as without `Flatten` for 150 arrays, and four times as long for 1000. With `chunk=16`,
    hundreds of tiny arrays compile faster than without `Flatten`. Large arrays are copied, and don't get faster.

    Elementwise transforms give the same result as without `Flatten`. Transforms that use the shapes of the arrays (a
    trust ratio, a block norm) don't, and a mask inside cannot tell the arrays apart. Those that read roles, such as
    Muon and SOAP, are refused. Updates keep their sharding, but arrays that are sharded in different ways are gathered
    first, and with explicit sharding JAX raises an error for them. If `update` is called without parameters, the
    updates must have the dtypes of the parameters.

    Args:
        inner: the inner transform.
        chunk: the largest number of arrays in a vector; by default, all of one dtype are in one.
    """

    inner: AbstractTransform = required_part()
    chunk: int | None = eqx.field(static=True, default=None, metadata={"least": 1})

    state_type: ClassVar[type] = FlattenState

    def check(self) -> None:
        counts_axes = any(getattr(x, "follow", "") == "optax" for x in everything_in(self.inner))
        for labels in read_by_role(self.inner):
            is_mask = not isinstance(labels, AbstractRoles)
            if counts_axes and not is_mask:
                continue
            first, by = ("Flatten(AdamW(...))", labels) if is_mask else ("Muon(...)", "by_role({Matrix: True})")
            raise ValueError(
                f"`Flatten` joins arrays in vectors, in which biases can't be told from matrices by their roles. Put "
                f"it around one kind of them: `Partition({{True: {first}, False: Flatten(Adam(...))}}, {by})`."
            )

    def form(self, params: Params, *, of_updates: bool = False) -> Form:
        """Return the conversion of trees to vectors by dtype; arrays without elements are left out."""
        leaves, treedef = jtu.tree_flatten(params)
        axes = len(self.inner.example_axes) if of_updates else 0
        shapes = [x.shape[axes:] for x in leaves]
        sizes = [math.prod(shape) for shape in shapes]
        kinds: dict[str, list[int]] = {}
        for i, x in enumerate(leaves):
            if sizes[i]:
                # One vector of several dtypes would widen the narrow arrays and their state.
                kinds.setdefault(x.dtype.name, []).append(i)
        places = kinds if self.chunk is None else dict(_chunks(kinds, self.chunk))

        def down(tree: PyTree) -> dict[str, Array]:
            """Concatenate the arrays; a leading batch axis of per-example gradients is kept."""
            xs = jtu.tree_leaves(tree)
            buffers = {}
            for name, indices in places.items():
                # The groups are those of the parameters, and the updates in one may have several dtypes.
                dtype = common_dtype(*(xs[i].dtype for i in indices))
                flat = [xs[i].reshape(*xs[i].shape[: xs[i].ndim - len(shapes[i])], sizes[i]) for i in indices]
                buffers[name] = jnp.concatenate([x.astype(dtype) for x in flat], axis=-1)
            return buffers

        def up(buffers: dict[str, Array]) -> PyTree:
            xs = [jnp.zeros(shape, x.dtype) for shape, x in zip(shapes, leaves, strict=True)]
            for name, indices in places.items():
                ends = list(itertools.accumulate(sizes[i] for i in indices))
                for i, x in zip(indices, jnp.split(buffers[name], ends[:-1]), strict=True):
                    xs[i] = x.reshape(shapes[i])
            return treedef.unflatten(xs)

        return Form(down, up)


def _chunks(kinds: dict[str, list[int]], size: int) -> Iterator[tuple[str, list[int]]]:
    for name, indices in kinds.items():
        for k, start in enumerate(range(0, len(indices), size)):
            yield f"{name}_{k}", indices[start : start + size]
