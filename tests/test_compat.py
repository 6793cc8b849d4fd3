"""`modulax.compat`: the names, arguments and defaults of optax, and the transforms that come back."""

import dataclasses
import functools
import importlib
import inspect
import operator
import pickle
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.experimental
import pytest
from flax import nnx

import modulax as mx
from modulax import compat
from modulax.compat._names import NAMES
from modulax.compat._own import DEPRECATED
from modulax.compat._states import TWINS
from modulax.compat._transformations import native_in

from . import settings
from .instances import SCHEDULES, TRANSFORMS
from .loops import each
from .test_compat_callers import PARAMS, Variable
from .vocabulary import names

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")


def test_every_public_name_of_optax_is_there():
    listed = {f"{module}.{name}".lstrip(".") for module, found in NAMES.items() for name in found}
    assert names().keys() <= listed
    for path in listed:
        assert operator.attrgetter(path)(compat) is not NotImplemented
    for module, found in NAMES.items():
        shown = dir(importlib.import_module(f"modulax.compat.{module}".rstrip(".")))
        assert shown == sorted(set(found) - (set() if module else DEPRECATED.keys()))


def functions() -> Iterator[str]:
    """The functions of optax by path."""
    for path in names():
        function = operator.attrgetter(path)(optax)
        if inspect.isfunction(function) or hasattr(function, "__wrapped__") or isinstance(function, functools.partial):
            yield path
    yield from (name for name in DEPRECATED if name[0].islower())


def arguments(function: Callable[..., Any]) -> list[Any]:
    """Name, kind and default of every argument, those by name in alphabetical order; an object for what is no value."""

    def shown(x: Any) -> Any:
        is_value = x is None or x is inspect.Parameter.empty or type(x) in (bool, int, float, str, tuple)
        return x if is_value else "an object"

    found = inspect.signature(function).parameters.values()
    shown_ones = [("**" if p.kind is p.VAR_KEYWORD else p.name, p.kind, shown(p.default)) for p in found]
    return sorted(shown_ones, key=lambda x: (x[1], x[0] if x[1] is inspect.Parameter.KEYWORD_ONLY else ""))


@each(functions)
def test_arguments_are_those_of_optax(path: str):
    assert arguments(operator.attrgetter(path)(compat)) == arguments(operator.attrgetter(path)(optax))


class Recorded:
    """`compat`, or one of its modules, which remembers the names that are read."""

    def __init__(self, module: Any, path: str, seen: set[str]):
        self._module, self._path, self._seen = module, path, seen

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}.{name}".lstrip(".")
        value = getattr(self._module, name)
        if isinstance(value, types.ModuleType):
            return Recorded(value, path, self._seen)
        self._seen.add(path)
        return value


def as_compat(make: Any, seen: set[str]) -> Any:
    """A call of optax, with `compat` in its place."""
    recorded = Recorded(compat, "", seen)
    if isinstance(make, functools.partial):
        return functools.partial(as_compat(make.func, seen), *make.args, **make.keywords)
    if getattr(make, "__module__", "").startswith("optax"):
        return operator.attrgetter(path_of(make))(recorded)
    if not isinstance(make, types.FunctionType):
        return make
    theirs = {optax: "", **{operator.attrgetter(path)(optax): path for path in NAMES if path}}
    changed = {
        name: operator.attrgetter(theirs[value])(recorded) if theirs[value] else recorded
        for name, value in make.__globals__.items()
        if isinstance(value, types.ModuleType) and value in theirs
    }
    copy = types.FunctionType(make.__code__, make.__globals__ | changed, None, make.__defaults__, make.__closure__)
    copy.__kwdefaults__ = make.__kwdefaults__
    return copy


def path_of(function: Any) -> str:
    return next(path for path in names() if operator.attrgetter(path)(optax) is function)


