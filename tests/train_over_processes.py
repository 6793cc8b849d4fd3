"""A model of sequences, trained with ZeRO-1 by a `jax.distributed` job: run by tests/test_many_devices.py.

python -m tests.train_over_processes FOLDER PROCESS PORT      # one of two processes; a checkpoint in FOLDER/run
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import modulax as mx
from modulax import checkpoint

WIDTH, LENGTH, WORDS, SEQUENCES = 16, 8, 12, 8
OPTIMIZER = mx.Chain(  # the matrices are orthogonalized by devices of both processes
    mx.ClipByGlobalNorm(1.0),
    mx.Muon(mx.schedules.Linear(1e-2, 1e-3, 4), adam_learning_rate=1e-3, roles={"place": mx.Position()}),
)


def mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("data",))


def initial() -> Any:
    random = np.random.default_rng(0)
    shapes = {"embed": (WORDS, WIDTH), "place": (LENGTH, WIDTH), "up": (WIDTH, 32), "down": (32, WIDTH)}
    return {name: (0.3 * random.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def loss(params: Any, tokens: Any) -> jax.Array:
    """The cross-entropy of the next token, of which a network sees the sum of the tokens before it."""
    x = jnp.cumsum(params["embed"][tokens[:, :-1]], axis=1) + params["place"][None]
    x = x + jnp.tanh(x @ params["up"]) @ params["down"]
    return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(x @ params["embed"].T, tokens[:, 1:]))


def batch(step: int, mesh: Mesh) -> jax.Array:
    """Sequences with constant increments, sharded over all processes."""
    random = np.random.default_rng(step)
    start, up = random.integers(0, WORDS, (SEQUENCES, 1)), random.integers(1, 4, (SEQUENCES, 1))
    tokens = ((start + up * np.arange(LENGTH + 1)) % WORDS).astype(np.int32)
    return jax.make_array_from_callback(tokens.shape, NamedSharding(mesh, P("data")), lambda index: tokens[index])


def train(mesh: Mesh, steps: int, resume: Path | None = None) -> tuple[Any, int]:
    """Return the parameters and the state after some steps, and the step that was the first."""
    everywhere = NamedSharding(mesh, P())
    params = jtu.tree_map(lambda p: jax.make_array_from_callback(p.shape, everywhere, lambda i: p[i]), initial())
    shardings = mx.state_sharding(OPTIMIZER, params, zero="data")
    state = jax.jit(OPTIMIZER.init, out_shardings=shardings)(params)
    first = 0
    if resume is not None:
        (params, state, done), _ = checkpoint.restore(resume, (params, state, np.zeros((), np.int32)))
        first = int(done)

    @jax.jit
    def train_step(params: Any, state: Any, tokens: Any) -> Any:
        return OPTIMIZER.step(jax.grad(loss)(params, tokens), state, params)

    for step in range(first, steps):
        params, state = train_step(params, state, batch(step, mesh))
    return (params, state), first


def main() -> None:
    folder, process, port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process)
    assert len(jax.devices()) == 4
    (params, state), _ = train(mesh(4), steps=2)
    moment = mx.tree.get(state, "mu.up")
    assert not moment.is_fully_addressable
    assert moment.addressable_shards[0].data.size * 4 == moment.size
    checkpoint.save(folder / "run", (params, state, np.asarray(2, np.int32)))


if __name__ == "__main__":
    main()
