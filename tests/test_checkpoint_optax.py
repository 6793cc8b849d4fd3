"""Checkpoints of optax continued by modulax, and the other way round."""

import functools
import re
from pathlib import Path
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import modulax as mx
import modulax.linen
import modulax.nnx
from modulax import checkpoint

from .settings import jax_defaults

FROZEN = {"hidden": {"weight": False, "bias": True}, "scale": False}
LABELS = {"hidden": {"weight": "a", "bias": "b"}, "scale": "b"}


@pytest.fixture(autouse=True)
def _float64():
    with jax_defaults(), jax.enable_x64(True):
        yield


W = {"w": jnp.ones(2)}
ADAM = mx.Adam(0.1)
SLOW, PAIRED = mx.Lookahead(mx.SGD(0.1), 2, 0.5), optax.lookahead(optax.sgd(0.1), 2, 0.5)
FREE = mx.ScheduleFree(mx.SGD(0.1), 0.1)
TWO = {"a": {"opt_state": optax.adam(0.1).init(W)}, "b": {"opt_state": optax.adam(0.1).init(W)}}


def plain() -> Any:
    weights = {"weight": jnp.linspace(-1, 1, 6).reshape(2, 3), "bias": jnp.full(2, 0.1)}
    return {"hidden": weights, "scale": jnp.asarray(2.0)}


def model() -> Any:
    return eqx.filter(eqx.nn.MLP(2, 2, 2, 1, dtype=jnp.float64, key=jax.random.key(0)), eqx.is_array)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.linear = nnx.Linear(2, 3, param_dtype=jnp.float64, rngs=rngs)


def variables() -> Any:
    return nnx.as_pure(nnx.state(Net(nnx.Rngs(0)), nnx.Param))


def rate(count: Any) -> Any:
    """In float64, unlike the schedules of optax."""
    return 1e-2 / (1 + 0.1 * jnp.asarray(count).astype(jnp.float64))


# The parameters, the optimizer of optax, and that of modulax.
CASES: dict[str, Any] = {
    "adam": (variables, lambda: optax.adam(1e-2), lambda: mx.Adam(1e-2)),
    "adamw with a schedule": (model, lambda: optax.adamw(rate), lambda: mx.AdamW(rate)),
    "chain with a clip": (
        plain,
        lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(rate), optax.ema(0.9)),
        lambda: mx.Chain(mx.ClipByGlobalNorm(0.5), mx.AdamW(rate), mx.Ema(0.9)),
    ),
    "named_chain": (
        plain,
        lambda: optax.named_chain(
            ("trace", optax.trace(0.9)), ("b", optax.scale_by_adam()), ("a", optax.scale_by_adam(b1=0.5))
        ),
        lambda: mx.Chain(trace=mx.Trace(0.9), b=mx.ScaleByAdam(), a=mx.ScaleByAdam(b1=0.5)),
    ),
    "MultiSteps": (
        plain,
        lambda: optax.MultiSteps(optax.adamw(rate), 3, accumulator_dtype=jnp.float64).gradient_transformation(),
        lambda: mx.MultiSteps(mx.AdamW(rate), 3),
    ),
    "multi_transform": (
        plain,
        lambda: optax.multi_transform({"b": optax.adam(1e-2), "a": optax.adamw(rate), "none": optax.sgd(0.1)}, LABELS),
        lambda: mx.Partition({"a": mx.AdamW(rate), "b": mx.Adam(1e-2), "none": mx.SGD(0.1)}, LABELS),
    ),
    "selective_transform": (
        plain,
        lambda: optax.chain(
            optax.trace(0.5), optax.transforms.selective_transform(optax.adamw(rate), freeze_mask=FROZEN)
        ),
        lambda: mx.Chain(mx.Trace(0.5), mx.selective_transform(mx.AdamW(rate), freeze_mask=FROZEN)),
    ),
    "selective_transform without moments": (
        plain,
        lambda: optax.transforms.selective_transform(optax.sgd(rate), freeze_mask=FROZEN),
        lambda: mx.selective_transform(mx.SGD(rate), freeze_mask=FROZEN),
    ),
    "inject_hyperparams": (
        plain,
        lambda: optax.inject_hyperparams(optax.adamw)(rate, b1=0.8),
        lambda: mx.Injected(mx.AdamW(rate, b1=0.8)),
    ),
    "schedule_free": (
        plain,
        lambda: optax.contrib.schedule_free(optax.chain(optax.trace(0.5), optax.sgd(1e-2)), 1e-2),
        lambda: mx.ScheduleFree(mx.Chain(mx.Trace(0.5), mx.SGD(1e-2)), 1e-2),
    ),
    "lookahead": (
        plain,
        lambda: optax.lookahead(optax.sgd(1e-2, momentum=0.9), 4, 0.5),
        lambda: mx.Lookahead(mx.SGD(1e-2, momentum=0.9), 4, 0.5),
    ),
}


