"""Bad input raises an error whose message says what is wrong, where, and what was needed."""

import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from flax.core import FrozenDict

import modulax as mx
from modulax import compat, schedules
from modulax._support import checks
from modulax.tree._names import as_argument

PARAMS = {"dense": {"bias": jnp.ones(2), "kernel": jnp.ones((3, 2))}, "scale": jnp.ones(())}
TRANSFORMS: dict[str, Callable[[], Any]] = {
    "AdamW": lambda: mx.AdamW(0.1),
    "SGD": lambda: mx.SGD(0.1, 0.9),
    "ScaleByAdam": mx.ScaleByAdam,
    "Chain": lambda: mx.Chain(mx.Clip(1.0), mx.ScaleByRMS()),
    "MultiSteps": lambda: mx.MultiSteps(mx.Adam(0.1), 2),
    "Injected": lambda: mx.Injected(mx.Adam(0.1)),
}
each_transform = pytest.mark.parametrize("name", TRANSFORMS)


def words(*parts: str) -> str:
    """A pattern for a message in which these parts follow each other."""
    return "(?s)" + ".*".join(map(re.escape, parts))


def without(tree: Any, *path: str) -> Any:
    """A copy of nested dicts without one entry."""
    head, *rest = path
    if not rest:
        return {k: v for k, v in tree.items() if k != head}
    return {k: without(v, *rest) if k == head else v for k, v in tree.items()}


# --- Trees that do not fit -------------------------------------------------------------------------


@each_transform
def test_a_missing_gradient(name: str):
    transform = TRANSFORMS[name]()
    state = transform.init(PARAMS)
    with pytest.raises(ValueError, match=words(f"`{name}.update`", "the parameters", "lack `dense.bias`")):
        transform.update(without(PARAMS, "dense", "bias"), state, PARAMS)


@pytest.mark.parametrize("name", sorted(TRANSFORMS.keys() - {"AdamW"}))  # which needs them
def test_a_missing_gradient_is_seen_without_parameters(name: str):
    """The state knows which leaves there are."""
    transform = TRANSFORMS[name]()
    state = transform.init(PARAMS)
    with pytest.raises(
        ValueError, match=words(".update`", "the parameters that `init` was given", "lack `dense.bias`")
    ):
        transform.update(without(PARAMS, "dense", "bias"), state)


@each_transform
def test_a_gradient_too_many(name: str):
    transform = TRANSFORMS[name]()
    state = transform.init(PARAMS)
    with pytest.raises(ValueError, match=words(f"`{name}.update`", "unknown `more`")):
        transform.update({**PARAMS, "more": jnp.ones(2)}, state, PARAMS)


@each_transform
def test_a_gradient_of_another_structure(name: str):
    transform = TRANSFORMS[name]()
    state = transform.init(PARAMS)
    with pytest.raises(ValueError, match=words(f"`{name}.update`", "lack", "`dense.kernel`", "unknown `0`")):
        transform.update(tuple(jax.tree.leaves(PARAMS)), state, PARAMS)


@each_transform
@pytest.mark.parametrize("shape", [(1, 2), (2,), (), (3, 1)])
def test_a_gradient_of_another_shape(name: str, shape: tuple[int, ...]):
    """Also where it could be broadcast, which is never meant."""
    transform = TRANSFORMS[name]()
    state = transform.init(PARAMS)
    grads = {**PARAMS, "dense": {**PARAMS["dense"], "kernel": jnp.ones(shape)}}
    with pytest.raises(ValueError, match=words(f"`{name}.update`", "`dense.kernel`", str(shape), "(3, 2)")):
        transform.update(grads, state, PARAMS)


@pytest.mark.parametrize("name", ["SGD", "ScaleByAdam", "Chain", "MultiSteps", "Injected"])
@pytest.mark.parametrize("shape", [(1, 2), (2,), ()])
def test_a_gradient_of_another_shape_than_the_state(name: str, shape: tuple[int, ...]):
    """Without parameters, the state knows the shapes."""
    transform = TRANSFORMS[name]()
    state = transform.init(PARAMS)
    grads = {**PARAMS, "dense": {**PARAMS["dense"], "kernel": jnp.ones(shape)}}
    with pytest.raises(ValueError, match=r"`dense\.kernel`"):
        transform.update(grads, state)


