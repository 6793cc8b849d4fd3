"""Stochastic variational inference of a Bayesian logistic regression, in NumPyro."""

# pyright: reportMissingImports=false

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import optax_to_numpyro

from modulax import compat as optax  # or: import optax

STEPS = 100


def logistic_regression(x: Any, y: Any = None) -> None:
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=x @ weights + bias), obs=y)


def train() -> Any:
    """The parameters of the guide and the losses."""
    x_key, y_key = jax.random.split(jax.random.key(0))
    x = jax.random.normal(x_key, (64, 3))
    y = jax.random.bernoulli(y_key, jax.nn.sigmoid(x @ jnp.asarray([2.0, -1.0, 0.0]))).astype(int)

    schedule = optax.exponential_decay(0.1, transition_steps=50, decay_rate=0.5)
    tx = optax.chain(optax.clip(10.0), optax.adam(schedule, b1=0.95))
    svi = SVI(logistic_regression, AutoNormal(logistic_regression), optax_to_numpyro(tx), Trace_ELBO(num_particles=4))
    result = svi.run(jax.random.key(1), STEPS, x, y, progress_bar=False)
    return result.params, result.losses


def main() -> Any:
    params, losses = results = train()
    print(f"negative ELBO {losses[0]:.2f} → {losses[-1]:.2f}, weights {params['weights_auto_loc'].round(2)}")
    assert losses[-1] < 0.8 * losses[0]
    return results


if __name__ == "__main__":
    main()
