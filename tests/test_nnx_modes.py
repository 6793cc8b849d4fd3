"""NNX in graph and in tree mode at once: an optimizer keeps to its own mode, whatever the mode around it."""

import copy
import itertools
import pickle
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import checkpoint

from .settings import jax_defaults


@pytest.fixture(autouse=True)
def _defaults():
    with jax_defaults():
        yield


class Scale(nnx.Variable):
    """Trained variables that are no `nnx.Param`."""


class Tied(nnx.Module):
    """A layer that is there twice, which a tree cannot be; and a variable of another kind."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(2, 2, rngs=rngs)
        self.second = self.first
        self.scale = Scale(jnp.ones(2))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(self.first(x)) * self.scale[...]


class Plain(nnx.Module):
    """The same layer once."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(2, 2, rngs=rngs)
        self.scale = Scale(jnp.ones(2))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.first(self.first(x)) * self.scale[...]


def loss(model: Any) -> jax.Array:
    return jnp.mean(model(jnp.ones((1, 2))) ** 2)


def values(tree: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jtu.tree_leaves(nnx.as_pure(tree))]


def test_what_is_shared_is_trained_in_graph_mode_wherever_it_is_called():
    """Every method: making it, a step, the numbers in force, the parameters to evaluate."""
    reference = Plain(nnx.Rngs(0))
    plain = modulax.nnx.Optimizer(reference, mx.ScheduleFreeSGD(0.1), graph=True)
    model = Tied(nnx.Rngs(0))
    with nnx.set_graph_mode(False):
        optimizer = modulax.nnx.Optimizer(model, mx.ScheduleFreeSGD(0.1), graph=True)
        for _ in range(2):
            optimizer.update(model, nnx.grad(loss, graph=True)(model))
            plain.update(reference, nnx.grad(loss, graph=True)(reference))
        evaluated = optimizer.eval_params(model)
    np.testing.assert_allclose(model.first.kernel[...], reference.first.kernel[...], rtol=1e-6)
    assert np.any(np.asarray(model.second.kernel[...]) != np.asarray(Tied(nnx.Rngs(0)).first.kernel[...]))
    jax.tree.map(np.testing.assert_allclose, values(evaluated), values(plain.eval_params(reference)))


def test_gradients_may_be_a_model_with_what_is_shared():
    model, gradients = Tied(nnx.Rngs(0)), Tied(nnx.Rngs(1))
    before = np.asarray(model.first.kernel[...])
    with nnx.set_graph_mode(False):
        optimizer = modulax.nnx.Optimizer(model, mx.SGD(1.0), graph=True)
        optimizer.update(model, gradients)
    np.testing.assert_allclose(model.first.kernel[...], before - np.asarray(gradients.first.kernel[...]), rtol=1e-6)


def test_in_tree_mode_what_is_shared_is_refused_wherever_it_is_called():
    tied, plain = Tied(nnx.Rngs(0)), Plain(nnx.Rngs(0))
    with nnx.set_graph_mode(True):
        with pytest.raises(ValueError, match="shared references"):
            modulax.nnx.Optimizer(tied, mx.SGD(0.1), graph=False)
        optimizer = modulax.nnx.Optimizer(plain, mx.SGD(0.1), graph=False)
        gradients = nnx.state(plain, nnx.Param)
        for call in (lambda: optimizer.update(tied, gradients), lambda: optimizer.eval_params(tied)):
            with pytest.raises(ValueError, match="shared references"):
                call()
        with pytest.raises(ValueError, match="shared references"):
            optimizer.update(plain, tied)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])
def test_gradients_of_other_variables_are_left_out(graph: bool):
    """Those of all variables, as `nnx.grad` of all of them returns."""
    model = Plain(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.SGD(0.5, momentum=0.9), wrt=Scale, graph=graph)
    kernel = np.asarray(model.first.kernel[...])
    optimizer.update(model, nnx.state(model, (nnx.Param, Scale), graph=graph))
    np.testing.assert_array_equal(model.scale[...], 0.5)
    np.testing.assert_array_equal(model.first.kernel[...], kernel)


@pytest.mark.parametrize("rate", [0.1, lambda step: 0.1, None], ids=["number", "schedule", "bare"])
def test_steps_are_counted_once(rate: Any):
    model = Plain(nnx.Rngs(0))
    transform = mx.ScaleBySign() if rate is None else mx.SGD(rate)
    optimizer = modulax.nnx.Optimizer(model, transform)
    for _ in range(3):
        optimizer.update(model, nnx.state(model, nnx.Param))
    assert optimizer.step[...] == 3
    assert len([v for v in jtu.tree_leaves(nnx.state(optimizer, nnx.OptState)) if v.shape == ()]) == 1


