"""The `TrainState` of Flax with the optimizer as data."""

from typing import Any

from flax import struct
from flax.training import train_state


class TrainState(train_state.TrainState):
    """Flax's `TrainState` with the optimizer as data: its numbers are traced, changed, scanned over and swept.

        state = mx.linen.TrainState.create(apply_fn=model.apply, params=params, tx=mx.AdamW(1e-3))
        state = state.apply_gradients(grads=grads)
        state = state.replace(tx=state.tx.replace(learning_rate=1e-4))  # nothing is compiled again

    Flax's own takes optimizers of modulax as well, and then holds them as a constant of the program: another number
    is another program.
    """

    params: Any = struct.field(pytree_node=True)
    tx: Any = struct.field(pytree_node=True)

    @property
    def eval_params(self) -> Any:
        """The parameters to evaluate and to ship: an average where the optimizer keeps one, else the same ones."""
        return self.tx.eval_params(self.opt_state, self.params)
