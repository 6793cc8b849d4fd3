"""Containers compose freely: every one around every other one, and around optimizers, obeys the laws.

Every eighth composition, along the diagonals of the table, is traced once for structure, dtypes and extra arguments.
Every seventeenth one is checked for one law in turn, so that every container meets several laws around others and
inside them. `nox -s laws` traces every composition and checks each for a few laws, dealt out so that every container
meets every law around others and inside others.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax._protocol.schedule import has_schedule
from modulax.testing import LAWS, Case, Law
from modulax.testing._case import expect_same_avals

from .compositions import (
    CONTAINERS,
    MOMENTUM,
    NOT_COMPOSED,
    OPTIMIZERS,
    PARAMS,
    Composition,
    Witness,
    compositions,
    extra,
)
from .reach import EVERYTHING

COMPOSITIONS = tuple(compositions())
_ROW = len(CONTAINERS) + len(OPTIMIZERS)
_STRIDE = 17  # of the compositions that are checked for a law
ACCEPTED = [i for i, c in enumerate(COMPOSITIONS) if not c.is_refused]
CHECKED = [i for i in ACCEPTED if EVERYTHING or (i // _ROW + i % _ROW) % _STRIDE == 0]
TRACED = [COMPOSITIONS[i] for i in ACCEPTED if EVERYTHING or (i // _ROW + i % _ROW) % 8 == 0]
# How many laws `nox -s laws` deals to a composition. All of them would take hours: there are 500 compositions.
_DEALT = 6
# Laws that compile nothing.
ALWAYS = ("empty_trees_are_fine", "every_number_has_an_address")
# What does not hold in a branch of `cond`, where some containers run what they hold. JAX 0.10 forgets in a derivative
# and under `vmap` of `cond` in which memory an array is. Two laws make states of shapes or stack them in NumPy, so one
# branch returns them on the device, and the other in the memory of the host.
NOT_INSIDE = {
    "Offload": (
        "gradients_are_finite_and_right",
        "a_batch_of_transforms_is_a_loop",
        "update_can_be_vmapped",
        "strict_promotion_is_obeyed",
    )
}
# No derivative passes through codes, which are integers.
NOT_WITH = {"LowBit": ("gradients_are_finite_and_right",)}


def _case(composition: Composition) -> Case:
    """Lookahead's update is a difference of parameters, which are up to 3: so much is rounded in float32."""
    return Case(composition.make(), composition.params, extra, rtol=1e-5)


def _exempt(composition: Composition) -> set[str]:
    """The laws that do not hold."""
    # The number in the state, of the last step, overrules what `at` puts in the place of the schedule.
    is_overruled = composition.outer == "Injected" and not composition.is_pair and has_schedule(composition.make())
    return {"at_is_the_transform_of_the_next_step"} if is_overruled else set()


def _dealt(index: int) -> set[str]:
    """The laws of a composition in `nox -s laws`: along the diagonals of the table, evenly spaced among all laws."""
    names = [name for name in LAWS if name not in ALWAYS]
    start = index // _ROW + index % _ROW
    return {names[(start + len(names) * k // _DEALT) % len(names)] for k in range(_DEALT)}


def _laws(case: Case, index: int) -> list[Law]:
    outer, inner = COMPOSITIONS[index].outer, COMPOSITIONS[index].inner
    left_out = (*NOT_INSIDE.get(inner, ()), *NOT_WITH.get(inner, ()), *NOT_WITH.get(outer, ()))
    if EVERYTHING:
        names = [name for name in (*ALWAYS, *sorted(_dealt(index))) if name not in left_out]
        return [LAWS[name] for name in names if LAWS[name].speaks_of(case)]
    others = [law for law in LAWS.values() if law.speaks_of(case) and law.name not in (*ALWAYS, *left_out)]
    return [LAWS[name] for name in ALWAYS] + [others[index // _STRIDE % len(others)]]


@pytest.mark.filterwarnings("ignore:.*doesn't see what")
@pytest.mark.parametrize("index", CHECKED, ids=[str(COMPOSITIONS[i]) for i in CHECKED])
def test_a_composition_obeys_the_laws(index: int):
    composition = COMPOSITIONS[index]
    case = _case(composition)
    laws = _laws(case, index)
    broken = {}
    for law in laws:
        try:
            law.check(case)
        except Exception as error:  # whatever it is, the other laws are checked too
            broken[law.name] = str(error)[:300]
    assert broken.keys() == _exempt(composition) & {law.name for law in laws}, broken


@pytest.mark.parametrize("composition", TRACED, ids=str)
def test_types_are_kept_and_extra_arguments_reach_the_heart(composition: Composition):
    """Structure, shapes and dtypes of updates and state; `value`, functions and trees of parameters, unknown arguments.

    The state has no weak types, which would make the second step another program.
    """
    transform = composition.make()

    def start_and_step(params: Any, updates: Any) -> Any:
        state = transform.init(params)
        return state, *transform.update(updates, state, params, token="token", **extra(params, updates))

    Witness.seen.clear()
    # Parameters of two precisions, and a leaf that is absent.
    mixed = composition.params | {"gone": None, "kernel": PARAMS["kernel"].astype(jnp.bfloat16)}
    state, updates, new_state = jax.eval_shape(start_and_step, mixed, mixed)
    expect_same_avals(updates, Case(transform).kept(updates, mixed), "the updates")
    expect_same_avals(new_state, state, "the state")
    weak = [path for path, x in jtu.tree_leaves_with_path((state, updates, new_state)) if x.weak_type]
    assert not weak
    if composition.has_witness:
        assert set(Witness.seen) == {"token"}
    if composition.is_pair:
        numbers = transform.hyperparameters(_after(state, steps=5))
        np.testing.assert_allclose([x for path, x in numbers.items() if path.endswith(".momentum")], [MOMENTUM(5)])


@pytest.mark.parametrize("composition", [c for c in COMPOSITIONS if c.is_refused], ids=str)
def test_what_depends_on_other_arrays_or_on_roles_is_refused(composition: Composition):
    says = r"as if it were alone, and `\w+` .*\. (Put it around `Stacked`, as in `|Leave `Stacked` out)"
    if composition.outer == "Flatten":
        says = "can't be told from matrices by their roles. Put it around one kind of them: `Partition"
    with pytest.raises(ValueError, match=says):
        composition.make()


def _after(state: Any, steps: int) -> Any:
    """A state of these shapes as it is after some steps, as far as counters tell."""
    is_integer = lambda x: jnp.issubdtype(x.dtype, jnp.integer)  # noqa: E731
    return jtu.tree_map(lambda x: np.full(x.shape, steps if is_integer(x) else 1, x.dtype), state)


def test_every_container_is_composed():
    classes, found = [mx.AbstractContainer], set[str]()
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        is_public = any(vars(place).get(cls.__name__) is cls for place in (mx, mx.aggregate))
        if is_public and not inspect.isabstract(cls):
            found.add(cls.__name__)
    assert found <= CONTAINERS.keys() | NOT_COMPOSED
    assert not NOT_COMPOSED & CONTAINERS.keys()