def test_steps_are_restored_into_another_transform():
    """From an optimizer that counts them into one around which `Optimizer` does, and the other way round."""
    rules = mx.Chain(mx.ScaleByAdam(), mx.ScaleByLearningRate(0.1))
    transforms = mx.Adam(0.1), mx.Chain(mx.Clip(1.0), mx.Adam(0.1)), mx.ParamEMA(mx.Adam(0.1)), rules
    model = Plain(nnx.Rngs(0))
    saved = []
    for transform in transforms:
        optimizer = modulax.nnx.Optimizer(model, transform)
        for _ in range(3):
            optimizer.update(model, nnx.state(model, nnx.Param))
        saved.append(checkpoint.state_dict({"here": nnx.state(optimizer)}))
    for old, new in itertools.permutations(range(4), 2):
        optimizer = modulax.nnx.Optimizer(model, transforms[new])
        restored, report = checkpoint.load_state_dict({"here": nnx.state(optimizer)}, saved[old], strict=False)
        nnx.update(optimizer, restored["here"])
        assert optimizer.step[...] == 3, (old, new, report)
    lion = modulax.nnx.Optimizer(model, mx.Chain(mx.Clip(1.0), mx.ScaleByLion()))
    _, report = checkpoint.load_state_dict({"here": nnx.state(lion)}, saved[0], strict=False)
    assert "here._steps" in report.fresh  # as the moments are


class Annotated(nnx.Module):
    """A matrix with names for its axes."""

    def __init__(self, **metadata: Any) -> None:
        self.kernel = nnx.Param(jnp.ones((4, 6)), out_sharding=("in", "out"), eager_sharding=False, **metadata)


def test_metadata_are_for_arrays_like_the_parameter():
    """A moment of another shape has an owner, and not its axes."""
    optimizer = modulax.nnx.Optimizer(Annotated(), mx.Adafactor(0.1, min_dim_size_to_factor=2, momentum=0.9))
    shardings = {name: v.get_metadata().get("out_sharding") for name, v in optimizer.opt_state.items()}
    assert {name.split(".")[-2]: axes for name, axes in shardings.items() if "kernel" in name} == {"ema": ("in", "out")}
    assert {name for name, axes in shardings.items() if axes is None} == {"step", "inner"}
    assert {name.split(".")[-2] for name in optimizer.opt_state["inner"].names if "kernel" in name} == {
        "v_row",
        "v_col",
    }


def test_moments_may_be_sharded_otherwise_than_their_parameter():
    """As in `flax.nnx.Optimizer`, by the `optimizer_sharding` of the parameter."""
    model = Annotated(optimizer_sharding=("in", None))
    for optimizer in (
        modulax.nnx.Optimizer(model, mx.Trace(0.9)),
        nnx.Optimizer(model, optax.trace(0.9), wrt=nnx.Param),
    ):
        (moment,) = (v for v in jtu.tree_leaves(optimizer.opt_state, is_leaf=is_variable) if v.shape == (4, 6))
        assert moment.get_metadata()["out_sharding"] == ("in", None)


def is_variable(x: Any) -> bool:
    return isinstance(x, nnx.Variable)


def test_a_filter_may_match_only_what_an_earlier_one_has_taken():
    """The error is for a filter that matches nothing, such as one with a typing error."""
    model = Plain(nnx.Rngs(0))
    found = modulax.nnx.labels(model, {nnx.Param: "all", nnx.PathContains("bias"): "bias"})
    assert found == {"first": {"bias": "all", "kernel": "all"}}
    with pytest.raises(ValueError, match=r"the filter PathContains\(.*bais.*\) matches no variable"):
        modulax.nnx.labels(model, {nnx.Param: "all", nnx.PathContains("bais"): "bias", nnx.PathContains("x"): "x"})
    assert modulax.nnx.labels(model, {...: "scale"}, Scale) == {"scale": "scale"}


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_a_copy_trains_on_by_itself(copied: Any, graph: bool):
    model = Plain(nnx.Rngs(0))
    rate = mx.schedules.Linear(0.1, 0.0, 10)
    optimizer = modulax.nnx.Optimizer(model, mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(rate)), graph=graph)
    optimizer.update(model, nnx.grad(loss, graph=graph)(model))
    other, twin = nnx.clone(model, graph=graph), copied(optimizer)
    assert twin.graph is optimizer.graph
    before = values(other)
    for trained, by in ((model, optimizer), (other, twin)):
        for _ in range(2):
            by.update(trained, nnx.grad(loss, graph=graph)(trained))
    assert not np.array_equal(before[0], values(other)[0])
    jax.tree.map(np.testing.assert_array_equal, values(model), values(other))
    assert optimizer.step[...] == twin.step[...] == 3
    twin.hyperparameters.parts["clip_by_global_norm"].max_norm[...] = 2.0
    assert float(optimizer.hyperparameters.parts["clip_by_global_norm"].max_norm[...]) == 1.0


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])
def test_pure_states_go_back_where_they_came_from(graph: bool):
    """As checkpoints of NNX's own functions do, and training loops that keep the state split."""
    model = Plain(nnx.Rngs(0))
    first, second = (modulax.nnx.Optimizer(model, mx.AdamW(1e-2), graph=graph) for _ in range(2))
    first.update(model, nnx.state(model, nnx.Param, graph=graph))
    graphdef, state = nnx.split(first, graph=graph)
    merged = nnx.merge(graphdef, nnx.as_pure(state))
    chex.assert_trees_all_equal(merged.state, first.state)
    restored = nnx.state(second, graph=graph)
    nnx.replace_by_pure_dict(restored, nnx.to_pure_dict(state))
    nnx.update(second, restored)
    chex.assert_trees_all_equal(second.state, first.state)
    names = set(checkpoint.state_dict(nnx.as_pure(state)))
    assert names == set(checkpoint.state_dict(state)) > {"opt_state.inner.parts.scale_by_adam.mu.first.kernel"}


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])
def test_a_step_passes_few_variables(graph: bool):
    """NNX takes time for each; one for every array of AdamW's state makes a small step slower by a quarter."""
    optimizer = modulax.nnx.Optimizer(nnx.Sequential(Plain(nnx.Rngs(0)), Plain(nnx.Rngs(0))), mx.AdamW(1e-2))
    variables = jtu.tree_leaves(nnx.state(optimizer, graph=graph), is_leaf=is_variable)
    assert sum(isinstance(x, modulax.nnx.Hyperparameter) for x in variables) == len(variables) - 2 == 6


