"""Rules whose state has numbers of all leaves together, several arrays or none at a leaf, or extra arguments."""

import collections
from typing import Any, ClassVar

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float, PyTree

import modulax as mx
from modulax.testing import LAWS, Case, check_transform

PARAMS = {"a": jnp.asarray([3.0, 4.0]), "b": jnp.asarray(12.0)}


class LargestState(mx.AbstractState):
    """The steps, the sum of the updates, and the largest norm so far."""

    total: PyTree
    largest: Float[Array, ""] | None = mx.shared(None)
    count: Any = mx.counter()


class DivideByLargest(mx.AbstractLeafwise):
    """Divides by the largest norm of the summed updates so far, and by the loss."""

    needs = ("value",)

    floor: float = mx.number(1.0)

    def init_leaf(self, p):
        return LargestState(jnp.zeros_like(p))

    def init_shared(self, params):
        return {"largest": jnp.zeros(())}

    def survey(self, count, state, updates, params, **extra):
        norm = mx.tree.norm(jax.tree.map(jnp.add, state.total, updates)).astype(state.largest.dtype)
        return {"largest": jnp.maximum(state.largest, norm), "value": extra["value"], "t": count + 1}

    def share(self, now):
        return {"largest": now["largest"]}

    def update_leaf(self, now, g, s, p):
        u = now["value"] * now["t"] * g / jnp.maximum(now["largest"], self.floor)
        return u, LargestState(s.total + g)


def test_numbers_of_all_leaves_are_kept_in_the_state():
    rule = DivideByLargest()
    state = rule.init(PARAMS)
    assert (state.largest, state.count) == (0, 0)
    assert set(state.total) == {"a", "b"}
    updates, state = rule.update(PARAMS, state, value=2.0)
    assert state.largest == pytest.approx(13)
    np.testing.assert_allclose(updates["a"], 2 * PARAMS["a"] / 13, rtol=1e-6)
    small = jax.tree.map(lambda x: -x, PARAMS)
    updates, state = rule.update(small, state, value=1.0)
    assert (state.largest, state.count) == (pytest.approx(13), 2)
    np.testing.assert_allclose(updates["a"], -2 * PARAMS["a"] / 13, rtol=1e-6)


def test_they_obey_the_laws():
    check_transform(DivideByLargest(), PARAMS, extra={"value": jnp.asarray(0.5)})


class BestState(mx.AbstractState):
    """The steps so far, by leaf, and the smallest loss."""

    steps: PyTree
    best: Float[Array, ""] | None = mx.shared(None)


class ScaleByBest(mx.AbstractLeafwise):
    """Multiplies by the smallest loss so far; every array that it makes has a weak type."""

    needs = ("value",)

    def init_leaf(self, p):
        return BestState(jnp.asarray(0.0))

    def init_shared(self, params):
        return {"best": jnp.asarray(jnp.inf)}

    def survey(self, count, state, updates, params, **extra):
        return jnp.minimum(state.best, extra["value"])

    def share(self, now):
        return {"best": jnp.where(jnp.isnan(now), 1.0, 2.0)}

    def update_leaf(self, now, g, s, p):
        return now * g, BestState(jnp.asarray(3.0))


class Weak(mx.AbstractTransform):
    """A transform whose states have weak types."""

    def init(self, params):
        return BestState(None, jnp.asarray(0.0))

    def update(self, updates, state, params=None, **extra):
        return updates, BestState(None, jnp.asarray(1.0))


@pytest.mark.parametrize("call", [lambda f: f, jax.jit], ids=["call", "in jit"])
def test_states_of_weak_types_become_strong(call: Any):
    rule = ScaleByBest()
    for transform in (rule, Weak(), mx.Chain(Weak(), rule, mx.SGD(0.1)), mx.Masked(rule, True)):
        state = call(transform.init)(PARAMS)
        _, updated = call(transform.update)(PARAMS, state, PARAMS, value=0.5)
        _, stepped = call(transform.step)(PARAMS, state, PARAMS, value=0.5)
        weak = [[x.aval.weak_type for x in jax.tree.leaves(tree)] for tree in (state, updated, stepped)]
        assert all(weak)
        assert not any(map(any, weak))