@functools.cache
def optimizers(name: str) -> tuple[Any, Any]:
    """Optax's, and that of modulax."""
    _, theirs, ours = CASES[name]
    return theirs(), ours()


def fast(params: Any) -> Any:
    return params.fast if hasattr(params, "fast") else params


@jax.jit
def advanced(trees: Any) -> Any:
    """Ten steps of every optimizer of every case, on gradients at the parameters that are trained."""

    def body(trees: Any, i: Any) -> tuple[Any, None]:
        new: dict[str, Any] = {}
        for name, row in trees.items():
            new[name] = []
            for optimizer, (params, state) in zip(optimizers(name), row, strict=True):
                grads = jtu.tree_map(lambda p: jnp.sin(p * (i + 1)) + 0.1, fast(params))
                updates, state = optimizer.update(grads, state, params)
                new[name].append((jtu.tree_map(jnp.add, params, updates), state))
        return new, None

    return jax.lax.scan(body, trees, jnp.arange(10))[0]


def started() -> Any:
    """The parameters and states of all cases before the first step."""
    trees: dict[str, Any] = {}
    for name, (make, *_) in CASES.items():
        params = [make(), make()]
        if name == "lookahead":
            params[0] = optax.LookaheadParams(make(), make())
        trees[name] = [(p, t.init(p)) for p, t in zip(params, optimizers(name), strict=True)]
    return trees


def named(row: Any) -> dict[str, Any]:
    return {"params": row[0], "opt_state": row[1]}


def assert_equal_parameters(trees: Any) -> None:
    for name, ((theirs, _), (ours, _)) in trees.items():
        for a, d in zip(jtu.tree_leaves(ours), jtu.tree_leaves(fast(theirs)), strict=True):
            np.testing.assert_allclose(a, d, rtol=1e-12, atol=1e-14, err_msg=name)


def test_training_goes_on_in_both_directions(tmp_path: Path):
    start = started()
    trees = advanced(start)
    continued: dict[str, Any] = {}
    for name, (theirs, _) in trees.items():
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / name, named(theirs))
        source: Any = tmp_path / name
        if name == "adam":
            with ocp.StandardCheckpointer() as checkpointer:
                source = checkpointer.restore(source)  # without a target, dicts and lists
        found, report = checkpoint.state_from_optax(named(start[name][1]), source, optimizers(name)[1])
        assert {x.split(".")[-1] for x in report.fresh} <= {"step", "count"}
        continued[name] = [theirs, (found["params"], found["opt_state"])]
    trees = advanced(continued)
    assert_equal_parameters(trees)

    # What optax has made of its own state is thrown away: it gets that of modulax.
    for name, (_, ours) in trees.items():
        found, _ = checkpoint.state_to_optax(named(start[name][0]), named(ours), optimizers(name)[1])
        trees[name][0] = (found["params"], found["opt_state"])
    assert_equal_parameters(advanced(trees))


def filled(tree: Any, value: float = 3.0) -> Any:
    return jtu.tree_map(lambda x: jnp.full_like(x, value), tree)