def same(a: Any, b: Any) -> bool:
    """Whether two transforms or schedules are of one class, with equal numbers and options; masks are not compared."""
    if isinstance(a, mx.AbstractTransform | mx.AbstractSchedule):
        fields = [field.name for field in dataclasses.fields(a)] if isinstance(a, type(b)) else []
        return isinstance(a, type(b)) and all(
            same(getattr(a, f), getattr(b, f)) for f in fields if "mask" not in f and f != "labels"
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(x, b[key]) for key, x in a.items())
    if isinstance(a, np.ndarray | np.generic | jax.Array):
        return np.array_equal(a, b)
    return a == b or (callable(a) and callable(b))


@functools.cache
def compared() -> set[str]:
    """The functions of optax, in a call of which `compat` makes a transform that other tests compare with optax's."""
    found = set()
    for instance in (*TRANSFORMS, *SCHEDULES):
        if instance.optax is not None and instance.name not in ("Monitor", "SAM", "ScaleByShape"):
            seen: set[str] = set()
            with warnings.catch_warnings(action="ignore"):
                made = as_compat(instance.optax, seen)()
            if same(native_in(made), instance.make()):
                found |= seen
    return found


def is_matrix(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.ndim(x) == 2, tree)


# Calls of the other functions that make transforms, which are compared with optax's here.
CALLS: dict[str, Callable[[Any], Any]] = {
    "adafactor": lambda o: o.adafactor(0.05, 2, weight_decay_rate=0.1, weight_decay_mask=is_matrix),
    "adafactor()": lambda o: o.chain(o.adafactor(), o.scale(0.05)),
    "adadelta": lambda o: o.adadelta(weight_decay=0.1, weight_decay_mask=is_matrix),
    "chain": lambda o: o.chain(o.clip(1.0), o.GradientTransformation(*o.sgd(0.1, 0.9))),
    "contrib.dpsgd": lambda o: o.contrib.dpsgd(0.1, 1.5, 0.0, seed=0, momentum=0.9),
    "contrib.schedule_free": lambda o: o.contrib.schedule_free(o.sgd(0.1), 0.1),
    "contrib.schedule_free_sgd": lambda o: o.contrib.schedule_free_sgd(0.1, None, 0.8),
    "freeze": lambda o: o.freeze({"w": True, "b": False}),
    "lars": lambda o: o.lars(0.5, 0.1, is_matrix, trust_ratio_mask=is_matrix),
    "multi_transform": lambda o: o.multi_transform({True: o.sgd(0.1), False: o.adam(0.1)}, is_matrix),
    "nadam": lambda o: o.chain(o.nadam(0.1, mu_dtype=jnp.float64), o.nadam(0.1, 0.8, nesterov=False)),
    "nadamw": lambda o: o.chain(o.nadamw(0.1, mask=is_matrix), o.nadamw(0.1, mask=is_matrix, nesterov=False)),
    "named_chain": lambda o: o.named_chain(("a", o.clip(1.0)), ("b", o.lion(0.1))),
    "optimistic_adam": lambda o: o.optimistic_adam(0.05, 0.1),
    "scale_by_distance_over_gradients": lambda o: o.scale_by_distance_over_gradients(1e-2),
    "scale_by_learning_rate": lambda o: o.chain(o.scale_by_learning_rate(), o.scale_by_learning_rate(0.1)),
    "selective_transform": lambda o: o.selective_transform(o.adam(0.1), freeze_mask={"w": True, "b": False}),
    "stateless_with_tree_map": lambda o: o.stateless_with_tree_map(lambda u, p: u - 0.1 * p),
}
# Compared with a wrapper of optax's, which fails in double precision or for scalars; or with arguments of its own.
ELSEWHERE = {
    "contrib.madgrad",
    "contrib.sam",
    "contrib.scale_by_madgrad",
    "contrib.scale_by_muon",
    "experimental.aggregating.get_per_element_mean_and_sum_sq_diff_grads",
    "inject_stateful_hyperparams",
    "lookahead",
    "monitor",
    "scale_by_sm3",
    "sm3",
}


