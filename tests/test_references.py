"""The references of the pages, in plain `jax.numpy`, take the steps of the optimizers.

They are transcribed from the cited papers, or from the authors' code where an optimizer follows it, and so are the
equations with which the optimizers are compared.
"""

import functools
import inspect
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx

pytestmark = pytest.mark.usefixtures("x64")

FOLDER = Path(__file__).parents[1] / "docs" / "references"
STEPS, MANY = 6, 50
ARRAY, WIDE, TALL, SQUARE = (5,), (3, 5), (5, 3), (4, 4)


class Case(NamedTuple):
    """Three settings in which a reference is compared with its optimizer, and what both need besides.

    Args:
        settings: the arguments of both, numbers or schedules; the learning rate is given where they have none.
        shapes: the shapes of the array; each setting is tried on the next one.
        fixed: arguments of the optimizer that a reference, which is one algorithm, does not have.
        extra: a function of the array and the gradient that returns the extra arguments of both.
        sizes: the standard deviations of the gradients in the first and the last column; close to each other where
            rounding errors grow with the condition number.
        scales: the standard deviations of the initial arrays; each setting begins at the next one.
        steps: the number of steps; many where nothing else has the equations, and estimates take time.
    """

    settings: tuple[dict[str, Any], ...]
    shapes: tuple[tuple[int, ...], ...] = (ARRAY,)
    fixed: Mapping[str, Any] = {}
    extra: Callable[[Any, Any], dict[str, Any]] = lambda w, g: {}
    sizes: tuple[float, float] = (1e-2, 1e1)
    scales: tuple[float, ...] = (1.0,)
    steps: int = STEPS


def falling(step: Any) -> Any:
    return 1 - 0.045 * jnp.minimum(jnp.asarray(step, float), 20)


def rising_and_falling(step: Any) -> Any:
    return step * (STEPS - step) / 8


def separable(params: Any) -> Any:
    """A loss with a diagonal Hessian, some of it negative, which Hutchinson's estimate finds whatever its signs are."""
    return sum(jnp.sum(jnp.linspace(-1, 3, x.shape[-1]) * x**2 / 2 + x**4 / 12) for x in jtu.tree_leaves(params))


