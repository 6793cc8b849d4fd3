"""Finding, changing and mapping what states hold, by name, by path and by what their fields say of themselves."""

import collections
import sys
from typing import Any

import chex
import equinox as eqx
import flax.core
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

import modulax as mx
from modulax import tree
from modulax.testing import LAWS, Case
from modulax.tree._paths import leaf_paths

PARAMS = {"dense": {"bias": jnp.array([0.3, -0.2]), "kernel": jnp.ones((3, 2))}, "scale": jnp.array(0.7)}
MATRICES = mx.by_path({"*kernel": True, "*": False})


def chain() -> mx.Chain:
    return mx.Chain(mx.Trace(0.9), mx.ScaleByAdam(), mx.Ema(0.5))


# --- Finding -------------------------------------------------------------------------------------


CONTAINERS = {
    "optimizer": mx.Adam(0.1),
    "chain": mx.Chain(mx.ClipByGlobalNorm(1.0), mx.AdamW(0.1)),
    "multisteps": mx.MultiSteps(mx.Adam(0.1), 2),
    "masked": mx.Masked(mx.Adam(0.1), MATRICES),
    "partition": mx.Partition({True: mx.Adam(0.1), False: mx.SGD(0.1)}, MATRICES),
    "injected": mx.Injected(mx.ScaleByAdam()),
    "optax chain": optax.chain(optax.clip(1.0), optax.adam(0.1)),
    "optax multisteps": optax.MultiSteps(optax.adam(0.1), 2).gradient_transformation(),
    "optax injected": optax.inject_hyperparams(optax.adam)(0.1),
    "optax masked": optax.masked(optax.adam(0.1), lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_field_is_found_in_the_state_of_every_container(name: str):
    state = CONTAINERS[name].init(PARAMS)
    ((path, state_of_adam),) = tree.get_all_with_path(state, "ScaleByAdamState")
    assert tree.get(state, "mu") is state_of_adam.mu
    assert tree.get(state, "nu.dense.kernel") is state_of_adam.nu["dense"]["kernel"]
    assert tree.get(state, "ScaleByAdamState.nu.dense.kernel") is state_of_adam.nu["dense"]["kernel"]
    assert tree.get(state, f"{path}.count".strip(".")) is state_of_adam.count
    new = tree.set(state, **{"ScaleByAdamState.count": 3, "mu": tree.get(state, "nu")})
    assert jtu.tree_structure(new) == jtu.tree_structure(state)
    assert tree.get(new, "ScaleByAdamState.count") == 3
    assert tree.get(state, "ScaleByAdamState.count") == 0


def test_paths_are_those_of_leaf_paths():
    state = chain().init(PARAMS)
    found = tree.get_all_with_path(state, "*kernel")
    assert [path for path, _ in found] == [path for path in tree.leaf_paths(state) if path.endswith("kernel")]
    assert len(found) == 4


def test_a_pattern_finds_the_outermost():
    state = chain().init(PARAMS)
    assert [path for path, _ in tree.get_all_with_path(state, "scale_by_adam.*")] == [
        "parts.scale_by_adam.mu",
        "parts.scale_by_adam.nu",
        "parts.scale_by_adam.count",
    ]
    assert [path for path, _ in tree.get_all_with_path(state, "EmaState.*bias")] == ["parts.ema.ema.dense.bias"]
    nested = mx.MultiSteps(mx.MultiSteps(mx.SGD(0.1), 2), 2).init(PARAMS)
    assert len(tree.get_all_with_path(nested, "mini_step")) == len(tree.get_all_with_path(nested, "*.mini_step")) == 2


def test_a_name_is_a_key_even_if_it_looks_like_a_pattern():
    assert tree.get({"w[0]": 1, "w0": 2}, "w[0]") == 1


def test_what_is_absent_is_not_found():
    state = mx.Masked(mx.ScaleByAdam(), MATRICES).init(PARAMS)
    assert tree.get(state, "mu.dense.bias", default=None) is None
    assert tree.get_all_with_path(state, "bias") == []


def test_an_unknown_name_lists_what_there_is():
    state = chain().init(PARAMS)
    with pytest.raises(ValueError, match=r"no `trance`. Did you mean `trace`\? There are `parts`, `ema`"):
        tree.get(state, "trance")
    with pytest.raises(ValueError, match="Did you mean `ScaleByAdamState`"):
        tree.get(state, "ScaleByAdmState")
    with pytest.raises(ValueError, match="there is no `muh`"):
        tree.set(state, muh=0)
    assert tree.get(state, "muh", default=None) is None


def test_an_ambiguous_name_lists_the_paths():
    state = chain().init(PARAMS)
    with pytest.raises(ValueError, match=r"it could be `parts\.ema\.count`, `parts\.scale_by_adam\.count`"):
        tree.get(state, "count")
    with pytest.raises(ValueError, match=r"`parts\.ema\.count`.* Write one of them as .*\*\.count"):
        tree.set(state, count=1)
    assert tree.get(state, "count", filtering=lambda path, value: "ema" in path) == 0
    nested = mx.Scheduled(mx.Adam(0.1)).init(PARAMS)
    chosen = r"lambda path, value: path == 'step'"
    with pytest.raises(ValueError, match=rf"`step`, `inner.step`. Choose one with `filtering={chosen}`, or"):
        tree.get(nested, "step")
    with pytest.raises(ValueError, match=rf"Choose one with `tree.set\(..., {chosen}, step=...\)`, or change them all"):
        tree.set(nested, step=1)
    changed = tree.set(nested, lambda path, value: path == "step", step=3)
    assert (changed.step, changed.inner.step) == (3, 0)


@pytest.mark.parametrize(
    "name, transform",
    [
        ("trace", mx.SGD(0.1, momentum=0.9)),
        ("trace", mx.RMSProp(0.1, momentum=0.9)),
        ("ema", mx.Signum(0.1)),
        ("ema", mx.Chain(mx.Scale(2.0), mx.Ema(0.9))),
    ],
)
def test_a_field_wins_over_the_part_of_a_chain_of_its_name(name: str, transform: Any):
    """As in optax, where parts have no names."""
    state = transform.init(PARAMS)
    moments = jtu.tree_map(lambda p: p + 1.0, tree.get(state, name))
    assert jtu.tree_structure(moments) == jtu.tree_structure(PARAMS)
    changed = tree.set(state, **{name: moments})
    assert eqx.tree_equal(tree.get(changed, name), moments)
    assert [path.split(".")[-2:] for path, _ in tree.get_all_with_path(state, name)] == [[name, name]]


def test_a_name_is_whole_and_a_predicate_chooses_among_what_has_it():
    held = {"a": {"x": 1, "y": 2}, "b": {"x": 3, "max": 4}}

    def is_odd_and_in_b(path: str, value: Any) -> bool:
        return path.startswith("b") and value % 2 == 1

    assert tree.get_all_with_path(held, "x") == [("a.x", 1), ("b.x", 3)]
    assert tree.get_all_with_path(held, "[xy]", lambda path, value: value < 3) == [("a.x", 1), ("a.y", 2)]
    assert tree.get_all_with_path(held, "[xy]", is_odd_and_in_b) == [("b.x", 3)]
    assert tree.get(held, "x", filtering=is_odd_and_in_b) == 3
    assert tree.get(held, "y", None, is_odd_and_in_b) is None
    assert tree.filter(held, "x", is_odd_and_in_b) == {"a": {"x": None, "y": None}, "b": {"x": 3, "max": None}}
    assert tree.set(held, is_odd_and_in_b, x=5, **{"[xz]": 7}) == {"a": {"x": 1, "y": 2}, "b": {"x": 7, "max": 4}}
    with pytest.raises(ValueError, match="there is no `y` that `filtering` lets through"):
        tree.set(held, is_odd_and_in_b, y=5)
    with pytest.raises(ValueError, match="there is no `y` that `filtering` lets through"):
        tree.get(held, "y", filtering=is_odd_and_in_b)
    with pytest.raises(ValueError, match=r"there is no `z`\. There are"):
        tree.get(held, "z")
    with pytest.raises(ValueError, match="there is no `z`"):
        tree.get({"a": None}, "z")


def test_paths_are_the_same_without_flax(monkeypatch: pytest.MonkeyPatch):
    held = {"a": [jnp.ones(1), None], "b": mx.ScaleByAdam().init({"w": jnp.ones(2), "n": None}), "c": None}
    pytest.importorskip("flax.nnx")
    with_flax = tree.leaf_paths(held), leaf_paths(held, with_none=True)
    monkeypatch.delitem(sys.modules, "flax.nnx")
    paths = tree.leaf_paths(held), leaf_paths(held, with_none=True)
    assert paths == with_flax
    assert set(paths[1]) - set(paths[0]) == {"a.1", "b.mu.n", "b.nu.n", "c"}


def test_a_pattern_may_match_the_class_of_the_whole():
    state = mx.ScaleByAdam().init(PARAMS)
    assert tree.get_all_with_path(state, "ScaleBy*") == [("", state)]
    assert tree.get(state, "ScaleByAdamState") is state


def test_filter_keeps_what_is_found():
    state = mx.Adam(0.1).init(PARAMS)
    state = tree.set(state, nu=PARAMS)
    moments = tree.filter(state, "nu")
    assert tree.leaf_paths(moments) == [path for path in tree.leaf_paths(state) if ".nu." in path]
    into = eqx.combine(moments, mx.Adam(0.1).init(PARAMS))
    assert eqx.tree_equal(into, state)


# --- Changing ------------------------------------------------------------------------------------


def test_a_pattern_changes_all():
    state = tree.set(chain().init(PARAMS), **{"*.count": 5, "*.kernel": jnp.full((3, 2), 2.0)})
    assert all(x == 5 for _, x in tree.get_all_with_path(state, "count"))
    assert [float(x.sum()) for _, x in tree.get_all_with_path(state, "kernel")] == [12.0] * 4


def test_a_changed_state_traces_nothing_anew():
    optimizer = mx.Adam(0.1)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(state):
        return optimizer.update(PARAMS, state)[1]

    state = step(optimizer.init(PARAMS))
    state = step(tree.set(state, step=0, count=np.int64(7), mu=jtu.tree_map(np.asarray, PARAMS)))
    assert tree.get(state, "count") == 8


def test_it_works_inside_of_a_program():
    @jax.jit
    def warm(state, count):
        state = tree.set(state, count=count.astype(jnp.int16))
        return tree.set(state, mu=jtu.tree_map(lambda m: m + 1, tree.get(state, "mu")))

    state = warm(mx.ScaleByAdam().init(PARAMS), jnp.array(4, jnp.int32))
    assert (int(state.count), state.count.dtype) == (4, jnp.int32)
    assert state.mu["scale"] == 1


def test_containers_of_another_type_are_paired_by_path():
    state = tree.set(mx.Trace(0.9).init(PARAMS), trace=flax.core.freeze(PARAMS))
    assert eqx.tree_equal(state.trace, PARAMS)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"mu.dense.kernel": jnp.ones(2)},
            r"at `mu\.dense\.kernel` the shape is \(3, 2\), and the new value's is \(2,\)",
        ),
        ({"count": 1.5}, "at `count` there is int32, which cannot hold a value of dtype float"),
        ({"mu": jnp.ones(2)}, r"there is a tree with `dense\.bias`.* and the new value is a single array"),
        ({"mu": {"scale": 0.0}}, "the new value is a tree with `scale`"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        tree.set(mx.ScaleByAdam().init(PARAMS), **change)


def test_a_new_value_is_of_the_kind_of_the_old_one():
    held = {"flag": jnp.array(True), "n": np.array([1, 2], np.int16), "x": jnp.zeros(2), "f": abs, "t": (1.0, [2.0])}
    new = tree.set(held, n=np.array([3, 4]), x=np.array([1, 2]), f=max, t=collections.OrderedDict({"1": [4.0], "0": 3}))
    assert (type(new["n"]), new["n"].dtype) == (np.ndarray, np.int16)
    assert isinstance(new["x"], jax.Array)
    assert isinstance(tree.set(held, x=np.ones(2, np.float32))["x"], jax.Array)
    assert isinstance(tree.set(held, n=jnp.arange(2))["n"], jax.Array)
    assert new["f"] is max
    assert tree.set(held, n=np.array([True, False]))["n"].tolist() == [1, 0]
    shape = tree.set(held, x=jax.ShapeDtypeStruct((2,), jnp.int32))["x"]
    assert (shape.shape, shape.dtype) == ((2,), jnp.float32)
    with pytest.raises(ValueError, match="at `flag` there is bool, which cannot hold a value of dtype int"):
        tree.set(held, flag=1)
    with pytest.raises(ValueError, match=r"at `a\.t\.1\.0` the shape is \(\), and the new value's is \(2,\)"):
        tree.set({"a": {"t": (1.0, [jnp.array(2.0)])}}, t=(1.0, [jnp.ones(2)]))
    with pytest.raises(ValueError, match="the new value is a tree with `0`, `1`, `2`"):
        tree.set({"t": (1.0, 2.0)}, t=[1.0, 2.0, 3.0])


def test_a_transform_is_changed_with_its_checks():
    optimizer = tree.set(chain(), **{"scale_by_adam.b1": 0.5, "trace.decay": 0.1})
    assert eqx.tree_equal(optimizer, chain().replace(**{"scale_by_adam.b1": 0.5, "trace.decay": 0.1}))
    assert tree.get(optimizer, "b1") == 0.5
    with pytest.raises(ValueError, match=r"`ScaleByAdam\(b1=\.\.\.\)` must be in \[0, 1\)"):
        tree.set(chain(), b1=1.5)


# --- What belongs to the parameters ----------------------------------------------------------------


def by_field(mapped: Any) -> dict[str, float]:
    """The sum of each array by its field and the path of its parameter, wherever the field is."""
    found: dict[str, float] = collections.defaultdict(float)
    for path, x in zip(tree.leaf_paths(mapped), jtu.tree_leaves(mapped), strict=True):
        param = next(p for p in tree.leaf_paths(PARAMS) if path.endswith("." + p))
        field = path.removesuffix("." + param).rpartition(".")[2]
        found[f"{field}.{param}"] += float(x.sum())
    return dict(found)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (mx.AdamW(0.1), optax.adamw(0.1)),
        (mx.SGD(0.1, 0.9), optax.sgd(0.1, 0.9)),
        (mx.RMSProp(0.1, centered=True, momentum=0.9), optax.rmsprop(0.1, centered=True, momentum=0.9)),
        (mx.AdEMAMix(0.1), optax.contrib.ademamix(0.1)),
        (mx.Prodigy(), optax.contrib.prodigy()),
        (mx.Injected(mx.Adam(0.1)), optax.inject_hyperparams(optax.adam)(0.1)),
        (mx.MultiSteps(mx.Lion(0.1), 2), optax.MultiSteps(optax.lion(0.1), 2).gradient_transformation()),
        (mx.AddNoise(0.1, 0.5), optax.add_noise(0.1, 0.5, key=0)),
    ],
)
def test_map_params_agrees_with_optax(ours: Any, theirs: Any):
    def function(x, p):
        return x + p

    found = []
    for initable, library in ((ours, tree), (theirs, tree), (theirs, optax.tree)):
        state = initable.init(PARAMS)
        mapped = library.map_params(initable, function, state, PARAMS, transform_non_params=lambda x: None)
        found.append(by_field(mapped))
    assert found[0] == found[2]
    assert found[1] == found[2]


