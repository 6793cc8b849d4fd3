"""`modulax.nnx.Optimizer` and the stock `flax.nnx.Optimizer`, in graph and in tree mode, under NNX's transforms."""

import contextlib
from typing import Any

import chex
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import modulax as mx
import modulax.checkpoint
import modulax.nnx
from modulax.nnx._optimizer import Arrays, JoinedNames

from .settings import jax_defaults

each_mode = pytest.mark.parametrize("graph", [True, False], ids=["graph", "tree"])


ONCE: Any = chex.assert_max_traces(n=1)  # untyped, because its annotation loses the signature


class Net(nnx.Module):
    """A model with trained weights, statistics that are not trained, and functions."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(3, 8, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.out = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(jnp.tanh(self.norm(self.hidden(x))))


@pytest.fixture(autouse=True)
def _defaults():
    with jax_defaults():
        yield


def batch(seed: int = 0) -> tuple[jax.Array, jax.Array]:
    x = jax.random.normal(jax.random.key(seed), (16, 3))
    return x, x[:, :2] ** 2


def loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((model(x) - y) ** 2)


def step(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    value, grads = nnx.value_and_grad(loss, graph=optimizer.graph)(model, x, y)
    optimizer.update(model, grads)
    return value


def train(optimizer: Any, model: Any, steps: int, graph: bool) -> list[float]:
    jitted = nnx.jit(step, graph=graph)
    return [float(jitted(model, optimizer, *batch(i % 4))) for i in range(steps)]


@each_mode
def test_it_trains_like_optax_and_leaves_statistics_to_the_model(graph: bool):
    ours, theirs = Net(nnx.Rngs(0)), Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(ours, mx.AdamW(1e-2), graph=graph)
    reference = nnx.Optimizer(theirs, optax.adamw(1e-2), wrt=nnx.Param, graph=graph)
    np.testing.assert_allclose(train(optimizer, ours, 100, graph), train(reference, theirs, 100, graph), rtol=2e-5)
    assert optimizer.step[...] == 100
    assert "norm" in nnx.state(ours, nnx.BatchStat)
    chex.assert_trees_all_close(nnx.state(ours), nnx.state(theirs), rtol=1e-3, atol=1e-5)


@each_mode
@pytest.mark.parametrize("wrt", [nnx.LoRAParam, "params", nnx.All(nnx.Param, nnx.BatchStat)])
def test_a_filter_that_selects_nothing_is_refused(graph: bool, wrt: Any):
    model = Net(nnx.Rngs(0))
    with pytest.raises(
        ValueError, match=r"selects no variable .* 5 `Param`, 2 `BatchStat`.* `wrt=nnx.Param`"
    ) as caught:
        modulax.nnx.Optimizer(model, mx.AdamW(1e-2), wrt=wrt, graph=graph)
    assert ("with that tag" in str(caught.value)) == (wrt == "params")
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2), wrt=wrt, graph=graph, allow_empty=True)
    optimizer.update(model, nnx.state(model, wrt))
    assert optimizer.step[...] == 1


@each_mode
def test_numbers_change_while_it_trains_and_nothing_is_traced_again(graph: bool):
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2, weight_decay=0.0), graph=graph)

    @nnx.jit(graph=graph)
    @ONCE
    def train_step(model, optimizer, x, y):
        return step(model, optimizer, x, y)

    for rate in (1e-2, 1e-3, 0.0):
        optimizer.hyperparameters.learning_rate[...] = rate
        before = np.asarray(model.out.kernel[...])
        train_step(model, optimizer, *batch())
        moved = np.abs(np.asarray(model.out.kernel[...]) - before).max()
        assert moved == 0 if rate == 0 else 0 < moved < 2 * rate
    assert optimizer.in_force()["learning_rate"] == 0


@each_mode
@pytest.mark.filterwarnings("ignore:'.value' setter is now deprecated")
def test_a_variable_keeps_its_dtype_whatever_number_it_is_set_to(graph: bool):
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.SGD(1.0), graph=graph)
    rate: Any = optimizer.hyperparameters.learning_rate

    @nnx.jit(graph=graph)
    @ONCE
    def train_step(model, optimizer, x, y):
        return step(model, optimizer, x, y)

    for number in (1e-3, 1, np.float64(0.5), np.asarray(0.5), jnp.asarray(1e-3), jnp.bfloat16(0.5), jnp.asarray(2)):
        for put in (rate.set_value, lambda x: setattr(rate, "value", x), lambda x: rate.__setitem__(..., x)):
            put(number)
            stored = rate.get_value()
            assert (stored.dtype, stored.aval.weak_type, float(stored)) == (jnp.float32, False, np.float32(number))
        train_step(model, optimizer, *batch())


@each_mode
def test_a_number_may_be_written_inside_a_jitted_step(graph: bool):
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.SGD(1.0), graph=graph)

    @nnx.jit(graph=graph)
    def decay_and_step(model, optimizer, x, y):
        rate = optimizer.hyperparameters.learning_rate
        rate[...] = rate[...] * 0.5
        step(model, optimizer, x, y)

    for _ in range(3):
        decay_and_step(model, optimizer, *batch())
    assert optimizer.hyperparameters.learning_rate[...] == 0.125


def test_a_schedule_rules_and_its_own_numbers_are_live():
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.SGD(mx.schedules.Linear(1.0, 0.0, 10)))
    train(optimizer, model, 5, True)
    assert optimizer.in_force()["learning_rate"] == pytest.approx(0.5)
    optimizer.hyperparameters.learning_rate.init_value[...] = 2.0
    assert optimizer.in_force()["learning_rate"] == pytest.approx(1.0)
    assert {name: float(x) for name, x in optimizer.metrics().items()} == {
        "learning_rate": pytest.approx(1.2),  # of the last step
        "step": 5,
    }


def test_groups_by_type_by_path_and_by_predicate():
    class Adapted(nnx.Module):
        def __init__(self, rngs):
            self.base = nnx.Linear(3, 3, rngs=rngs)
            self.lora = nnx.LoRA(3, 2, 3, rngs=rngs)

        def __call__(self, x):
            return self.base(x) + self.lora(x)

    model = Adapted(nnx.Rngs(0))
    labels = modulax.nnx.labels(model, {nnx.LoRAParam: "lora", ...: "base"})
    optimizer = modulax.nnx.Optimizer(model, mx.Partition({"lora": mx.SGD(0.1), "base": mx.SetToZero()}, labels))
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    x, _ = batch()
    grads = nnx.grad(lambda m: jnp.sum(m(x) ** 2))(model)
    optimizer.update(model, grads)
    after = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    chex.assert_trees_all_equal(before["base"], after["base"])
    assert (before["lora"]["lora_b"] != after["lora"]["lora_b"]).any()

    mask = modulax.nnx.labels(
        Net(nnx.Rngs(0)), {nnx.PathContains("bias"): False, nnx.PathContains("norm"): False, ...: True}
    )
    assert mask["norm"] == {"bias": False, "scale": False}
    assert mask["out"] == {"bias": False, "kernel": True}
    by_size = modulax.nnx.labels(Net(nnx.Rngs(0)), {lambda path, p: p[...].ndim > 1: "matrix", ...: "vector"})
    assert by_size["out"] == {"bias": "vector", "kernel": "matrix"}


def test_labels_teach():
    model = Net(nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"no filter matches the Param at `hidden.kernel`. Add one for it, or a last"):
        modulax.nnx.labels(model, {nnx.LoRAParam: "lora"})
    with pytest.raises(ValueError, match=r"LoRAParam'> matches no variable"):
        modulax.nnx.labels(model, {nnx.LoRAParam: "lora", ...: "rest"})
    with pytest.raises(ValueError, match=r"is not a modulax transform.*wrap it: `from_optax\(...\)`"):
        modulax.nnx.Optimizer(model, optax.adam(1e-3))


@each_mode
def test_split_merge_update_state_and_clone(graph: bool):
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2), graph=graph)
    train(optimizer, model, 3, graph)
    graphdef, state = nnx.split(optimizer, graph=graph)
    copy, model_copy = nnx.merge(graphdef, state, copy=True), nnx.clone(model, graph=graph)
    copy_of_copy = nnx.clone(copy, graph=graph)
    clone, model_clone = nnx.clone(optimizer, graph=graph), nnx.clone(model, graph=graph)
    expected = train(optimizer, model, 3, graph)
    assert train(copy, model_copy, 3, graph) == expected
    assert train(clone, model_clone, 3, graph) == expected
    nnx.update(optimizer, nnx.state(copy_of_copy, graph=graph))
    assert optimizer.step[...] == 3
    assert isinstance(optimizer.hyperparameters, mx.AdamW)
    numbers = nnx.state(optimizer, modulax.nnx.Hyperparameter, graph=graph)
    assert len(jtu.tree_leaves(numbers)) == len(mx.AdamW(1e-2).hyperparameters())


@each_mode
def test_an_ensemble_with_a_learning_rate_each_is_one_vmap(graph: bool):
    rates = jnp.array([1e-3, 1e-2, 1e-1])

    @nnx.vmap(in_axes=0, graph=graph)
    def make(rate):
        model = Net(nnx.Rngs(0))
        return model, modulax.nnx.Optimizer(model, mx.SGD(rate), graph=graph)

    models, optimizers = make(rates)

    @nnx.jit(graph=graph)
    @nnx.vmap(in_axes=(0, 0, None, None), graph=graph)
    def train_step(model, optimizer, x, y):
        return step(model, optimizer, x, y)

    values = [train_step(models, optimizers, *batch(i)) for i in range(3)][-1]
    for i, rate in enumerate(rates):
        model = Net(nnx.Rngs(0))
        optimizer = modulax.nnx.Optimizer(model, mx.SGD(float(rate)), graph=graph)
        alone = [step(model, optimizer, *batch(j)) for j in range(3)]
        np.testing.assert_allclose(values[i], alone[-1], rtol=1e-5)


@each_mode
def test_scan_over_steps(graph: bool):
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2), graph=graph)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0), graph=graph)
    def train_step(carry, data):
        return carry, step(*carry, *data)

    batches = [batch(i % 4) for i in range(6)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    _, values = train_step((model, optimizer), stacked)
    fresh = Net(nnx.Rngs(0))
    alone = train(modulax.nnx.Optimizer(fresh, mx.AdamW(1e-2), graph=graph), fresh, 6, graph)
    np.testing.assert_allclose(values, alone, rtol=1e-5)


@each_mode
def test_both_sides_of_a_cond(graph: bool):
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2), graph=graph)
    grads = nnx.grad(loss, graph=graph)(model, *batch())

    @nnx.jit(graph=graph)
    def maybe(flag, model, optimizer, grads):
        nnx.cond(flag, lambda m, o, g: o.update(m, g), lambda m, o, g: None, model, optimizer, grads, graph=graph)

    maybe(False, model, optimizer, grads)
    assert optimizer.step[...] == 0
    maybe(True, model, optimizer, grads)
    assert optimizer.step[...] == 1


def test_moments_carry_metadata_and_live_where_the_parameters_are():
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    class Sharded(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jax.device_put(jnp.ones((4, 3)), sharding), color="blue")

    model = Sharded()
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2))
    for field in ("mu", "nu"):
        moment = optimizer.opt_state[f"inner.parts.scale_by_adam.{field}.w"]
        assert moment.get_metadata()["color"] == "blue"
        assert isinstance(moment, nnx.OptState)
        assert moment[...].sharding == sharding
    optimizer.update(model, nnx.state(model, nnx.Param))
    assert model.w[...].sharding.is_equivalent_to(sharding, 2)
    assert optimizer.state.inner["scale_by_adam"].mu["w"][...].sharding.is_equivalent_to(sharding, 2)


def test_a_stacked_parameter_keeps_its_real_sharding():
    """Under `nnx.vmap` the names of a parameter's axes are one too few; its array knows better (flax issue 5112)."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec(None, "data"))

    @nnx.vmap(in_axes=0, out_axes=0)
    def make(seed):
        del seed
        return nnx.Dict(w=nnx.Param(jnp.ones((4,)), out_sharding=("data",)))

    with nnx.use_eager_sharding(False):
        model = make(jnp.arange(3))
    model.w.set_value(jax.device_put(model.w[...], sharding))
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2))
    assert optimizer.state.inner["scale_by_adam"].mu["w"][...].sharding.is_equivalent_to(sharding, 2)


