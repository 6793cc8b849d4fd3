"""Planted faults: small changes of the source, each of which the tests must notice.

A careless refactoring makes such faults: a wrong argument handed on, a field that is forgotten, `<` for `<=`. None of
them is equivalent to the code as it is: each changes what some user sees. `nox -s mutants` plants one after the other
and runs the tests that matter.

When you change a line that a mutant replaces, adapt the mutant; `tests/test_mutants.py` checks that each applies.
"""

from . import (
    aggregation,
    averages,
    compat,
    containers,
    defects,
    devices,
    documented_containers,
    documented_functions,
    documented_protocol,
    documented_rules,
    documented_schedules,
    dtypes,
    edges,
    functions,
    groups,
    line_searches,
    logging,
    low_bit,
    precision,
    protocol,
    rules,
    schedules,
    second_look,
    small_things,
    spikes,
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
    *logging.MUTANTS,
    *spikes.MUTANTS,
    *defects.MUTANTS,
    *devices.MUTANTS,
    *protocol.MUTANTS,
    *trees.MUTANTS,
    *functions.MUTANTS,
    *groups.MUTANTS,
    *aggregation.MUTANTS,
    *averages.MUTANTS,
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
    *precision.MUTANTS,
    *low_bit.MUTANTS,
    *sweeps.MUTANTS,
    *compat.MUTANTS,
    *sweeps_plots.MUTANTS,
    *sweeps_search.MUTANTS,
    *sweeps_searching.MUTANTS,
)
