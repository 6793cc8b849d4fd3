"""`MultiSteps` with the arguments and the methods of optax's class."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import MultiSteps as _MultiSteps
from ._transformations import GradientTransformationExtraArgs, native, transformation


class MultiSteps:
    """Gradient accumulation, as `optax.MultiSteps`; `gradient_transformation()` returns the transform of modulax."""

    def __init__(
        self,
        opt: Any,
        every_k_schedule: int | Callable[[Any], Any],
        use_grad_mean: bool = True,
        should_skip_update_fn: Any = None,
        accumulator_dtype: Any = jnp.float32,
    ):
        transform = _MultiSteps(native(opt), every_k_schedule, use_grad_mean, should_skip_update_fn, accumulator_dtype)
        self._transformation = transformation(transform)
        # The functions themselves, unless a subclass has its own methods.
        for name in ("init", "update"):
            if getattr(type(self), name) is getattr(MultiSteps, name):
                setattr(self, name, getattr(self._transformation, name))

    def init(self, params: Any) -> Any:
        """Return the initial state."""
        return self._transformation.init(params)

    def update(self, updates: Any, state: Any, params: Any = None, **extra_args: Any) -> tuple[Any, Any]:
        """Accumulate the gradient, and take a step after every k of them."""
        return self._transformation.update(updates, state, params, **extra_args)

    @property
    def inner_opt(self) -> Any:
        """The transformation that takes a step for every k gradients."""
        return transformation(self._transformation.transform.inner)

    def has_updated(self, state: Any) -> jax.Array:
        """Whether the last call took a step."""
        return jnp.logical_and(state.mini_step == 0, state.gradient_step > 0)

    def gradient_transformation(self) -> Any:
        """Return the transformation."""
        return GradientTransformationExtraArgs(self.init, self.update)
