"""Every law on every instance."""

import inspect
import types
from collections.abc import Iterator

import flax.nnx  # noqa: F401 (the instances declare themselves to NNX when they are made)
import pytest

import modulax
from modulax.testing import LAWS, Case, Law

from .instances import EVERYTHING, TRANSFORMS, Instance

# What a variant of a class is checked for again; the other laws hold for a class as a whole.
LAWS_ON_NUMBERS = {
    "structure_shapes_and_dtypes_are_kept",
    "updates_keep_their_dtype_beside_other_parameters",
    "complex_parameters_work",
    "state_is_a_module_of_arrays",
    "scan_carries_the_state",
    "a_second_step_is_not_traced",
    "a_changed_number_is_not_traced",
    "a_batch_of_transforms_is_a_loop",
    "gradients_are_finite_and_right",
    "updates_of_every_size_stay_finite",
    "zeros_are_fine_in_low_precision",
    "strict_promotion_is_obeyed",
    "hyperparameters_change_no_dtype",
    "counters_saturate",
    "a_chain_is_its_parts_one_by_one",
    "equinox_can_save_it",
    "pickle_can_save_it",
    "every_number_has_an_address",
    "the_repr_can_be_read",
}


def _case(instance: Instance) -> Case:
    return Case(instance.make(), extra=instance.extra, rtol=instance.rtol, examples=instance.examples)


def _params() -> Iterator[object]:
    """The laws that speak of each instance; instance by instance, so that programs are reused."""
    for instance in TRANSFORMS:
        case = _case(instance)
        for name, law in LAWS.items():
            reason = instance.exemptions.get(name)
            marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]
            is_known = instance.is_variant and name not in LAWS_ON_NUMBERS
            if law.speaks_of(case) and not is_known:
                yield pytest.param(law, instance, id=f"{name}-{instance}", marks=marks)


@pytest.mark.parametrize("law, instance", list(_params()))
def test_law(law: Law, instance: Instance):
    law.check(_case(instance))


def _public_classes(module: types.ModuleType, base: type) -> set[type]:
    found = {x for x in vars(module).values() if inspect.isclass(x) and issubclass(x, base)}
    return {cls for cls in found if not inspect.isabstract(cls)}


def test_every_public_class_is_registered():
    public = set[type]()
    for module in (modulax, modulax.aggregate, modulax.schedules):
        for base in (modulax.AbstractTransform, modulax.AbstractSchedule):
            public |= _public_classes(module, base)
    registered = {type(instance.make()) for instance in EVERYTHING}
    assert registered == public


def test_a_variant_has_a_class_that_stands_before():
    seen = set[type]()
    for instance in TRANSFORMS:
        cls = type(instance.make())
        assert cls in seen or not instance.is_variant, instance
        seen.add(cls)
    assert LAWS.keys() >= LAWS_ON_NUMBERS


def test_exemptions_name_laws():
    unknown = {(instance.name, name) for instance in TRANSFORMS for name in instance.exemptions.keys() - LAWS}
    assert not unknown
