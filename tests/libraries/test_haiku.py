"""An LSTM in Haiku that predicts a sine: a plain loop with `init`, `update` and `apply_updates`."""

# pyright: reportMissingImports=false

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

import modulax as mx

from ..programs.comparison import assert_learns, assert_same


def batches(count: int) -> Any:
    """Sines with random phases, as time × batch × 1."""
    phases = np.random.default_rng(0).uniform(0, 6, size=(count, 1, 8, 1))
    return np.sin(phases + 0.5 * np.arange(13)[:, None, None]).astype(np.float32)


@hk.transform
def forward(x: Any) -> Any:
    core = hk.LSTM(8)
    hidden, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
    return hk.BatchApply(hk.Linear(1))(hidden)


def train(library: Any, tx: Any) -> Any:
    model = hk.without_apply_rng(forward)
    data = batches(40)
    params = model.init(jax.random.key(0), data[0])

    def loss_fn(params: Any, x: Any) -> Any:
        return library.losses.l2_loss(model.apply(params, x[:-1]), x[1:]).mean()

    @jax.jit
    def step(params: Any, state: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, x)
        updates, state = tx.update(grads, state, params)
        return library.apply_updates(params, updates), state, loss

    losses = []
    state = tx.init(params)
    for x in data:
        params, state, loss = step(params, state, x)
        losses.append(loss)
    return params, jnp.stack(losses)


def test_lstm():
    theirs = train(optax, optax.adam(1e-2))
    assert_same(train(mx, mx.Adam(1e-2)), theirs, 1e-4)
    assert_learns(theirs[1])
