"""Sharpness-aware minimization (SAM) of an MLP on scikit-learn's digits: two gradients per step."""

from typing import Any

import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

from modulax import compat as optax  # or: import optax

STEPS, BATCH = 100, 64

adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
tx = optax.contrib.sam(optax.sgd(0.1, momentum=0.9), adversary, sync_period=2, opaque_mode=True)


def loss_fn(params: Any, images: Any, labels: Any) -> Any:
    hidden = jnp.tanh(images @ params["w1"] + params["b1"])
    logits = hidden @ params["w2"] + params["b2"]
    return optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(labels, 10), 0.1)).mean()


@jax.jit
def train_step(params: Any, opt_state: Any, images: Any, labels: Any) -> Any:
    def grad_fn(params: Any, _: Any) -> Any:
        return jax.grad(loss_fn)(params, images, labels)

    loss, grads = jax.value_and_grad(loss_fn)(params, images, labels)
    updates, opt_state = tx.update(grads, opt_state, params, grad_fn=grad_fn)
    return optax.apply_updates(params, updates), opt_state, loss


def train() -> Any:
    """The parameters and the losses."""
    digits: Any = load_digits()
    images, labels = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
    keys = jax.random.split(jax.random.key(0))
    params = {
        "w1": jax.random.normal(keys[0], (64, 32)) / 8,
        "b1": jnp.zeros(32),
        "w2": jax.random.normal(keys[1], (32, 10)) / 6,
        "b2": jnp.zeros(10),
    }
    opt_state, losses = tx.init(params), []
    for i in range(STEPS):
        chosen = jax.random.choice(jax.random.key(i), len(images), (BATCH,), replace=False)
        params, opt_state, loss = train_step(params, opt_state, images[chosen], labels[chosen])
        losses.append(loss)
    return params, jnp.stack(losses)


def main() -> Any:
    _, losses = results = train()
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}")
    assert losses[-1] < 0.6 * losses[0]
    return results


if __name__ == "__main__":
    main()
