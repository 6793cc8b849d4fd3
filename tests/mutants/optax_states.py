"""Faults in the conversion of states of optax: which array goes where, what is left over, where the state is."""

from ._mutant import Mutant

_TESTS = ("tests/test_checkpoint_optax.py",)
_EDGES = ("tests/test_checkpoint_edges.py -k optax",)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = _TESTS) -> Mutant:
    return Mutant(name, "checkpoint", f"checkpoint/{file}.py", old, new, tests)


MUTANTS = (
    _mutant(
        "steps-of-optax-are-those-of-any-count",
        "_optax_parts",
        "self.fields if _OTHER_COUNTS.isdisjoint(self.fields) else {}",
        "self.fields",
        _EDGES,
    ),
    _mutant(
        "steps-of-optax-are-not-those-of-its-schedule",
        "_optax_parts",
        "if schedules else counts[0] if counts else None",
        "if False else counts[0] if counts else None",
    ),
    _mutant(
        "states-of-optax-are-taken-in-order-only",
        "_optax_parts",
        "    return same, len(set(part.where) & set(other.where))",
        "    return same, 0",
    ),
    _mutant(
        "what-optax-has-left-over-is-dropped",
        "_optax",
        "        if strict and (lacking or left):",
        "        if strict and lacking:",
    ),
    _mutant(
        "what-optax-lacks-stays-fresh",
        "_optax",
        "        if strict and (lacking or left):",
        "        if strict and left:",
    ),
    _mutant("schedule-free-is-one-step-behind", "_optax", "lambda x, lead=lead: x - lead", "lambda x: x"),
    _mutant("the-average-is-that-of-the-trained", "_optax", "    return (y - (1 - b1) * z) / b1", "    return y"),
    _mutant("optax-gets-no-field-for-a-mean", "_optax", "    if lost:\n", "    if False:\n"),
    _mutant(
        "skipped-pairs-are-no-secret",
        "_optax",
        'plan.unused -= {name for name in part.fields.get("skipped", {}).values()',
        'plan.unused |= {name for name in part.fields.get("skipped", {}).values()',
    ),
    _mutant("the-first-of-several-states", "_optax", "    if len(outermost) <= 1:", "    if True:"),
    _mutant(
        "boxes-of-nnx-are-part-of-the-name",
        "_optax",
        'if name[-1:] == ("value",) and name[-2:] not in ends',
        "if False and ends",
    ),
    _mutant(
        "groups-are-paired-by-their-place",
        "_optax_parts",
        "other.scopes.get(holder, {}).get(label, [])",
        "list(other.scopes.get(holder, {}).values())[0]",
    ),
)
