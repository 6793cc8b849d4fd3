"""flowjax takes our optimizers as they are: maximum likelihood, and a variational loss."""

# pyright: reportMissingImports=false

from typing import Any

import equinox as eqx
import numpy as np
import optax
from flowjax.distributions import Normal
from flowjax.flows import masked_autoregressive_flow
from flowjax.train import fit_to_data, fit_to_key_based_loss
from flowjax.train.losses import ElboLoss
from jax import random

import modulax as mx

from ..programs.comparison import assert_learns, assert_same


def flow() -> Any:
    base = Normal(np.zeros(2, np.float32))
    return masked_autoregressive_flow(random.key(0), base_dist=base, flow_layers=1, nn_width=4, nn_depth=1)


def fit(optimizer: Any) -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 1))
    data = np.concatenate([x, x**2 + 0.3 * rng.normal(size=(200, 1))], axis=1).astype(np.float32)
    fitted, losses = fit_to_data(
        random.key(1), flow(), data, optimizer=optimizer, max_epochs=6, batch_size=50, show_progress=False
    )
    return eqx.filter(fitted, eqx.is_inexact_array), np.asarray(losses["train"]), np.asarray(losses["val"])


def fit_by_elbo(optimizer: Any) -> Any:
    target = Normal(np.asarray([1.0, -1.0], np.float32), 0.5)
    fitted, losses = fit_to_key_based_loss(
        random.key(1),
        flow(),
        loss_fn=ElboLoss(target.log_prob, num_samples=20),
        steps=20,
        optimizer=optimizer,
        show_progress=False,
    )
    return eqx.filter(fitted, eqx.is_inexact_array), np.asarray(losses)


def test_maximum_likelihood():
    theirs = fit(optax.adamw(2e-2))
    assert_learns(theirs[1])
    assert_same(fit(mx.AdamW(2e-2)), theirs, 1e-4)
    assert_same(fit(mx.to_optax(mx.AdamW(2e-2))), theirs, 1e-4)


def test_variational_loss():
    theirs = fit_by_elbo(optax.adam(2e-2))
    assert_learns(theirs[1])
    assert_same(fit_by_elbo(mx.Adam(2e-2)), theirs, 1e-4)