def test_a_state_of_other_parameters():
    transform = mx.Adam(0.1)
    state = transform.init(without(PARAMS, "scale"))
    with pytest.raises(ValueError, match=words("the parameters that `init` was given", "unknown `scale`")):
        transform.update(PARAMS, state, PARAMS)


@pytest.mark.parametrize("donate", [True, False])
def test_step_with_gradients_that_do_not_fit(donate: bool):
    transform = mx.AdamW(0.1)
    params = jax.tree.map(jnp.copy, PARAMS)
    grads = without(PARAMS, "dense", "kernel")
    with pytest.raises(ValueError, match=words("`AdamW.", "`dense.kernel`")):
        transform.step(grads, transform.init(params), params, donate=donate)


def test_applying_updates_that_do_not_fit():
    with pytest.raises(ValueError, match=words("`apply_updates`", "`more`", "`dense.bias`")):
        mx.apply_updates(PARAMS, {**PARAMS, "more": jnp.ones(2)})
    model = {**PARAMS, "table": jnp.arange(2)}
    with pytest.raises(ValueError, match=words("`apply_updates`", "`table`")):
        mx.apply_updates(model, {**PARAMS, "table": jnp.ones(2)})


def test_applying_updates_that_are_absent():
    """None stands for all that is below it, and for nothing where there is no parameter."""
    new = mx.apply_updates(FrozenDict(PARAMS), {"dense": None, "scale": jnp.ones(()), "more": None})
    assert (new["scale"], new["dense"]["bias"][0]) == (2, 1)
    model = {"active": jnp.tanh, "bias": np.ones(2, np.float32), "flag": True, "w": jnp.ones(3)}
    with pytest.raises(ValueError, match=r"`apply_updates`: at `w` the update has shape \(\) and the parameter \(3,\)"):
        mx.apply_updates(model, {"active": None, "bias": jnp.ones(2), "flag": None, "w": jnp.ones(())})
    with pytest.raises(ValueError, match=r"lack `dense.bias`, `dense.kernel` and have an unknown `more`"):
        mx.apply_updates(PARAMS, {"scale": jnp.ones(()), "more": jnp.ones(2)})


@pytest.mark.parametrize("shape", [(1, 2), (2,), ()])
def test_applying_updates_of_another_shape(shape: tuple[int, ...]):
    """A sum would broadcast silently, or give the parameter another shape."""
    updates = {**PARAMS, "dense": {**PARAMS["dense"], "kernel": jnp.ones(shape)}}
    with pytest.raises(ValueError, match=r"`dense\.kernel`"):
        mx.apply_updates(PARAMS, updates)


# --- Parameters that are needed --------------------------------------------------------------------


@pytest.mark.parametrize(
    "transform, name",
    [
        pytest.param(mx.AddDecayedWeights(0.1), "AddDecayedWeights", id="alone"),
        pytest.param(mx.AdamW(0.1), "AddDecayedWeights", id="optimizer"),
        pytest.param(mx.Chain(mx.Clip(1.0), mx.AddDecayedWeights(0.1)), "AddDecayedWeights", id="chain"),
        pytest.param(mx.MultiSteps(mx.Lion(0.1), 2), "AddDecayedWeights", id="multisteps"),
        pytest.param(mx.Masked(mx.AddDecayedWeights(0.1), lambda t: True), "AddDecayedWeights", id="masked"),
    ],
)
def test_params_are_needed(transform: Any, name: str):
    state = transform.init(PARAMS)
    with pytest.raises(ValueError, match=words(f"`{name}` needs `params`", "update(updates, state, params)")):
        transform.update(PARAMS, state)


# --- Masks, labels, rules --------------------------------------------------------------------------

BOTH = {"a": mx.SGD(0.1), "b": mx.SGD(0.2)}