def test_the_report_says_where_everything_is_from():
    theirs, optimizer = optax.chain(optax.clip(1.0), optax.adamw(rate)).init(W), mx.Chain(mx.Clip(1.0), mx.AdamW(rate))
    ours = optimizer.init({"w": jnp.zeros(2)})
    state, report = checkpoint.state_from_optax(ours, filled(theirs), optimizer, W)
    assert report.restored == {
        "parts.adamw.step": "1.2.count",
        "parts.adamw.inner.parts.scale_by_adam.mu.w": "1.0.mu.w",
        "parts.adamw.inner.parts.scale_by_adam.nu.w": "1.0.nu.w",
        "parts.adamw.inner.parts.scale_by_adam.count": "1.0.count",
    }
    assert (report.fresh, report.unused) == ((), ())
    assert state["adamw"].step == 3
    # Back, the count of each transformation is that of its counterpart.
    _, report = checkpoint.state_to_optax(theirs, state, optimizer, W)
    assert report.restored["1.2.count"] == "parts.adamw.step"
    assert report.restored["1.0.count"] == "parts.adamw.inner.parts.scale_by_adam.count"
    # The average of `schedule_free` is computed from three arrays.
    opt_state: Any = filled(optax.contrib.schedule_free(optax.sgd(0.1), 0.1).init(W), 0.5)
    theirs = named((W, opt_state._replace(step_count=jnp.asarray(8))))
    state, report = checkpoint.state_from_optax(FREE.init(W), theirs, FREE, W)
    assert state.step_count == 7  # optax starts at 1
    followed = FREE.replace(follow="optax")
    assert checkpoint.state_from_optax(followed.init(W), theirs, followed, W)[0].step_count == 8
    assert report.restored["x.w"] == "params.w, opt_state.b1, opt_state.z.w"
    np.testing.assert_allclose(state.x["w"], 1.5)  # (1 - 0.5 * 0.5) / 0.5
    assert report.unused == ()


@pytest.mark.parametrize("ours, theirs, field", [
    (mx.ScaleByAMSGrad(), optax.scale_by_amsgrad(), "nu_max"),
    (mx.ScaleByACProp(), optax.contrib.scale_by_acprop(), "nu"),
    (mx.ScaleByAdam(), optax.scale_by_adam(), None),
], ids=["AMSGrad", "ACProp", "Adam"])  # fmt: skip
def test_a_remark_on_fields_that_hold_something_else_with_another_option(ours: Any, theirs: Any, field: str | None):
    state, there = ours.init(W), theirs.init(W)
    _, inward = checkpoint.state_from_optax(state, there, ours, W)
    _, outward = checkpoint.state_to_optax(there, state, ours, W)
    for report in (inward, outward):
        assert [x.split("`")[1] for x in report.remarks] == ([field] if field else [])


def test_a_train_state_and_the_state_of_an_nnx_optimizer(tmp_path: Path):
    params, adam = W, mx.Adam(1e-2)
    theirs: Any = TrainState.create(apply_fn=lambda: None, params=params, tx=optax.adam(1e-2))
    theirs = theirs.replace(step=4, opt_state=filled(theirs.opt_state))
    state, report = checkpoint.state_from_optax(adam.init(params), theirs, adam, params)
    np.testing.assert_array_equal(state.inner[0].mu["w"], 3)
    assert report.unused == ()  # what is not in the state of the optimizer was not asked for
    template = {"params": filled(params), "step": 0, "opt_state": adam.init(params)}
    found, report = checkpoint.state_from_optax(template, theirs, adam)
    assert (found["step"], float(found["params"]["w"][0]), len(report.unused)) == (4, 1.0, 0)
    # The learning rate of a transform in the template is no part of a checkpoint of optax.
    ours: Any = modulax.linen.TrainState.create(apply_fn=lambda: None, params=params, tx=adam)
    found, report = checkpoint.state_from_optax(ours, theirs)
    assert (found.step, found.opt_state.inner[0].count) == (4, 3)
    assert all(name.startswith("tx.") for name in report.fresh)
    back, _ = checkpoint.state_to_optax(theirs, found)
    chex.assert_trees_all_equal(back.opt_state, theirs.opt_state)

    net = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
    theirs = {"model": nnx.state(net), "optimizer": filled(nnx.state(optimizer))}
    variables = nnx.state(net, nnx.Param)
    template = adam.init(variables)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "nnx", theirs)
    with ocp.StandardCheckpointer() as checkpointer:
        raw = checkpointer.restore(tmp_path / "nnx")
    for source in (theirs, tmp_path / "nnx", raw):
        state, report = checkpoint.state_from_optax(template, source, adam, variables)
        assert report.restored["inner.parts.scale_by_adam.mu.linear.kernel"].startswith("optimizer.opt_state.0.mu.")
        assert all(np.all(np.asarray(x) == 3) for x in jtu.tree_leaves(state))
    # As the state of `modulax.nnx.Optimizer`.
    ours = modulax.nnx.Optimizer(net, adam)
    flat = checkpoint.state_dict({"opt_state": state})
    loaded, report = checkpoint.load_state_dict(nnx.state(ours), flat, strict=False)
    assert report.unused == ()
    nnx.update(ours, loaded)
    assert ours.step[...] == 3
    np.testing.assert_array_equal(jtu.tree_leaves(ours.state)[1], 3)


