"""Faults in the averages of the parameters: which parameters, with which weights, from when on."""

from ._mutant import Mutant

OWN = ("tests/test_parameter_averages.py",)


def _mutant(name: str, old: str, new: str, tests: tuple[str, ...] = OWN) -> Mutant:
    return Mutant(name, "averages", "_containers/averages.py", old, new, tests)


MUTANTS = (
    _mutant(
        "the-average-is-of-the-parameters-before-the-step",
        "new = jtu.tree_leaves(apply_updates(params, steps))\n    (means",
        "new = jtu.tree_leaves(params)\n    (means",
    ),
    _mutant(
        "a-snapshot-is-of-the-parameters-before-the-step",
        "new = jtu.tree_leaves(apply_updates(params, steps))\n            snap",
        "new = jtu.tree_leaves(params)\n            snap",
    ),
    _mutant("the-average-begins-at-its-start", "return since > 0, (since > 0)", "return since >= 0, (since >= 0)"),
    _mutant(
        "the-first-average-is-rounded", "jnp.where(rate < 1, mean + rate * (p - mean), p)", "mean + rate * (p - mean)"
    ),
    _mutant("a-rest-of-what-is-not-averaged", "[jnp.where(moves, nearer, mean)]", "[mean + moves * (nearer - mean)]"),
    _mutant("the-weights-of-a-schedule-are-forgotten", "+ weight * (1 - state.weight_sum)", "* 0 + weight"),
    _mutant(
        "the-decay-is-not-per-average",
        "weight_sum=jnp.where(is_due, weight_sum, state.weight_sum)",
        "weight_sum=jnp.where(has_begun, weight_sum, state.weight_sum)",
    ),
    _mutant("the-average-waits-at-the-initial-parameters", "is_due | ~has_begun", "is_due"),
    _mutant("an-average-of-nothing-is-evaluated", "choose(state.weight_sum > 0", "choose(state.weight_sum >= 0"),
    _mutant(
        "a-window-that-is-not-full-is-divided-by-its-length",
        "jnp.clip(state.num_averaged, 1, self.window)",
        "jnp.asarray(self.window)",
    ),
    _mutant("places-that-are-not-taken-are-averaged", "jnp.where(is_taken, kept, 0)", "kept"),
    Mutant(
        "snapshots-are-on-every-device",
        "averages",
        "_support/placement.py",
        "if shape[1:] == of and isinstance(sharding, NamedSharding)",
        "if False",
        OWN,
    ),
    _mutant("snapshots-are-taken-at-every-step", "jnp.where(is_due, p, kept[place])", "p"),
    _mutant(
        "the-average-is-in-the-dtype-of-the-parameters",
        "self.dtype or at_least_float32(p.dtype)",
        "self.dtype or p.dtype",
    ),
)
