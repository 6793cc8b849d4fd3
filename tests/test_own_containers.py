"""A container of a user's, in few lines, is a container like those of the library."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import jaxtyping
import numpy as np
import optax
import pytest
from flax import nnx

import modulax as mx
import modulax.nnx
from modulax import aggregate, checkpoint, schedules
from modulax.testing import check_transform

from .compositions import CONTAINERS
from .own_containers import Mean, SkipLarge

PARAMS = {"kernel": jnp.asarray([[0.4, -0.1], [1.5, 3.0]]), "bias": jnp.asarray([0.3, -0.2])}
RATE = schedules.Linear(0.1, 0.2, 5)
MEAN: Any = Mean(mx.AdamW(RATE), {"a": mx.SGD(0.1, momentum=0.9), "b": mx.Scale(-0.1)})


def trained(transform: Any, steps: int = 3) -> tuple[Any, Any]:
    params, state = PARAMS, transform.init(PARAMS)
    for i in range(steps):
        params, state = transform.step(jtu.tree_map(lambda p, i=i: jnp.sin(p + i), params), state, params)
    return params, state


def equal(a: Any, b: Any) -> bool:
    return all(map(np.allclose, jtu.tree_leaves(a), jtu.tree_leaves(b)))


def test_they_obey_every_law():
    check_transform(MEAN.replace(first=SkipLarge(MEAN.first, 1e30)), params=PARAMS)


def test_its_parts_are_known_with_their_states():
    _, state = trained(MEAN)
    parts = list(MEAN.each_part(state))
    assert [(part.field, part.key) for part in parts] == [("first", None), ("others", "a"), ("others", "b")]
    assert parts[0].state is state.first_state
    assert parts[1].state is state.others["a"]
    assert [part.state for part in MEAN.each_part()] == [None] * 3
    assert mx.citation(MEAN) == mx.citation(mx.Chain(MEAN.first, *MEAN.others.values()))
    owned = mx.tree.map_params(MEAN, lambda x: True, state, transform_non_params=lambda x: False)
    assert owned.first_state.inner["scale_by_adam"].mu["bias"] is True
    assert owned.first_state.step is False


def test_its_schedules_are_read_at_the_steps_of_its_parts():
    _, state = trained(MEAN)
    assert MEAN.hyperparameters(state)["first.learning_rate"] == pytest.approx(0.1 + 3 * 0.02)
    assert MEAN.at(state).others.keys() == MEAN.others.keys()


@pytest.mark.parametrize("wrap", [lambda t: SkipLarge(t, 1e30), lambda t: Mean(t, {})], ids=["SkipLarge", "Mean"])
def test_evaluation_parameters_go_through_it(wrap: Any):
    inner = mx.ScheduleFreeAdamW(0.1)
    params, state = trained(wrap(inner))
    plain_params, plain = trained(inner)
    assert equal(params, plain_params)
    assert equal(wrap(inner).eval_params(state, params), inner.eval_params(plain, plain_params))
    assert not equal(inner.eval_params(plain, plain_params), plain_params)


def test_it_is_described():
    mask = mx.by_path({"bias": False, "*": True})
    transform = SkipLarge(mx.Chain(mx.AdamW(RATE, weight_decay=0.5, mask=mask)), 1.0)
    rows = {row.path: row for row in mx.describe(transform, PARAMS).leaves}
    assert rows["kernel"].learning_rate == rows["bias"].learning_rate == "0.1 → 0.2"
    assert (rows["kernel"].weight_decay, rows["bias"].weight_decay) == ("0.5", "")


def test_frozen_parameters_and_estimators_of_a_hessian_are_described():
    frozen = mx.selective_transform(mx.AdamW(0.1), freeze_mask=mx.by_path({"bias": True, "*": False}))
    rows = {row.path: (row.group, row.learning_rate) for row in mx.describe(frozen, PARAMS).leaves}
    assert rows == {"bias": ("frozen", ""), "kernel": ("", "0.1")}
    assert {row.learning_rate for row in mx.describe(mx.Sophia(0.3), PARAMS).leaves} == {"0.3"}


# --- Checkpoints: a state is found again wherever it was put ---------------------------------------


def to_all(value: Any) -> Any:
    """A function that gives all leaves of a tree one value."""
    return lambda tree: jtu.tree_map(lambda _: value, tree)


# The vectors of `Flatten` belong to no parameter, and the part of `ScaleBySophia` estimates a Hessian.
ESTIMATES = ("Flatten", "ScaleByAdaHessian", "ScaleBySophia")
# Around all parameters as they are, so that the state inside is that of the optimizer alone.
AROUND: dict[str, Callable[[Any], Any]] = {name: make for name, make in CONTAINERS.items() if name not in ESTIMATES} | {
    "Masked": lambda t: mx.Masked(t, to_all(True)),
    "Partition": lambda t: mx.Partition({"all": t}, mx.by_path({"*": "all"})),
    "LowBit": mx.LowBit,
    "ScaleByGaLore": lambda t: mx.ScaleByGaLore(1, base_optimizer=t, weight_dimension_numbers=to_all(None)),
    "Grams": mx.Grams,
    "AddMeanVarianceToOpt": aggregate.AddMeanVarianceToOpt,
    "Mean": lambda t: Mean(t, {}),
    "Mean-others": lambda t: Mean(mx.Identity(), {"this": t}),
}


def filled(transform: Any, value: int = 3) -> Any:
    """A state with one number everywhere."""
    shapes = jax.eval_shape(transform.init, PARAMS)
    return jtu.tree_map(lambda x: jnp.asarray(np.full(x.shape, value, x.dtype)), shapes)


@pytest.mark.parametrize("direction", ["into", "out of"])
@pytest.mark.parametrize("name", AROUND)
def test_a_state_is_found_again(name: str, direction: str):
    """Also where the name of a part changes with what is put around it."""
    inner = mx.AdamW(RATE)
    for before, after in (
        (inner, AROUND[name](inner)),
        (mx.Chain(mx.Trace(0.9), inner), mx.Chain(mx.Trace(0.9), AROUND[name](inner))),
    ):
        before, after = (before, after) if direction == "into" else (after, before)
        fresh, saved = {"state": filled(after, 0)}, checkpoint.state_dict({"state": filled(before)})
        new, report = checkpoint.load_state_dict(fresh, saved, strict=False)
        (adamw,) = (x for x in jtu.tree_leaves(new, is_leaf=_is_adamw) if _is_adamw(x))
        assert all(np.all(np.asarray(x) == 3) for x in jtu.tree_leaves(adamw)), report


@pytest.mark.parametrize("direction", ["into", "out of"])
def test_the_state_of_an_adversary_of_the_same_class_is_another(direction: str):
    plain, both = mx.AdamW(0.1), mx.SAM(mx.AdamW(0.1), mx.AdamW(0.05))
    before, after = (plain, both) if direction == "into" else (both, plain)
    old, template = filled(before), {"state": filled(after, 0)}
    if direction == "out of":
        old = dataclasses.replace(old, adv_state=filled(plain, 0))
    new, report = checkpoint.load_state_dict(template, checkpoint.state_dict({"state": old}), strict=False)
    found = new["state"].opt_state if direction == "into" else new["state"]
    assert all(np.all(np.asarray(x) == 3) for x in jtu.tree_leaves(found)), report


@pytest.mark.parametrize("direction", ["into", "out of"])
@pytest.mark.parametrize("name", ["Chain", "Partition", "MultiSteps", "Lookahead"])
def test_a_state_is_found_again_in_nnx(name: str, direction: str):
    """`modulax.nnx.Optimizer` holds the state flat, so that only its names tell how it is nested."""
    inner = mx.AdamW(0.1)
    before, after = (inner, AROUND[name](inner)) if direction == "into" else (AROUND[name](inner), inner)
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    old = jtu.tree_map(lambda x: jnp.full_like(x, 3), nnx.as_pure(nnx.state(modulax.nnx.Optimizer(model, before))))
    template = nnx.as_pure(nnx.state(modulax.nnx.Optimizer(model, after)))
    new, report = checkpoint.load_state_dict(template, checkpoint.state_dict(old), strict=False)
    moments = {n: x for n, x in checkpoint.state_dict(new).items() if {"mu", "nu"} & set(n.split("."))}
    assert len(moments) == 4
    assert all(np.all(np.asarray(x) == 3) for x in moments.values()), report


def _is_adamw(x: Any) -> bool:
    return isinstance(x, mx.states.OptimizerState) and "scale_by_adam" in getattr(x.inner, "parts", {})


def test_a_parameter_that_is_called_like_nesting_is_not_mistaken():
    """`inner` is the name of a layer here, and of a field of a state elsewhere."""
    before = {"inner": {"w": jnp.ones(2)}}
    after = {"w": jnp.zeros(2)}
    optimizer = mx.AdamW(0.1)
    old = checkpoint.state_dict({"params": before, "state": optimizer.init(before)})
    template = {"params": after, "state": mx.Chain(optimizer).init(after)}
    _, report = checkpoint.load_state_dict(template, old, strict=False)
    assert not [name for name in report.restored if name.endswith(".w")]


def test_what_is_ambiguous_is_kept():
    old = checkpoint.state_dict({"state": mx.Chain(mx.Ema(0.9), mx.Ema(0.8)).init(PARAMS)})
    template = {"state": mx.Chain(mx.Masked(mx.Ema(0.9), to_all(True)), mx.Chain(mx.Ema(0.8))).init(PARAMS)}
    _, report = checkpoint.load_state_dict(template, old, strict=False)
    # It cannot be known which one the mask is around, although one has the name of the first one still.
    assert report.restored == {}
    assert {name.split(".")[2] for name in report.fresh} == {"chain", "masked"}


# --- What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda x: mx.SAM(mx.SGD(0.1), x), r"`SAM\(adv_optimizer=...\)`"),
        (lambda x: mx.GaLore(0.1, base_optimizer=x), r"`GaLore\(base_optimizer=...\)`"),
        (lambda x: mx.LBFGS(linesearch=x), r"`LBFGS\(linesearch=...\)`"),
        (lambda x: mx.ScaleBySophia(hessian_diagonal_fn=x), r"`ScaleBySophia\(hessian_diagonal_fn=...\)`"),
        (lambda x: aggregate.AddMeanVarianceToOpt(x), r"`AddMeanVarianceToOpt\(opt=...\)`"),
        (lambda x: mx.Chain(mx.Clip(1.0), x), r"`Chain`: argument 1"),
        (lambda x: mx.Partition({"a": x}, mx.by_path({"*": "a"})), r"`Partition`: the part 'a'"),
        (lambda x: SkipLarge(x, 1.0), r"`SkipLarge\(inner=...\)`"),
        (lambda x: Mean(mx.Identity(), {"a": x}), r"`Mean`: the part 'a'"),
    ],
)  # fmt: skip
def test_a_part_that_is_not_a_transform_is_refused(make: Any, text: str, monkeypatch: pytest.MonkeyPatch):
    """Before anything else is checked, and with what to write instead."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: the error message is ours
    for x, remedy in (
        (optax.sgd(0.1), r"`from_optax\(...\)`"),
        (mx.SGD, r"It is a class: make an instance, `SGD\(...\)`"),
        ((optax.sgd(0.1).init, optax.sgd(0.1).update), r"write `from_functions\(init, update\)`"),
        ([mx.Clip(1.0), mx.SGD(0.1)], r"write `Chain\(\*parts\)`"),
        (jnp.sign, r"`Stateless\(function\)`"),
        (0.1, r"such as `AdamW\(1e-3\)`"),
    ):
        with pytest.raises(ValueError, match=f"{text} is not a modulax transform.*{remedy}"):
            make(x)


