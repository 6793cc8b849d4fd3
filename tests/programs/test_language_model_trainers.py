"""The optimizers that EasyLM, MaxText and Levanter build from a configuration, with optax's parts and with ours.

They have the same parts, masks and schedules in the same order; the code is our own. Each runs on a small tree with
the names of a transformer, with random gradients.
"""

import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax as typed_optax
import pytest
from jaxtyping import Array, Float, Int, PyTree

import modulax as mx

from .comparison import assert_same

optax: Any = typed_optax
STEPS = 24


def transformer() -> Any:
    rng = np.random.default_rng(0)
    shapes = {
        "embedding": {"table": (6, 4)},
        "layer_0": {"attention": {"kernel": (4, 4)}, "mlp": {"kernel": (4, 8), "bias": (8,)}, "norm": {"scale": (4,)}},
        "lm_head": {"kernel": (4, 6)},
    }
    return jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )


PARAMS = transformer()
LOSSES = np.linspace(3, 2, STEPS, dtype=np.float32)
LOSSES[[9, 15]] = 20  # spikes


NOISE = jax.tree.map(lambda p: np.random.default_rng(p.size).normal(size=(STEPS, *p.shape)).astype(np.float32), PARAMS)


def run(tx: Any) -> Any:
    """The parameters after each step on a noisy bowl; where the loss has a spike, so has the gradient."""

    def step(carry: Any, inputs: Any) -> Any:
        params, state = carry
        noise, loss = inputs
        size = jnp.where(loss > 10, 30.0, 1.0)
        grads = jax.tree.map(lambda p, n: size * (p + n), params, noise)
        updates, state = tx.update(grads, state, params, value=loss)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    return jax.jit(lambda params: jax.lax.scan(step, (params, tx.init(params)), (NOISE, LOSSES))[1])(PARAMS)


def by_name(*patterns: str) -> Any:
    """A mask function: True where a regular expression finds something in the path, written with slashes."""

    def mask(params: Any) -> Any:
        def is_found(path: Any, _: Any) -> bool:
            return any(re.search(pattern, "/".join(key.key for key in path)) for pattern in patterns)

        return jax.tree_util.tree_map_with_path(is_found, params)

    return mask


def inverted(mask: Any) -> Any:
    return lambda params: jax.tree.map(lambda x: not x, mask(params))


DECAYS = inverted(by_name("norm", "bias"))


# --- EasyLM --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu_dtype, tolerance", [(None, 1e-5), (jnp.bfloat16, 1e-3)], ids=["float32", "bfloat16"])
def test_easylm_adamw(mu_dtype: Any, tolerance: float):
    """Clipping, AdamW with a mask for weight decay, and gradients that are accumulated over three batches."""
    arguments: Any = {"weight_decay": 0.1, "b1": 0.9, "b2": 0.95, "mask": DECAYS, "mu_dtype": mu_dtype}
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.01, 3, 8, 1e-3)
    adamw = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, **arguments))
    theirs = optax.MultiSteps(adamw, 3)
    rate = mx.schedules.WarmupCosineDecay(0.0, 0.01, 3, 8, 1e-3)
    ours = mx.MultiSteps(mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(rate, **arguments)), 3)
    # optax computes a bfloat16 moment in bfloat16, modulax in float32.
    assert_same(run(ours), run(theirs), tolerance)


def test_easylm_palm():
    """Adafactor without factors, and weight decay by the square of the learning rate: a scheduled hyperparameter."""

    def rate(step: Any) -> Any:
        return 0.01 / jnp.sqrt(jnp.maximum(step, 5))

    decay: Any = lambda step: -(rate(step) ** 2)  # noqa: E731 (Any: `AddDecayedWeights` alone takes numbers only)
    arguments: Any = {"multiply_by_parameter_scale": True, "momentum": 0.9, "decay_rate": 0.99, "factored": False}
    arguments |= {"clipping_threshold": None}
    theirs = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adafactor(rate, **arguments),
        optax.inject_hyperparams(optax.add_decayed_weights, static_args="mask")(decay, mask=DECAYS),
    )
    ours = mx.Chain(
        mx.ClipByGlobalNorm(1.0),
        mx.Adafactor(rate, **arguments),
        mx.Scheduled(mx.AddDecayedWeights(decay, DECAYS)),
    )
    assert_same(run(ours), run(theirs), 1e-5)