def test_an_unknown_label():
    transform = mx.Partition(BOTH, mx.by_path({"*bias": "c", "*": "a"}))
    with pytest.raises(ValueError, match=words("`Partition`", "`dense.bias`", "'c'", "`a`, `b`")):
        transform.init(PARAMS)


def test_a_rule_that_fits_nothing():
    transform = mx.Masked(mx.SGD(0.1), mx.by_path({"*biass": False, "*": True}))
    with pytest.raises(ValueError, match=words("`*biass` matches no leaf", "`dense.bias`, `dense.kernel`, `scale`")):
        transform.init(PARAMS)


def test_a_leaf_that_no_rule_fits():
    transform = mx.Masked(mx.SGD(0.1), mx.by_path({"dense.*": True}))
    with pytest.raises(ValueError, match=words("no pattern matches the leaf `scale`")):
        transform.init(PARAMS)


def test_a_tree_of_labels_that_lacks_one():
    transform = mx.Partition(BOTH, {"dense": "a"})
    with pytest.raises(ValueError, match=words("no label for the leaf `scale`", "`dense`")):
        transform.init(PARAMS)


def test_a_tree_of_labels_with_one_too_many():
    transform = mx.Partition(BOTH, {"dense": "a", "scale": "b", "head": "b"})
    with pytest.raises(ValueError, match=words("`head`", "`dense.bias`, `dense.kernel`, `scale`")):
        transform.init(PARAMS)


def test_a_mask_that_is_not_boolean():
    transform = mx.Masked(mx.SGD(0.1), {"dense": "yes", "scale": True})
    negated = mx.selective_transform(mx.SGD(0.1), freeze_mask={"dense": "yes", "scale": True})
    for masked in (transform, negated):
        with pytest.raises(ValueError, match=words("`Masked(mask=...)`", "'yes' at `dense.bias`")):
            masked.init(PARAMS)


def test_what_a_pattern_need_not_match():
    """A leaf that is absent counts, and so does one that an earlier pattern has taken."""
    params = {"dense": {"bias": None, "kernel": jnp.ones(2)}}
    for rules in ({"*.bias": False, "*.kernel": True}, {"dense.*": True, "*": False}):
        mx.Masked(mx.Trace(0.9), mx.by_path(rules)).init(params)
    mx.Masked(mx.Trace(0.9), {"dense": {"bias": True, "kernel": True}}).init(params)
    mx.Masked(mx.Trace(0.9), {"dense": {"bias": True}}).init({"dense": {"bias": None}})
    mx.Masked(mx.Trace(0.9), mx.by_path({"*.bias": True})).init({})
    with pytest.raises(ValueError, match=words("`*.kernel` matches no leaf. The paths are `bias`.")):
        mx.Masked(mx.Trace(0.9), mx.by_path({"*.kernel": True})).init({"bias": None})
    with pytest.raises(ValueError, match=words("has `dense.bais`, which the parameters don't have")):
        mx.Masked(mx.Trace(0.9), {"dense": {"bais": True, "kernel": True}}).init(params)


def test_a_mask_of_arrays():
    with pytest.raises(ValueError, match=words("must hold Python values such as `True`", "shape (2,)")):
        mx.Masked(mx.SGD(0.1), jnp.asarray([True, False]))


@pytest.mark.parametrize("patterns", [{}, [("*", True)], None])
def test_patterns_that_are_none(patterns: Any):
    with pytest.raises((ValueError, TypeError), match=r"mapping|patterns"):
        mx.by_path(patterns)


@pytest.mark.parametrize("nothing", [{}, [], (), {"a": {}, "b": [()]}, None, eqx.nn.Identity()], ids=repr)
def test_parameters_with_nothing_to_train(nothing: Any):
    each: tuple[Any, ...] = (mx.AdamW(0.1), mx.MultiSteps(mx.SGD(0.1), 2), mx.Chain(mx.Clip(1.0), mx.SGD(0.1)))
    for transform in each:
        for init in (transform.init, jax.jit(transform.init)):
            with pytest.raises(ValueError, match=words("found nothing to train", "`init(params, allow_empty=True)`")):
                init(nothing)
        transform.init(nothing, allow_empty=True)
    compat.adam(0.1).init(nothing)  # as optax


