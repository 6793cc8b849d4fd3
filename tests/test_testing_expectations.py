"""Every expectation in the laws of `modulax.testing` is one that some faulty transform breaks."""

import ast
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

import modulax as mx
from modulax import testing
from modulax.testing import Case
from modulax.tree._math import trainable
from tests.test_testing import FAULTS, AbstractFaulty, HeavyBallState, Waiting, error_of, raised

PARAMS = {"bias": jnp.asarray([0.3, -0.2]), "scale": jnp.asarray([0.7, 1.1])}

# What no transform can break, because it is about the container, the library or the framework alone.
OF_OTHERS = {
    "a_mask_of_all_is_no_mask: `Masked` with none",
    "multisteps_steps_on_the_mean: between two steps",
    "both_branches_of_a_cond_may_return_it: no step",
    "whole_models_are_fine: `apply_updates`",
    "nnx_optimizers_take_it: the optimizer did not count its steps.",
}
# Broken by `Waiting` in `test_testing.py`, which takes seconds.
SLOW = {"update_returns_before_the_result_is_ready: `update` returned only when its result was ready."}


def expectations() -> dict[str, tuple[str, range]]:
    """File and lines of every expectation, by the law (or the helper of laws) and the text of its message."""
    found = {}
    for file in Path(testing.__file__).parent.glob("_*.py"):
        for function in ast.parse(file.read_text()).body:
            if isinstance(function, ast.FunctionDef) and file.name not in ("_case.py", "_laws.py"):
                for node in ast.walk(function):
                    if not isinstance(node, (ast.Call, ast.Raise)):
                        continue
                    if isinstance(node, ast.Call) and not ast.unparse(node.func).startswith("expect"):
                        continue
                    texts = [x.value for x in ast.walk(node) if isinstance(x, ast.Constant)]
                    words = max((x for x in texts if isinstance(x, str)), key=len, default=f"line {node.lineno}")
                    name = f"{function.name.removeprefix('law_')}: {words.strip()}"
                    name = name if name not in found else f"{name} (line {node.lineno})"
                    found[name] = file.name, range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return found


EXPECTATIONS = expectations()

# --- A transform that is right at first, and wrong from a certain call on ---------------------------


