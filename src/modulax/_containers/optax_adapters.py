"""Adapters: a pair of functions or an optax transformation as a transform, and a transform for optax."""

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.typing import DTypeLike
from jaxtyping import PyTree

from .._protocol.extra_arguments import hyperparameters_among
from .._protocol.transform import AbstractTransform, in_dtype_of, update_dtypes
from .._support.keys import is_typed_key
from .._support.module import AbstractState, nested
from .._support.printing import format_value
from .._support.tracing import call_user
from .._support.types import Params, State, Updates
from ..tree._align import PYTHON_NUMBERS
from ..tree._math import strong
from ..tree._paths import JoinedNames, join, key_names
from ..tree._state import init_even_if_empty


class FromOptaxState(AbstractState):
    """State of `FromOptax`: the state of the optax transformation."""

    inner_state: State = nested()


class FromOptax(AbstractTransform):
    """An optax transformation as a modulax transform; made by `from_optax`.

        Chain(ClipByGlobalNorm(1.0), from_optax(optax.contrib.momo(1.0)))

    Extra arguments are passed on if the transformation takes any. Updates and state keep their dtypes, even if optax
    changes them. Hyperparameters in optax's closures are constants of the compiled program: they cannot be replaced,
    swept or differentiated, and a new value recompiles. Hyperparameters that `optax.inject_hyperparams` keeps in the
    state are listed by `hyperparameters(state)`, and can be changed in the state.

    Args:
        transformation: the pair of functions `init` and `update`.
        hyperparams: the hyperparameters that optax keeps in its state. `at(state)` fills this field, so that they can
            be listed; it has no effect.
        takes_examples: whether `update` takes per-example gradients, with a leading batch axis, as
            `optax.contrib.differentially_private_aggregate` does.

    Raises:
        ValueError: if `transformation` is not an optax transformation.
    """

    # The functions in it cannot be leaves, since JAX refuses them in an argument.
    transformation: Any = eqx.field(static=True)
    hyperparams: dict[str, Any] | None = None
    takes_examples: bool = eqx.field(static=True, default=False, kw_only=True)

    @property
    def example_axes(self) -> tuple[int, ...]:
        return (0,) if self.takes_examples else ()

    def check(self) -> None:
        _check_pair(self.transformation)

    def init(self, params: Params) -> FromOptaxState:
        """Return a copy of the state that optax returns, so that it shares no array with the parameters."""
        with settings_of_optax():
            return FromOptaxState(_copied(self.transformation.init(params)))

    def update(
        self, updates: Updates, state: FromOptaxState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, FromOptaxState]:
        """Run `update` of the optax transformation, keeping the dtypes of updates and state."""
        with settings_of_optax(), _transforms_that_run() as ours:
            new, inner_state = self.transformation.update(
                updates, state.inner_state, params, **(extra if _takes_extra(self.transformation) else {})
            )
            # What promotes in optax does so by chance; what a transform of ours inside it has widened stays wide.
            wide = update_dtypes(*ours)
            new = jtu.tree_map(lambda x, u: _in_dtype_of(x, u, wide), new, updates)
            return new, FromOptaxState(_as_before(inner_state, state.inner_state))

    def at(self, state: FromOptaxState) -> "FromOptax":
        """Return this transform with the hyperparameters that `optax.inject_hyperparams` keeps in the state.

        Args:
            state: the state of this transform.
        """
        return FromOptax(self.transformation, _injected(state.inner_state) or None, takes_examples=self.takes_examples)

    def __repr__(self) -> str:
        # The name of the function that made the pair: optax transformations have no other name.
        update = self.transformation.update
        name = getattr(update, "__qualname__", type(self.transformation).__name__).partition(".")[0]
        shown = "" if self.hyperparams is None else f", hyperparams={format_value(self.hyperparams)}"
        return f"FromOptax({name}{shown})"


class FromFunctionsState(AbstractState):
    """State of `FromFunctions`: the state of the pair of functions."""

    inner_state: State = nested()


