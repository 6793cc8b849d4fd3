"""Aggregators of the examples' updates: against optax, against the formulas, in the situations they are made for."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from optax.experimental import aggregating

import modulax as mx
from modulax import aggregate, tree
from modulax.microbatching import AccumulationType, micro_grad

from .refusals import refused
from .settings import jax_defaults

STEPS = 60
PARAMS = {"w": np.array([[0.3, -1.2], [0.7, 2.0]]), "b": np.array([0.4, -0.1])}


def batches(steps: int = STEPS, examples: tuple[int, ...] = (4,)) -> Any:
    """Updates of each example, at each step: on the second axis and the third."""
    random = np.random.default_rng(0)
    return jtu.tree_map(lambda p: 0.5 + random.normal(size=(steps, *examples, *p.shape)), PARAMS)


def run(transform: Any, updates: Any, params: Any = PARAMS) -> Any:
    """The updates and the states of all steps, which are one compiled scan."""

    def step(state: Any, g: Any) -> Any:
        u, state = transform.update(g, state, params)
        return state, (u, state)

    _, history = jax.jit(lambda state, updates: jax.lax.scan(step, state, updates))(transform.init(params), updates)
    return history


expect_close = functools.partial(chex.assert_trees_all_close, rtol=1e-12, atol=1e-13)


# --- Against optax ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_statistics_agree_with_optax(steps: int):
    """The updates, the averages, and their correction, over 60 batches."""
    with jax.enable_x64(True), jax_defaults():
        ours = run(aggregate.AddMeanVarianceToOpt(mx.Adam(0.1), 0.8, accumulation_steps=steps), batches())
        theirs = aggregating.add_mean_variance_to_opt(optax.adam(0.1), 0.8, accumulation_steps=steps)
        updates, states = run(theirs, batches())
        expect_close(ours[0], updates)
        fields = [f"PerElementMeanAndVarianceEMAState.{f}" for f in ("mean_grads_ema", "count", "ema_decay")]
        for field in fields + ["micro_step", "ready", "mean_grads"] * (steps > 1):
            expect_close(tree.get(ours[1], field), tree.get(states, field))
        single = 1e-6 if steps > 1 else 1e-12  # over several batches optax has a variance in float32
        for field in ["variance_grads_ema"] + ["sum_sq_diff_grads"] * (steps > 1):
            expect_close(tree.get(ours[1], field), tree.get(states, field), rtol=single)
        last = jtu.tree_map(lambda x: x[-1], (ours[1], states))
        unbiased = aggregating.get_unbiased_mean_and_variance_ema(last[1])
        expect_close(aggregate.get_unbiased_mean_and_variance_ema(last[0]), unbiased, rtol=single)


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (-1,), (1,)], ids=str)
def test_several_axes_of_examples(axes: tuple[int, ...]):
    """Examples on any axis or axes, with parameters for the check of shapes; also through containers."""
    with jax.enable_x64(True), jax_defaults():
        lengths = (2, 3)[: len(axes)]
        one = jtu.tree_map(lambda x: np.asarray(x)[0], batches(1, lengths))
        given = jtu.tree_map(lambda x: np.moveaxis(x, tuple(range(len(axes))), axes), one)
        expected = jtu.tree_map(lambda x: x.mean(tuple(range(len(axes)))), one)
        transforms: tuple[Any, ...] = (
            aggregate.AveragePerElementUpdates(axes),
            mx.Chain(aggregate.AverageIncrementallyUpdates(axes, 1), mx.Identity()),
            aggregate.AddMeanVarianceToOpt(mx.Identity(), per_elt_axis=axes),
        )
        for transform in transforms:
            out, _ = transform.update(given, transform.init(PARAMS), PARAMS)
            expect_close(out, expected)


def test_functions_agree_with_optax():
    updates = jtu.tree_map(lambda x: x[0], batches(1, (2, 3)))
    assert aggregate.get_batch_size_from_per_elt_updates(updates, (0, 1)) == 6
    assert aggregate.get_batch_size_from_per_elt_updates(updates, 1) == 3
    assert aggregating.get_batch_size_from_per_elt_updates(updates, [0, 1]) == 6


# --- Against the formulas ------------------------------------------------------------------------------------


def test_variances_of_several_batches_are_in_double_precision():
    updates = batches(2)
    expected = jtu.tree_map(lambda g: g.reshape(8, *g.shape[2:]).var(0, ddof=1), updates)
    errors = []
    with jax.enable_x64(True), jax_defaults():
        ours, theirs = aggregate.AddMeanVarianceToOpt, aggregating.add_mean_variance_to_opt
        for library, wrapped in (
            (aggregate, ours(mx.SGD(0.1), accumulation_steps=2)),
            (aggregating, theirs(optax.sgd(0.1), accumulation_steps=2)),
        ):
            _, states = run(wrapped, updates)
            last = jtu.tree_map(lambda x: x[-1], states)
            _, variance = library.get_unbiased_mean_and_variance_ema(last)
            errors.append(max(np.max(np.abs(v / expected[name] - 1)) for name, v in variance.items()))
    assert errors[0] < 1e-13
    assert errors[1] > 1e-9


def test_accumulated_means_are_welfords():
    with jax.enable_x64(True):
        updates = batches(9, ())
        out, states = run(aggregate.AccumulateAvgUpdates(4), updates)
    for name, g in updates.items():
        expect_close(out[name][3::4], np.stack([g[:4].mean(0), g[4:8].mean(0)]))
        expect_close(states.avg_grad[name][2::2], np.stack([g[:3].mean(0), g[4], g[4:7].mean(0), g[8]]))
    np.testing.assert_array_equal(states.micro_step, [1, 2, 3, 0, 1, 2, 3, 0, 1])
    np.testing.assert_array_equal(states.ready, [False, False, False, True] * 2 + [False])


# --- Situations ------------------------------------------------------------------------------------------------


def test_accumulation_is_one_large_batch():
    """Adam on four batches of four examples is Adam on sixteen; between, it does not run."""
    with jax.enable_x64(True):
        updates = batches(32)
        process = aggregate.Process(mx.Identity(), aggregate.AverageIncrementallyUpdates(0, 4), mx.Adam(0.1))
        out, states = run(process, updates)
        whole = jtu.tree_map(lambda g: g.reshape(8, 16, *g.shape[2:]).mean(1), updates)
        large, _ = run(mx.Adam(0.1), whole)
        expect_close(jtu.tree_map(lambda u: u[3::4], out), large)
        np.testing.assert_array_equal(tree.get(states, "scale_by_adam.count"), np.repeat(np.arange(9), 4)[1:33])
        multi, _ = run(mx.MultiSteps(mx.Adam(0.1), 4), jtu.tree_map(lambda g: g.mean(1), updates))
        expect_close(out, multi)


def test_each_example_is_clipped_before_the_mean():
    """optax's example of `process`: a projection of each example, the mean, an optimizer."""

    def clip(updates: Any, params: Any) -> Any:
        del params
        return jax.vmap(lambda g: jtu.tree_map(lambda x: x * jnp.minimum(1, 0.5 / tree.norm(g)), g))(updates)

    with jax.enable_x64(True):
        updates = batches(5)
        means = aggregate.AveragePerElementUpdates()
        ours, _ = run(aggregate.Process(mx.Stateless(clip), means, mx.SGD(0.1)), updates)
        private = mx.DifferentiallyPrivateAggregate(0.5, 0.0, key=0)
        theirs, _ = run(aggregate.Process(mx.Identity(), private, mx.SGD(0.1)), updates)
        expect_close(ours, theirs)