def test_what_is_around_the_optimizer_may_differ():
    """A container that one side lacks is taken apart if the caller accepts what is left over."""
    adam = mx.AdamW(1e-2)
    injected = filled(optax.inject_hyperparams(optax.adamw)(1e-2).init(W))
    with pytest.raises(ValueError, match=r"no place for `hyperparams\.b1`.*the state of `Injected`"):
        checkpoint.state_from_optax(adam.init(W), injected, adam, W)
    state, report = checkpoint.state_from_optax(adam.init(W), injected, adam, W, strict=False)
    np.testing.assert_array_equal(state.inner[0].mu["w"], 3)
    assert "hyperparams.learning_rate" in report.unused
    plain = filled(optax.adamw(1e-2).init(W))
    averaged = mx.ParamEMA(adam, 0.9)
    with pytest.raises(ValueError, match=r"the optax state lacks `weight_sum`, `ema\.w`"):
        checkpoint.state_from_optax(averaged.init(W), plain, averaged, W)
    state, _ = checkpoint.state_from_optax(averaged.init(W), plain, averaged, W, strict=False)
    np.testing.assert_array_equal(mx.tree.get(state, "mu")["w"], 3)
    more = {"w": jnp.ones(2), "v": jnp.ones(2)}
    state, report = checkpoint.state_from_optax(adam.init(more), plain, adam, more, strict=False)
    assert re.search(r"begin fresh together with `\S*mu.v`, `\S*nu.v`, for which `\S*count` would", *report.remarks)
    assert not any(np.any(x) for x in jax.tree.leaves(state.inner))
    assert "0.count" in report.unused or int(state.step) == 3


def test_an_accumulation_goes_on_with_a_noise_scale_that_begins():
    theirs = filled(optax.MultiSteps(optax.sgd(0.1), 8).init(W))
    optimizer = mx.MultiSteps(mx.SGD(0.1), 8, noise_scale=True)
    with pytest.raises(ValueError, match=r"the optax state lacks `noise\.noise_scale`"):
        checkpoint.state_from_optax(optimizer.init(W), theirs, optimizer, W)
    state, report = checkpoint.state_from_optax(optimizer.init(W), theirs, optimizer, W, strict=False)
    assert (state.mini_step, state.gradient_step, report.unused) == (3, 3, ())
    np.testing.assert_array_equal(state.acc_grads["w"], 3)


def test_moments_take_the_dtype_that_they_have_here():
    """optax keeps the second moment of a bfloat16 parameter in bfloat16."""
    params, adam = {"w": jnp.ones(2, jnp.bfloat16)}, mx.Adam(1e-2)
    theirs = filled(optax.adam(1e-2).init(params))
    state, _ = checkpoint.state_from_optax(adam.init(params), theirs, adam, params)
    assert state.inner[0].nu["w"].dtype == jnp.float32
    np.testing.assert_array_equal(state.inner[0].nu["w"], 3)