def test_a_container_without_parts_is_refused():
    class Empty(mx.AbstractContainer):
        inner: mx.AbstractTransform

        def init(self, params):
            return self.inner.init(params)

        def update(self, updates, state, params=None, **extra):
            return self.inner.update(updates, state, params, **extra)

    with pytest.raises(
        ValueError, match=r"`Empty` is a container without parts. Declare one, `inner: ... = required_part\(\)`"
    ):
        Empty(mx.SGD(0.1))


def test_a_class_checks_after_its_fields_and_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: the error message is ours

    class Checked(mx.AbstractOptimizer):
        inner: mx.AbstractTransform = mx.part()
        rate: float = mx.number()

        def check(self):
            assert jnp.asarray(self.rate).dtype == self.inner.hyperparameters()["learning_rate"].dtype
            raise ValueError("checked")

        def transform(self):
            return self.inner

    theirs: Any = optax.sgd(0.1)
    word: Any = "x"
    with pytest.raises(ValueError, match="checked"):
        Checked(mx.SGD(0.1), 1)
    with pytest.raises(ValueError, match="is not a modulax transform"):
        Checked(theirs, 1)
    with pytest.raises(ValueError, match="must be a number"):
        Checked(theirs, word)


def test_a_field_of_a_state_with_a_default_is_declared():
    class Forgetful(mx.AbstractState):
        count: Any = None

    with pytest.raises(ValueError, match=r"`count` of a state has a default and no declaration.*counter\(\)"):
        mx.tree.map_params(None, lambda x: x, Forgetful(jnp.zeros(())))


