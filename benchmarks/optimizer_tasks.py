"""Four small trainings for `optimizers.py`: a CNN, a GPT, an MLP on a table, and an autoencoder.

Each is a function of the number of steps, which returns `train(optimizer, key)` for `sweeps.compare`. With `every`, its
losses are those after every so many steps. The data are split once; the key draws the initial weights and the batches.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray
from sklearn.datasets import load_digits, make_friedman1
from sklearn.model_selection import train_test_split

import modulax as mx

Train = Callable[[Any, PRNGKeyArray], dict[str, Array]]
# Modules with long docstrings, for the characters of the GPT.
# fmt: off
MODULES = (
    "argparse", "asyncio.locks", "bisect", "calendar", "collections", "concurrent.futures.thread", "contextlib",
    "copy", "csv", "ctypes", "dataclasses", "datetime", "decimal", "difflib", "dis", "doctest", "email.message",
    "fractions", "functools", "gettext", "heapq", "inspect", "ipaddress", "itertools", "json", "locale",
    "logging", "mailbox", "math", "multiprocessing.pool", "optparse", "os", "pathlib", "pickletools", "random",
    "re", "sched", "shutil", "smtplib", "socket", "statistics", "string", "subprocess", "tarfile", "tempfile",
    "textwrap", "threading", "tkinter.font", "turtle", "typing", "unittest.case", "unittest.mock",
    "urllib.request", "uuid", "warnings", "weakref", "zipfile",
)
# fmt: on


class Task(NamedTuple):
    """A training: what it trains, how, and for how long."""

    title: str
    params: Callable[[], Any]
    train: Callable[..., Train]
    steps: tuple[int, int]


class Split(NamedTuple):
    """Inputs and targets to train on, to choose by, and to report."""

    train: tuple[Array, Array]
    valid: tuple[Array, Array]
    test: tuple[Array, Array]


def split(x: np.ndarray, y: np.ndarray, stratify: np.ndarray | None = None) -> Split:
    """Three fifths for the training, and one each to choose by and to report."""
    indices = np.arange(len(x))
    rest, test = train_test_split(indices, test_size=0.2, random_state=0, stratify=stratify)
    of_rest = None if stratify is None else stratify[rest]
    train, valid = train_test_split(rest, test_size=0.25, random_state=0, stratify=of_rest)
    return Split(*((jnp.asarray(x[rows]), jnp.asarray(y[rows])) for rows in (train, valid, test)))


def trained(
    optimizer: Any,
    params: Any,
    rest: Any,
    loss_fn: Callable[[Any, Any, PRNGKeyArray], tuple[Array, Any]],
    losses: Callable[[Any, Any], dict[str, Array]],
    key: PRNGKeyArray,
    steps: int,
    every: int | None,
) -> dict[str, Array]:
    """The losses after the training, or after every so many steps.

    Args:
        optimizer: the optimizer.
        params: the initial parameters.
        rest: what changes beside them, such as batch statistics.
        loss_fn: the loss of a batch, and the new `rest`, of the parameters, the old one and a key.
        losses: the losses to return, of the parameters for evaluation and `rest`.
        key: of the batches.
        steps: number of steps.
        every: number of steps between two evaluations; by default one at the end.
    """

    def step(carry: Any, key: PRNGKeyArray) -> tuple[Any, None]:
        params, rest, state = carry
        grads, rest = jax.grad(loss_fn, has_aux=True)(params, rest, key)
        params, state = optimizer.step(grads, state, params)
        return (params, rest, state), None

    def evaluated(carry: Any, keys: PRNGKeyArray) -> tuple[Any, dict[str, Array]]:
        params, rest, state = carry = jax.lax.scan(step, carry, keys)[0]
        return carry, losses(optimizer.eval_params(state, params), rest)

    carry, keys = (params, rest, optimizer.init(params)), jax.random.split(key, steps)
    if every is None:
        return evaluated(carry, keys)[1]
    return jax.lax.scan(evaluated, carry, keys.reshape(-1, every, *keys.shape[1:]))[1]


def rows_of(pair: tuple[Array, Array], key: PRNGKeyArray, size: int) -> tuple[Array, Array]:
    """A random batch."""
    rows = jax.random.randint(key, (size,), 0, len(pair[0]))
    return pair[0][rows], pair[1][rows]


def cross_entropy(logits: Array, labels: Array) -> Array:
    return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(logits, labels))


class CNN(nnx.Module):
    """Two convolutions with batch normalization."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.first_norm = nnx.BatchNorm(8, rngs=rngs)
        self.second = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.second_norm = nnx.BatchNorm(16, rngs=rngs)
        self.head = nnx.Linear(16 * 4 * 4, 10, rngs=rngs)

    def __call__(self, x: Float[Array, "n 8 8 1"]) -> Float[Array, "n 10"]:
        x = nnx.relu(self.first_norm(self.first(x)))
        x = nnx.relu(self.second_norm(self.second(x)))
        return self.head(x.reshape(len(x), -1))


