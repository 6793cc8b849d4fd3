"""`from_functions`: a pair of functions as a transform."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import modulax as mx

PARAMS = {"a": jnp.ones(2), "b": jnp.full(3, 2.0)}


def init(params: Any) -> Any:
    """A state of Python numbers, NumPy arrays and an array of the parameters itself."""
    return {"count": 0, "factor": np.float32(2.0), "first": params}


def update(updates: Any, state: Any, params: Any = None) -> Any:
    del params
    new = jax.tree.map(lambda u: state["factor"] * u, updates)
    return new, {**state, "count": state["count"] + 1, "factor": 2 * state["factor"]}


def test_it_works_in_containers():
    t = mx.from_functions(init, update)
    transforms = [
        t,
        mx.Chain(mx.Identity(), t),
        mx.Chain(mx.Masked(t, {"a": True, "b": False}), mx.Masked(t, {"a": False, "b": True})),
        mx.Partition({"x": t, "y": mx.Chain(t)}, {"a": "x", "b": "y"}),
    ]

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(states: Any) -> Any:
        return [transform.update(PARAMS, state) for transform, state in zip(transforms, states, strict=True)]

    states = [transform.init(PARAMS) for transform in transforms]
    for factor in (2.0, 4.0, 8.0):
        results = step(states)
        states = [state for _, state in results]
        for u, _ in results:
            chex.assert_trees_all_close(u, jax.tree.map(lambda p, f=factor: f * p, PARAMS))


def test_extra_arguments():
    """All of them for `**extra`, else those that the signature names."""
    seen = []

    def everything(updates: Any, state: Any, params: Any, **extra: Any) -> Any:
        seen.append({"params": params, **extra}.keys())
        return updates, state

    def some(updates: Any, state: Any, params: Any, value: Any, *, grad: Any = None) -> Any:
        seen.append({"params": params, "value": value, "grad": grad}.keys() if grad is not None else {})
        return jax.tree.map(lambda u: value * u, updates), state

    g = jnp.ones(2)
    both = mx.Chain(mx.from_functions(lambda p: (), everything), mx.from_functions(lambda p: (), some))
    u, _ = both.update(g, both.init(g), g, value=3.0, grad=g, other=1.0)
    np.testing.assert_array_equal(u, 3.0)
    assert seen == [{"params", "value", "grad", "other"}, {"params", "value", "grad"}]


def test_a_transform_inside_the_functions():
    """A user's function may call optimizers as anywhere, also on models with functions."""
    adam = mx.Adam(1.0)
    outer = mx.Chain(mx.from_functions(lambda p: adam.init({**p, "f": jnp.sin}), lambda u, s, p: adam.update(u, s, p)))
    u, _ = outer.update(PARAMS, outer.init(PARAMS), PARAMS)
    chex.assert_trees_all_close(u, jax.tree.map(lambda p: -jnp.ones_like(p), PARAMS), rtol=1e-5)


def test_dtypes_and_the_state_are_kept():
    def wide(updates: Any, state: Any, params: Any) -> Any:
        return jax.tree.map(lambda u: u.astype(jnp.float32), updates), state

    g = jnp.ones(2, jnp.bfloat16)
    transform = mx.from_functions(init, wide)
    state = transform.init(g)
    u, new = transform.update(g, state, g)
    assert u.dtype == jnp.bfloat16
    assert state.inner_state["first"] is not g
    assert jax.tree.map(lambda x: (x.dtype, x.weak_type), new) == jax.tree.map(lambda x: (x.dtype, x.weak_type), state)
    examples = mx.from_functions(lambda p: (), lambda u, s, p: (jnp.mean(u, 0), s), takes_examples=True)
    u, _ = mx.Chain(examples, mx.SGD(1.0)).update(jnp.asarray([[1.0], [3.0]]), mx.Chain(examples, mx.SGD(1.0)).init(g))
    np.testing.assert_array_equal(u, [-2.0])


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: the error message is ours
    with pytest.raises(ValueError, match=r"is not a modulax transform.*write `from_functions\(init, update\)`"):
        mx.Chain((init, update))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"must be a function, got 0.9\. Write `from_functions\(init, update\)`"):
        mx.from_functions(init, 0.9)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"`from_optax` needs an optax.*write `from_functions\(init, update\)`"):
        mx.from_optax((init, update))
    for wrong, found in (
        (lambda u, s, p: u, "returned `dict`"),
        (lambda u, s, p: ([u], s), r"returned PyTreeDef\(\["),
    ):
        transform = mx.from_functions(init, wrong)
        with pytest.raises(ValueError, match=rf"must return the updates.*`return updates, state`.*{found}"):
            transform.update(PARAMS, transform.init(PARAMS), PARAMS)
