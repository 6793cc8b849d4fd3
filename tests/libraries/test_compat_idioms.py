"""Idioms of programs that were written for optax: they see the same in `modulax.compat` as in optax."""

import pickle
import subprocess
import sys

import optax
import pytest

from modulax import compat

from ..idioms import libraries, modules, programs, states, transformations
from ..idioms._table import IDIOMS
from ..idioms.results import difference, leaves, result

_DEFINED = (libraries, modules, programs, states, transformations)  # which fill the table

# What is another thing here on purpose.
DIFFERENT = {
    "cached_in_two_places": "equal transformations are equal, and have one hash",
    "complex_params": "the second moment of complex gradients is real",
    "gradients_of_numbers": "updates are arrays, also those of Python numbers",
    "half_precision_with_moments": "updates have the dtype of their parameters, whatever that of the moments is",
    "injected_whole_number": "hyperparameters are floating-point numbers, so that 0.5 can take the place of 1",
    "integers_in_adam": "moments of integers are floating-point numbers",
    "injected_unknown_name": "the error names what is not known, and is a `ValueError`",
    "missing_params": "the error is one for a wrong call, of a class of its own",
    "moments_in_half_precision": "moments are computed in float32, and rounded once",
    "params_of_another_type": "the error names the leaf, and is a `ValueError`",
    "pickled_schedule": "schedules can be pickled; optax's functions cannot",
    "pickled_transformation": "transformations can be pickled; optax's functions cannot",
    "whole_number": "moments of integers are floating-point numbers",
}


@pytest.mark.parametrize("name", [name for name in IDIOMS if name not in DIFFERENT])
def test_idioms_that_give_the_same(name: str):
    assert difference(result(IDIOMS[name], optax), result(IDIOMS[name], compat)) == ""


@pytest.mark.parametrize("name", DIFFERENT)
def test_idioms_that_differ(name: str):
    try:
        theirs = result(IDIOMS[name], optax)
    except Exception as error:
        theirs = error
    assert difference(theirs, result(IDIOMS[name], compat)) != ""


INSTALLED = """
import pickle, sys
from modulax import compat
compat.install()
import optax
from tests.idioms import libraries, modules
from tests.idioms._table import IDIOMS
from tests.idioms.results import leaves, result
assert optax is compat
found = {name: leaves(result(IDIOMS[name], optax)) for name in sys.argv[1:]}
sys.stdout.buffer.write(pickle.dumps(found))
"""


def test_idioms_where_compat_is_installed_as_optax():
    """In a process of its own, in which Flax imports it too."""
    names = [name for name, idiom in IDIOMS.items() if idiom.__module__ == modules.__name__]
    names += ["train_state", "state_as_bytes", "nnx_moments", "got_rate", "anchored_rules", "neurons_reset_in_moments"]
    done = subprocess.run([sys.executable, "-c", INSTALLED, *names], capture_output=True, check=True)
    found = pickle.loads(done.stdout)
    for name in names:
        assert difference(leaves(result(IDIOMS[name], optax)), found[name]) == "", name
