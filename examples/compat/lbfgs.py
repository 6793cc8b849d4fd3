"""Logistic regression on scikit-learn's digits by L-BFGS with a zoom line search, in a `lax.while_loop`."""

from typing import Any

import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

from modulax import compat as optax  # or: import optax

STEPS, TOLERANCE = 100, 1e-9  # so small that all steps run in float32


def minimize(function: Any, params: Any, tx: Any) -> Any:
    """The parameters and the state after at most 100 iterations, or when the gradient is small."""
    value_and_grad = optax.value_and_grad_from_state(function)

    def iterate(carry: Any) -> Any:
        params, state, values = carry
        value, grad = value_and_grad(params, state=state)
        values = values.at[optax.tree.get(state, "count")].set(value)
        updates, state = tx.update(grad, state, params, value=value, grad=grad, value_fn=function)
        return optax.apply_updates(params, updates), state, values

    def goes_on(carry: Any) -> Any:
        _, state, _ = carry
        count, grad = optax.tree.get(state, "count"), optax.tree.get(state, "grad")
        return (count == 0) | ((count < STEPS) & (optax.tree.norm(grad) >= TOLERANCE))

    return jax.lax.while_loop(goes_on, iterate, (params, tx.init(params), jnp.zeros(STEPS)))


def train() -> Any:
    """The parameters and the losses."""
    digits: Any = load_digits()
    images, labels = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)

    def loss_fn(params: Any) -> Any:
        logits = images @ params["weights"] + params["bias"]
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss + 0.05 * optax.tree.norm(params["weights"], squared=True)

    params = {"weights": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}
    params, _, losses = jax.jit(lambda params: minimize(loss_fn, params, optax.lbfgs()))(params)
    return params, losses


def main() -> Any:
    _, losses = results = train()
    print(f"loss {losses[0]:.4f} → {losses[-1]:.4f}")
    assert 0 < losses[-1] < 0.8 * losses[0]
    return results


if __name__ == "__main__":
    main()
