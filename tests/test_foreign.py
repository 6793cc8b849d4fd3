"""States of torch as ours: training goes on exactly where it was."""

import re
from typing import Any

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from flax import nnx

import modulax as mx
from modulax import checkpoint

from .settings import jax_defaults

PARAMS = {"hidden": {"weight": np.linspace(-1, 1, 6).reshape(2, 3), "bias": np.full(2, 0.1)}, "scale": np.asarray(2.0)}


def gradient(params: Any, i: int) -> Any:
    return jtu.tree_map(lambda p: jnp.sin(p * (i + 1)) + 0.1, params)


@pytest.fixture(autouse=True)
def _float64():
    with jax_defaults(), jax.enable_x64(True):
        yield


# torch's update rules, transcribed from the pseudocode of its documentation, on NumPy arrays.


def torch_adamw(p: Any, g: Any, s: dict[str, Any]) -> Any:
    s["step"] = s.get("step", 0) + 1
    s["exp_avg"] = 0.9 * s.get("exp_avg", 0) + 0.1 * g
    s["exp_avg_sq"] = 0.999 * s.get("exp_avg_sq", 0) + (1 - 0.999) * g * g
    p = p - 1e-2 * 1e-2 * p
    m_hat, v_hat = s["exp_avg"] / (1 - 0.9 ** s["step"]), s["exp_avg_sq"] / (1 - 0.999 ** s["step"])
    return p - 1e-2 * m_hat / (np.sqrt(v_hat) + 1e-8)


def torch_sgd(p: Any, g: Any, s: dict[str, Any]) -> Any:
    s["momentum_buffer"] = 0.9 * s["momentum_buffer"] + g if "momentum_buffer" in s else g
    return p - 1e-2 * s["momentum_buffer"]


def torch_rmsprop(p: Any, g: Any, s: dict[str, Any]) -> Any:
    s["step"] = s.get("step", 0) + 1
    s["square_avg"] = 0.99 * s.get("square_avg", 0) + (1 - 0.99) * g * g
    s["momentum_buffer"] = 0.9 * s.get("momentum_buffer", 0) + g / (np.sqrt(s["square_avg"]) + 1e-8)
    return p - 1e-2 * s["momentum_buffer"]


TORCH: dict[str, Any] = {
    "AdamW": (torch_adamw, lambda: mx.AdamW(1e-2, weight_decay=1e-2)),
    "SGD": (torch_sgd, lambda: mx.SGD(1e-2, momentum=0.9)),
    "RMSprop": (torch_rmsprop, lambda: mx.RMSProp(1e-2, decay=0.99, eps_in_sqrt=False, momentum=0.9)),
}


@pytest.mark.parametrize("name", TORCH)
def test_training_goes_on_from_a_state_of_torch(name: str):
    rule, make = TORCH[name]
    ours = make()
    names = {"hidden.weight": 0, "hidden.bias": 1, "scale": 2}
    flat = {0: PARAMS["hidden"]["weight"].T, 1: PARAMS["hidden"]["bias"], 2: PARAMS["scale"]}  # (out, in), say
    states: dict[int, dict[str, Any]] = {0: {}, 1: {}, 2: {}}

    def advance(i: int) -> None:
        for key in flat:
            flat[key] = rule(flat[key], np.sin(flat[key] * (i + 1)) + 0.1, states[key])

    for i in range(5):
        advance(i)
    state_dict = {"state": states, "param_groups": [{"lr": 1e-2, "params": [0, 1, 2]}]}
    mine = {"hidden": {"weight": jnp.asarray(flat[0].T), "bias": jnp.asarray(flat[1])}, "scale": jnp.asarray(flat[2])}
    transpose = lambda path, x: x.T  # noqa: E731
    state, report = checkpoint.state_from_torch(ours.init(mine), state_dict, names, transpose)
    assert all(name.split(".")[-1] in ("step", "count") for name in report.fresh)
    for i in range(5, 10):
        advance(i)
        mine, state = ours.step(gradient(mine, i), state, mine)
        np.testing.assert_allclose(mine["hidden"]["weight"], flat[0].T, rtol=1e-12)
        np.testing.assert_allclose(mine["hidden"]["bias"], flat[1], rtol=1e-12)
        np.testing.assert_allclose(mine["scale"], flat[2], rtol=1e-12)