# --- GaLore shows its part the projected form -------------------------------------------------------


class Sees(mx.AbstractStatelessTransform):
    """Returns the gradient of the caller's function at the parameters that it sees, less the gradient it was given."""

    def apply(self, updates, params, *, grad_fn, grad, value_fn, **extra):
        del updates, extra
        slope = jax.grad(value_fn)(params)
        assert jtu.tree_structure(grad) == jtu.tree_structure(params)
        return jtu.tree_map(lambda a, b, c: 0.5 * (a + b) - c, grad_fn(params), slope, grad)


MATRIX = {"kernel": jnp.asarray([[0.4, -0.1, 0.3], [1.5, 1.0, -0.7]]), "bias": jnp.asarray([0.3, -0.2])}


def test_galore_brings_extra_arguments_into_the_projected_form():
    def loss(params):
        return jnp.sum(jnp.cosh(params["kernel"])) + jnp.sum(params["bias"] ** 4)

    grads = jax.grad(loss)(MATRIX)
    transform = mx.ScaleByGaLore(1, base_optimizer=Sees())
    extra = {"value_fn": loss, "grad_fn": jax.grad(loss), "grad": grads}
    updates, state = transform.update(grads, transform.init(MATRIX), MATRIX, **extra)
    # In the projected form all three are the same gradient, so that nothing remains.
    assert state.projector["kernel"].shape == (2, 1)
    jtu.tree_map(lambda u: np.testing.assert_allclose(u, 0, atol=1e-6), updates)


class Slope(mx.AbstractStatelessTransform):
    """The gradient of the caller's function at the updates."""

    def apply(self, updates, params, *, value_fn, **extra):
        del params, extra
        return jax.grad(value_fn)(updates)


def test_without_parameters_galore_maps_what_is_projected_back_for_the_caller():
    shapes = []

    def loss(params):
        shapes.append(params["kernel"].shape)
        return 0.5 * mx.tree.norm(params) ** 2

    transform = mx.ScaleByGaLore(1, base_optimizer=Slope())
    found, _ = transform.update(MATRIX, transform.init(MATRIX), value_fn=loss)
    u, s, vh = np.linalg.svd(MATRIX["kernel"])
    np.testing.assert_allclose(found["kernel"], s[0] * np.outer(u[:, 0], vh[0]), rtol=1e-5)
    np.testing.assert_allclose(found["bias"], MATRIX["bias"], rtol=1e-6)
    assert set(shapes) == {(2, 3)}


@pytest.mark.parametrize("declare", [mx.required_number, mx.required_part])
def test_a_required_field_has_no_default(declare: Callable[..., Any]):
    with pytest.raises(TypeError):
        declare(default=1.0)
    with pytest.raises(TypeError):
        declare(1.0)
