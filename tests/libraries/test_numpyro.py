"""NumPyro's SVI: it asks whether the optimizer is an `optax.GradientTransformation`, so ours go through `to_optax`."""

# pyright: reportMissingImports=false

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import optax_to_numpyro

import modulax as mx

from ..programs.comparison import assert_learns, assert_same

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2)).astype(np.float32)
Y = (X @ np.asarray([1.0, -2.0]) + 0.5 + 0.3 * RNG.normal(size=40)).astype(np.float32)


def model(x: Any, y: Any) -> None:
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(2), 1).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0, 1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ weights + bias, noise), obs=y)


def fit(optimizer: Any, **options: Any) -> Any:
    result = SVI(model, AutoNormal(model), optimizer, Trace_ELBO()).run(
        random.key(0), 100, X, Y, progress_bar=False, **options
    )
    return result.params, result.losses


@pytest.mark.parametrize("stable", [False, True], ids=["update", "stable_update"])
def test_svi(stable: bool):
    rate = optax.exponential_decay(0.05, 50, 0.5)
    theirs = fit(optax.chain(optax.clip(10.0), optax.adam(rate)), stable_update=stable)
    rate = mx.schedules.ExponentialDecay(0.05, 50, 0.5)
    ours = fit(mx.to_optax(mx.Chain(mx.Clip(10.0), mx.Adam(rate))), stable_update=stable)
    assert_same(ours, theirs, 1e-4)
    assert_learns(theirs[1])


def test_svi_without_the_adapter():
    with pytest.raises(TypeError, match=r"optax.GradientTransformation"):
        fit(mx.Adam(0.05))
    theirs, ours = fit(optax.adam(0.05)), fit(optax_to_numpyro(mx.Adam(0.05)))
    assert_same(ours, theirs, 1e-4)


def test_svi_hands_on_the_loss():
    """MoMo needs `value`. `SVI` passes it to whatever is one of optax's types, but not to others."""
    theirs = fit(optax.contrib.momo(0.1))
    ours = fit(mx.to_optax(mx.MoMo(0.1, follow="optax")))
    assert_same(ours, theirs, 1e-4)
    with pytest.raises(ValueError, match="value"):
        fit(optax_to_numpyro(mx.MoMo(0.1)))
