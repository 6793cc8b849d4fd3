"""One of optax's transformations as one of ours, and one of ours as one of optax's."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.hyperparameters import format_value
from .._protocol.transform import AbstractTransform
from .._support.keys import is_key_data
from .._support.module import AbstractState, nested
from .._support.types import Params, State, Updates
from ..tree._math import strong
from ..tree._paths import JoinedNames, join, key_names


class FromOptaxState(AbstractState):
    """The state of `FromOptax`: that of optax's transformation."""

    inner_state: State = nested()


class FromOptax(AbstractTransform):
    """One of optax's transformations, to stand wherever one of ours may; made by `from_optax`.

        Chain(ClipByGlobalNorm(1.0), from_optax(optax.contrib.momo(1.0)))

    Extra arguments reach it if it takes them. Updates leave with the dtype they came with, and the state keeps its
    dtypes, whatever optax makes of them. What optax computes with is part of the program: a number in its closures
    cannot be replaced, swept or differentiated, and another one compiles anew. Numbers that
    `optax.inject_hyperparams` keeps in the state are listed by `hyperparameters(state)`, and are changed there.

    Args:
        transformation: the pair of functions `init` and `update`.
        hyperparams: the numbers that optax keeps in its state. `at(state)` writes them here, to be listed; they have
            no effect.
        takes_examples: whether it takes the updates of each example by itself, on a leading axis, as
            `optax.contrib.differentially_private_aggregate` does.
    """

    transformation: Any = eqx.field(static=True)
    hyperparams: dict[str, Any] | None = None
    takes_examples: bool = eqx.field(static=True, default=False, kw_only=True)

    @property
    def example_axes(self) -> tuple[int, ...]:
        return (0,) if self.takes_examples else ()

    def check(self) -> None:
        _check_pair(self.transformation)

    def init(self, params: Params) -> FromOptaxState:
        """The state that optax makes, its arrays copied, so that it shares none with the parameters."""
        with _settings_of_optax():
            return FromOptaxState(jtu.tree_map(lambda x: strong(jnp.array(x)), self.transformation.init(params)))

    def update(
        self, updates: Updates, state: FromOptaxState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, FromOptaxState]:
        """What optax makes of the updates and of its state."""
        with _settings_of_optax():
            new, inner_state = self.transformation.update(
                updates, state.inner_state, params, **(extra if _takes_extra(self.transformation) else {})
            )
            return jtu.tree_map(_in_dtype_of, new, updates), FromOptaxState(_as_before(inner_state, state.inner_state))

    def at(self, state: FromOptaxState) -> "FromOptax":
        """This transform with the numbers that `optax.inject_hyperparams` keeps in the state."""
        return FromOptax(self.transformation, _injected(state.inner_state) or None, takes_examples=self.takes_examples)

    def __repr__(self) -> str:
        # The function that made the pair: optax's transformations have no other name.
        update = self.transformation.update
        name = getattr(update, "__qualname__", type(self.transformation).__name__).partition(".")[0]
        shown = "" if self.hyperparams is None else f", hyperparams={format_value(self.hyperparams)}"
        return f"FromOptax({name}{shown})"


def _check_pair(x: Any) -> None:
    is_ours = isinstance(x, AbstractTransform)
    if is_ours or not all(callable(getattr(x, name, None)) for name in ("init", "update")):
        remedy = "It is one of modulax: take it as it is." if is_ours else "Write `from_optax(optax.adamw(1e-3))`."
        raise ValueError(
            f"`from_optax` needs one of optax's transformations, with `init` and `update`, got {x!r}. {remedy}"
        )


