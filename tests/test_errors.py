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

# Gradients, and what the message says of them. Some could be broadcast, which is never meant.
MISFITS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "missing": (without(PARAMS, "dense", "bias"), ("lack `dense.bias`",)),
    "too many": ({**PARAMS, "more": jnp.ones(2)}, ("unknown `more`",)),
    "another structure": (tuple(jax.tree.leaves(PARAMS)), ("lack", "`dense.kernel`", "unknown `0`")),
    **{
        f"shape {shape}": (
            {**PARAMS, "dense": {**PARAMS["dense"], "kernel": jnp.ones(shape)}},
            ("`dense.kernel`", str(shape), "(3, 2)"),
        )
        for shape in ((1, 2), (2,), (), (3, 1))
    },
}
each_misfit = pytest.mark.parametrize("misfit", MISFITS)


@pytest.mark.parametrize("name", TRANSFORMS)
@each_misfit
def test_gradients_that_do_not_fit_the_parameters(misfit: str, name: str):
    transform = TRANSFORMS[name]()
    grads, says = MISFITS[misfit]
    with pytest.raises(ValueError, match=words(f"`{name}.update`", *says)):
        transform.update(grads, transform.init(PARAMS), PARAMS)


@pytest.mark.parametrize("name", sorted(TRANSFORMS.keys() - {"AdamW"}))  # which needs parameters
@each_misfit
def test_without_parameters_the_state_knows_which_gradients_fit(misfit: str, name: str):
    transform = TRANSFORMS[name]()
    grads, says = MISFITS[misfit]
    with pytest.raises(ValueError, match=words(".update`", *says)):
        transform.update(grads, transform.init(PARAMS))


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


@each_misfit
def test_applying_updates_that_do_not_fit(misfit: str):
    updates, says = MISFITS[misfit]
    with pytest.raises(ValueError, match=words("`apply_updates`", *says)):
        mx.apply_updates(PARAMS, updates)


def test_applying_updates_that_are_absent():
    """None stands for all that is below it, and for nothing where there is no parameter."""
    new = mx.apply_updates(FrozenDict(PARAMS), {"dense": None, "scale": jnp.ones(()), "more": None})
    assert (new["scale"], new["dense"]["bias"][0]) == (2, 1)
    model = {"active": jnp.tanh, "bias": np.ones(2, np.float32), "flag": True, "w": jnp.ones(3)}
    with pytest.raises(ValueError, match=r"`apply_updates`: at `w` the update has shape \(\) and the parameter \(3,\)"):
        mx.apply_updates(model, {"active": None, "bias": jnp.ones(2), "flag": None, "w": jnp.ones(())})
    with pytest.raises(ValueError, match=r"lack `dense.bias`, `dense.kernel` and have an unknown `more`"):
        mx.apply_updates(PARAMS, {"scale": jnp.ones(()), "more": jnp.ones(2)})
    with pytest.raises(ValueError, match=words("`apply_updates`", "`table`")):  # of integers, which are not trained
        mx.apply_updates({**PARAMS, "table": jnp.arange(2)}, {**PARAMS, "table": jnp.ones(2)})


# --- Masks, labels, rules --------------------------------------------------------------------------


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


# What makes something with a number, the name of the number, one that is out of range, and what the message says.
BAD_NUMBERS: dict[str, tuple[Any, str, float, str]] = {
    "max_norm": (mx.ClipByGlobalNorm, "max_norm", -1.0, "must not be negative"),
    "max_delta": (mx.Clip, "max_delta", -0.5, "must not be negative"),
    "b1": (lambda b1: mx.Adam(0.1, b1), "b1", 1.5, "must be in [0, 1)"),
    "b1=1": (lambda b1: mx.AdamW(0.1, b1), "b1", 1.0, "must be in [0, 1)"),
    "b2": (lambda b2: mx.ScaleByAdam(b2=b2), "b2", -0.1, "must be in [0, 1)"),
    "eps": (lambda eps: mx.AdamW(0.1, eps=eps), "eps", -1e-8, "must not be negative"),
    "slow": (lambda x: mx.Lookahead(mx.SGD(0.1), 5, x), "slow_step_size", 5.0, "must be in [0, 1]"),
    "decay": (mx.Ema, "decay", 2.0, "must be in [0, 1)"),
    "every_k": (lambda k: mx.MultiSteps(mx.SGD(0.1), k), "every_k", 0.0, "must be a whole number"),
    "steps": (lambda n: schedules.Linear(0.0, 1.0, n), "transition_steps", 0.0, "must be positive"),
}


@pytest.mark.parametrize("name", BAD_NUMBERS)
def test_a_number_that_is_out_of_range(name: str):
    """Given, on a device, in `replace`; and where it is traced, when the program runs."""
    make, field, value, what = BAD_NUMBERS[name]
    number = jnp.asarray(value, jnp.float32)
    good = make(1.0 if "1)" not in what else 0.5)
    for call in (lambda: make(value), lambda: make(number), lambda: good.replace(**{field: value})):
        with pytest.raises(ValueError, match=words(f"({field}=...)`", what, str(value))):
            call()
    for traced in (lambda: eqx.filter_jit(make)(number), lambda: eqx.filter_vmap(make)(jnp.stack([0.5, number]))):
        with pytest.raises(Exception, match=re.escape(what)):
            jax.block_until_ready(traced())


# --- Names -----------------------------------------------------------------------------------------


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


# --- States ----------------------------------------------------------------------------------------------------------

G = jnp.asarray([3.0, -4.0])


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