def test_what_is_no_parameter_is_kept_or_transformed():
    state = mx.MultiSteps(mx.Adam(0.1), 2).init(PARAMS)
    mapped = tree.map_params(None, jnp.ones_like, state)
    assert float(tree.norm([tree.get(mapped, "mu"), tree.get(mapped, "nu"), mapped.acc_grads])) ** 2 == pytest.approx(
        27
    )
    assert mapped.mini_step is state.mini_step
    mapped = tree.map_params(None, lambda x: x, state, transform_non_params=lambda x: x + 1)
    assert (mapped.mini_step, tree.get(mapped, "step"), tree.get(mapped, "count")) == (1, 1, 1)


def test_map_params_takes_a_function_for_other_libraries_and_stops_where_it_is_told():
    theirs = optax.chain(optax.trace(0.9), optax.scale_by_schedule(lambda step: step))
    state = theirs.init(PARAMS)
    for initable in (theirs, theirs.init):
        mapped = tree.map_params(initable, lambda x: None, state, transform_non_params=lambda x: x + 1)
        assert jtu.tree_leaves(mapped) == [1]
    pairs = mx.Trace(0.9).init({"a": (jnp.ones(1), jnp.ones(2)), "b": (jnp.ones(3), jnp.ones(4))})
    first = tree.map_params(
        None, lambda x, mark: (mark, x[0].size), pairs, {"a": "A", "b": "B"}, is_leaf=lambda x: isinstance(x, tuple)
    )
    assert first.trace == {"a": ("A", 1), "b": ("B", 3)}
    assert tree.map_params(None, lambda x: x.size, {"none": None, "state": pairs})["state"].trace["b"] == (3, 4)
    # a random key, or any other shared value, may be a tree
    noisy = mx.Chain(mx.Trace(0.9), mx.AddNoise(0.1, 0.5)).init(PARAMS)
    assert jtu.tree_leaves(tree.map_params(None, lambda x: None, noisy, transform_non_params=jnp.shape)) == [2]


