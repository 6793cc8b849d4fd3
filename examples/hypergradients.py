"""Learn hyperparameters by hypergradients: differentiate a validation loss through a complete training run.

An optimizer is a pytree of numbers, so `jax.grad` with respect to it returns an optimizer whose leaves are derivatives.
Here the peak learning rate of a schedule, the weight decay and `b1` of AdamW are learned by gradient descent on the
validation loss. They are parametrized to stay in range: two as logarithms, `b1` as a logit.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

import modulax as mx

STEPS = 100
Split = tuple[Float[Array, "n d"], Float[Array, " n"]]


class Logits(NamedTuple):
    """The learned hyperparameters, in unconstrained form."""

    peak: Array  # logarithm of the peak learning rate
    weight_decay: Array  # logarithm of the weight decay
    b1: Array  # logit of `b1`


def make_optimizer(x: Logits) -> mx.AdamW:
    schedule = mx.schedules.WarmupCosineDecay(0.0, jnp.exp(x.peak), warmup_steps=5, decay_steps=STEPS)
    return mx.AdamW(schedule, b1=jax.nn.sigmoid(x.b1), weight_decay=jnp.exp(x.weight_decay))


def loss(weights: Float[Array, " d"], split: Split) -> Float[Array, ""]:
    inputs, targets = split
    return jnp.mean((inputs @ weights - targets) ** 2)


def validation_loss(optimizer: mx.AdamW, train: Split, valid: Split) -> Float[Array, ""]:
    """The loss on validation data after training from zero weights."""

    def step(carry, _):
        weights, state = carry
        return optimizer.step(jax.grad(loss)(weights, train), state, weights), None

    weights = jnp.zeros(train[0].shape[1])
    (weights, _), _ = jax.lax.scan(step, (weights, optimizer.init(weights)), length=STEPS)
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

    @eqx.filter_jit
    def value_and_grad(x: Logits) -> tuple[Array, Logits]:
        return jax.value_and_grad(lambda x: validation_loss(make_optimizer(x), train, valid))(x)

    x = Logits(peak=jnp.log(0.02), weight_decay=jnp.log(0.1), b1=jnp.array(2.2))
    outer = mx.Adam(0.05)
    state = outer.init(x)
    print("\nLearned hyperparameters:\n")
    losses = []
    for i in range(201):
        value, grads = value_and_grad(x)
        losses.append(float(value))
        if i % 40 == 0:
            now = make_optimizer(x)
            numbers = f"peak={now.learning_rate.peak_value:.4f}  b1={now.b1:.3f}  weight_decay={now.weight_decay:.4f}"
            print(f"  {i:3d}  validation loss {value:.4f}  {numbers}")
        x, state = outer.step(grads, state, x)
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