def digits() -> Split:
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    return split((images / 16).astype(np.float32), labels, stratify=labels)


def cnn(steps: int, every: int | None = None) -> Train:
    data = Split(*((x.reshape(-1, 8, 8, 1), y) for x, y in digits()))

    def train(optimizer: Any, key: PRNGKeyArray) -> dict[str, Array]:
        of_model, of_batches = jax.random.split(key)
        graph, params, rest = nnx.split(CNN(nnx.Rngs(of_model)), nnx.Param, ...)

        def loss_fn(params: Any, rest: Any, key: PRNGKeyArray) -> tuple[Array, Any]:
            x, y = rows_of(data.train, key, 32)
            model = nnx.merge(graph, params, rest, copy=True)
            loss = cross_entropy(model(x), y)
            return loss, nnx.split(model, nnx.Param, ...)[2]

        def losses(params: Any, rest: Any) -> dict[str, Array]:
            model = nnx.merge(graph, params, rest, copy=True)
            model.eval()
            return {
                "valid": cross_entropy(model(data.valid[0]), data.valid[1]),
                "test": cross_entropy(model(data.test[0]), data.test[1]),
            }

        return trained(optimizer, params, rest, loss_fn, losses, of_batches, steps, every)

    return train


def docstrings() -> Int[np.ndarray, " n"]:
    """The docstrings of modules of the standard library, with those of their classes and functions, in ASCII."""
    found: dict[str, None] = {}
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:  # a Python without Tk
            continue
        parts = [module, *(x for x in vars(module).values() if inspect.isclass(x) or inspect.isfunction(x))]
        for part in parts:
            if getattr(part, "__module__", name) == name:
                found[inspect.getdoc(part) or ""] = None
    return np.frombuffer("\n\n".join(found).encode("ascii", "ignore"), np.uint8).astype(np.int32)


WIDTH, HEADS, LENGTH = 32, 2, 32


class Block(eqx.Module):
    """Attention and an MLP, each after a normalization."""

    norms: list[eqx.nn.RMSNorm]
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.norms = [eqx.nn.RMSNorm(WIDTH), eqx.nn.RMSNorm(WIDTH)]
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, use_bias=False, key=keys[1])
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, use_bias=False, key=keys[2])

    def __call__(self, x: Float[Array, "time width"]) -> Float[Array, "time width"]:
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y, mask=jnp.tri(len(x), dtype=bool))
        return x + jax.vmap(lambda y: self.down(jax.nn.gelu(self.up(self.norms[1](y)))))(x)


