"""Every law on every instance."""

import inspect
import types
from collections.abc import Iterator

import flax.nnx  # noqa: F401 (the instances declare themselves to NNX when they are made)
import pytest

import modulax
from modulax.testing import LAWS, Case, Law

from .instances import EVERYTHING, TRANSFORMS, Instance


def _case(instance: Instance) -> Case:
    return Case(instance.make(), extra=instance.extra, rtol=instance.rtol)


def _params() -> Iterator[object]:
    """The laws that speak of each instance; instance by instance, so that programs are reused."""
    for instance in TRANSFORMS:
        case = _case(instance)
        for name, law in LAWS.items():
            reason = instance.exemptions.get(name)
            marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]
            if law.speaks_of(case):
                yield pytest.param(law, instance, id=f"{name}-{instance}", marks=marks)


@pytest.mark.parametrize("law, instance", list(_params()))
def test_law(law: Law, instance: Instance):
    law.check(_case(instance))


def _public_classes(module: types.ModuleType, base: type) -> set[type]:
    found = {x for x in vars(module).values() if inspect.isclass(x) and issubclass(x, base)}
    return {cls for cls in found if not inspect.isabstract(cls)}


def test_every_public_class_is_registered():
    public = set[type]()
    for module in (modulax, modulax.schedules):
        for base in (modulax.AbstractTransform, modulax.AbstractSchedule):
            public |= _public_classes(module, base)
    registered = {type(instance.make()) for instance in EVERYTHING}
    assert registered == public


def test_exemptions_name_laws():
    unknown = {
        (instance.name, name) for instance in TRANSFORMS for name in instance.exemptions.keys() - LAWS
    }
    assert not unknown