def test_examples_come_from_micro_grad():
    """Gradients of each example, and their statistics, in a step of training."""

    def loss(params: Any, x: Any) -> Any:
        return jnp.sum((x @ params["w"] + params["b"][None]) ** 2)

    with jax.enable_x64(True):
        x = np.random.default_rng(1).normal(size=(6, 2))
        per_example = micro_grad(loss, accumulator=AccumulationType.CONCAT, microbatch_size=3)
        grads, _ = jax.jit(per_example)(PARAMS, x)
        optimizer = aggregate.AddMeanVarianceToOpt(mx.SGD(0.1))
        params, state = optimizer.step(grads, optimizer.init(PARAMS), PARAMS)
        mean, variance = aggregate.get_unbiased_mean_and_variance_ema(state)
        expect_close(params, jtu.tree_map(lambda p, g: p - 0.1 * g.mean(0), PARAMS, grads))
        expect_close(mean, jtu.tree_map(lambda g: g.mean(0), grads))
        expect_close(variance, jtu.tree_map(lambda g: g.var(0, ddof=1), grads))


def test_a_single_example_has_no_variance():
    """In optax it is 0 / 0, which stays in the average for ever."""
    updates = batches(4, (1,))
    with jax.enable_x64(True), jax_defaults():
        _, states = run(aggregate.AddMeanVarianceToOpt(mx.SGD(0.1)), updates)
        assert all((x == 0).all() for x in jtu.tree_leaves(tree.get(states, "variance_grads_ema")))
        _, theirs = run(aggregating.add_mean_variance_to_opt(optax.sgd(0.1)), updates)
        assert all(np.isnan(x).all() for x in jtu.tree_leaves(tree.get(theirs, "variance_grads_ema")))