def test_references_hold_one_array_each():
    with nnx.var_defaults(ref=True, hijax=False):
        optimizer = modulax.nnx.Optimizer(Plain(nnx.Rngs(0)), mx.AdamW(1e-2))
    assert "inner.parts.scale_by_adam.mu.first.kernel" in optimizer.opt_state


@pytest.mark.parametrize(
    "optimizer",
    [
        mx.ParamEMA(mx.SGD(0.1), start=2),
        mx.ParamAverage(mx.SGD(0.1), window=2),
        mx.SAM(mx.SGD(0.1), mx.SGD(0.1)),
        mx.Partition({"a": mx.Chain(mx.Clip(1.0), mx.ScheduleFreeSGD(0.1))}, lambda p: jtu.tree_map(lambda _: "a", p)),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_parameters_to_evaluate_from_the_state_of_the_stock_optimizer(optimizer: Any):
    """It holds a variable in the place of every array, outside and inside a program."""
    model = Plain(nnx.Rngs(0))
    stock: Any = nnx.Optimizer(model, optimizer, wrt=nnx.Param)
    variables, expected = nnx.state(model, nnx.Param), None
    for _ in range(2):
        stock.update(model, nnx.grad(loss)(model))
        variables = nnx.state(model, nnx.Param)
        expected = optimizer.eval_params(nnx.as_pure(stock.opt_state), nnx.as_pure(variables))
        found = stock.tx.eval_params(stock.opt_state, variables)
        assert jtu.tree_structure(found) == jtu.tree_structure(variables)
        chex.assert_trees_all_equal(nnx.as_pure(found), expected)
    found = nnx.jit(lambda state, params: optimizer.eval_params(state, params))(stock.opt_state, variables)
    chex.assert_trees_all_close(nnx.as_pure(found), expected)
    pure = nnx.as_pure(stock.opt_state)
    chex.assert_trees_all_equal(optimizer.metrics(stock.opt_state), optimizer.metrics(pure))
    chex.assert_trees_all_equal(optimizer.hyperparameters(stock.opt_state), optimizer.hyperparameters(pure))


def test_numbers_in_the_state_of_the_stock_optimizer():
    model: Any = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer: Any = mx.Injected(mx.SGD(0.1, momentum=lambda step: 0.0 * step))
    stock: Any = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    def rate() -> Any:
        before = model.bias[...]
        stock.update(model, nnx.grad(lambda model: model(jnp.ones((1, 2))).sum())(model))
        return before - model.bias[...]

    numbers = stock.opt_state.hyperparams
    assert list(numbers) == ["learning_rate", "momentum"]
    np.testing.assert_allclose(rate(), 0.1, rtol=1e-6)
    numbers["learning_rate"] = 1  # as in optax
    np.testing.assert_allclose(rate(), 1)
    numbers["learning_rate"][...] = 0.5  # as in NNX
    np.testing.assert_allclose(rate(), 0.5)


def test_variables_of_hyperparameters_are_addressed_by_the_names_of_the_fields():
    optimizer = mx.SGD(mx.schedules.Linear(0.1, 0.0, 10), momentum=0.8)
    fields = modulax.nnx.Optimizer(Plain(nnx.Rngs(0)), optimizer).hyperparameters
    assert list(fields.addresses()) == list(optimizer.addresses())
    assert fields.addresses()["momentum"](fields)[...] == np.float32(0.8)
