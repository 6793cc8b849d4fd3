"""Training in bfloat16 and float16: the loss that is reached, the bytes, and the time of a step."""

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from measure import carried, interleaved, seconds, step_of, table

import modulax

sys.path.append(str(Path(__file__).parents[1] / "examples"))
digits: Any = importlib.import_module("digits")

RATE = 1e-4


def in_dtype(tree: Any, dtype: Any) -> Any:
    """Cast the floating-point arrays of a model or of data."""
    return jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, tree)


def loss_after(optimizer: Any, dtype: Any, steps: int, seed: int) -> tuple[float, float]:
    """The losses of the digits MLP on training and test images after so many steps of constant learning rate."""
    data = digits.load_data(0)
    params, rest = eqx.partition(in_dtype(digits.make_model(jax.random.key(seed)), dtype), eqx.is_inexact_array)

    def loss(params: Any, images: Any, labels: Any) -> Any:
        return digits.cross_entropy(eqx.combine(params, rest), images.astype(dtype), labels).astype(jnp.float32)

    @jax.jit
    def train(params: Any, state: Any) -> Any:
        def body(carry: Any, key: Any) -> Any:
            params, state = carry
            rows = jax.random.randint(key, (digits.BATCH_SIZE,), 0, len(data.train_images))
            grads = jax.grad(loss)(params, data.train_images[rows], data.train_labels[rows])
            return optimizer.step(grads, state, params), None

        (params, _), _ = jax.lax.scan(body, (params, state), jax.random.split(jax.random.key(seed + 1), steps))
        model = eqx.combine(in_dtype(params, jnp.float32), rest)
        on_train = digits.cross_entropy(model, data.train_images, data.train_labels)
        return on_train, digits.cross_entropy(model, data.test_images, data.test_labels)

    on_train, on_test = train(params, optimizer.init(params))
    return float(on_train), float(on_test)


def low_precision(quick: bool) -> str:
    """The MLP of `examples/digits.py` with Adam at a learning rate of 1e-4: losses after 1500 steps, means of 3 seeds.

    "rounded to nearest" is Adam alone. Bytes are those of parameters and state per parameter.
    """
    adam = modulax.Adam(RATE)
    ways: list[tuple[str, Any, Any]] = [("float32", adam, jnp.float32)]
    for dtype in (jnp.bfloat16, jnp.float16):
        name = jnp.dtype(dtype).name
        ways += [
            (f"{name}, rounded to nearest", adam, dtype),
            (f"{name}, `MasterWeights`", modulax.MasterWeights(adam), dtype),
            (f"{name}, `StochasticRounding`", modulax.StochasticRounding(adam), dtype),
        ]
    seeds, steps = (range(1), 5) if quick else (range(3), 1500)
    rows, first = [], 0.0
    for name, optimizer, dtype in ways[: 3 if quick else None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the learning rate is too small is what is shown
            losses = [loss_after(optimizer, dtype, steps, seed) for seed in seeds]
        on_train, on_test = (sum(column) / len(losses) for column in zip(*losses, strict=True))
        first = first or on_train
        w = jnp.zeros(1000, dtype)
        size = w.dtype.itemsize + modulax.describe(optimizer, w).leaves[0].state_bytes / w.size
        rows.append([name, f"{size:.0f}", f"{on_train:.4f}", f"{on_train / first:.3f}", f"{on_test:.4f}"])
    return table(["parameters", "bytes", "training loss", "ratio", "test loss"], rows)


def low_precision_steps(quick: bool) -> str:
    """Update and apply inside one `jax.jit`, for AdamW and 30 leaves of up to 512x1024; ratios to float32."""
    shapes = ((16, 16),) if quick else ((512, 512), (512,), (512, 1024))
    adam = modulax.AdamW(1e-2)
    ways: list[tuple[str, Any, Any]] = [
        ("float32", adam, jnp.float32),
        ("float32, `LossScaling`", modulax.LossScaling(adam), jnp.float32),
    ]
    for dtype in (jnp.bfloat16, jnp.float16):
        name = jnp.dtype(dtype).name
        ways += [
            (name, adam, dtype),
            (f"{name}, `MasterWeights`", modulax.MasterWeights(adam), dtype),
            (f"{name}, `StochasticRounding`", modulax.StochasticRounding(adam), dtype),
        ]
    runs = []
    for _, optimizer, dtype in ways:
        grads = {f"layer{i}": jnp.full(shapes[i % len(shapes)], 0.1, dtype) for i in range(30)}
        step = jax.jit(step_of(optimizer, modulax.apply_updates))
        runs.append(carried(step, [grads, optimizer.init(grads)], grads))
    times, ratios = interleaved(runs, 3 if quick else 60)
    rows = [[name, seconds(t), f"{r:.2f}"] for (name, _, _), t, r in zip(ways, times, ratios, strict=True)]
    return table(["parameters", "step", "ratio"], rows)