class FromFunctions(AbstractTransform):
    """A pair of functions `init` and `update` as a transform; made by `from_functions`.

    Args:
        init_function: function of the parameters that returns the initial state, any tree of arrays and numbers.
        update_function: function `update(updates, state, params)` that returns the new updates and the new state.
        takes_examples: whether `update` takes per-example gradients, with a leading batch axis.

    Raises:
        ValueError: if a function is not callable; in `update`, if it does not return updates and a state.
    """

    _call_hint: ClassVar[str] = (
        "Write `from_functions(init, update)`, with `init(params)` and `update(updates, state, params)`."
    )

    init_function: Callable[..., Any] = eqx.field(static=True)
    update_function: Callable[..., Any] = eqx.field(static=True)
    takes_examples: bool = eqx.field(static=True, default=False, kw_only=True)

    @property
    def example_axes(self) -> tuple[int, ...]:
        return (0,) if self.takes_examples else ()

    def init(self, params: Params) -> FromFunctionsState:
        """Return a copy of the state that the function returns, so that it shares no array with the parameters."""
        return FromFunctionsState(_copied(call_user(self.init_function, params)))

    def update(
        self, updates: Updates, state: FromFunctionsState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, FromFunctionsState]:
        """Call the function, and keep the dtypes of updates and state."""
        named = named_in(self.update_function, extra)
        result = call_user(self.update_function, updates, state.inner_state, params, **named)
        is_pair = isinstance(result, tuple) and len(result) == 2
        if not is_pair or jtu.tree_structure(result[0]) != jtu.tree_structure(updates):
            found = jtu.tree_structure(result[0]) if is_pair else f"`{type(result).__name__}`"
            raise ValueError(
                f"`from_functions(update=...)` must return the updates, with the structure of those that it was given, "
                f"and the new state: `return updates, state`. It was given {jtu.tree_structure(updates)} and returned "
                f"{found}."
            )
        new = jtu.tree_map(_in_dtype_of, result[0], updates)
        return new, FromFunctionsState(_as_before(result[1], state.inner_state))


def from_functions(
    init: Callable[..., Any], update: Callable[..., Any], *, takes_examples: bool = False
) -> FromFunctions:
    """Make a transform of a pair of functions, as `optax.GradientTransformation(init, update)` does.

        def init(params):
            return jax.tree.map(jnp.zeros_like, params)

        def update(updates, state, params=None):
            state = jax.tree.map(lambda g, t: g + 0.9 * t, updates, state)
            return state, state

        optimizer = Chain(ClipByGlobalNorm(1.0), from_functions(init, update), ScaleByLearningRate(1e-3))

    The numbers in the functions are constants of the compiled program: they cannot be replaced, swept or
    differentiated. For hyperparameters, write a class, an `AbstractLeafwise` or `AbstractTransform`. The functions are
    traced, so data that they read from elsewhere are constants too. Create the transform once: every new pair of
    functions compiles a new program.

    Args:
        init: function of the parameters that returns the initial state, any tree of arrays and numbers.
        update: function `update(updates, state, params)` that returns the new updates and the new state. With `**extra`
            it receives all extra arguments, otherwise those that it names, such as `value`.
        takes_examples: whether `update` takes per-example gradients, with a leading batch axis.

    Raises:
        ValueError: if `init` or `update` is not a function.
    """
    return FromFunctions(init, update, takes_examples=takes_examples)


