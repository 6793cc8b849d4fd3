"""Containers whose transform sees the parameters in another form: in one buffer, or with complex numbers split."""

import abc
import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float, PyTree

from .._protocol.container import AbstractContainer, extra_inside, part
from .._protocol.transform import AbstractTransform
from .._support.arithmetic import common_dtype
from .._support.module import AbstractModule, AbstractState, nested, shared
from .._support.placement import shard_like
from .._support.types import Params, State, Updates
from ..tree._align import paired
from ..tree._math import trainable


class Form(NamedTuple):
    """How trees like the parameters look inside, and back."""

    down: Callable[[PyTree], PyTree]
    up: Callable[[PyTree], PyTree]


class AbstractReshaping(AbstractContainer):
    """A container whose transform sees the parameters in another form."""

    inner: eqx.AbstractVar[AbstractTransform]

    state_type: ClassVar[type]

    @abc.abstractmethod
    def form(self, params: Params, *, of_updates: bool = False) -> Form:
        """The form of trees like these parameters, or like what `update` was given where it had no parameters."""

    def init(self, params: Params) -> Any:
        """The inner state, for the parameters in the other form."""
        return self.state_type(self.inner.init(self.form(params).down(params)))

    def update(self, updates: Updates, state: Any, params: Params | None = None, **extra: Any) -> tuple[Updates, Any]:
        """One step of the inner transform, in the other form."""
        form = self.form(updates, of_updates=True) if params is None else self.form(params)

        def down(tree: PyTree) -> PyTree:
            return form.down(paired(trainable(tree), updates, f"{type(self).__name__}.update"))

        inner_params = None if params is None else form.down(params)
        inner_extra = extra_inside(extra, updates, down, form.up)
        new, inner_state = self.inner.update(form.down(updates), state.inner_state, inner_params, **inner_extra)
        return _returned(form.up(new), updates), dataclasses.replace(state, inner_state=inner_state)

    # The part has its evaluation parameters in the other form.
    def eval_params(self, state: Any, params: Params) -> Params:
        """Those of the inner transform, in the form of the parameters again."""
        form = self.form(params)
        inner = self.inner.at(state.inner_state)
        return _returned(form.up(inner.eval_params(state.inner_state, form.down(params))), params)


def _returned(tree: PyTree, given: PyTree) -> PyTree:
    """The tree in the dtypes of what was given, and sharded in the same way."""

    def one(x: Array, y: Array) -> Array:
        x = x.astype(y.dtype)
        return shard_like(x, y) if x.shape == y.shape else x

    return jtu.tree_map(one, tree, given)


class RealAndImaginary(AbstractModule):
    """A complex array as two real ones, in the trees that a transform inside of `SplitRealAndImaginary` sees.

    Args:
        real: the real part.
        imaginary: the imaginary part.
    """

    real: Float[Array, "..."]
    imaginary: Float[Array, "..."]


class SplitRealAndImaginaryState(AbstractState):
    """The state of `SplitRealAndImaginary`: that of the inner transform, in which complex arrays are two real ones."""

    inner_state: State = nested()


class SplitRealAndImaginary(AbstractReshaping):
    """Runs a transform on the real and the imaginary parts of complex arrays, as on two parameters.

        SplitRealAndImaginary(Rprop(1e-3))

    An optimizer that is not defined for complex parameters can then train them, and one that is does something else:
    Adam divides each part by a root mean square of its own. Real arrays stay as they are.

    JAX's gradient of a real function of complex parameters is the conjugate of the direction in which the function
    rises: hand `jax.tree.map(jnp.conj, grads)` to the optimizer, here as everywhere. Inside, the path of an array ends
    in `.real` and `.imaginary`, which patterns such as `"*.kernel*"` must let in.

    Args:
        inner: the transform.
    """

    inner: AbstractTransform = part()

    state_type: ClassVar[type] = SplitRealAndImaginaryState

    def form(self, params: Params, *, of_updates: bool = False) -> Form:
        """Each complex array as a pair."""
        del of_updates
        if not any(map(jnp.iscomplexobj, jtu.tree_leaves(params))):
            return Form(lambda tree: tree, lambda tree: tree)  # pairs in there are those of a container around this

        def split(x: Array) -> Any:
            return RealAndImaginary(jnp.real(x), jnp.imag(x)) if jnp.iscomplexobj(x) else x

        def join(x: Any) -> Array:
            return jax.lax.complex(x.real, x.imaginary) if isinstance(x, RealAndImaginary) else x

        def is_pair(x: Any) -> bool:
            return isinstance(x, RealAndImaginary)

        return Form(lambda tree: jtu.tree_map(split, tree), lambda tree: jtu.tree_map(join, tree, is_leaf=is_pair))


class FlattenState(AbstractState):
    """The state of `Flatten`: that of the inner transform, whose trees have one array for each dtype."""

    inner_state: State = shared()


class Flatten(AbstractReshaping):
    """Runs a transform on one long vector for each dtype, in which all arrays lie one behind the other.

        Flatten(AdamW(1e-3))

    It is for models of many tiny arrays, where a step is spent on starting the work on each of them: with 150 of at
    most 40 entries, a step of AdamW on a CPU took a tenth of the time, with 1000 a seventh. What it costs is
    compilation, because every array is cut out of the vector by a piece of program of its own: with 150 as long as
    without, with 1000 four times as long. Large arrays gain nothing, and are copied.

    What is computed for every entry alone is the same on a vector. What depends on the shape of an array is not (a
    trust ratio, a block norm, Muon), and a mask inside cannot tell the arrays apart. Updates leave with the sharding
    they came with, but arrays that are sharded in different ways are gathered for it, and JAX refuses them where
    shardings are explicit. Where `update` is called without the parameters, the updates must have their dtypes.

    Args:
        inner: the transform.
    """

    inner: AbstractTransform = part()

    state_type: ClassVar[type] = FlattenState

    def form(self, params: Params, *, of_updates: bool = False) -> Form:
        """The arrays of each dtype, one behind the other. Those without elements have no place there."""
        leaves, treedef = jtu.tree_flatten(params)
        axes = len(self.inner.example_axes) if of_updates else 0
        shapes = [x.shape[axes:] for x in leaves]
        sizes = [math.prod(shape) for shape in shapes]
        places: dict[str, list[int]] = {}
        for i, x in enumerate(leaves):
            if sizes[i]:
                places.setdefault(x.dtype.name, []).append(i)

        def down(tree: PyTree) -> dict[str, Array]:
            """Examples, on a leading axis, keep it."""
            xs = jtu.tree_leaves(tree)
            buffers = {}
            for name, indices in places.items():
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