# --- MaxText -------------------------------------------------------------------------------------


def test_maxtext_muon():
    """Muon on the kernels of the layers and AdamW on the rest."""

    def dimensions(make: Any) -> Any:
        is_kernel = by_name("layer_.*kernel")
        return lambda params: jax.tree.map(lambda x: make() if x else None, is_kernel(params))

    arguments: Any = {"beta": 0.95, "weight_decay": 0.1, "adam_b1": 0.9, "adam_b2": 0.95, "consistent_rms": 0.2}
    theirs = optax.contrib.muon(
        0.01,
        weight_decay_mask=DECAYS,
        muon_weight_dimension_numbers=dimensions(optax.contrib.MuonDimensionNumbers),
        **arguments,
    )
    ours = mx.Muon(
        0.01,
        mask=DECAYS,
        muon_weight_dimension_numbers=dimensions(mx.MuonDimensionNumbers),
        follow="optax",
        **arguments,
    )
    assert_same(run(ours), run(theirs), 1e-4)


def test_maxtext_frozen():
    """Only what a pattern names is trained; the rest has neither updates nor moments."""
    frozen = inverted(by_name("attention", "lm_head"))

    def labels(params: Any) -> Any:
        return jax.tree.map(lambda x: "frozen" if x else "trained", frozen(params))

    rate = optax.cosine_decay_schedule(0.01, STEPS)
    trained = {"trained": optax.adamw(rate, mask=DECAYS), "frozen": optax.set_to_zero()}
    adamw = mx.AdamW(mx.schedules.CosineDecay(0.01, STEPS), mask=DECAYS)
    ours = mx.selective_transform(adamw, freeze_mask=frozen)
    assert_same(run(ours), run(optax.multi_transform(trained, labels)), 1e-5)
    assert len(jax.tree.leaves(mx.tree.get(ours.init(PARAMS), "mu"))) == 2


WINDOW, DEVIATIONS = 6, 4.0


def is_spike(history: Any, filled: Any, now: Any) -> Any:
    """Whether a value is more than some standard deviations above the mean of the last ones, once there are enough."""
    return (filled >= WINDOW) & (now > history.mean() + DEVIATIONS * history.std())


def remembered(history: Any, now: Any) -> Any:
    return jnp.roll(history, 1).at[0].set(now)


class OptaxSpikeState(NamedTuple):
    losses: Any
    norms: Any
    count: Any
    inner: Any


def skip_spikes_of_optax(inner: Any) -> Any:
    def init(params: Any) -> Any:
        return OptaxSpikeState(jnp.zeros(WINDOW), jnp.zeros(WINDOW), jnp.zeros([], jnp.int32), inner.init(params))

    def update(updates: Any, state: Any, params: Any = None, *, value: Any, **extra: Any) -> Any:
        norm = optax.tree.norm(updates)
        skips = is_spike(state.losses, state.count, value) | is_spike(state.norms, state.count, norm)
        new, inner_state = inner.update(updates, state.inner, params, **extra)
        new = jax.tree.map(lambda u: jnp.where(skips, 0, u), new)
        inner_state = jax.tree.map(lambda old, now: jnp.where(skips, old, now), state.inner, inner_state)
        history = remembered(state.losses, value), remembered(state.norms, norm), state.count + 1
        losses, norms, count = (jnp.where(skips, old, now) for old, now in zip(state, history, strict=False))
        return new, OptaxSpikeState(losses, norms, count, inner_state)

    return optax.GradientTransformationExtraArgs(init, update)


class SkipSpikesState(mx.AbstractState):
    losses: Float[Array, " window"] = mx.shared()
    norms: Float[Array, " window"] = mx.shared()
    count: Int[Array, ""] = mx.shared()
    inner_state: PyTree = mx.nested()


