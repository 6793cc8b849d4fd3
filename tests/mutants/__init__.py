"""Planted faults: small changes of the source, each of which the tests must notice.

A careless refactoring makes such faults: a wrong argument handed on, a field that is forgotten, `<` for `<=`. None of
them is equivalent to the code as it is: each changes what some user sees. `nox -s mutants` plants one after the other
and runs the tests that matter.

When you change a line that a mutant replaces, adapt the mutant; `tests/test_mutants.py` checks that each applies.
"""

from . import (
    aggregation,
    containers,
    defects,
    documented_containers,
    documented_functions,
    documented_protocol,
    documented_rules,
    documented_schedules,
    dtypes,
    edges,
    functions,
    line_searches,
    protocol,
    rules,
    schedules,
    second_look,
    small_things,
    sweeps,
    sweeps_plots,
    sweeps_search,
    sweeps_searching,
    third_look,
    trees,
    wrong_calls,
)
from ._mutant import Mutant as Mutant

MUTANTS: tuple[Mutant, ...] = (
    *rules.MUTANTS,
    *dtypes.MUTANTS,
    *schedules.MUTANTS,
    *line_searches.MUTANTS,
    *containers.MUTANTS,
    *defects.MUTANTS,
    *protocol.MUTANTS,
    *trees.MUTANTS,
    *functions.MUTANTS,
    *aggregation.MUTANTS,
    *edges.MUTANTS,
    *second_look.MUTANTS,
    *third_look.MUTANTS,
    *small_things.MUTANTS,
    *documented_protocol.MUTANTS,
    *documented_containers.MUTANTS,
    *documented_rules.MUTANTS,
    *documented_schedules.MUTANTS,
    *documented_functions.MUTANTS,
    *wrong_calls.MUTANTS,
    *sweeps.MUTANTS,
    *sweeps_plots.MUTANTS,
    *sweeps_search.MUTANTS,
    *sweeps_searching.MUTANTS,
)
