"""blackjax: MCMC warm-up, particles and a variational approximation."""

# pyright: reportMissingImports=false

from typing import Any

import blackjax as typed_blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import modulax as mx

from ..programs.comparison import assert_same

blackjax: Any = typed_blackjax  # whose types are those of other functions


def log_density(x: Any) -> Any:
    return -0.5 * jnp.sum((x / jnp.asarray([1.0, 0.3])) ** 2)


# --- The warm-up of ChEES-HMC --------------------------------------------------------------------


def warm_up(tx: Any, step_size: Any = 0.1) -> Any:
    warmup = blackjax.chees_adaptation(log_density, num_chains=8)
    positions = random.normal(random.key(0), (8, 2))
    (states, parameters), info = warmup.run(random.key(1), positions, step_size, tx, 40)
    return states.position, parameters["step_size"], info.adaptation_state.trajectory_length


@pytest.mark.usefixtures("x64")
def test_chees_adaptation():
    """Its parameter is the step size: a Python float, which optax makes an array, and so does `to_optax`."""
    theirs = warm_up(optax.adam(0.05))
    assert_same(warm_up(mx.to_optax(mx.Adam(0.05))), theirs, 1e-8)
    assert_same(warm_up(mx.Adam(0.05), jnp.asarray(0.1)), theirs, 1e-8)
    assert np.ptp(theirs[2]) > 0.01


# --- Variational inference -----------------------------------------------------------------------


def approximate(tx: Any) -> Any:
    method = blackjax.meanfield_vi(log_density, tx, num_samples=20)
    state = method.init(jnp.ones(2))

    def step(state: Any, key: Any) -> Any:
        state, info = method.step(key, state)
        return state, info.elbo

    state, elbos = jax.lax.scan(step, state, random.split(random.key(0), 40))
    return state.mu, state.rho, elbos


def move_particles(tx: Any) -> Any:
    method = blackjax.svgd(jax.grad(log_density), tx)
    state = method.init(3 + random.normal(random.key(0), (10, 2)))
    return jax.lax.fori_loop(0, 30, lambda _, state: method.step(state), state).particles


@pytest.mark.parametrize("program", [approximate, move_particles], ids=["meanfield_vi", "svgd"])
def test_variational(program: Any):
    theirs = program(optax.adam(0.05))
    assert_same(program(mx.Adam(0.05)), theirs, 1e-4)
    assert_same(program(mx.to_optax(mx.Adam(0.05))), theirs, 1e-4)
    np.testing.assert_array_less(np.abs(jax.tree.leaves(theirs)[0]).mean(), 3)
