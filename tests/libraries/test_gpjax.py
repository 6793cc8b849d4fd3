"""GPJax's `fit`: it asks whether the optimizer is an `optax.GradientTransformation`, so ours go through `to_optax`."""

# pyright: reportMissingImports=false

from typing import Any

import equinox as eqx
import gpjax as gpx
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx

from ..programs.comparison import assert_learns, assert_same

pytestmark = pytest.mark.usefixtures("x64")


def fit(optimizer: Any, **options: Any) -> Any:
    x = jnp.linspace(0, 3, 20)[:, None]
    data = gpx.Dataset(X=x, y=jnp.sin(3 * x) + 0.1 * jnp.asarray(np.random.default_rng(0).normal(size=(20, 1))))
    prior = gpx.gps.Prior(mean_function=gpx.mean_functions.Constant(), kernel=gpx.kernels.RBF())
    objective: Any = gpx.objectives.conjugate_mll
    model, history = gpx.fit(
        model=prior * gpx.likelihoods.Gaussian(),
        objective=lambda posterior, data: -objective(posterior, data),
        train_data=data,
        optim=optimizer,
        num_iters=40,
        verbose=False,
        **options,
    )
    return eqx.filter(model, eqx.is_inexact_array), history


def test_fit():
    theirs = fit(optax.adamw(0.05))
    assert_learns(theirs[1])
    assert_same(fit(mx.to_optax(mx.AdamW(0.05))), theirs, 1e-9)
    assert_same(fit(mx.AdamW(0.05), safe=False), theirs, 1e-9)


def test_fit_without_the_adapter():
    with pytest.raises(TypeError, match=r"optax.GradientTransformation"):
        fit(mx.AdamW(0.05))