# Functions of `compat` that make no transform.
OTHERS = {
    "dice_loss",
    "global_norm",
    "init_empty_state",
    "schedule_free_eval_params",
    "value_and_grad_from_state",
    "with_extra_args_support",
}
MAKERS = ("modulax.compat._functions", "modulax.compat._schedules")


def ten_steps(transform: Any, examples: bool) -> Any:
    """The updates of ten steps, and the parameters after them."""
    params = {"w": jnp.asarray([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.asarray([0.3, -0.4])}

    def step(carry: Any, count: Any) -> Any:
        params, state = carry
        grads = jax.tree.map(lambda p: jnp.sin(p * count) + 0.1, params)
        grads = jax.tree.map(lambda g: jnp.stack([g, 2 * g]), grads) if examples else grads
        updates, state = transform.update(grads, state, params)
        return (jax.tree.map(jnp.add, params, updates), state), updates

    (params, _), updates = jax.lax.scan(step, (params, transform.init(params)), jnp.arange(1.0, 11.0))
    return updates, params


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("path", CALLS)
def test_ten_steps_are_those_of_optax(path: str):
    with warnings.catch_warnings(action="ignore"):
        theirs, ours = CALLS[path](optax), CALLS[path](compat)
    assert isinstance(ours, compat.GradientTransformation)
    examples = path == "contrib.dpsgd"
    with settings.jax_defaults():
        desired = jax.jit(lambda: ten_steps(theirs, examples))()
    actual = jax.jit(lambda: ten_steps(ours, examples))()
    rtol = 1e-6 if path.startswith("adafactor") else 1e-12  # optax computes its decay in float32
    jax.tree.map(lambda a, d: np.testing.assert_allclose(a, d, rtol=rtol, atol=1e-14), actual, desired)


@pytest.mark.usefixtures("x64")
def test_every_function_that_makes_a_transform_is_compared():
    def makes(path: str) -> bool:
        x = operator.attrgetter(path)(compat)
        if path.rpartition(".")[2] in OTHERS:
            return False
        makes_one = hasattr(x, "constructs") and issubclass(x.constructs, mx.AbstractTransform | mx.AbstractSchedule)
        return makes_one or getattr(x, "__module__", "") in MAKERS

    made = {path for path in functions() if makes(path)}
    flat = {path for path in made - DEPRECATED.keys() if path.partition(".")[0] not in ("transforms", "schedules")}
    assert len(flat) > 140
    assert flat - compared() - CALLS.keys() == ELSEWHERE & flat
    for path in made - flat:
        name = path.partition(".")[2]
        assert name not in flat or inspect.signature(getattr(compat, name)) == inspect.signature(
            operator.attrgetter(path)(compat)
        )


def state_classes() -> Iterator[tuple[str, Any]]:
    """The states of optax that have fields, by path."""
    for path in (f"{module}.{name}".lstrip(".") for module, found in NAMES.items() for name in found):
        with warnings.catch_warnings(action="ignore"):
            theirs = operator.attrgetter(path)(optax) if path in names() else None
        if getattr(theirs, "_fields", None) and inspect.isclass(theirs) and path.endswith(("State", "ApplyEvery")):
            yield path, theirs


def test_state_classes_have_the_fields_of_optax():
    for path, theirs in state_classes():
        found = operator.attrgetter(path)(compat)
        assert found.__name__ == theirs.__name__ or path.endswith("MultiTransformState")
        assert (found._fields, found._field_defaults) == (theirs._fields, theirs._field_defaults), path
        made = found(*theirs._fields)
        assert pickle.loads(pickle.dumps(made)) == made
    assert compat.MultiTransformState is compat.PartitionState
    assert len(TWINS) > 50


def test_states_are_tuples():
    tx = compat.chain(compat.clip(1.0), compat.adamw(compat.linear_schedule(0.1, 0.0, 10)))
    state = tx.init(PARAMS)
    empty, (adam, decay, rate) = state
    assert (empty, decay) == (compat.EmptyState(), ())
    count, mu, _ = adam
    assert type(adam) is compat.ScaleByAdamState
    assert (int(count), mu.keys(), int(rate.count), len(state), state[1:]) == (0, PARAMS.keys(), 0, 2, (state[1],))
    assert adam._asdict().keys() == {"count", "mu", "nu"}
    # What is changed or built by hand is given back; a count that is set is the step of the schedule.
    started = adam._replace(count=jnp.asarray(1), mu=PARAMS)
    updates, new = tx.update(PARAMS, (empty, (started, decay, rate._replace(count=jnp.asarray(10)))), PARAMS)
    np.testing.assert_array_equal(updates["w"], 0)
    assert (int(new[1][0].count), int(new[1][2].count)) == (2, 11)
    for wrong in (state[1], (empty,), None, {"a": 1}):
        with pytest.raises(ValueError, match=r"`Chain.update` was given .* which must come from its `init"):
            tx.update(PARAMS, wrong, PARAMS)
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state)] == [
        *("[1][0].count", "[1][0].mu['b']", "[1][0].mu['w']", "[1][0].nu['b']", "[1][0].nu['w']", "[1][2].count")
    ]