class GPT(eqx.Module):
    """Two blocks over characters."""

    embedding: eqx.nn.Embedding
    positions: Float[Array, "time width"]
    blocks: list[Block]
    norm: eqx.nn.RMSNorm
    head: eqx.nn.Linear

    def __init__(self, key: PRNGKeyArray):
        keys = jax.random.split(key, 5)
        self.embedding = eqx.nn.Embedding(weight=0.02 * jax.random.normal(keys[0], (128, WIDTH)))
        self.positions = 0.02 * jax.random.normal(keys[1], (LENGTH, WIDTH))
        self.blocks = [Block(k) for k in keys[2:4]]
        self.norm = eqx.nn.RMSNorm(WIDTH)
        self.head = eqx.nn.Linear(WIDTH, 128, use_bias=False, key=keys[4])

    def __call__(self, tokens: Int[Array, " time"]) -> Float[Array, "time token"]:
        x = jax.vmap(self.embedding)(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return jax.vmap(lambda x: self.head(self.norm(x)))(x)


def gpt(steps: int, every: int | None = None) -> Train:
    text = docstrings()
    # Long pieces in turn, so that all three parts have something of each module.
    pieces = text[: len(text) // 2000 * 2000].reshape(-1, 2000)
    parts = [np.arange(len(pieces)) % 10 < 8, np.arange(len(pieces)) % 10 == 8, np.arange(len(pieces)) % 10 == 9]
    of_training = jnp.asarray(pieces[parts[0]].reshape(-1))

    def windows(part: np.ndarray) -> Array:
        characters = pieces[part].reshape(-1)
        return jnp.asarray(characters[: len(characters) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)[:512])

    valid, test = windows(parts[1]), windows(parts[2])

    def loss_of(model: GPT, tokens: Int[Array, "n time"]) -> Array:
        return cross_entropy(jax.vmap(model)(tokens[:, :-1]), tokens[:, 1:])

    def train(optimizer: Any, key: PRNGKeyArray) -> dict[str, Array]:
        of_model, of_batches = jax.random.split(key)
        params, static = eqx.partition(GPT(of_model), eqx.is_inexact_array)

        def loss_fn(params: Any, rest: Any, key: PRNGKeyArray) -> tuple[Array, Any]:
            starts = jax.random.randint(key, (16, 1), 0, len(of_training) - LENGTH)
            return loss_of(eqx.combine(params, static), of_training[starts + jnp.arange(LENGTH + 1)]), rest

        def losses(params: Any, rest: Any) -> dict[str, Array]:
            model = eqx.combine(params, static)
            return {"valid": loss_of(model, valid), "test": loss_of(model, test)}

        return trained(optimizer, params, None, loss_fn, losses, of_batches, steps, every)

    return train


def of_model(
    make: Callable[[PRNGKeyArray], Any], data: Split, loss: Callable[[Array, Array], Array], size: int
) -> Callable[..., Train]:
    """The training of an Equinox model of one example."""

    def loss_of(model: Any, x: Array, y: Array) -> Array:
        return loss(jax.vmap(model)(x), y)

    def task(steps: int, every: int | None = None) -> Train:
        def train(optimizer: Any, key: PRNGKeyArray) -> dict[str, Array]:
            of_weights, of_batches = jax.random.split(key)
            params, static = eqx.partition(make(of_weights), eqx.is_inexact_array)

            def loss_fn(params: Any, rest: Any, key: PRNGKeyArray) -> tuple[Array, Any]:
                return loss_of(eqx.combine(params, static), *rows_of(data.train, key, size)), rest

            def losses(params: Any, rest: Any) -> dict[str, Array]:
                model = eqx.combine(params, static)
                return {"valid": loss_of(model, *data.valid), "test": loss_of(model, *data.test)}

            return trained(optimizer, params, None, loss_fn, losses, of_batches, steps, every)

        return train

    return task


def squared_error(found: Array, wanted: Array) -> Array:
    return jnp.mean((found - wanted) ** 2)


def make_mlp(key: PRNGKeyArray) -> eqx.nn.MLP:
    return eqx.nn.MLP(10, "scalar", width_size=32, depth=2, key=key)


def friedman() -> Split:
    """Friedman's first regression problem: five of ten columns matter; standardized."""
    x, y = make_friedman1(2000, noise=0.5, random_state=0)
    return split(((x - 0.5) * 12**0.5).astype(np.float32), ((y - y.mean()) / y.std()).astype(np.float32))


def make_autoencoder(key: PRNGKeyArray) -> eqx.nn.Sequential:
    """A deep one with sigmoids, whose Hessian is ill-conditioned."""
    sizes = (64, 32, 16, 6, 16, 32, 64)
    keys = jax.random.split(key, len(sizes) - 1)
    layers: list[Any] = []
    for i, (n, m, k) in enumerate(zip(sizes[:-1], sizes[1:], keys, strict=True)):
        layers.append(eqx.nn.Linear(n, m, key=k))
        if i != len(sizes) // 2 - 1:  # the code in the middle is linear
            layers.append(eqx.nn.Lambda(jax.nn.sigmoid))
    return eqx.nn.Sequential(layers)


def images_as_targets() -> Split:
    return Split(*((x, x) for x, _ in digits()))


def tasks() -> dict[str, Task]:
    """All four, by name, with their two lengths."""

    def arrays(make: Callable[[PRNGKeyArray], Any]) -> Callable[[], Any]:
        return lambda: eqx.filter(make(jax.random.key(0)), eqx.is_inexact_array)

    return {
        "cnn": Task(
            "CNN with batch normalization, digits (NNX)",
            lambda: nnx.split(CNN(nnx.Rngs(0)), nnx.Param, ...)[1],
            cnn,
            (100, 400),
        ),
        "gpt": Task("GPT of characters, docstrings (Equinox)", arrays(GPT), gpt, (100, 400)),
        "mlp": Task(
            "MLP, Friedman's table (Equinox)",
            arrays(make_mlp),
            of_model(make_mlp, friedman(), squared_error, 64),
            (200, 1000),
        ),
        "autoencoder": Task(
            "autoencoder of digits (Equinox)",
            arrays(make_autoencoder),
            of_model(make_autoencoder, images_as_targets(), squared_error, 64),
            (400, 1000),
        ),
    }
