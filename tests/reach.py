"""The instances that each law is checked on: those that can break it by themselves.

Base classes keep most of what the laws promise. `Masked` calls an optimizer through `AbstractOptimizer`, and every
optimizer that only writes `transform()` runs the same code there. So every law has a reach, which says which instances
form a group; the law is checked on one of each group. `nox -s laws` sets MODULAX_LAWS=all, and every law is checked on
every instance.

The groups are derived from the classes. A new class joins the groups that it belongs to; a new set of overridden
methods is a new group, with a representative.
"""

import dataclasses
import enum
import functools
import inspect
import os
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, NamedTuple

import flax.nnx  # noqa: F401 (the instances declare themselves to NNX when they are made)

import modulax as mx
from modulax.testing import LAWS, Case, Law, default_params
from modulax.testing._laws import broken_laws, report_of

from .instances import TRANSFORMS, Instance

EVERYTHING = os.environ.get("MODULAX_LAWS") == "all"


class Reach(enum.Enum):
    """Where a fault can be, and so what is checked."""

    INSTANCE = "in the code behind a flag or a number: every instance is checked"
    CLASS = "in the equations: one instance of every class"
    HOOKS = "in how a base class calls its subclasses: one class for each set of overridden methods"
    BASE = "in code that runs before any subclass is called: one class for each base class"


class Reaches(NamedTuple):
    """The reach of a law among optimizers, which are chains of rules, and among all other transforms, such as rules."""

    rules: Reach
    optimizers: Reach


_EVERY_INSTANCE = Reaches(Reach.INSTANCE, Reach.INSTANCE)
_RULES_ALONE = Reaches(Reach.INSTANCE, Reach.HOOKS)
_EVERY_CLASS = Reaches(Reach.CLASS, Reach.CLASS)
_OWN_EQUATIONS = Reaches(Reach.CLASS, Reach.HOOKS)
_HOOKS = Reaches(Reach.HOOKS, Reach.HOOKS)
_BASES = Reaches(Reach.BASE, Reach.BASE)

# Laws that are not listed are checked on every instance.
REACHES = {
    # A flag selects another branch, with its own dtypes, gradients and edges. An optimizer passes its flags on to
    # rules, which are checked with them.
    "structure_shapes_and_dtypes_are_kept": _RULES_ALONE,
    "zeros_are_fine_in_low_precision": _RULES_ALONE,
    "gradients_are_finite_and_right": _RULES_ALONE,
    "complex_parameters_work": _RULES_ALONE,
    "updates_keep_their_dtype_beside_other_parameters": _RULES_ALONE,
    "strict_promotion_is_obeyed": _RULES_ALONE,
    # Quick to check.
    "absent_leaves_stay_absent": _EVERY_CLASS,
    "empty_trees_are_fine": _EVERY_CLASS,
    "the_order_of_a_dict_does_not_matter": _EVERY_CLASS,
    "inputs_are_not_modified": _EVERY_CLASS,
    "the_state_says_what_is_like_the_parameters": _EVERY_CLASS,
    "a_number_in_force_is_listed": _EVERY_CLASS,
    # A flag's branch that breaks these also breaks strict promotion, or makes the second step another program.
    "state_is_a_module_of_arrays": _OWN_EQUATIONS,
    "hyperparameters_change_no_dtype": _OWN_EQUATIONS,
    # Equations that reduce, reshape, loop or copy can break these; a chain of rules that keep them keeps them.
    "a_batch_of_transforms_is_a_loop": _OWN_EQUATIONS,
    "sharding_is_kept": _OWN_EQUATIONS,
    "states_can_be_donated": _OWN_EQUATIONS,
    "leaves_without_elements_are_fine": _OWN_EQUATIONS,
    # Containers and transformations of JAX call the base class with part of a tree or with traced numbers.
    "a_mask_of_all_is_no_mask": _HOOKS,
    "a_chain_is_its_parts_one_by_one": _HOOKS,
    "unknown_extra_arguments_are_ignored": _HOOKS,
    "a_partition_gives_each_leaf_its_own": _HOOKS,
    "multisteps_steps_on_the_mean": _HOOKS,
    "numbers_in_the_state_are_the_same_numbers": _HOOKS,
    "both_branches_of_a_cond_may_return_it": _HOOKS,
    "update_can_be_vmapped": _HOOKS,
    "orbax_can_save_it": _HOOKS,
    "a_changed_number_is_not_traced_in_your_own_jit": _HOOKS,
    # A state of another type after a step is a second program too, and every instance is checked for that.
    "scan_carries_the_state": _HOOKS,
    # `test_fields.py` checks these on every class, with every static field away from its default.
    "at_is_the_transform_of_the_next_step": _BASES,
    "a_field_that_is_a_dtype_is_one_of_the_state": _BASES,
    "a_field_of_an_optimizer_is_handed_on": _BASES,
    # The entry points, `replace`, and transforms as arguments of compiled functions.
    "update_returns_before_the_result_is_ready": _BASES,
    "unknown_names_are_refused": _BASES,
    "the_transform_survives_donation": _BASES,
    "whole_models_are_fine": _BASES,
    "methods_can_be_transformed": _BASES,
    "nnx_optimizers_take_it": _BASES,
    "optax_chains_take_it": _BASES,
}