def test_what_is_masked_out_is_a_masked_node():
    tx = compat.masked(compat.trace(0.9), {"w": 1, "b": 0})  # masks of numbers, as optax takes them
    for state in (tx.init(PARAMS), tx.update(PARAMS, tx.init(PARAMS), PARAMS)[1]):
        assert type(state.inner_state.trace["b"]) is compat.MaskedNode
    groups = compat.multi_transform({"a": compat.adam(0.1), "b": compat.sgd(0.1)}, {"w": "a", "b": "b"})
    state = groups.init(PARAMS)
    assert isinstance(state, compat.MultiTransformState)
    assert state.inner_states["a"].inner_state[0].mu["b"] == compat.MaskedNode()
    nested = compat.masked(compat.masked(compat.ema(0.5), {"w": True, "b": True}), {"w": False, "b": True})
    assert nested.init(PARAMS).inner_state.inner_state.ema["w"] == compat.MaskedNode()
    # Parameters in which the caller has masked something out before.
    params = {"w": PARAMS["w"], "b": compat.MaskedNode()}
    for tx in (compat.chain(compat.clip(1.0), compat.trace(0.9)), compat.masked(compat.adam(0.1), {"w": 1, "b": 0})):
        state = tx.init(params)
        assert jax.tree.structure(tx.update(params, state, params)) == jax.tree.structure((params, state))


def test_numbers_and_integers_are_trained_as_in_optax():
    for params, grad in ((0.5, 1.0), ([1.0, 2.0], [1.0, 1.0]), ({"w": jnp.arange(3)}, {"w": jnp.ones(3)})):
        with settings.jax_defaults():
            theirs, ours = (tx.update(grad, tx.init(params), params)[0] for tx in (optax.adam(0.1), compat.adam(0.1)))
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), ours, theirs)
    state = compat.trace(0.9).init({"w": Variable(jnp.ones(2))})
    assert state.trace["w"].shape == (2,)


def test_updates_need_not_be_like_the_parameters_where_these_are_not_read():
    tx = compat.chain(compat.scale(2.0), compat.trace(0.5))
    flat = jax.tree.map(jnp.ravel, {"w": jnp.ones((2, 3))})
    updates, _ = tx.update(flat, tx.init(flat), {"w": jnp.ones((2, 3))})
    assert updates["w"].shape == (6,)
    decayed = compat.adamw(0.1)
    with pytest.raises(ValueError, match="`AddDecayedWeights` needs `params`"):
        decayed.update(flat, decayed.init(flat), {"w": jnp.ones((2, 3))})