def _update(updates: Any, state: Any, params: Any = None, *, learning_rate: Any = 1.0) -> Any:
    return jax.tree.map(lambda u: learning_rate * u, updates), state


def _update_with_any(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
    return _update(updates, state, learning_rate=extra.get("lr", 1.0))


@pytest.mark.parametrize(
    "optimizer, word, written, of_nnx",
    [
        (mx.AdamW(0.1), "lr", "learning_rate", ".learning_rate"),
        (mx.AdamW(0.1), "weight_decay", "weight_decay", ".weight_decay"),
        (mx.SGD(0.1), "momentum", "momentum", None),
        (mx.SGD(schedules.Linear(0.1, 0.2, 3)), "learning_rate", "learning_rate", None),
        (mx.Chain(mx.Clip(1.0), a=mx.SGD(0.1)), "lr", "learning_rate", ".parts['a'].learning_rate"),
        (
            mx.Partition({"a": mx.SGD(0.1), "b": mx.SGD(0.2)}, lambda params: jax.tree.map(lambda _: "a", params)),
            "learning_rate",
            "transforms.a.learning_rate",
            ".transforms['a'].learning_rate",
        ),
    ],
)
def test_a_hyperparameter_among_the_extra_arguments(optimizer: Any, word: str, written: str, of_nnx: str | None):
    params = {"w": jnp.ones(2)}
    state = optimizer.init(params)
    for method in (optimizer.step, optimizer.update):
        with pytest.raises(ValueError, match=words(f"({word}=...)`: nothing reads")) as caught:
            method(params, state, params, value=1.0, **{word: 0.5})
        assert f"optimizer.replace({as_argument(written)})`" in str(caught.value)
        assert ("optimizer.hyperparameters" in str(caught.value)) == (of_nnx is not None)
        assert f"`optimizer.hyperparameters{of_nnx}[...] = ...`" in str(caught.value) or of_nnx is None
    optimizer.replace(**{written: 0.5})


def test_what_may_read_any_argument_is_not_asked():
    """A function of the user reads it, or might."""
    params = {"w": jnp.ones(2)}
    for optimizer, extra in (
        (mx.Chain(mx.from_functions(lambda params: (), _update), mx.SGD(0.1)), {"learning_rate": 0.5}),
        (mx.Chain(mx.from_functions(lambda params: (), _update_with_any), mx.SGD(0.1)), {"lr": 0.5}),
    ):
        updates, _ = optimizer.update(params, optimizer.init(params), params, **extra)
        np.testing.assert_allclose(updates["w"], -0.05, rtol=1e-6)
    mx.SGD(0.1).step(params, mx.SGD(0.1).init(params), params, epoch=3, value=1.0, total_steps=9)
    rest = optax.GradientTransformationExtraArgs(lambda params: (), _update)
    chain = optax.chain(mx.to_optax(mx.SGD(0.1)), rest)  # which gives all arguments to all transformations
    updates: Any = chain.update(params, chain.init(params), params, learning_rate=0.5)[0]
    np.testing.assert_allclose(updates["w"], -0.05, rtol=1e-6)


# --- Numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "requirement, met, broken",
    [
        (checks.DECAY, (0.0, 0.5), (-0.1, 1.0)),
        (checks.PROPER_FRACTION, (0.1, 0.9), (0.0, 1.0)),
        (checks.FRACTION, (0.0, 1.0), (-0.1, 1.1)),
        (checks.NON_NEGATIVE, (0.0, 2.0), (-0.1,)),
        (checks.POSITIVE, (0.1, 2.0), (0.0, -0.1)),
        (checks.AT_LEAST_ONE, (1.0, 2.0), (0.9,)),
    ],
    ids=lambda x: x.words if isinstance(x, checks.Requirement) else "",
)
def test_where_a_requirement_ends(requirement: checks.Requirement, met: Any, broken: Any):
    for value in (*met, *broken):
        assert bool(requirement.is_met_by(np.float32(value))) == (value in met)
        assert not requirement.is_met_by(np.float32(np.nan))


