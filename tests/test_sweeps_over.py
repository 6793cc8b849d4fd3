"""`sweeps.over`: a training in several shapes, as one sweep, in a folder, and in a search; its mistakes."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import modulax as mx
from modulax import sweeps
from modulax.sweeps._experiment import Experiment

from .sweep_probes import count_trained

QUIET: dict[str, Any] = {"progress": False, "devices": 1}
SWEEP = sweeps.concat([sweeps.grid(mx.SGD(0.1), learning_rate=[0.1, 0.2]), mx.SignSGD(0.1)])


def train_of(width: int, noise: str) -> sweeps.Trainable:
    """A parabola in so many dimensions, from where a key says."""

    def start(optimizer: Any, key: Any) -> Any:
        draw = jax.random.normal if noise == "normal" else jax.random.uniform
        return {"params": draw(key, (width,)), "state": optimizer.init(jnp.zeros(width))}

    def advance(optimizer: Any, carry: Any) -> Any:
        params, state = optimizer.step(carry["params"], carry["state"], carry["params"])
        return {"params": params, "state": state}, {"loss": jnp.sum(params**2)}

    return sweeps.Trainable(start, advance)


def test_shapes_are_columns_of_one_sweep_and_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained, folder = count_trained(monkeypatch), tmp_path / "sweep"
    options: dict[str, Any] = {"seeds": 2, "segments": 2, "folder": folder, **QUIET}
    first = sweeps.run(SWEEP, sweeps.over(train_of, width=np.array([2]), noise=["normal", "uniform"]), **options)
    assert trained["runs"] == 2 * 2 * 6
    both = sweeps.over(train_of, width=[2, 5], noise=["normal", "uniform"])
    results = sweeps.run(SWEEP, both, **options)
    assert trained["runs"] == 2 * 2 * 12  # only the new width
    np.testing.assert_array_equal(results["loss"][:6], first["loss"])
    assert [(row["width"], row["noise"]) for row in results.table("loss")[::3]] == [
        (width, noise) for width in (2, 5) for noise in ("normal", "uniform")
    ]
    # As without `over`, with the same keys.
    alone = sweeps.run(SWEEP, train_of(5, "uniform"), seeds=2, segments=2, **QUIET)
    np.testing.assert_allclose(results["loss"][9:], alone["loss"], rtol=1e-6)
    assert results.load(0)["params"].shape == (2,)
    assert results.load(9, seed=1)["params"].shape == (5,)
    stored = sweeps.load(folder)
    assert stored.sweep.table() == results.sweep.table()
    np.testing.assert_array_equal(stored["loss"], results["loss"])
    # These runs are there, in whatever order; chosen members keep their shapes.
    trained.clear()
    sweeps.run(SWEEP, sweeps.over(train_of, noise=["uniform"], width=[5, 2]), **options)
    chosen = sweeps.concat([results.sweep[[10]], results.sweep[:1]])
    again = sweeps.run(chosen, both, **options)
    np.testing.assert_array_equal(again["loss"], results["loss"][[10, 0]])
    assert chosen != sweeps.Sweep([results.sweep[10], results.sweep[0]])
    halved = sweeps.halving(SWEEP, both, "loss", rungs=[1, 2], folder=folder, progress=False, devices=1)
    assert (halved.segments == 2).sum() == 4
    assert trained["runs"] == 0


@pytest.mark.parametrize(
    "values, kind, says",
    [
        ({}, ValueError, r"needs values under names of their own, `width=\[64, 128\]`: it got none"),
        ({"seed": [1]}, ValueError, "`seed` is a column of the table already"),
        ({"width": 3}, ValueError, r"`sweeps.over\(width=...\)` must be a list of values"),
        ({"width": [3, 3]}, ValueError, "written alike, and a table couldn't tell them apart: 3, 3"),
        ({"width": [3]}, TypeError, r"calls `build\(width=...\)`, and this function is `build\(width"),
        ({"width": [3], "noise": ["normal"], "b1": [0]}, TypeError, r"calls `build\(width=..., noise=..., b1=...\)`"),
    ],
)
def test_values_that_cannot_be_shapes(values: Any, kind: Any, says: str):
    with pytest.raises(kind, match=says):
        sweeps.over(train_of, **values)


@pytest.mark.parametrize("build", [train_of(2, "normal"), sweeps.Trainable])
def test_what_cannot_make_trainings(monkeypatch: pytest.MonkeyPatch, build: Any):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match="needs the function that makes a training"):
        sweeps.over(build, width=[2])


def test_trainings_that_cannot_be_one_sweep(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    call: Any = sweeps  # for calls that a type checker refuses
    of_width = sweeps.over(lambda width: train_of(width, "normal"), width=[2])
    shaped = of_width.members(SWEEP)

    def curve(n: int) -> Any:
        return lambda optimizer, key: {"loss": jnp.zeros(n)}

    def mixed(n: int) -> Any:
        return curve(n) if n > 1 else train_of(n, "normal")

    for wrong, kind, says in (
        (
            lambda: call.run(SWEEP, call.over(curve, n=[1, 2])),
            ValueError,
            "For SGD with n=2, `loss` is float32.2.; for",
        ),
        (lambda: call.run(SWEEP, call.over(mixed, n=[1, 2])), TypeError, "a `Trainable` for all of the values, or for"),
        (lambda: call.run(SWEEP, call.over(lambda n: None, n=[1])), TypeError, "needs the training as a function"),
        (lambda: call.run(SWEEP, call.over(curve, learning_rate=[1])), TypeError, "calls `build.learning_rate=...."),
        (
            lambda: call.run(SWEEP, call.over(lambda momentum: curve(1), momentum=[1])),
            ValueError,
            "SGD has a hyperparameter `momentum` too",
        ),
        (lambda: call.run(shaped, curve(1)), ValueError, "`sweeps.over` with `width`, and this training has none"),
        (
            lambda: Experiment(SWEEP, of_width, key=None, devices=1, segments=1, name="sweeps.pbt"),
            TypeError,
            r"`sweeps.pbt` takes one training, .* `\{width: sweeps.pbt\(..., build\(width=width\), ...\) for width in",
        ),
    ):
        with pytest.raises(kind, match=says):
            wrong()
    assert call.run([*shaped], of_width, **QUIET)["loss"].shape == (3, 1, 1)