def test_map_params_of_arrays_that_have_other_shapes():
    """Rows and columns, several arrays for one parameter, and nothing where there is none."""

    def marks(transform: Any) -> dict[str, Any]:
        state = transform.init(PARAMS)
        same = tree.map_params(transform, lambda x, p: x.shape == p.shape, state, PARAMS, transform_non_params=str)
        return dict(zip(tree.leaf_paths(same), jtu.tree_leaves(same), strict=True))

    assert marks(mx.ScaleByFactoredRMS(min_dim_size_to_factor=2)) == {
        "v_row.dense.kernel": False,
        "v_col.dense.kernel": False,
        "v.dense.bias": True,
        "v.scale": True,
        "count": "0",
    }
    assert {k: v for k, v in marks(mx.ScaleBySM3()).items() if k.startswith("mu")} == {
        "mu.dense.bias.0": True,
        "mu.dense.kernel.0": False,
        "mu.dense.kernel.1": False,
        "mu.scale.0": True,
    }
    assert marks(mx.Masked(mx.Trace(0.9), MATRICES)) == {"inner_state.trace.dense.kernel": True}
    galore = marks(mx.ScaleByGaLore(rank=1))
    assert {k: v for k, v in galore.items() if "projector" in k} == {"projector.dense.kernel": False}
    assert galore["count"] == "0"