def test_where_a_list_in_a_message_ends():
    twelve = [f"`{i}`" for i in range(12)]
    assert checks.listing(range(12)) == ", ".join(twelve)
    assert checks.listing(range(14)) == ", ".join(twelve) + ", and 2 more"
    assert checks.listing([]) == "none"


def test_an_integer_is_one_of_python_or_numpy():
    for fine in (1, np.int64(3)):
        checks.check_integer("f", "n", fine)
    checks.check_integer("f", "n", 0, least=0)
    for wrong in (0, True, 2.0, "3"):
        with pytest.raises(ValueError, match=re.escape(f"`f(n=...)` must be a positive integer, got {wrong!r}.")):
            checks.check_integer("f", "n", wrong)
    with pytest.raises(ValueError, match=r"must be an integer of at least 2, got 1\. So there is"):
        checks.check_integer("f", "n", 1, least=2, hint=" So there is")


def test_a_run_has_steps():
    with pytest.raises(ValueError, match=words("`Stretched(total_steps=...)` must be positive, got 0")):
        schedules.Constant(1.0).over(0)


def test_all_complex_parameters_are_named():
    with pytest.raises(ValueError, match=words("`ScaleByRprop` is not defined for complex", "`a.0`, `z` is complex")):
        mx.Rprop(0.1).init({"a": [jnp.ones(2, jnp.complex64)], "b": jnp.ones(2), "z": jnp.ones((), jnp.complex64)})


BAD_NUMBERS = [
    pytest.param(mx.ClipByGlobalNorm, "max_norm", -1.0, "must not be negative", id="max_norm"),
    pytest.param(mx.Clip, "max_delta", -0.5, "must not be negative", id="max_delta"),
    pytest.param(lambda b1: mx.Adam(0.1, b1), "b1", 1.5, "must be in [0, 1)", id="b1"),
    pytest.param(lambda b1: mx.AdamW(0.1, b1), "b1", 1.0, "must be in [0, 1)", id="b1=1"),
    pytest.param(lambda b2: mx.ScaleByAdam(b2=b2), "b2", -0.1, "must be in [0, 1)", id="b2"),
    pytest.param(lambda eps: mx.AdamW(0.1, eps=eps), "eps", -1e-8, "must not be negative", id="eps"),
    pytest.param(lambda x: mx.Lookahead(mx.SGD(0.1), 5, x), "slow_step_size", 5.0, "must be in [0, 1]", id="slow"),
    pytest.param(mx.Ema, "decay", 2.0, "must be in [0, 1)", id="decay"),
    pytest.param(lambda k: mx.MultiSteps(mx.SGD(0.1), k), "every_k", 0.0, "must be a whole number", id="every_k"),
    pytest.param(lambda n: schedules.Linear(0.0, 1.0, n), "transition_steps", 0.0, "must be positive", id="steps"),
]


@pytest.mark.parametrize("make, field, value, what", BAD_NUMBERS)
def test_a_number_that_is_out_of_range(make: Any, field: str, value: float, what: str):
    for given in (value, jnp.asarray(value, jnp.float32)):
        with pytest.raises(ValueError, match=words(f"({field}=...)`", what, str(value))):
            make(given)


@pytest.mark.parametrize("make, field, value, what", BAD_NUMBERS)
def test_a_traced_number_that_is_out_of_range(make: Any, field: str, value: float, what: str):
    """It is found when the program runs."""
    del field
    with pytest.raises(Exception, match=re.escape(what)):
        jax.block_until_ready(eqx.filter_jit(make)(jnp.asarray(value, jnp.float32)))
    with pytest.raises(Exception, match=re.escape(what)):
        jax.block_until_ready(eqx.filter_vmap(make)(jnp.asarray([0.5, value], jnp.float32)))


