"""DiLoCo over the devices of a mesh, and from a checkpoint within a round."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import modulax as mx
from modulax import checkpoint

WORKERS = 2
START = {"w": jnp.asarray([[0.4, -0.1], [1.5, 3.0]]), "b": jnp.asarray([0.3, -0.2])}
TARGETS = jnp.asarray([0.5, -1.0])
OPTIMIZER = mx.DiLoCo(mx.AdamW(0.1), 3, axis_name="workers")


def step(params: Any, state: Any, target: Any) -> Any:
    """A step of one worker."""
    grads = jax.tree.map(lambda p: p - target, params)
    return OPTIMIZER.step(grads, state, params)


def start() -> Any:
    params = jax.tree.map(lambda p: jnp.stack([p] * WORKERS), START)
    return params, jax.vmap(OPTIMIZER.init)(params)


BATCHED = jax.jit(jax.vmap(step, axis_name="workers"))


def run(program: Any, n: int, params: Any, state: Any) -> Any:
    for _ in range(n):
        params, state = program(params, state, TARGETS)
    return params, state


def test_workers_on_a_mesh_meet_at_the_end_of_a_round():
    mesh = Mesh(np.asarray(jax.devices()[:WORKERS]), ("workers",), axis_types=(AxisType.Auto,))

    def of_one(*trees: Any) -> Any:
        return jax.tree.map(lambda x: x[None], step(*jax.tree.map(lambda x: x[0], trees)))

    spec = PartitionSpec("workers")
    program = jax.jit(jax.shard_map(of_one, mesh=mesh, in_specs=spec, out_specs=spec))
    states = start()
    for n in (2, 1, 2):  # before, at and after the end of a round
        on_mesh, batched = run(program, n, *states), run(BATCHED, n, *states)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), on_mesh, batched)
        params, state = states = jax.tree.map(np.asarray, batched)
        evaluated = jax.vmap(OPTIMIZER.eval_params)(state, params)["w"]
        assert np.array_equal(evaluated[0], evaluated[1])
        assert np.allclose(params["w"][0], params["w"][1], rtol=1e-6, atol=0) == (n == 1)
    # Workers communicate in one branch of a condition only.
    before, _, branches = str(jax.make_jaxpr(program)(*states, TARGETS)).partition("cond[")
    assert "psum" in branches
    assert "psum" not in before


def test_a_run_that_was_killed_within_a_round_continues_bit_for_bit(tmp_path):
    middle = run(BATCHED, 4, *start())
    checkpoint.save(tmp_path / "run", middle)
    restored, _ = checkpoint.restore(tmp_path / "run", jax.tree.map(jnp.zeros_like, middle))
    expected, found = run(BATCHED, 4, *middle), run(BATCHED, 4, *restored)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_an_axis_must_be_mapped():
    with pytest.raises(ValueError, match=r"not mapped here.* `jax.vmap\(..., axis_name='workers'\)`"):
        OPTIMIZER.step(START, OPTIMIZER.init(START), START)


def test_workers_in_low_precision_are_at_the_parameters_of_the_round():
    """The way there is wider than these, and is not rounded to the same precision."""
    random = np.random.default_rng(0)
    params = jnp.asarray(0.02 * random.normal(size=1024), jnp.bfloat16)
    optimizer = mx.DiLoCo(mx.AdamW(1e-2), sync_period=4, axis_name="w")

    @jax.jit
    def train(key: Any) -> Any:
        def of_worker(key: Any) -> Any:
            def step(carry: Any, key: Any) -> Any:
                g = jax.random.normal(key, params.shape, jnp.bfloat16)
                return optimizer.step(g, carry[1], carry[0]), None

            (p, state), _ = jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(key, 4))
            return p, state.outer

        return jax.vmap(of_worker, axis_name="w")(jax.random.split(key, 2))

    reached, outer = map(np.asarray, train(jax.random.key(0)))
    np.testing.assert_array_equal(reached, outer)
    np.testing.assert_array_equal(reached[0], reached[1])
