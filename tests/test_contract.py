"""Every law on the instances that can break it by themselves, which `reach.py` selects."""

import dataclasses
import inspect
import types
from typing import Any

import jax
import pytest

import modulax
from modulax.testing import LAWS, Case, default_params

from . import reach
from .instances import EVERYTHING, RULES, TRANSFORMS, Instance


@pytest.mark.parametrize("instance", RULES, ids=str)
def test_laws(instance: Instance):
    reach.check_laws(instance, reach.QUICK)


def test_parameters_may_be_a_single_array():
    """Also for containers that show their parts another form of it. Only a pattern of paths needs a tree."""
    failed = {}
    for cls in {instance.cls for instance in TRANSFORMS}:
        try:
            step_on_a_matrix([instance for instance in TRANSFORMS if instance.cls is cls])
        except Exception as error:
            failed[cls] = error
    assert not failed


def step_on_a_matrix(instances: list[Instance]) -> None:
    """Step with the first instance that takes a matrix."""
    matrix = default_params()["dense"]["kernel"]
    for instance in instances:
        case = dataclasses.replace(reach.cases()[instance], params=matrix)

        def start_and_step(case: Case = case) -> Any:
            updates = case.updates(1)
            return case.returned(updates), case.update(updates, case.init())[0]

        try:
            given, updates = jax.eval_shape(start_and_step)
        except ValueError as error:
            if "matches no leaf" not in str(error):
                raise
        else:
            assert (updates.shape, updates.dtype) == (given.shape, given.dtype)
            return


def _public_classes(module: types.ModuleType, base: type) -> set[type]:
    names = [getattr(module, name) for name in dir(module)]  # `vars` has only what was used before
    found = {x for x in names if inspect.isclass(x) and issubclass(x, base)}
    return {cls for cls in found if not inspect.isabstract(cls)}


def test_every_public_class_is_registered():
    public = set[type]()
    for module in (modulax, modulax.schedules, modulax.aggregate):
        for base in (modulax.AbstractTransform, modulax.AbstractSchedule, modulax.AbstractStatefulSchedule):
            public |= _public_classes(module, base)
    registered = {instance.cls for instance in EVERYTHING}
    missing, gone = ({x.__name__ for x in found} for found in (public - registered, registered - public))
    assert not missing, f"tests/instances/ has no instance of {sorted(missing)}: add it to the file of the family"
    assert not gone, f"tests/instances/ has {sorted(gone)}, which are not public"


def test_exemptions_name_laws():
    unknown = {(instance.name, name) for instance in TRANSFORMS for name in instance.exemptions.keys() - LAWS}
    assert not unknown
    assert LAWS.keys() >= reach.REACHES.keys()


def test_every_group_has_a_representative():
    """It obeys the law, unless all of the group are exempt; and whoever is exempt is checked too."""
    for name, law in LAWS.items():
        spoken_of = [instance for instance in TRANSFORMS if law.speaks_of(reach.cases()[instance])]
        assert spoken_of, name
        obedient = [instance for instance in spoken_of if name not in instance.exemptions]
        checked, share = reach.checked()[name], reach.share_of(law, reach.cases())
        groups = {reach.group(law, i) for i in obedient}
        assert groups & share <= {reach.group(law, i) for i in obedient if i in checked}, name
        assert checked >= set(spoken_of) - set(obedient), name


def test_every_group_is_checked_on_one_law_of_each_share():
    for row in reach.SHARES:
        shares = [reach.share_of(LAWS[name], reach.cases()) for name in row]
        every = {reach.group(LAWS[row[0]], instance) for instance in TRANSFORMS}
        assert set.union(*shares) == every
        assert sum(map(len, shares)) == len(every)


def test_a_new_set_of_overridden_methods_is_a_new_group():
    class Plain(modulax.AbstractLeafwise):
        def update_leaf(self, now, g, s, p):
            return g, s

    class Shared(Plain.__base__):  # pyright: ignore[reportGeneralTypeIssues]
        def update_leaf(self, now, g, s, p):
            return g, s

        def init_shared(self, params):
            return {}

        def share(self, now):
            return {}

    class Whole(modulax.AbstractTransform):
        def init(self, params):
            return modulax.EmptyState()

        def update(self, updates, state, params=None, **extra):
            return updates, state

    assert reach.base_of(Plain) is reach.base_of(Shared) is modulax.AbstractLeafwise
    assert reach.hooks_of(Plain) == reach.hooks_of(modulax.Clip)
    sets = {reach.hooks_of(instance.cls) for instance in TRANSFORMS}
    assert reach.hooks_of(Shared) not in sets
    assert reach.hooks_of(Whole) is Whole
