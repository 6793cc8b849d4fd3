"""Five steps of a training with an optimizer of each family, under the settings that users debug with."""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import modulax as mx

FAMILIES = {
    "moments": mx.AdamW(1e-2, weight_decay=0.1, mask=mx.decays),
    "factored": mx.Adafactor(1e-2, min_dim_size_to_factor=2),
    "orthogonal": mx.Muon(1e-2, adam_learning_rate=1e-2),
    "eigenbasis": mx.SOAP(1e-2, precondition_frequency=2),
    "Kronecker": mx.Kron(1e-3),
    "sign": mx.Lion(1e-3),
    "trust ratio": mx.LAMB(1e-2),
    "tuning-free": mx.Prodigy(1.0),
    "averaged": mx.ScheduleFreeAdamW(1e-2),
    "scheduled": mx.SGD(mx.schedules.WarmupCosineDecay(0.0, 0.1, 2, 10), momentum=0.9),
    "line search": mx.LBFGS(),
    "8 bits": mx.LowBit(mx.AdamW(1e-2), min_size=1),
    "accumulated": mx.MultiSteps(mx.AdamW(1e-2), every_k=2),
    "around it": mx.ApplyIfFinite(mx.ParamEMA(mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(1e-2))), 3),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "double precision": {"jax_enable_x64": True},
    "no NaN": {"jax_debug_nans": True},
    "strict": {
        "jax_numpy_rank_promotion": "raise",
        "jax_numpy_dtype_promotion": "strict",
        "jax_traceback_filtering": "off",
        "jax_explain_cache_misses": True,
    },
}


# Not by `jax_defaults`, whose values are those of a thread, and hide what is set for the process.
DEFAULTS = {"jax_numpy_rank_promotion": "allow", "jax_numpy_dtype_promotion": "standard"}


@contextlib.contextmanager
def set_to(settings: dict[str, Any]) -> Iterator[None]:
    settings = DEFAULTS | settings
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
            assert getattr(jax.config, name) == value
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_training(family: str, name: str):
    optimizer = FAMILIES[family]
    with set_to(SETTINGS[name]):
        x = jax.random.normal(jax.random.key(0), (16, 3))
        model = eqx.nn.MLP(3, "scalar", width_size=4, depth=2, key=jax.random.key(1))
        params, static = eqx.partition(model, eqx.is_inexact_array)

        def loss_of(params: Any) -> Any:
            return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - jnp.sum(x**2, axis=1)) ** 2)

        @jax.jit
        def step(optimizer: Any, params: Any, state: Any) -> Any:
            value, grads = jax.value_and_grad(loss_of)(params)
            extra = {"value": value, "grad": grads, "value_fn": loss_of} if family == "line search" else {}
            return *optimizer.step(grads, state, params, **extra), value

        state = optimizer.init(params)
        losses = []
        for _ in range(5):
            params, state, loss = step(optimizer, params, state)
            losses.append(float(loss))
        dtype = "float64" if name == "double precision" else "float32"
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {dtype}
        assert losses[-1] < losses[0]
