"""Functions of `modulax.compat` that do more than construct a class: they are compared with optax's own."""

import contextlib
import functools
import importlib
import operator
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import modulax as mx
from modulax import compat

from . import settings

PARAMS = {"w": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(0.5)}


def nested(o: Any) -> Any:
    """A chain in which names occur once, twice, in an injected state and in a dict."""
    injected = o.inject_hyperparams(o.adam)(learning_rate=0.1)
    return o.chain(o.add_noise(1.0, 0.9, 0), o.chain(injected, o.trace(0.9)), o.scale_by_rss())


def texts(path: Any) -> list[str]:
    return list(map(str, path))


@pytest.mark.parametrize("key", ["count", "mu", "b1", "AddNoiseState", "ScaleByRssState", "trace", "hyperparams", "no"])
def test_values_are_found_where_optax_finds_them(key: str):
    theirs = optax.tree.get_all_with_path(nested(optax).init(PARAMS), key)
    ours = compat.tree.get_all_with_path(nested(compat).init(PARAMS), key)
    assert [texts(path) for path, _ in ours] == [texts(path) for path, _ in theirs]
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(jax.tree.leaves(a)[0], jax.tree.leaves(b)[0])
    if len(theirs) > 1:
        with pytest.raises(KeyError, match=f"could be `.*{key}`, `"):
            compat.tree.get(nested(compat).init(PARAMS), key)
    else:
        found = compat.tree_utils.tree_get(nested(compat).init(PARAMS), key, default="nothing")
        assert (found == "nothing") == (not theirs)


def test_filtering_reads_paths_of_optax():
    def of_adam(path: Any, value: Any) -> bool:
        is_key = isinstance(path[-1], compat.tree_utils.NamedTupleKey)
        return is_key and path[-1].tuple_name == "ScaleByAdamState" and jnp.ndim(value) == 0

    state = compat.tree.set(nested(compat).init(PARAMS), of_adam, count=7)
    assert int(compat.tree.get(state, "count", filtering=of_adam)) == 7
    assert sorted(int(x) for _, x in compat.tree.get_all_with_path(state, "count")) == [0, 0, 7]


def test_a_count_that_is_set_is_that_of_schedules_too():
    """As in optax, where each transform counts its own steps."""
    steps = {}
    for o in (optax, compat):
        tx = o.adam(o.linear_schedule(0.5, 0.1, 10))
        state = o.tree.set(tx.init(PARAMS), count=4)
        with settings.jax_defaults():
            steps[o] = jax.jit(tx.update)(PARAMS, state, PARAMS)[0]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), steps[compat], steps[optax])
    state = compat.sgd(compat.linear_schedule(0.5, 0.1, 10)).init(PARAMS)
    assert int(compat.tree.get(compat.tree.set(state, count=3), "count")) == 3


class Pair(NamedTuple):
    a: Any
    c: Any


@pytest.mark.parametrize(
    "tree, filtering, changes",
    [
        ({"a": {"a": 1.0}, "b": {"a": 1}}, lambda path, x: isinstance(x, float), {"a": 2.0}),
        ({"a": {"a": 1.0}, "b": {"a": 1}}, lambda path, x: isinstance(x, dict), {"a": {"c": 0.0}}),
        ([Pair(1, {"a": 2}), (3, Pair(4, 5))], None, {"a": 6, "c": "x"}),
        ([Pair(1, 2), 3], None, {"Pair": "y"}),
    ],
)
def test_other_trees_are_changed_as_in_optax(tree: Any, filtering: Any, changes: Any):
    assert compat.tree.set(tree, filtering, **changes) == optax.tree.set(tree, filtering, **changes)


def test_what_is_set_keeps_its_dtype():
    state = compat.inject_hyperparams(compat.adam)(learning_rate=0.1).init(PARAMS)
    new = compat.tree.set(state, learning_rate=np.float64(2), b1=3.0, count=5.0)  # unchecked, as in optax
    assert [x.dtype for x in jax.tree.leaves(new)] == [x.dtype for x in jax.tree.leaves(state)]
    assert (float(compat.tree.get(new, "b1")), float(new.hyperparams["learning_rate"])) == (3.0, 2.0)
    assert float(state.hyperparams["learning_rate"]) == np.float32(0.1)
    with pytest.raises(ValueError, match=r"`tree_set\(count=...\)`: it is int32, which cannot hold float32"):
        compat.tree.set(state, count=2.5)
    with pytest.raises(KeyError, match=r"`tree_set\(..., ema=...\)`: there is no `ema`\."):
        compat.tree.set(state, ema=1.0)
    with pytest.raises(KeyError, match="no `b1` that `filtering` lets through"):
        compat.tree.set(state, lambda path, x: False, b1=1.0)