def test_modules_may_be_renamed():
    params, adam = {"new": jnp.ones(2)}, mx.Adam(0.1)
    theirs = {"params": {"old": filled(jnp.ones(2))}, "opt_state": filled(optax.adam(0.1).init({"old": jnp.ones(2)}))}
    template = {"params": params, "opt_state": adam.init(params)}
    found, report = checkpoint.state_from_optax(template, theirs, adam, rename={"old": "new"})
    np.testing.assert_array_equal(found["opt_state"].inner[0].nu["new"], 3)
    assert report.restored["params.new"] == "params.old"


def inward(optimizer: Any, theirs: Any, params: Any = W) -> Any:
    """Read a state of optax, with the initial state of an optimizer as the template."""
    return checkpoint.state_from_optax(optimizer.init(params), theirs.init(params), optimizer, params)


def outward(theirs: Any, optimizer: Any, state: Any = None) -> Any:
    """Convert a state of an optimizer, by default the initial one."""
    state = optimizer.init(W) if state is None else state
    return checkpoint.state_to_optax(theirs.init(W), state, optimizer, W)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: inward(mx.SGD(0.1, momentum=0.9), optax.adam(0.1)),
            r"lacks `inner\.parts\.trace\.trace\.w`; the template has no place for `0\.mu\.w`, `0\.nu\.w`",
        ),
        (
            lambda: inward(ADAM, optax.chain(optax.ema(0.9), optax.adam(0.1))),
            r"do not agree: the template has no place for `0\.ema\.w`\.",
        ),
        (
            lambda: checkpoint.state_from_optax(ADAM.init(W), optax.adam(0.1).init({"w": jnp.ones(3)}), ADAM, W),
            r"`0\.mu\.w` has shape \(3,\) in the checkpoint, but .*template has \(2,\)",
        ),
        (
            lambda: inward(FREE, optax.contrib.schedule_free(optax.sgd(1), 1)),
            r"lacks `x\.w`.*pass trees with both, `{\"params\": params, \"opt_state\": state}`",
        ),
        (
            lambda: checkpoint.state_to_optax(PAIRED.init(optax.LookaheadParams(W, W)), SLOW.init(W), SLOW, W),
            r"no field for `slow\.w` of.*pass trees with both, `{\"params\": params, \"opt_state\": state}`",
        ),
        (
            lambda: inward(
                mx.Chain(mx.Trace(0.9), mx.Ema(0.9)), optax.named_chain(("b", optax.trace(0.9)), ("a", optax.ema(0.9)))
            ),
            r"has the parts `b`, `a`\..*`Chain\(b=\.\.\., a=\.\.\.\)`",
        ),
        (
            lambda: checkpoint.state_from_optax(ADAM.init(W), TWO, ADAM, W),
            "several states of optax, `a.opt_state`, `b.opt_state`",
        ),
        (
            lambda: checkpoint.state_from_optax(W, optax.adam(0.1).init(W), ADAM, W),
            "the template has no state of modulax",
        ),
        (
            lambda: checkpoint.state_to_optax(ADAM.init(W), optax.adam(0.1).init(W), ADAM, W),
            "the source has no state of modulax",
        ),
        (lambda: outward(optax.adam(0.1), mx.ParamEMA(ADAM, 0.9)), r"no field for `weight_sum`, `ema\.w`"),
        (lambda: outward(optax.adam(0.1), mx.SGD(0.1)), r"the modulax state has nothing for `0\.mu\.w`, `0\.nu\.w`"),
        (
            lambda: outward(optax.adam(0.1), mx.SGD(0.1), mx.Trace(0.9).init(W)),
            r"not one of this `SGD` with these parameters: only one of the two has `step`, `trace\.w`",
        ),
        (lambda: outward(optax.sgd(rate), mx.Trace(0.9)), r"no field for `trace\.w`"),
        (
            lambda: checkpoint.state_from_optax(ADAM.init(W), optax.adam(0.1).init(W)),
            r"Write `checkpoint.state_from_optax\(template, source, optimizer, params\)`",
        ),
        (
            lambda: checkpoint.state_from_optax(named((W, ADAM.init(W))), optax.adam(0.1).init(W)),
            r"Write `checkpoint.state_from_optax\(template, source, optimizer\)`",
        ),
        (
            lambda: checkpoint.state_to_optax(optax.adam(0.1).init(W), ADAM.init(W), ADAM),
            r"Write `checkpoint.state_to_optax\(template, source, optimizer, params\)`",
        ),
    ],
)
def test_states_that_do_not_correspond(call: Any, message: str):
    with pytest.raises(ValueError, match=message):
        call()


