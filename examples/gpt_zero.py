"""A GPT in bfloat16 on eight devices: master weights, EMA, layer-wise learning rates, ZeRO-1; killed and resumed.

    python examples/gpt_zero.py                     # a process is killed, another one continues, the result is the same
    python examples/gpt_zero.py --folder runs/gpt   # train here, and continue after an interruption

The batch is sharded over eight devices, here parts of the CPU. Each device holds the parameters and an eighth of the
optimizer state. Every ten steps, a checkpoint is written. The text is the source of a Python module.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

import modulax as mx
from modulax import checkpoint

jax.config.update("jax_num_cpu_devices", 8)

WIDTH, HEADS, BLOCKS, LENGTH, BATCH = 64, 4, 3, 64, 32
STEPS, EVERY = 80, 10
MESH = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
EVERYWHERE, OVER_BATCH = NamedSharding(MESH, PartitionSpec()), NamedSharding(MESH, PartitionSpec("data"))
TEXT = np.frombuffer(Path(argparse.__file__).read_bytes(), np.uint8).astype(np.int32) % 128
Tokens = Int[Array, "batch time"]


def normalized(x: Float[Array, " width"]) -> Float[Array, " width"]:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2) + 1e-6)).astype(x.dtype)


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, use_bias=False, key=keys[1])
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, use_bias=False, key=keys[2])

    def __call__(self, x: Float[Array, "time width"]) -> Float[Array, "time width"]:
        y = jax.vmap(normalized)(x)
        x = x + self.attention(y, y, y, mask=jnp.tri(len(x), dtype=bool))
        return x + jax.vmap(lambda y: self.down(jax.nn.gelu(self.up(normalized(y)))))(x)


class GPT(eqx.Module):
    embedding: Float[Array, "token width"]
    positions: Float[Array, "time width"]
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, key: PRNGKeyArray):
        keys = jax.random.split(key, BLOCKS + 3)
        self.embedding = 0.02 * jax.random.normal(keys[0], (128, WIDTH))
        self.positions = 0.02 * jax.random.normal(keys[1], (LENGTH, WIDTH))
        self.head = eqx.nn.Linear(WIDTH, 128, use_bias=False, key=keys[2])
        self.blocks = [Block(k) for k in keys[3:]]

    def __call__(self, tokens: Int[Array, " time"]) -> Float[Array, "time token"]:
        x = self.embedding[tokens] + self.positions
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(normalized)(x)).astype(jnp.float32)


def make_optimizer(model: GPT) -> mx.ParamEMA:
    rate = mx.schedules.WarmupCosineDecay(0.0, 3e-3, warmup_steps=20, decay_steps=STEPS)
    adamw = mx.AdamW(rate, b2=0.95, weight_decay=0.1, mask=mx.decays)
    clipped = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.layerwise_decay(adamw, model, 0.9))
    return mx.ParamEMA(mx.MasterWeights(clipped), decay=0.9)


def loss_fn(model: GPT, tokens: Tokens) -> Float[Array, ""]:
    logits = jax.vmap(model)(tokens[:, :-1])
    return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]))


@eqx.filter_jit(donate="all-except-first")
def train_step(given: tuple[mx.ParamEMA, Tokens], model: GPT, state: Any) -> tuple[GPT, Any, Float[Array, ""]]:
    optimizer, tokens = given
    loss, grads = eqx.filter_value_and_grad(loss_fn)(model, tokens)
    model, state = optimizer.step(grads, state, model)
    return model, state, loss


def batch(step: int) -> Tokens:
    """Pieces of the text, chosen only by the step number, so that a resumed run sees the same ones."""
    starts = np.random.default_rng(step).integers(0, len(TEXT) - LENGTH, BATCH)
    return jax.device_put(TEXT[starts[:, None] + np.arange(LENGTH + 1)], OVER_BATCH)


def start() -> tuple[mx.ParamEMA, GPT, Any]:
    """The optimizer, the model on every device, and the state, of which each device only ever holds its part."""
    model = GPT(jax.random.key(0))
    model = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if eqx.is_inexact_array(x) else x, model)
    model = eqx.filter_shard(model, EVERYWHERE)
    optimizer = make_optimizer(model)
    params = eqx.filter(model, eqx.is_inexact_array)
    shardings = mx.state_sharding(optimizer, params, zero="data")
    return optimizer, model, jax.jit(optimizer.init, out_shardings=shardings)(params)


def train(folder: Path) -> tuple[GPT, Any]:
    """Train to the end, from the last checkpoint in the folder, if any."""
    optimizer, model, state = start()
    finished = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    first = max(finished, default=0)
    if first:
        (model, state), _ = checkpoint.restore(folder / str(first), (model, state))
        print(f"continues after step {first}", flush=True)
    for step in range(first, STEPS):
        model, state, loss = train_step((optimizer, batch(step)), model, state)
        if (step + 1) % EVERY == 0:
            checkpoint.save(folder / str(step + 1), (model, state))
            print(f"step {step + 1:3d}  loss {loss:.3f}", flush=True)
    return model, state


def train_and_be_killed(folder: Path, after: int) -> None:
    """Train in another process, and kill it while it is working."""
    command = [sys.executable, __file__, "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print("   ", line, end="")
            if line.startswith(f"step {after:3d}"):
                break
        process.kill()
    assert process.returncode < 0, "it had finished already"
    print("killed")


def report(optimizer: mx.ParamEMA, model: GPT, state: Any) -> None:
    leaves = jax.tree.leaves(state)
    whole = sum(x.nbytes for x in leaves)
    part = sum(x.addressable_shards[0].data.nbytes for x in leaves)
    print(f"state: {whole / 1e6:.2f} MB, of which each of {len(jax.devices())} devices holds {part / 1e6:.3f} MB")
    assert part < 1.1 * whole / len(jax.devices())
    tokens = batch(STEPS)
    averaged = optimizer.eval_params(state, model)
    for name, candidate in (("the last parameters", model), ("their average", averaged)):
        print(f"loss of the next batch with {name}: {eqx.filter_jit(loss_fn)(candidate, tokens):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="train here, or continue from the last checkpoint in it")
    folder = parser.parse_args().folder
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        train(folder)
        return

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as killed, tempfile.TemporaryDirectory() as whole:
        train_and_be_killed(Path(killed), after=3 * EVERY)
        model, state = train(Path(killed))
        print("again, without interruption")
        expected = train(Path(whole))
    report(start()[0], model, state)
    for a, b in zip(jax.tree.leaves((model, state)), jax.tree.leaves(expected), strict=True):
        assert not eqx.is_array(a) or np.asarray(a).tobytes() == np.asarray(b).tobytes()
    print(f"parameters and state are equal bit for bit ({time.perf_counter() - begin:.0f} s)")


if __name__ == "__main__":
    main()