@pytest.mark.parametrize("wrap", [lambda t: t, mx.Chain, lambda t: mx.MultiSteps(t, 1)], ids=["bare", "Chain", "Multi"])
def test_a_missing_extra_argument_is_named_with_the_call(wrap: Any):
    transform = wrap(DivideByLargest())
    state = transform.init(PARAMS)
    message = r"`DivideByLargest` needs `value`: call `update\(updates, state, params, value=...\)` or `step\(grads, "
    for method in (transform.update, transform.step):
        with pytest.raises(ValueError, match=message):
            method(PARAMS, state, PARAMS)


class RowsState(mx.AbstractState):
    """The maxima of the rows and columns of a matrix, as a list; of a vector nothing."""

    largest: PyTree


class DivideByRows(mx.AbstractLeafwise):
    """Divides a matrix by the largest entries of its rows and columns so far."""

    def init_leaf(self, p):
        return RowsState([jnp.zeros(n) for n in p.shape] if p.ndim == 2 else None)

    def update_leaf(self, now, g, s, p):
        if s.largest is None:
            return g, s
        rows = jnp.maximum(s.largest[0], jnp.max(jnp.abs(g), axis=1))
        columns = jnp.maximum(s.largest[1], jnp.max(jnp.abs(g), axis=0))
        return g / jnp.minimum(rows[:, None], columns[None, :]), RowsState([rows, columns])


class Pair(eqx.Module):
    """Two leaves, with static metadata."""

    matrix: Any
    vector: Any
    note: str = eqx.field(static=True, default="")