def test_functions_have_the_names_of_optax():
    assert pickle.loads(pickle.dumps(compat.adam)) is compat.adam
    assert compat.contrib.muon.__name__ == "muon"
    assert inspect.signature(compat.sgd).parameters["learning_rate"].annotation == compat.ScalarOrSchedule
    for learning_rate in (0.5, lambda step: 0.5):
        assert float(compat.sgd(learning_rate).update(PARAMS, compat.sgd(learning_rate).init(PARAMS))[0]["b"]) == -0.25
    with compat.x64_precision(True):
        assert compat.canonicalize_dtype(float) == jnp.float64
    assert compat.canonicalize_dtype(None) is None


def test_a_transformation_is_a_static_argument_by_its_values():
    """As those of optax, which are hashed by identity, and more: an equal one is not traced again."""
    traced = []

    @functools.partial(jax.jit, static_argnums=0)
    def first_update(tx: Any, params: Any) -> Any:
        traced.append(tx)
        return tx.update(params, tx.init(params), params)[0]

    def make(learning_rate: Any) -> Any:
        return compat.chain(compat.clip(1.0), compat.adamw(learning_rate))

    for learning_rate in (0.1, 0.1, jnp.asarray(0.2), jnp.asarray(0.2), compat.linear_schedule(0.3, 0.1, 4)):
        expected = jax.jit(make(learning_rate).update)(PARAMS, make(learning_rate).init(PARAMS), PARAMS)[0]
        jax.tree.map(np.testing.assert_array_equal, first_update(make(learning_rate), PARAMS), expected)
    assert len(traced) == 3
    assert mx.SGD(0.0) == mx.SGD(-0.0)
    assert hash(mx.SGD(0.0)) == hash(mx.SGD(-0.0))
    with pytest.raises(TypeError, match=r"`SGD` has traced hyperparameters, and cannot be hashed"):
        jax.jit(lambda learning_rate: hash(mx.SGD(learning_rate)))(0.1)
    assert jax.jit(lambda learning_rate: jax.jit(compat.sgd(learning_rate).update)(0.5, ((), ()))[0])(0.5) == -0.25


def test_helpers_of_private_modules_are_those_of_optax():
    rng = np.random.default_rng(0)
    s, y = rng.normal(size=(2, 4, 3)).astype(np.float32)
    given = jax.tree.map(jnp.asarray, ((y[:1],), (s[:, None],), (y[:, None],), 1 / np.sum(s * y, 1), 0.5, 2))
    precondition = importlib.import_module("optax._src.transform")._precondition_by_lbfgs
    with settings.jax_defaults():
        np.testing.assert_allclose(compat._precondition_by_lbfgs(*given)[0], precondition(*given)[0], rtol=1e-5)
    assert not compat._mask_callable(mx.Scale(1.0))
    assert compat._mask_callable(lambda params: params)


def test_names_that_are_not_there_are_key_errors():
    state = compat.chain(compat.ema(0.9), compat.ema(0.5)).init(PARAMS)
    search = compat.chain(*[compat.scale_by_backtracking_linesearch(2, store_grad=True)] * 2).init(PARAMS)
    for call in (
        lambda: compat.tree.get(state, "ema"),
        lambda: compat.tree.set(state, lr=1.0),
        lambda: compat.value_and_grad_from_state(lambda p: p["b"])(PARAMS, state=search),
    ):
        with pytest.raises(KeyError):
            call()
    assert compat.tree.get(state, "lr") is None
    with pytest.raises(ValueError, match="no argument `lr`"):
        compat.inject_hyperparams(compat.sgd, "lr")