@contextlib.contextmanager
def _settings_of_optax() -> Iterator[None]:
    """JAX's own rules of promotion, on which optax relies, where a program sets strict ones."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _takes_extra(transformation: Any) -> bool:
    """Whether `update` takes extra arguments, as optax declares it or as its signature says."""
    if "GradientTransformationExtraArgs" in {cls.__name__ for cls in type(transformation).__mro__}:
        return True
    parameters = inspect.signature(transformation.update).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _in_dtype_of(new: Any, old: Any) -> Any:
    new = jnp.asarray(new)
    is_complex = [jnp.issubdtype(x.dtype, jnp.complexfloating) for x in (new, old)]
    is_inexact = jnp.issubdtype(new.dtype, jnp.inexact) and jnp.issubdtype(old.dtype, jnp.inexact)
    return strong(new.astype(old.dtype) if is_inexact and is_complex[0] == is_complex[1] else new)


def _as_before(new: PyTree, old: PyTree) -> PyTree:
    """The state in the dtypes that it had; a number that a caller put there has none."""
    if jtu.tree_structure(new) != jtu.tree_structure(old):
        return jtu.tree_map(lambda x: strong(jnp.asarray(x)), new)
    return jtu.tree_map(lambda x, y: _in_dtype_of(x, jnp.asarray(y)), new, old)


def _injected(state: PyTree) -> dict[str, Any]:
    """The numbers in fields called `hyperparams`, by the path to the field and their own name."""
    found = {}
    for path, x in jtu.tree_leaves_with_path(state):
        is_field = [getattr(key, "name", None) == "hyperparams" for key in path]
        if any(is_field[:-1]) and jnp.ndim(x) == 0 and not is_key_data(x):
            keys = [key for key, is_it in zip(path, is_field, strict=True) if not is_it]
            found[JoinedNames(join(key_names(tuple(keys))))] = x
    return found


def from_optax(transformation: Any, *, takes_examples: bool = False) -> FromOptax:
    """One of optax's transformations as a transform, to stand in our containers and wherever one of ours may.

        optimizer = Masked(from_optax(optax.adamw(1e-3)), by_path({"*.weight": True, "*": False}))

    What is converted is the optimizer. A state that optax has made goes on in an optimizer of ours by
    `modulax.checkpoint.state_from_optax`.

    Args:
        transformation: a pair of functions `init` and `update`, with or without extra arguments.
        takes_examples: whether it takes the updates of each example by itself, on a leading axis.
    """
    _check_pair(transformation)  # before Equinox warns of the numbers in one of ours
    return FromOptax(transformation, takes_examples=takes_examples)


def with_extra_args_support(tx: Any) -> AbstractTransform:
    """A transform that ignores extra arguments that it does not know: ours as it is, optax's by `from_optax`.

    Args:
        tx: a transform, or one of optax's transformations.
    """
    return tx if isinstance(tx, AbstractTransform) else from_optax(tx)


def to_optax(transform: AbstractTransform) -> Any:
    """A transform as `optax.GradientTransformationExtraArgs`, to stand in optax's containers.

        tx = optax.chain(optax.clip(1.0), to_optax(PolyakSGD(1.0)))
        updates, state = tx.update(grads, state, params, value=loss)

    A transform stands in most of them as it is too, but then optax does not hand it the extra arguments. Where
    `optax.masked` leaves a parameter out, it is absent (None) for the transform. Needs optax.

    Args:
        transform: a transform of modulax.
    """
    if not isinstance(transform, AbstractTransform):
        raise ValueError(f"`to_optax` needs a transform of modulax, such as `AdamW(1e-3)`, got {transform!r}.")
    import optax

    def is_masked(x: Any) -> bool:
        return isinstance(x, optax.MaskedNode)

    def absent(tree: PyTree) -> PyTree:
        return jtu.tree_map(lambda x: None if is_masked(x) else x, tree, is_leaf=is_masked)

    def init(params: Params) -> State:
        return transform.init(absent(params))

    def update(updates: Updates, state: State, params: Params | None = None, **extra: Any) -> tuple[Updates, State]:
        new, state = transform.update(absent(updates), state, absent(params), **absent(extra))
        return jtu.tree_map(lambda u, n: u if is_masked(u) else n, updates, new, is_leaf=is_masked), state

    return optax.GradientTransformationExtraArgs(init, update)