def test_a_leaf_may_have_several_arrays_or_none():
    grads = Pair(jnp.asarray([[1.0, -4.0], [2.0, 8.0]]), jnp.ones(2))
    rule = DivideByRows()
    state = rule.init(grads)
    assert state.largest.vector is None
    updates, state = rule.update(grads, state)
    np.testing.assert_array_equal(updates.matrix, [[0.5, -1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(state.largest.matrix[0], [4, 8])


def test_they_are_paired_by_path_where_only_metadata_differ():
    rule = DivideByRows()
    state = rule.init(Pair(jnp.ones((2, 2)), jnp.ones(2)))
    given = Pair(4 * jnp.ones((2, 2)), jnp.ones(2), "other")
    updates, new_state = rule.update(given, state)
    chex.assert_trees_all_equal(updates, Pair(jnp.ones((2, 2)), jnp.ones(2), "other"))
    np.testing.assert_array_equal(new_state.largest.matrix[1], [4, 4])
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    with pytest.raises(ValueError, match=r"they lack `matrix.0`, `matrix.1`"):
        rule.update({"vector": jnp.ones(2)}, state)


# --- The averages as functions of trees ------------------------------------------------------------

MOMENTS = {"w": jnp.asarray([0.5, -1.0]), "z": jnp.asarray([1.0 + 2.0j])}
NEW = {"w": jnp.asarray([2.0, 3.0]), "z": jnp.asarray([3.0 - 1.0j])}


def test_running_averages_are_those_of_optax():
    norms = jax.tree.map(jnp.abs, MOMENTS)
    for order in (1, 2, 3):
        both = (module.update_moment(NEW["w"], MOMENTS["w"], 0.9, order) for module in (mx.tree, optax.tree))
        chex.assert_trees_all_close(*both, rtol=1e-6, atol=1e-6)
    for order in (1, 2, 3, 4):
        ours = mx.tree.update_moment_per_elem_norm(NEW, norms, 0.9, order)
        expected = jax.tree.map(lambda m, g, k=order: 0.9 * m + 0.1 * np.abs(g) ** k, norms, NEW)
        chex.assert_trees_all_close(ours, expected, rtol=1e-5)
        assert ours["z"].dtype == jnp.float32
    ours = mx.tree.update_infinity_moment(NEW, norms, 0.9, 1e-3)
    expected = jax.tree.map(lambda m, g: np.maximum(0.9 * m, np.abs(g) + 1e-3), norms, NEW)
    chex.assert_trees_all_close(ours, expected, rtol=1e-6)
    ours, expected = mx.tree.bias_correction(MOMENTS, 0.9, 3), jax.tree.map(lambda m: m / (1 - 0.9**3), MOMENTS)
    chex.assert_trees_all_close(ours, expected, rtol=1e-6)


def test_running_averages_keep_the_dtype_of_the_moments():
    low = {"w": jnp.full(2, 0.5, jnp.bfloat16)}
    for f in (mx.tree.update_moment, mx.tree.update_moment_per_elem_norm):
        assert f({"w": jnp.ones(2)}, low, 0.999, 2)["w"].dtype == jnp.bfloat16
        wide = f(low, {"w": jnp.full(2, 0.5)}, 0.999, 2)
        np.testing.assert_allclose(wide["w"], 0.999 * 0.5 + 0.001 * 0.25, rtol=1e-6)
    corrected = mx.tree.bias_correction(low, 0.999, 1)["w"]
    assert corrected.dtype == jnp.bfloat16
    np.testing.assert_allclose(corrected.astype(float), 500, rtol=1e-2)


# --- A rule that is for some leaves, and looks at all of these first ---------------------------------


class MatricesState(mx.AbstractState):
    """The sum of the updates, and how many entries were looked at."""

    total: PyTree
    entries: Float[Array, ""] | None = mx.shared(None)


class OfMatrices(mx.AbstractLeafwise):
    """Divides matrices by the norm of all matrices, of the parameters and of what was summed."""

    needs = ("params",)
    seen: ClassVar[list[Any]] = []

    def where(self, tree):
        return [x.ndim == 2 for x in jax.tree.leaves(tree)]

    def init_leaf(self, p):
        return MatricesState(jnp.zeros_like(p))

    def init_shared(self, params):
        return {"entries": jnp.zeros(())}

    def survey(self, count, state, updates, params, **extra):
        trees = (state.total, updates, params)
        OfMatrices.seen.append([[x.dtype for x in jax.tree.leaves(tree)] for tree in trees])
        norms = [mx.tree.norm(tree) for tree in trees]
        return {"norm": norms[0] + norms[1] + norms[2], "entries": jnp.asarray(mx.tree.size(updates), float)}

    def share(self, now):
        return {"entries": now["entries"]}

    def update_leaf(self, now, g, s, p):
        return g / now["norm"], MatricesState(s.total + g)


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: mx.Chain(mx.Scale(1.0), t, mx.Scale(1.0))], ids=["bare", "Chain"]
)
def test_a_survey_is_of_the_leaves_that_the_rule_is_for(wrap: Any):
    params = {"kernel": jnp.full((2, 2), 2.0), "bias": jnp.full(3, 100.0), "out": jnp.full((1, 4), 1.0)}
    grads = jax.tree.map(lambda p: 0.5 * p, params)
    transform = wrap(OfMatrices())
    state = transform.init(params)
    norm, before = np.sqrt(4 * 2.0**2 + 4 * 1.0**2), 0.0
    for _ in range(2):
        updates, state = transform.update(grads, state, params)
        size = before + norm / 2 + norm
        np.testing.assert_allclose(updates["kernel"], 1 / size, rtol=1e-6)
        np.testing.assert_allclose(updates["out"], 0.5 / size, rtol=1e-6)
        np.testing.assert_array_equal(updates["bias"], grads["bias"])
        before += norm / 2
    held = state if isinstance(state, MatricesState) else state["of_matrices"]
    assert held.total["bias"] is None
    assert held.entries == 8


def test_a_survey_is_in_float32_whatever_the_dtypes_are():
    params = {"kernel": jnp.full((2, 2), 200.0, jnp.float16), "out": jnp.ones((2, 2), jnp.bfloat16)}
    OfMatrices.seen.clear()
    rule = OfMatrices()
    updates, state = rule.update(params, rule.init(params), params)
    assert OfMatrices.seen[-1] == [[jnp.float32, jnp.float32]] * 3
    assert updates["kernel"].dtype == state.total["kernel"].dtype == jnp.float16
    assert state.entries.dtype == jnp.float32
    np.testing.assert_allclose(updates["kernel"], 200 / (2 * np.sqrt(4 * 200.0**2 + 4)), rtol=1e-3)


@pytest.mark.parametrize(
    "name",
    [
        "structure_shapes_and_dtypes_are_kept",
        "absent_leaves_stay_absent",
        "empty_trees_are_fine",
        "a_chain_is_its_parts_one_by_one",
        "a_mask_of_all_is_no_mask",
        "a_partition_gives_each_leaf_its_own",
    ],
)
def test_a_rule_with_both_obeys_the_laws_about_leaves(name: str):
    LAWS[name].check(Case(OfMatrices()))


def test_a_function_of_arrays_is_called_for_every_leaf_and_one_of_trees_once():
    """With the parameters, or None without them."""
    g = {"a": jnp.ones(2), "b": None, "c": jnp.ones(())}
    p = {"a": jnp.full(2, 10.0), "b": None, "c": jnp.full((), 20.0)}
    calls = []

    def add(g: Any, p: Any) -> Any:
        calls.append(p)
        return g if p is None else jax.tree.map(lambda g, p: g + 0.1 * p, g, p)

    leaves, trees = mx.Stateless(add, leafwise=True), mx.Stateless(add)
    for params, expected in ((p, {"a": jnp.full(2, 2.0), "b": None, "c": jnp.asarray(3.0)}), (None, g)):
        for transform, times in ((leaves, 2), (trees, 1)):
            calls.clear()
            chex.assert_trees_all_close(transform.update(g, transform.init(p), params)[0], expected, rtol=1e-6)
            assert len(calls) == times
            assert (calls[0] is None) == (params is None)


def test_a_number_from_a_survey_without_jit():
    """Under `jax.disable_jit` nothing is traced, and a rule may compute a Python number."""
    params = {"w": jnp.ones(2)}
    with jax.disable_jit():
        optimizer = mx.MoMo()
        updates, _ = optimizer.update(params, optimizer.init(params), params, value=1.0)
    traced, _ = optimizer.update(params, optimizer.init(params), params, value=1.0)
    np.testing.assert_allclose(updates["w"], traced["w"], rtol=1e-6)


class HalvedState(mx.AbstractState):
    best: Any = mx.shared(None, starts=1.0)


class Halved(mx.AbstractLeafwise):
    """Its numbers have the names of the shared fields, or not."""

    name: str = eqx.field(static=True, default="best")

    def init_leaf(self, p):
        return HalvedState()

    def _prepare(self, count, state):
        return collections.namedtuple("Numbers", [self.name])(state.best / 2)

    def update_leaf(self, now, g, s, p):
        return now[0] * g, s


def test_shared_numbers_start_where_they_are_declared_and_go_into_the_state_by_name():
    rule, p = Halved(), jnp.ones(3)
    state = rule.init(p)
    for best in (0.5, 0.25):
        updates, state = rule.update(p, state)
        np.testing.assert_array_equal(updates, best)
        assert float(state.best) == best
    with pytest.raises(ValueError, match=r"no new value of the shared field `best`: return a NamedTuple .* `share\("):
        Halved("least").update(p, Halved().init(p))
