"""`SkipSpikes` and `ClipByGlobalNorm`: what they add to a step of AdamW, and to a training step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from measure import carried, interleaved, seconds, table

import modulax


def spikes(quick: bool) -> str:
    """Steps that are skipped at a spike, and gradients that are clipped: ratios to AdamW alone.

    "Update" is `optimizer.step` inside `jax.jit`, donated, for 12 matrices of 1024x768. It is bound by memory: AdamW
    moves ten arrays for each parameter on a CPU, and the norm reads the gradient once more.
    "Training" is a donated training step, with forward and backward pass, of an MLP of three hidden layers of 1024 on
    batches of 256.
    """
    adam = modulax.AdamW(1e-3)
    ways = {
        "AdamW": adam,
        "`SkipSpikes`, by the norm": modulax.SkipSpikes(adam),
        "`SkipSpikes`, by the loss": modulax.SkipSpikes(adam, by="loss"),
        "`ClipByGlobalNorm`": modulax.Chain(modulax.ClipByGlobalNorm(1.0), adam),
    }
    shape, leaves, width = ((16, 16), 2, 16) if quick else ((1024, 768), 12, 1024)
    matrices = {str(i): jax.random.normal(jax.random.key(i), shape) for i in range(leaves)}
    model = eqx.nn.MLP(64, 10, width, 3, key=jax.random.key(0))
    arrays, rest = eqx.partition(model, eqx.is_array)
    images = jax.random.normal(jax.random.key(1), (256, 64))
    labels = jnp.arange(256) % 10

    def loss_of(arrays: Any) -> Any:
        logits = jax.vmap(eqx.combine(arrays, rest))(images)
        return jnp.mean(modulax.losses.softmax_cross_entropy_with_integer_labels(logits, labels))

    def of_training(params: Any, _: Any) -> Any:
        return jax.value_and_grad(loss_of)(params)

    def of_update(_: Any, grads: Any) -> Any:
        return jnp.float32(1), grads

    columns = []
    # Gradients are arguments: XLA would compute the norm of constants when it compiles.
    for params, gradient, given in ((matrices, of_update, jax.tree.map(jnp.copy, matrices)), (arrays, of_training, ())):
        runs = []
        for way in ways.values():

            def step(params: Any, state: Any, given: Any, gradient: Any = gradient, way: Any = way) -> Any:
                value, grads = gradient(params, given)
                extra = {"value": value} if "value" in way.needs else {}
                return way.step(grads, state, params, **extra)

            train = jax.jit(step, donate_argnums=(0, 1))
            runs.append(carried(train, [jax.tree.map(jnp.copy, params), way.init(params)], given))
        times, ratios = interleaved(runs, 3 if quick else 60)
        columns += [map(seconds, times), [f"{ratio:.2f}" for ratio in ratios]]
    rows = [list(row) for row in zip(ways, *columns, strict=True)]
    return table(["optimizer", "update", "ratio", "training", "ratio"], rows)
