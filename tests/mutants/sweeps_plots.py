"""Faults in the plots of a sweep."""

from ._mutant import Mutant

_PLOTS = ("tests/test_sweeps_plots.py",)

MUTANTS = (
    Mutant(
        "diverged-runs-are-not-marked",
        "plots",
        "sweeps/_plots.py",
        "bad = [i for i in members if panels.bad(i)]",
        "bad = [i for i in members if panels.bad(i) and panels.seeds < 0]",
        _PLOTS,
    ),
    Mutant(
        "the-band-is-of-finite-members-only",
        "plots",
        "sweeps/_panels.py",
        "some = there.any(axis=1)",
        "some = there.all(axis=1)",
        _PLOTS,
    ),
    Mutant(
        "decays-are-not-placed-by-their-distance-from-one",
        "plots",
        "sweeps/_panels.py",
        "if 0.9 <= finite[-1] < 1 and",
        "if 1 < finite[-1] < 1 and",
        _PLOTS,
    ),
    Mutant(
        "the-line-goes-through-the-worst-member",
        "plots",
        "sweeps/_plots.py",
        '    sign = 1 if panels.mode == "min" else -1\n    places',
        '    sign = -1 if panels.mode == "min" else 1\n    places',
        _PLOTS,
    ),
    Mutant(
        "a-stopped-member-is-drawn-as-the-others",
        "plots",
        "sweeps/_panels.py",
        "self.is_stopped = results.segments < results.segments.max()",
        "self.is_stopped = results.segments < 0",
        _PLOTS,
    ),
    Mutant(
        "the-heat-map-is-transposed",
        "plots",
        "sweeps/_plots.py",
        "mesh = ax.pcolormesh(values,",
        "mesh = ax.pcolormesh(values.T,",
        _PLOTS,
    ),
)