class SkipSpikes(mx.AbstractContainer):
    """Skips the steps at which the loss or the norm of the gradient is far above its last values."""

    needs = ("value",)

    inner: mx.AbstractTransform = mx.part()

    def init(self, params: Any) -> SkipSpikesState:
        empty, count = jnp.zeros(WINDOW), jnp.zeros((), jnp.int32)
        return SkipSpikesState(empty, empty, count, self.inner.init(params))

    def update(self, updates: Any, state: SkipSpikesState, params: Any = None, **extra: Any) -> Any:
        value, norm = extra["value"], mx.tree.norm(updates)

        def step() -> Any:
            new, inner_state = self.inner.update(updates, state.inner_state, params, **extra)
            losses, norms = remembered(state.losses, value), remembered(state.norms, norm)
            return new, SkipSpikesState(losses, norms, state.count + 1, inner_state)

        def skip() -> Any:
            return jax.tree.map(jnp.zeros_like, updates), state

        skips = is_spike(state.losses, state.count, value) | is_spike(state.norms, state.count, norm)
        return jax.lax.cond(skips, skip, step)


def test_maxtext_skips_spikes():
    theirs = run(skip_spikes_of_optax(optax.adamw(0.01, mask=DECAYS)))
    moved = np.abs(np.diff(theirs["lm_head"]["kernel"], axis=0)).max((1, 2)) > 0
    assert np.flatnonzero(~moved).tolist() == [8, 14]
    assert_same(run(SkipSpikes(mx.AdamW(0.01, mask=DECAYS))), theirs, 1e-5)
    # Theirs around ours, as a program has it that keeps its own wrapper.
    assert_same(run(skip_spikes_of_optax(mx.to_optax(mx.AdamW(0.01, mask=DECAYS)))), theirs, 1e-5)


# --- Levanter ------------------------------------------------------------------------------------


def rate_of_levanter(step: Any) -> Any:
    """Linear warm-up and decay."""
    return 0.01 * jnp.minimum((step + 1) / 5, 1 - step / (2 * STEPS))


def coupled_decay(learning_rate: Any) -> Any:
    """AdamC: weight decay in proportion to the learning rate."""
    return 0.1 * learning_rate / 0.01


def adam_of_levanter(learning_rate: Any) -> Any:
    """A factory that computes with the learning rate, which `inject_hyperparams` calls at every step."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(0.9, 0.95),
        optax.add_decayed_weights(coupled_decay(learning_rate), DECAYS),
        optax.scale(-learning_rate),
    )


@functools.cache
def run_of_levanter() -> Any:
    return run(optax.inject_hyperparams(adam_of_levanter)(learning_rate=rate_of_levanter))


def test_levanter_adam():
    """The factory becomes a chain with two schedules, and `hyperparameters(state)` lists what was injected."""
    theirs = optax.inject_hyperparams(adam_of_levanter)(learning_rate=rate_of_levanter)
    decay: Any = lambda step: coupled_decay(rate_of_levanter(step))  # noqa: E731
    ours = mx.Chain(
        mx.ClipByGlobalNorm(1.0),
        mx.ScaleByAdam(0.9, 0.95),
        mx.Scheduled(mx.AddDecayedWeights(decay, DECAYS)),
        mx.ScaleByLearningRate(rate_of_levanter),
    )
    assert_same(run(ours), run_of_levanter(), 1e-5)
    logged = ours.hyperparameters(ours.init(PARAMS))
    injected: Any = theirs.init(PARAMS)
    rate = injected.hyperparams["learning_rate"]
    np.testing.assert_allclose(logged["parts.scale_by_learning_rate.learning_rate"], rate, rtol=1e-6)
    np.testing.assert_allclose(logged["parts.scheduled.inner.weight_decay"], coupled_decay(rate), rtol=1e-6)


@pytest.mark.parametrize("library", [mx, optax], ids=["modulax", "optax"])
def test_levanter_factory(library: Any):
    """A factory of our parts, under `inject_hyperparams` of either library."""

    def adam(learning_rate: Any) -> Any:
        decay = mx.AddDecayedWeights(coupled_decay(learning_rate), DECAYS)
        chain = mx.Chain(mx.ClipByGlobalNorm(1.0), mx.ScaleByAdam(0.9, 0.95), decay, mx.Scale(-learning_rate))
        return chain if library is mx else mx.to_optax(chain)

    ours = library.inject_hyperparams(adam)(learning_rate=rate_of_levanter)
    theirs = optax.inject_hyperparams(adam_of_levanter)(learning_rate=rate_of_levanter)
    assert_same(run(ours), run_of_levanter(), 1e-5)
    # Its tracker looks for this attribute, and logs what it finds.
    logged = [tx.init(PARAMS).hyperparams["learning_rate"] for tx in (ours, theirs)]
    np.testing.assert_allclose(*logged, rtol=1e-6)