@each_mode
def test_names_in_a_checkpoint_are_those_of_the_tree(graph: bool, tmp_path):
    """The state is held flat, with a dot in a parameter's name too; its names are as if it were not."""

    class Dotted(nnx.Module):
        def __init__(self):
            self.layers = nnx.Dict({"a.b": nnx.Linear(2, 2, rngs=nnx.Rngs(0))})

    model = Dotted()
    model.layers["a.b"].kernel.set_metadata(color="blue")  # its moments are in variables of their own
    optimizer = modulax.nnx.Optimizer(model, mx.AdamW(1e-2), graph=graph)
    optimizer.update(model, nnx.state(model, nnx.Param, graph=graph))
    state = nnx.state(optimizer, graph=graph)
    names = {name.removeprefix("opt_state.") for name in modulax.checkpoint.state_dict(state)}
    assert names >= set(modulax.checkpoint.state_dict(optimizer.state))
    modulax.checkpoint.save(tmp_path / "here", state)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", state)

    class Renamed(nnx.Module):
        def __init__(self):
            self.blocks = nnx.Dict({"a.b": nnx.Linear(2, 2, rngs=nnx.Rngs(1))})
            bias: Any = self.blocks["a.b"].bias
            bias.set_metadata(color="blue")

    for folder in ("here", "orbax"):
        other = modulax.nnx.Optimizer(Renamed(), mx.AdamW(1e-2), graph=graph)
        template = nnx.state(other, graph=graph)
        restored, _ = modulax.checkpoint.restore(tmp_path / folder, template, rename={"layers": "blocks"})
        nnx.update(other, restored)
        assert other.step[...] == 1
        chex.assert_trees_all_equal(jtu.tree_leaves(optimizer.state), jtu.tree_leaves(other.state))


