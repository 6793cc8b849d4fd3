"""A CNN with batch normalization on scikit-learn's digits, in Flax NNX."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from sklearn.datasets import load_digits

from modulax import compat as optax  # or: import optax

STEPS, BATCH = 100, 32


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 4, (3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.conv2 = nnx.Conv(4, 8, (3, 3), strides=2, rngs=rngs)
        self.linear = nnx.Linear(4 * 4 * 8, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = nnx.relu(self.norm(self.conv1(x)))
        x = nnx.relu(self.conv2(x))
        return self.linear(x.reshape(len(x), -1))


def loss_fn(model: CNN, images: Any, labels: Any) -> Any:
    logits = model(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits


@nnx.jit
def train_step(model: CNN, optimizer: Any, metrics: Any, images: Any, labels: Any) -> Any:
    (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, images, labels)
    metrics.update(loss=loss, logits=logits, labels=labels)
    optimizer.update(model, grads)
    return loss


def train() -> Any:
    """The parameters and statistics of the model, the losses, and the accuracy in the last 50 steps."""
    digits: Any = load_digits()
    images, labels = jnp.asarray(digits.images / 16, jnp.float32)[..., None], jnp.asarray(digits.target)

    model = CNN(nnx.Rngs(0))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=10, decay_steps=STEPS)
    tx = optax.adamw(schedule, b1=0.9, weight_decay=1e-3)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))

    losses = []
    for i in range(STEPS):
        chosen = jax.random.choice(jax.random.key(i), len(images), (BATCH,), replace=False)
        if i == STEPS // 2:
            metrics.reset()
        losses.append(train_step(model, optimizer, metrics, images[chosen], labels[chosen]))
    return nnx.state(model), jnp.stack(losses), metrics.compute()["accuracy"]


def main() -> Any:
    _, losses, accuracy = results = train()
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}, accuracy in the last 50 steps {accuracy:.3f}")
    assert accuracy > 0.8
    return results


if __name__ == "__main__":
    main()
