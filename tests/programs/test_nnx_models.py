"""Flax NNX: a CNN with the stock `nnx.Optimizer`, and a VAE whose step runs under `nnx.cached_partial`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import modulax as mx
import modulax.nnx

from .comparison import assert_learns, assert_same


def stripes(rng: np.random.Generator, count: int) -> tuple[Any, Any]:
    """Noisy pictures of 8 × 8 pixels with horizontal, vertical or diagonal stripes, and which of the three it is."""
    row, column = np.mgrid[:8, :8]
    patterns = np.stack([row % 2, column % 2, (row + column) % 4 < 2]).astype(np.float32)
    labels = rng.integers(3, size=count)
    noise = rng.normal(size=(count, 8, 8)).astype(np.float32)
    return (patterns[labels] + 0.3 * noise)[..., None], labels


# --- A CNN ---------------------------------------------------------------------------------------


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.convolution = nnx.Conv(1, 4, (3, 3), use_bias=False, rngs=rngs)  # the norm would cancel a bias
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(64, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = nnx.avg_pool(nnx.relu(self.norm(self.convolution(x))), (2, 2), (2, 2))
        return self.out(self.dropout(x.reshape(len(x), -1)))


def train_cnn(library: Any, tx: Any) -> Any:
    """The parameters, the statistics of the batch norm and the losses; accuracy is measured at the end."""
    model = CNN(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))

    def loss_fn(model: CNN, images: Any, labels: Any) -> Any:
        logits = model(images)
        return library.losses.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    @nnx.jit
    def train_step(model: CNN, optimizer: Any, metrics: Any, images: Any, labels: Any) -> Any:
        (loss, logits), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model, images, labels)
        metrics.update(loss=loss, logits=logits, labels=labels)
        optimizer.update(model, grads)
        return loss

    rng = np.random.default_rng(0)
    losses = [train_step(model, optimizer, metrics, *stripes(rng, 16)) for _ in range(15)]
    computed = metrics.compute()
    return nnx.state(model, (nnx.Param, nnx.BatchStat)), jnp.stack(losses), computed["loss"], computed["accuracy"]


def test_cnn_with_the_stock_optimizer():
    theirs = train_cnn(optax, optax.adamw(1e-2, 0.9))
    ours = train_cnn(mx, mx.AdamW(1e-2, 0.9))
    assert_same(ours, theirs, 1e-4)
    assert_learns(theirs[1])


# --- A VAE ---------------------------------------------------------------------------------------


class VAE(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.encoder = nnx.Linear(64, 8, rngs=rngs)
        self.mean = nnx.Linear(8, 2, rngs=rngs)
        self.log_std = nnx.Linear(8, 2, rngs=rngs)
        self.decoder = nnx.Linear(2, 64, rngs=rngs)
        self.rngs = rngs

    def __call__(self, x: Any) -> Any:
        hidden = nnx.relu(self.encoder(x))
        mean, log_std = self.mean(hidden), self.log_std(hidden)
        code = mean + jnp.exp(log_std) * jax.random.normal(self.rngs.noise(), mean.shape)
        return self.decoder(code), mean, log_std


def train_vae(library: Any, make_optimizer: Any) -> Any:
    model = VAE(nnx.Rngs(0, noise=1))
    optimizer = make_optimizer(model)

    def loss_fn(model: VAE, images: Any) -> Any:
        logits, mean, log_std = model(images)
        divergence = 0.5 * jnp.mean(mean**2 + jnp.exp(2 * log_std) - 2 * log_std - 1)
        return library.losses.sigmoid_binary_cross_entropy(logits, images).mean() + 0.1 * divergence

    @nnx.jit
    def train_step(model: VAE, optimizer: Any, images: Any) -> Any:
        loss, grads = nnx.value_and_grad(loss_fn)(model, images)
        optimizer.update(model, grads)
        return loss

    step = nnx.cached_partial(train_step, model, optimizer)
    rng = np.random.default_rng(0)
    losses = [step((stripes(rng, 16)[0] > 0.5).reshape(16, 64).astype(np.float32)) for _ in range(30)]
    return nnx.state(model, nnx.Param), jnp.stack(losses)


def test_vae_under_cached_partial():
    theirs = train_vae(optax, lambda model: nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param))
    ours = train_vae(mx, lambda model: modulax.nnx.Optimizer(model, mx.Adam(1e-2), wrt=nnx.Param))
    assert_same(ours, theirs, 1e-4)
    assert_learns(theirs[1])