def test_extra_arguments_reach_the_transform():
    seen = {}

    class Watch(mx.AbstractStatelessTransform):
        def apply(self, updates, params, **extra):
            seen.update(extra)
            return updates

    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.Chain(Watch(), mx.Scale(-0.1)))
    optimizer.update(model, nnx.state(model, nnx.Param), value=jnp.ones(()))
    assert set(seen) == {"value"}


@each_mode
def test_parameters_to_evaluate(graph: bool):
    model = Net(nnx.Rngs(0))
    optimizer = modulax.nnx.Optimizer(model, mx.Chain(mx.Clip(1.0), mx.ScheduleFreeSGD(0.1)), graph=graph)
    train(optimizer, model, 5, graph)
    trained = jtu.tree_map(jnp.copy, nnx.as_pure(nnx.state(model, nnx.Param, graph=graph)))
    averaged = nnx.clone(model, graph=graph)
    nnx.update(averaged, optimizer.eval_params(model))
    found = nnx.as_pure(nnx.state(averaged, nnx.Param, graph=graph))
    mean = mx.ScheduleFreeSGD(0.1).eval_params(optimizer.state[1], trained)
    chex.assert_trees_all_equal(found, mean)
    assert np.any(found["out"]["kernel"] != trained["out"]["kernel"])
    kept = nnx.as_pure(nnx.state(model, nnx.Param, graph=graph))
    chex.assert_trees_all_equal(kept, trained)


