"""A state that is divided among groups of parameters, or joined, in a lenient restore: it goes on as it would have."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import checkpoint, schedules

from .settings import jax_defaults

PARAMS = {"b": np.linspace(-1, 1, 3).astype(np.float32), "w": np.linspace(-1, 2, 4).astype(np.float32).reshape(2, 2)}
RATE = schedules.Linear(0.1, 0.01, 9)

# Rules that treat each parameter for itself, so that groups with equal hyperparameters change nothing.
RULES = {
    "Adam": lambda: mx.Adam(RATE),
    "SGD": lambda: mx.SGD(RATE),
    "momentum": lambda: mx.SGD(RATE, momentum=0.9),
    "AMSGrad": lambda: mx.AMSGrad(RATE),
    "RMSProp": lambda: mx.RMSProp(RATE, momentum=0.9),
    "Adan": lambda: mx.Chain(mx.Clip(1.0), mx.Adan(RATE)),
    "two": lambda: mx.Chain(mx.Ema(0.9), mx.Lion(RATE)),
}
FORMS = {
    "whole": lambda t: t,
    "groups": lambda t: mx.groups(t, {"w": {"learning_rate": RATE}}),
    "parts": lambda t: mx.Partition({"p": t, "q": t}, {"b": "p", "w": "q"}),
    "part": lambda t: mx.Partition({"all": t}, {"b": "all", "w": "all"}),
}
CONTAINERS = {
    "none": lambda t: t,
    "MultiSteps": lambda t: mx.MultiSteps(t, 2),
    "ParamEMA": lambda t: mx.ParamEMA(t, 0.9),
    "Lookahead": lambda t: mx.Lookahead(t, 2, 0.5),
    "ApplyIfFinite": lambda t: mx.ApplyIfFinite(t, 3),
    "Chain": lambda t: mx.Chain(mx.ClipByGlobalNorm(1e3), t),
}


@pytest.fixture(autouse=True)
def _defaults():
    with jax_defaults():
        yield


def grads(i: Any) -> Any:
    return jtu.tree_map(lambda p: jnp.sin(3 * p + i) + 0.1, PARAMS)


def after(transform: Any, steps: int = 3) -> Any:
    """The state after some steps."""

    @jax.jit
    def run(params: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            params, state = carry
            return transform.step(grads(i), state, params), None

        return jax.lax.scan(step, (params, transform.init(params)), jnp.arange(steps))[0][1]

    return run(jtu.tree_map(jnp.asarray, PARAMS))


def moved(template: Any, state: Any, **kwargs: Any) -> Any:
    return checkpoint.load_state_dict(template, checkpoint.state_dict(state), strict=False, **kwargs)


def assert_close(a: Any, b: Any, what: Any) -> None:
    assert jtu.tree_structure(a) == jtu.tree_structure(b), what
    for x, y in zip(jtu.tree_leaves(a), jtu.tree_leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7, err_msg=str(what))


@pytest.mark.filterwarnings("ignore:.*keeps parameters")
@pytest.mark.parametrize("rule", RULES)
def test_a_state_goes_on_in_other_groups(rule: str):
    """Each way between a whole optimizer and groups, inside a container and with containers inside."""
    import time
    containers = CONTAINERS
    for container in containers:
        around = CONTAINERS[container]
        t0=time.time()
        wholes = {form: around(make(RULES[rule]())) for form, make in FORMS.items()}
        divided = {form: make(around(RULES[rule]())) for form, make in FORMS.items() if form != "groups"}
        for forms in (wholes, divided):
            states = {form: after(x) for form, x in forms.items()}
            t1=time.time()
            for old, new in itertools.permutations(forms, 2):
                found, report = moved(forms[new].init(PARAMS), states[old])
                assert not report.fresh and not report.remarks, (container, old, new, report)
                assert_close(found, states[new], (container, old, new))
            print(container, t1-t0, time.time()-t1)