@pytest.mark.parametrize("steps", [(3, 5), (5, 3)])
def test_steps_of_torch_are_those_of_the_parameter_with_the_most(steps: tuple[int, int]):
    """torch counts for each parameter; one that was frozen for a while has fewer."""
    state = mx.AdamW(1e-2, mu_dtype=jnp.bfloat16).init({"a": jnp.ones(2), "b": jnp.ones(2)})
    theirs = {i: {"step": n, "exp_avg": np.ones(2), "exp_avg_sq": np.ones(2)} for i, n in enumerate(steps)}
    filled, report = checkpoint.state_from_torch(state, {"state": theirs}, {"a": 0, "b": 1})
    counters = [name for name in report.restored if name.split(".")[-1] in ("step", "count")]
    assert counters
    assert {int(checkpoint.state_dict(filled)[name]) for name in counters} == {5}
    chex.assert_trees_all_equal_dtypes(filled, state)


def test_each_group_of_torch_has_its_own_rate():
    state = mx.RMSProp(1e-2, momentum=0.9).init({"a": jnp.ones(2), "b": jnp.ones(2)})
    theirs = {i: {"step": 1, "square_avg": np.ones(2), "momentum_buffer": np.ones(2)} for i in range(2)}
    groups = [{"lr": 0.5, "params": [0]}, {"lr": 0.25, "params": [1]}]
    filled, _ = checkpoint.state_from_torch(state, {"state": theirs, "param_groups": groups}, {"a": 0, "b": 1})
    traces = {name[-1]: float(x[0]) for name, x in checkpoint.state_dict(filled).items() if ".trace." in name}
    assert traces == {"a": -0.5, "b": -0.25}


def test_what_torch_has_not_made_is_kept():
    """A momentum buffer before the first step, a parameter that was never stepped, a mean under another name."""
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    sgd = mx.SGD(0.1, momentum=0.9).init(params)
    filled, report = checkpoint.state_from_torch(
        sgd, {"state": {0: {"momentum_buffer": None}, 1: {"momentum_buffer": np.full(2, 3.0)}}}, {"a": 0, "b": 1}
    )
    np.testing.assert_array_equal(filled.inner["trace"].trace["b"], 3)
    assert [name.split(".")[-1] for name in report.fresh if "trace" in name] == ["a"]
    rms = mx.RMSProp(0.1, centered=True)
    theirs = {"step": 4, "square_avg": np.full(2, 5.0), "grad_avg": np.full(2, 2.0)}
    start = rms.init(params)
    filled, report = checkpoint.state_from_torch(start, {"state": {7: theirs}}, {"a": 7})
    chex.assert_trees_all_equal(filled, mx.tree.set(start, step=4))  # a count of 4 would be wrong for `b`
    assert "a group of their own" in report.remarks[0]
    groups = mx.groups(rms, {"b": {"learning_rate": 0.1}}).init(params)
    filled, report = checkpoint.state_from_torch(groups, {"state": {7: theirs}}, {"a": 7})
    means = {name: x for name, x in checkpoint.state_dict(filled).items() if name.endswith("mu.a")}
    assert means
    assert all((x == 2).all() for x in means.values())


def test_a_name_that_torch_does_not_have():
    state = mx.AdamW(1e-2).init({"w": jnp.ones(2)})
    with pytest.raises(ValueError, match="`names` has `7` for `w`, but torch's state has `0`"):
        checkpoint.state_from_torch(state, {"state": {0: {}}}, {"w": 7})


def test_every_clock_of_a_schedule_goes_on_beside_moments_of_torch():
    """Of an optimizer, of a factor in a chain, around an optimizer, and beside one without moments."""
    theirs = {i: {"step": 7, "exp_avg": np.ones(2), "exp_avg_sq": np.ones(2)} for i in range(2)}
    rate = mx.schedules.Linear(0.1, 0.0, 9)
    rules = (
        mx.Chain(mx.ScaleByAdam(), mx.ScaleByLearningRate(rate)),
        mx.Chain(mx.AdamW(rate), mx.ScaleBySchedule(rate), mx.ScaleByPath({"*": rate})),
        mx.Scheduled(mx.Chain(mx.ScaleByAdam(), mx.Scale(rate))),
        mx.Injected(mx.AdamW(rate)),
        mx.Partition({"adam": mx.AdamW(rate), "sgd": mx.SGD(rate)}, {"v": "adam", "w": "sgd"}),
    )
    for rule in rules:
        state = rule.init({"v": jnp.ones(2), "w": jnp.ones(2)})
        filled, _ = checkpoint.state_from_torch(state, {"state": theirs}, {"v": 0, "w": 1})
        counts = [x for name, x in checkpoint.state_dict(filled).items() if name.split(".")[-1] in ("step", "count")]
        assert counts
        assert {int(x) for x in counts} == {7}
    # Nothing is known of a state that torch has no moments for.
    state = mx.Chain(mx.ScaleByLion(), mx.ScaleByLearningRate(rate)).init({"v": jnp.ones(2)})
    filled, _ = checkpoint.state_from_torch(state, {"state": {0: {"step": 7}}}, {"v": 0})
    assert {int(x) for name, x in checkpoint.state_dict(filled).items() if name.endswith("count")} == {0}


