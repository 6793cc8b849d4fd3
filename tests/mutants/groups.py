"""Faults in multipliers by path and depth, parameter groups, muP, and in what `describe` shows of them."""

from ._mutant import Mutant

GROUPS, MUP, DESCRIBE = (
    ("tests/test_by_path.py",),
    ("tests/test_mup.py",),
    ("tests/test_describe.py -k multipliers_by",),
)


def _mutant(name: str, file: str, old: str, new: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, "groups", file, old, new, tests)


_RULE, _DEPTHS, _MUP = "_transforms/by_path.py", "_containers/layerwise_decay.py", "_containers/mup.py"

MUTANTS = (
    _mutant(
        "multipliers-are-sorted",
        _RULE,
        "return OrderedDict(given)",
        "return OrderedDict(sorted(given.items()))",
        GROUPS,
    ),
    _mutant(
        "the-last-pattern-of-multipliers-wins",
        _RULE,
        "enumerate(self.multipliers)})",
        "reversed([*enumerate(self.multipliers)])})",
        GROUPS,
    ),
    _mutant(
        "stacked-multipliers-lie-on-the-first-axis", _RULE, "-1 if i == self.axis else 1", "-1 if i == 0 else 1", GROUPS
    ),
    _mutant(
        "a-name-with-wildcards-is-a-pattern",
        "_protocol/hyperparameters.py",
        "if name in map(_joined, _ends(path))]",
        "if False]",
        GROUPS,
    ),
    _mutant(
        "blocks-are-ordered-as-text",
        _DEPTHS,
        "enumerate(sorted(lists[key]), 1)",
        "enumerate(sorted(lists[key], key=str), 1)",
        GROUPS,
    ),
    _mutant("the-norm-is-as-deep-as-the-head", _DEPTHS, "(_NORM, n)", "(_NORM, n + 1)", GROUPS),
    _mutant(
        "the-first-group-gets-all",
        "_containers/groups.py",
        "{pattern: optimizer.replace(**named) for",
        "{pattern: optimizer for",
        GROUPS,
    ),
    _mutant(
        "groups-trace-their-own-rules",
        "_protocol/leafwise.py",
        "return new if _shared.functions is None else _shared.functions.setdefault(key, new)",
        "return new",
        GROUPS,
    ),
    _mutant(
        "groups-of-other-options-share-a-rule",
        "_protocol/leafwise.py",
        "key = (shared_def, *",
        "key = (len(shared), *",
        GROUPS,
    ),
    _mutant("output-weights-begin-unscaled", _MUP, "return leaves[names].fan_in ** -0.5", "return 1.0", MUP),
    _mutant(
        "output-weights-learn-at-full-rate",
        _MUP,
        '_Leaf("output", fan_in=ratios[0])',
        '_Leaf("vector", fan_in=ratios[0])',
        MUP,
    ),
    _mutant(
        "mup-confuses-in-and-out",
        _MUP,
        'if layout != "out_in" else reversed(ratios)',
        'if layout == "out_in" else reversed(ratios)',
        MUP,
    ),
    _mutant("mup-takes-sgd-for-adam", _MUP, "np.allclose(large, large.max(), rtol=0.05)", "True", MUP),
    _mutant(
        "changes-are-sizes",
        "sweeps/_coordinates.py",
        "np.abs(x[name] - seen[0][name]).mean()",
        "np.abs(x[name]).mean()",
        MUP,
    ),
    _mutant(
        "describe-ignores-multipliers-by-path",
        "_catalog/describe.py",
        "transform.multipliers_of(tree) or []",
        "[]",
        DESCRIBE,
    ),
    _mutant(
        "describe-ignores-the-state",
        "_catalog/describe.py",
        "optimizer if state is None else optimizer.at(state)",
        "optimizer",
        ("tests/test_describe.py -k a_state_shows",),
    ),
    _mutant(
        "what-is-restored-is-placed",
        "checkpoint/_convert.py",
        "leaf.sharding if is_placed else None",
        "leaf.sharding",
        ("tests/test_checkpoint_edges.py -k where_the_template",),
    ),
)
