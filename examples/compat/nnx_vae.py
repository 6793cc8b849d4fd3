"""A variational autoencoder of scikit-learn's digits, in Flax NNX."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from sklearn.datasets import load_digits

from modulax import compat as optax  # or: import optax

STEPS, BATCH = 100, 32


class Encoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.mean = nnx.Linear(32, 4, rngs=rngs)
        self.log_std = nnx.Linear(32, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = jax.nn.gelu(self.hidden(x))
        return self.mean(x), self.log_std(x)


class VAE(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.encoder = Encoder(rngs)
        self.decoder = nnx.Sequential(nnx.Linear(4, 32, rngs=rngs), jax.nn.gelu, nnx.Linear(32, 64, rngs=rngs))
        self.rngs = rngs

    def __call__(self, x: Any) -> Any:
        mean, log_std = self.encoder(x)
        code = mean + jnp.exp(log_std) * jax.random.normal(self.rngs.noise(), mean.shape)
        return self.decoder(code), mean, log_std


def negative_elbo(model: VAE, images: Any) -> Any:
    logits, mean, log_std = model(images)
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, images).sum(-1)
    divergence = 0.5 * (mean**2 + jnp.exp(2 * log_std) - 2 * log_std - 1).sum(-1)
    return (reconstruction + divergence).mean()


@nnx.jit
def train_step(model: VAE, optimizer: Any, images: Any) -> Any:
    loss, grads = nnx.value_and_grad(negative_elbo)(model, images)
    optimizer.update(model, grads)
    return loss


def train() -> Any:
    """The parameters and the losses."""
    digits: Any = load_digits()
    images = jnp.asarray(digits.data / 16, jnp.float32)
    model = VAE(nnx.Rngs(0, noise=1))
    tx = optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(1e-2, momentum=0.9, nesterov=True))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    losses = []
    for i in range(STEPS):
        chosen = jax.random.choice(jax.random.key(i), len(images), (BATCH,), replace=False)
        losses.append(train_step(model, optimizer, images[chosen]))
    return nnx.state(model, nnx.Param), jnp.stack(losses)


def main() -> Any:
    _, losses = results = train()
    print(f"negative ELBO {losses[0]:.2f} → {losses[-1]:.2f}")
    assert losses[-1] < 0.8 * losses[0]
    return results


if __name__ == "__main__":
    main()
