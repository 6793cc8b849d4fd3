"""The laws on the other instances of each class, whose options select other branches."""

import pytest

from . import reach
from .instances import FIRSTS, TRANSFORMS, Instance


@pytest.mark.parametrize("instance", [instance for instance in TRANSFORMS if instance not in FIRSTS], ids=str)
def test_laws(instance: Instance):
    reach.check_laws(instance)