def test_only_states_with_moments_of_torch_have_its_step_count():
    """Averages, projectors and statistics that torch doesn't have begin with their own counts."""
    theirs = {0: {"step": np.float32(50), "exp_avg": np.full(2, 0.1), "exp_avg_sq": np.full(2, 0.01)}}
    wrapped = (
        lambda t: mx.Chain(t, mx.ReduceOnPlateau(patience=3)),
        lambda t: mx.SkipSpikes(t, 4),
        lambda t: mx.ConditionallyMask(t, lambda step: step < 9),
    )
    for wrap in wrapped:
        state = wrap(mx.AdamW(1e-3)).init({"w": jnp.ones(2)})
        filled, report = checkpoint.state_from_torch(state, {"state": theirs}, {"w": 0})
        flat = checkpoint.state_dict(filled)
        counts = {name: int(x) for name, x in flat.items() if name.split(".")[-1] in ("step", "count")}
        assert {x for name, x in counts.items() if "adam" in name or "inner" in name} == {50}
        assert {x for name, x in counts.items() if not ("adam" in name or "inner" in name)} <= {0}
        assert any(name.endswith(("count", "step")) for name in report.fresh)


def test_the_momentum_of_rmsprop_needs_the_learning_rate():
    state = mx.RMSProp(1e-2, momentum=0.9).init({"a": jnp.ones(2)})
    theirs = {0: {"step": 1, "square_avg": np.ones(2), "momentum_buffer": np.ones(2)}}
    with pytest.raises(ValueError, match="has no `param_groups`"):
        checkpoint.state_from_torch(state, {"state": theirs}, {"a": 0})


@pytest.mark.parametrize("bits", [8, 4])
def test_moments_of_torch_and_optax_are_quantized(bits: Any):
    """Those of `LowBit` are read, and converted back; a vector that is too small for it as it is."""
    params = {"w": jnp.ones((4, 2), jnp.float32), "b": jnp.ones(3, jnp.float32)}
    optimizer = mx.LowBit(mx.AdamW(1e-2), bits=bits, min_size=8)
    moments = optax.adamw(1e-2).init(params)
    moments = jtu.tree_map(lambda x: jnp.full_like(x, 4), moments)
    theirs = {i: {"step": 4, "exp_avg": x, "exp_avg_sq": x} for i, x in enumerate(moments[0].mu.values())}
    for found, report in (
        checkpoint.state_from_torch(optimizer.init(params), {"state": theirs}, {"b": 0, "w": 1}),
        checkpoint.state_from_optax(optimizer.init(params), moments, optimizer, params),
    ):
        assert not [name for name in report.fresh if name != "rng_key"]
        assert any(name.endswith("mu.w.codes") for name in report.restored)
        chex.assert_trees_all_equal_structs(found, optimizer.init(params))
        back, _ = checkpoint.state_to_optax(optax.adamw(1e-2).init(params), found, optimizer, params)
        chex.assert_trees_all_close(back, moments)


def test_stacks_in_fewer_bits_stay_fresh_and_are_named():
    params = {"v": jnp.ones((4, 2), jnp.float32), "w": jnp.ones((4, 2), jnp.float32)}
    optimizer = mx.LowBit(mx.Stacked(mx.AdamW(1e-2)), min_size=8)
    state = optimizer.init(params)
    theirs = {i: {"step": 4, "exp_avg": np.ones((4, 2)), "exp_avg_sq": np.ones((4, 2))} for i in range(2)}
    moments = optax.adamw(1e-2).init(params)
    for _, report in (
        checkpoint.state_from_torch(state, {"state": theirs}, {"v": 0, "w": 1}),
        checkpoint.state_from_optax(state, moments, optimizer, params, strict=False),
    ):
        assert any(name.endswith("mu.v.codes") for name in report.fresh)
        assert any(name.endswith("mu.v") for name in report.unused)
    with pytest.raises(ValueError, match=r"the optax state lacks \S*mu\.v\.codes"):
        checkpoint.state_from_optax(state, moments, optimizer, params)


class Layers(eqx.Module):
    linear: eqx.nn.Linear
    weight: jax.Array