def test_pairs_that_lbfgs_skipped_are_not_among_those_of_optax():
    optimizer = mx.ScaleByLBFGS()
    state = mx.tree.set(optimizer.init(W), count=jnp.asarray(5), skipped=jnp.asarray(2))
    found, _ = outward(optax.scale_by_lbfgs(), optimizer, state)
    assert found.count == 3


def test_several_optimizers_are_found_by_their_keys():
    optimizers = {"a": ADAM, "b": mx.SGD(0.1, momentum=0.9)}
    params = {"a": W, "b": {"v": jnp.ones(3)}}
    template = {key: {"params": params[key], "opt_state": optimizers[key].init(params[key])} for key in "ab"}
    theirs = {"a": optax.adam(0.1).init(params["a"]), "b": optax.sgd(0.1, momentum=0.9).init(params["b"])}
    source = {key: {"params": params[key], "opt_state": filled(theirs[key], i)} for i, key in enumerate("ab", 3)}
    found, _ = checkpoint.state_from_optax(template, source, optimizers)
    assert float(found["a"]["opt_state"].inner[0].mu["w"][0]) == 3
    assert float(found["b"]["opt_state"].inner["trace"].trace["v"][0]) == 4
    with pytest.raises(ValueError, match="needs the optimizer"):
        checkpoint.state_from_optax(template, source, {"c": ADAM, "d": ADAM})


# Parts whose states have fields of the same names, as functions of a decay rate, for optax and for modulax.
ADAMS: list[Any] = [
    (lambda d: optax.scale_by_adam(d), lambda d: mx.ScaleByAdam(d)),
    (lambda d: optax.scale_by_belief(d), lambda d: mx.ScaleByBelief(d)),
    (lambda d: optax.adam(0.1, d), lambda d: mx.Adam(0.1, d)),
]
TRACES: list[Any] = [
    (lambda d: optax.trace(d), lambda d: mx.Trace(d)),
    (lambda d: optax.sgd(rate, d), lambda d: mx.SGD(rate, d)),
    (lambda d: optax.masked(optax.trace(d), [True, False]), lambda d: mx.Masked(mx.Trace(d), first_alone)),
]
EMAS: list[Any] = [
    (lambda d: optax.ema(d), lambda d: mx.Ema(d)),
    (lambda d: optax.chain(optax.clip(9.0), optax.ema(d)), lambda d: mx.Chain(mx.Clip(9.0), mx.Ema(d))),
    (lambda d: optax.scale_by_schedule(rate), lambda d: mx.ScaleBySchedule(rate)),
]


def first_alone(params: Any) -> Any:
    del params
    return [True, False]


def random_chain(seed: int) -> tuple[Any, Any]:
    """A chain of 2 to 8 parts of two kinds, for optax and for modulax; every second one has names in random order."""
    random = np.random.default_rng(seed)
    kinds = [(ADAMS, TRACES, EMAS)[i] for i in random.permutation(3)[:2]]
    n = random.integers(2, 9)
    makers = [kinds[random.integers(2)][random.integers(3)] for _ in range(n)]
    decays = [0.3 + 0.6 * float(x) for x in random.permutation(n) / n]
    theirs, ours = ([make[i](decay) for make, decay in zip(makers, decays, strict=True)] for i in (0, 1))
    if seed % 2:
        return optax.chain(*theirs), mx.Chain(*ours)
    names = [f"part{i}" for i in random.permutation(n)]
    return optax.named_chain(*zip(names, theirs, strict=True)), mx.Chain(**dict(zip(names, ours, strict=True)))
