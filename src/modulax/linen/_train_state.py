"""Flax's `TrainState` with the optimizer as data."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import struct
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from flax.training import train_state

from .._protocol.transform import AbstractTransform, everything_in, extra_arguments
from .._support.checks import brief


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

        Args:
            grads: the gradients.
            **kwargs: extra arguments that the optimizer needs, such as `value=loss`, and new values of other fields.
        """
        if not kwargs:
            return super().apply_gradients(grads=grads)
        needed = {name for part in everything_in(self.tx) for name in extra_arguments(part)}
        extra = {name: kwargs.pop(name) for name in needed & kwargs.keys()}
        given = self.replace(tx=_WithArguments(self.tx, extra))
        return super(TrainState, given).apply_gradients(grads=grads, **kwargs).replace(tx=self.tx)

    @property
    def eval_params(self) -> Any:
        """The parameters to evaluate or deploy: the average if the optimizer keeps one, otherwise `params`."""
        params = self.params
        if isinstance(params, Mapping) and OVERWRITE_WITH_GRADIENT in params:  # which the optimizer doesn't see
            return {**params, "params": self.tx.eval_params(self.opt_state, params["params"])}
        return self.tx.eval_params(self.opt_state, params)

    def metrics(self) -> dict[str, Any]:
        """Return what a log wants, by short names: the learning rate in force, measurements, counters."""
        return self.tx.metrics(self.opt_state)
