"""Learn hyperparameters by hypergradients: differentiate a validation loss through a complete training run.

An optimizer is a pytree of numbers, so `jax.grad` with respect to it returns an optimizer whose leaves are derivatives.
Here the peak learning rate of a schedule, the weight decay and `b1` of AdamW are learned by gradient descent on the
validation loss. `sweeps.hypergradient` keeps them in range: two are learned as logarithms, `b1` as a logit.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

import modulax as mx
from modulax import sweeps

STEPS = 100
Split = tuple[Float[Array, "n d"], Float[Array, " n"]]


def loss(weights: Float[Array, " d"], split: Split) -> Float[Array, ""]:
    inputs, targets = split
    return jnp.mean((inputs @ weights - targets) ** 2)


def validation_loss(optimizer: mx.AdamW, train: Split, valid: Split) -> Float[Array, ""]:
    """The loss on validation data after training from zero weights."""

    def step(carry, _):
        weights, state = carry
        return optimizer.step(jax.grad(loss)(weights, train), state, weights), None

    weights = jnp.zeros(train[0].shape[1])
    (weights, _), _ = sweeps.checkpointed_scan(step, (weights, optimizer.init(weights)), length=STEPS)
    return loss(weights, valid)


def make_data(key: PRNGKeyArray, n: int = 40, d: int = 30) -> tuple[Split, Split]:
    """Few noisy samples with many features, so that weight decay matters."""
    keys = jax.random.split(key, 3)
    truth = jnp.where(jnp.arange(d) < 5, 1.0, 0.0)
    inputs = jax.random.normal(keys[0], (2 * n, d))
    targets = inputs @ truth + jax.random.normal(keys[1], (2 * n,))
    return (inputs[:n], targets[:n]), (inputs[n:], targets[n:])


def main() -> None:
    train, valid = make_data(jax.random.key(0))

    optimizer = mx.AdamW(mx.schedules.WarmupCosineDecay(0.0, 0.02, 5, STEPS), weight_decay=0.1)
    gradient = eqx.filter_jit(jax.grad(validation_loss))(optimizer, train, valid)
    print("The gradient of the validation loss with respect to every hyperparameter:\n")
    for path, value in gradient.hyperparameters().items():
        print(f"  {path:27s} {float(value): .4e}")

    loss_and_grad = sweeps.hypergradient(validation_loss, optimizer, "peak_value", "weight_decay", "b1")
    values, outer = loss_and_grad.start, mx.Adam(0.05)
    state = outer.init(values)
    print("\nLearned hyperparameters:\n")
    losses = []
    for i in range(201):
        value, grads = loss_and_grad(values, train, valid)
        losses.append(float(value))
        if i % 40 == 0:
            now = loss_and_grad.optimizer(values)
            numbers = f"peak={now.learning_rate.peak_value:.4f}  b1={now.b1:.3f}  weight_decay={now.weight_decay:.4f}"
            print(f"  {i:3d}  validation loss {value:.4f}  {numbers}")
        values, state = outer.step(grads, state, values)
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
