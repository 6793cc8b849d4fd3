"""AdamW on one array that is far larger than the caches, beside torch."""

import importlib
import importlib.util
import os
from typing import Any

import jax
import jax.numpy as jnp
import optax
from measure import carried, interleaved, seconds, step_of, table

import modulax


def large_array(quick: bool) -> str:
    """A donated step of AdamW on one array of 16M numbers, and of torch's fused AdamW, if torch is installed.

    The last column is the memory that seven arrays take, over the time: the gradient, the parameter and two moments are
    read, and the last three are written. The first row, which reads one array and writes it, is what the memory does.
    """
    size = 10_000 if quick else 16_000_000
    ways: dict[str, tuple[Any, int]] = {
        "`optax.adamw`": (_jitted(optax.adamw(1e-3), optax.apply_updates, size), 7),
        "`2 * x`, in place": (_doubled(size), 2),
        "`modulax.AdamW`": (_jitted(modulax.AdamW(1e-3), modulax.apply_updates, size), 7),
    }
    if importlib.util.find_spec("torch"):
        ways["`torch.optim.AdamW(fused=True)`"] = _fused(size), 7
    times, ratios = interleaved([run for run, _ in ways.values()], 3 if quick else 60)
    rows = [
        [name, seconds(t), f"{r:.2f}", f"{4e-9 * count * size / t:.0f} GB/s"]
        for (name, (_, count)), t, r in zip(ways.items(), times, ratios, strict=True)
    ]
    rows[:2] = rows[1::-1]
    return table(["", "time", "ratio", "arrays over time"], rows)


def _doubled(size: int) -> Any:
    return carried(jax.jit(lambda x: (2 * x,), donate_argnums=0), [jnp.zeros(size)])


def _jitted(optimizer: Any, apply_updates: Any, size: int) -> Any:
    step = jax.jit(step_of(optimizer, apply_updates), donate_argnums=(0, 1))
    params, grads = (jnp.full(size, 0.1, jnp.float32) for _ in range(2))
    return carried(step, [params, optimizer.init(params)], grads)


def _fused(size: int) -> Any:
    # Otherwise its threads wait busily for more work, and slow down what is measured next.
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
    torch: Any = importlib.import_module("torch")
    param = torch.full((size,), 0.1, requires_grad=True)
    param.grad = torch.full((size,), 0.1)
    return torch.optim.AdamW([param], lr=1e-3, fused=True).step
