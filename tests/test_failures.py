"""An exception in a rule, a container or a function of the user: what it says, and what its traceback shows."""

import traceback
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import modulax
import modulax.nnx

ROOT = str(Path(modulax.__file__).parent)
PARAMS = {"layers": [{"weight": jnp.ones((4, 3)), "bias": jnp.ones(3)} for _ in range(2)]}
STATE = modulax.EmptyState()


class Bad(modulax.AbstractLeafwise):
    """Fails at matrices."""

    error: type = eqx.field(static=True, default=ValueError)

    def update_leaf(self, now, g, s, p):
        del now, p
        calls.append(g.shape)
        if g.ndim == 2:
            raise self.error("no matrices")
        return g, s


calls: list[Any] = []


def fails(x: Any, *_: Any, **__: Any) -> Any:
    calls.append(x)
    raise KeyError("mine")


def notes_of(call: Any) -> tuple[list[str], list[traceback.FrameSummary]]:
    """The notes of the exception of a call, and the frames of modulax in its traceback."""
    calls.clear()
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call()
    frames = [f for f in traceback.extract_tb(raised.value.__traceback__) if f.filename.startswith(ROOT)]
    return [note for note in getattr(raised.value, "__notes__", []) if "JAX" not in note], frames


AT = "at `layers.0.weight`, float32[4, 3]"


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError, KeyError])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_an_exception_names_the_rule_and_the_leaf(error: Any, jit: bool):
    inner = modulax.Chain(modulax.ClipByGlobalNorm(1.0), modulax.Scale(2.0), Bad(error))
    chain = modulax.Chain(inner, modulax.SGD(0.1))
    state = chain.init(PARAMS)
    for method in ("update", "step"):
        run = getattr(chain, method)
        notes, frames = notes_of(lambda run=run: (jax.jit(run) if jit else run)(PARAMS, state, PARAMS))
        assert notes[0] == f"in `Bad.update_leaf`, {AT}"
        assert notes[1:] == ["in `Chain.update`"]
        assert calls.count((4, 3)) == 1
        assert len(frames) <= 3, frames


class BadFunction(modulax.AbstractLeafwise):
    """Calls a function of the library with what it refuses."""

    function: Any = eqx.field(static=True)

    def update_leaf(self, now, g, s, p):
        return self.function(g), s


@pytest.mark.parametrize(
    "function, room",
    [
        (lambda g: modulax.linalg.orthogonalize(g, coefficients=((1.0,),)), "linalg"),
        (lambda g: modulax.projections.projection_simplex(g, jnp.ones(2)), "projections"),
    ],
    ids=["linalg", "projections"],
)
def test_a_traceback_shows_the_function_that_failed(function: Any, room: str):
    _, frames = notes_of(lambda: BadFunction(function).update(PARAMS, STATE))
    assert any(f"/{room}/" in frame.filename for frame in frames), frames
    assert len(frames) <= 4, frames


def test_the_second_call_of_a_transform_runs_the_function_of_the_user_once():
    """Also where an earlier call went the direct way, and at a new shape."""
    bad, small = Bad(TypeError), {"b": jnp.ones(2)}
    for _ in range(2):
        np.testing.assert_array_equal(bad.update(small, bad.init(small))[0]["b"], 1.0)
    notes, _ = notes_of(lambda: bad.update({"w": jnp.ones((2, 2))}, STATE))
    assert notes[0] == "in `Bad.update_leaf`, at `w`, float32[2, 2]"
    assert calls == [(2, 2)]


class BadInit(modulax.AbstractLeafwise):
    def init_leaf(self, p):
        return fails(p) if p.ndim == 2 else STATE

    def update_leaf(self, now, g, s, p):
        return g, s


class BadSurvey(modulax.AbstractLeafwise):
    def survey(self, count, state, updates, params, **extra):
        return fails(updates)

    def update_leaf(self, now, g, s, p):
        return g, s


class BadContainer(modulax.AbstractContainer):
    inner: modulax.AbstractTransform = modulax.required_part()

    def init(self, params):
        return self.inner.init(params)

    def update(self, updates, state, params=None, **extra):
        return fails(updates)


SURVEY = modulax.Chain(BadSurvey())
SEARCH = modulax.Chain(modulax.ScaleByBacktrackingLinesearch(5))
CONDITION = modulax.ConditionallyTransform(modulax.Identity(), fails)
VALUE: dict[str, Any] = {"value": 1.0, "grad": PARAMS, "value_fn": fails}


@pytest.mark.parametrize(
    "call, first",
    [
        (lambda: modulax.Chain(BadInit()).init(PARAMS), f"in `BadInit.init_leaf`, {AT}"),
        (lambda: SURVEY.update(PARAMS, SURVEY.init(PARAMS)), "`BadSurvey.survey`"),
        (lambda: BadContainer(modulax.Identity()).update(PARAMS, STATE), "in `BadContainer.update`"),
        (lambda: modulax.Stateless(fails).update(PARAMS, STATE), "in `Stateless.update`"),
        (lambda: modulax.Stateless(fails, leafwise=True).update(PARAMS, STATE), "at `layers.0.bias`, float32[3]"),
        (
            lambda: SEARCH.update(PARAMS, SEARCH.init(PARAMS), PARAMS, **VALUE),
            "in `ScaleByBacktrackingLinesearch.update`",
        ),
        (lambda: CONDITION.update(PARAMS, CONDITION.init(PARAMS)), "in `ConditionallyTransform.update`"),
    ],
)
def test_functions_of_users(call: Any, first: str):
    notes, frames = notes_of(call)
    assert first in notes[0]
    assert len(calls) == 1
    assert len(frames) <= 3, frames


def test_in_nnx():
    model = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, modulax.Chain(Bad()), wrt=nnx.Param)
    grads = nnx.state(model, nnx.Param)
    for run in (optimizer.update, nnx.jit(lambda m, o, g: o.update(m, g))):
        given = (model, grads) if run == optimizer.update else (model, optimizer, grads)
        notes, frames = notes_of(lambda run=run, given=given: run(*given))
        assert notes[0] == "in `Bad.update_leaf`, at `kernel`, float32[4, 3]"
        assert len(frames) <= 3, frames


def test_all_frames_are_shown_on_request(monkeypatch: pytest.MonkeyPatch):
    bad = modulax.Chain(Bad())
    state = bad.init(PARAMS)
    _, few = notes_of(lambda: bad.update(PARAMS, state))
    monkeypatch.setenv("MODULAX_TRACEBACK", "full")
    _, every = notes_of(lambda: bad.update(PARAMS, state))
    assert len(few) <= 3 < len(every)
    assert any(frame.name == "run_rules" for frame in every)
