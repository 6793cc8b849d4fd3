"""The runs in docs/optimizer_runs.json, which the pages of the optimizers show, are those of the library."""

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import modulax as mx

from .scripts import script
from .settings import jax_defaults


@pytest.fixture(scope="module")
def runs() -> Any:
    with script(Path(__file__).parents[1] / "docs", "optimizer_runs") as module:
        yield module


@pytest.mark.parametrize("name", mx.available())
def test_the_path_of_a_picture_starts_with_the_steps_of_the_optimizer(name: str, runs: ModuleType):
    found = runs.results()[name]["quadratic"]
    optimizer = runs.made(name)
    optimizer = optimizer if found["rate"] is None else optimizer.replace(learning_rate=found["rate"])

    def loss(w: jax.Array) -> jax.Array:
        return runs.quadratic(w[0, 0], w[0, 1])

    with jax_defaults():
        params = runs.START[0]
        state, step = optimizer.init(params), jax.jit(functools.partial(runs.step, optimizer, loss))
        path = []
        for _ in range(5):
            path.append(optimizer.eval_params(state, params)[0])
            params, state = step(params, state)
    kept = np.asarray(found["path"])
    np.testing.assert_allclose(np.stack(path)[: len(kept)], kept[:5], atol=2e-3)