def test_trees_of_complex_numbers_and_of_numpy():
    rng = np.random.default_rng(0)
    a = {"x": rng.normal(size=20) + 1j * rng.normal(size=20), "y": rng.normal(size=(3, 2))}
    b = jax.tree.map(np.flip, a)
    with settings.jax_defaults():
        for name in ("max", "min"):
            for tree in (a, a["y"], {"x": a["x"], "none": np.zeros(0)}):
                np.testing.assert_array_equal(getattr(compat.tree, name)(tree), getattr(optax.tree, name)(tree))
        np.testing.assert_array_equal(compat.tree.vdot(a, b), optax.tree.vdot(a, b))
        quotient = compat.tree.div(a, b)
        assert type(quotient["x"]) is np.ndarray
        jax.tree.map(np.testing.assert_array_equal, quotient, optax.tree.div(a, b))
        assert compat.tree.div({"x": jnp.ones(2)}, {"x": np.ones(2)})["x"].dtype == jnp.float32
        half = {"x": jnp.full(4, 300, jnp.float16)}
        assert float(compat.tree.vdot(half, half)) == 360000  # and not infinity


def test_a_parameter_that_is_none_stays_none():
    params, updates = {"a": None, "b": jnp.ones(2)}, {"a": jnp.ones(3), "b": jnp.ones(2)}
    new: Any = compat.apply_updates(params, updates)
    theirs: Any = optax.apply_updates(params, updates)
    assert new["a"] is None
    np.testing.assert_array_equal(new["b"], theirs["b"])
    np.testing.assert_array_equal(compat.apply_updates(updates, updates)["a"], 2.0)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda o: o.exponential_decay(2.0, 0, 0.5), r"transition_steps=0\)` is constant"),
        (lambda o: o.exponential_decay(2.0, -3, 0.5), r"transition_steps=-3\)` is constant"),
        (lambda o: o.exponential_decay(2.0, 3, 0.0), r"decay_rate=0.0\)` is constant"),
        (lambda o: o.exponential_decay(2.0, 3, 0.5, -2, end_value=0.1), r"transition_begin=-2\)` begins at 0"),
        (lambda o: o.linear_schedule(2.0, 1.0, 0), r"`linear_schedule\(transition_steps=0\)` is constant"),
        (lambda o: o.linear_schedule(2.0, 1.0, 5, -1), r"transition_begin=-1\)` begins at 0"),
        (lambda o: o.polynomial_schedule(2.0, 1.0, 2, -1), r"transition_steps=-1\)` is constant"),
        pytest.param(lambda o: o.polynomial_schedule(2.0, 1.0, 3, 5), None, id="polynomial"),
        (lambda o: o.warmup_cosine_decay_schedule(0.2, 0, 2, 8, -3.0), r"peak_value=0\)` ends at 0.*not at -3.0"),
        (lambda o: o.warmup_cosine_decay_schedule(0.2, 0.4, 2, 8, 0.1), None),
        (lambda o: o.join_schedules([lambda t: 0.1 * t, lambda t: 2.0], [3, 8, 9]), r"2 schedules and 3 boundaries"),
        pytest.param(lambda o: o.join_schedules([lambda t: 0.1 * t, lambda t: 2.0], [3, 8]), None, id="with an end"),
        (lambda o: o.join_schedules([lambda t: 0.1 * t, lambda t: 2.0, lambda t: 3.0], [3]), r"first 2 and 1, as in"),
        pytest.param(lambda o: o.join_schedules([lambda t: 0.1 * t], [3]), None, id="one with an end"),
        (lambda o: o.join_schedules([lambda t: 0.1 * t, lambda t: 2.0], []), r"uses the first 1 and 0"),
        pytest.param(lambda o: o.join_schedules([lambda t: 0.1 * t, lambda t: 2.0], [3]), None, id="joined"),
    ],
)
def test_schedules_at_the_edges_are_those_of_optax(make: Callable[[Any], Any], message: str | None):
    if message is None:
        with warnings.catch_warnings(action="error"):
            ours = make(compat)
    else:
        with pytest.warns(UserWarning, match=message):
            ours = make(compat)
    assert isinstance(ours.schedule, mx.AbstractSchedule)
    steps = np.asarray([0, 1, 4, 9])
    with settings.jax_defaults():
        desired = make(optax)(steps) if message is None or "peak" in message else jax.vmap(make(optax))(steps)
    np.testing.assert_allclose(jax.vmap(ours)(steps), desired, rtol=1e-6, atol=1e-7)


