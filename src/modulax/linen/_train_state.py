"""Flax's `TrainState` with the optimizer as data."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import struct
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from flax.training import train_state

from .._plugin.messages import brief, format_state, listing, suggestion
from .._plugin.states import AbstractModule
from .._plugin.transforms import USUAL, optional_arguments, required_arguments
from ..authoring import AbstractTransform

_COMPUTED = ("step", "params", "opt_state")
_FIELDS_OF_FLAX = tuple(field.name for field in dataclasses.fields(train_state.TrainState))


class _WithArguments(NamedTuple):
    """An optimizer with extra arguments, which Flax's `apply_gradients` doesn't pass on."""

    tx: AbstractTransform
    extra: dict[str, Any]

    def update(self, updates: Any, state: Any, params: Any) -> Any:
        return self.tx.update(updates, state, params, **self.extra)


class TrainState(train_state.TrainState):
    """Flax Linen's `TrainState` with the optimizer as data: changed hyperparameters don't recompile the program.

        state = mx.linen.TrainState.create(apply_fn=model.apply, params=params, tx=mx.AdamW(1e-3))
        state = state.apply_gradients(grads=grads)
        state = state.replace(tx=state.tx.replace(learning_rate=1e-4))  # nothing is recompiled

    Hyperparameters are traced arrays: they can be changed, scanned over, vmapped and differentiated. They are put on
    the device when the state is made, so that a step transfers nothing from the host.

    Flax's own `TrainState` accepts modulax optimizers too, but holds them as constants of the program: a changed
    hyperparameter recompiles it.
    """

    step: Any = struct.field(pytree_node=True)  # an array of NumPy after `flax.serialization.from_bytes`
    params: Any = struct.field(pytree_node=True)
    tx: Any = struct.field(pytree_node=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(repr=False, **kwargs)  # the dataclass of a subclass would show every number

    def __repr__(self) -> str:
        return format_state(self, AbstractModule)

    @classmethod
    def create(cls, *, apply_fn: Any, params: Any, tx: Any, **kwargs: Any) -> Self:
        """Make the initial state.

        Args:
            apply_fn: usually `model.apply`.
            params: the parameters.
            tx: the optimizer.
            **kwargs: further fields of a subclass.
        """
        if not isinstance(tx, AbstractTransform):
            raise ValueError(
                f"`modulax.linen.TrainState.create(tx=...)` needs a transform of modulax, such as `mx.AdamW(1e-3)`, "
                f"got {brief(tx)}. For one of optax's, use `flax.training.train_state.TrainState`, or wrap it: "
                f"`mx.from_optax(...)`."
            )
        state = super().create(apply_fn=apply_fn, params=params, tx=jax.device_put(tx), **kwargs)
        return state.replace(step=jnp.asarray(state.step, jnp.int32))

    def apply_gradients(self, *, grads: Any, **kwargs: Any) -> Self:
        """Take one step.

            state = state.apply_gradients(grads=grads, value=loss, batch_stats=batch_stats)

        Args:
            grads: the gradients.
            **kwargs: new values of other fields of the state, and extra arguments for the step of the optimizer, such
                as `value=loss`. A field that is also the name of such an argument is both.

        Raises:
            TypeError: if an argument is neither a field nor anything that the optimizer could read, or if it is what
                the step computes: `step`, `params` or `opt_state`.
        """
        if not kwargs:
            return super().apply_gradients(grads=grads)
        fields = [field.name for field in dataclasses.fields(self)]
        known = {*USUAL, *required_arguments(self.tx)}
        extra = {name: x for name, x in kwargs.items() if name not in fields or name in known}
        if computed := [name for name in _COMPUTED if name in kwargs.keys() - known]:
            raise TypeError(
                f"`apply_gradients({computed[0]}=...)`: the step computes `step`, `params` and `opt_state`. Write "
                f"`state.apply_gradients(grads=grads).replace({computed[0]}=...)`."
            )
        replaced = {name: x for name, x in kwargs.items() if name in fields and name not in _COMPUTED}
        if extra.keys() - known:
            self._check_extra(extra, known, fields)
        tx = replaced.pop("tx", self.tx)
        given = self.replace(tx=_WithArguments(self.tx, extra))
        return super(TrainState, given).apply_gradients(grads=grads, **replaced).replace(tx=tx)

    def _check_extra(self, extra: Mapping[str, Any], known: set[str], fields: Sequence[str]) -> None:
        """Raise an error for an extra argument that nothing in the optimizer reads, which is probably a field."""
        named, takes_any = optional_arguments(self.tx, extra)
        own = [name for name in fields if name not in _FIELDS_OF_FLAX]
        for name in extra.keys() - known - named:
            # A function that takes any argument may read this one, unless it is all but a field of the state.
            if takes_any and not difflib.get_close_matches(name, own, cutoff=0.9):
                continue
            raise TypeError(
                f"`apply_gradients({name}=...)`: `{type(self).__name__}` has no field `{name}`, and nothing in the "
                f"optimizer reads an argument of this name.{suggestion(name, [*own, *sorted(known)])} The fields are "
                f"{listing(fields)}. For another one, declare it in a subclass: `class State("
                f"modulax.linen.TrainState)`, with `{name}: Any`."
            )

    @property
    def eval_params(self) -> Any:
        """The parameters to evaluate or deploy: the average if the optimizer keeps one, otherwise `params`."""
        params = self.params
        if isinstance(params, Mapping) and OVERWRITE_WITH_GRADIENT in params:  # which the optimizer doesn't see
            return {**params, "params": self.tx.eval_params(self.opt_state, params["params"])}
        return self.tx.eval_params(self.opt_state, params)

    def metrics(self) -> dict[str, Any]:
        """Return scalars for a log, by short names: the learning rate in force, measurements, counters."""
        return self.tx.metrics(self.opt_state)