def test_the_layout_of_an_array_of_torch_is_that_of_its_layer():
    """Flax's kernels are transposed, also square ones; those of attention are split, and windows come first."""
    x = nnx.Rngs(0)
    flax = {
        "Dense_0": {"kernel": jnp.ones((3, 3)), "bias": jnp.ones(3)},
        "Conv_0": {"kernel": jnp.ones((2, 2, 3, 3))},
        "query": {"kernel": jnp.ones((8, 2, 4)), "bias": jnp.ones((2, 4))},
        "out": {"kernel": jnp.ones((2, 4, 8))},
        "Embed_0": {"embedding": jnp.ones((3, 3))},
        "linear": nnx.as_pure(nnx.state(nnx.Linear(3, 3, param_dtype=float, rngs=x), nnx.Param)),
    }
    rng = np.random.default_rng(0)
    theirs = {path: rng.normal(size=shape) for path, shape in {
        "Dense_0.kernel": (3, 3), "Dense_0.bias": (3,), "Conv_0.kernel": (3, 3, 2, 2), "query.kernel": (8, 8),
        "query.bias": (8,), "out.kernel": (8, 8), "Embed_0.embedding": (3, 3), "linear.kernel": (3, 3),
        "linear.bias": (3,),
    }.items()}  # fmt: skip
    layouts = {"Conv_0.kernel": lambda x: x.transpose(2, 3, 1, 0), "query.kernel": lambda x: x.T.reshape(8, 2, 4),
               "query.bias": lambda x: x.reshape(2, 4), "out.kernel": lambda x: x.T.reshape(2, 4, 8)}  # fmt: skip

    def found(params: Any, arrays: dict[str, Any], **options: Any) -> Any:
        states = {path: {"step": 1, "exp_avg": x, "exp_avg_sq": x} for path, x in arrays.items()}
        names = {path: path for path in arrays}
        state, report = checkpoint.state_from_torch(mx.AdamW(1e-2).init(params), {"state": states}, names, **options)
        assert not report.unused
        return checkpoint.state_dict(mx.tree.get(state, "mu"))

    for path, mu in found(flax, theirs).items():
        layout = layouts.get(path, np.asarray if "embedding" in path else np.transpose)
        np.testing.assert_array_equal(mu, layout(theirs[path]), err_msg=path)
    square, model = theirs["Dense_0.kernel"], Layers(eqx.nn.Linear(3, 3, use_bias=False, key=x()), jnp.ones((3, 3)))
    for params, arrays in (
        (model, {"linear.weight": square, "weight": square}),
        ({"weight": model.weight}, {"weight": square}),
    ):
        with pytest.raises(ValueError, match="nothing tells the layout of `weight`") as error:
            found(params, arrays)
        (remedy,) = re.findall(r"`convert=(lambda.*?None)`", str(error.value))
        mu = found(params, arrays, convert=eval(remedy))
        np.testing.assert_array_equal(mu["weight"], square.T)
        np.testing.assert_array_equal(mu.get("linear.weight", square), square)  # as in Equinox
    # Other shapes tell the layout, also of what may be a transposed convolution; or that it is none.
    wide = {"a": np.ones((2, 3)), "b": rng.normal(size=(2, 3)), "c": rng.normal(size=(3, 4, 2, 2))}
    mu = found({"a": jnp.ones((2, 3)), "b": jnp.ones((3, 2)), "c": jnp.ones((2, 2, 4, 3))}, wide)
    np.testing.assert_array_equal(mu["b"], wide["b"].T)
    np.testing.assert_array_equal(mu["c"], wide["c"].transpose(2, 3, 1, 0))
    with pytest.raises(ValueError, match=r"layout of `ConvTranspose_0.kernel`.*np.moveaxis"):
        found(
            {"ConvTranspose_0": {"kernel": jnp.ones((2, 2, 3, 3))}}, {"ConvTranspose_0.kernel": np.ones((3, 3, 2, 2))}
        )
    with pytest.raises(ValueError, match=r"of `a`, of shape \(3, 2\) in torch, and \(2, 1, 3\)") as error:
        found({"a": jnp.ones((2, 1, 3))}, {"a": np.ones((3, 2))})
    found(
        {"a": jnp.ones((2, 1, 3))},
        {"a": np.ones((3, 2))},
        convert=eval(str(error.value).split("convert=")[1].split("`")[0]),
    )
    with pytest.raises(ValueError, match=r"has shape \(2, 2\), and `a` in torch has \(3, 2\)\. Check"):
        found({"a": jnp.ones((2, 2))}, {"a": np.ones((3, 2))})