def test_hyperparameters_in_a_state():
    injected = compat.inject_hyperparams(compat.adam)(learning_rate=0.1)
    state = injected.init(PARAMS)
    assert isinstance(state, compat.InjectStatefulHyperparamsState)
    assert jax.tree.structure(state.inner_state) == jax.tree.structure(compat.adam(0.1).init(PARAMS))
    state.hyperparams["learning_rate"] = 0.5
    np.testing.assert_allclose(injected.update(PARAMS, state, PARAMS)[0]["b"], -0.5, rtol=1e-6)
    assert set(state.hyperparams) == {"learning_rate", "b1", "b2", "eps", "eps_root"}
    _, state = injected.update(
        PARAMS, state._replace(hyperparams={**state.hyperparams, "b1": jnp.asarray(0.0)}), PARAMS
    )
    np.testing.assert_array_equal(state.inner_state[0].mu["w"], PARAMS["w"])
    with pytest.raises(ValueError, match="`hyperparams` has no `lr`; it has `learning_rate`"):
        injected.update(PARAMS, state._replace(hyperparams={"lr": 0.1}), PARAMS)
    optimizer = nnx.Optimizer(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), injected, wrt=nnx.Param)
    optimizer.opt_state.hyperparams["learning_rate"][...] = 0.25
    assert float(optimizer.opt_state.hyperparams["learning_rate"][...]) == 0.25


@pytest.mark.usefixtures("x64")
def test_injected_numbers_beside_float32_are_float32_under_x64():
    for dtype in (jnp.float32, jnp.float64):
        params = jnp.ones(3, dtype)
        for make in (optax, compat):
            with settings.jax_defaults():
                tx = make.inject_hyperparams(make.adam)(0.1)
                state = tx.init(params)
                _, new = tx.update(params, state, params)
            for hyperparams in (state.hyperparams, new.hyperparams):
                assert hyperparams["learning_rate"].dtype == hyperparams["b2"].dtype == dtype


def test_multi_steps():
    steps = compat.MultiSteps(compat.sgd(0.5), every_k_schedule=2)
    tx = steps.gradient_transformation()
    state = steps.init(PARAMS)
    for expected in (0.0, -0.25):
        updates, state = tx.update(PARAMS, state, PARAMS)
        np.testing.assert_allclose(updates["b"], expected)
    assert steps.has_updated(state)
    assert steps.inner_opt == compat.sgd(0.5)


def test_lookahead_trains_a_pair_of_parameters():
    found = []
    for o in (optax, compat):
        tx, params = o.lookahead(o.sgd(0.5, momentum=0.9), 2, 0.5), o.LookaheadParams.init_synced(PARAMS)
        state = tx.init(params)
        with settings.jax_defaults():
            for _ in range(3):
                updates, state = tx.update(updates=PARAMS, state=state, params=params)
                params = o.apply_updates(params, updates)
        found.append(jax.tree.leaves((params, state)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), *found)


def test_private_modules_answer_with_the_public_names():
    assert importlib.import_module("modulax.compat._src.transform").ScaleByAdamState is compat.ScaleByAdamState
    assert importlib.import_module("modulax.compat.contrib._muon").muon is compat.contrib.muon
    assert compat._src.base.GradientTransformation is compat.GradientTransformation
    with pytest.raises(AttributeError, match=r"module 'modulax.compat._src.base' has no attribute 'nope'"):
        _ = compat._src.base.nope
    assert (compat.__version__, optax.__version__) == ("0.2.8", "0.2.8")
    assert {"adam", "contrib", "__version__", *optax.__all__} <= set(compat.__all__)  # for `from optax import *`
    with pytest.warns(DeprecationWarning, match="use `tree_norm`"):
        assert float(compat.tree_utils.tree_l2_norm(jnp.ones(4))) == 2