def test_a_traced_number_of_steps_is_not_compared():
    assert jax.jit(lambda steps: compat.linear_schedule(2.0, 1.0, steps)(3))(6) == 1.5


def test_negative_decay_rates_are_refused():
    with pytest.raises(ValueError, match=r"`ExponentialDecay\(decay_rate=...\)` must be positive"):
        compat.exponential_decay(1.0, 2, -0.5)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda o: o.adagrad(0.1, initial_accumulator_value=-1.0), r"`Adagrad\(initial_accumulator_value=...\)"),
        (lambda o: o.ema(1.0, debias=False), r"`Ema\(decay=...\)` must be in \[0, 1\), got 1.0. It is accepted"),
        (lambda o: o.clip(-1.0), r"`Clip\(max_delta=...\)` must not be"),
        (lambda o: o.masked(o.rmsprop(0.1, 1.0), {"w": True, "b": False}), r"`RMSProp\(decay=...\)`"),
        (lambda o: o.inject_hyperparams(o.lion)(0.1, 1.0), r"`Lion\(b1=...\)` must be in"),
        (lambda o: o.chain(o.GradientTransformation(*o.scale(0.5)), o.yogi(0.1, b2=1.0)), r"`Yogi\(b2=...\)`"),
        (lambda o: o.novograd(lambda step: 0.1, b1=1.0), r"`NovoGrad\(b1=...\)`"),
    ],
)
def test_numbers_outside_their_range_are_accepted_as_in_optax(make: Callable[[Any], Any], message: str):
    updates = {}
    for o in (compat, optax):
        with pytest.warns(UserWarning, match=message) if o is compat else contextlib.nullcontext():
            tx = make(o)
        state, seen = tx.init(PARAMS), []
        with settings.jax_defaults():
            for _ in range(3):
                new, state = tx.update(PARAMS, state, PARAMS)
                seen.append(new)
        updates[o] = seen
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), updates[compat], updates[optax])


def test_ranges_are_checked_outside_of_compat_and_not_of_traced_numbers():
    traced = jax.jit(lambda b1: compat.scale_by_lion(b1).update(PARAMS, compat.scale_by_lion().init(PARAMS))[0])
    np.testing.assert_array_equal(traced(1.0)["b"], 0.0)
    with pytest.raises(ValueError, match=r"`RMSProp\(decay=...\)` must be in \[0, 1\), got 1.0.$"):
        mx.RMSProp(0.1, decay=1.0)


@pytest.mark.parametrize("name", ["adamw", "sgd", "lamb", "adafactor", "contrib.muon", "scale"])
def test_a_learning_rate_for_each_coordinate(name):
    """An array of rates is broadcast with every parameter, as in optax, also where it is injected."""
    rate, params = jnp.asarray([0.1, 0.2]), {"w": PARAMS["w"], "b": jnp.asarray([0.3, -0.2])}
    updates: list[Any] = []
    with settings.jax_defaults():
        for module in (optax, compat):
            make: Any = operator.attrgetter(name)(module)
            for tx in (
                module.chain(module.clip_by_global_norm(1.0), make(rate)),
                module.inject_hyperparams(make)(rate),
            ):
                updates.append(tx.update(params, tx.init(params), params)[0])
    chex.assert_trees_all_close(updates[:2], updates[2:], rtol=2e-5)


def test_a_learning_rate_with_an_axis():
    """Of one number it is that number. Natively an array is an error, which says what to write."""
    for rate in (np.asarray([0.1]), jnp.asarray([0.1])):
        assert compat.adamw(rate).transform.learning_rate == pytest.approx(0.1)
        assert compat.inject_hyperparams(compat.sgd)(rate).init(PARAMS).hyperparams["learning_rate"].shape == ()
    with pytest.raises(ValueError, match=r"shape \(1,\).*chain `Stateless\(lambda u, p: x \* u, leafwise=True\)`"):
        mx.SGD(np.asarray([0.1]))
    tx: Any = compat.sgd(np.asarray([0.1, 0.2]))
    with pytest.raises(ValueError, match="`SGD` is a batch of transforms: `learning_rate` is not a scalar"):
        tx.transform.init(PARAMS)


