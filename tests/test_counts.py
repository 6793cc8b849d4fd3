"""Counts that decide how fast a step is: equations, fusions, temporary memory, and Python calls of NNX.

Counts do not depend on the load of the machine, as times do. A smaller count is an improvement: lower the bound here.
"""

import cProfile
import pstats
import re
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import optax
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx

from .settings import jax_defaults

LEAVES, SHAPE = 5, (64, 64)
ADAM = (mx.AdamW(1e-3), optax.adamw(1e-3))
CLIPPED = (mx.Chain(mx.ClipByGlobalNorm(1.0), ADAM[0]), optax.chain(optax.clip_by_global_norm(1.0), ADAM[1]))
# By default, XLA copies a moment in bfloat16 that two fusions read, of every leaf at once.
REGIONS = {"xla_cpu_copy_insertion_use_region_analysis": True}


def our_step(optimizer: Any) -> Any:
    return lambda params, state, grads: optimizer.step(grads, state, params)


def optax_step(optimizer: Any) -> Any:
    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def arguments(optimizer: Any, dtype: Any = jnp.float32) -> tuple[Any, Any, Any]:
    params = {f"layer{i}": jnp.ones(SHAPE, dtype) for i in range(LEAVES)}
    return params, optimizer.init(params), params


def compiled(step: Any, given: tuple[Any, Any, Any], **options: Any) -> Any:
    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*given)
    return lowered.compile(compiler_options=options or None)


def passes(program: Any) -> int:
    """How many kernels of a program write an array of the size of a leaf: passes over the memory."""
    shape = ",".join(map(str, SHAPE))
    body = program.as_text().partition("\nENTRY ")[2]
    return len(re.findall(rf"= (?:f32|bf16)\[{shape}\]\S* (?:fusion|copy|call|multiply|add)\(", body))


@pytest.mark.parametrize("pair, scalars", [(ADAM, 0), (CLIPPED, 100)], ids=["adamw", "clip"])
def test_equations_and_passes_over_the_memory(pair: Any, scalars: int):
    ours, theirs = pair
    with jax_defaults():
        program = compiled(our_step(ours), arguments(ours))
        assert passes(program) <= 3 * LEAVES, "the two moments and the parameter; clipped gradients are not stored"
        our_equations = len(jax.make_jaxpr(our_step(ours))(*arguments(ours)).eqns)
        optax_equations = len(jax.make_jaxpr(optax_step(theirs))(*arguments(theirs)).eqns)
        assert our_equations <= 0.5 * optax_equations
        leaf = jnp.ones(SHAPE).nbytes
        assert program.memory_analysis().temp_size_in_bytes <= leaf + scalars
        alias = program.memory_analysis().alias_size_in_bytes
        assert alias >= 3 * LEAVES * leaf, "every array of the state and of the parameters is updated in place"


GATED = mx.ConditionallyMask(ADAM[0], lambda step: step % 2 == 0)
ACCUMULATED = mx.MultiSteps(ADAM[0], 2)  # XLA copies the accumulator, which two moments read


@pytest.mark.parametrize("optimizer, most", [(GATED, 0), (ACCUMULATED, LEAVES)], ids=type)
def test_skipped_steps_need_no_memory_for_updates(optimizer: Any, most: int):
    """The parameters move in the branch that computes the updates, in place."""
    with jax_defaults():
        program = compiled(our_step(optimizer), arguments(optimizer))
    assert program.memory_analysis().temp_size_in_bytes < (most + 1) * jnp.ones(SHAPE).nbytes


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="an option of XLA:CPU")
def test_temporary_memory_in_bfloat16():
    optimizer = mx.AdamW(0.1)
    program = compiled(our_step(optimizer), arguments(optimizer, jnp.bfloat16), **REGIONS)
    assert program.memory_analysis().temp_size_in_bytes <= jnp.ones(SHAPE, jnp.bfloat16).nbytes
    assert passes(program) == 3 * LEAVES


def test_python_calls_of_an_nnx_step():
    """`nnx.jit` handles each module and each variable in Python."""

    def calls(make: Any) -> int:
        model = nnx.Sequential(*(nnx.Linear(2, 2, rngs=nnx.Rngs(0)) for _ in range(3)))
        optimizer = make(model)
        grads = jtu.tree_map(jnp.copy, nnx.state(model, nnx.Param))
        update = nnx.jit(lambda model, optimizer, grads: optimizer.update(model, grads) and None)
        for _ in range(2):
            update(model, optimizer, grads)
        with cProfile.Profile() as profile:
            update(model, optimizer, grads)
        counted: Any = pstats.Stats(profile)
        return counted.total_calls

    with jax_defaults():
        ours = calls(lambda model: modulax.nnx.Optimizer(model, ADAM[0]))
        theirs = calls(lambda model: nnx.Optimizer(model, ADAM[1], wrt=nnx.Param))
    assert ours <= 0.85 * theirs