def test_names_that_private_modules_alone_have():
    def taken(module: str, name: str) -> list[Any]:
        return [getattr(importlib.import_module(f"{o}.{module}"), name) for o in ("optax", "modulax.compat")]

    axes = {"w": optax.contrib.MuonDimensionNumbers(), "b": optax.contrib.MuonDimensionNumbers(1, 0)}
    params = {"w": jnp.ones((3, 2)), "b": jnp.ones((4, 2))}
    for module, name, *args in [
        ("contrib._dog", "scale_by_dog", ("distance", 0.1)),
        ("contrib._dog", "scale_by_dowg"),
        ("contrib._sophia", "scale_by_sophia"),
        ("contrib._muon", "scale_by_shape", axes),
    ]:
        extra = {"obj_fn": lambda p: jnp.sum(p["w"] ** 4)} if name == "scale_by_sophia" else {}
        results = []
        for make in taken(module, name):
            with settings.jax_defaults():
                tx = make(*args)
                results.append(tx.update(params, tx.init(params), params, **extra))
        assert list(map(jnp.shape, jax.tree.leaves(results[0]))) == list(map(jnp.shape, jax.tree.leaves(results[1])))
        for theirs, ours in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    for module, name, *args in [
        ("contrib._ademamix", "lerp", 0.25, jnp.ones(2), jnp.zeros(2)),
        ("losses._classification", "binary_logistic_loss", jnp.ones(2), jnp.zeros(2)),
        ("losses._classification", "binary_sparsemax_loss", jnp.ones(2), jnp.zeros(2)),
        ("losses._classification", "canonicalize_axes", (-1, 0), 3),
        ("losses._classification", "multiclass_logistic_loss", jnp.arange(3.0), 1),
        ("losses._classification", "weighted_logsoftmax", jnp.asarray([1.0, -jnp.inf]), jnp.asarray([0.5, 0.0])),
    ]:
        with settings.jax_defaults():
            theirs, ours = (function(*args) for function in taken(module, name))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    with pytest.raises(ValueError, match="out of bounds"):
        taken("losses._classification", "canonicalize_axis")[1](3, 3)
    assert isinstance(compat.sgd(0.1), taken("tree_utils._state_utils", "Initable")[1])


INSTALLED = """
import sys
from modulax import compat
compat.install()
import optax, optax.contrib
from optax._src import base
from optax.contrib._muon import muon
from flax.training.train_state import TrainState
import jax.numpy as jnp
assert optax is compat and base.EmptyState is compat.EmptyState
state = TrainState.create(apply_fn=None, params={"w": jnp.ones(2)}, tx=optax.adam(0.5))
print(state.apply_gradients(grads=state.params).params["w"][0], *sys.argv[1:])
"""


def test_compat_in_the_place_of_optax(tmp_path: Path):
    """For a whole process, by `install`; for a script, by `python -m modulax.compat`."""
    with pytest.raises(RuntimeError, match=r"after optax had been imported by .*`tests`.*Call it before all other"):
        compat.install()
    script = tmp_path / "program.py"
    script.write_text(INSTALLED)
    run = [sys.executable, "-m", "modulax.compat", str(script), "given"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout == "0.5 given\n"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: compat.adm, "module 'modulax.compat' has no attribute 'adm'. Did you mean `adam`"),
        (lambda: compat.contrib.adam, "module 'modulax.compat.contrib' has no attribute 'adam'"),
        (lambda: compat.named_chain(("a", compat.clip(1.0)), ("a", compat.clip(1.0))), "a name for each"),
        (lambda: compat.add_noise(0.1, 0.5, 1, seed=2), "takes one of `key` and `seed`"),
        (lambda: compat.optimistic_adam(lambda step: 0.1), "takes no schedule: write `optax.optimistic_adam_v2`"),
    ],
)
def test_wrong_calls(call: Callable[[], Any], message: str):
    with pytest.raises((AttributeError, ValueError), match=message):
        call()


def test_deprecated_names_and_arguments_warn():
    for call in (
        lambda: compat.dpsgd,
        lambda: compat.optimistic_adam(0.1),
        lambda: compat.add_noise(0.1, 0.5, seed=1),
        lambda: compat.global_norm(PARAMS),
        lambda: compat.inject_stateful_hyperparams(compat.sgd),
    ):
        with pytest.warns(DeprecationWarning, match=r"deprecated"):
            call()


def test_nothing_to_train_is_fine_as_in_optax():
    transform: Any = compat.adam(1e-3)
    assert transform.update({}, transform.init({}))[0] == {}
