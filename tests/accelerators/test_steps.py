"""Steps compiled for TPUs and GPUs that are not there: where their results are, and what a donated one moves."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import modulax as mx
from modulax import planning
from modulax.planning._hlo import traffic

ADAM, MUON = mx.AdamW(1e-3), mx.Muon(2e-2, adam_learning_rate=1e-3)
CLIPPED = mx.Chain(mx.ClipByGlobalNorm(1.0), ADAM)
ON_GPU = {
    "MultiSteps": mx.MultiSteps(ADAM, 4),
    "MultiSteps of Muon": mx.MultiSteps(MUON, 4),
    "SkipSpikes of Muon": mx.SkipSpikes(MUON),
    "ApplyIfFinite of Muon": mx.ApplyIfFinite(MUON, 5),
    "SkipSpikes of MultiSteps": mx.SkipSpikes(mx.MultiSteps(ADAM, 4)),
    "ConditionallyMask": mx.ConditionallyMask(ADAM, lambda step: step < 10),
    "Lookahead": mx.Lookahead(ADAM, 6, 0.5),
    "LowBit": mx.LowBit(ADAM),
    "MasterWeights": mx.MasterWeights(ADAM),
}
ON_TPU = ("MultiSteps", "MultiSteps of Muon", "SkipSpikes of MultiSteps")


def on(mesh: Mesh, x: Any, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))


def dtype_of(name: str) -> Any:
    return jnp.bfloat16 if "MasterWeights" in name else jnp.float32


def given(optimizer: mx.AbstractTransform, mesh: Mesh, dtype: Any, **dims: tuple[int, ...]) -> Any:
    """Shapes of parameters that are divided, of the state, and their shardings."""
    params = {name: on(mesh, jax.ShapeDtypeStruct(d, dtype), P(None, "data")) for name, d in dims.items()}
    shapes, shardings = jax.eval_shape(optimizer.init, params), mx.state_sharding(optimizer, params)
    return params, jax.tree.map(lambda x, s: on(mesh, x, s.spec), shapes, shardings)


@pytest.mark.parametrize(
    "topology, name", [*(("h100:8", name) for name in ON_GPU), *(("v5e:2x4", name) for name in ON_TPU)]
)
def test_a_step_keeps_the_shardings(topology: str, name: str):
    """The program of a user has no `out_shardings`."""
    optimizer, mesh = ON_GPU[name], planning.topology(topology)
    params, state = given(optimizer, mesh, dtype_of(name), layers=(3, 256, 128), head=(128, 2048))
    compiled: Any = jax.jit(lambda p, s, g: optimizer.step(g, s, p)).lower(params, state, params).compile()
    leaves, after = jax.tree.leaves((params, state)), jax.tree.leaves(compiled.output_shardings)
    assert all(s.is_equivalent_to(x.sharding, x.ndim) for s, x in zip(after, leaves, strict=True))
    kinds = {c.kind for c in traffic(compiled.as_text()).collectives}
    assert kinds <= {"all-reduce", "all-to-all"}, "no parameter is gathered"


IDEAL = {
    "AdamW": (ADAM, 28),
    "LAMB": (mx.LAMB(1e-3), 40),
    "MultiSteps": (ON_GPU["MultiSteps"], 36),
    "StableAdamW": (mx.StableAdamW(1e-3), 36),
    "Prodigy": (mx.Prodigy(1.0), 48),
    "SkipSpikes of a clip": (mx.SkipSpikes(CLIPPED), 32),
    "ApplyIfFinite of a clip": (mx.ApplyIfFinite(CLIPPED, 5), 32),
    "LossScaling of a clip": (mx.LossScaling(CLIPPED), 32),
    # A choice in bfloat16 made XLA for TPU copy master and moments: 72 bytes, and 12 of temporary memory.
    "SkipSpikes of MasterWeights": (mx.SkipSpikes(mx.MasterWeights(ADAM)), 32),
}


@pytest.mark.parametrize("topology", ["v5e:1x1", "h100:1"])
@pytest.mark.parametrize("name", IDEAL)
def test_the_donated_step_moves_the_ideal_bytes(topology: str, name: str):
    """`jax.jit(optimizer.step, donate_argnums=(1, 2))` copies: 44 bytes for AdamW on a GPU, 48 for LAMB on a TPU."""
    optimizer, ideal = IDEAL[name]
    params, state = given(optimizer, planning.topology(topology), dtype_of(name), w=(8192, 8192))
    compiled: Any = optimizer.jit_step().lower(params, state, params).compile()
    assert traffic(compiled.as_text()).bytes / 8192**2 == pytest.approx(ideal, rel=1e-3)
    assert compiled.memory_analysis().temp_size_in_bytes / 8192**2 < 0.1