# Laws that ask for the same in several ways. Each group is checked on one of a row, in turn.
SHARES = (
    # A container calls it with some of the leaves, or in turn with others.
    ("a_mask_of_all_is_no_mask", "a_chain_is_its_parts_one_by_one", "a_partition_gives_each_leaf_its_own"),
    # A transformation of JAX traces it with values that it batches, carries or chooses between.
    ("update_can_be_vmapped", "scan_carries_the_state", "both_branches_of_a_cond_may_return_it"),
    # A state is taken apart, and put together again.
    ("orbax_can_save_it", "numbers_in_the_state_are_the_same_numbers"),
)


def base_of(cls: type) -> type:
    """The abstract class that calls its methods."""
    return next(parent for parent in cls.__mro__ if inspect.isabstract(parent))


_UNSEEN = {"_effect"}  # what `describe` shows, changes no step


def hooks_of(cls: type) -> Hashable:
    """The names of its base class that it overrides. A class that writes its own `update` is a group by itself.

    So is a rule on matrices, whose `update` is `_direction`.
    """
    base = base_of(cls)
    if base.__abstractmethods__ & {"update", "_direction"}:
        return cls
    own = cls.__mro__[: cls.__mro__.index(base)]
    names = {name for parent in own for name in vars(parent) if not name.startswith("_") and hasattr(base, name)}
    return base, frozenset(names - _UNSEEN)


_GROUP: dict[Reach, Callable[[Instance], Hashable]] = {
    Reach.INSTANCE: lambda instance: instance.name,
    Reach.CLASS: lambda instance: instance.cls,
    Reach.HOOKS: lambda instance: hooks_of(instance.cls),
    Reach.BASE: lambda instance: base_of(instance.cls),
}


def group(law: Law, instance: Instance) -> Hashable:
    """A key that is the same for all instances of which the law needs only one."""
    reaches = REACHES.get(law.name, _EVERY_INSTANCE)
    reach = reaches.optimizers if issubclass(instance.cls, mx.AbstractOptimizer) else reaches.rules
    return _GROUP[reach](instance)


def share_of(law: Law, cases: Mapping[Instance, Case]) -> set[Hashable]:
    """The groups whose turn a law is, among those of `SHARES`; all groups of any other law."""
    keys = list(dict.fromkeys(group(law, instance) for instance in cases))
    turn, turns = next(((row.index(law.name), len(row)) for row in SHARES if law.name in row), (0, 1))
    return set(keys[turn::turns])


def checked_on(law: Law, cases: Mapping[Instance, Case]) -> set[Instance]:
    """The instances that the law is checked on: one of each group, or of a share, and those known to break it.

    The representative is the first instance of the class with the most hyperparameters.
    """
    spoken_of = [instance for instance, case in cases.items() if law.speaks_of(case)]
    chosen = {instance for instance in spoken_of if EVERYTHING or law.name in instance.exemptions}
    groups: dict[Hashable, dict[type, Instance]] = {}
    for instance in spoken_of:
        if instance not in chosen:
            groups.setdefault(group(law, instance), {}).setdefault(instance.cls, instance)
    share = share_of(law, cases)
    for key, firsts in groups.items():
        if key not in share:
            continue
        alone = next(iter(firsts.values()))
        chosen.add(alone if len(firsts) == 1 else max(firsts.values(), key=lambda i: len(cases[i].numbers())))
    return chosen


def small_params() -> dict[str, Any]:
    """A vector and a matrix: rules treat scalars and tensors like one of them, and compiling takes time per leaf."""
    return {"bias": default_params()["dense"]["bias"], "dense": {"kernel": default_params()["dense"]["kernel"]}}


def case_of(instance: Instance) -> Case:
    return Case(instance.made, small_params(), instance.extra, instance.rtol, instance.examples)


@functools.cache
def cases() -> dict[Instance, Case]:
    return {instance: case_of(instance) for instance in TRANSFORMS}


@functools.cache
def checked() -> dict[str, set[Instance]]:
    """The instances that each law is checked on."""
    return {name: checked_on(law, cases()) for name, law in LAWS.items()}


# Scalars and tuples too: nothing is compiled.
OF_EVERY_SHAPE = {"structure_shapes_and_dtypes_are_kept", "absent_leaves_stay_absent"}


# Programs of their own, in other dtypes or on other devices: half of the time of all laws.
SLOW = {
    *("gradients_are_finite_and_right", "zeros_are_fine_in_low_precision", "a_batch_of_transforms_is_a_loop"),
    *("hyperparameters_change_no_dtype", "sharding_is_kept", "states_can_be_donated", "complex_parameters_work"),
}
QUICK = LAWS.keys() - SLOW


def check_laws(instance: Instance, names: Collection[str]) -> None:
    """Check laws on one transform, so that they share its programs. Where it is exempt, the law must be broken."""
    case = cases()[instance]
    whole = dataclasses.replace(case, params=default_params())
    laws = [law for name, law in LAWS.items() if name in names and instance in checked()[name]]
    broken = broken_laws(case, [law for law in laws if law.name not in OF_EVERY_SHAPE])
    broken += broken_laws(whole, [law for law in laws if law.name in OF_EVERY_SHAPE])
    unexpected = [(law, error) for law, error in broken if law.name not in instance.exemptions]
    if unexpected:
        raise AssertionError(report_of(case.transform, unexpected)) from unexpected[0][1]
    obeyed = instance.exemptions.keys() & {law.name for law in laws} - {law.name for law, _ in broken}
    assert not obeyed, f"`{instance}` obeys {sorted(obeyed)}, from which it is exempt: remove the exemption"