def test_numbers_with_which_optax_computes_something_else_are_refused():
    for make in (
        lambda: compat.apply_every(0),
        lambda: compat.MultiSteps(compat.sgd(0.1), 0),
        lambda: compat.clip_by_block_rms(-1.0),
        lambda: compat.adafactor(0.1, clipping_threshold=-1.0),
        lambda: compat.contrib.schedule_free_sgd(0.1, warmup_steps=-1),
        lambda: compat.scale_by_zoom_linesearch(5, tol=-1.0),
        lambda: compat.piecewise_constant_schedule(0.1, {2: -1.0}),
    ):
        with pytest.raises(
            ValueError, match=r"must (not be negative|be at least 1|be a whole number of at least 1), got"
        ):
            make()


def test_a_wrapped_schedule_counts_its_steps():
    states = {}
    for o in (optax, compat):
        wrapped = o.schedules.WrappedSchedule(o.linear_schedule(1.0, 0.0, 4))
        tx = o.inject_hyperparams(o.sgd)(learning_rate=wrapped)
        state = tx.init(PARAMS)
        for _ in range(2):
            with settings.jax_defaults():
                state = jax.jit(tx.update)(PARAMS, state, PARAMS, loss=jnp.ones(()))[1]
        held = state.hyperparams_states
        states[o] = int(held["learning_rate"].count), float(state.hyperparams["learning_rate"])
        assert float(wrapped(wrapped.update(wrapped.init(), loss=1.0))) == 0.75
    assert states[compat] == states[optax] == (2, 0.75)


def test_dice_loss_of_what_is_no_distribution():
    wrong, targets = jnp.asarray([[[0.3, 0.3], [0.6, 0.4]]]), jnp.asarray([[[1.0, 0.0], [0.0, 1.0]]])
    loss = functools.partial(compat.losses.dice_loss, apply_softmax=False)
    with pytest.raises(ValueError, match="valid probability distributions"):
        loss(wrong, targets)
    right = wrong.at[0, 0].set(jnp.asarray([0.7, 0.3]))
    desired = optax.losses.dice_loss(right, targets, apply_softmax=False)
    np.testing.assert_allclose(loss(right, targets), desired, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(loss)(right, targets), desired, rtol=1e-6)
    assert jnp.isfinite(loss(wrong[..., :1], targets[..., :1])).all()
    assert jnp.isfinite(compat.losses.dice_loss(wrong, targets)).all()


def test_helpers_of_muon_and_of_the_gaussian():
    muon = importlib.import_module("optax.contrib._muon")
    x = jnp.arange(120.0).reshape(2, 3, 4, 5) % 7
    for rows, columns in ((2, (0, 3)), (-3, -1)):
        functions = [
            o(x, muon.MuonDimensionNumbers(rows, columns))
            for o in (compat._compute_muon_reshape, muon._compute_muon_reshape)
        ]
        desired = functions[1][0](x)
        np.testing.assert_array_equal(functions[0][0](x), desired)
        np.testing.assert_array_equal(functions[0][1](desired), x)
        arguments = jnp.asarray([2.0, -1.5, 0.5]), 4, "frobenius", 1e-8, muon.MuonDimensionNumbers(rows, columns)
        orthogonal = compat.orthogonalize_via_newton_schulz(x, *arguments)
        np.testing.assert_allclose(
            orthogonal, muon.orthogonalize_via_newton_schulz(x, *arguments), rtol=1e-4, atol=1e-5
        )
    with pytest.raises(ValueError, match=r"`_compute_muon_reshape` needs a matrix, or the axes of one"):
        compat._compute_muon_reshape(x[0, 0, 0], None)
    made = compat.multi_normal(jnp.ones((1, 4)), jnp.ones((3, 1)))
    assert isinstance(made, compat.MultiNormalDiagFromLogScale)
    assert made._param_shape == made.mean().shape == (3, 4)
    with pytest.raises(ValueError, match="Incompatible shapes for broadcasting: `multi_normal` needs"):
        compat.multi_normal(jnp.ones(2), jnp.ones(3))


@pytest.mark.parametrize("path", ["tree.get", "tree.set", "tree.max", "tree.vdot", "schedules.exponential_decay"])
def test_names_are_one_function_wherever_they_are(path: str):
    place, _, name = path.partition(".")
    other = f"tree_utils.tree_{name}" if place == "tree" else name
    assert operator.attrgetter(path)(compat) is operator.attrgetter(other)(compat)