def named_in(function: Callable[..., Any], extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """The extra arguments that `update` takes, according to its signature."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return extra
    # The first three are the updates, the state and the parameters.
    return {p.name: extra[p.name] for p in parameters[3:] if p.name in extra}


def _copied(state: PyTree) -> PyTree:
    return jtu.tree_map(lambda x: strong(jnp.array(x)), state)


def _check_pair(x: Any) -> None:
    is_ours = isinstance(x, AbstractTransform)
    if is_ours or not all(callable(getattr(x, name, None)) for name in ("init", "update")):
        remedy = "It is a modulax transform: use it as it is." if is_ours else "Write `from_optax(optax.adamw(1e-3))`."
        if isinstance(x, tuple):
            remedy = "For a pair of functions, write `from_functions(init, update)`."
        raise ValueError(f"`from_optax` needs an optax transformation, with `init` and `update`, got {x!r}. {remedy}")


# Takes the transforms of ours that run inside an optax transformation; outside one, nobody asks for them.
_run = contextvars.ContextVar[list[AbstractTransform] | None]("_run", default=None)


@contextlib.contextmanager
def _transforms_that_run() -> Iterator[list[AbstractTransform]]:
    """Collect the transforms of ours that run in the block; one block may be inside another."""
    around, found = _run.get(), list[AbstractTransform]()
    token = _run.set(found)
    try:
        yield found
    finally:
        _run.reset(token)
        if around is not None:
            around += found


@contextlib.contextmanager
def settings_of_optax() -> Iterator[None]:
    """Set JAX's standard promotion rules, on which optax and Flax rely, even if the program has set strict ones."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _takes_extra(transformation: Any) -> bool:
    """Whether `update` takes extra arguments, according to its optax class or its signature."""
    # By the name of the class, because optax is not imported here.
    if "GradientTransformationExtraArgs" in {cls.__name__ for cls in type(transformation).__mro__}:
        return True
    parameters = inspect.signature(transformation.update).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _in_dtype_of(new: Any, old: Any, wide: Sequence[DTypeLike] = ()) -> Any:
    new = jnp.asarray(new)
    is_complex = [jnp.issubdtype(x.dtype, jnp.complexfloating) for x in (new, old)]
    is_inexact = jnp.issubdtype(new.dtype, jnp.inexact) and jnp.issubdtype(old.dtype, jnp.inexact)
    return strong(in_dtype_of(old, new, wide) if is_inexact and is_complex[0] == is_complex[1] else new)


def _as_before(new: PyTree, old: PyTree) -> PyTree:
    """Cast the new state to the dtypes of the old one, in which a caller may have set plain Python numbers."""
    if jtu.tree_structure(new) != jtu.tree_structure(old):
        return jtu.tree_map(lambda x: strong(jnp.asarray(x)), new)
    return jtu.tree_map(lambda x, y: _in_dtype_of(x, jnp.asarray(y)), new, old)


def _injected(state: PyTree) -> dict[str, Any]:
    """The scalars in fields called `hyperparams`, by the path to the field and their own name."""
    found = {}
    for path, x in jtu.tree_leaves_with_path(state):
        is_field = [getattr(key, "name", None) == "hyperparams" for key in path]
        if any(is_field[:-1]) and jnp.ndim(x) == 0 and not is_typed_key(x):
            keys = [key for key, is_it in zip(path, is_field, strict=True) if not is_it]
            # The path without `hyperparams`, under which users know the number.
            found[JoinedNames(join(key_names(tuple(keys))))] = x
    return found


def from_optax(transformation: Any, *, takes_examples: bool = False) -> AbstractTransform:
    """Convert an optax transformation to a transform, for use in containers or on its own.

        optimizer = Masked(from_optax(optax.adamw(1e-3)), by_path({"*.weight": True, "*": False}))

    This converts the optimizer. To continue a run from the state of an optax optimizer with a modulax optimizer, use
    `modulax.checkpoint.state_from_optax`.

    Args:
        transformation: a pair of functions `init` and `update`, with or without extra arguments.
        takes_examples: whether `update` takes per-example gradients, with a leading batch axis.

    Returns:
        `FromOptax`; for a transformation of `modulax.compat`, the transform that it holds.

    Raises:
        ValueError: if `transformation` is not an optax transformation.
    """
    if isinstance(transformation, tuple) and isinstance(getattr(transformation, "transform", None), AbstractTransform):
        return transformation.transform  # pyright: ignore[reportAttributeAccessIssue]
    _check_pair(transformation)  # first, because Equinox would warn of the arrays in a modulax transform
    return FromOptax(transformation, takes_examples=takes_examples)


def to_optax(transform: AbstractTransform) -> Any:
    """Convert a transform to `optax.GradientTransformationExtraArgs`, for use in optax's containers.

        tx = optax.chain(optax.clip(1.0), to_optax(PolyakSGD(1.0)))
        updates, state = tx.update(grads, state, params, value=loss)

    Most optax containers accept a modulax transform without conversion, but don't pass extra arguments to it.
    Parameters that `optax.masked` leaves out are None for the transform. Requires optax.

    Args:
        transform: a modulax transform.

    Raises:
        ValueError: if `transform` is not a modulax transform.
    """
    if not isinstance(transform, AbstractTransform):
        raise ValueError(f"`to_optax` needs a modulax transform such as `AdamW(1e-3)`, got {transform!r}.")
    # The result is of a class of optax. Nothing else in the library below its edges needs optax.
    import optax

    def is_masked(x: Any) -> bool:
        return isinstance(x, optax.MaskedNode)

    def absent(tree: PyTree) -> PyTree:
        return jtu.tree_map(lambda x: None if is_masked(x) else x, tree, is_leaf=is_masked)

    def arrays(tree: PyTree) -> PyTree:
        """Python numbers become arrays: optax trains them."""
        return jtu.tree_map(lambda x: jnp.asarray(x) if type(x) in PYTHON_NUMBERS else x, absent(tree))

    def init(params: Params) -> State:
        return init_even_if_empty(transform, arrays(params))  # as optax's, which masks by absent leaves

    def update(updates: Updates, state: State, params: Params | None = None, **extra: Any) -> tuple[Updates, State]:
        if (run := _run.get()) is not None:
            run.append(transform)
        others = hyperparameters_among(transform, extra)  # for another transformation in a chain of optax
        extra = {name: absent(x) for name, x in extra.items() if name not in others}
        new, state = transform.update(arrays(updates), state, arrays(params), **extra)
        return jtu.tree_map(lambda u, n: u if is_masked(u) else n, updates, new, is_leaf=is_masked), state

    return optax.GradientTransformationExtraArgs(init, update)