CASES = {
    "adamw": Case(({}, {"b1": 0.8, "b2": 0.95, "eps": 1e-3}, {"weight_decay": 0.3})),
    "lion": Case(({}, {"b1": 0.5, "b2": 0.8}, {"weight_decay": 0.3})),
    "adabelief": Case(({}, {"b1": 0.8, "b2": 0.95, "eps": 1e-3, "eps_root": 1e-3}, {"weight_decay": 0.3})),
    "adadelta": Case(({}, {"rho": 0.5, "eps": 1e-2}, {"learning_rate": 0.1, "weight_decay": 0.3})),
    "adafactor": Case(
        ({}, {"decay_rate": 0.5, "eps": 1e-2}, {"learning_rate": 0.1, "clipping_threshold": 0.5}),
        (WIDE, TALL),
        {"min_dim_size_to_factor": 2},
        scales=(1.0, 1e-5),
    ),
    "adagrad": Case(
        ({}, {"initial_accumulator_value": 0.5}, {"initial_accumulator_value": 0.0, "eps": 1e-2}), steps=MANY
    ),
    "adan": Case(
        ({}, {"b1": 0.9, "b2": 0.8, "b3": 0.95, "weight_decay": 0.3}, {"eps": 1e-3, "eps_root": 1e-3}),
    ),
    "ademamix": Case(({}, {"b1": 0.8, "b2": 0.95, "b3": 0.9}, {"alpha": 2.0, "eps": 1e-3, "weight_decay": 0.3})),
    "adopt": Case(({}, {"b1": 0.8, "b2": 0.95, "eps": 0.1}, {"weight_decay": 0.3})),
    "came": Case(
        (
            {},
            {"b1": 0.8, "b2": 0.95, "b3": 0.9, "instability_eps": 1e-2, "weight_decay": 0.3},
            {"eps": 1e-3, "clip_threshold": 20.0},
        ),
        (WIDE, TALL),
    ),
    "dadaptadamw": Case(
        (
            {},
            {"learning_rate": falling, "betas": (0.8, 0.99), "eps": 1e-4, "estim_lr0": 1e-2},
            {"estim_lr0": 0.1, "weight_decay": 0.3},
        ),
        steps=MANY,
    ),
    "lamb": Case(
        ({}, {"b1": 0.8, "b2": 0.95, "eps": 1e-3}, {"weight_decay": 0.3}),
        scales=(1.0, 0.0),
    ),
    "lars": Case(
        (
            {},
            {"weight_decay": 0.2, "trust_coefficient": 0.5, "eps": 1e-2, "momentum": 0.7, "nesterov": True},
            {"weight_decay": 0.3, "momentum": 0.5},
        ),
        scales=(1.0, 0.0, 1.0),
        steps=MANY,
    ),
    "mars": Case(
        ({}, {"b1": 0.8, "b2": 0.9, "gamma": 0.5, "max_norm": 60.0}, {"eps": 1e-3, "weight_decay": 0.3}), (WIDE, TALL)
    ),
    "prodigy": Case(
        (
            {},
            {"learning_rate": falling, "eps": 1e-4, "estim_lr0": 1e-2},
            {"betas": (0.8, 0.99), "estim_lr0": 0.1, "estim_lr_coef": 2.0, "weight_decay": 0.3},
        ),
        steps=MANY,
    ),
    "radam": Case(({}, {"b2": 0.5, "b1": 0.8}, {"b2": 0.99, "threshold": 1.0, "eps": 1e-3}), steps=MANY),
    "rmsprop": Case(({}, {"decay": 0.5, "eps": 1e-2}, {"momentum": 0.8})),
    "schedulefreeadamw": Case(
        (
            {},
            {"learning_rate": 0.05, "warmup_steps": 4, "b1": 0.7, "b2": 0.95},
            {"learning_rate": rising_and_falling, "eps": 1e-3, "weight_decay": 0.3},
        )
    ),
    "sophia": Case(
        (
            {},
            {"b1": 0.8, "b2": 0.9, "gamma": 100.0, "update_interval": 2},
            {"eps": 0.1, "weight_decay": 0.3, "clip_threshold": 0.1},
        ),
        extra=lambda w, g: {"obj_fn": jtu.Partial(separable)},
    ),
    "tiger": Case(({}, {"learning_rate": 0.1, "beta": 0.5}, {"learning_rate": 0.1, "weight_decay": 0.3}), (WIDE, TALL)),
    "muon": Case(
        ({}, {"beta": 0.8, "nesterov": False, "weight_decay": 0.1}, {"ns_steps": 3, "eps": 1e-3}), (WIDE, TALL)
    ),
    "normuon": Case(
        ({}, {"beta": 0.8, "b2": 0.5, "weight_decay": 0.1}, {"beta": 0.5, "moment_eps": 0.1}), (WIDE, TALL)
    ),
    "soap": Case(
        (
            {},
            {"b1": 0.8, "b2": 0.9, "precondition_frequency": 2},
            {"eps": 1e-3, "weight_decay": 0.3, "precondition_frequency": 1},
        ),
        (SQUARE,),
    ),
    "shampoo": Case(
        ({}, {"b1": 0.5, "eps": 1e-6, "weight_decay": 0.1}, {"b2": 0.8, "eps": 1e-3}), (WIDE, TALL), sizes=(0.5, 2.0)
    ),
    "klshampoo": Case(({}, {"b1": 0.5, "weight_decay": 0.1}, {"b2": 0.8, "eps": 1e-3}), (SQUARE,), sizes=(0.5, 2.0)),
    "kron": Case(
        ({}, {"b1": 0.5, "weight_decay": 0.3, "key": 73}, {"precond_lr": 0.5, "precond_init_scale": 2.0}),
        (WIDE, TALL),
        sizes=(0.5, 2.0),
    ),
    "dion": Case(({}, {"rank": 2, "beta": 0.8, "key": 7}, {"rank": 1, "eps": 0.1, "weight_decay": 0.3}), (WIDE, TALL)),
    "scion": Case(({}, {"beta": 0.5, "constrained": False}, {"scale": 3.0}), (WIDE, TALL)),
    "apollo": Case(
        (
            {},
            {"rank": 2, "update_proj_gap": 2, "max_growth": 1.5, "key": 7},
            {"rank": 1, "scale": 0.25, "b1": 0.5, "b2": 0.9, "eps": 1e-3, "weight_decay": 0.3},
        ),
        (WIDE, TALL),
    ),
    "galore": Case(
        ({}, {"rank": 2, "update_proj_gap": 2}, {"rank": 1, "scale": 0.25, "weight_decay": 0.3}), (WIDE, TALL)
    ),
}


def gradients(steps: int, shape: tuple[int, ...], sizes: tuple[float, float]) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.normal(size=(steps, *shape)) * np.geomspace(*sizes, shape[-1])


@functools.cache
def reference(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / f"{name}.py"))


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("name", CASES)
def test_the_reference_takes_the_steps_of_the_optimizer(name: str, which: int):
    case = CASES[name]
    theirs = reference(name)
    rate = inspect.signature(theirs["update"]).parameters["learning_rate"]
    settings = ({"learning_rate": 0.03} if rate.default is rate.empty else {}) | case.settings[which]
    shape = case.shapes[which % len(case.shapes)]
    ours = mx.get(name)(**settings, **case.fixed)
    grads = gradients(case.steps, shape, case.sizes)
    scale = case.scales[which % len(case.scales)]
    w = params = jnp.asarray(scale * np.random.default_rng(1).normal(size=shape))
    first = {x: settings.pop(x) for x in inspect.signature(theirs["init"]).parameters if x in settings}
    state, ours_state = theirs["init"](w, **first), ours.init({"kernel": params})
    step = jax.jit(lambda o, g, s, p, extra: o.step(g, s, p, **extra))
    for t, g in enumerate(grads):
        extra = case.extra(params, g)
        now = {name: value(t) if callable(value) else value for name, value in settings.items()}
        stepped, ours_state = step(ours, {"kernel": jnp.asarray(g)}, ours_state, {"kernel": params}, extra)
        w, state = theirs["update"](w, jnp.asarray(g), state, **now, **extra)
        params = stepped["kernel"]
        np.testing.assert_allclose(w, params, rtol=1e-12, atol=1e-13)


def test_every_reference_is_compared_and_fits_on_a_screen():
    files = {file.stem: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.py")}
    assert files.keys() == CASES.keys()
    assert not [name for name, text in files.items() if len(text.splitlines()) > 40]
    assert not [name for name, case in CASES.items() if len(case.settings) < 3]
