"""The laws on the other instances of each class, whose options select other branches; on the first, the slow laws."""

import pytest

from modulax.testing import LAWS

from . import reach
from .instances import FIRSTS, TRANSFORMS, Instance


@pytest.mark.parametrize("instance", TRANSFORMS, ids=str)
def test_laws(instance: Instance):
    reach.check_laws(instance, reach.SLOW if instance in FIRSTS else LAWS)
