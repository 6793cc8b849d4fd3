"""Containers compose freely: every one around every other one, and around optimizers, obeys the laws.

Each composition is checked for the laws that a container could break by itself, and for one of the others in turn, so
that all laws meet all containers. MODULAX_CLOSURE=full checks every law on every composition, which takes 20 minutes on
two cores.
"""

import inspect
import os
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

import modulax as mx
from modulax.testing import LAWS, Case, Law

from .compositions import CONTAINERS, MOMENTUM, NOT_COMPOSED, PARAMS, Composition, Witness, compositions, extra

COMPOSITIONS = tuple(compositions())
# What a container does to trees, states and numbers; quick to check.
ALWAYS = (
    "structure_shapes_and_dtypes_are_kept",
    "absent_leaves_stay_absent",
    "empty_trees_are_fine",
    "a_second_step_is_not_traced",
    "a_changed_number_is_not_traced",
    "a_number_in_force_is_listed",
    "every_number_has_an_address",
    "inputs_are_not_modified",
)
# What is masked becomes zero: a constant, and XLA puts constants on one device. These hand it on as it is.
HAND_ON = ("Chain", "MultiSteps", "Scheduled", "Injected", "ApplyIfFinite", "ConditionallyMask")
EVERY_LAW = os.environ.get("MODULAX_CLOSURE") == "full"


def _case(composition: Composition) -> Case:
    """Lookahead's update is a difference of parameters, which are up to 3: so much is rounded in float32."""
    return Case(composition.make(), PARAMS, extra, rtol=1e-5)


def _exempt(composition: Composition) -> set[str]:
    """The laws that do not hold."""
    gives_constants = composition.outer == "Masked" or (composition.inner == "Masked" and composition.outer in HAND_ON)
    return {"sharding_is_kept"} if gives_constants else set()


def _laws(case: Case, index: int) -> list[Law]:
    laws = {name: law for name, law in LAWS.items() if law.speaks_of(case)}
    others = [law for name, law in laws.items() if name not in ALWAYS]
    return [laws[name] for name in ALWAYS if name in laws] + (others if EVERY_LAW else [others[index % len(others)]])


@pytest.mark.parametrize("index", range(len(COMPOSITIONS)), ids=list(map(str, COMPOSITIONS)))
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


@pytest.mark.parametrize("composition", [c for c in COMPOSITIONS if c.is_pair], ids=str)
def test_extra_arguments_reach_the_heart_and_its_numbers_are_seen(composition: Composition):
    """Through any nesting: `value`, functions of the parameters and trees like them, and unknown ones."""
    transform, params = composition.make(), PARAMS
    state = jax.eval_shape(transform.init, params)
    Witness.seen.clear()
    jax.eval_shape(lambda p, s: transform.update(p, s, p, token="token", **extra(p, p)), params, state)
    assert set(Witness.seen) == {"token"}
    numbers = transform.hyperparameters(_after(state, steps=5))
    np.testing.assert_allclose([x for path, x in numbers.items() if path.endswith(".momentum")], [MOMENTUM(5)])


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