@each_mode
@pytest.mark.parametrize(
    "optimizer",
    [
        mx.SM3(0.1),
        mx.Adafactor(0.1, min_dim_size_to_factor=2, momentum=0.9),
        mx.Muon(0.1, adam_learning_rate=0.1),
        mx.GaLore(0.1, 2, 2),
        mx.Prodigy(),
        mx.DoG(),
        mx.NoisySGD(0.1),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_states_of_every_kind(optimizer: Any, graph: bool, tmp_path):
    """Lists, absent leaves, numbers of all leaves, keys, transforms inside: as without NNX, and from a checkpoint."""
    model = Net(nnx.Rngs(0))
    trained = modulax.nnx.Optimizer(model, optimizer, graph=graph)
    params = nnx.as_pure(nnx.state(model, nnx.Param, graph=graph))
    state = optimizer.init(params)
    for i in range(3):
        grads = jax.tree.map(lambda p, i=i: jnp.cos(p + i), nnx.state(model, nnx.Param, graph=graph))
        params, state = optimizer.step(nnx.as_pure(grads), state, params)
        nnx.jit(lambda m, o, g: o.update(m, g), graph=graph)(model, trained, grads)
    found = nnx.as_pure(nnx.state(model, nnx.Param, graph=graph))
    chex.assert_trees_all_close((found, trained.state), (params, state), rtol=1e-4, atol=1e-5)
    modulax.checkpoint.save(tmp_path / "a", nnx.state(trained, graph=graph))
    other = modulax.nnx.Optimizer(Net(nnx.Rngs(1)), optimizer, graph=graph)
    restored, _ = modulax.checkpoint.restore(tmp_path / "a", nnx.state(other, graph=graph))
    nnx.update(other, restored)
    chex.assert_trees_all_equal(other.state, trained.state)


@each_mode
def test_the_stock_optimizer_keeps_moments_in_few_bits(graph: bool):
    model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
    copied = nnx.clone(model, graph=graph)
    grads = nnx.grad(lambda model: jnp.sin(model(jnp.arange(16.0)[None])).sum(), graph=graph)(model)
    # A gate returns the state as it was where it skips a step.
    optimizer: Any = mx.MultiSteps(mx.LowBit(mx.ParamEMA(mx.AdamW(0.1)), min_size=4), 2)
    stock = nnx.Optimizer(model, optimizer, wrt=nnx.Param, graph=graph)
    ours = modulax.nnx.Optimizer(copied, optimizer, graph=graph)
    for _ in range(3):
        nnx.jit(lambda m, o, g: o.update(m, g), graph=graph)(model, stock, grads)
        ours.update(copied, grads)
    params = nnx.state(model, nnx.Param, graph=graph)
    averaged: Any = optimizer.eval_params(stock.opt_state, params)
    for found, expected in ((params, nnx.state(copied, nnx.Param, graph=graph)), (averaged, ours.eval_params(copied))):
        chex.assert_trees_all_close(nnx.as_pure(found), nnx.as_pure(expected), atol=1e-6)


def test_a_scheduled_hyperparameter_is_set_by_the_numbers_of_its_schedule():
    optimizer: Any = modulax.nnx.Optimizer(Net(nnx.Rngs(0)), mx.AdamW(mx.schedules.Linear(0.0, 1.0, 10)))
    with pytest.raises(TypeError, match=r"`Linear` is a schedule.* assign to one of its numbers: .*end_value\[...\]"):
        optimizer.hyperparameters.learning_rate[...] = 1e-3
    optimizer.hyperparameters.learning_rate.end_value[...] = 2.0
    with pytest.raises(AttributeError, match=r"optimizer.hyperparameters.learning_rate.end_value\[...\]"):
        optimizer.hyperparameters.learning_rate = 1e-3
    assert float(optimizer.transform.learning_rate(10)) == 2.0


@each_mode
def test_the_shapes_of_an_optimizer_are_known_also_within_a_mesh(graph: bool):
    def make() -> Any:
        return modulax.nnx.Optimizer(Net(nnx.Rngs(0)), mx.AdamW(1e-3), graph=graph)

    for context in (contextlib.nullcontext(), jax.set_mesh(jax.make_mesh((1,), ("data",)))):
        with context:
            abstract, optimizer = nnx.eval_shape(make, graph=graph), make()
        shapes = [[x.shape for x in jax.tree.leaves(nnx.state(tree, graph=graph))] for tree in (abstract, optimizer)]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda model: nnx.Optimizer(model, mx.to_optax(mx.SGD(0.5)), wrt=nnx.Param),
        lambda model: modulax.nnx.Optimizer(model, mx.SGD(0.5)),
    ],
    ids=["stock, with ours as optax's", "modulax"],
)
def test_a_step_is_cached(make: Any):
    """NNX cannot cache a function of an object that holds plain arrays."""
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(model: Any, optimizer: Any) -> None:
        optimizer.update(model, nnx.grad(lambda model: model(jnp.ones((1, 2))).sum())(model))

    before = model.kernel[...]
    nnx.cached_partial(step, model, make(model))()
    np.testing.assert_allclose(model.kernel[...], before - 0.5)


def test_the_arrays_of_a_variable_equal_such_arrays_alone():
    a, b = ((JoinedNames(name),) for name in "ab")
    assert Arrays(a, [1.0]) == Arrays(a, (1.0,))
    assert all(Arrays(a, [1.0]) != x for x in (1.0, None, Arrays(a, [2.0]), Arrays(b, [1.0])))
