"""An LSTM in Linen, from sequence to sequence, with `modulax.linen.TrainState`; PPO uses Flax's own with ours."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

import modulax as mx
import modulax.linen

from .comparison import assert_learns, assert_same

DIGITS, LENGTH = 4, 5


class Seq2Seq(nn.Module):
    """Reads a sequence and writes another; the decoder is given what it should have written so far."""

    @nn.compact
    def __call__(self, source: Any, target: Any) -> Any:
        carry, _ = nn.RNN(nn.LSTMCell(12), return_carry=True)(source)
        shifted = jnp.pad(target, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return nn.Dense(DIGITS)(nn.RNN(nn.LSTMCell(12))(shifted, initial_carry=carry))


def train(library: Any, train_state_class: Any, tx: Any) -> Any:
    """The parameters and losses of training to write sequences backwards, under a scan."""
    model = Seq2Seq()
    digits = np.random.default_rng(0).integers(DIGITS, size=(20, 8, LENGTH))
    batches = jax.nn.one_hot(digits, DIGITS)
    params = model.init(jax.random.key(0), batches[0], batches[0])
    state = train_state_class.create(apply_fn=model.apply, params=params, tx=tx)

    def step(state: Any, source: Any) -> Any:
        target = source[:, ::-1]

        def loss_fn(params: Any) -> Any:
            return library.losses.softmax_cross_entropy(state.apply_fn(params, source, target), target).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    state, losses = jax.jit(lambda state: jax.lax.scan(step, state, batches))(state)
    return state.params, losses


def test_seq2seq():
    theirs = train(optax, train_state.TrainState, optax.adam(3e-2))
    assert_same(train(mx, modulax.linen.TrainState, mx.Adam(3e-2)), theirs, 1e-4)
    assert_learns(theirs[1])