def test_before_the_first_step_the_averages_are_zero():
    state = aggregate.AddMeanVarianceToOpt(mx.SGD(0.1)).init(PARAMS)
    assert all((x == 0).all() for x in jtu.tree_leaves(aggregate.get_unbiased_mean_and_variance_ema(state)))


def test_a_new_decay_is_in_force_at_once():
    optimizer = aggregate.AddMeanVarianceToOpt(mx.SGD(0.1))
    updates = jtu.tree_map(lambda g: g[0], batches(1))
    with jax.enable_x64(True):
        _, state = optimizer.replace(ema_decay=0.0).update(updates, optimizer.init(PARAMS), PARAMS)
        mean, _ = aggregate.get_unbiased_mean_and_variance_ema(state)
        expect_close(mean, jtu.tree_map(lambda g: g.mean(0), updates))


def test_a_parameter_called_ready_is_no_flag():
    params = {"ready": jnp.array(1.0)}
    process = aggregate.Process(mx.Identity(), aggregate.AverageIncrementallyUpdates(0, 2), mx.SGD(1.0))
    state = process.init(params)
    for expected in (0.0, -3.0):
        updates, state = process.update({"ready": jnp.array([2.0, 4.0])}, state, params)
        assert updates["ready"] == expected


def test_auxiliary_outputs_reach_the_postprocessor_on_request():
    """They take precedence over extra arguments of the same name; without the request, those are passed on."""
    seen = []

    def median(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        assert params is not None
        return (jtu.tree_map(lambda g: jnp.median(g, axis=0), updates), {"scale": jnp.asarray(2.0)}), extra["n"]

    class Scaled(mx.AbstractStatelessTransform):
        def apply(self, updates: Any, params: Any, **extra: Any) -> Any:
            seen.append(sorted(extra))
            return jtu.tree_map(lambda u: u * extra["scale"], updates)

    aggregator = aggregate.Aggregator(lambda params: params["b"] * 0, median, has_aux=True)
    params, updates = {"b": jnp.ones(2)}, {"b": jnp.asarray([[1.0, 2.0], [3.0, 5.0], [9.0, 8.0]])}
    extra = {"scale": jnp.asarray(5.0), "n": jnp.asarray([1.0, 2.0])}
    for has_aux, factor in ((True, 2), (False, 5)):
        process = aggregate.Process(mx.Identity(), aggregator, Scaled(), aggregator_has_aux=has_aux)
        out, state = process.update(updates, process.init(params), params, **extra)
        np.testing.assert_array_equal(out["b"], factor * np.asarray([3.0, 5.0]))
        np.testing.assert_array_equal(state.aggregate_state, [1, 2])
    out, state = aggregator.update(updates, aggregator.init(params), params, **extra)
    np.testing.assert_array_equal(out["b"], [3, 5])
    np.testing.assert_array_equal(state, [1, 2])
    assert all(names == ["n", "scale"] for names in seen)


def test_every_part_of_a_process_gets_the_parameters_and_the_extra_arguments():
    """Also an aggregator that is a transform of whole updates, and the optimizer of `AddMeanVarianceToOpt`."""

    class Shifted(mx.AbstractStatelessTransform):
        def apply(self, updates: Any, params: Any, **extra: Any) -> Any:
            return jtu.tree_map(lambda u, p: u + p * extra["value"], updates, params)

    params, extra = {"b": jnp.asarray([1.0, 2.0])}, {"value": jnp.asarray(3.0)}
    process = aggregate.Process(Shifted(), Shifted(), Shifted())
    out, _ = process.update(params, process.init(params), params, **extra)
    np.testing.assert_array_equal(out["b"], 10 * params["b"])
    optimizer = aggregate.AddMeanVarianceToOpt(Shifted(), per_elt_axis=1)
    out, _ = optimizer.update({"b": params["b"][:, None]}, optimizer.init(params), params, **extra)
    np.testing.assert_array_equal(out["b"], 4 * params["b"])


def test_a_table_of_what_it_does():
    description = mx.describe(aggregate.AddMeanVarianceToOpt(mx.AdamW(1e-3, weight_decay=0.5)), PARAMS)
    assert [row.learning_rate for row in description.leaves] == ["0.001", "0.001"]
    assert [row.weight_decay for row in description.leaves] == ["0.5", "0.5"]


def test_what_does_not_fit_is_refused():
    sizes = aggregate.get_batch_size_from_per_elt_updates
    ragged, track = {"a": jnp.ones((2, 3)), "b": jnp.ones(3)}, aggregate.TrackPerElementMeanAndVarianceWithEma()
    with refused("`AccumulateAvgUpdates(accumulation_steps=...)` must be a pos"):
        aggregate.AccumulateAvgUpdates(0)
    with refused("must be a positive integer, got 0"):
        aggregate.AddMeanVarianceToOpt(mx.SGD(0.1), accumulation_steps=0)
    with refused("needs an aggregator with auxiliary outputs"):
        aggregate.Process(mx.Identity(), mx.Identity(), mx.Identity(), aggregator_has_aux=True)
    for updates, axes, said in (
        (ragged, 0, "the same number of examples in all arrays, got 2 at `a`, 3 at `b`"),
        (jnp.ones(3), 1, "on axis 1, got shape (3,)"),
        (ragged, (0, 1), "on axis (0, 1), got shape (3,) at `b`"),
    ):
        with refused(said):
            sizes(updates, axes)
    state = aggregate.AddMeanVarianceToOpt(mx.SGD(0.1)).init(jnp.ones(1))
    for states, said in ((mx.EmptyState(), "contains 0"), ([state] * 2, "this one contains 2")):
        with refused(said):
            aggregate.get_unbiased_mean_and_variance_ema(states)
    for axes, said in ((0, "on a leading axis"), (1, "on axes (1,)")):
        with refused(f"needs per-example gradients, with the examples {said}"):
            aggregate.AveragePerElementUpdates(axes).update(PARAMS, mx.EmptyState(), PARAMS)
    with refused("lacks `b`"):
        track.update(PARAMS, track.init(PARAMS), PARAMS, sum_sq_diff_grads={"w": 1.0}, sample_size=2)