class Calls(dict[str, int]):
    """The number of calls so far; a static field, equal to itself alone."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _retraced(tree: Any) -> Any:
    jax.jit(lambda: jnp.zeros(3))()
    return tree


def _overwritten(tree: Any) -> Any:
    for x in jtu.tree_leaves(tree):
        x[...] = 7
    return tree


def _narrow(x: Any) -> Any:
    return x.real.astype(jnp.bfloat16 if x.dtype == jnp.float16 else jnp.float16)


ERRORS: dict[str, Callable[[Any], Any]] = {
    "": lambda tree: tree,
    "another value": lambda tree: jtu.tree_map(lambda x: x * 3 + 1, tree),
    "nan": lambda tree: jtu.tree_map(lambda x: x * jnp.nan, tree),
    "another dtype": lambda tree: jtu.tree_map(_narrow, tree),
    "another structure": lambda tree: [tree, jnp.zeros(3)],
    "gathered": lambda tree: jtu.tree_map(lambda x: jnp.asarray(np.asarray(x)), tree),
    "retraced": _retraced,
}


class Erratic(AbstractFaulty):
    """Works eagerly, and errs from one of its calls on."""

    factor: Any = mx.number(0.5)
    error: str = eqx.field(static=True, default="")
    what: str = eqx.field(static=True, default="update")
    start: int = eqx.field(static=True, default=0)
    calls: Calls = eqx.field(static=True, default_factory=Calls)

    def result(self, what: str, tree: Any) -> Any:
        """The tree, or a wrong one."""
        if what != self.what:
            return tree
        self.calls[what] = self.calls.get(what, 0) + 1
        return tree if self.calls[what] <= self.start else ERRORS[self.error](tree)


def _init(self: Erratic, params: Any) -> Any:
    zeros = jtu.tree_map(lambda p: jnp.zeros(p.shape, p.dtype), trainable(params))
    return HeavyBallState(self.result("init", zeros))


def _update(self: Erratic, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
    del extra
    if self.what == "arguments":
        _overwritten((updates, params))
    new = jtu.tree_map(self.change, updates)
    velocity = jtu.tree_map(lambda v, g: v + g.astype(v.dtype), state.velocity, updates)
    return self.result("update", new), HeavyBallState(self.result("state", velocity))


# Set after the class was made, so that they are called as they are, outside of a program.
type.__setattr__(Erratic, "init", _init)
type.__setattr__(Erratic, "update", _update)

# Law, what is wrong, in what, and how many calls are right before.
ERRATIC = [
    ("structure_shapes_and_dtypes_are_kept", "another dtype", "update", 0),
    ("structure_shapes_and_dtypes_are_kept", "another dtype", "state", 0),
    ("updates_keep_their_dtype_beside_other_parameters", "another dtype", "update", 0),
    ("updates_keep_their_dtype_beside_other_parameters", "another dtype", "state", 0),
    ("complex_parameters_work", "another dtype", "update", 0),
    ("complex_parameters_work", "another dtype", "state", 0),
    ("the_state_says_what_is_like_the_parameters", "another structure", "init", 0),
    ("absent_leaves_stay_absent", "another dtype", "update", 0),
    ("absent_leaves_stay_absent", "another dtype", "state", 0),
    ("empty_trees_are_fine", "another structure", "update", 0),
    ("empty_trees_are_fine", "another structure", "state", 0),
    ("leaves_without_elements_are_fine", "another dtype", "update", 0),
    ("leaves_without_elements_are_fine", "another dtype", "state", 0),
    ("leaves_without_elements_are_fine", "nan", "update", 0),
    ("inputs_are_not_modified", "", "arguments", 0),
    ("inputs_are_not_modified", "nan", "init", 0),
    ("the_order_of_a_dict_does_not_matter", "another value", "update", 2),
    ("the_order_of_a_dict_does_not_matter", "another value", "update", 5),
    ("sharding_is_kept", "gathered", "update", 0),
    ("scan_carries_the_state", "another value", "update", 3),
    ("scan_carries_the_state", "another value", "state", 3),
    ("both_branches_of_a_cond_may_return_it", "another value", "update", 1),
    ("a_second_step_is_not_traced", "retraced", "update", 1),
    ("a_changed_number_is_not_traced_in_your_own_jit", "another dtype", "state", 1),
    ("methods_can_be_transformed", "another value", "init", 1),
    ("methods_can_be_transformed", "another dtype", "init", 2),
    ("methods_can_be_transformed", "another value", "update", 1),
    ("update_can_be_vmapped", "another value", "update", 6),
    ("states_can_be_donated", "another value", "update", 2),
    ("states_can_be_donated", "another value", "update", 3),
    ("gradients_are_finite_and_right", "nan", "update", 0),
    ("zeros_are_fine_in_low_precision", "nan", "update", 1),
    ("zeros_are_fine_in_low_precision", "another dtype", "update", 0),
    ("strict_promotion_is_obeyed", "another dtype", "update", 0),
    ("hyperparameters_change_no_dtype", "another dtype", "update", 1),
    ("counters_saturate", "nan", "update", 0),
    ("unknown_extra_arguments_are_ignored", "another value", "update", 1),
    ("a_chain_is_its_parts_one_by_one", "another value", "update", 1),
    ("a_chain_is_its_parts_one_by_one", "another value", "state", 1),
    ("a_mask_of_all_is_no_mask", "another value", "update", 1),
    ("a_partition_gives_each_leaf_its_own", "another value", "update", 1),
    ("multisteps_steps_on_the_mean", "another value", "update", 1),
    ("numbers_in_the_state_are_the_same_numbers", "another value", "update", 3),
    ("numbers_in_the_state_are_the_same_numbers", "another value", "update", 4),
    ("nnx_optimizers_take_it", "another value", "update", 1),
    ("optax_chains_take_it", "another value", "update", 1),
    ("equinox_can_save_it", "another value", "update", 2),
    ("equinox_can_save_it", "retraced", "update", 2),
    ("pickle_can_save_it", "", "", 0),
]


# --- Transforms with one wrong method -----------------------------------------------------------------


def with_methods(**methods: Callable[..., Any]) -> Any:
    """A transform that scales, with these methods in place of its own, called outside of a program."""

    class Overriding(Erratic):
        """Has other methods."""

    for name, method in methods.items():
        type.__setattr__(Overriding, name, method)
    return Overriding(0.25)


def chain_at(**parts: Any) -> Any:
    """A chain that becomes another one."""

    class Chained(mx.Chain):
        """Has other parts at the next step."""

        def at(self, state: Any) -> Any:
            del state
            return make(**parts)

    make: Any = Chained
    return make(scale=mx.Scale(0.5))


def with_init(init: Callable[[Any], Any]) -> Any:
    return with_methods(init=lambda self, params: init(params), update=lambda self, g, s, p=None, **extra: (g, s))


class SharedState(eqx.Module):
    """Declares as shared what is like the parameters."""

    velocity: Any = mx.shared()


class Typed(mx.AbstractTransform):
    """Has a state in a dtype that a function makes of the field's and the parameters'."""

    kept_in: Callable[[Any, Any], Any] = eqx.field(static=True)
    state_dtype: Any = eqx.field(static=True, default=None)

    def init(self, params: Any) -> Any:
        return HeavyBallState(jtu.tree_map(lambda p: jnp.zeros(p.shape, self.kept_in(self.state_dtype, p)), params))

    def update(self, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params, extra
        return updates, state


def _refusing(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise ValueError("no")


def _other_leaves(self: Any, updates: Any, state: Any, params: Any, **extra: Any) -> Any:
    new, state = mx.AbstractTransform.step(self, updates, state, params, **extra)
    return {**new, "rate": 1.0}, state


def _other_step(self: Any, updates: Any, state: Any, params: Any, **extra: Any) -> Any:
    new, state = mx.AbstractTransform.step(self, updates, state, params, **extra)
    return {**new, "bias": new["bias"] + 1}, state


def _worse_later(self: Any, updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
    new = jtu.tree_map(lambda g, v: jnp.where(v == 0, g, jnp.nan), updates, state.velocity)
    return new, HeavyBallState(jtu.tree_map(lambda v: v + 1, state.velocity))


def _numbers_of(self: Any, factor: Any) -> dict[str, Any]:
    return {"factor": factor}


def _listed_once(self: Any, state: Any = None) -> Any:
    del state
    self.calls["listed"] = self.calls.get("listed", 0) + 1
    return {"factor": self.factor if self.calls["listed"] == 1 else np.array(self.factor)}


def _replacing(**more: Any) -> Callable[..., Any]:
    def replace(self: Any, **changes: Any) -> Any:
        return mx.AbstractTransform.replace(self, **changes, **more)

    return replace


class TwoNumbers(AbstractFaulty):
    """A change of one of its numbers changes the other."""

    factor: Any = mx.number(0.25)
    other: Any = mx.number(0.25)

    def replace(self, **changes: Any) -> Any:
        return AbstractFaulty.replace(self, **{"factor": 0.3, "other": 0.3, **changes})


class Narrowed(AbstractFaulty):
    """Has a number of another dtype after `pickle`."""

    factor: Any = mx.number(0.5)

    def __reduce__(self) -> Any:
        return _narrowed, ()


def _narrowed() -> Any:
    return eqx.tree_at(lambda t: t.factor, Narrowed(), np.float16(0.5))


def _at_another_start(self: Any, state: Any) -> Any:
    return self.replace(factor=0.3, start=int(np.any(state.velocity["bias"] != 0)))


AT, DTYPE = "at_is_the_transform_of_the_next_step", "a_field_that_is_a_dtype_is_one_of_the_state"
ADDRESS, IN_FORCE = "every_number_has_an_address", "a_number_in_force_is_listed"
REPR = "the_repr_can_be_read"
TRANSFORMS: list[tuple[str, Any]] = [
    ("complex_parameters_work", with_methods(init=_refusing)),
    ("state_is_a_module_of_arrays", with_init(lambda params: params)),
    ("the_state_says_what_is_like_the_parameters", with_init(SharedState)),
    ("absent_leaves_stay_absent", with_init(lambda params: HeavyBallState(PARAMS))),
    ("whole_models_are_fine", with_init(lambda params: HeavyBallState(jnp.zeros(len(jtu.tree_leaves(params)))))),
    ("whole_models_are_fine", with_methods(update=lambda self, g, s, p=None, **extra: (p, s))),
    ("whole_models_are_fine", with_methods(step=_other_leaves)),
    ("whole_models_are_fine", with_methods(step=_other_step)),
    ("states_can_be_donated", with_init(HeavyBallState)),
    ("the_transform_survives_donation", eqx.tree_at(lambda t: t.factor, Erratic(), jnp.asarray(0.5))),
    (DTYPE, Typed(lambda d, p: jnp.float32 if d == jnp.bfloat16 else d or p.dtype)),
    (DTYPE, Typed(lambda d, p: d or jnp.float16)),
    (DTYPE, Typed(lambda d, p: d or p.dtype)),
    ("nnx_optimizers_take_it", with_methods(update=_worse_later)),
    ("pickle_can_save_it", Narrowed()),
    (AT, with_methods(at=_at_another_start)),
    (AT, with_methods(at=lambda self, state: eqx.tree_at(lambda t: t.factor, self, None))),
    (AT, with_methods(at=lambda self, state: mx.Scale(0.5))),
    (AT, chain_at(other=mx.Scale(0.5))),
    (AT, chain_at(scale=mx.Trace(0.5))),
    (ADDRESS, with_methods(hyperparameters=lambda self, state=None: {})),
    (ADDRESS, with_methods(addresses=lambda self: {})),
    (ADDRESS, with_methods(hyperparameters=lambda self, state=None: {"factor": 0.5})),
    (ADDRESS, with_methods(addresses=lambda self: {"factor": lambda t: t.factor + 0})),
    (ADDRESS, with_methods(hyperparameters=_listed_once)),
    (ADDRESS, with_methods(replace=lambda self, **changes: self)),
    (ADDRESS, with_methods(replace=_replacing(start=1))),
    (ADDRESS, TwoNumbers()),
    (IN_FORCE, with_methods(hyperparameters=lambda self, state=None: {"factor": np.zeros(3)})),
    (IN_FORCE, with_methods(hyperparameters=lambda self, state=None: {"factor": np.asarray(np.nan)})),
    ("unknown_names_are_refused", with_methods(replace=_refusing)),
    ("unknown_names_are_refused", with_methods(replace=lambda self, **changes: self)),
    (REPR, with_methods(__repr__=lambda self: "Erratic(factor=0.25)")),
    (REPR, with_methods(__repr__=lambda self: "Overriding(factor=array(0.5))")),
    (REPR, with_methods(__repr__=lambda self: "Overriding(factor=0.7)")),
    (REPR, with_methods(__repr__=lambda self: "Overriding(factor=0.25)")),
]


def broken_by(error: Exception | None) -> frozenset[str]:
    """The expectations that were not met on the way from a law to its error."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else ()
    lines = {(Path(frame.filename).name, frame.lineno) for frame in frames}
    return frozenset(name for name, (file, own) in EXPECTATIONS.items() if any((file, line) in lines for line in own))


def test_every_expectation_of_a_law_is_broken_by_a_faulty_transform():
    faulty = [(law, Erratic(0.5, error, what, start)) for law, error, what, start in ERRATIC]
    broken = [broken_by(raised(law, Case(transform, PARAMS))) for law, transform in [*faulty, *TRANSFORMS]]
    assert all(broken)
    # Each breaks another one. So if an expectation were left out, another would have two of them, or one of them none.
    assert len(set(broken)) == len(broken)
    known = [error_of(i) for i, (transform, _, _) in enumerate(FAULTS) if not isinstance(transform, Waiting)]
    assert EXPECTATIONS.keys() - set().union(*broken, *map(broken_by, known)) == OF_OTHERS | SLOW
