"""Sweep the learning rate and the weight decay of a Flax NNX model with batch normalization, in one program.

    python examples/nnx_sweep.py [--plot nnx_sweep.png] [--folder runs]

A sweep maps the training over optimizers by `vmap`, so the training must be a pure function: `nnx.split` splits the
model, and `nnx.merge` merges it in each step. The batch statistics change in the forward pass, so they are carried from
step to step. With `--folder`, finished runs are saved, and an interrupted script resumes.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

import modulax as mx
from modulax import sweeps

mpl.use("Agg")

STEPS, BATCH_SIZE = 200, 32


class MLP(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(2, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.out = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x: Float[Array, "n 2"]) -> Float[Array, " n"]:
        return self.out(jnp.tanh(self.norm(self.hidden(x))))[:, 0]


def make_data(key: PRNGKeyArray, n: int) -> tuple[Float[Array, "n 2"], Float[Array, " n"]]:
    x_key, noise_key = jax.random.split(key)
    x = jax.random.normal(x_key, (n, 2))
    return x, jnp.sin(2 * x[:, 0]) * x[:, 1] + 0.1 * jax.random.normal(noise_key, (n,))


def make_train(data: Any, valid: Any) -> Any:
    """The training as a function of one optimizer and one key."""

    def train(optimizer: mx.AdamW, key: PRNGKeyArray) -> dict[str, Array]:
        graph, params, rest = nnx.split(MLP(16, nnx.Rngs(key)), nnx.Param, ...)

        def loss_fn(params: Any, rest: Any, x: Array, y: Array) -> tuple[Array, Any]:
            model = nnx.merge(graph, params, rest, copy=True)
            loss = jnp.mean((model(x) - y) ** 2)
            _, _, rest = nnx.split(model, nnx.Param, ...)  # with the new batch statistics
            return loss, rest

        def step(carry: Any, key: PRNGKeyArray) -> tuple[Any, Array]:
            params, rest, state = carry
            rows = jax.random.randint(key, (BATCH_SIZE,), 0, len(data[0]))
            (loss, rest), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, rest, data[0][rows], data[1][rows])
            params, state = optimizer.step(grads, state, params)
            return (params, rest, state), loss

        carry = params, rest, optimizer.init(params)
        (params, rest, _), losses = jax.lax.scan(step, carry, jax.random.split(key, STEPS))
        model = nnx.merge(graph, params, rest, copy=True)
        model.eval()
        return {"training": losses, "validation": jnp.mean((model(valid[0]) - valid[1]) ** 2)}

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description="Sweep the hyperparameters of a Flax NNX model.")
    parser.add_argument("--plot", type=Path, default=Path("nnx_sweep.png"), help="where the plot is saved")
    parser.add_argument("--folder", type=Path, help="where finished runs are kept")
    arguments = parser.parse_args()

    train = make_train(make_data(jax.random.key(1), 256), make_data(jax.random.key(2), 256))
    sweep = sweeps.grid(
        mx.AdamW(1e-3, mask=mx.decays),
        learning_rate=[1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3],
        weight_decay=[0.0, 0.01, 0.1, 1.0],
    )
    results = sweeps.run(sweep, train, seeds=3, key=jax.random.key(0), folder=arguments.folder)
    print(results)

    optimizer, row = results.best("validation")
    print(f"\nThe best of {len(sweep)} members, by the mean of three seeds:\n\n{optimizer}\n\n{row}")
    results.plot("validation").savefig(arguments.plot, dpi=150)
    print(f"\nPlotted in {arguments.plot}.")
    assert row["validation"] < 0.2


if __name__ == "__main__":
    main()
