"""The laws on optimizers and on instances with other options; the slow laws on the instances of `test_contract.py`."""

import pytest

from modulax.testing import LAWS

from . import reach
from .instances import RULES, TRANSFORMS, Instance


@pytest.mark.parametrize("instance", TRANSFORMS, ids=str)
def test_laws(instance: Instance):
    reach.check_laws(instance, reach.SLOW if instance in RULES else LAWS)