def test_map_params_says_what_is_lacking():
    state = mx.Trace(0.9).init(PARAMS)
    with pytest.raises(ValueError, match=r"has `dense\.bias` in `trace`, and one of the trees has nothing there"):
        tree.map_params(None, lambda x, p: x, state, {"scale": 1})


class CountingState(mx.AbstractState):
    seen: Array


class Counting(mx.AbstractTransform):
    """A user's transform that does not declare its counter as shared."""

    def init(self, params: Any) -> CountingState:
        del params
        return CountingState(jnp.zeros((), jnp.int32))

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params, extra
        return updates, CountingState(state.seen + 1)


def test_an_undeclared_counter_is_told_how():
    with pytest.raises(ValueError, match=r"with `seen: \.\.\. = modulax\.shared\(\)`"):
        tree.map_params(None, lambda x, p: x, Counting().init(PARAMS), PARAMS)
    law = LAWS["the_state_says_what_is_like_the_parameters"]
    with pytest.raises(AssertionError, match=r"`seen` is not at the path of a parameter"):
        law.check(Case(Counting()))


def test_ours_inside_of_optax():
    transform: Any = optax.chain(optax.trace(0.9), mx.Adam(0.1))  # pyright: ignore[reportArgumentType]
    state = transform.init(PARAMS)
    mapped = tree.map_params(transform, lambda x: 1, state, transform_non_params=lambda x: 0)
    assert sum(jtu.tree_leaves(mapped)) == 3 * len(jtu.tree_leaves(PARAMS))
    assert tree.get(mapped, "count") == 0