@pytest.mark.parametrize("make, field, value, what", BAD_NUMBERS)
def test_a_number_that_is_replaced_by_one_out_of_range(make: Any, field: str, value: float, what: str):
    good = make(1.0 if "1)" not in what else 0.5)
    with pytest.raises(ValueError, match=words(f"({field}=...)`", what)):
        good.replace(**{field: value})


def test_an_array_where_a_number_belongs():
    """The message says how to build a batch."""
    match = words("`AdamW(learning_rate=...)` must be a scalar", "shape (2,)", "eqx.filter_vmap(")
    with pytest.raises(ValueError, match=match):
        mx.AdamW(jnp.asarray([0.1, 0.2]))
    with pytest.raises(ValueError, match=words("`SGD(momentum=...)` must be a scalar")):
        mx.SGD(0.1, momentum=jnp.ones(1))


@pytest.mark.parametrize("value", ["0.1", None, [0.1]])
def test_something_where_a_number_belongs(value: Any):
    """Where annotations are not checked; in these tests beartype may be the first to complain."""
    with pytest.raises((ValueError, TypeError), match="learning_rate"):
        mx.AdamW(value)


def test_a_warm_up_longer_than_the_schedule():
    with pytest.raises(ValueError, match=words("`WarmupCosineDecay(decay_steps=...)`", "warmup_steps")):
        schedules.WarmupCosineDecay(0.0, 1.0, 100, 50)


def test_boundaries_that_do_not_fit():
    with pytest.raises(ValueError, match=words("`Join` needs one boundary", "2 schedules", "0 boundaries")):
        schedules.Join([0.1, 0.2], [])


# --- Names -----------------------------------------------------------------------------------------


def test_a_typo_in_replace():
    match = words("`AdamW.replace(lerning_rate=...)`", "Did you mean `learning_rate`?", "`b1`")
    with pytest.raises(ValueError, match=match):
        mx.AdamW(0.1).replace(lerning_rate=0.2)


def test_an_ambiguous_name():
    chain: Any = mx.Chain(a=mx.Adam(0.1), b=mx.Adam(0.2))
    match = words("is ambiguous", "`parts.a.b1`, `parts.b.b1`", '{"*.b1": ...}')
    with pytest.raises(ValueError, match=match):
        chain.replace(b1=0.5)
    changed: Any = chain.replace(**{"*.b1": 0.5})
    assert changed["a"].b1 == changed["b"].b1 == 0.5
    assert chain.replace(**{"a.b1": 0.5})["b"].b1 == chain["b"].b1


def test_a_whole_path_is_never_ambiguous():
    """Even if it is the end of another one."""
    chain: Any = mx.Chain(mx.Scale(1.0), mx.Chain(mx.Scale(2.0)))
    changed = chain.replace(**{"parts.scale.step_size": 3.0})
    assert list(map(float, changed.hyperparameters().values())) == [3, 2]
    with pytest.raises(ValueError, match=words("is ambiguous", "`parts.scale.step_size`, `parts.chain.parts.scale")):
        chain.replace(step_size=3.0)


def test_a_pattern_may_have_any_wildcard():
    chain: Any = mx.Chain(a=mx.Adam(0.1), b=mx.Adam(0.2))
    for pattern in ("*.b[1]", "parts.?.b1", "?.b1", "*b1"):
        changed = chain.replace(**{pattern: 0.5})
        assert changed["a"].b1 == changed["b"].b1 == 0.5
    averaged = mx.ScheduleFree(mx.SGD(0.5), 0.25).replace(**{"*.learning_rate": 0.125})
    assert (averaged.hyperparameters()["base_optimizer.learning_rate"], averaged.learning_rate) == (0.125, 0.125)
    scheduled: Any = mx.Chain(mx.SGD(schedules.Linear(0.0, 1.0, 5), momentum=0.5))
    assert list(scheduled.replace(**{"*rate*": 0.25}).hyperparameters().values()) == [0.25, 0.5]
    assert scheduled.replace(**{"*_value": 0.25})["sgd"].learning_rate(3) == 0.25


