"""A neural ODE and a neural SDE trained as a GAN, in diffrax and Equinox."""

# pyright: reportMissingImports=false

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random

import modulax as mx

from ..programs.comparison import assert_learns, assert_same, widened

TIMES: Any = np.linspace(0.0, 1.0, 6)


# --- A neural ODE --------------------------------------------------------------------------------


class NeuralODE(eqx.Module):
    field: eqx.nn.MLP

    def __call__(self, times: Any, start: Any) -> Any:
        term: Any = diffrax.ODETerm(lambda t, y, args: self.field(y))
        controller = diffrax.PIDController(rtol=1e-3, atol=1e-4)
        saved = diffrax.SaveAt(ts=times)
        solved = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.1, start, stepsize_controller=controller, saveat=saved
        )
        return solved.ys


def spirals() -> Any:
    """Eight damped rotations of random starting points."""
    start = np.random.default_rng(0).normal(size=(8, 1, 2))
    angle, size = 3 * TIMES[:, None], np.exp(-TIMES)[:, None]
    turned = start[..., ::-1] * np.asarray([-1, 1])
    return size * (np.cos(angle) * start + np.sin(angle) * turned)


def train_ode(tx: Any) -> Any:
    """The parameters and losses of fitting the beginning of the paths and then, with a new state, whole paths."""
    model, static = eqx.partition(NeuralODE(eqx.nn.MLP(2, 2, 16, 1, jax.nn.softplus, key=random.key(0))), eqx.is_array)
    model, data = widened(model), spirals()

    @jax.jit
    def step(model: Any, state: Any, weights: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            predicted = jax.vmap(eqx.combine(model, static), (None, 0))(TIMES, data[:, 0])
            return jnp.mean(weights[:, None] * (predicted - data) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(model)
        updates, state = tx.update(grads, state, model)
        return eqx.apply_updates(model, updates), state, loss

    losses = []
    for length in (3, 6):
        state = tx.init(model)
        for _ in range(30):
            model, state, loss = step(model, state, np.arange(len(TIMES)) < length)
            losses.append(loss)
    return model, jnp.stack(losses)


@pytest.mark.usefixtures("x64")
def test_neural_ode():
    """In float64, since the solver accepts or rejects its steps."""
    theirs = train_ode(optax.adabelief(3e-2))
    assert_same(train_ode(mx.AdaBelief(3e-2)), theirs, 1e-9)
    assert_learns(theirs[1][30:])


# --- A neural SDE as a GAN -----------------------------------------------------------------------


class Generator(eqx.Module):
    """A path of an SDE whose drift and diffusion are networks."""

    drift: eqx.nn.MLP
    diffusion: eqx.nn.MLP
    readout: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = random.split(key, 3)
        self.drift = eqx.nn.MLP(3, 3, 8, 1, final_activation=jnp.tanh, key=keys[0])
        self.diffusion = eqx.nn.MLP(3, 3, 8, 1, final_activation=jnp.tanh, key=keys[1])
        self.readout = eqx.nn.Linear(3, 1, key=keys[2])

    def __call__(self, key: Any) -> Any:
        start_key, path_key = random.split(key)
        noise = diffrax.VirtualBrownianTree(0.0, 1.0, tol=0.1, shape=(3,), key=path_key)
        drift: Any = diffrax.ODETerm(lambda t, y, args: self.drift(y))
        diffusion: Any = diffrax.ControlTerm(lambda t, y, args: jnp.diag(self.diffusion(y)), noise)
        start, saved = random.normal(start_key, (3,)), diffrax.SaveAt(ts=TIMES)
        terms = diffrax.MultiTerm(drift, diffusion)
        solved: Any = diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 0.2, start, saveat=saved)
        return jax.vmap(self.readout)(solved.ys)


class Discriminator(eqx.Module):
    """A CDE driven by a path; its last value says how real the path is."""

    initial: eqx.nn.Linear
    field: eqx.nn.MLP
    readout: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = random.split(key, 3)
        self.initial = eqx.nn.Linear(1, 3, key=keys[0])
        self.field = eqx.nn.MLP(3, 6, 8, 1, final_activation=jnp.tanh, key=keys[1])
        self.readout = eqx.nn.Linear(3, "scalar", key=keys[2])

    def __call__(self, path: Any) -> Any:
        control = diffrax.LinearInterpolation(TIMES, jnp.concatenate([TIMES[:, None], path], axis=1))
        term: Any = diffrax.ControlTerm(lambda t, y, args: self.field(y).reshape(3, 2), control)
        solved: Any = diffrax.diffeqsolve(term, diffrax.Euler(), 0.0, 1.0, 0.2, self.initial(path[0]))
        return self.readout(solved.ys[-1])


def train_gan(make: Any) -> Any:
    """The parameters of both and the losses; the generator ascends, by a negative learning rate."""
    generator, discriminator = Generator(random.key(0)), Discriminator(random.key(1))
    ascent, descent = make(-1e-2), make(1e-2)

    def loss_fn(both: Any, real: Any, key: Any) -> Any:
        generator, discriminator = both
        fake = jax.vmap(generator)(random.split(key, len(real)))
        return jnp.mean(jax.vmap(discriminator)(real)) - jnp.mean(jax.vmap(discriminator)(fake))

    @eqx.filter_jit
    def step(generator: Any, discriminator: Any, states: Any, key: Any) -> Any:
        data_key, loss_key = random.split(key)
        real = jnp.cumsum(0.3 * random.normal(data_key, (16, len(TIMES), 1)), axis=1)
        value, (g, d) = eqx.filter_value_and_grad(loss_fn)((generator, discriminator), real, loss_key)
        g, ascended = ascent.update(g, states[0])
        d, descended = descent.update(d, states[1])
        discriminator = eqx.apply_updates(discriminator, d)
        clipped = jax.tree.map(lambda w: jnp.clip(w, -0.5, 0.5) if eqx.is_inexact_array(w) else w, discriminator)
        return eqx.apply_updates(generator, g), clipped, (ascended, descended), value

    states = tuple(
        tx.init(eqx.filter(model, eqx.is_inexact_array))
        for tx, model in ((ascent, generator), (descent, discriminator))
    )
    values = []
    for key in random.split(random.key(2), 30):
        generator, discriminator, states, value = step(generator, discriminator, states, key)
        values.append(value)
    return eqx.filter((generator, discriminator), eqx.is_array), jnp.stack(values)


def test_sde_gan():
    theirs = train_gan(optax.rmsprop)

    def ours(rate: float) -> Any:
        return mx.RMSProp(rate) if rate > 0 else mx.Chain(mx.Scale(-1.0), mx.RMSProp(-rate))

    assert_same(train_gan(ours), theirs, 1e-4)
    assert np.ptp(theirs[1]) > 0.1