def test_map_params_gives_shardings():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    params = jax.device_put(PARAMS, NamedSharding(mesh, PartitionSpec()))
    optimizer = mx.Partition({True: mx.Adam(0.1), False: mx.SGD(0.1, 0.9)}, MATRICES)
    state = jax.eval_shape(optimizer.init, params)
    shardings = jtu.tree_map(lambda p: p.sharding, params)
    everywhere = NamedSharding(mesh, PartitionSpec())
    mapped = tree.map_params(optimizer, lambda x, s: s, state, shardings, transform_non_params=lambda x: everywhere)
    assert eqx.tree_equal(mapped, mx.state_sharding(optimizer, params))
    assert jax.jit(optimizer.init, out_shardings=mapped)(params) is not None


def test_a_parameter_may_have_the_name_of_a_number_in_the_state():
    """A value that all parameters share belongs to none of them, whatever their names."""
    params = {"estim_lr": jnp.array(1.0), "w": jnp.ones(3)}
    state = mx.Prodigy().init(params)
    size = sum(x.nbytes for x in jtu.tree_leaves(tree.map_params(None, lambda x: None, state)))
    description = mx.describe(mx.Prodigy(), params)
    assert description.shared_bytes == size
    assert [row.state_bytes for row in description.leaves] == [16, 48]