def test_a_pattern_that_fits_no_name():
    with pytest.raises(
        ValueError, match=words("there is no hyperparameter, option or part `*.weight`", "`learning_rate`")
    ):
        mx.Adam(0.1).replace(**{"*.weight": 0.0})


def test_an_unknown_part_of_a_chain():
    with pytest.raises(KeyError, match=words("`Chain` has no part 'adm'", "`adam`")):
        mx.Chain(adam=mx.Adam(0.1))["adm"]


def test_a_function_in_a_chain():
    with pytest.raises((ValueError, TypeError), match=r"Stateless|parts"):
        mx.Chain(lambda g: g)  # pyright: ignore[reportArgumentType]


CONSTANT: Any = schedules.Constant(1.0)
FUNCTION: Any = lambda step: 0.9  # noqa: E731 (as users write it)


# --- Schedules without a step count ----------------------------------------------------------------


@pytest.mark.parametrize(
    "transform, field",
    [
        pytest.param(mx.Scale(CONSTANT), "Scale(step_size=...)", id="Scale"),
        pytest.param(mx.Trace(FUNCTION), "Trace(decay=...)", id="Trace"),
        pytest.param(
            mx.Chain(mx.ClipByGlobalNorm(CONSTANT)),
            "ClipByGlobalNorm(max_norm=...)",
            id="chain",
        ),
    ],
)
def test_a_schedule_in_a_transform_that_does_not_count(transform: Any, field: str):
    match = words(f"`{field}` is a schedule", "does not count steps", "Scheduled(")
    with pytest.raises(ValueError, match=match):
        transform.update(PARAMS, transform.init(PARAMS), PARAMS)
    counted = mx.Scheduled(transform)
    counted.update(PARAMS, counted.init(PARAMS), PARAMS)


G = jnp.asarray([3.0, -4.0])


# --- States ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, (), optax.EmptyState()], ids=["None", "()", "EmptyState"])
def test_a_stateless_transform_takes_any_empty_state(state: Any, monkeypatch: pytest.MonkeyPatch):
    """As in optax, which ignores it; the state is returned as it was, for a loop with a state of this structure."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    for transform in (
        mx.Clip(1.0),
        mx.Scale(2.0),
        mx.AdaptiveGradClip(0.1),
        mx.Stateless(lambda updates, params: updates),
    ):
        _, after = transform.update(G, state, G)
        assert (type(after), after) == (type(state), state)


@pytest.mark.parametrize("kind", ["Adam", "ScaleByAdam", "Masked"])
def test_a_state_of_optax_or_none_is_refused_with_the_remedy(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: annotations are not checked
    transform: Any = {"Adam": mx.Adam(0.1), "ScaleByAdam": mx.ScaleByAdam(), "Masked": mx.Masked(mx.SGD(0.1), True)}[
        kind
    ]
    theirs = optax.adam(0.1).init(G)
    for call in (transform.update, transform.step):
        with pytest.raises(ValueError, match=r"was given None as its state, which must come from its `init\(params\)`"):
            call(G, None, G)
        with pytest.raises(ValueError, match=r"was given a `tuple` as its state.*modulax.checkpoint.state_from_optax"):
            call(G, theirs, G)


def test_errors_of_a_user_s_own_transform_stay_as_they_are():
    class Own(mx.AbstractTransform):
        def init(self, params: Any) -> Any:
            return (jnp.zeros(()),)

        def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            return updates.nothing, state

    with pytest.raises(AttributeError, match="nothing"):
        Own().update(G, Own().init(G), G)
    with pytest.raises(AttributeError):
        mx.Stateless(lambda updates, params: updates.nothing).update(G, mx.EmptyState(), G)


def test_a_method_of_the_class_is_not_one_of_an_optimizer():
    cls: Any = mx.AdamW
    with pytest.raises(TypeError, match=r"`AdamW.init` was called on the class: write `AdamW\(...\).init\(...\)`"):
        cls.init(G)
