"""The learning rate of SGD is learned: a validation loss is differentiated through `inject_hyperparams`."""

from typing import Any

import jax
import jax.numpy as jnp

from modulax import compat as optax  # or: import optax

META_STEPS, INNER_STEPS = 100, 3

inner_tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1, momentum=0.5)
outer_tx = optax.adam(0.05)
WEIGHTS = jnp.asarray([1.0, -2.0, 0.5])


def mean_squared_error(params: Any, batch: Any) -> Any:
    x, y = batch
    return optax.squared_error(x @ params["weights"] + params["bias"], y).mean()


def batch(key: Any) -> Any:
    x_key, y_key = jax.random.split(key)
    x = jax.random.normal(x_key, (16, 3))
    return x, x @ WEIGHTS + 0.3 + 0.1 * jax.random.normal(y_key, (16,))


def validation_loss(logit: Any, params: Any, opt_state: Any, keys: Any) -> Any:
    """The loss on other data after a few steps with the learning rate `sigmoid(logit)`."""
    opt_state.hyperparams["learning_rate"] = jax.nn.sigmoid(logit)
    for key in keys[:-1]:
        grads = jax.grad(mean_squared_error)(params, batch(key))
        updates, opt_state = inner_tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    return mean_squared_error(params, batch(keys[-1]))


@jax.jit
def meta_step(logit: Any, outer_state: Any, key: Any) -> Any:
    params = {"weights": jnp.zeros(3), "bias": jnp.zeros(())}
    opt_state = inner_tx.init(params)
    keys = jax.random.split(key, INNER_STEPS + 1)
    loss, grad = jax.value_and_grad(validation_loss)(logit, params, opt_state, keys)
    update, outer_state = outer_tx.update(grad, outer_state, logit)
    return optax.apply_updates(logit, update), outer_state, loss


def train() -> Any:
    """The learning rate after each step, and the validation losses."""
    logit = jnp.asarray(-4.0)
    outer_state, rates, losses = outer_tx.init(logit), [], []
    for i in range(META_STEPS):
        logit, outer_state, loss = meta_step(logit, outer_state, jax.random.key(i))
        rates.append(jax.nn.sigmoid(logit))
        losses.append(loss)
    return jnp.stack(rates), jnp.stack(losses)


def main() -> Any:
    rates, losses = results = train()
    print(f"learning rate {rates[0]:.3f} → {rates[-1]:.3f}, validation loss {losses[0]:.3f} → {losses[-1]:.3f}")
    assert losses[-10:].mean() < 0.3 * losses[:10].mean()
    return results


if __name__ == "__main__":
    main()
